//! Opens connections, all in the same way: to the first host that can be written to, encrypted as the URL
//! asks, with the session's settings. Host names are resolved each time.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Connect;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Notification, SimpleQueryMessage};

use crate::connect::PostgresOptions;
use crate::pooler;
use crate::tls::Tls;

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    /// One config for each host.
    hosts: Arc<[Config]>,
    tls: Tls,
    settings: Arc<str>,
    connect_timeout: Duration,
    shared: Arc<OpenerShared>,
}

#[derive(Debug, Default)]
struct OpenerShared {
    /// The host of the last connection: the others are tried after it.
    host: AtomicUsize,
    /// The server processes of open connections.
    backends: Mutex<BTreeSet<i32>>,
    /// Held by a probe, which needs a second connection.
    probing: tokio::sync::Mutex<()>,
}

impl Opener {
    pub(crate) fn new(config: &Config, tls: Tls, options: &PostgresOptions) -> Self {
        let connect_timeout = config.get_connect_timeout().copied().unwrap_or(options.connect_timeout);
        let hosts = hosts(config).map(|mut config| {
            let is_socket = matches!(config.get_hosts(), [Host::Unix(_)]);
            config.ssl_mode(match tls {
                Tls::Required(_) if !is_socket => SslMode::Require,
                Tls::Preferred(_) if !is_socket => SslMode::Prefer,
                _ => SslMode::Disable,
            });
            if config.get_application_name().is_none() {
                config.application_name("tasklane");
            }
            config.connect_timeout(connect_timeout);
            config.tcp_user_timeout(options.response_timeout);
            // After a failover the old server may still be there, read-only.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            config
        });
        // The server cancels a statement before the client gives it up, so that the outcome is known.
        let timeout = options.response_timeout.mul_f32(0.9).as_millis().max(1);
        let settings = format!(
            "SET statement_timeout = {timeout}; SET idle_in_transaction_session_timeout = {idle}; {PLANNING}; \
             SELECT pg_backend_pid()",
            idle = 4 * timeout
        );
        let hosts = hosts.collect();
        Self { hosts, tls, settings: settings.into(), connect_timeout, shared: Arc::default() }
    }

    pub(crate) fn first_config(&self) -> Config {
        self.hosts.first().cloned().unwrap_or_default()
    }

    /// How long opening may take: each host has the whole timeout.
    pub(crate) fn timeout(&self) -> Duration {
        self.connect_timeout * u32::try_from(self.hosts.len().max(1)).unwrap_or(u32::MAX)
    }

    /// Opens a connection. A pooler that shares one server process among connections is probed before it is
    /// used.
    pub(crate) async fn open(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>), Error> {
        let (client, driver, is_shared) = self.open_unprobed(heard).await?;
        if is_shared {
            self.probe().await?;
        }
        Ok((client, driver))
    }

    /// Fails if a pooler in between loses prepared statements.
    pub(crate) async fn probe(&self) -> Result<(), Error> {
        let _probing = self.shared.probing.lock().await;
        let (first, _, _) = self.open_unprobed(|_| {}).await?;
        let (second, _, _) = self.open_unprobed(|_| {}).await?;
        pooler::probe(&first, &second).await
    }

    /// Opens a connection without a probe. The last part of the answer is whether another open connection
    /// shares the server process.
    async fn open_unprobed(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>, bool), Error> {
        let (client, connection) = self.connect().await?;
        let (send, receive) = tokio::sync::oneshot::channel::<Backend>();
        let driver = tokio::spawn(async move {
            let _backend = receive;
            match connection {
                AnyConnection::Plain(connection) => drive(*connection, heard).await,
                AnyConnection::Tls(connection) => drive(*connection, heard).await,
            }
        });
        let answer = client.simple_query(&self.settings).await?;
        let pid = answer.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
            _ => None,
        });
        let Some(pid) = pid else { return Ok((client, driver, false)) };
        let is_shared = !self.shared.lock().insert(pid);
        // The driver holds it until the connection ends.
        let _ = send.send(Backend { pid, shared: Arc::clone(&self.shared) });
        Ok((client, driver, is_shared))
    }

    async fn connect(&self) -> Result<(Client, AnyConnection), Error> {
        let (count, start) = (self.hosts.len(), self.shared.host.load(Ordering::Relaxed));
        let mut failed = None;
        for n in 0..count {
            let host = (start + n) % count;
            let connecting = self.connect_to(&self.hosts[host]);
            let connected = if n + 1 == count {
                // The caller limits the total time.
                connecting.await
            } else {
                match tokio::time::timeout(self.connect_timeout, connecting).await {
                    Ok(connected) => connected,
                    Err(_) => continue,
                }
            };
            match connected {
                Ok(connected) => {
                    self.shared.host.store(host, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("the last host has answered with a connection or an error"))
    }

    async fn connect_to(&self, host: &Config) -> Result<(Client, AnyConnection), Error> {
        let plain = async || {
            let (client, connection) = host.connect(NoTls).await?;
            Ok((client, AnyConnection::Plain(Box::new(connection))))
        };
        match &self.tls {
            Tls::Off => plain().await,
            _ if host.get_ssl_mode() == SslMode::Disable => plain().await,
            Tls::Preferred(tls) => {
                let tls = tls.fresh();
                match host.connect(tls.clone()).await {
                    Ok((client, connection)) => Ok((client, AnyConnection::Tls(Box::new(connection)))),
                    // As libpq does. The error is that of the encrypted attempt.
                    Err(error) if tls.was_offered() && may_be_plain(&error) => {
                        plain().await.map_err(|_| error)
                    }
                    Err(error) => Err(error),
                }
            }
            Tls::Required(tls) => {
                let (client, connection) = host.connect(tls.clone()).await?;
                Ok((client, AnyConnection::Tls(Box::new(connection))))
            }
        }
    }
}

/// Whether a server that refused an encrypted connection may take a plain one.
fn may_be_plain(error: &Error) -> bool {
    error.as_db_error().is_none_or(|db| *db.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

type RawConnection<T> = tokio_postgres::Connection<tokio_postgres::Socket, T>;

enum AnyConnection {
    Plain(Box<RawConnection<tokio_postgres::tls::NoTlsStream>>),
    Tls(Box<RawConnection<crate::tls::Encrypted>>),
}

/// A server process with an open connection.
#[derive(Debug)]
struct Backend {
    pid: i32,
    shared: Arc<OpenerShared>,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.pid);
    }
}

impl OpenerShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A config for each host of this one.
fn hosts(config: &Config) -> impl Iterator<Item = Config> {
    let count = config.get_hosts().len().max(config.get_hostaddrs().len());
    (0..count).map(|n| {
        let (host, address) = (config.get_hosts().get(n), config.get_hostaddrs().get(n));
        let port = config.get_ports().get(n).or_else(|| config.get_ports().first());
        let mut one = Config::new();
        match (host, address) {
            (Some(Host::Unix(path)), _) => _ = one.host_path(path),
            (Some(Host::Tcp(name)), _) => _ = one.host(name),
            // Certificates may name addresses.
            (None, Some(address)) => _ = one.host(address.to_string()),
            (None, None) => {}
        }
        if let (Some(Host::Tcp(_)) | None, Some(address)) = (host, address) {
            one.hostaddr(*address);
        }
        one.port(port.copied().unwrap_or(5432));
        if let Some(user) = config.get_user() {
            one.user(user);
        }
        if let Some(password) = config.get_password() {
            one.password(password);
        }
        if let Some(name) = config.get_dbname() {
            one.dbname(name);
        }
        if let Some(options) = config.get_options() {
            one.options(options);
        }
        if let Some(name) = config.get_application_name() {
            one.application_name(name);
        }
        one.ssl_negotiation(config.get_ssl_negotiation());
        one.channel_binding(config.get_channel_binding());
        one.load_balance_hosts(config.get_load_balance_hosts());
        one.keepalives(config.get_keepalives());
        one.keepalives_idle(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            one.keepalives_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            one.keepalives_retries(retries);
        }
        one
    })
}

/// Drives a connection until it ends. Its users get the reason of the end.
async fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, mut heard: impl FnMut(Notification))
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(notification) = message {
            heard(notification);
        }
    }
}

/// All statements go through indexes, step by step, whatever the tables hold and however old the server's
/// statistics of them are. (Compiling a plan pays only for statements that run long.)
const PLANNING: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; \
                        SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";

impl Connect for Opener {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(self.open(|_| {}))
    }
}

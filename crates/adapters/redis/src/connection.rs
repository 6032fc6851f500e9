//! One connection to one server. It reconnects after a loss.
//!
//! The crate's own connection manager hides whether a command was sent before the connection broke. This one
//! separates making the connection (nothing was sent) from using it (the command may have been sent). A
//! connection that closed while idle is noticed before the next command is sent.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion,
    RedisConnectionInfo, RedisError, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::error::CallError;
use crate::sentinel::Sentinels;
use crate::tls::{Tls, refused};

/// Commands that may wait in front of a connection; senders wait beyond that.
const QUEUED_MAX: usize = 1024;
/// Bytes gathered for one write to the socket.
const WRITE_BYTES: usize = 128 << 10;

/// How long to wait for a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// How one server is reached. Host names are resolved again for every connection.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) info: ConnectionInfo,
    pub(crate) tls: Option<Tls>,
    /// The sentinels that name the address, in place of `info`.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.addr().fmt(f)
    }
}

pub(crate) struct Connection {
    endpoint: Endpoint,
    timeouts: Timeouts,
    state: Mutex<ConnectionState>,
}

/// Receiver of the messages that a server pushes.
pub(crate) type Pushes = Arc<dyn AsyncPushSender>;

#[derive(Default)]
struct ConnectionState {
    live: Option<Arc<LiveConnection>>,
    /// The last failure to connect. Callers that waited for that attempt share it instead of trying one after
    /// the other.
    failed: Option<(Instant, RedisError)>,
}

/// An open connection. Dropping it closes it, also with commands unanswered.
#[derive(Debug)]
pub(crate) struct LiveConnection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl LiveConnection {
    /// Makes a connection. With `pushes` it can subscribe.
    pub(crate) async fn connect(
        endpoint: &Endpoint,
        timeouts: Timeouts,
        pushes: Option<Pushes>,
    ) -> Result<Self, RedisError> {
        // Each sentinel may take the time of a server.
        let address = match &endpoint.sentinels {
            Some(sentinels) => &sentinels.primary(timeouts).await?,
            None => endpoint.info.addr(),
        };
        let making = async {
            let live = Self::make(endpoint, address, timeouts, pushes).await?;
            if endpoint.sentinels.is_some() {
                live.check_role(address).await?;
            }
            Ok(live)
        };
        let made = tokio::time::timeout(timeouts.connect, making).await;
        made.unwrap_or_else(|_| Err(timed_out(address, endpoint.tls.is_some())))
    }

    async fn make(
        endpoint: &Endpoint,
        address: &ConnectionAddr,
        timeouts: Timeouts,
        pushes: Option<Pushes>,
    ) -> Result<Self, RedisError> {
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(timeouts.response))
            .set_pipeline_buffer_size(QUEUED_MAX)
            .set_write_backpressure_boundary(WRITE_BYTES);
        let mut settings = endpoint.info.redis_settings().clone();
        if let Some(pushes) = pushes {
            settings = settings.set_protocol(ProtocolVersion::RESP3);
            config = config.set_push_sender(pushes);
        }
        let ConnectionAddr::Tcp(host, port) = address else {
            return Err((ErrorKind::InvalidClientConfig, "only TCP is supported").into());
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        match &endpoint.tls {
            None => Self::over(stream, &settings, config).await,
            Some(tls) => {
                let made = Self::over(tls.connect(host, stream).await?, &settings, config).await;
                made.map_err(|error| explain_client_certificate(error, host))
            }
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Self { connection, driver: tokio::spawn(driver) })
    }

    /// A server that the sentinels name may be a replica for a moment: before its promotion, or after.
    async fn check_role(&self, address: &ConnectionAddr) -> Result<(), RedisError> {
        let Value::Array(role) = self.send(&redis::cmd("ROLE")).await? else { return Ok(()) };
        match role.into_iter().next() {
            Some(Value::BulkString(role)) if role != b"master" => {
                let text = format!("{address} is not the primary yet");
                Err(std::io::Error::new(std::io::ErrorKind::NotConnected, text).into())
            }
            _ => Ok(()),
        }
    }

    /// Sends a command and waits for its answer, which may be the server's refusal.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.connection.clone().send_packed_command(command).await.and_then(Value::extract_error)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", self.endpoint.info.addr()).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, timeouts: Timeouts) -> Self {
        Self { endpoint, timeouts, state: Mutex::default() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a command and waits for its answer. With `asking`, the node that a slot is moving to answers
    /// too.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, CallError> {
        let live = self.live().await.map_err(CallError::NotSent)?;
        let answer = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            let answers = live.connection.clone().send_packed_commands(&both, 1, 1).await;
            let answer = answers.map(|answers| answers.into_iter().next().unwrap_or(Value::Nil));
            answer.and_then(Value::extract_error)
        } else {
            live.send(command).await
        };
        if let Err(error) = &answer
            && needs_new_connection(error)
        {
            self.give_up(&live).await;
        }
        answer.map_err(CallError::Sent)
    }

    /// Closes the connection once no command waits for an answer.
    pub(crate) async fn close(&self) {
        self.state.lock().await.live = None;
    }

    async fn live(&self) -> Result<Arc<LiveConnection>, RedisError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live
            && !live.is_lost()
        {
            return Ok(Arc::clone(live));
        }
        state.live = None;
        if let Some((at, error)) = &state.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        match LiveConnection::connect(&self.endpoint, self.timeouts, None).await {
            Ok(live) => {
                let live = Arc::new(live);
                *state = ConnectionState { live: Some(Arc::clone(&live)), failed: None };
                Ok(live)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn give_up(&self, lost: &Arc<LiveConnection>) {
        let mut state = self.state.lock().await;
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, lost)) {
            state.live = None;
        }
    }
}

/// A server without encryption never answers the first message of an encrypting client.
fn timed_out(address: &ConnectionAddr, encrypted: bool) -> RedisError {
    let mut text = format!("{address} does not answer in time");
    if encrypted {
        text += "; if this is not its TLS port, use that, or redis:// in place of rediss://";
    }
    std::io::Error::new(std::io::ErrorKind::TimedOut, text).into()
}

/// A server that requires a client certificate refuses only after the handshake, with the first answer.
fn explain_client_certificate(error: RedisError, host: &str) -> RedisError {
    let text = error.to_string();
    if !text.contains("CertificateRequired") && !text.contains("certificate required") {
        return error;
    }
    refused(format!(
        "{host} wants a certificate of its clients: name the files of the certificate and its key with sslcert=… and \
         sslkey=…"
    ))
}

/// A connection without an answer may be dead. A server that became a replica needs a new connection, because
/// its name may lead to the new primary by now.
fn needs_new_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error() || error.code() == Some("READONLY")
}

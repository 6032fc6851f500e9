//! From a URL to connections.
//!
//! Owners commit over two connections of their own ([`Link`]); all else goes over a small pool. Statements name their
//! schema and take nothing from the session but its timeouts and the way they are planned, so a pooler in between does
//! no harm as long as it keeps prepared statements.

use std::future::poll_fn;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tasklane_core::id::LaneId;
use tasklane_ports::StoreError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Notification, Row, Statement};

use crate::error::CallError;
use crate::link::Link;
use crate::plan::Write;
use crate::statements::Statements;
use crate::tls::Tls;

/// How to use a server.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The schema that everything lies in; it is made if it is not there. Two deployments with different schemas can
    /// share a database. `?schema=…` in the URL goes first.
    pub schema: String,
    /// Most connections for all but commits, which have two of their own.
    pub connections: usize,
    /// A call without an answer for this long has failed; whether it was applied is unknown. The server gives a
    /// statement up a little earlier, and then it was not.
    pub response_timeout: Duration,
    /// A connection that cannot be made in this time cannot be made.
    pub connect_timeout: Duration,
    /// A claim that has waited this long for a commit of the lane's old owner ends that owner's connection. A quarter of
    /// the servers' session TTL is a good time.
    pub claim_patience: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "tasklane".to_owned(),
            connections: 8,
            response_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            claim_patience: Duration::from_millis(1250),
        }
    }
}

/// Connections to one schema of one database.
#[derive(Debug)]
pub(crate) struct Database {
    opener: Opener,
    pool: Pool,
    links: [Link; 2],
    pub(crate) schema: Schema,
    pub(crate) statements: Statements,
    pub(crate) options: PostgresOptions,
    closed: AtomicBool,
}

impl Database {
    /// Reads a URL. Nothing is connected yet.
    pub(crate) fn from_url(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Refused { reason };
        let Target { url, schema, ssl_mode, root_certs } = Target::parse(url);
        let schema = Schema::new(schema.unwrap_or_else(|| options.schema.clone())).map_err(refused)?;
        let config = Config::from_str(&url).map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            refused(format!("{error}{cause}; a URL looks like postgres://user:password@host:5432/database"))
        })?;
        let tls = Tls::new(ssl_mode.as_deref(), root_certs.as_deref()).map_err(refused)?;
        let opener = Opener::new(config, tls, options);
        let manager = Manager::from_connect(
            opener.config.clone(),
            opener.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(options.connections.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(options.response_timeout))
            .create_timeout(Some(options.connect_timeout))
            .build()
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            opener,
            pool,
            links: Default::default(),
            statements: Statements::new(&schema.quoted),
            schema,
            options: options.clone(),
            closed: AtomicBool::new(false),
        })
    }

    /// A connection of the pool, for a few statements.
    pub(crate) async fn pooled(&self) -> Result<Object, CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        Ok(self.pool.get().await?)
    }

    /// A connection of its own, which lives until the client is dropped.
    pub(crate) async fn open(&self) -> Result<(Client, JoinHandle<()>), CallError> {
        self.open_listening(|_| {}).await
    }

    /// Like [`open`](Self::open), in one piece.
    pub(crate) async fn open_connection(&self) -> Result<Connection, CallError> {
        let (client, driver) = self.open().await?;
        Ok(Connection { client, driver })
    }

    /// The same, for somebody who listens: `heard` gets what others notify of.
    pub(crate) async fn open_listening(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>), CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        let opened = tokio::time::timeout(self.options.connect_timeout, self.opener.open(heard)).await;
        opened.map_err(|_| CallError::NoneFree)?.map_err(CallError::NoConnection)
    }

    /// Runs one statement on a connection of the pool.
    pub(crate) async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallError> {
        let client = self.pooled().await?;
        let answer = self.query_on(&client, sql, params).await;
        used(client, answer)
    }

    /// Runs one statement.
    pub(crate) async fn query_on(
        &self,
        client: &Object,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallError> {
        let statement = self.prepared(client, sql).await?;
        self.in_time(client.query(&statement, params)).await
    }

    async fn prepared(&self, client: &Object, sql: &str) -> Result<Statement, CallError> {
        self.in_time(client.prepare_cached(sql)).await.map_err(|error| match error {
            // What it is prepared for was not sent.
            CallError::Failed(error) => CallError::NoConnection(error),
            CallError::TimedOut(_) => CallError::NoneFree,
            other => other,
        })
    }

    /// Runs one statement that answers with one row.
    pub(crate) async fn query_one(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, StoreError> {
        let rows = self.query(sql, params).await?;
        rows.into_iter().next().ok_or_else(|| crate::error::unexpected("no row where there is always one"))
    }

    /// Runs one statement that answers with a number of rows.
    pub(crate) async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, CallError> {
        let client = self.pooled().await?;
        let answer = match self.prepared(&client, sql).await {
            Ok(statement) => self.in_time(client.execute(&statement, params)).await,
            Err(error) => Err(error),
        };
        used(client, answer)
    }

    /// Runs one statement that changes nothing.
    pub(crate) async fn read(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.query(sql, params).await.map_err(CallError::of_read)
    }

    /// Sends a commit down the connection of its lane.
    pub(crate) async fn commit(&self, lane: LaneId, write: &Write) -> Result<Row, CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        self.links[usize::from(lane.0) % self.links.len()].write(self, write).await
    }

    /// Waits for an answer, but not for ever.
    pub(crate) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallError> {
        let timeout = self.options.response_timeout;
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer.map_err(CallError::Failed),
            Err(_) => Err(CallError::TimedOut(timeout)),
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.pool.close();
        self.links.iter().for_each(Link::close);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Gives a connection back, unless it is of no more use.
fn used<T>(client: Object, answer: Result<T, CallError>) -> Result<T, CallError> {
    if answer.as_ref().is_err_and(CallError::is_fatal) {
        // Somebody else would wait in vain.
        drop(Object::take(client));
    }
    answer
}

/// Makes connections, all in the same way.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    config: Config,
    tls: Tls,
    settings: Arc<str>,
}

impl Opener {
    fn new(mut config: Config, tls: Tls, options: &PostgresOptions) -> Self {
        config.ssl_mode(match tls {
            Tls::Off => SslMode::Disable,
            Tls::On(_) => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("tasklane");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.connect_timeout);
        }
        config.tcp_user_timeout(options.response_timeout);
        // After a failover the old server may still be there, and only reads.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        // Given up by the server before it is given up here, so that the outcome is known.
        let timeout = options.response_timeout.mul_f32(0.9).as_millis().max(1);
        let settings = format!(
            "SET statement_timeout = {timeout}; SET idle_in_transaction_session_timeout = {idle}; {PLANNING}",
            idle = 4 * timeout
        );
        Self { config, tls, settings: settings.into() }
    }

    async fn open(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>), Error> {
        let (client, driver) = match &self.tls {
            Tls::Off => {
                let (client, connection) = self.config.connect(NoTls).await?;
                (client, tokio::spawn(drive(connection, heard)))
            }
            Tls::On(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                (client, tokio::spawn(drive(connection, heard)))
            }
        };
        client.batch_execute(&self.settings).await?;
        Ok((client, driver))
    }
}

/// A connection that is closed when this is dropped, whatever the server is still asked.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Keeps a connection going until it ends. How it ends is told to those who use it.
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

/// All statements go through indexes, step by step, whatever the tables hold and however old the server's statistics of
/// them are. (Compiling a plan pays only for those that run for long.)
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

/// The name of a schema.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) name: String,
    /// As it stands in statements.
    pub(crate) quoted: String,
}

impl Schema {
    fn new(name: String) -> Result<Self, String> {
        let fits = !name.is_empty()
            && name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !name.starts_with("pg_");
        if !fits {
            return Err(format!(
                "schema {name:?} must be 1 to 63 letters, digits and _, and not begin with pg_"
            ));
        }
        let quoted = format!("\"{name}\"");
        Ok(Self { name, quoted })
    }
}

/// The parts of a URL: what the client takes, and what is ours.
#[derive(Debug, Default, PartialEq, Eq)]
struct Target {
    url: String,
    schema: Option<String>,
    ssl_mode: Option<String>,
    root_certs: Option<String>,
}

impl Target {
    fn parse(url: &str) -> Self {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut target = Self::default();
        let mut others = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("schema", value)) => target.schema = Some(value.to_owned()),
                Some(("sslmode", value)) => target.ssl_mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => target.root_certs = Some(value.replace("%2F", "/")),
                _ => others.push(part),
            }
        }
        let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        target.url = format!("{base}{query}");
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_taken_out_of_the_url() {
        let target = |url: &str, schema: Option<&str>| {
            let (url, schema) = (url.to_owned(), schema.map(str::to_owned));
            Target { url, schema, ..Target::default() }
        };
        assert_eq!(Target::parse("postgres://u:p@h:1/d"), target("postgres://u:p@h:1/d", None));
        assert_eq!(
            Target::parse("postgres:///d?host=/run/postgresql&schema=a&application_name=b"),
            target("postgres:///d?host=/run/postgresql&application_name=b", Some("a"))
        );
        assert_eq!(Target::parse("postgres://h/d?schema=b"), target("postgres://h/d", Some("b")));
    }

    fn refused(url: &str) -> String {
        match Database::from_url(url, &PostgresOptions::default()) {
            Err(StoreError::Refused { reason }) => reason,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_why() {
        for (url, why) in [
            ("postgres://h/d?schema=a\"b", "letters, digits"),
            ("postgres://h/d?schema=pg_x", "pg_"),
            ("postgres://h/d?schema=", "letters, digits"),
            ("postgres://h/d?sslmode=maybe", "verify-full"),
            ("postgres://h/d?sslmode=require&sslrootcert=/nowhere", "/nowhere"),
            ("postgres://h/d?colour=red", "colour"),
            ("postgres://h:port/d", "postgres://user:password@host"),
        ] {
            let reason = refused(url);
            assert!(reason.contains(why), "{url}: {reason}");
        }
    }

    #[tokio::test]
    async fn sockets_and_lists_of_hosts_are_taken() {
        for url in
            ["postgres:///d?host=/run/postgresql", "postgresql://u@a:1,b:2/d?schema=x", "postgres://h/d"]
        {
            Database::from_url(url, &PostgresOptions::default()).unwrap();
        }
    }
}

//! From a URL to connections.
//!
//! Owners commit over two connections of their own ([`CommitConnection`]); all other calls go over a small
//! pool. Statements name their schema and take only timeouts and planner settings from the session. So a
//! pooler in between does no harm as long as it keeps prepared statements; a probe checks that (`pooler.rs`).

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tasklane_core::id::LaneId;
use tasklane_ports::StoreError;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error, Notification, Row, Statement};

use crate::connection::CommitConnection;
use crate::error::CallError;
use crate::opener::Opener;
use crate::statements::Statements;
use crate::target::Target;
use crate::tls::Tls;
use crate::write_lane::LaneWrite;

/// How to use a server.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The schema of all tables; it is created if it does not exist. Two deployments with different schemas
    /// can share a database. `?schema=…` in the URL overrides it.
    pub schema: String,
    /// Most connections at one time. Each store, coordinator and archive has this many for itself: a store at
    /// least [`PostgresStore::CONNECTIONS_MIN`](crate::PostgresStore::CONNECTIONS_MIN), two of which only
    /// commit.
    pub connections: usize,
    /// A call without an answer for this long has failed; its outcome is unknown. The server cancels a
    /// statement a little earlier, and then it was not applied.
    pub response_timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// A claim that has waited this long for a commit of the lane's old owner ends that owner's connection. A
    /// quarter of the servers' session TTL is a good time.
    pub claim_patience: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "tasklane".to_owned(),
            connections: 10,
            response_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            claim_patience: Duration::from_millis(1250),
        }
    }
}

/// Connections that only commit.
const COMMIT_CONNECTIONS: usize = 2;

/// The adapter that uses a database, which decides how its connections are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Two connections for commits, and a pool.
    Store,
    /// A connection that listens, and further ones, opened one by one. There is no pool.
    Coordinator,
    /// A pool.
    Archive,
}

impl Purpose {
    /// The fewest connections that the adapter works with.
    pub(crate) const fn connections_min(self) -> usize {
        match self {
            Self::Store => COMMIT_CONNECTIONS + 2,
            Self::Coordinator | Self::Archive => 2,
        }
    }

    /// Connections of the pool.
    fn pooled(self, connections: usize) -> Result<usize, String> {
        let (role, min) = (format!("{self:?}").to_lowercase(), self.connections_min());
        if connections < min {
            return Err(format!(
                "{connections} connections are too few for the {role}: give it at least {min}"
            ));
        }
        Ok(match self {
            Self::Store => connections - COMMIT_CONNECTIONS,
            Self::Coordinator | Self::Archive => connections,
        })
    }
}

/// Connections to one schema of one database.
#[derive(Debug)]
pub(crate) struct Database {
    opener: Opener,
    pool: Pool,
    commit_connections: [CommitConnection; COMMIT_CONNECTIONS],
    claims: Semaphore,
    pub(crate) schema: Schema,
    pub(crate) statements: Statements,
    pub(crate) options: PostgresOptions,
    closed: AtomicBool,
}

impl Database {
    /// Reads a URL. Nothing is connected yet.
    pub(crate) fn from_url(url: &str, options: &PostgresOptions, role: Purpose) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Refused { reason };
        let pooled = role.pooled(options.connections).map_err(refused)?;
        let Target { url, schema, tls } = Target::parse(url).map_err(refused)?;
        let schema = Schema::new(schema.unwrap_or_else(|| options.schema.clone())).map_err(refused)?;
        let config = Config::from_str(&url).map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            refused(format!("{error}{cause}; a URL looks like postgres://user:password@host:5432/database"))
        })?;
        let tls = Tls::new(&tls).map_err(refused)?;
        let opener = Opener::new(&config, tls, options);
        let manager = Manager::from_connect(
            opener.first_config(),
            opener.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(pooled)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(options.response_timeout))
            .create_timeout(Some(opener.timeout()))
            .build()
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            opener,
            pool,
            commit_connections: Default::default(),
            // A waiting claim has one connection, and the search for the transaction that blocks it another.
            claims: Semaphore::new(pooled.saturating_sub(1).max(1)),
            statements: Statements::new(&schema.quoted),
            schema,
            options: options.clone(),
            closed: AtomicBool::new(false),
        })
    }

    /// Refuses a pooler that loses prepared statements.
    pub(crate) async fn probe(&self) -> Result<(), CallError> {
        let timeout = self.opener.timeout() + self.options.response_timeout;
        let probed = tokio::time::timeout(timeout, self.opener.probe()).await;
        probed.map_err(|_| CallError::NoneFree)?.map_err(CallError::NoConnection)
    }

    /// A connection of the pool, for a few statements.
    pub(crate) async fn pooled(&self) -> Result<Object, CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        Ok(self.pool.get().await?)
    }

    /// A connection outside the pool, which lives until the client is dropped.
    pub(crate) async fn open(&self) -> Result<(Client, JoinHandle<()>), CallError> {
        self.open_listening(|_| {}).await
    }

    /// Like [`open`](Self::open), in one piece.
    pub(crate) async fn open_connection(&self) -> Result<Connection, CallError> {
        let (client, driver) = self.open().await?;
        Ok(Connection { client, driver })
    }

    /// Like [`open`](Self::open), with a receiver of notifications.
    pub(crate) async fn open_listening(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<(Client, JoinHandle<()>), CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        let opened = tokio::time::timeout(self.opener.timeout(), self.opener.open(heard)).await;
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

    /// Claims a lane, by a statement that is not prepared. One connection of the pool is left for other
    /// calls.
    pub(crate) async fn claim(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, CallError> {
        let turn = tokio::time::timeout(self.options.response_timeout, self.claims.acquire()).await;
        let _turn = turn.map_err(|_| CallError::NoneFree)?.map_err(|_| CallError::Closed)?;
        let client = self.pooled().await?;
        let answer = self.in_time(client.query_typed(sql, params)).await;
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
            // The statement itself was not sent.
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

    /// Sends a commit over the connection of its lane.
    pub(crate) async fn commit(&self, lane: LaneId, write: &LaneWrite) -> Result<Row, CallError> {
        if self.is_closed() {
            return Err(CallError::Closed);
        }
        self.commit_connections[usize::from(lane.0) % self.commit_connections.len()].write(self, write).await
    }

    /// Waits for an answer, up to `response_timeout`.
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
        self.commit_connections.iter().for_each(CommitConnection::close);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Returns a connection to the pool, unless it is broken.
fn used<T>(client: Object, answer: Result<T, CallError>) -> Result<T, CallError> {
    if answer.as_ref().is_err_and(CallError::is_fatal) {
        // The next user of the connection would wait in vain.
        drop(Object::take(client));
    }
    answer
}

/// A connection that closes when it is dropped, also with statements unanswered.
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

/// The name of a schema.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    pub(crate) name: String,
    /// The name as it stands in statements.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match Database::from_url(url, &PostgresOptions::default(), Purpose::Store) {
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
            ("postgres://h/d?sslmode=require&sslrootcert=/nowhere", "sslrootcert=/nowhere"),
            ("postgres://h/d?sslcert=/c", "sslkey="),
            ("postgres://h/d?sslkey=/k", "sslcert="),
            ("postgres://h/d?sslcert=/nowhere&sslkey=/k", "sslcert=/nowhere"),
            ("postgres://a,b/d?target_session_attrs=read-only", "read-write"),
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
            Database::from_url(url, &PostgresOptions::default(), Purpose::Store).unwrap();
        }
    }
}

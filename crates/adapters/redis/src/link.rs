//! One connection to one server, made anew when it is lost.
//!
//! The crate's own connection manager hides whether a command was sent before the connection broke. Here the two are
//! kept apart: making the connection (nothing was sent) and using it (something may have been). A connection that was
//! closed while nobody used it is noticed before the next command is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, Value,
};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::error::CallError;

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

pub(crate) struct Link {
    info: ConnectionInfo,
    timeouts: Timeouts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// The last failure to connect. Those who waited for that attempt share it instead of trying one after the other.
    failed: Option<(Instant, RedisError)>,
}

struct Live {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("address", self.info.addr()).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(info: ConnectionInfo, timeouts: Timeouts) -> Self {
        Self { info, timeouts, state: Mutex::default() }
    }

    /// Sends a command and waits for its answer. With `asking`, a node that is about to take over the slot answers too.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, CallError> {
        let live = self.live().await.map_err(CallError::NotSent)?;
        let mut connection = live.connection.clone();
        let answer = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            let answers = connection.send_packed_commands(&both, 1, 1).await;
            answers.map(|answers| answers.into_iter().next().unwrap_or(Value::Nil))
        } else {
            connection.send_packed_command(command).await
        };
        let answer = answer.and_then(Value::extract_error);
        if let Err(error) = &answer
            && needs_new_connection(error)
        {
            self.give_up(&live).await;
        }
        answer.map_err(CallError::Sent)
    }

    /// Closes the connection once nobody waits for an answer on it.
    pub(crate) async fn close(&self) {
        self.state.lock().await.live = None;
    }

    async fn live(&self) -> Result<Arc<Live>, RedisError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live
            && !live.driver.is_finished()
        {
            return Ok(Arc::clone(live));
        }
        state.live = None;
        if let Some((at, error)) = &state.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(live) => {
                let live = Arc::new(live);
                *state = State { live: Some(Arc::clone(&live)), failed: None };
                Ok(live)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn give_up(&self, lost: &Arc<Live>) {
        let mut state = self.state.lock().await;
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, lost)) {
            state.live = None;
        }
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let timed_out = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let connected = tokio::time::timeout(self.timeouts.connect, self.connect_unbounded()).await;
        connected.map_err(|_| timed_out())?
    }

    async fn connect_unbounded(&self) -> Result<Live, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.timeouts.response))
            .set_pipeline_buffer_size(QUEUED_MAX)
            .set_write_backpressure_boundary(WRITE_BYTES);
        let settings = self.info.redis_settings();
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(settings, stream, config).await?;
                Ok(Live { connection, driver: tokio::spawn(driver) })
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(settings, stream, config).await?;
                Ok(Live { connection, driver: tokio::spawn(driver) })
            }
            _ => Err((ErrorKind::InvalidClientConfig, "only TCP and Unix sockets are supported").into()),
        }
    }
}

/// A connection on which no answer came may be dead for good; one to a server that became a replica should be made
/// anew, because the name may lead to the new primary by now.
fn needs_new_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error() || error.code() == Some("READONLY")
}

//! One connection to one server, made anew when it is lost.
//!
//! The crate's own connection manager hides whether a command was sent before the connection broke. Here the two are
//! kept apart: making the connection (nothing was sent) and using it (something may have been). A connection that was
//! closed while nobody used it is noticed before the next command is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion,
    RedisError, Value,
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

/// What a server says without being asked, and who hears it.
pub(crate) type Pushes = Arc<dyn AsyncPushSender>;

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// The last failure to connect. Those who waited for that attempt share it instead of trying one after the other.
    failed: Option<(Instant, RedisError)>,
}

/// A connection as long as it lasts. Dropping it closes it, whatever the server is still asked.
#[derive(Debug)]
pub(crate) struct Live {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Live {
    /// Makes a connection. With `pushes` it is one that can subscribe.
    pub(crate) async fn connect(
        info: &ConnectionInfo,
        timeouts: Timeouts,
        pushes: Option<Pushes>,
    ) -> Result<Self, RedisError> {
        let timed_out = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let connected = tokio::time::timeout(timeouts.connect, Self::make(info, timeouts, pushes)).await;
        connected.map_err(|_| timed_out())?
    }

    async fn make(
        info: &ConnectionInfo,
        timeouts: Timeouts,
        pushes: Option<Pushes>,
    ) -> Result<Self, RedisError> {
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(timeouts.response))
            .set_pipeline_buffer_size(QUEUED_MAX)
            .set_write_backpressure_boundary(WRITE_BYTES);
        let mut settings = info.redis_settings().clone();
        if let Some(pushes) = pushes {
            settings = settings.set_protocol(ProtocolVersion::RESP3);
            config = config.set_push_sender(pushes);
        }
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&settings, stream, config).await?;
                Ok(Self { connection, driver: tokio::spawn(driver) })
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&settings, stream, config).await?;
                Ok(Self { connection, driver: tokio::spawn(driver) })
            }
            _ => Err((ErrorKind::InvalidClientConfig, "only TCP and Unix sockets are supported").into()),
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

    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Sends a command and waits for its answer. With `asking`, a node that is about to take over the slot answers too.
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

    /// Closes the connection once nobody waits for an answer on it.
    pub(crate) async fn close(&self) {
        self.state.lock().await.live = None;
    }

    async fn live(&self) -> Result<Arc<Live>, RedisError> {
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
        match Live::connect(&self.info, self.timeouts, None).await {
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
}

/// A connection on which no answer came may be dead for good; one to a server that became a replica should be made
/// anew, because the name may lead to the new primary by now.
fn needs_new_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error() || error.code() == Some("READONLY")
}

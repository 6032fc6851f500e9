//! The limits and timeouts of the API.

use std::time::Duration;

use tasklane_runtime::worker::WorkerState;
use tokio::sync::watch;

/// How the API is served.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// A request without this token is refused, except at `/healthz`. Without a token the API answers only the server's
    /// own user and root, on this machine.
    pub token: Option<String>,
    /// Host names under which a server without a token answers, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Origins whose pages may call the API from a browser, as `https://app.example.com`; `*` for every origin.
    pub cors_origins: Vec<String>,
    /// The largest body, except of a batch.
    pub body_bytes_max: usize,
    /// The largest body of a batch.
    pub batch_bytes_max: usize,
    /// Bytes of all batches that are read and taken in at the same time: bounds the memory that they take.
    pub batches_bytes_max: usize,
    /// A body must have arrived within this time.
    pub body_timeout: Duration,
    /// A body of which nothing arrives for this long is given up.
    pub body_idle_timeout: Duration,
    /// A request is answered within this time, its body included. One that waits for a task has the time of its wait
    /// besides; streams are not bounded by it.
    pub request_timeout: Duration,
    /// Requests handled at the same time, without requests that wait or follow.
    pub requests_max: usize,
    /// Requests that wait for a task, and streams, at the same time.
    pub streams_max: usize,
    /// The worker of this process, if it has one.
    pub worker: Option<watch::Receiver<WorkerState>>,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            token: None,
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            body_bytes_max: 4 << 20,
            batch_bytes_max: 32 << 20,
            batches_bytes_max: 128 << 20,
            body_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_mins(1),
            requests_max: 512,
            streams_max: 512,
            worker: None,
        }
    }
}

/// How connections are served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Connections at the same time. A further one replaces the connection that has been idle for longest.
    pub connections_max: usize,
    /// Connections of one address at the same time; further ones are closed at once.
    pub connections_per_address_max: Option<usize>,
    /// The head of a request must have arrived within this time from its first byte.
    pub head_timeout: Duration,
    /// A connection without a request for this long is closed.
    pub idle_timeout: Duration,
    /// A connection that takes nothing of what it is sent for this long is dropped.
    pub write_timeout: Duration,
    /// Asks the kernel for the user of each connection. An API without a token refuses every request if this is off.
    pub check_users: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            connections_per_address_max: None,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_mins(5),
            write_timeout: Duration::from_secs(30),
            check_users: true,
        }
    }
}

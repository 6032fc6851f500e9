//! The worker: keeps a session with the coordinator, takes attempts from the owners of lanes, executes them,
//! reports.
//!
//! The worker-session machine of `core` makes all decisions; this driver only carries inputs and effects.
//! When a session is lost, the worker first ends all of its attempts, then opens a new session.

mod attempt;
mod output;
mod session;
mod stats;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{Name, SessionId};
use tasklane_core::member::WorkerDescriptor;
use tasklane_core::time::Timestamp;
use tasklane_core::worker;
use tasklane_ports::{Bus, Coordinator, CoordinatorError, Logs, SessionToken};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::executors::Registry;
use crate::held_sessions::HeldSessions;
use crate::notifier::Notifier;

pub(crate) use self::attempt::not_started;
pub use self::output::OutputOptions;
use self::output::Shipper;
use self::session::{Session, SessionEnd};

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Its name, which stays the same over restarts.
    pub name: Name,
    /// Share under the weighted strategy.
    pub weight: u32,
    /// The labels that selectors of tasks match.
    pub labels: BTreeMap<String, String>,
    /// Its address in the list of workers; empty if unknown.
    pub address: String,
    /// How long a stopped attempt may take to end by itself.
    pub stop_grace: Duration,
    /// How long a leaving worker lets its attempts run.
    pub drain_grace: Duration,
    /// Options of the machine: capacity, lanes, TTL.
    pub machine: worker::WorkerOptions,
    /// Bounds of stored output.
    pub output: OutputOptions,
}

/// The parts of a worker.
#[derive(Clone)]
pub struct WorkerParts {
    /// Carries messages from owners and back.
    pub bus: Arc<dyn Bus>,
    /// Keeps the sessions of live members.
    pub coordinator: Arc<dyn Coordinator>,
    /// Stores the output of attempts.
    pub logs: Arc<dyn Logs>,
    /// The executors of task types.
    pub executors: Registry,
    /// Receives a signal when there is more output.
    pub notifier: Arc<Notifier>,
    /// Receives the session of this worker.
    pub held_sessions: HeldSessions,
    /// Called, with a time of the steady clock, when the deadline moves: everything that the worker started
    /// must have ended by it.
    pub on_lease: Arc<dyn Fn(Timestamp) + Send + Sync>,
}

impl fmt::Debug for WorkerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerParts").field("executors", &self.executors).finish_non_exhaustive()
    }
}

/// Executes tasks. See the [module](self).
#[derive(Debug)]
pub struct Worker {
    options: WorkerOptions,
    parts: WorkerParts,
    state: watch::Sender<WorkerState>,
}

/// Whether the owners may send work to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It has no session: it starts, has lost its session, or has left.
    NoSession,
    /// It has a session and takes work.
    Serving,
    /// It takes no new work for a while, because its machine lacks a resource.
    Pausing {
        /// The resource.
        reason: String,
    },
    /// It takes no new work and leaves when its attempts have ended.
    Draining,
}

/// Wait before the coordinator is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Worker {
    /// A worker that does not run yet.
    pub fn new(options: WorkerOptions, parts: WorkerParts) -> Self {
        Self { options, parts, state: watch::Sender::new(WorkerState::NoSession) }
    }

    /// Follows the state of the worker, also after it has left.
    pub fn state(&self) -> watch::Receiver<WorkerState> {
        self.state.subscribe()
    }

    /// Runs until the shutdown, or until a user drains it; then lets its attempts finish for a while.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shipper = Shipper::start(
            self.options.output.clone(),
            Arc::clone(&self.parts.logs),
            Arc::clone(&self.parts.notifier),
        );
        let mut over = None;
        while !shutdown.is_cancelled() {
            let session = SessionId::from_random(rand::random());
            let opened = Session::open(session, &self.options, &self.parts, &shipper, &self.state).await;
            match opened {
                Ok(session) => {
                    // The coordinator answers again: it closes the earlier session, so that no server waits
                    // for the TTL.
                    if let Some(token) = over.take() {
                        tokio::spawn(close(Arc::clone(&self.parts.coordinator), token));
                    }
                    self.state.send_replace(WorkerState::Serving);
                    let ended = session.run(&shutdown).await;
                    self.state.send_replace(WorkerState::NoSession);
                    match ended {
                        SessionEnd::Drained => return,
                        SessionEnd::Lost { offered, over: token } => {
                            self.options.machine.capacity = offered.capacity;
                            self.options.weight = offered.weight;
                            self.options.labels = offered.labels;
                            over = token;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the worker has no session, retrying");
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN_AFTER) => {}
                        () = shutdown.cancelled() => {}
                    }
                }
            }
        }
    }
}

/// Closes a session after all of its attempts have ended.
async fn close(coordinator: Arc<dyn Coordinator>, token: SessionToken) {
    match coordinator.close(&token).await {
        Ok(()) | Err(CoordinatorError::SessionEnded { .. }) => {}
        Err(error) => tracing::warn!(%error, "the earlier session stays until its TTL ends"),
    }
}

impl WorkerOptions {
    fn descriptor(&self, parts: &WorkerParts) -> WorkerDescriptor {
        WorkerDescriptor {
            name: self.name.clone(),
            capacity: self.machine.capacity,
            weight: self.weight,
            labels: self.labels.clone(),
            task_types: parts.executors.task_types().cloned().collect(),
            draining: false,
            pause_reason: None,
            address: self.address.clone(),
        }
    }
}

//! Executors: how a task type is run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::task::Progress;
use tasklane_core::worker::StopReason;

use crate::{ExecutorError, LogStream};

/// Runs the attempts of one task type: check, prepare, execute. What follows, the report, is the worker's.
///
/// Promises:
/// 1. `check` has no effect outside.
/// 2. When the future of an execution's `run` has ended, nothing of the attempt runs any more; likewise soon after it
///    was dropped.
/// 3. After [`Attempt::stopped`] has answered, `run` ends within the grace time that it named.
#[async_trait]
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Whether such a payload can be run at all.
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError>;

    /// Makes ready what the attempt needs.
    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError>;
}

/// An attempt that is ready to run.
#[async_trait]
pub trait Execution: Send + std::fmt::Debug {
    /// Runs it to its end.
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish;
}

/// What the worker does for an attempt that executes.
#[async_trait]
pub trait Attempt: Send + Sync + std::fmt::Debug {
    /// Takes what was printed. Never waits and never grows without bound: what is too much is counted, not kept.
    fn output(&self, stream: LogStream, bytes: &[u8]);

    /// Takes word of how far the attempt is.
    fn progress(&self, progress: Progress);

    /// Waits until the attempt is to end. Answers at once from then on.
    async fn stopped(&self) -> Stop;
}

/// Why an attempt is to end, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// It may end by itself within this time; then it is ended.
    pub grace: Duration,
}

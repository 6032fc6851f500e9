//! Executors: how a task type is run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::task::Progress;
use tasklane_core::worker::StopReason;

use crate::{ExecutorError, LogStream};

/// Runs the attempts of one task type: check, prepare, execute. The worker sends the report.
///
/// Promises:
/// 1. `check` has no effect outside.
/// 2. When the future of an execution's `run` has ended, nothing of the attempt runs any more; likewise soon after it
///    was dropped.
/// 3. After [`Attempt::stopped`] has answered, `run` ends within the grace time that it named.
#[async_trait]
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Checks whether a payload can run at all.
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError>;

    /// Prepares the files and processes that the attempt needs.
    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError>;
}

/// An attempt that is ready to run.
#[async_trait]
pub trait Execution: Send + std::fmt::Debug {
    /// Runs it to its end.
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish;
}

/// The worker's services for a running attempt.
#[async_trait]
pub trait Attempt: Send + Sync + std::fmt::Debug {
    /// Takes output of the attempt. Never waits and never grows without bound: output above the bound is
    /// counted and discarded.
    fn output(&self, stream: LogStream, bytes: &[u8]);

    /// Takes the attempt's progress.
    fn progress(&self, progress: Progress);

    /// Waits until the worker stops the attempt. Answers at once from then on.
    async fn stopped(&self) -> Stop;
}

/// A request to end an attempt: the reason and the grace time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The reason.
    pub reason: StopReason,
    /// The attempt may end by itself within this time; then the executor kills it.
    pub grace: Duration,
}

//! Executors: how a task type is run.

use async_trait::async_trait;
use tasklane_core::message::{Dispatch, Finish};

use crate::ExecutorError;

/// Runs the attempts of one task type.
///
/// Promises:
/// 1. `check` has no effect outside.
/// 2. When the future of an execution's `run` has ended, nothing of the attempt runs any more.
/// 3. After `stop`, `run` ends within the grace time.
#[async_trait]
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Whether such a payload can be run at all.
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError>;

    /// Makes ready what the attempt needs.
    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError>;
}

/// One attempt being run.
#[async_trait]
pub trait Execution: Send + std::fmt::Debug {
    /// Runs it to its end.
    async fn run(&mut self) -> Finish;

    /// Asks it to end.
    fn stop(&self);
}

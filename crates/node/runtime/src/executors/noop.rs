//! `NOOP`: succeeds immediately, to measure everything else.

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::task::TaskResult;
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError};

use super::result::succeeded;

/// Does nothing, whatever the payload.
#[derive(Clone, Copy, Debug)]
pub struct Noop;

#[async_trait]
impl Executor for Noop {
    fn check(&self, _: &Dispatch) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn prepare(&self, _: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl Execution for Noop {
    async fn run(self: Box<Self>, _: Arc<dyn Attempt>) -> Finish {
        succeeded(TaskResult::default())
    }
}

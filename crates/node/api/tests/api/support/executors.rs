//! The task types of a test's worker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::id::AttemptNo;
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::task::{Progress, TaskError, TaskResult};
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError, LogStream};
use tasklane_runtime::executors::Registry;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Prints and gives back its payload.
    Echo,
    /// Does nothing.
    Noop,
    /// Fails.
    Fail,
    /// Fails, and may be tried again.
    Busy,
    /// Fails at first, and then not any more.
    Flaky,
    /// Prints a line and runs until it is stopped.
    Endless,
    /// Says how far it is and runs until it is stopped.
    Progress,
}

pub(super) fn all() -> Registry {
    let mut registry = Registry::new();
    let kinds = [
        ("echo", Kind::Echo),
        ("noop", Kind::Noop),
        ("fail", Kind::Fail),
        ("busy", Kind::Busy),
        ("flaky", Kind::Flaky),
        ("endless", Kind::Endless),
        ("progress", Kind::Progress),
    ];
    for (name, kind) in kinds {
        registry.register(super::name(name), Arc::new(kind));
    }
    registry
}

#[async_trait]
impl Executor for Kind {
    fn check(&self, _: &Dispatch) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let payload = dispatch.body.as_ref().map_or("", |body| body.payload.as_str());
        let first = dispatch.attempt.number == AttemptNo(1);
        Ok(Box::new(Ready { kind: *self, first, payload: payload.to_owned() }))
    }
}

#[derive(Debug)]
struct Ready {
    kind: Kind,
    first: bool,
    payload: String,
}

#[async_trait]
impl Execution for Ready {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        match self.kind {
            Kind::Echo => {
                attempt.output(LogStream::Stdout, format!("{}\n", self.payload).as_bytes());
                attempt.output(LogStream::Stderr, b"\xff\n");
                let data = serde_json::to_string(&self.payload).unwrap();
                let result = TaskResult { code: 0, message: "said".to_owned(), data };
                finish(Ending::Success, result)
            }
            Kind::Flaky if self.first => {
                let (error, retry) =
                    (TaskError::new("exit_code", "exit code 3"), RetryAdvice::After(Duration::ZERO));
                finish(Ending::Failed { error, retry }, TaskResult::default())
            }
            Kind::Noop | Kind::Flaky => finish(Ending::Success, TaskResult::default()),
            Kind::Fail | Kind::Busy => {
                let error = TaskError::new("exit_code", "exit code 3");
                let result = TaskResult { code: 3, ..TaskResult::default() };
                let retry =
                    if matches!(self.kind, Kind::Busy) { RetryAdvice::Policy } else { RetryAdvice::Never };
                finish(Ending::Failed { error, retry }, result)
            }
            Kind::Endless | Kind::Progress => {
                attempt.output(LogStream::Stdout, b"begun\n");
                if matches!(self.kind, Kind::Progress) {
                    attempt.progress(Progress { percent: Some(40), message: "copying".to_owned() });
                }
                attempt.stopped().await;
                finish(Ending::Cancelled, TaskResult::default())
            }
        }
    }
}

fn finish(ending: Ending, result: TaskResult) -> Finish {
    Finish { ran: Duration::ZERO, ending, result }
}

//! One attempt, from check to report.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use tasklane_core::id::Name;
use tasklane_core::message::{AttemptId, Dispatch, Ending, Finish, Report, RetryAdvice};
use tasklane_core::task::{Progress, TaskError, TaskHead, TaskResult};
use tasklane_ports::{Attempt, Executor, ExecutorError, LogStream, Stop};
use tokio::sync::{mpsc, watch};

use crate::descriptors::Lack;

use super::output::AttemptOutput;
use super::session::SessionEvent;

/// An attempt that executes.
#[derive(Debug)]
pub(super) struct RunningAttempt {
    head: Arc<TaskHead>,
    stop: watch::Sender<Option<Stop>>,
}

/// How long the report of an attempt waits until its output is stored.
const OUTPUT_WITHIN: Duration = Duration::from_secs(10);

impl RunningAttempt {
    /// Begins to execute; [`SessionEvent::Ended`] reports the end.
    pub(super) fn start(
        dispatch: Dispatch,
        executor: Option<Arc<dyn Executor>>,
        output: Arc<AttemptOutput>,
        events: mpsc::UnboundedSender<SessionEvent>,
    ) -> Self {
        let stop = watch::Sender::new(None);
        let stopped = stop.subscribe();
        let (attempt, head) = (dispatch.attempt, Arc::clone(&dispatch.head));
        let worker = Arc::new(WorkerSide {
            attempt,
            output: Arc::clone(&output),
            stop: stopped,
            events: events.clone(),
        });
        tokio::spawn(async move {
            let execution = AssertUnwindSafe(execute(&dispatch, executor, worker)).catch_unwind();
            let finish = execution.await.unwrap_or_else(|_| {
                failed("executor_panic", "the executor has failed".to_owned(), RetryAdvice::Policy)
            });
            output.close();
            if !output.is_kept() {
                let _ = events.send(SessionEvent::Exited { attempt });
            }
            if tokio::time::timeout(OUTPUT_WITHIN, output.kept()).await.is_err() {
                tracing::warn!(task = %attempt.task, attempt = %attempt.number, "output is not stored yet: the report leaves first");
            }
            let _ = events.send(SessionEvent::Ended { attempt, finish: Box::new(finish) });
        });
        Self { head, stop }
    }

    /// Stops the attempt; a shorter grace than before counts.
    pub(super) fn stop(&self, stop: Stop) {
        self.stop.send_if_modified(|current| {
            let sooner = current.is_none_or(|current| stop.grace < current.grace);
            if sooner {
                *current = Some(Stop { reason: current.map_or(stop.reason, |c| c.reason), ..stop });
            }
            sooner
        });
    }

    /// Logs its end together with the report. Every line about an attempt names its task, attempt, queue, type
    /// and worker. Successes are logged at the debug level only.
    pub(super) fn log_end(&self, attempt: AttemptId, report: &Report, worker: &Name) {
        let AttemptId { task, number } = attempt;
        let (queue, task_type) = (&self.head.queue.queue, &self.head.task_type);
        let finish = match report {
            Report::Finished(finish) => finish,
            Report::HandedBack { reason } => {
                tracing::info!(%task, attempt = %number, %queue, %task_type, %worker, %reason, "attempt handed back");
                return;
            }
            Report::Accepted | Report::Started { .. } | Report::Progress(_) => return,
        };
        match &finish.ending {
            Ending::Success => {
                tracing::debug!(%task, attempt = %number, %queue, %task_type, %worker, "attempt succeeded");
            }
            Ending::Failed { error, .. } | Ending::TimedOut { error } => {
                // Not named `message`, since JSON logs use that for the text of the line.
                let (code, error) = (&error.code, &error.message);
                tracing::info!(%task, attempt = %number, %queue, %task_type, %worker, %code, %error, "attempt failed");
            }
            Ending::Cancelled => {
                tracing::info!(%task, attempt = %number, %queue, %task_type, %worker, "attempt cancelled");
            }
            Ending::NotStarted { reason } => {
                tracing::info!(%task, attempt = %number, %queue, %task_type, %worker, %reason, "attempt not started");
            }
        }
    }
}

/// check → prepare → execute.
async fn execute(
    dispatch: &Dispatch,
    executor: Option<Arc<dyn Executor>>,
    worker: Arc<WorkerSide>,
) -> Finish {
    let Some(executor) = executor else {
        let message = format!("this worker has no executor for {}", dispatch.head.executor());
        return failed("no_executor", message, RetryAdvice::Policy);
    };
    if let Err(error) = executor.check(dispatch) {
        return refused(&error);
    }
    let execution = match executor.prepare(dispatch).await {
        Ok(execution) => execution,
        Err(error) => return refused(&error),
    };
    // No time limit after the stop: while any process of it is alive, it must not be called ended.
    execution.run(worker).await
}

/// Waits for the stop; `None` if it will never come.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Option<Stop> {
    stop.wait_for(Option::is_some).await.ok().and_then(|stop| *stop)
}

fn refused(error: &ExecutorError) -> Finish {
    if let ExecutorError::Unavailable { source } = error
        && let Some(lack) = Lack::behind(&**source)
    {
        return not_started(lack, error);
    }
    let (code, advice) = match error {
        ExecutorError::BadPayload { .. } => ("bad_payload", RetryAdvice::Never),
        ExecutorError::Unavailable { .. } => ("executor_unavailable", RetryAdvice::Policy),
    };
    failed(code, error.to_string(), advice)
}

fn failed(code: &str, message: String, retry: RetryAdvice) -> Finish {
    let ending = Ending::Failed { error: TaskError::new(code, message), retry };
    Finish { ran: Duration::ZERO, ending, result: TaskResult::default() }
}

/// The end of an attempt that never began, because the machine lacks a resource. The task is not to blame.
pub(crate) fn not_started(lack: Lack, error: &dyn std::fmt::Display) -> Finish {
    let ending = Ending::NotStarted { reason: format!("{lack}: {error}") };
    Finish { ran: Duration::ZERO, ending, result: TaskResult::default() }
}

/// The worker's side of an attempt.
#[derive(Debug)]
struct WorkerSide {
    attempt: AttemptId,
    output: Arc<AttemptOutput>,
    stop: watch::Receiver<Option<Stop>>,
    events: mpsc::UnboundedSender<SessionEvent>,
}

#[async_trait]
impl Attempt for WorkerSide {
    fn output(&self, stream: LogStream, bytes: &[u8]) {
        self.output.put(stream, bytes);
    }

    fn progress(&self, progress: Progress) {
        let _ = self.events.send(SessionEvent::Progress { attempt: self.attempt, progress });
    }

    async fn stopped(&self) -> Stop {
        let mut stop = self.stop.clone();
        match stopped(&mut stop).await {
            Some(stop) => stop,
            // The session was dropped without a stop, and this attempt is dropped with it soon.
            None => std::future::pending().await,
        }
    }
}

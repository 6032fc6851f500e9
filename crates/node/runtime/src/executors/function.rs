//! Functions of the program that embeds Tasklane, as executors.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::message::{Dispatch, Finish, RetryAdvice};
use tasklane_core::task::{Payload, Progress, TaskBody, TaskError, TaskResult};
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError, LogStream, Stop};

use super::payload;
use super::progress::shortened;
use super::result::{failed, nested_too_deep, succeeded, too_large};
use crate::request::too_deep;

type FunctionResult = Result<Value, FunctionError>;
type Run = dyn Fn(TaskContext) -> BoxFuture<'static, FunctionResult> + Send + Sync;

/// The largest result by default, in bytes.
const RESULT_BYTES_MAX: usize = 256 << 10;

/// Runs an async function for each attempt, inside the worker's own process.
///
/// The function shares the worker's threads, so it must not block them. On a stop, the function has the grace
/// time to end by itself (see [`TaskContext::stopped`]); then it is dropped where it waits. A panic fails
/// this attempt and nothing else.
#[derive(Clone)]
pub struct Function {
    run: Arc<Run>,
    result_bytes_max: usize,
}

impl Function {
    /// An executor that calls this function.
    pub fn new<F, R>(function: F) -> Self
    where
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, FunctionError>> + Send + 'static,
    {
        Self { run: Arc::new(move |context| function(context).boxed()), result_bytes_max: RESULT_BYTES_MAX }
    }

    /// With another limit for results, in bytes.
    #[must_use]
    pub fn result_bytes_max(mut self, max: usize) -> Self {
        self.result_bytes_max = max;
        self
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

/// Why a function failed. Any error becomes one by `?`.
#[derive(Debug)]
pub struct FunctionError {
    code: String,
    message: String,
    retry: RetryAdvice,
}

impl FunctionError {
    /// A failure after which the retry policy decides.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: "function_failed".to_owned(), message: message.into(), retry: RetryAdvice::Policy }
    }

    /// With a stable code of your own, for programs.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }

    /// Asks for a retry, but not before this time has passed.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = RetryAdvice::After(wait);
        self
    }

    /// Asks for no retry: the function would fail again.
    #[must_use]
    pub fn never_retry(mut self) -> Self {
        self.retry = RetryAdvice::Never;
        self
    }
}

impl<E: std::error::Error> From<E> for FunctionError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }
}

/// The task and attempt that a function runs for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskContext {
    task: TaskId,
    number: AttemptNo,
    body: Arc<TaskBody>,
    attempt: Arc<dyn Attempt>,
}

impl TaskContext {
    /// The task.
    pub fn task_id(&self) -> TaskId {
        self.task
    }

    /// Which attempt of it this is, from 1.
    pub fn attempt(&self) -> AttemptNo {
        self.number
    }

    /// Rises with every attempt of the task. A receiver that keeps the highest value seen can refuse an older
    /// attempt.
    pub fn fence(&self) -> u64 {
        u64::from(self.number.0)
    }

    /// The display name of the task.
    pub fn name(&self) -> &str {
        &self.body.name
    }

    /// One of the task's own key-value pairs.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.body.metadata.get(key).map(String::as_str)
    }

    /// The payload as it was sent.
    pub fn payload(&self) -> &Payload {
        &self.body.payload
    }

    /// The payload as a value of a type of yours. A payload that does not fit is a failure without retry.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, FunctionError> {
        let read = match &self.body.payload {
            Payload::Json(json) => serde_json::from_str(json),
            Payload::Text(text) => serde_json::from_value(Value::String(text.clone())),
        };
        read.map_err(|e| {
            FunctionError::new(format!("payload is not valid: {e}")).code("bad_payload").never_retry()
        })
    }

    /// Reports the progress of the attempt: 0 to 100, and a few words.
    pub fn progress(&self, percent: u8, message: impl Into<String>) {
        let progress = Progress { percent: Some(percent.min(100)), message: shortened(message.into()) };
        self.attempt.progress(progress);
    }

    /// Adds a line to the task's output.
    pub fn log(&self, line: &str) {
        let mut line = line.to_owned();
        line.push('\n');
        self.attempt.output(LogStream::Stdout, line.as_bytes());
    }

    /// Waits for the stop of the attempt: cancelled, or out of time. The function then has the grace time to
    /// finish.
    pub async fn stopped(&self) -> Stop {
        self.attempt.stopped().await
    }
}

#[async_trait]
impl Executor for Function {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        payload::body(dispatch).map(drop)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let body = Arc::clone(payload::body(dispatch)?);
        let attempt = dispatch.attempt;
        Ok(Box::new(Call { function: self.clone(), task: attempt.task, number: attempt.number, body }))
    }
}

#[derive(Debug)]
struct Call {
    function: Function,
    task: TaskId,
    number: AttemptNo,
    body: Arc<TaskBody>,
}

#[async_trait]
impl Execution for Call {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let Self { function, task, number, body } = *self;
        let context = TaskContext { task, number, body, attempt: Arc::clone(&attempt) };
        // The call itself may panic too, before it returns a future.
        let call = AssertUnwindSafe(async { (function.run)(context).await }).catch_unwind();
        let out_of_time = async { tokio::time::sleep(attempt.stopped().await.grace).await };
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            () = out_of_time => {
                let error = TaskError::new("stopped", "the function did not end within the grace time");
                return failed(error, RetryAdvice::Policy, with_message(-1, "dropped after the grace time"));
            }
        };
        match answer {
            Ok(Ok(value)) => finished(&value, function.result_bytes_max),
            Ok(Err(FunctionError { code, message, retry })) => {
                failed(TaskError::new(&code, message.clone()), retry, with_message(1, &message))
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                let message = format!("the function panicked: {text}");
                failed(
                    TaskError::new("panic", message.clone()),
                    RetryAdvice::Policy,
                    with_message(-1, &message),
                )
            }
        }
    }
}

fn finished(value: &Value, max: usize) -> Finish {
    let data = if value.is_null() { String::new() } else { value.to_string() };
    if data.len() > max {
        return failed(too_large(data.len(), max), RetryAdvice::Never, TaskResult::default());
    }
    if too_deep(&data) {
        return failed(nested_too_deep(), RetryAdvice::Never, TaskResult::default());
    }
    succeeded(TaskResult { data, ..TaskResult::default() })
}

fn with_message(code: i32, message: &str) -> TaskResult {
    TaskResult { code, message: message.to_owned(), data: String::new() }
}

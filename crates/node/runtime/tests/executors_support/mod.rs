//! A worker's part in an attempt, as the tests of executors play it.
#![allow(dead_code, reason = "each test program uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "parts of tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::id::{AttemptNo, DispatchNo, LaneId, Name, QueueKey, TaskId};
use tasklane_core::message::{AttemptId, Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{Payload, Priority, Progress, TaskBody, TaskHead};
use tasklane_core::time::Timestamp;
use tasklane_core::worker::StopReason;
use tasklane_ports::{Attempt, Executor, ExecutorError, LogStream, Stop};
use tokio::sync::watch;

/// Longer than any test should take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Records the calls of an attempt.
#[derive(Debug)]
pub(crate) struct Recorder {
    said: watch::Sender<Said>,
    stop: watch::Sender<Option<Stop>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) system: Vec<u8>,
    pub(crate) progress: Vec<Progress>,
    /// Bytes printed, of which only the first part is kept.
    pub(crate) total: usize,
    pub(crate) longest: usize,
}

impl Said {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { said: watch::Sender::default(), stop: watch::Sender::default() })
    }

    pub(crate) fn said(&self) -> Said {
        self.said.borrow().clone()
    }

    /// Waits until the attempt has recorded such a call.
    pub(crate) async fn until(&self, what: impl FnMut(&Said) -> bool) -> Said {
        let mut said = self.said.subscribe();
        let said = tokio::time::timeout(PATIENCE, said.wait_for(what)).await.expect("said in time");
        said.unwrap().clone()
    }

    pub(crate) fn stop(&self, grace: Duration) {
        self.stop.send_replace(Some(Stop { reason: StopReason::Cancelled, grace }));
    }
}

#[async_trait]
impl Attempt for Recorder {
    fn output(&self, stream: LogStream, bytes: &[u8]) {
        const KEPT: usize = 1 << 20;
        self.said.send_modify(|said| {
            said.total += bytes.len();
            said.longest = said.longest.max(bytes.len());
            let kept = match stream {
                LogStream::Stdout => &mut said.stdout,
                LogStream::Stderr => &mut said.stderr,
                LogStream::System => &mut said.system,
            };
            if kept.len() < KEPT {
                kept.extend_from_slice(bytes);
            }
        });
    }

    fn progress(&self, progress: Progress) {
        self.said.send_modify(|said| said.progress.push(progress));
    }

    async fn stopped(&self) -> Stop {
        let mut stop = self.stop.subscribe();
        let stop = stop.wait_for(Option::is_some).await.unwrap();
        stop.unwrap()
    }
}

pub(crate) fn text(payload: &str) -> Payload {
    Payload::Text(payload.to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "reads well with json!")]
pub(crate) fn json(payload: serde_json::Value) -> Payload {
    Payload::Json(payload.to_string())
}

/// The third attempt of a task with this payload.
pub(crate) fn dispatch(payload: Payload) -> Dispatch {
    let name = |name| Name::new(name).unwrap();
    let head = TaskHead {
        queue: QueueKey::new(name("default"), name("default")),
        task_type: name("ANY"),
        priority: Priority::default(),
        labels: std::collections::BTreeMap::default(),
        flow: Vec::new(),
        hash_bucket: None,
        execution_timeout: PATIENCE,
        start_timeout: None,
        progress_timeout: None,
        runs_as: None,
        retry: RetryPolicy::default(),
    };
    let body = TaskBody {
        name: "my task".to_owned(),
        payload,
        metadata: [("colour".to_owned(), "red".to_owned())].into(),
        ..TaskBody::default()
    };
    let task = TaskId::from_time(LaneId(0), Timestamp::from_micros(0), rand::random());
    Dispatch {
        k: DispatchNo(1),
        attempt: AttemptId { task, number: AttemptNo(3) },
        head: Arc::new(head),
        body: Some(Arc::new(body)),
    }
}

/// The whole pipeline of an attempt without a stop.
pub(crate) async fn run(executor: &dyn Executor, payload: Payload) -> (Finish, Said) {
    let recorder = Recorder::new();
    let finish = run_with(executor, payload, Arc::clone(&recorder)).await;
    (finish, recorder.said())
}

/// The whole pipeline.
pub(crate) async fn run_with(executor: &dyn Executor, payload: Payload, recorder: Arc<Recorder>) -> Finish {
    let dispatch = dispatch(payload);
    executor.check(&dispatch).unwrap();
    let execution = executor.prepare(&dispatch).await.unwrap();
    tokio::time::timeout(PATIENCE, execution.run(recorder)).await.expect("it ends in time")
}

/// Code, text and advice of a failure.
pub(crate) fn failure(finish: &Finish) -> (&str, &str, RetryAdvice) {
    match &finish.ending {
        Ending::Failed { error, retry } => (&error.code, &error.message, *retry),
        other => panic!("{other:?}"),
    }
}

/// Why a payload is refused.
pub(crate) fn refusal(executor: &dyn Executor, payload: Payload) -> String {
    match executor.check(&dispatch(payload)) {
        Err(ExecutorError::BadPayload { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

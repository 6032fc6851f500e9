//! A task and its attempts.

use std::collections::BTreeMap;

use serde::Serialize;
use tasklane_core::id::Name;
use tasklane_core::retry::RetryPolicy;
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, AttemptRecord, Payload, Progress, TaskError, TaskResult, TaskRow};
use tasklane_runtime::request::shown_request_id;
use utoipa::ToSchema;

use super::queue::UniqueOut;
use super::{AnyJson, LogEntry, Seconds, StatusName, Time, WebhookOut};

/// A task.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Task {
    #[schema(format = "uuid")]
    pub(crate) task_id: String,
    pub(crate) status: StatusName,
    pub(crate) task_name: String,
    task_type: String,
    namespace: String,
    queue: String,
    #[schema(minimum = 0, maximum = 9)]
    priority: u8,
    /// The executor's input. Left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    payload: Option<AnyJson>,
    metadata: BTreeMap<String, String>,
    /// Labels that a worker must have.
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request_id: Option<String>,
    /// The schedule that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    schedule: Option<String>,
    /// The planned time of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    nominal_time: Option<Time>,
    /// Under the consistent-hash strategy: tasks with the same key go to the same worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hash_key: Option<String>,
    /// The keys of its limits.
    keys: Vec<String>,
    /// The unique key that the task holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unique: Option<UniqueOut>,
    /// Addresses to notify when the task has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    webhooks: Vec<WebhookOut>,
    /// The composite or the retried task that this task belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    parent: Option<String>,
    /// The name or index of this child: the name of a node, the index of an item.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    child_name: Option<String>,
    execution_timeout: Seconds,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    start_timeout: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    progress_timeout: Option<Seconds>,
    retry_policy: RetryJson,
    pub(crate) created_at: Time,
    /// When it may run, or may run again.
    due_at: Time,
    /// When its current or last attempt was assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    scheduled_at: Option<Time>,
    /// When the worker received it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dispatched_at: Option<Time>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    started_at: Option<Time>,
    /// When the task became final.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) finished_at: Option<Time>,
    /// Name of the worker of its current or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker: Option<String>,
    /// Session of that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    session: Option<String>,
    /// Number of its current or last attempt; 0 before the first.
    #[schema(minimum = 0)]
    attempt: u32,
    /// The maximum of attempts after the first: the value of the request, the same as `retryPolicy.maxRetries`.
    #[schema(minimum = 0)]
    retry_count: u32,
    /// Failed attempts that counted against `retryCount`.
    #[schema(minimum = 0)]
    retries_used: u32,
    /// Attempts lost after they had started: their worker or its guard was lost.
    #[schema(minimum = 0)]
    lost_count: u32,
    /// Attempts lost before they had started.
    #[schema(minimum = 0)]
    lost_before_start_count: u32,
    /// A cancel was accepted and the attempt is being stopped.
    pub(crate) cancel_requested: bool,
    /// The result of the executor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    result: Option<ResultJson>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<ErrorJson>,
    /// The progress that the attempt reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) progress: Option<ProgressJson>,
    /// The last attempts; all of them are under `/attempts`. Left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) attempts: Option<Vec<Attempt>>,
    /// The last output; all of it is under `/logs`. Left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) logs: Option<Vec<LogEntry>>,
}

impl Task {
    /// Nothing will change any more.
    pub(crate) fn is_final(&self) -> bool {
        self.status.0.is_final()
    }

    /// The task as lists show it.
    pub(crate) fn summary(row: &TaskRow) -> Self {
        let (head, state) = (&row.head, &row.state);
        let body = row.body.as_deref().cloned().unwrap_or_default();
        Self {
            task_id: row.id.to_string(),
            status: StatusName(state.status),
            task_name: body.name,
            task_type: head.task_type.to_string(),
            namespace: head.queue.namespace.to_string(),
            queue: head.queue.queue.to_string(),
            priority: head.priority.get(),
            payload: None,
            metadata: body.metadata,
            labels: head.labels.clone(),
            request_id: shown_request_id(body.request_id.as_deref()).map(str::to_owned),
            schedule: body.schedule,
            nominal_time: body.nominal_time.map(Time),
            hash_key: body.hash_key,
            keys: head.flow.iter().map(|flow| flow.key.to_string()).collect(),
            unique: body.unique.as_deref().map(UniqueOut::from),
            webhooks: body.webhooks.iter().map(WebhookOut::from).collect(),
            parent: body.parent.map(|id| id.to_string()),
            child_name: body.child_name,
            execution_timeout: Seconds(head.execution_timeout),
            start_timeout: head.start_timeout.map(Seconds),
            progress_timeout: head.progress_timeout.map(Seconds),
            retry_policy: RetryJson::from(&head.retry),
            created_at: Time(state.created_at),
            due_at: Time(state.due),
            scheduled_at: state.scheduled_at.map(Time),
            dispatched_at: state.dispatched_at.map(Time),
            started_at: state.started_at.map(Time),
            finished_at: state.finished_at.map(Time),
            worker: state.worker.as_ref().map(Name::to_string),
            session: state.session.map(|session| session.to_string()),
            attempt: state.attempt.0,
            retry_count: head.retry.max_retries,
            retries_used: state.retries,
            lost_count: state.lost,
            lost_before_start_count: state.lost_before_start,
            cancel_requested: state.cancel_requested,
            result: None,
            error: state.error.as_ref().map(ErrorJson::from),
            progress: state.progress.as_deref().map(ProgressJson::from),
            attempts: None,
            logs: None,
        }
    }

    /// The task with what was asked of the executor and what it answered.
    pub(crate) fn whole(row: &TaskRow, result: Option<&TaskResult>) -> Self {
        let payload = row.body.as_ref().map(|body| match &body.payload {
            Payload::Text(text) => AnyJson::from_text(text),
            Payload::Json(text) => AnyJson::from_json(text),
        });
        // A success without data is stored as none, to save the room.
        let empty = TaskResult::default();
        let is_silent = row.state.status == Status::Success && row.body.is_some();
        let result = result.or(if is_silent { Some(&empty) } else { None });
        Self { payload, result: result.map(ResultJson::from), ..Self::summary(row) }
    }
}

/// A page of the children of a task.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChildPage {
    /// The newest first, with their results; a page may have fewer than `limit`, and still a cursor.
    pub(crate) children: Vec<Task>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// The result of an executor.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskResult)]
pub(crate) struct ResultJson {
    /// 0 for success; else the executor's own code (exit code, HTTP status).
    code: i32,
    /// The text for people.
    message: String,
    /// The data of the result; `null` for none.
    data: AnyJson,
}

impl From<&TaskResult> for ResultJson {
    fn from(result: &TaskResult) -> Self {
        let data = AnyJson::from_json(if result.data.is_empty() { "null" } else { &result.data });
        Self { code: result.code, message: result.message.clone(), data }
    }
}

/// An error.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskError)]
pub(crate) struct ErrorJson {
    /// Stable, for programs: `exit_code`, `timeout`, `start_timeout`, `lost_limit` …
    code: String,
    /// The text for people.
    message: String,
}

impl From<&TaskError> for ErrorJson {
    fn from(error: &TaskError) -> Self {
        Self { code: error.code.clone(), message: error.message.clone() }
    }
}

/// The progress of an attempt.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Progress)]
pub(crate) struct ProgressJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    percent: Option<u8>,
    message: String,
}

impl From<&Progress> for ProgressJson {
    fn from(progress: &Progress) -> Self {
        Self { percent: progress.percent, message: progress.message.clone() }
    }
}

/// When and how often a failed attempt is retried.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RetryPolicy)]
pub(crate) struct RetryJson {
    #[schema(minimum = 0)]
    max_retries: u32,
    retry_delay: Seconds,
    /// The factor between one wait and the next.
    #[schema(minimum = 1)]
    backoff_rate: f64,
    max_delay: Seconds,
    /// Share of the wait that is added or taken away at random.
    #[schema(minimum = 0, maximum = 1)]
    jitter: f64,
}

impl From<&RetryPolicy> for RetryJson {
    fn from(policy: &RetryPolicy) -> Self {
        Self {
            max_retries: policy.max_retries,
            retry_delay: Seconds(policy.delay),
            backoff_rate: f64::from(policy.backoff_percent) / 100.0,
            max_delay: Seconds(policy.delay_max),
            jitter: f64::from(policy.jitter_percent) / 100.0,
        }
    }
}

/// One execution of a task by one worker.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    /// Counts from 1.
    #[schema(minimum = 1)]
    number: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    session: Option<String>,
    scheduled_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ended_at: Option<Time>,
    /// The outcome; absent while the attempt is live.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    outcome: Option<OutcomeName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schema(as = AttemptOutcome)]
enum OutcomeName {
    Success,
    Failed,
    TimedOut,
    Cancelled,
    Lost,
    HandedBack,
}

impl From<AttemptOutcome> for OutcomeName {
    fn from(outcome: AttemptOutcome) -> Self {
        match outcome {
            AttemptOutcome::Success => Self::Success,
            AttemptOutcome::Failed => Self::Failed,
            AttemptOutcome::TimedOut => Self::TimedOut,
            AttemptOutcome::Cancelled => Self::Cancelled,
            AttemptOutcome::Lost => Self::Lost,
            AttemptOutcome::HandedBack => Self::HandedBack,
        }
    }
}

impl From<&AttemptRecord> for Attempt {
    fn from(record: &AttemptRecord) -> Self {
        Self {
            number: record.number.0,
            worker: record.worker.as_ref().map(Name::to_string),
            session: record.session.map(|session| session.to_string()),
            scheduled_at: Time(record.scheduled_at),
            started_at: record.started_at.map(Time),
            ended_at: record.ended_at.map(Time),
            outcome: record.outcome.map(OutcomeName::from),
            error: record.error.as_ref().map(ErrorJson::from),
        }
    }
}

/// The attempts of a task, by number.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AttemptPage {
    pub(crate) attempts: Vec<Attempt>,
}

/// A page of tasks, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TaskPage)]
pub(crate) struct TaskPageJson {
    pub(crate) tasks: Vec<Task>,
    /// The position of the next page; absent on the last page. A page may be short, even empty, and still have a
    /// cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// A task was taken in, durably.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    pub(crate) task_id: String,
    pub(crate) status: StatusName,
    /// The same request was accepted before; this is its task.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) duplicate: bool,
}

//! Actions on many tasks by filter.
//!
//! Such an operation is itself a task, of a type that servers run for themselves: so it is durable, has an id, shows
//! its progress, and goes on after a crash. It may see a task twice, which does no harm: a cancel is judged by the
//! state of its task, and a retry carries a request id made of the operation and the task.
//!
//! What it counts is right after a crash too. Its progress is written behind what it does, so an attempt that follows
//! another begins among tasks that the other has done already. A retry of such a task is found again by its request id.
//! A cancelled task no longer looks as the filter says; but it was cancelled since the operation began, and that tells it
//! from those that it never was about.
//!
//! A store that cannot be used at the moment ends the attempt, and the next one goes on. A full queue is waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tasklane_core::command::Command;
use tasklane_core::id::{AttemptNo, LaneId, Name, QueueKey, TaskId};
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{Payload, Priority, Progress, TaskError, TaskResult, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Attempt, Execution, Executor, ExecutorError, StoreError, TaskCursor, TaskFilter, TaskList,
};

use crate::clock;
use crate::request::{RetryRequest, TaskRequest};

use super::{Node, Retry, SubmitError};

/// Task type and queue of such operations.
pub const BULK_TYPE: &str = "tasklane.bulk";

/// What is done to each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkAction {
    /// Stop those that have not finished.
    Cancel,
    /// Run those again that have finished.
    Retry,
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkStatus {
    /// Its identity, which is that of the task that carries it out.
    pub id: TaskId,
    /// What it does.
    pub action: BulkAction,
    /// Where it is in its life.
    pub status: Status,
    /// Tasks looked at that the action applies to.
    pub matched: u64,
    /// Tasks for which the action was accepted.
    pub done: u64,
    /// Tasks for which it was not.
    pub failed: u64,
    /// For people.
    pub message: String,
}

/// The payload of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    action: BulkAction,
    statuses: Vec<Status>,
    queue: Option<Name>,
    task_type: Option<Name>,
    name: Option<String>,
    worker: Option<Name>,
    parent: Option<TaskId>,
    schedule: Option<String>,
    metadata: Vec<(String, String)>,
    created_from: Option<Timestamp>,
    /// Tasks that came later than the operation are not touched.
    created_before: Timestamp,
}

/// Where an operation stands: kept as its progress and, at the end, as its result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    matched: u64,
    done: u64,
    failed: u64,
    /// Where to go on after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<(Timestamp, TaskId)>,
}

/// Tasks looked at in one go.
const PAGE: usize = 500;

/// How long a full queue is waited for, while it takes nothing.
const FULL_PATIENCE: Duration = Duration::from_secs(30);

/// When an operation whose attempt has failed is tried again: as often as it takes about half an hour.
const RETRY: RetryRequest = RetryRequest {
    max_retries: Some(35),
    delay: Some(Duration::from_secs(1)),
    backoff_percent: Some(200),
    delay_max: Some(Duration::from_mins(1)),
    jitter_percent: Some(10),
};

impl BulkAction {
    fn applies(self, status: Status) -> bool {
        match self {
            Self::Cancel => !status.is_final(),
            Self::Retry => status.is_final(),
        }
    }
}

impl Node {
    /// How many tasks of a filter an action applies to, now.
    pub async fn bulk_count(&self, action: BulkAction, filter: &TaskFilter) -> Result<u64, StoreError> {
        let (mut count, mut after) = (0, None);
        loop {
            let list = TaskList { filter: filter.clone(), after, limit: PAGE };
            let page = self.list(list).await?;
            count += page.tasks.iter().filter(|row| wanted(action, row)).count() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(count);
            }
        }
    }

    /// Begins an operation on all tasks of a filter that are there now. Durable when it returns.
    pub async fn bulk(
        &self,
        namespace: &Name,
        action: BulkAction,
        filter: TaskFilter,
    ) -> Result<TaskId, SubmitError> {
        let now = clock::wall() + Duration::from_micros(1);
        let spec = Spec {
            action,
            statuses: filter.statuses,
            queue: filter.queue,
            task_type: filter.task_type,
            name: filter.name,
            worker: filter.worker,
            parent: filter.parent,
            schedule: filter.schedule,
            metadata: filter.metadata,
            created_from: filter.created_from,
            created_before: filter.created_before.map_or(now, |before| before.min(now)),
        };
        let payload = Payload::Json(serde_json::to_string(&spec).expect("a spec can be written"));
        let name = match action {
            BulkAction::Cancel => "cancel many tasks",
            BulkAction::Retry => "retry many tasks",
        };
        let mut request = TaskRequest::new(name, bulk_name(), payload);
        request.queue = bulk_name();
        request.priority = Priority::MAX;
        request.retry = RETRY;
        request.execution_timeout = Some(Duration::from_hours(24));
        let answer = self.submit(namespace, vec![request]).await.pop().expect("one answer for one task");
        answer.map(|submitted| submitted.id)
    }

    /// How far an operation is; `None` if there is no such operation.
    pub async fn bulk_status(&self, namespace: &Name, id: TaskId) -> Result<Option<BulkStatus>, StoreError> {
        let Some(view) = self.task(namespace, id).await? else { return Ok(None) };
        if view.row.head.task_type.as_str() != BULK_TYPE {
            return Ok(None);
        }
        let Some(spec) = view.row.body.as_ref().and_then(|body| parse(body.payload.as_str())) else {
            return Ok(None);
        };
        let tally = view.result.as_ref().and_then(|result| serde_json::from_str(&result.data).ok());
        let tally: Tally =
            tally.or_else(|| progress_of(view.row.state.progress.as_deref())).unwrap_or_default();
        let error = view.row.state.error.as_ref().map(|error| error.message.clone());
        Ok(Some(BulkStatus {
            id,
            action: spec.action,
            status: view.row.state.status,
            matched: tally.matched,
            done: tally.done,
            failed: tally.failed,
            message: error.unwrap_or_default(),
        }))
    }
}

fn bulk_name() -> Name {
    Name::new(BULK_TYPE).expect("a valid name")
}

fn parse(payload: &str) -> Option<Spec> {
    serde_json::from_str(payload).ok()
}

fn progress_of(progress: Option<&Progress>) -> Option<Tally> {
    serde_json::from_str(&progress?.message).ok()
}

fn wanted(action: BulkAction, row: &TaskRow) -> bool {
    // Operations do not act on operations, least of all on themselves.
    action.applies(row.state.status) && row.head.task_type.as_str() != BULK_TYPE
}

/// Carries operations out, in a server.
#[derive(Debug)]
pub struct BulkExecutor {
    node: Node,
}

impl BulkExecutor {
    /// Over the node that also takes the operations in.
    pub fn new(node: Node) -> Self {
        Self { node }
    }
}

#[async_trait]
impl Executor for BulkExecutor {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        let spec = dispatch.body.as_ref().and_then(|body| parse(body.payload.as_str()));
        let reason = || "is not an operation on many tasks".to_owned();
        spec.map(|_| ()).ok_or_else(|| ExecutorError::BadPayload { reason: reason() })
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        self.check(dispatch)?;
        let spec = dispatch.body.as_ref().and_then(|body| parse(body.payload.as_str()));
        let spec = spec.expect("it was checked just now");
        let namespace = dispatch.head.queue.namespace.clone();
        let (id, follows) = (dispatch.attempt.task, dispatch.attempt.number > AttemptNo(1));
        Ok(Box::new(Operation { node: self.node.clone(), namespace, id, follows, spec }))
    }
}

#[derive(Debug)]
struct Operation {
    node: Node,
    namespace: Name,
    id: TaskId,
    /// There was an attempt before this one, which may have done more than the progress says.
    follows: bool,
    spec: Spec,
}

/// Why an attempt of an operation ended early.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl Trouble {
    fn advice(&self) -> RetryAdvice {
        match self {
            Self::Store(error) if !error.is_retryable() => RetryAdvice::Never,
            Self::Store(_) | Self::Stopped => RetryAdvice::Policy,
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

#[async_trait]
impl Execution for Operation {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let worked = tokio::select! {
            worked = self.work(&*attempt) => worked,
            _ = attempt.stopped() => Err(Trouble::Stopped),
        };
        let (ending, data) = match worked {
            Ok(tally) => (Ending::Success, written(&tally)),
            Err(trouble) => {
                let error = TaskError::new("bulk_failed", trouble.to_string());
                (Ending::Failed { error, retry: trouble.advice() }, String::new())
            }
        };
        Finish { ran: Duration::ZERO, ending, result: TaskResult { data, ..TaskResult::default() } }
    }
}

fn written(tally: &Tally) -> String {
    serde_json::to_string(tally).expect("a tally can be written")
}

impl Operation {
    async fn work(&self, attempt: &dyn Attempt) -> Result<Tally, Trouble> {
        let (mut tally, begun_at) = self.resume().await?;
        let mut waited = BTreeMap::new();
        loop {
            let after = tally.after.map(|(created_at, id)| TaskCursor { created_at, id });
            let list = TaskList { filter: self.filter(), after, limit: PAGE };
            let page = self.node.list(list).await?;
            let rows: Vec<_> = page.tasks.iter().filter(|row| wanted(self.spec.action, row)).collect();
            let before = page.tasks.iter().filter(|row| self.cancelled_before(row, begun_at)).count() as u64;
            let done = match self.spec.action {
                BulkAction::Cancel => self.cancel(&rows).await?,
                BulkAction::Retry => self.retry(&rows, &mut waited).await?,
            };
            tally.matched += rows.len() as u64 + before;
            tally.done += done + before;
            tally.failed += rows.len() as u64 - done;
            tally.after = page.next.map(|next| (next.created_at, next.id));
            if tally.after.is_none() {
                return Ok(tally);
            }
            attempt.progress(Progress { percent: None, message: written(&tally) });
        }
    }

    /// Where an earlier attempt of this operation stood, and when the operation began.
    async fn resume(&self) -> Result<(Tally, Timestamp), StoreError> {
        let Some(view) = self.node.task(&self.namespace, self.id).await? else {
            return Err(StoreError::corrupt(format!("operation {} is not there", self.id)));
        };
        let tally = progress_of(view.row.state.progress.as_deref()).unwrap_or_default();
        Ok((tally, view.row.state.created_at))
    }

    /// Whether an earlier attempt of this operation has cancelled a task.
    fn cancelled_before(&self, row: &TaskRow, begun_at: Timestamp) -> bool {
        self.looks_for_cancelled()
            && row.state.status == Status::Cancelled
            && row.state.finished_at.is_some_and(|at| at >= begun_at)
            && row.head.task_type.as_str() != BULK_TYPE
    }

    fn looks_for_cancelled(&self) -> bool {
        let statuses = &self.spec.statuses;
        let may_have_cancelled = statuses.is_empty() || statuses.iter().any(|status| !status.is_final());
        self.follows && self.spec.action == BulkAction::Cancel && may_have_cancelled
    }

    fn filter(&self) -> TaskFilter {
        let mut spec = self.spec.clone();
        if self.looks_for_cancelled() && !spec.statuses.is_empty() {
            spec.statuses.push(Status::Cancelled);
        }
        TaskFilter {
            namespace: Some(self.namespace.clone()),
            queue: spec.queue,
            statuses: spec.statuses,
            task_type: spec.task_type,
            name: spec.name,
            worker: spec.worker,
            parent: spec.parent,
            schedule: spec.schedule,
            metadata: spec.metadata,
            created_from: spec.created_from,
            created_before: Some(spec.created_before),
        }
    }

    async fn cancel(&self, rows: &[&TaskRow]) -> Result<u64, Trouble> {
        let mut lanes = BTreeMap::<LaneId, Vec<Command>>::new();
        for row in rows {
            lanes.entry(row.id.lane()).or_default().push(Command::Cancel { task: row.id });
        }
        for (lane, commands) in lanes {
            self.node.0.parts.store.post(lane, &commands).await?;
            self.node.hint(lane);
        }
        Ok(rows.len() as u64)
    }

    /// `waited` is how long each queue has been waited for since it took a task.
    async fn retry(
        &self,
        rows: &[&TaskRow],
        waited: &mut BTreeMap<QueueKey, Duration>,
    ) -> Result<u64, Trouble> {
        let mut done = 0;
        for row in rows {
            let request_id = format!("{BULK_TYPE}:{}:{}", self.id, row.id);
            loop {
                match self.node.retry(&self.namespace, row.id, Some(request_id.clone())).await {
                    Ok(Retry::Created(_)) => {
                        waited.remove(&row.head.queue);
                        done += 1;
                    }
                    Err(SubmitError::QueueFull { queue, retry_after }) => {
                        let waited = waited.entry(queue).or_default();
                        if *waited < FULL_PATIENCE {
                            *waited += retry_after;
                            tokio::time::sleep(retry_after).await;
                            continue;
                        }
                    }
                    Err(SubmitError::Store(error)) if error.is_retryable() => {
                        return Err(Trouble::Store(error));
                    }
                    // It is gone, runs, or will not be taken: this one, and not the others.
                    Ok(Retry::NotFound | Retry::Unfinished(_) | Retry::Removed)
                    | Err(
                        SubmitError::Store(_) | SubmitError::Invalid(_) | SubmitError::RequestIdReused { .. },
                    ) => {}
                }
                break;
            }
        }
        Ok(done)
    }
}

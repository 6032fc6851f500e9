//! Actions on many tasks by filter.
//!
//! Such an operation is itself a task, of a type that servers run for themselves: so it is durable, has an id, shows
//! its progress, and goes on after a crash. It may see a task twice, which does no harm: a cancel is judged by the
//! state of its task, and a retry carries a request id made of the operation and the task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tasklane_core::command::Command;
use tasklane_core::id::{LaneId, Name, TaskId};
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{Payload, Priority, Progress, TaskError, TaskResult};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Attempt, Execution, Executor, ExecutorError, StoreError, TaskCursor, TaskFilter, TaskList,
};

use crate::clock;
use crate::request::TaskRequest;

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

fn wanted(action: BulkAction, row: &tasklane_core::task::TaskRow) -> bool {
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
        let id = dispatch.attempt.task;
        Ok(Box::new(Operation { node: self.node.clone(), namespace, id, spec }))
    }
}

#[derive(Debug)]
struct Operation {
    node: Node,
    namespace: Name,
    id: TaskId,
    spec: Spec,
}

#[async_trait]
impl Execution for Operation {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let worked = tokio::select! {
            worked = self.work(&*attempt) => worked,
            _ = attempt.stopped() => Err("stopped".to_owned()),
        };
        let (ending, tally) = match worked {
            Ok(tally) => (Ending::Success, tally),
            Err(message) => {
                let error = TaskError::new("bulk_failed", message);
                (Ending::Failed { error, retry: RetryAdvice::Policy }, Tally::default())
            }
        };
        let data = match &ending {
            Ending::Success => serde_json::to_string(&tally).expect("a tally can be written"),
            _ => String::new(),
        };
        Finish { ran: Duration::ZERO, ending, result: TaskResult { data, ..TaskResult::default() } }
    }
}

impl Operation {
    async fn work(&self, attempt: &dyn Attempt) -> Result<Tally, String> {
        let mut tally = self.resume().await.map_err(|error| error.to_string())?;
        loop {
            let after = tally.after.map(|(created_at, id)| TaskCursor { created_at, id });
            let list = TaskList { filter: self.filter(), after, limit: PAGE };
            let page = self.node.list(list).await.map_err(|error| error.to_string())?;
            let rows: Vec<_> = page.tasks.iter().filter(|row| wanted(self.spec.action, row)).collect();
            tally.matched += rows.len() as u64;
            let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
            let done = match self.spec.action {
                BulkAction::Cancel => self.cancel(&ids).await.map_err(|error| error.to_string())?,
                BulkAction::Retry => self.retry(&ids).await,
            };
            tally.done += done;
            tally.failed += rows.len() as u64 - done;
            tally.after = page.next.map(|next| (next.created_at, next.id));
            if tally.after.is_none() {
                return Ok(tally);
            }
            let message = serde_json::to_string(&tally).expect("a tally can be written");
            attempt.progress(Progress { percent: None, message });
        }
    }

    /// Where an earlier attempt of this operation stood.
    async fn resume(&self) -> Result<Tally, StoreError> {
        let view = self.node.task(&self.namespace, self.id).await?;
        Ok(view.and_then(|view| progress_of(view.row.state.progress.as_deref())).unwrap_or_default())
    }

    fn filter(&self) -> TaskFilter {
        let spec = self.spec.clone();
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

    async fn cancel(&self, ids: &[TaskId]) -> Result<u64, StoreError> {
        let mut lanes = BTreeMap::<LaneId, Vec<Command>>::new();
        for &task in ids {
            lanes.entry(task.lane()).or_default().push(Command::Cancel { task });
        }
        for (lane, commands) in lanes {
            self.node.0.parts.store.post(lane, &commands).await?;
            self.node.hint(lane);
        }
        Ok(ids.len() as u64)
    }

    async fn retry(&self, ids: &[TaskId]) -> u64 {
        let mut done = 0;
        for &id in ids {
            let request_id = format!("{BULK_TYPE}:{}:{id}", self.id);
            let retried = self.node.retry(&self.namespace, id, Some(request_id)).await;
            done += u64::from(matches!(retried, Ok(Retry::Created(_))));
        }
        done
    }
}

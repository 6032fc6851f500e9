//! Actions on many tasks by filter.
//!
//! Such an operation is itself a system task: so it is durable, has an id, shows its progress, and goes on
//! after a crash. It may see a task twice, which does no harm: the state of a task decides its cancel, and a
//! retry carries a request id made of the operation and the task.
//!
//! Its counts are right after a crash too. The progress is written after the work that it counts, so a
//! following attempt begins among tasks that the attempt before has handled already. Their retries are found
//! again by their request ids. A cancelled task no longer matches the filter; but its cancel is later than
//! the operation's start, which separates it from tasks that never matched.
//!
//! A cancel is counted by its outcome. A waiting task is cancelled immediately; a running task ends later,
//! and may succeed before it is stopped. So the operation looks again at tasks that are being stopped while
//! it goes on, and waits for them at its end. An attempt after a crash begins with the first page that had
//! such a task.
//!
//! A child of a run or a map is run again with it: the new run takes over the children that succeeded. All
//! children of one run or map lead to one new one, whose request id is made of the operation and the old one.
//! A task of a job is run again alone, because a job takes nothing over. A child of a run or map that has not
//! ended is counted as not done, with the reason.
//!
//! An unavailable store ends the attempt, and the next attempt goes on. The operation waits for a full queue.

use std::collections::{BTreeMap, HashMap, VecDeque};
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
use tokio::time::Instant;

use crate::clock;
use crate::request::{RetryRequest, TaskRequest};

use super::composite::driver::TOMBSTONE_PREFIX;
use super::{Definition, JOB_TYPE, Node, Retry, SubmitError, WEBHOOK_TYPE};

/// Task type and queue of such operations.
pub const BULK_TYPE: &str = "tasklane.bulk";

/// The action on each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkAction {
    /// Stop the tasks that have not finished.
    Cancel,
    /// Run the tasks again that have finished.
    Retry,
}

/// The progress of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkStatus {
    /// Its identity, which is that of the task that carries it out.
    pub id: TaskId,
    /// The action.
    pub action: BulkAction,
    /// The status of its task.
    pub status: Status,
    /// Matching tasks that the action applies to.
    pub matched: u64,
    /// Tasks that were cancelled, or run again.
    pub done: u64,
    /// Tasks that the action did not change, for instance because they had changed meanwhile.
    pub failed: u64,
    /// A message for people.
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
    /// The operation leaves later tasks alone.
    created_before: Timestamp,
    /// Tasks run again by the latest definition of their type or workflow.
    #[serde(default)]
    latest: bool,
}

/// The state of an operation: kept as its progress and, at the end, as its result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    matched: u64,
    done: u64,
    failed: u64,
    /// Tasks that were run again with the run or map that they are a child of.
    #[serde(default, rename = "with_whole")]
    with_composite: u64,
    /// Why the first refused task was not run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    /// The last task that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<(Timestamp, TaskId)>,
    /// Where to go on after a crash, if not at `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again_from: Option<Box<Tally>>,
}

/// The outcome for the tasks of a page.
#[derive(Debug, Default)]
struct Outcome {
    done: u64,
    failed: u64,
    /// Tasks that were run again with the run or map that they are a child of.
    with_composite: u64,
    /// Why the first refused task was not run again.
    refusal: Option<String>,
    /// They are being stopped.
    open: Vec<TaskId>,
    /// Tasks whose lane has not answered yet.
    unheard: Vec<TaskId>,
}

/// A page of which some tasks are being stopped.
#[derive(Debug)]
struct OpenPage {
    /// All counts before it.
    before: Tally,
    open: Vec<TaskId>,
}

/// Tasks of one page.
const PAGE: usize = 500;

/// Tasks that are read again together, with their payloads.
const LOOK: usize = 50;

/// How long a page waits for the owners of lanes to take its commands.
const APPLIED_WITHIN: Duration = Duration::from_secs(2);

/// How long an operation waits at its end for tasks that are being stopped. A task that runs on counts as
/// done: the cancel was accepted.
const STOPPED_WITHIN: Duration = Duration::from_mins(1);

/// Most tasks that an operation waits for while they are being stopped. Others count as done.
const OPEN_MAX: usize = 10_000;

/// The shortest and the longest wait before tasks are looked at again.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// How long an operation waits for a full queue that takes nothing.
const FULL_PATIENCE: Duration = Duration::from_secs(30);

/// The retry policy of a failed operation: retries for about half an hour.
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
            count +=
                page.tasks.iter().filter(|row| wanted(action, filter.task_type.as_ref(), row)).count() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(count);
            }
        }
    }

    /// Begins an operation on all tasks that match a filter now. Durable when it returns. With `latest`,
    /// tasks run again by the latest definition of their type or workflow.
    pub async fn bulk(
        &self,
        namespace: &Name,
        action: BulkAction,
        filter: TaskFilter,
        latest: bool,
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
            latest,
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
        request.composite = true;
        // Not as users submit: its names are reserved for the system.
        let task = self.place(namespace, request).await?;
        let answer = self.submit_to(task.id.lane(), vec![task]).await.pop();
        answer.expect("one answer for one task").map(|submitted| submitted.id)
    }

    /// The progress of an operation; `None` if there is no such operation.
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
        let message = error.unwrap_or_else(|| tally.remarks());
        Ok(Some(BulkStatus {
            id,
            action: spec.action,
            status: view.row.state.status,
            matched: tally.matched,
            done: tally.done,
            failed: tally.failed,
            message,
        }))
    }
}

impl Tally {
    /// Remarks beside the counts.
    fn remarks(&self) -> String {
        let with_composite = (self.with_composite > 0).then(|| {
            format!("{} are children of runs or maps, which run again as a whole", self.with_composite)
        });
        let refusal = self.refusal.as_ref().map(|why| format!("not done, the first of them: {why}"));
        with_composite.into_iter().chain(refusal).collect::<Vec<_>>().join("; ")
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

fn wanted(action: BulkAction, task_type: Option<&Name>, row: &TaskRow) -> bool {
    // Operations do not act on operations, least of all on themselves. A tombstone was never meant to run.
    let is_tombstone =
        row.state.child_of.as_ref().is_some_and(|child| child.name.starts_with(TOMBSTONE_PREFIX));
    let alone = action == BulkAction::Cancel || !is_tombstone;
    // Deliveries match only a filter that names their type.
    let meant = row.head.task_type.as_str() != WEBHOOK_TYPE || task_type == Some(&row.head.task_type);
    action.applies(row.state.status) && row.head.task_type.as_str() != BULK_TYPE && alone && meant
}

/// Carries operations out, in a server.
#[derive(Debug)]
pub struct BulkExecutor {
    node: Node,
}

impl BulkExecutor {
    /// Over the node that also accepts the operations.
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
    /// There was an attempt before this one, which may have done more than its progress shows.
    follows: bool,
    spec: Spec,
}

/// Why an attempt of an operation ended early.
#[derive(Debug, thiserror::Error)]
enum BulkError {
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl BulkError {
    fn advice(&self) -> RetryAdvice {
        match self {
            Self::Store(error) if !error.is_retryable() => RetryAdvice::Never,
            Self::Store(_) | Self::Stopped => RetryAdvice::Policy,
        }
    }
}

impl From<StoreError> for BulkError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

#[async_trait]
impl Execution for Operation {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let worked = tokio::select! {
            worked = self.work(&*attempt) => worked,
            _ = attempt.stopped() => Err(BulkError::Stopped),
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
    async fn work(&self, attempt: &dyn Attempt) -> Result<Tally, BulkError> {
        let (mut tally, begun_at) = self.resume().await?;
        let mut retries = Retries::default();
        let mut pages = VecDeque::<OpenPage>::new();
        loop {
            let before_page = Tally { again_from: None, ..tally.clone() };
            let after = tally.after.map(|(created_at, id)| TaskCursor { created_at, id });
            let list = TaskList { filter: self.filter(), after, limit: PAGE };
            let page = self.node.list(list).await?;
            let rows: Vec<_> = {
                let task_type = self.spec.task_type.as_ref();
                page.tasks.iter().filter(|row| wanted(self.spec.action, task_type, row)).collect()
            };
            let before = page.tasks.iter().filter(|row| self.cancelled_before(row, begun_at)).count() as u64;
            let Outcome { done, failed, open, with_composite, refusal, .. } = match self.spec.action {
                BulkAction::Cancel => self.cancel(&rows).await?,
                BulkAction::Retry => self.retry(&rows, &mut retries).await?,
            };
            tally.with_composite += with_composite;
            tally.refusal = tally.refusal.take().or(refusal);
            tally.matched += rows.len() as u64 + before;
            tally.done += done + before;
            tally.failed += failed;
            tally.after = page.next.map(|next| (next.created_at, next.id));
            if pages.iter().map(|page| page.open.len()).sum::<usize>() + open.len() > OPEN_MAX {
                tally.done += open.len() as u64;
            } else if !open.is_empty() {
                pages.push_back(OpenPage { before: before_page, open });
            }
            self.look_again(&mut pages, &mut tally).await?;
            if tally.after.is_none() {
                break;
            }
            attempt.progress(Progress { percent: None, message: written(&tally) });
        }
        let mut waits = Waits::within(STOPPED_WITHIN);
        while !pages.is_empty() {
            attempt.progress(Progress { percent: None, message: written(&tally) });
            if !waits.next().await {
                tally.done += pages.iter().map(|page| page.open.len() as u64).sum::<u64>();
                break;
            }
            self.look_again(&mut pages, &mut tally).await?;
        }
        Ok(Tally { after: None, again_from: None, ..tally })
    }

    /// Counts the outcomes of tasks that were being stopped.
    async fn look_again(&self, pages: &mut VecDeque<OpenPage>, tally: &mut Tally) -> Result<(), StoreError> {
        for at in 0..pages.len() {
            let outcome = self.look(std::mem::take(&mut pages[at].open)).await?;
            let later = pages.range_mut(at + 1..).map(|page| &mut page.before);
            for tally in later.chain([&mut *tally]) {
                tally.done += outcome.done;
                tally.failed += outcome.failed;
            }
            pages[at].open = outcome.open;
            pages[at].open.extend(outcome.unheard);
        }
        while pages.front().is_some_and(|page| page.open.is_empty()) {
            pages.pop_front();
        }
        tally.again_from = pages.front().map(|page| Box::new(page.before.clone()));
        Ok(())
    }

    /// The outcome of tasks whose cancel was posted.
    async fn look(&self, tasks: Vec<TaskId>) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome::default();
        for ids in tasks.chunks(LOOK) {
            let found = self.node.0.parts.store.tasks(ids).await?;
            for (&id, view) in ids.iter().zip(found) {
                match view.map(|view| (view.row.state.status, view.row.state.cancel_requested)) {
                    Some((Status::Cancelled, _)) => outcome.done += 1,
                    None => outcome.failed += 1,
                    Some((status, _)) if status.is_final() => outcome.failed += 1,
                    Some((_, true)) => outcome.open.push(id),
                    Some((_, false)) => outcome.unheard.push(id),
                }
            }
        }
        Ok(outcome)
    }

    /// The state of an earlier attempt of this operation, and when the operation began.
    async fn resume(&self) -> Result<(Tally, Timestamp), StoreError> {
        let Some(view) = self.node.task(&self.namespace, self.id).await? else {
            return Err(StoreError::corrupt(format!("operation {} is not there", self.id)));
        };
        let tally = progress_of(view.row.state.progress.as_deref()).unwrap_or_default();
        let tally = tally.again_from.map_or(Tally { again_from: None, ..tally }, |earlier| *earlier);
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

    async fn cancel(&self, rows: &[&TaskRow]) -> Result<Outcome, BulkError> {
        let mut lanes = BTreeMap::<LaneId, Vec<Command>>::new();
        for row in rows {
            if row.state.composite {
                self.node.cancel_composite(row).await?;
                continue;
            }
            lanes.entry(row.id.lane()).or_default().push(Command::Cancel { task: row.id });
        }
        for (lane, commands) in lanes {
            self.node.0.parts.store.post(lane, &commands).await?;
            self.node.hint(lane);
        }
        // Waiting tasks are cancelled in a moment; running tasks take longer, and do not hold up the next
        // page.
        let mut outcome = Outcome { unheard: rows.iter().map(|row| row.id).collect(), ..Outcome::default() };
        let mut waits = Waits::within(APPLIED_WITHIN);
        while !outcome.unheard.is_empty() && waits.next().await {
            let more = self.look(std::mem::take(&mut outcome.unheard)).await?;
            outcome.done += more.done;
            outcome.failed += more.failed;
            outcome.open.extend(more.open);
            outcome.unheard = more.unheard;
        }
        outcome.open.append(&mut outcome.unheard);
        Ok(outcome)
    }

    async fn retry(&self, rows: &[&TaskRow], retries: &mut Retries) -> Result<Outcome, BulkError> {
        let mut outcome = Outcome::default();
        for row in rows {
            let (target, unfinished) = self.target(row, retries).await?;
            let answer = match (unfinished, retries.composites.get(&target)) {
                (Some(status), _) => Err(format!("it is a child of {target}, which is {status}")),
                (None, Some(answer)) => answer.clone(),
                (None, None) => {
                    let answer = self.retry_one(target, &row.head.queue, retries).await?;
                    if target != row.id || row.state.composite {
                        retries.remember(target, answer.clone());
                    }
                    answer
                }
            };
            match answer {
                Ok(()) => {
                    outcome.done += 1;
                    outcome.with_composite += u64::from(target != row.id);
                }
                Err(why) => {
                    outcome.failed += 1;
                    outcome.refusal.get_or_insert_with(|| format!("{}: {why}", row.id));
                }
            }
        }
        Ok(outcome)
    }

    /// The task that runs again for another: itself, or the outermost run or map that it is a child of.
    /// Returns the status of that one too if it has not ended.
    async fn target(
        &self,
        row: &TaskRow,
        retries: &mut Retries,
    ) -> Result<(TaskId, Option<Status>), StoreError> {
        let Some(child) = &row.state.child_of else { return Ok((row.id, None)) };
        let (mut of, mut target) = (Some(child.composite), (row.id, None));
        if let Some(outermost) = retries.outermost.get(&child.composite) {
            return Ok(outermost.map_or(target, |outermost| (outermost, None)));
        }
        while let Some(composite) = of {
            let Some(view) = self.node.task(&self.namespace, composite).await? else { break };
            if view.row.head.task_type.as_str() == JOB_TYPE {
                break;
            }
            let status = view.row.state.status;
            target = (composite, (!status.is_final()).then_some(status));
            of = view.row.state.child_of.map(|child| child.composite);
        }
        if target.1.is_none() {
            retries.outermost.insert(child.composite, (target.0 != row.id).then_some(target.0));
        }
        Ok(target)
    }

    /// Runs one task again. The inner error is the reason of a refusal.
    async fn retry_one(
        &self,
        id: TaskId,
        queue: &QueueKey,
        retries: &mut Retries,
    ) -> Result<Result<(), String>, BulkError> {
        let request_id = format!("{BULK_TYPE}:{}:{id}", self.id);
        let definition = if self.spec.latest { Definition::Latest } else { Definition::Stored };
        loop {
            let answer = self.node.retry_by(&self.namespace, id, Some(request_id.clone()), &definition).await;
            return Ok(match answer {
                Ok(Retry::Created(_)) => {
                    retries.waited.remove(queue);
                    Ok(())
                }
                Err(SubmitError::QueueFull { queue, retry_after }) => {
                    let full = format!("the queue {queue} is full");
                    let waited = retries.waited.entry(queue).or_default();
                    if *waited < FULL_PATIENCE {
                        *waited += retry_after;
                        tokio::time::sleep(retry_after).await;
                        continue;
                    }
                    Err(full)
                }
                Err(SubmitError::Store(error)) if error.is_retryable() => {
                    return Err(BulkError::Store(error));
                }
                // This task was removed, runs, or is refused; others are not concerned.
                Ok(Retry::NotFound) => Err("it was removed".to_owned()),
                Ok(Retry::Unfinished(status)) => Err(format!("it is {status}")),
                Ok(Retry::Removed) => Err("its payload was removed when its retention was over".to_owned()),
                Err(
                    error @ (SubmitError::Store(_)
                    | SubmitError::Invalid(_)
                    | SubmitError::RequestIdReused { .. }),
                ) => Err(error.to_string()),
            });
        }
    }
}

/// The memory of an operation about its retries.
#[derive(Debug, Default)]
struct Retries {
    /// How long the operation has waited for each queue since it took a task.
    waited: BTreeMap<QueueKey, Duration>,
    /// For each run or map that has ended, the outermost of those around it; `None` if its children run again alone.
    outermost: HashMap<TaskId, Option<TaskId>>,
    /// The outcomes of runs and maps.
    composites: HashMap<TaskId, Result<(), String>>,
}

impl Retries {
    fn remember(&mut self, composite: TaskId, answer: Result<(), String>) {
        if self.composites.len() >= OPEN_MAX {
            self.composites.clear();
            self.outermost.clear();
        }
        self.composites.insert(composite, answer);
    }
}

/// Waits that become longer, up to a total time.
#[derive(Debug)]
struct Waits {
    until: Instant,
    next: Duration,
}

impl Waits {
    fn within(time: Duration) -> Self {
        Self { until: Instant::now() + time, next: LOOK_AGAIN.0 }
    }

    /// Returns whether there was time left to wait.
    async fn next(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(LOOK_AGAIN.1);
        true
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;
    use tasklane_testkit::variants;

    use super::*;

    #[test]
    fn payloads_and_results_of_operations_keep_their_form() {
        let (at, task) = (Timestamp::from_millis(1_800_000_000_000), TaskId::from_random(7));
        let name = |text| Some(Name::new(text).expect("a valid name"));
        let text = |text: &str| Some(text.to_owned());
        let spec = Spec {
            action: BulkAction::Retry,
            statuses: Status::ALL.into(),
            queue: name("mail"),
            task_type: name("SHELL"),
            name: text("a mail"),
            worker: name("w1"),
            parent: Some(task),
            schedule: text("nightly"),
            metadata: vec![("k".to_owned(), "1".to_owned())],
            created_from: Some(at),
            created_before: at,
            latest: true,
        };
        let tally = Tally { matched: 4, done: 2, failed: 1, with_composite: 1, ..Tally::default() };
        let full = Tally {
            refusal: text("the queue mail is full"),
            after: Some((at, task)),
            again_from: Some(Box::new(tally.clone())),
            ..tally
        };
        check("bulk", |golden| {
            golden.json("operation", &spec);
            golden.json_variants(
                "action",
                variants!(BulkAction: Cancel, Retry),
                [BulkAction::Cancel, BulkAction::Retry],
            );
            golden.json("tally", &full);
            golden.json("tally least", &tally);
        });
    }
}

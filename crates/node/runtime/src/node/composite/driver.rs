//! System tasks that drive others: runs of workflows, maps and jobs.
//!
//! Such a task is a *composite*, and the tasks that it drives are its *children*. Its executor runs in a
//! server and decides only by its children in the store: a child is found by its name within the composite,
//! and its id is made of the two, so a second submit of it does nothing. When a server dies, the next attempt
//! reads the children and goes on.
//!
//! A document requests the cancel of a composite, and the executor reads it: the executor cancels the open
//! children, waits for them, and only then the composite itself is cancelled. So no child runs on after its
//! composite has ended, even if servers die meanwhile. Children are kept as long as their composite, and are
//! removed with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tasklane_core::command::Command;
use tasklane_core::id::{AttemptNo, LaneId, Name, QueueKey, TaskId};
use tasklane_core::message::{Dispatch, Ending, Finish, Message, RetryAdvice, TaskEvent};
use tasklane_core::status::Status;
use tasklane_core::task::{
    Fingerprint, NewTask, Payload, Progress, TaskBody, TaskError, TaskResult, TaskRow, TaskSpec, Unique,
    Webhook,
};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_core::worker::StopReason;
use tasklane_ports::{
    Address, Attempt, Content, DocumentKey, DocumentKind, Execution, Executor, ExecutorError, PutDocument,
    StoreError, TaskFilter, TaskList, TaskView,
};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock;
use crate::notifier::TaskFollower;
use crate::request::{FieldError, RequestLimits, RetryRequest, SYSTEM_PREFIX, TaskRequest};

use super::reports::Reports;
use crate::node::{Node, SubmitError};

/// Task type and queue of refused children: each fails and states why the child could not become a task.
pub(in crate::node) const REFUSED_TYPE: &str = "tasklane.refused";

/// Children read, or submitted, together.
pub(in crate::node) const PAGE: usize = 500;
/// Tasks that are read together with their payloads and results.
pub(in crate::node) const LOOK: usize = 100;
/// Without notifications the executor reads the store by itself: first after this time, later after up to the
/// second one.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(1));
/// Wait after the store has failed.
pub(in crate::node) const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The executor looks for a cancel this often, even if notifications keep it busy.
const CANCEL_EVERY: Duration = Duration::from_millis(200);
/// A composite that is due later than this has no driver soon: its lane cancels it directly.
const PUT_OFF: Duration = Duration::from_secs(10);
/// A composite has no time limit of its own: a hundred years.
const UNLIMITED: Duration = Duration::from_hours(24 * 365 * 100);

/// The retry policy of a composite: a failed attempt is the server's fault, so it is retried for long.
const RETRY: RetryRequest = RetryRequest {
    max_retries: Some(1000),
    delay: Some(Duration::from_secs(1)),
    backoff_percent: Some(200),
    delay_max: Some(Duration::from_mins(1)),
    jitter_percent: Some(10),
};

fn system_name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn cancel_key(id: TaskId) -> DocumentKey {
    let id = Name::new(&id.to_string()).expect("an id is a valid name");
    DocumentKey { kind: DocumentKind::Cancel, namespace: system_name("tasklane"), id }
}

/// The request for a composite of this type, with open fields.
pub(in crate::node) fn composite_request(task_type: &str, name: &str, payload: String) -> TaskRequest {
    let mut request = TaskRequest::new(name, system_name(task_type), Payload::Json(payload));
    request.queue = system_name(task_type);
    request.retry = RETRY;
    request.execution_timeout = Some(UNLIMITED);
    request.composite = true;
    request
}

/// The request for the composite that a task becomes: settings of the task as a whole go to the composite.
pub(in crate::node) fn composite_of(task_type: &str, request: &TaskRequest, payload: String) -> TaskRequest {
    let mut composite = composite_request(task_type, &request.task_name, payload);
    // Queues have their own request ids; composites share one queue. Ids of children are system ids already.
    composite.request_id.clone_from(&request.request_id);
    composite.scope = request.parent.is_none().then(|| request.queue.clone());
    composite.metadata.clone_from(&request.metadata);
    composite.webhooks.clone_from(&request.webhooks);
    composite.extra_webhooks.clone_from(&request.extra_webhooks);
    composite.priority = request.priority;
    (composite.run_at, composite.delay) = (request.run_at, request.delay);
    (composite.parent, composite.child_name) = (request.parent, request.child_name.clone());
    composite
}

/// The unique key that a composite holds for a task of a queue: composites of all queues share one queue. No
/// name of a queue has this character.
pub(in crate::node) fn unique_in(queue: &Name, unique: &Unique) -> Unique {
    Unique::new(format!("{queue}/{}", unique.key), unique.until)
}

impl Node {
    /// The limits of requests that the server makes itself: every store takes them.
    pub(in crate::node) fn system_limits(&self) -> RequestLimits {
        RequestLimits { payload_bytes_max: RequestLimits::PAYLOAD_BYTES_CAP, ..self.0.options.limits }
    }

    /// The webhooks of the queue of a task that becomes a composite, since the composite waits in another
    /// queue.
    pub(in crate::node) async fn queue_webhooks(
        &self,
        namespace: &Name,
        request: &TaskRequest,
    ) -> Result<Vec<Webhook>, StoreError> {
        if request.child_name.is_some() {
            return Ok(Vec::new());
        }
        let queue = QueueKey::new(namespace.clone(), request.queue.clone());
        Ok(self.known(&queue).await?.policy.webhooks.clone())
    }

    /// Requests the cancel of a composite. Durable when it returns.
    pub(in crate::node) async fn cancel_composite(&self, row: &TaskRow) -> Result<(), StoreError> {
        let content = Some(Content { due: None, value: vec![1] });
        // If the document exists already, the cancel was requested before.
        self.0.parts.documents.put(&[PutDocument { key: cancel_key(row.id), expected: 0, content }]).await?;
        let event = TaskEvent {
            task: row.id,
            queue: row.head.queue.clone(),
            status: row.state.status,
            attempt: row.state.attempt,
            at: clock::wall(),
            composite: None,
        };
        // The driver reads the document now; if this notification is lost, it reads it a little later.
        let notifier = &self.0.parts.notifier;
        let batch = notifier.publish(None, vec![event]);
        let _ = self.0.parts.bus.publish(Address::Events, vec![Message::Changed(batch)]).await;
        // A delayed composite has no driver, and has no children yet.
        let state = &row.state;
        if state.status == Status::Pending
            && state.attempt == AttemptNo(0)
            && state.due > clock::wall() + PUT_OFF
        {
            self.0.parts.store.post(row.id.lane(), &[Command::Cancel { task: row.id }]).await?;
            self.hint(row.id.lane());
        }
        Ok(())
    }

    async fn is_cancelled(&self, id: TaskId) -> Result<bool, StoreError> {
        let found = self.0.parts.documents.get(&[cancel_key(id)]).await?.pop().flatten();
        Ok(found.is_some())
    }

    /// Marks runs, maps and jobs that are being cancelled: their cancel is a document, and no part of their state.
    pub async fn mark_cancelling(&self, rows: &mut [TaskRow]) -> Result<(), StoreError> {
        let open: Vec<usize> = (0..rows.len())
            .filter(|&at| rows[at].state.composite && !rows[at].state.status.is_final())
            .collect();
        for some in open.chunks(LOOK) {
            let keys: Vec<DocumentKey> = some.iter().map(|&at| cancel_key(rows[at].id)).collect();
            for (&at, found) in some.iter().zip(self.0.parts.documents.get(&keys).await?) {
                rows[at].state.cancel_requested |= found.is_some();
            }
        }
        Ok(())
    }

    /// Removes the document of a cancel, with the task.
    pub(in crate::node) async fn forget_cancel(&self, id: TaskId) -> Result<(), StoreError> {
        let key = cancel_key(id);
        let found = self.0.parts.documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
        if let Some(document) = found {
            let put = PutDocument { key, expected: document.version, content: None };
            self.0.parts.documents.put(&[put]).await?;
        }
        Ok(())
    }

    /// Calls a function with all children of a composite: the newest first, without large payloads.
    pub(in crate::node) async fn each_child(
        &self,
        composite: TaskId,
        mut each: impl FnMut(&str, TaskRow),
    ) -> Result<(), StoreError> {
        let filter = TaskFilter { parent: Some(composite), ..TaskFilter::default() };
        let mut after = None;
        loop {
            let page = self.list(TaskList { filter: filter.clone(), after, limit: PAGE }).await?;
            for row in page.tasks {
                if let Some(child) = row.state.child_of.clone().filter(|child| child.composite == composite) {
                    each(&child.name, row);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Full views of tasks, a few at a time.
    pub(in crate::node) async fn views(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        let mut views = Vec::with_capacity(ids.len());
        for ids in ids.chunks(LOOK) {
            views.extend(self.0.parts.store.tasks(ids).await?);
        }
        Ok(views)
    }

    /// Cancels tasks that have not finished, children of a composite or not.
    pub(in crate::node) async fn cancel_all(&self, ids: &[TaskId]) -> Result<(), StoreError> {
        let mut lanes = BTreeMap::<LaneId, Vec<Command>>::new();
        for ids in ids.chunks(LOOK) {
            for TaskView { row, .. } in self.views(ids).await?.into_iter().flatten() {
                if row.state.status.is_final() || row.state.cancel_requested {
                    continue;
                }
                if row.state.composite {
                    self.cancel_composite(&row).await?;
                } else {
                    lanes.entry(row.id.lane()).or_default().push(Command::Cancel { task: row.id });
                }
            }
        }
        for (lane, commands) in lanes {
            for commands in commands.chunks(PAGE) {
                self.0.parts.store.post(lane, commands).await?;
            }
            self.hint(lane);
        }
        Ok(())
    }
}

/// How a composite ended.
#[derive(Debug)]
pub(in crate::node) enum CompositeOutcome {
    /// The composite succeeded, with this result.
    Success(String),
    /// The composite failed, with this error and this result.
    Failed(TaskError, String),
    /// The composite was cancelled, and no child of it runs any more.
    Cancelled,
}

/// Why an attempt to drive a composite ends early.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum DriveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Broken(String),
    #[error("its server stops")]
    Stopped,
}

/// The outcome of starting a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum ChildStart {
    /// It exists.
    Started(TaskId),
    /// Its queue is full.
    QueueFull,
}

/// A new child: its name, and its request or the reason of its refusal.
pub(in crate::node) type NewChild = (String, Result<TaskRequest, TaskError>);

/// The first character of the names of tombstones: tasks that hold the id of a child, so that the child
/// cannot begin any more.
pub(in crate::node) const TOMBSTONE_PREFIX: char = '~';

/// How a composite is driven: the parts that differ between the kinds.
#[async_trait]
pub(in crate::node) trait Drive: Send + Sync {
    /// Reads the children that exist.
    async fn resume(&mut self, driver: &Driver) -> Result<(), DriveError>;

    /// Begins some of the children that can begin. Returns when to go on with that, if there are more.
    async fn begin(&mut self, driver: &Driver) -> Result<Option<Duration>, DriveError>;

    /// Children have ended; gets their full views.
    fn ended(&mut self, children: Vec<TaskView>);

    /// A child was removed by another caller.
    fn gone(&mut self, child: TaskId);

    /// Children that have not ended, and tombstones.
    fn open(&self) -> Vec<TaskId>;

    /// Tombstones that have not ended.
    fn tombstones(&self) -> Vec<TaskId>;

    /// Nothing begins any more.
    fn halt(&mut self);

    /// Children that were stopped before they began, and that an earlier attempt may have submitted
    /// nevertheless: the tasks that they would be.
    async fn maybe_submitted(&mut self, driver: &Driver) -> Result<Vec<(String, NewTask)>, DriveError>;

    /// The outcome, if the composite has ended: no child is open and none begins any more.
    async fn end(&mut self, driver: &Driver) -> Result<Option<CompositeOutcome>, DriveError>;

    /// The progress of the composite.
    fn progress(&self) -> Progress;

    /// Whether the last progress is reported also if the composite ends before its first report is due.
    fn reports_end(&self) -> bool {
        false
    }
}

/// Drives one composite.
#[derive(Debug)]
pub(in crate::node) struct Driver {
    pub(in crate::node) node: Node,
    pub(in crate::node) namespace: Name,
    pub(in crate::node) id: TaskId,
    pub(in crate::node) created_at: Timestamp,
    /// The end of its time limit.
    pub(in crate::node) deadline: Option<Timestamp>,
    /// Steps of the wall clock before the attempt began.
    shift: Shift,
    /// A submit may still be on its way to the store: of an earlier attempt, or of a call without an answer.
    late: AtomicBool,
}

impl Driver {
    /// A driver, with the time of the composite's creation.
    pub(in crate::node) async fn of(node: Node, dispatch: &Dispatch) -> Result<Self, ExecutorError> {
        let id = dispatch.attempt.task;
        let namespace = dispatch.head.queue.namespace.clone();
        let unavailable = |source| ExecutorError::Unavailable { source };
        let found = node.task(&namespace, id).await.map_err(|error| unavailable(error.into()))?;
        let view = found.ok_or_else(|| unavailable("the task is not there".into()))?;
        let late = AtomicBool::new(dispatch.attempt.number > AttemptNo(1));
        Ok(Self {
            node,
            namespace,
            id,
            created_at: view.row.state.created_at,
            deadline: None,
            shift: clock::now().shift,
            late,
        })
    }

    /// Drives the composite until it ends or its attempt is stopped.
    pub(in crate::node) async fn run(self, mut drive: Box<dyn Drive>, attempt: Arc<dyn Attempt>) -> Finish {
        let driven = tokio::select! {
            ended = self.go_on(&mut *drive, &*attempt) => ended,
            stop = attempt.stopped() => match stop.reason {
                // The cancel was requested when no child was open any more.
                StopReason::Cancelled => Ok(CompositeOutcome::Cancelled),
                StopReason::TimedOut | StopReason::Leaving => Err(DriveError::Stopped),
            },
        };
        let (ending, data) = match driven {
            Ok(CompositeOutcome::Success(data)) => (Ending::Success, data),
            Ok(CompositeOutcome::Failed(error, data)) => {
                (Ending::Failed { error, retry: RetryAdvice::Never }, data)
            }
            Ok(CompositeOutcome::Cancelled) => (Ending::Cancelled, String::new()),
            Err(trouble) => {
                let error = TaskError::new("not_driven", trouble.to_string()).bounded();
                let retry = match trouble {
                    DriveError::Stopped => RetryAdvice::Policy,
                    DriveError::Store(_) | DriveError::Broken(_) => RetryAdvice::Never,
                };
                (Ending::Failed { error, retry }, String::new())
            }
        };
        Finish { ran: Duration::ZERO, ending, result: TaskResult { data, ..TaskResult::default() } }
    }

    /// Drives the composite; after a failure of the store it starts again from the beginning.
    async fn go_on(
        &self,
        drive: &mut dyn Drive,
        attempt: &dyn Attempt,
    ) -> Result<CompositeOutcome, DriveError> {
        loop {
            match self.drive(drive, attempt).await {
                Err(DriveError::Store(error)) if error.is_retryable() => {
                    tracing::warn!(task = %self.id, %error, "the driver of the composite failed, retrying");
                    self.late.store(true, Ordering::Relaxed);
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Ok(CompositeOutcome::Cancelled) => self.cancel_self().await?,
                Err(trouble) => {
                    // The composite has no driver any more: this stops its open children as far as possible.
                    if let Err(error) = self.node.cancel_all(&drive.open()).await {
                        tracing::error!(task = %self.id, %error, "its children were not cancelled");
                    }
                    return Err(trouble);
                }
                ended => return ended,
            }
        }
    }

    async fn drive(
        &self,
        drive: &mut dyn Drive,
        attempt: &dyn Attempt,
    ) -> Result<CompositeOutcome, DriveError> {
        // Follows before it reads, so that an end between the two is not missed.
        let follow = self.node.follow(self.id);
        follow.follow_children();
        drive.resume(self).await?;
        // The attempt that submitted them may have ended before it cancelled them.
        self.node.cancel_all(&drive.tombstones()).await?;
        let (mut cancelled, mut late) = (false, false);
        let (mut look_again, mut reports) = (LOOK_AGAIN.0, Reports::new(Instant::now()));
        let (mut maybe_cancelled, mut looked_at) = (true, Instant::now());
        loop {
            // Once late, the composite stays late, whatever the clock shows afterwards.
            let is_late = late || self.deadline.is_some_and(|deadline| self.now() >= deadline);
            let look = maybe_cancelled || looked_at.elapsed() >= CANCEL_EVERY;
            let is_cancelled = cancelled || look && self.node.is_cancelled(self.id).await?;
            if look {
                looked_at = Instant::now();
            }
            if (is_cancelled, is_late) != (cancelled, late) {
                (cancelled, late) = (is_cancelled, is_late);
                drive.halt();
                self.node.cancel_all(&drive.open()).await?;
            }
            let again = drive.begin(self).await?;
            if let Some(end) = drive.end(self).await? {
                // Looks once more, in case a child became visible at the last moment.
                if self.late.swap(false, Ordering::Relaxed) && self.tombstone_children(drive).await? {
                    drive.resume(self).await?;
                    if cancelled || late {
                        drive.halt();
                    }
                    continue;
                }
                if reports.any() || drive.reports_end() {
                    attempt.progress(drive.progress());
                }
                // An accepted cancel counts also if everything has ended meanwhile.
                let cancelled = cancelled || self.node.is_cancelled(self.id).await?;
                return Ok(match end {
                    _ if cancelled => CompositeOutcome::Cancelled,
                    CompositeOutcome::Success(data) | CompositeOutcome::Failed(_, data) if late => {
                        let error = TaskError::new("deadline", "it did not end before its deadline");
                        CompositeOutcome::Failed(error, data)
                    }
                    end => end,
                });
            }
            if reports.is_due(Instant::now()) {
                reports.reported(Instant::now());
                attempt.progress(drive.progress());
            }
            let wait = self.until_deadline(again.unwrap_or(look_again), late);
            let report_in = reports.due_in(Instant::now()).filter(|&report_in| report_in < wait);
            let (wait, reports_first) = (report_in.unwrap_or(wait), report_in.is_some());
            let heard = tokio::time::timeout(wait, follow.children_changed()).await.is_ok();
            if !heard && (again == Some(Duration::ZERO) || reports_first) {
                continue;
            }
            let ended = self.ended_children(&follow, heard, drive).await?;
            look_again = if ended.is_empty() { (look_again * 2).min(LOOK_AGAIN.1) } else { LOOK_AGAIN.0 };
            if !heard {
                let again = if cancelled || late { drive.open() } else { drive.tombstones() };
                self.node.cancel_all(&again).await?;
            }
            let was_cancelled = |view: &TaskView| view.row.state.status == Status::Cancelled;
            maybe_cancelled = ended.is_empty() || ended.iter().any(was_cancelled);
            if !ended.is_empty() {
                reports.child_ended();
            }
            drive.ended(ended);
        }
    }

    /// The wall time, as if the clock had not stepped since the attempt began: a deadline is a span after the
    /// start.
    fn now(&self) -> Timestamp {
        let clock = clock::now();
        clock.wall - (clock.shift - self.shift)
    }

    fn until_deadline(&self, wait: Duration, late: bool) -> Duration {
        match self.deadline.filter(|_| !late) {
            Some(deadline) => wait.min(deadline.since(self.now()) + Duration::from_millis(1)),
            None => wait,
        }
    }

    /// Children that have ended: the reported ones, or all of them if there was no report.
    async fn ended_children(
        &self,
        follow: &TaskFollower,
        heard: bool,
        drive: &mut dyn Drive,
    ) -> Result<Vec<TaskView>, StoreError> {
        let asked = if heard { follow.take_ended() } else { drive.open() };
        let mut ended = Vec::new();
        for ids in asked.chunks(LOOK) {
            for (&id, view) in ids.iter().zip(self.node.views(ids).await?) {
                match view {
                    Some(view) if view.row.state.status.is_final() => ended.push(view),
                    Some(_) => {}
                    None => drive.gone(id),
                }
            }
        }
        Ok(ended)
    }

    /// No child is open any more: cancels the composite as any task. Returns only when that failed.
    async fn cancel_self(&self) -> Result<(), StoreError> {
        loop {
            self.node.0.parts.store.post(self.id.lane(), &[Command::Cancel { task: self.id }]).await?;
            self.node.hint(self.id.lane());
            tokio::time::sleep(LOOK_AGAIN.1).await;
        }
    }

    /// Writes tombstones in the place of children that were stopped before they began. Submits of an earlier
    /// attempt, and submits still on their way, find the tombstones, so that no child begins after its
    /// composite has ended. A tombstone never runs: it is delayed, and cancelled. Returns whether there were
    /// any.
    async fn tombstone_children(&self, drive: &mut dyn Drive) -> Result<bool, DriveError> {
        let maybe_submitted = drive.maybe_submitted(self).await?;
        let mut placed = Vec::new();
        for (at, (name, mut task)) in maybe_submitted.into_iter().enumerate() {
            task.due = task.created_at + UNLIMITED;
            (task.unique, task.queue_len_max) = (None, None);
            let body = Arc::make_mut(&mut task.spec.body);
            (body.child_name, body.composite) = (Some(format!("{TOMBSTONE_PREFIX}{name}")), false);
            // The end of a tombstone is neither announced nor archived.
            body.webhooks.clear();
            body.archived = false;
            placed.push((at, name, task));
        }
        let ids: Vec<TaskId> = placed.iter().map(|(_, _, task)| task.id).collect();
        self.submit_placed(placed).await?;
        self.node.cancel_all(&ids).await?;
        Ok(!ids.is_empty())
    }

    /// The tasks that children would be if they were submitted now.
    pub(in crate::node) async fn placed(
        &self,
        children: Vec<NewChild>,
    ) -> Result<Vec<(String, NewTask)>, StoreError> {
        let mut placed = Vec::with_capacity(children.len());
        for (name, request) in children {
            let task = match request {
                Ok(request) => self.place_child(&name, request).await,
                Err(error) => Err(ChildRefusal::For(error)),
            };
            let task = match task {
                Err(ChildRefusal::For(error)) => self.place_refused(&name, &error).await,
                task => task,
            };
            match task {
                Ok(task) => placed.push((name, task)),
                Err(ChildRefusal::Store(error)) => return Err(error),
                // Then it was never a task either.
                Err(ChildRefusal::For(_)) => {}
            }
        }
        Ok(placed)
    }

    /// Submits a task unchanged. The inner error is the reason of a final refusal.
    pub(in crate::node) async fn submit_task(
        &self,
        task: NewTask,
    ) -> Result<Result<ChildStart, TaskError>, StoreError> {
        let id = task.id;
        let outcome = self.submit_placed(vec![(0, String::new(), task)]).await?.pop();
        Ok(match outcome {
            Some((_, _, Err(None))) => Ok(ChildStart::QueueFull),
            Some((_, _, Err(Some(error)))) => Err(error),
            Some((_, _, Ok(_))) | None => Ok(ChildStart::Started(id)),
        })
    }

    /// Submits another child that does the work of a child again. Returns its type too.
    pub(in crate::node) async fn submit_again(
        &self,
        name: &str,
        of: TaskId,
    ) -> Result<Result<(ChildStart, Name), TaskError>, StoreError> {
        let task = match self.again(name, of).await? {
            Ok(task) => task,
            Err(error) => return Ok(Err(error)),
        };
        let task_type = task.spec.head.task_type.clone();
        Ok(self.submit_task(task).await?.map(|begun| (begun, task_type)))
    }

    /// The task of another child that does the work of a child again.
    pub(in crate::node) async fn again(
        &self,
        name: &str,
        of: TaskId,
    ) -> Result<Result<NewTask, TaskError>, StoreError> {
        let gone = || TaskError::new("child_failed", format!("task {of} was removed"));
        let Some(view) = self.node.views(&[of]).await?.pop().flatten() else { return Ok(Err(gone())) };
        let Some(body) = &view.row.body else { return Ok(Err(gone())) };
        let request_id = Some(self.request_id(name));
        let archived = self.node.is_archived(body.composite, &view.row.head.task_type);
        let child_name = Some(name.to_owned());
        let body = TaskBody { request_id, child_name, unique: None, archived, ..(**body).clone() };
        let (head, now) = (&view.row.head, clock::wall());
        let policy = self.node.known(&head.queue).await?.policy;
        let head = Arc::new(TaskRequest::again(head, &body, &policy));
        let request_id = body.request_id.clone().unwrap_or_default();
        Ok(Ok(NewTask {
            id: TaskId::from_request(of.lane(), &head.queue, None, &request_id),
            spec: TaskSpec { head, body: Arc::new(body) },
            created_at: now,
            due: now,
            fingerprint: Fingerprint { version: Fingerprint::RETRY, hash: 0 },
            queue_len_max: policy.len_max,
            unique: None,
            shift: None,
        }))
    }

    async fn place_refused(&self, name: &str, error: &TaskError) -> Result<NewTask, ChildRefusal> {
        let payload = serde_json::to_string(&Refusal::of(error)).expect("a refusal can be written");
        let mut request = TaskRequest::new(name, system_name(REFUSED_TYPE), Payload::Json(payload));
        request.queue = system_name(REFUSED_TYPE);
        self.place_child(name, request).await
    }

    /// Submits children, each with its name. In the place of a refused child, a task fails and states the
    /// reason.
    pub(in crate::node) async fn submit(
        &self,
        children: Vec<NewChild>,
    ) -> Result<Vec<ChildStart>, StoreError> {
        let mut begun = vec![ChildStart::QueueFull; children.len()];
        let mut placed = Vec::with_capacity(children.len());
        let mut refused = Vec::new();
        for (at, (name, request)) in children.into_iter().enumerate() {
            let task = match request {
                Ok(request) => self.place_child(&name, request).await,
                Err(error) => Err(ChildRefusal::For(error)),
            };
            match task {
                Ok(task) => placed.push((at, name, task)),
                Err(ChildRefusal::For(error)) => refused.push((at, name, error)),
                Err(ChildRefusal::Store(error)) => return Err(error),
            }
        }
        for (at, name, outcome) in self.submit_placed(placed).await? {
            match outcome {
                Ok(id) => begun[at] = ChildStart::Started(id),
                Err(Some(error)) => refused.push((at, name, error)),
                Err(None) => {}
            }
        }
        let mut placed = Vec::with_capacity(refused.len());
        for (at, name, error) in refused {
            match self.place_refused(&name, &error).await {
                Ok(task) => placed.push((at, name, task)),
                Err(ChildRefusal::Store(error)) => return Err(error),
                Err(ChildRefusal::For(error)) => return Err(StoreError::corrupt(error.message)),
            }
        }
        for (at, _, outcome) in self.submit_placed(placed).await? {
            if let Ok(id) = outcome {
                begun[at] = ChildStart::Started(id);
            }
        }
        Ok(begun)
    }

    /// The request id of a child. Clients cannot use such ids; a long name is replaced by its hash.
    fn request_id(&self, name: &str) -> String {
        if name.len() <= CHILD_NAME_LEN_MAX {
            return child_request_id(self.id, name);
        }
        child_request_id(self.id, &format!("{:032x}", xxh3_128(name.as_bytes())))
    }

    async fn place_child(&self, name: &str, mut request: TaskRequest) -> Result<NewTask, ChildRefusal> {
        request.request_id = Some(self.request_id(name));
        request.parent = Some(self.id);
        request.child_name = Some(name.to_owned());
        match self.node.place(&self.namespace, request).await {
            Ok(task) => Ok(task),
            Err(SubmitError::Store(error)) => Err(ChildRefusal::Store(unavailable(&error))),
            Err(SubmitError::Invalid(error)) => {
                Err(ChildRefusal::For(TaskError::new("invalid", error.to_string()).bounded()))
            }
            Err(error) => Err(ChildRefusal::For(TaskError::new("refused", error.to_string()).bounded())),
        }
    }

    /// The outcome of each: its id, the reason of a final refusal, or nothing if a later submit may succeed.
    async fn submit_placed(
        &self,
        placed: Vec<(usize, String, NewTask)>,
    ) -> Result<Vec<(usize, String, Result<TaskId, Option<TaskError>>)>, StoreError> {
        type OfLane = (Vec<(usize, String)>, Vec<NewTask>);
        let mut lanes = BTreeMap::<LaneId, OfLane>::new();
        for (at, name, task) in placed {
            let (who, tasks) = lanes.entry(task.id.lane()).or_default();
            who.push((at, name));
            tasks.push(task);
        }
        let mut outcomes = Vec::new();
        for (lane, (who, tasks)) in lanes {
            let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
            let answers = self.node.submit_to(lane, tasks).await;
            for (((at, name), id), answer) in who.into_iter().zip(ids).zip(answers) {
                let outcome = match answer {
                    Ok(submitted) if submitted.id == id => Ok(id),
                    Ok(other) => {
                        let message = format!("task {} holds its unique key", other.id);
                        Err(Some(TaskError::new(HELD, message)))
                    }
                    Err(SubmitError::QueueFull { .. }) => Err(None),
                    // Only a child has this request id: an earlier attempt submitted it, and a changed policy
                    // made another task of it.
                    Err(SubmitError::RequestIdReused { .. }) => Ok(id),
                    Err(SubmitError::Invalid(error)) => {
                        Err(Some(TaskError::new("invalid", error.to_string()).bounded()))
                    }
                    Err(SubmitError::Store(error)) => return Err(unavailable(&error)),
                };
                outcomes.push((at, name, outcome));
            }
        }
        Ok(outcomes)
    }
}

fn unavailable(error: &Arc<StoreError>) -> StoreError {
    if error.is_retryable() {
        StoreError::unavailable(Arc::clone(error))
    } else {
        StoreError::corrupt(error.to_string())
    }
}

/// Why a child did not become a task.
enum ChildRefusal {
    For(TaskError),
    Store(StoreError),
}

/// The payload of a refused child.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    code: String,
    message: String,
}

/// The code of a refusal because another task holds the unique key.
pub(in crate::node) const HELD: &str = "unique";

impl Refusal {
    fn of(error: &TaskError) -> Self {
        Self { code: error.code.clone(), message: error.message.clone() }
    }
}

/// Fails with the error of its payload.
#[derive(Debug)]
pub(in crate::node) struct RefusedExecutor;

#[async_trait]
impl Executor for RefusedExecutor {
    fn check(&self, _: &Dispatch) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let payload = dispatch.body.as_ref().map_or("", |body| body.payload.as_str());
        let refusal = serde_json::from_str(payload);
        let refusal = refusal.map_err(|error| ExecutorError::BadPayload { reason: error.to_string() })?;
        Ok(Box::new(RefusedExecution(refusal)))
    }
}

#[derive(Debug)]
struct RefusedExecution(Refusal);

#[async_trait]
impl Execution for RefusedExecution {
    async fn run(self: Box<Self>, _: Arc<dyn Attempt>) -> Finish {
        let error = TaskError::new(&self.0.code, self.0.message);
        let ending = Ending::Failed { error, retry: RetryAdvice::Never };
        Finish { ran: Duration::ZERO, ending, result: TaskResult::default() }
    }
}

/// A failure of a composite because of one of its children.
pub(in crate::node) fn child_failed(kind: &str, name: &str, status: Status, why: &str) -> TaskError {
    let end = if status == Status::Cancelled { "was cancelled" } else { "failed" };
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    TaskError::new("child_failed", format!("{kind} {name} {end}{why}")).bounded()
}

/// The longest chain of composites that take over from each other.
const CHAIN_MAX: usize = 100;

/// A composite that another one takes over from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct EarlierComposite {
    pub(in crate::node) id: TaskId,
    /// Children whose definition differs in the composite that takes over.
    pub(in crate::node) changed: Vec<String>,
}

impl Node {
    /// The composites that a composite took over from: the last one, the one before it, and so on.
    pub(in crate::node) async fn earlier_composites(
        &self,
        earlier: Option<TaskId>,
    ) -> Result<Vec<TaskId>, StoreError> {
        let runs = self.earlier_runs(earlier, Vec::new()).await?;
        Ok(runs.into_iter().map(|run| run.id).collect())
    }

    /// The same, with the changes from each to the next.
    pub(in crate::node) async fn earlier_runs(
        &self,
        earlier: Option<TaskId>,
        changed: Vec<String>,
    ) -> Result<Vec<EarlierComposite>, StoreError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Chain {
            takes_over: Option<TaskId>,
            #[serde(default)]
            changed: Vec<String>,
        }
        let mut composites: Vec<EarlierComposite> =
            earlier.map(|id| EarlierComposite { id, changed }).into_iter().collect();
        while let Some(last) = composites.last()
            && composites.len() < CHAIN_MAX
        {
            let body = self.views(&[last.id]).await?.pop().flatten().and_then(|view| view.row.body);
            let chain = body.and_then(|body| serde_json::from_str::<Chain>(body.payload.as_str()).ok());
            let Some(Chain { takes_over: Some(id), changed }) = chain else { break };
            composites.push(EarlierComposite { id, changed });
        }
        Ok(composites)
    }
}

/// Longer names are not part of request ids.
const CHILD_NAME_LEN_MAX: usize = 150;

/// The request id of a child.
pub(in crate::node) fn child_request_id(composite: TaskId, name: &str) -> String {
    format!("{SYSTEM_PREFIX}part:{composite}:{name}")
}

/// The error of a stored request that was valid when it was accepted.
pub(in crate::node) fn unreadable(error: &FieldError) -> DriveError {
    DriveError::Broken(format!("its request cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn stored_names_of_composites_stay() {
        let id = TaskId::from_random(7);
        check("composite_names", |golden| {
            golden.json("refusal", &Refusal::of(&TaskError::new(HELD, "task 7 holds the key")));
            golden.text("type of a refusal", REFUSED_TYPE);
            golden.text("prefix of a tombstone", TOMBSTONE_PREFIX);
            golden.text("request id of a child", child_request_id(id, "load"));
            let DocumentKey { namespace, id, .. } = cancel_key(id);
            golden.text("document of a cancel", format!("{namespace}/{id}"));
            let unique = Unique::new("k", None);
            golden.text("unique key of a composite", unique_in(&system_name("mail"), &unique).key);
        });
    }
}

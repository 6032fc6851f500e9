//! Builders for cases: tasks, changes, owners.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::{
    Commit, Group, GroupOutcome, RecordChange, RecordKey, RecordKind, SubmitOutcome, TaskChange,
};
use tasklane_core::id::{
    AttemptNo, CommitNo, Epoch, LaneId, Name, OwnerId, QueueKey, Seq, SessionId, TaskId,
};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::status::{Path, Status, Step};
use tasklane_core::task::{
    AttemptOutcome, AttemptRecord, Fingerprint, NewTask, Payload, Priority, TaskBody, TaskError, TaskHead,
    TaskResult, TaskSpec, TaskState, Unique,
};
use tasklane_core::time::{Shift, Timestamp};

use crate::{ClaimLane, Store, StoreError, Submit, TaskView};

/// The lane of most cases.
pub const LANE: LaneId = LaneId(3);
/// A lane that must not be touched by what happens in [`LANE`].
pub const OTHER_LANE: LaneId = LaneId(4);

/// A name.
pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A queue of the namespace `default`.
pub fn queue(text: &str) -> QueueKey {
    QueueKey::new(name("default"), name(text))
}

/// A time so many milliseconds after the beginning of all cases.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + millis)
}

/// An owner, identified by a number.
pub fn owner_id(number: u128) -> OwnerId {
    OwnerId::from_random(0x0aaa_0000_0000_0000_0000_0000_0000_0000 | number)
}

/// A worker session, identified by a number.
pub fn session_id(number: u128) -> SessionId {
    SessionId::from_random(0x0555_0000_0000_0000_0000_0000_0000_0000 | number)
}

/// A task of [`LANE`], identified by a number.
pub fn task(number: u64) -> TaskBuilder {
    TaskBuilder::new(LANE, number)
}

/// Tasks of [`LANE`].
pub fn tasks(numbers: impl IntoIterator<Item = u64>) -> Vec<NewTask> {
    numbers.into_iter().map(|number| task(number).build()).collect()
}

/// Builds a task.
#[derive(Clone, Debug)]
pub struct TaskBuilder {
    lane: LaneId,
    request: String,
    head: TaskHead,
    body: TaskBody,
    created_at: Timestamp,
    delay: Duration,
    fingerprint: Fingerprint,
    len_max: Option<u32>,
    unique: Option<Unique>,
    shift: Option<Shift>,
}

impl TaskBuilder {
    /// A plain task. Its number gives its request id and fingerprint.
    pub fn new(lane: LaneId, number: u64) -> Self {
        let head = TaskHead {
            queue: queue("q"),
            task_type: name("SHELL"),
            priority: Priority::default(),
            labels: [].into(),
            flow: Vec::new(),
            hash_bucket: None,
            execution_timeout: Duration::from_mins(1),
            start_timeout: None,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy::default(),
        };
        let request = format!("request {number}");
        let body = TaskBody {
            name: format!("task {number}"),
            payload: Payload::Text("echo".to_owned()),
            request_id: Some(request.clone()),
            ..TaskBody::default()
        };
        let fingerprint = Fingerprint { version: 1, hash: number };
        Self {
            lane,
            request,
            head,
            body,
            created_at: at(0),
            delay: Duration::ZERO,
            fingerprint,
            len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// In this queue of the namespace `default`.
    #[must_use]
    pub fn queue(self, text: &str) -> Self {
        self.in_queue(queue(text))
    }

    /// In this queue.
    #[must_use]
    pub fn in_queue(mut self, queue: QueueKey) -> Self {
        self.head.queue = queue;
        self
    }

    /// Of this type, and so in another line.
    #[must_use]
    pub fn kind(mut self, text: &str) -> Self {
        self.head.task_type = name(text);
        self
    }

    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.head.priority = Priority::new(priority).unwrap();
        self
    }

    /// Created this many milliseconds after the beginning.
    #[must_use]
    pub fn created(self, millis: i64) -> Self {
        self.created_at(at(millis))
    }

    /// Created at this time.
    #[must_use]
    pub fn created_at(mut self, created_at: Timestamp) -> Self {
        self.created_at = created_at;
        self
    }

    /// Due this many milliseconds after it was created.
    #[must_use]
    pub fn delay(mut self, millis: u64) -> Self {
        self.delay = Duration::from_millis(millis);
        self
    }

    /// Failing if it has not started this many milliseconds after it was due.
    #[must_use]
    pub fn start_timeout(mut self, millis: u64) -> Self {
        self.head.start_timeout = Some(Duration::from_millis(millis));
        self
    }

    /// With another fingerprint than its number.
    #[must_use]
    pub fn fingerprint(mut self, version: u8, hash: u64) -> Self {
        self.fingerprint = Fingerprint { version, hash };
        self
    }

    /// For a queue of at most this many waiting tasks.
    #[must_use]
    pub fn len_max(mut self, len_max: u32) -> Self {
        self.len_max = Some(len_max);
        self
    }

    /// With a unique key that it holds until it has finished.
    #[must_use]
    pub fn unique(mut self, key: &str) -> Self {
        self.unique = Some(Unique::new(key, None));
        self
    }

    /// With a unique key that it holds until this time.
    #[must_use]
    pub fn unique_until(mut self, key: &str, until: Timestamp) -> Self {
        self.unique = Some(Unique::new(key, Some(until)));
        self
    }

    /// Its times were made when the steps of its lane's clock summed up to this many milliseconds.
    #[must_use]
    pub fn shift(mut self, millis: i64) -> Self {
        self.shift = Some(Shift::from_millis(millis));
        self
    }

    /// With a payload of this many bytes.
    #[must_use]
    pub fn payload_bytes(mut self, bytes: usize) -> Self {
        self.body.payload = Payload::Text(large_text(bytes));
        self
    }

    /// With changes that have no method of their own.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut TaskHead, &mut TaskBody)) -> Self {
        change(&mut self.head, &mut self.body);
        self
    }

    /// Its id.
    pub fn id(&self) -> TaskId {
        TaskId::from_request(self.lane, &self.head.queue, None, &self.request)
    }

    /// The task.
    pub fn build(self) -> NewTask {
        let id = self.id();
        NewTask {
            id,
            spec: TaskSpec { head: Arc::new(self.head), body: Arc::new(self.body) },
            created_at: self.created_at,
            due: self.created_at + self.delay,
            fingerprint: self.fingerprint,
            queue_len_max: self.len_max,
            unique: self.unique,
            shift: self.shift,
        }
    }
}

/// Text that does not compress to nothing.
pub fn large_text(bytes: usize) -> String {
    let mut rng = tasklane_core::rng::Rng::new(bytes as u64);
    (0..bytes).map(|_| char::from(b'a' + u8::try_from(rng.below(26)).unwrap())).collect()
}

/// Submits tasks of one lane.
pub async fn submit(store: &dyn Store, tasks: impl Into<Arc<[NewTask]>>) -> Vec<SubmitOutcome> {
    let tasks = tasks.into();
    let lane = tasks.first().map_or(LANE, |task| task.id.lane());
    store.submit(Submit { lane, tasks }).await.unwrap()
}

/// Submits tasks that are new, and answers their arrival numbers.
pub async fn create(store: &dyn Store, tasks: impl Into<Arc<[NewTask]>>) -> Vec<Seq> {
    let outcomes = submit(store, tasks).await;
    outcomes.iter().map(|outcome| created(outcome).unwrap_or_else(|| panic!("{outcome:?}"))).collect()
}

/// The arrival number, if the task was created.
pub fn created(outcome: &SubmitOutcome) -> Option<Seq> {
    match outcome {
        SubmitOutcome::Created { seq } => Some(*seq),
        SubmitOutcome::Duplicate
        | SubmitOutcome::RequestIdReused
        | SubmitOutcome::Exists { .. }
        | SubmitOutcome::QueueFull => None,
    }
}

/// A stored task with its state and result.
pub async fn view(store: &dyn Store, id: TaskId) -> TaskView {
    store.tasks(&[id]).await.unwrap().remove(0).expect("the task exists")
}

/// The state of a task that exists.
pub async fn state(store: &dyn Store, id: TaskId) -> TaskState {
    view(store, id).await.row.state
}

/// A cancel command.
pub fn cancel(task: TaskId) -> Command {
    Command::Cancel { task }
}

/// A path through some statuses and the state at its end, as a scheduler would write them. Each step takes
/// one millisecond from `from` on.
pub fn advance(state: &TaskState, steps: &[Status], from: Timestamp) -> (Path, TaskState) {
    let mut state = state.clone();
    let mut path = Path::new();
    for (&status, millis) in steps.iter().zip(0..) {
        let at = from + Duration::from_millis(millis);
        path.push(Step { status, at });
        state.status = status;
        match status {
            Status::Scheduled => {
                state.attempt = state.attempt.next();
                state.session = Some(session_id(u128::from(state.attempt.0)));
                state.worker = Some(name("worker-1"));
                state.scheduled_at = Some(at);
                (state.dispatched_at, state.started_at) = (None, None);
            }
            Status::Dispatched => state.dispatched_at = Some(at),
            Status::Running => state.started_at = Some(at),
            Status::Retrying => {
                state.retries += 1;
                state.due = at + Duration::from_secs(10);
                state.delayed = true;
                state.error = Some(TaskError::new("exit_code", "exit code 1"));
            }
            Status::Pending => state.delayed = state.due > at,
            Status::Success | Status::Failed | Status::Cancelled => state.finished_at = Some(at),
        }
    }
    (path, state)
}

/// The change that takes a task from its state through some statuses.
pub fn change(task: TaskId, state: &TaskState, steps: &[Status]) -> TaskChange {
    let (path, after) = advance(state, steps, at(1_000));
    TaskChange { task, expected: state.version(), path, state: after, ended: Vec::new(), result: None }
}

/// A group with that change and nothing else.
pub fn changing(task: TaskId, state: &TaskState, steps: &[Status]) -> Group {
    Group { change: Some(change(task, state, steps)), ..Group::default() }
}

/// A group that inserts a task and nothing else.
pub fn inserting(task: NewTask) -> Group {
    Group { insert: Some(Box::new(task)), ..Group::default() }
}

/// A group that inserts a task and assigns it at once.
pub fn inserting_assigned(task: NewTask) -> Group {
    let assign = change(task.id, &task.state(), &[Status::Scheduled]);
    Group { insert: Some(Box::new(task)), change: Some(assign), ..Group::default() }
}

/// Names a record.
pub fn record_key(kind: RecordKind, key: &str) -> RecordKey {
    RecordKey { kind, key: key.to_owned() }
}

/// A change of a record.
pub fn record(key: &str, value: Option<&[u8]>) -> RecordChange {
    RecordChange { key: record_key(RecordKind::Rate, key), value: value.map(<[u8]>::to_vec) }
}

/// An ended attempt.
pub fn ended(number: u32, outcome: AttemptOutcome) -> AttemptRecord {
    AttemptRecord {
        number: AttemptNo(number),
        session: Some(session_id(u128::from(number))),
        worker: Some(name("worker-1")),
        scheduled_at: at(1),
        started_at: Some(at(2)),
        ended_at: Some(at(3)),
        outcome: Some(outcome),
        error: Some(TaskError::new("exit_code", format!("attempt {number} said “no”"))),
    }
}

/// An executor's answer with this many bytes of data.
pub fn result(code: i32, bytes: usize) -> Box<TaskResult> {
    Box::new(TaskResult { code, message: "done".to_owned(), data: large_text(bytes) })
}

/// The outcome of a written group without an insert.
pub const APPLIED: GroupOutcome = GroupOutcome::Applied { seq: None };

/// An owner of a lane that counts its commits.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The handle it uses.
    pub store: Arc<dyn Store>,
    /// The lane.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its identity.
    pub owner: OwnerId,
    /// Its last commit.
    pub number: CommitNo,
}

impl Owner {
    /// Claims a lane, whatever owner it has.
    pub async fn claim(store: &Arc<dyn Store>, lane: LaneId) -> Self {
        let seen = store.lane_head(lane).await.unwrap().epoch;
        let owner = owner_id((u128::from(lane.0) << 64) | u128::from(seen.0));
        let epoch = store.claim_lane(ClaimLane { lane, owner, seen, failures: 0 }).await.unwrap();
        Self { store: Arc::clone(store), lane, epoch, owner, number: CommitNo(0) }
    }

    /// The same owner over another handle.
    #[must_use]
    pub fn over(&self, store: &Arc<dyn Store>) -> Self {
        Self { store: Arc::clone(store), ..self.clone() }
    }

    /// A commit with any number.
    pub fn numbered(&self, number: u64, groups: impl Into<Arc<[Group]>>) -> Commit {
        let (lane, epoch, owner) = (self.lane, self.epoch, self.owner);
        Commit { lane, epoch, owner, number: CommitNo(number), groups: groups.into(), cursor: Seq(0) }
    }

    /// The next commit.
    pub fn next(&mut self, groups: impl Into<Arc<[Group]>>) -> Commit {
        self.number = self.number.next();
        self.numbered(self.number.0, groups)
    }

    /// Sends a commit.
    pub async fn send(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        self.store.commit(commit).await
    }

    /// Sends the next commit and waits for its outcomes.
    pub async fn commit(&mut self, groups: impl Into<Arc<[Group]>>) -> Vec<GroupOutcome> {
        let commit = self.next(groups);
        self.send(&commit).await.unwrap()
    }

    /// Takes a task through some statuses in one commit that must apply.
    pub async fn advance(&mut self, task: TaskId, steps: &[Status]) -> TaskState {
        let before = state(&*self.store, task).await;
        let group = changing(task, &before, steps);
        let after = group.change.as_ref().unwrap().state.clone();
        assert_eq!(self.commit([group]).await, [APPLIED], "{task} through {steps:?}");
        after
    }
}

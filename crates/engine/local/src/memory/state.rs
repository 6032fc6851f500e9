//! The state itself, and the verbs that are not about an owner's commits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tasklane_core::command::{Command, InboxRow};
use tasklane_core::commit::{RecordKey, SubmitOutcome};
use tasklane_core::id::{Epoch, LaneId, QueueKey, Seq, TaskId};
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::status::Status;
use tasklane_core::task::NewTask;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    ClaimLane, LaneHead, LogChunk, LogPosition, PutPolicy, StoreCapabilities, StoreError, Submit, TaskCursor,
};

use super::documents::Shelf;
use super::history::HistoryEvent;
use super::lane::{Lane, StoredTask};

/// How a memory store behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryOptions {
    /// Panics where a store with small transactions would fail or a caller breaks the rules: a group that touches two
    /// lanes, a call over 128 operations or 1.25 MiB, a group that writes more keys than `Group::ops` says. For tests.
    pub strict: bool,
    /// Keeps a [`HistoryEvent`] of everything that is applied.
    pub history: bool,
    /// Invariants of the store that a test may switch off.
    pub invariants: Invariants,
}

/// Everything that a memory store holds.
#[derive(Default)]
pub struct MemoryState {
    pub(super) options: MemoryOptions,
    pub(super) tasks: BTreeMap<TaskId, StoredTask>,
    pub(super) lanes: BTreeMap<LaneId, Lane>,
    pub(super) by_time: BTreeSet<TaskCursor>,
    /// Who took each unique key, and until when it is held, where that is a time.
    uniques: BTreeMap<UniqueKey, (TaskId, Option<Timestamp>)>,
    pub(super) counts: BTreeMap<QueueKey, [u64; 8]>,
    bindings: BTreeMap<QueueKey, QueueBinding>,
    pub(super) policies: BTreeMap<QueueKey, StoredPolicy>,
    /// The queues whose policy was written, by the revision of the last change.
    pub(super) policy_revisions: BTreeMap<u64, QueueKey>,
    pub(super) policy_revision: u64,
    pub(super) logs: BTreeMap<(TaskId, LogPosition), LogChunk>,
    pub(super) documents: Shelf,
    calls: u64,
    history: Vec<HistoryEvent>,
}

/// A unique key of a queue, in one lane.
pub(super) type UniqueKey = (LaneId, QueueKey, String);

#[derive(Debug)]
pub(super) struct StoredPolicy {
    pub(super) revision: u64,
    pub(super) policy: VersionedPolicy,
}

impl fmt::Debug for MemoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryState")
            .field("options", &self.options)
            .field("tasks", &self.tasks.len())
            .field("lanes", &self.lanes.len())
            .finish_non_exhaustive()
    }
}

/// What small stores take in one transaction: etcd's default limits, with room to spare.
const STRICT: StoreCapabilities =
    StoreCapabilities { ops_max: 128, bytes_max: 5 << 18, insert_and_assign: true };
const LARGE: StoreCapabilities =
    StoreCapabilities { ops_max: 1 << 16, bytes_max: 64 << 20, insert_and_assign: true };

impl MemoryState {
    /// An empty one.
    pub fn new(options: MemoryOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The bounds of one call.
    pub fn capabilities(&self) -> StoreCapabilities {
        if self.options.strict { STRICT } else { LARGE }
    }

    /// See [`Store::submit`](tasklane_ports::Store::submit).
    pub fn submit(&mut self, submit: &Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        let ops = submit.tasks.iter().map(NewTask::ops).sum();
        let bytes = submit.tasks.iter().map(NewTask::bytes).sum();
        self.check_size("submit", ops, bytes)?;
        self.calls += 1;
        let lane = self.lanes.entry(submit.lane).or_default();
        let mut filling = false;
        if !self.options.invariants.on(Invariant::ArrivalsOrder) {
            filling = !lane.holes.is_empty();
            if !filling {
                // The order in which they are taken out again: the last first.
                lane.holes = (0..submit.tasks.len()).map(|_| lane.next_seq()).collect();
                lane.holes.reverse();
            }
        }
        let mut outcomes = Vec::with_capacity(submit.tasks.len());
        for task in submit.tasks.iter() {
            assert_eq!(task.id.lane(), submit.lane, "task {} is submitted to another lane", task.id);
            outcomes.push(match self.refusal(task) {
                Some(refusal) => refusal,
                None => SubmitOutcome::Created { seq: self.insert(task, filling).0 },
            });
        }
        Ok(outcomes)
    }

    /// See [`Store::lane_head`](tasklane_ports::Store::lane_head).
    pub fn lane_head(&self, lane: LaneId) -> LaneHead {
        self.lanes.get(&lane).map_or_else(|| Lane::default().head(), Lane::head)
    }

    /// See [`Store::claim_lane`](tasklane_ports::Store::claim_lane).
    pub fn claim_lane(&mut self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        self.calls += 1;
        let invariants = self.options.invariants;
        let lane = self.lanes.entry(claim.lane).or_default();
        let claimed = claim.seen.next();
        if lane.epoch == claim.seen {
            lane.epoch = claimed;
            lane.owner = Some(claim.owner);
            lane.commit = tasklane_core::id::CommitNo(0);
            lane.failures = claim.failures;
            lane.outcomes.clear();
            self.record(|| HistoryEvent::Claimed { lane: claim.lane, epoch: claimed, owner: claim.owner });
            return Ok(claimed);
        }
        let same_owner = lane.owner == Some(claim.owner) || !invariants.on(Invariant::OwnerId);
        if lane.epoch == claimed && same_owner && lane.commit.0 == 0 {
            return Ok(claimed);
        }
        Err(StoreError::ClaimLost { lane: claim.lane, current: lane.epoch })
    }

    /// See [`Store::post`](tasklane_ports::Store::post).
    pub fn post(&mut self, lane: LaneId, commands: &[Command]) {
        self.calls += 1;
        let kept = self.lanes.entry(lane).or_default();
        for command in commands {
            if self.options.strict {
                let Command::Cancel { task } = command;
                assert_eq!(task.lane(), lane, "a command for task {task} is posted to another lane");
            }
            let seq = kept.next_seq();
            kept.inbox.insert(seq, command.clone());
        }
    }

    /// See [`Store::bind_queue`](tasklane_ports::Store::bind_queue).
    pub fn bind_queue(&mut self, queue: &QueueKey, binding: &QueueBinding) -> QueueBinding {
        self.bindings.entry(queue.clone()).or_insert_with(|| binding.clone()).clone()
    }

    /// See [`Store::put_policy`](tasklane_ports::Store::put_policy).
    pub fn put_policy(&mut self, put: PutPolicy) -> Result<u64, StoreError> {
        let stored = self.policies.get(&put.queue);
        let current = stored.map_or(0, |stored| stored.policy.version);
        if current != put.expected {
            return Err(StoreError::PolicyConflict { queue: put.queue, expected: put.expected, current });
        }
        if let Some(stored) = stored {
            self.policy_revisions.remove(&stored.revision);
        }
        self.policy_revision += 1;
        let revision = self.policy_revision;
        let policy = VersionedPolicy { version: current + 1, policy: put.policy };
        self.policy_revisions.insert(revision, put.queue.clone());
        self.policies.insert(put.queue, StoredPolicy { revision, policy });
        Ok(current + 1)
    }

    /// See [`Store::policy`](tasklane_ports::Store::policy).
    pub fn policy(&self, queue: &QueueKey) -> VersionedPolicy {
        self.policies.get(queue).map(|stored| stored.policy.clone()).unwrap_or_default()
    }

    /// A task, for a checker.
    pub fn task(&self, id: TaskId) -> Option<&StoredTask> {
        self.tasks.get(&id)
    }

    /// All tasks by id, for a checker.
    pub fn all_tasks(&self) -> impl Iterator<Item = (TaskId, &StoredTask)> {
        self.tasks.iter().map(|(id, task)| (*id, task))
    }

    /// The owners of all lanes that were ever used, for a checker.
    pub fn lane_heads(&self) -> impl Iterator<Item = (LaneId, LaneHead)> {
        self.lanes.iter().map(|(id, lane)| (*id, lane.head()))
    }

    /// The inbox of a lane, for a checker.
    pub fn inbox(&self, lane: LaneId) -> impl Iterator<Item = InboxRow> {
        let rows = self.lanes.get(&lane).into_iter().flat_map(|lane| &lane.inbox);
        rows.map(|(seq, command)| InboxRow { seq: *seq, command: command.clone() })
    }

    /// The records of a lane, for a checker.
    pub fn records(&self, lane: LaneId) -> impl Iterator<Item = (&RecordKey, &[u8])> {
        let rows = self.lanes.get(&lane).into_iter().flat_map(|lane| &lane.records);
        rows.map(|(key, value)| (key, value.as_slice()))
    }

    /// The changes applied since the last call, if `MemoryOptions::history` is set.
    pub fn take_history(&mut self) -> Vec<HistoryEvent> {
        std::mem::take(&mut self.history)
    }

    pub(super) fn record(&mut self, event: impl FnOnce() -> HistoryEvent) {
        if self.options.history {
            self.history.push(event());
        }
    }

    pub(super) fn begin_call(&mut self) {
        self.calls += 1;
    }

    pub(super) fn check_size(&self, what: &'static str, ops: usize, bytes: usize) -> Result<(), StoreError> {
        let StoreCapabilities { ops_max, bytes_max, .. } = self.capabilities();
        let over = if ops > ops_max {
            Some((ops, ops_max))
        } else if bytes > bytes_max {
            Some((bytes, bytes_max))
        } else {
            None
        };
        let Some((size, max)) = over else { return Ok(()) };
        assert!(!self.options.strict, "{what} of {ops} operations and {bytes} bytes is over the limit");
        Err(StoreError::TooLarge { what, size, max })
    }

    /// Why a task is not created, if it is not.
    pub(super) fn refusal(&self, new: &NewTask) -> Option<SubmitOutcome> {
        if let Some(stored) = self.tasks.get(&new.id)
            && self.options.invariants.on(Invariant::RequestIdKey)
        {
            let same = stored.fingerprint.agrees(new.fingerprint);
            return Some(if same { SubmitOutcome::Duplicate } else { SubmitOutcome::RequestIdReused });
        }
        if let Some(task) = self.holder(new) {
            return Some(SubmitOutcome::Exists { task });
        }
        let len_max = u64::from(new.queue_len_max?);
        let waiting = self.counts.get(&new.spec.head.queue).map_or(0, |by_status| {
            Status::ALL.iter().filter(|s| s.is_waiting()).map(|s| by_status[usize::from(s.code())]).sum()
        });
        (waiting >= len_max).then_some(SubmitOutcome::QueueFull)
    }

    /// The task that holds the unique key of a new one.
    fn holder(&self, new: &NewTask) -> Option<TaskId> {
        let &(task, until) = self.uniques.get(&unique_key(new)?)?;
        let held = match until {
            Some(until) => until > new.keyed_at(),
            None => self.tasks.get(&task).is_some_and(|task| !task.state.status.is_final()),
        };
        (held && self.options.invariants.on(Invariant::UniqueKey)).then_some(task)
    }

    /// Stores a task that nothing speaks against. Answers its arrival number and how many keys that took.
    pub(super) fn insert(&mut self, new: &NewTask, filling: bool) -> (Seq, usize) {
        // Only while `Invariant::RequestIdKey` is off is there one whose place it takes.
        self.forget(new.id);
        let lane = self.lanes.entry(new.id.lane()).or_default();
        let hole = if filling { lane.holes.pop() } else { None };
        let seq = hole.unwrap_or_else(|| lane.next_seq());
        let task = StoredTask {
            seq,
            head: Arc::clone(&new.spec.head),
            body: Some(Arc::clone(&new.spec.body)),
            fingerprint: new.fingerprint,
            state: new.state(),
            result: None,
            attempts: BTreeMap::new(),
            line: new.spec.head.line(),
            body_bytes: new.spec.body_bytes(),
            unique: unique_key(new),
        };
        // State, spec and arrival; and its places.
        let keys = 3 + lane.enter(task.place(new.id), task.deadline(), new.id);
        let keys = keys + 2 * usize::from(new.unique.is_some());
        if let (Some(key), Some(unique)) = (&task.unique, &new.unique) {
            self.uniques.insert(key.clone(), (new.id, unique.until));
        }
        lane.arrivals.insert(seq, new.id);
        self.by_time.insert(TaskCursor { created_at: new.created_at, id: new.id });
        self.count(&task.head.queue, task.state.status, 1);
        let (head, call) = (Arc::clone(&task.head), self.calls);
        self.tasks.insert(new.id, task);
        let unique = new.unique.clone();
        self.record(|| HistoryEvent::Created { task: new.id, head, seq, call, unique });
        (seq, keys)
    }

    pub(super) fn count(&mut self, queue: &QueueKey, status: Status, change: i64) {
        let by_status = match self.counts.get_mut(queue) {
            Some(by_status) => by_status,
            None => self.counts.entry(queue.clone()).or_default(),
        };
        let count = &mut by_status[usize::from(status.code())];
        *count = count.checked_add_signed(change).expect("a task is counted before it is taken away");
    }

    /// Takes a task out of everything.
    pub(super) fn forget(&mut self, id: TaskId) {
        let Some(old) = self.tasks.remove(&id) else { return };
        let lane = self.lanes.entry(id.lane()).or_default();
        lane.leave(old.place(id), old.deadline());
        lane.arrivals.remove(&old.seq);
        self.by_time.remove(&TaskCursor { created_at: old.state.created_at, id });
        self.count(&old.head.queue, old.state.status, -1);
        // Another task may have taken its key since.
        if let Some(key) = old.unique
            && self.uniques.get(&key).is_some_and(|(holder, _)| *holder == id)
        {
            self.uniques.remove(&key);
        }
    }
}

fn unique_key(new: &NewTask) -> Option<UniqueKey> {
    let unique = new.unique.as_ref()?;
    Some((new.id.lane(), new.spec.head.queue.clone(), unique.key.clone()))
}

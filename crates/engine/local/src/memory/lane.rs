//! The contents of a lane, and the places of its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tasklane_core::command::Command;
use tasklane_core::commit::{GroupOutcome, RecordKey};
use tasklane_core::id::{AttemptNo, CommitNo, Epoch, LineKey, OwnerId, Seq, TaskId};
use tasklane_core::task::{
    AttemptRecord, Fingerprint, OrderKey, Place, TaskBody, TaskHead, TaskResult, TaskRow, TaskState,
};
use tasklane_core::time::Timestamp;
use tasklane_ports::LaneHead;

/// A task as the memory store keeps it.
#[derive(Clone, Debug)]
pub struct StoredTask {
    /// Its place in the order of arrival.
    pub seq: Seq,
    /// What scheduling looks at.
    pub head: Arc<TaskHead>,
    /// The rest of the spec, unless it was stripped.
    pub body: Option<Arc<TaskBody>>,
    /// Hash of the request that created it.
    pub fingerprint: Fingerprint,
    /// What changes.
    pub state: TaskState,
    /// The last answer of the executor.
    pub result: Option<Arc<TaskResult>>,
    /// Ended attempts with a row of their own.
    pub attempts: BTreeMap<AttemptNo, AttemptRecord>,
    /// The line it waits in. Hashed once, because the head never changes.
    pub(super) line: LineKey,
    /// Size of the body, likewise.
    pub(super) body_bytes: usize,
    /// The unique key that it took.
    pub(super) unique: Option<super::state::UniqueKey>,
}

impl StoredTask {
    pub(super) fn row(&self, id: TaskId, body_bytes_max: usize) -> TaskRow {
        let body = self.body.clone().filter(|_| self.body_bytes <= body_bytes_max);
        TaskRow { id, seq: self.seq, head: Arc::clone(&self.head), body, state: self.state.clone() }
    }

    /// Where it is found in its lane.
    pub(super) fn place(&self, id: TaskId) -> PlaceKey {
        match self.state.place() {
            Place::Ready => PlaceKey::Ready(
                self.line,
                OrderKey { rank: self.head.priority.rank(), due: self.state.due, seq: self.seq },
            ),
            Place::Delayed => PlaceKey::Delayed(self.state.due, self.seq),
            Place::InFlight => PlaceKey::InFlight(id),
            Place::Done => PlaceKey::Done,
        }
    }

    /// Where it is found by its start deadline.
    pub(super) fn deadline(&self) -> Option<(Timestamp, Seq)> {
        let start_by = self.state.start_by.filter(|_| self.state.status.is_waiting())?;
        Some((start_by, self.seq))
    }
}

/// A place of a task with its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceKey {
    Ready(LineKey, OrderKey),
    Delayed(Timestamp, Seq),
    InFlight(TaskId),
    Done,
}

/// The contents of a lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) epoch: Epoch,
    pub(super) owner: Option<OwnerId>,
    pub(super) commit: CommitNo,
    pub(super) failures: u32,
    /// Of the last commit, for its repetition.
    pub(super) outcomes: Vec<GroupOutcome>,
    /// The last number given to a task or an inbox row.
    pub(super) last: Seq,
    /// Numbers that were passed over and come later. Only ever filled while `Invariant::ArrivalsOrder` is off.
    pub(super) holes: Vec<Seq>,
    pub(super) arrivals: BTreeMap<Seq, TaskId>,
    pub(super) inbox: BTreeMap<Seq, Command>,
    pub(super) records: BTreeMap<RecordKey, Vec<u8>>,
    pub(super) ready: BTreeMap<(LineKey, OrderKey), TaskId>,
    pub(super) delayed: BTreeMap<(Timestamp, Seq), TaskId>,
    pub(super) in_flight: BTreeSet<TaskId>,
    pub(super) expiring: BTreeMap<(Timestamp, Seq), TaskId>,
}

impl Lane {
    pub(super) fn head(&self) -> LaneHead {
        LaneHead { epoch: self.epoch, owner: self.owner, commit: self.commit, failures: self.failures }
    }

    pub(super) fn next_seq(&mut self) -> Seq {
        self.last = self.last.next();
        self.last
    }

    /// Enters a task that is in none of the places. Answers how many keys that took.
    pub(super) fn enter(&mut self, place: PlaceKey, deadline: Option<(Timestamp, Seq)>, id: TaskId) -> usize {
        let placed = match place {
            PlaceKey::Ready(line, order) => self.ready.insert((line, order), id).is_none(),
            PlaceKey::Delayed(due, seq) => self.delayed.insert((due, seq), id).is_none(),
            PlaceKey::InFlight(id) => self.in_flight.insert(id),
            PlaceKey::Done => return 0,
        };
        assert!(placed, "the place of task {id} is taken");
        if let Some(deadline) = deadline {
            self.expiring.insert(deadline, id);
        }
        1 + usize::from(deadline.is_some())
    }

    /// Moves a task from where it was to where it is now. Answers how many keys that took.
    pub(super) fn relocate(
        &mut self,
        id: TaskId,
        (old, old_deadline): (PlaceKey, Option<(Timestamp, Seq)>),
        (new, new_deadline): (PlaceKey, Option<(Timestamp, Seq)>),
    ) -> usize {
        let mut keys = 0;
        if old != new {
            keys += self.leave(old, None);
            keys += self.enter(new, None, id);
        }
        if old_deadline != new_deadline {
            if let Some(deadline) = old_deadline {
                self.expiring.remove(&deadline);
                keys += 1;
            }
            if let Some(deadline) = new_deadline {
                self.expiring.insert(deadline, id);
                keys += 1;
            }
        }
        keys
    }

    /// Takes a task out of its places. Answers how many keys that took.
    pub(super) fn leave(&mut self, place: PlaceKey, deadline: Option<(Timestamp, Seq)>) -> usize {
        let left = match place {
            PlaceKey::Ready(line, order) => self.ready.remove(&(line, order)).is_some(),
            PlaceKey::Delayed(due, seq) => self.delayed.remove(&(due, seq)).is_some(),
            PlaceKey::InFlight(id) => self.in_flight.remove(&id),
            PlaceKey::Done => return 0,
        };
        assert!(left, "a task was not in its place {place:?}");
        if let Some(deadline) = deadline {
            self.expiring.remove(&deadline);
        }
        1 + usize::from(deadline.is_some())
    }
}

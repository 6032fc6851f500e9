//! Commits: the numbered writes of an owner, made of groups. A group is the atomic unit: one task's change
//! and everything that must go with it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CommitNo, Epoch, LaneId, OwnerId, Seq, TaskId};
use crate::status::{Path, Version, check_path};
use crate::task::{AttemptRecord, NewTask, TaskResult, TaskState};

/// The writes of one transaction of an owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// The lane written to.
    pub lane: LaneId,
    /// The owner's epoch …
    pub epoch: Epoch,
    /// … and identity: both must be the stored ones.
    pub owner: OwnerId,
    /// One more than the last commit. A repeated commit keeps its number and its groups, and the store
    /// answers with the first outcome.
    pub number: CommitNo,
    /// The changes. Shared, because a commit is kept until its outcome is known.
    pub groups: Arc<[Group]>,
    /// Arrivals up to here have been seen by the owner; the index of arrivals may be trimmed to it.
    pub cursor: Seq,
}

/// The atomic unit of a commit. If its condition does not hold, this group alone is skipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// A task to create. If it exists already, or is refused, the rest of the group is skipped.
    pub insert: Option<Box<NewTask>>,
    /// A change of a task (of the inserted one, where there is one).
    pub change: Option<TaskChange>,
    /// Inbox rows that this group has dealt with.
    pub inbox_done: Vec<Seq>,
    /// Records of the lane to write or remove.
    pub records: Vec<RecordChange>,
}

/// A change of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskChange {
    /// Which one.
    pub task: TaskId,
    /// The version that must be stored now, or the group is skipped.
    pub expected: Version,
    /// The statuses passed through since. Empty when only other fields change.
    pub path: Path,
    /// The state at the end of the path.
    pub state: TaskState,
    /// Attempts that ended on the way without ending the task.
    pub ended: Vec<AttemptRecord>,
    /// The answer of the executor.
    pub result: Option<Box<TaskResult>>,
}

impl TaskChange {
    /// Whether the store may apply the change: the expected version is stored, the status table allows the
    /// path, and the path ends in the new state. A final task never changes, even under an empty path.
    pub fn fits(&self, stored: Version) -> bool {
        !stored.status.is_final()
            && self.expected == stored
            && check_path(stored, &self.path) == Ok(self.state.version())
    }
}

/// A small keyed value of a lane that its owner alone changes: the time of a rate, the applied version of a
/// policy, the completion of a watched task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordChange {
    /// Which one.
    pub key: RecordKey,
    /// Its new value; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// Names a record of a lane. Records of one kind are loaded together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordKey {
    /// The kind of record.
    pub kind: RecordKind,
    /// The key among the records of that kind.
    pub key: String,
}

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum RecordKind {
    /// The stored time of a rate, by queue, limit and key.
    Rate = 1,
    /// The policy version that the lane applies to a queue.
    AppliedPolicy = 2,
    /// The completion of a watched task, until a server has handled it.
    #[serde(rename = "Ended")]
    Completion = 3,
}

impl RecordKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rate, Self::AppliedPolicy, Self::Completion];

    /// The number under which it is stored.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Back from [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl Group {
    /// An upper bound of the keys or rows that a store writes for this group: the unit of
    /// `StoreCapabilities::ops_max`.
    pub fn ops(&self) -> usize {
        // A change: state, old and new index entry, result, and the index of start deadlines if it has one.
        let insert = self.insert.as_ref().map_or(0, |task| task.ops());
        let change = self
            .change
            .as_ref()
            .map_or(0, |change| 4 + usize::from(change.state.start_by.is_some()) + change.ended.len());
        insert + change + self.inbox_done.len() + self.records.len()
    }

    /// An upper bound of the bytes it writes, but for the fixed size of rows.
    pub fn bytes(&self) -> usize {
        let insert = self.insert.as_ref().map_or(0, |task| task.bytes());
        let change = self.change.as_ref().map_or(0, |change| {
            let error = change.state.error.as_ref().map_or(0, |e| e.message.len());
            let ended: usize =
                change.ended.iter().map(|a| 256 + a.error.as_ref().map_or(0, |e| e.message.len())).sum();
            512 + error + ended + change.result.as_ref().map_or(0, |r| r.bytes())
        });
        let records: usize =
            self.records.iter().map(|r| r.key.key.len() + r.value.as_ref().map_or(0, Vec::len) + 16).sum();
        insert + change + records + 16 * self.inbox_done.len()
    }
}

/// The outcome of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupOutcome {
    /// All of it was written. `seq` is the arrival number of the inserted task.
    Applied {
        /// Arrival number of the inserted task.
        seq: Option<Seq>,
    },
    /// The insert found the task there already; nothing of the group was written.
    NotCreated(SubmitOutcome),
    /// The task was not as expected; nothing of the group was written.
    Mismatch {
        /// The stored version; `None` if there is no such task.
        found: Option<Version>,
    },
}

/// The outcome of a submitted task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubmitOutcome {
    /// Stored, and durable.
    Created {
        /// Its place in the order of arrival.
        seq: Seq,
    },
    /// The same request was stored before.
    Duplicate,
    /// Another request with the same id was stored before.
    RequestIdReused,
    /// Another task holds its unique key.
    Exists {
        /// Which one.
        task: TaskId,
    },
    /// The queue holds its maximum of waiting tasks.
    QueueFull,
}

/// Who owns a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneHead {
    /// Counts the owners. 0 for a lane without a claim.
    pub epoch: Epoch,
    /// The current owner, if the lane was ever claimed.
    pub owner: Option<OwnerId>,
    /// Its last commit.
    pub commit: CommitNo,
    /// How many owners in a row have failed on this lane, as recorded by the last claim.
    pub failures: u32,
}

/// A claim of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimLane {
    /// Which lane.
    pub lane: LaneId,
    /// The new owner, random for each claim.
    pub owner: OwnerId,
    /// The epoch that the claimer has seen.
    pub seen: Epoch,
    /// Stored with the claim: see [`LaneHead::failures`].
    pub failures: u32,
}

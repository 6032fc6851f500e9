//! The record of every applied change, for a checker.

use std::sync::Arc;

use tasklane_core::id::{AttemptNo, CommitNo, Epoch, LaneId, OwnerId, Seq, SessionId, TaskId};
use tasklane_core::status::{Path, Status, Version};
use tasklane_core::task::{TaskHead, TaskState, Unique};

/// Something that was applied. Kept only where `MemoryOptions::history` is set.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryEvent {
    /// A task was stored.
    Created {
        /// Which one.
        task: TaskId,
        /// What scheduling knows of it.
        head: Arc<TaskHead>,
        /// Its place in the order of arrival.
        seq: Seq,
        /// The writing call that did it, counted from 1.
        call: u64,
        /// The unique key that it took.
        unique: Option<Unique>,
    },
    /// A task was changed.
    Changed {
        /// Which one.
        task: TaskId,
        /// Its lane,
        lane: LaneId,
        /// … the epoch
        epoch: Epoch,
        /// … and the identity of the owner that wrote it,
        owner: OwnerId,
        /// … in this commit.
        number: CommitNo,
        /// The stored value before.
        from: Version,
        /// The way from there.
        path: Path,
        /// The stored value now.
        to: StateSummary,
    },
    /// A command was removed from the inbox, by a group that applied.
    InboxDone {
        /// Its task.
        task: TaskId,
        /// Its place in the order of arrival.
        seq: Seq,
        /// Its lane.
        lane: LaneId,
    },
    /// A lane got a new owner. Not recorded again when the claim is repeated.
    Claimed {
        /// Which lane.
        lane: LaneId,
        /// Its new epoch.
        epoch: Epoch,
        /// Its new owner.
        owner: OwnerId,
    },
}

/// The part of a state that invariants are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSummary {
    /// Where the task is in its life.
    pub status: Status,
    /// Its current or last attempt.
    pub attempt: AttemptNo,
    /// Who has or had that attempt.
    pub session: Option<SessionId>,
    /// A cancel was accepted.
    pub cancel_requested: bool,
    /// Attempts lost after they had started.
    pub lost: u32,
    /// Attempts lost before they had started.
    pub lost_before_start: u32,
}

impl StateSummary {
    /// Of a state.
    pub fn of(state: &TaskState) -> Self {
        Self {
            status: state.status,
            attempt: state.attempt,
            session: state.session,
            cancel_requested: state.cancel_requested,
            lost: state.lost,
            lost_before_start: state.lost_before_start,
        }
    }
}

//! A task in the memory of a lane.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::RecordChange;
use crate::id::{DispatchNo, Seq, SessionId, TaskId};
use crate::message::AttemptId;
use crate::status::{Path, Status, Step, Version};
use crate::task::{AttemptRecord, NewTask, OrderKey, TaskBody, TaskHead, TaskResult, TaskRow, TaskState};
use crate::time::Timestamp;

use super::input::SubmitToken;

/// Key of an entry, line, queue, worker, class or limit in its slab.
pub(super) type Handle = usize;

/// A task in memory: its decided state, and the part of it that is not yet written.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: TaskId,
    /// Place in the order of arrival; provisional (above all real ones) until the insert was committed.
    pub(super) seq: Seq,
    pub(super) head: Arc<TaskHead>,
    /// `None` where the body is large: the driver reads it when the task is sent.
    pub(super) body: Option<Arc<TaskBody>>,
    pub(super) state: TaskState,
    pub(super) spot: Spot,
    pub(super) line: Handle,
    /// Where its attempt is, while it is in flight.
    pub(super) flight: Option<Flight>,
    /// The stored version after the commits under way: the next change must name it.
    pub(super) expected: Version,
    /// Changes that no commit has taken yet. Boxed, because most tasks in memory wait and have nothing to
    /// write.
    pub(super) pending: Option<Box<PendingWrite>>,
    /// The list of entries to write that has it.
    pub(super) write_urgency: WriteUrgency,
    /// A commit under way contains it.
    pub(super) writing: bool,
}

/// Whether an entry has something to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteUrgency {
    No,
    /// No answer waits for the write.
    Lazy,
    /// It goes with the next commit.
    Next,
}

/// Where in memory an entry is kept besides the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In the window of its line.
    Window,
    /// Among the delayed tasks.
    Delayed,
    /// At a worker.
    Worker,
    /// Nowhere: final, or waiting to be dropped.
    Nowhere,
}

/// The live attempt of a task.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) worker: Handle,
    /// Its dispatch number under this owner; 0 while it has none (taken over from an earlier owner).
    pub(super) k: DispatchNo,
    /// Limits that count it.
    pub(super) limits: SmallVec<[Handle; 2]>,
    /// When it was last sent; `None` while the assignment is not committed.
    pub(super) sent_at: Option<Timestamp>,
    /// Heartbeats that did not name it though they should have.
    pub(super) beats_missing: u8,
    /// Recalls sent since the worker's last message about it.
    pub(super) recalls: u8,
    /// When it started, by this owner's clock.
    pub(super) running_since: Option<Timestamp>,
}

/// Changes of an entry that no commit has taken yet.
#[derive(Debug, Default)]
pub(super) struct PendingWrite {
    pub(super) path: Path,
    /// Order of the assignment that the path holds; 0 for none.
    pub(super) assigned: u64,
    /// State fields changed without a step.
    pub(super) touched: bool,
    pub(super) insert: Option<Box<NewTask>>,
    pub(super) submit: Option<(SubmitToken, usize)>,
    pub(super) ended: Vec<AttemptRecord>,
    pub(super) result: Option<Box<TaskResult>>,
    pub(super) inbox_done: Vec<Seq>,
    pub(super) records: Vec<RecordChange>,
    /// A report to acknowledge once this is written; rarely more than one.
    pub(super) ack: SmallVec<[(SessionId, AttemptId); 1]>,
}

impl Entry {
    /// From a row of the store.
    pub(super) fn from_row(row: TaskRow, line: Handle) -> Self {
        let expected = row.state.version();
        Self {
            id: row.id,
            seq: row.seq,
            head: row.head,
            body: row.body,
            state: row.state,
            spot: Spot::Nowhere,
            line,
            flight: None,
            expected,
            pending: None,
            write_urgency: WriteUrgency::No,
            writing: false,
        }
    }

    /// From a submission; not in the store yet.
    pub(super) fn from_new(task: NewTask, seq: Seq, line: Handle, submit: (SubmitToken, usize)) -> Self {
        let mut entry = Self {
            id: task.id,
            seq,
            head: task.spec.head.clone(),
            body: Some(task.spec.body.clone()),
            state: task.state(),
            spot: Spot::Nowhere,
            line,
            flight: None,
            expected: Version::NEW,
            pending: None,
            write_urgency: WriteUrgency::No,
            writing: false,
        };
        let pending = entry.change();
        pending.submit = Some(submit);
        pending.insert = Some(Box::new(task));
        entry
    }

    /// Its position in its line.
    pub(super) fn order(&self) -> OrderKey {
        OrderKey { rank: self.head.priority.rank(), due: self.state.due, seq: self.seq }
    }

    /// Its position among the delayed tasks.
    pub(super) fn delayed_key(&self) -> (Timestamp, Seq) {
        (self.state.due, self.seq)
    }

    /// Its current or last attempt.
    pub(super) fn attempt(&self) -> AttemptId {
        AttemptId { task: self.id, number: self.state.attempt }
    }

    /// The changes to write next.
    pub(super) fn change(&mut self) -> &mut PendingWrite {
        self.pending.get_or_insert_default()
    }

    /// Whether every decision about it is durable.
    pub(super) fn is_clean(&self) -> bool {
        !self.writing && self.write_urgency == WriteUrgency::No
    }

    /// Takes a step along the status table, and keeps the times that go with it.
    pub(super) fn enter(&mut self, status: Status, at: Timestamp) {
        assert!(
            self.state.status.successors().contains(&status),
            "task {} cannot go from {} to {status}",
            self.id,
            self.state.status
        );
        match status {
            Status::Scheduled => {
                self.state.attempt = self.state.attempt.next();
                self.state.scheduled_at = Some(at);
                self.state.dispatched_at = None;
                self.state.started_at = None;
                self.state.error = None;
            }
            Status::Dispatched => self.state.dispatched_at = Some(at),
            Status::Running => self.state.started_at = Some(at),
            Status::Success | Status::Failed | Status::Cancelled => self.state.finished_at = Some(at),
            Status::Pending | Status::Retrying => {}
        }
        self.state.status = status;
        self.change().path.push(Step { status, at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_task_is_small() {
        assert!(size_of::<Entry>() <= 384, "{} bytes for each task in memory", size_of::<Entry>());
    }
}

//! Writing: decisions become commits. Changes gather while commits are under way; a task that changed several
//! times is written once. Where many changes wait, a second commit follows the first. There is one timer
//! only: changes that no answer waits for wait a moment for company.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::{Group, TaskChange};
use crate::id::{AttemptNo, Seq, SessionId, TaskId};
use crate::message::AttemptId;
use crate::task::{TaskHead, TaskState};
use crate::time::{Shift, Timestamp};

use super::entry::{Entry, Handle, WriteUrgency};
use super::input::{Effect, SubmitToken};
use super::machine::Lane;

/// A commit under way: the subject of each of its groups.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) items: Vec<BatchItem>,
}

/// The subject of a group.
#[derive(Debug)]
pub(super) enum BatchItem {
    /// A task in memory.
    Entry {
        entry: Handle,
        /// The attempt as of this group.
        attempt: AttemptNo,
        submit: Option<(SubmitToken, usize)>,
        acks: SmallVec<[(SessionId, AttemptId); 1]>,
        inbox_done: Vec<Seq>,
    },
    /// A new task that is not kept in memory.
    Bare {
        submit: (SubmitToken, usize),
        task: TaskId,
        head: Arc<TaskHead>,
        due: Timestamp,
        delayed: bool,
        /// The sum of clock steps under which its durations were made, if it has any.
        shift: Option<Shift>,
    },
    /// Records, or inbox rows without effect.
    Loose { inbox_done: Vec<Seq> },
}

/// While many urgent changes are written, lazy changes wait this many times as long.
const BUSY_PATIENCE: u32 = 10;

impl Lane {
    /// Notes that an entry has something to write. Urgent: an answer waits for it.
    pub(super) fn mark(&mut self, entry: Handle, urgent: bool) {
        let Entry { write_urgency, writing, .. } = &mut self.entries[entry];
        match (urgent, *write_urgency) {
            (true, WriteUrgency::No | WriteUrgency::Lazy) => {
                *write_urgency = WriteUrgency::Next;
                self.unwritten.push(entry);
                if *writing {
                    self.overtaken = self.begun;
                }
            }
            (false, WriteUrgency::No) => {
                *write_urgency = WriteUrgency::Lazy;
                self.lazy.push_back((self.now, entry));
            }
            (true, WriteUrgency::Next) | (false, WriteUrgency::Lazy | WriteUrgency::Next) => {}
        }
        self.urgent |= urgent;
    }

    /// Lists the entries that have waited for long enough. Most never get here: they have changed again, and
    /// were written with that change.
    fn list_lazy(&mut self) {
        let busy = self.unwritten.len() >= self.options.ahead;
        let patience = self.options.lazy_write * if busy { BUSY_PATIENCE } else { 1 };
        while let Some(&(since, entry)) = self.lazy.front() {
            let waits =
                self.entries.get(entry).is_some_and(|entry| entry.write_urgency == WriteUrgency::Lazy);
            if waits {
                if !self.releasing && self.now < since + patience {
                    break;
                }
                self.mark(entry, true);
            }
            self.lazy.pop_front();
        }
    }

    /// Adds a group that belongs to no entry.
    pub(super) fn write_loose(&mut self, group: Group) {
        self.loose.push(group);
        self.urgent = true;
    }

    /// Whether one more commit may begin now. A second commit follows the first while that is under way, so
    /// that the store need not wait for this machine between the two. No task is in both: the first may not
    /// leave a task in the version that the second expects. Tasks that depend on such a task wait too, so
    /// that ends are written before the assignments that they made room for.
    fn may_commit(&self, waiting: usize) -> bool {
        let settled = self.begun - self.batches.len() as u64;
        match self.batches.len() {
            0 => true,
            1 => waiting >= self.options.ahead && self.overtaken <= settled,
            _ => false,
        }
    }

    /// Starts a commit, if there is reason to.
    pub(super) fn flush(&mut self, effects: &mut Vec<Effect>) {
        self.list_lazy();
        let waiting = self.loose.len() + self.unwritten.len() + self.bare_inserts.len();
        if !self.urgent || !self.may_commit(waiting) {
            return;
        }
        let room = waiting.min(self.options.batch.max(self.loose.len()));
        let mut groups = Vec::with_capacity(room);
        let mut items = Vec::with_capacity(room);
        for group in self.loose.drain(..) {
            items.push(BatchItem::Loose { inbox_done: group.inbox_done.clone() });
            groups.push(group);
        }
        // Ends first, then assignments in the order of their decisions: so whichever part of the commits
        // becomes durable, no limit or rate looks exceeded to the next owner. New tasks without an assignment
        // come after the assigned ones, and tasks behind the window last: arrival numbers follow this order.
        let mut unwritten = std::mem::take(&mut self.unwritten);
        unwritten.sort_by_cached_key(|&entry| self.write_order(entry));
        self.unwritten = unwritten;
        let batch = self.options.batch;
        let bare = self.bare_inserts.len().min(batch / 4);
        let room = batch.saturating_sub(groups.len() + bare);
        let written = self.cut_unwritten(room, batch / 4);
        for entry in written {
            self.write_entry(entry, &mut groups, &mut items);
        }
        let bare = batch.saturating_sub(groups.len()).max(bare).min(self.bare_inserts.len());
        for insert in self.bare_inserts.drain(..bare) {
            let (head, due) = (insert.task.spec.head.clone(), insert.task.due);
            let TaskState { delayed, shift, .. } = insert.task.state();
            let (submit, task) = (insert.submit, insert.task.id);
            items.push(BatchItem::Bare { submit, task, head, due, delayed, shift });
            groups.push(Group { insert: Some(insert.task), ..Group::default() });
        }
        let left = !self.unwritten.is_empty() || !self.bare_inserts.is_empty();
        self.urgent = left;
        if groups.is_empty() {
            return;
        }
        self.begun += 1;
        self.counters.commit_ahead += u64::from(!self.batches.is_empty());
        self.batches.push_back(Batch { items });
        effects.push(Effect::Commit { groups, cursor: self.cursor });
    }

    /// Takes the next entries out of the sorted list. New tasks without an assignment come last, but some of
    /// them go with each commit: their clients wait for it.
    fn cut_unwritten(&mut self, room: usize, reserved: usize) -> Vec<Handle> {
        let is_first = |&entry: &Handle| self.write_order(entry) < u64::MAX;
        let split = self.unwritten.partition_point(is_first);
        let new = self.unwritten.len() - split;
        let first = split.min(room.saturating_sub(reserved.min(new)));
        let last = new.min(room - first);
        let mut rest = self.unwritten.split_off(first);
        let new_written = rest.drain(split - first..split - first + last).collect::<Vec<_>>();
        let mut written = std::mem::replace(&mut self.unwritten, rest);
        written.extend(new_written);
        written
    }

    fn write_order(&self, entry: Handle) -> u64 {
        match self.entries.get(entry).and_then(|entry| entry.pending.as_ref()) {
            Some(pending) if pending.assigned > 0 => pending.assigned,
            Some(pending) if pending.insert.is_some() => u64::MAX,
            _ => 0,
        }
    }

    fn write_entry(&mut self, handle: Handle, groups: &mut Vec<Group>, items: &mut Vec<BatchItem>) {
        let Some(entry) = self.entries.get_mut(handle) else { return };
        if std::mem::replace(&mut entry.write_urgency, WriteUrgency::No) == WriteUrgency::No {
            return;
        }
        let after = entry.state.version();
        let pending = *entry.pending.take().unwrap_or_default();
        let changes = !pending.path.is_empty() || pending.touched;
        let group = Group {
            change: changes.then(|| TaskChange {
                task: entry.id,
                expected: std::mem::replace(&mut entry.expected, after),
                path: pending.path,
                state: entry.state.clone(),
                ended: pending.ended,
                result: pending.result,
            }),
            insert: pending.insert,
            inbox_done: pending.inbox_done.clone(),
            records: pending.records,
        };
        if group.change.as_ref().is_some_and(|change| change.path.len() > 1) {
            self.counters.path_coalesced += 1;
        }
        entry.writing = true;
        items.push(BatchItem::Entry {
            entry: handle,
            attempt: after.attempt,
            submit: pending.submit,
            acks: pending.ack,
            inbox_done: pending.inbox_done,
        });
        groups.push(group);
    }
}

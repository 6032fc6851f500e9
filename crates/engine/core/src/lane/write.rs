//! What is decided becomes a commit. Changes gather while one is under way; a task that changed several times is
//! written once. Where much is waiting, a second one follows the first. There are no timers but
//! one: changes that nobody waits for wait a moment for company.

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

/// A commit under way: what each of its groups was about.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) items: Vec<BatchItem>,
}

/// What a group was about.
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
        /// What its durations were made under, if it has any.
        shift: Option<Shift>,
    },
    /// Records, or inbox rows without effect.
    Loose { inbox_done: Vec<Seq> },
}

/// While much is written that somebody waits for, the rest waits longer.
const BUSY_PATIENCE: u32 = 10;

impl Lane {
    /// Notes that an entry has something to write. Urgent: somebody waits for it.
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

    /// Lists what has waited for long enough. Most of it never gets here: it has changed again, and was written with that.
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

    /// Whether there may be one more commit now. One follows another that is under way so that the store need not wait
    /// for this machine between the two. No task is in both: what the first one leaves of a task may not be what was
    /// expected. And what waits for such a task waits too, so that ends are written before what they made room for.
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
        // Ends first, then assignments in the order in which they were decided: so that whatever part of it all becomes
        // durable, no limit or rate looks exceeded to the next owner. New tasks that were not assigned come after those
        // that were, and those behind the window last: arrival numbers are given in this order.
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

    /// Takes what is written next out of the sorted list. New tasks that were not assigned come last, but some of them go
    /// with each commit: whoever submitted them waits for it.
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

//! Commands from the inbox. The owner judges each by the state of its task; the group that applies a command
//! removes it.

use crate::command::{Command, InboxRow};
use crate::commit::Group;
use crate::id::{Seq, TaskId};
use crate::invariant::Invariant;
use crate::message::ToWorker;
use crate::status::Status;

use super::entry::{Handle, Spot};
use super::machine::Lane;

impl Lane {
    pub(super) fn on_command(&mut self, row: &InboxRow) {
        if !self.inbox_known.insert(row.seq) {
            return;
        }
        match row.command {
            Command::Cancel { task } => {
                if let Some(&entry) = self.by_id.get(&task) {
                    self.cancel(entry, row.seq);
                } else {
                    self.counters.cancel_of_paged_task += 1;
                    self.commands.entry(task).or_default().push(row.seq);
                    self.commands_unread.push(task);
                }
            }
        }
    }

    /// A read for tasks with commands is answered.
    pub(super) fn on_tasks_read(&mut self, ids: &[TaskId]) {
        for id in ids {
            for seq in self.commands.remove(id).unwrap_or_default() {
                match self.by_id.get(id) {
                    Some(&entry) => self.cancel(entry, seq),
                    None => self.dismiss(seq),
                }
            }
        }
    }

    /// Removes a command that has no effect.
    fn dismiss(&mut self, seq: Seq) {
        self.counters.cancel_too_late += 1;
        self.write_loose(Group { inbox_done: vec![seq], ..Group::default() });
    }

    fn cancel(&mut self, handle: Handle, seq: Seq) {
        let entry = &self.entries[handle];
        let status = entry.state.status;
        if status.is_final() || entry.state.cancel_requested {
            // The change that makes the command needless may not be written yet, so the removal goes with it.
            self.counters.cancel_too_late += 1;
            self.entries[handle].change().inbox_done.push(seq);
            return self.mark(handle, true);
        }
        if status.is_in_flight() {
            if !self.options.invariants.on(Invariant::CancelRequestedKept) {
                let (attempt, worker) = (entry.attempt(), entry.flight.as_ref().map(|f| f.worker));
                if let Some(worker) = worker {
                    self.tell(worker, ToWorker::Stop { attempt });
                }
                return self.dismiss(seq);
            }
            let entry = &mut self.entries[handle];
            entry.state.cancel_requested = true;
            entry.change().touched = true;
            entry.change().inbox_done.push(seq);
            return self.mark(handle, true);
        }
        if status == Status::Retrying {
            self.counters.cancel_of_retrying += 1;
            if !self.options.invariants.on(Invariant::CancelWaitingRetry) {
                return self.dismiss(seq);
            }
        }
        self.leave_spot(handle);
        self.entries[handle].change().inbox_done.push(seq);
        self.finish(handle, Status::Cancelled, None);
    }

    /// Takes a waiting entry out of its window or the delayed tasks.
    pub(super) fn leave_spot(&mut self, handle: Handle) {
        match self.entries[handle].spot {
            Spot::Window => self.take_from_line(handle),
            Spot::Delayed => {
                let key = self.entries[handle].delayed_key();
                self.delayed.remove(&key);
                self.entries[handle].spot = Spot::Nowhere;
            }
            Spot::Worker | Spot::Nowhere => {}
        }
    }
}

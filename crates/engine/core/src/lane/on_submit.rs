//! Tasks from the API of the same process: insertion and first assignment become one group of one commit.

use crate::commit::SubmitOutcome;
use crate::id::Seq;
use crate::invariant::Invariant;
use crate::task::{NewTask, OrderKey};
use crate::time::{Shift, Timestamp};

use super::entry::{Entry, Handle};
use super::input::{Effect, SubmitToken};
use super::lines::settled;
use super::machine::Lane;
use super::on_page::settled_delayed;

/// A submission whose answer is not complete.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) outcomes: Vec<Option<SubmitOutcome>>,
    pub(super) missing: usize,
}

/// A new task that stays out of memory: its line's window is full, or another entry has its id.
#[derive(Debug)]
pub(super) struct BareInsert {
    pub(super) task: Box<NewTask>,
    pub(super) submit: (SubmitToken, usize),
}

impl Lane {
    pub(super) fn on_submit(&mut self, token: SubmitToken, tasks: Vec<NewTask>, effects: &mut Vec<Effect>) {
        assert!(self.loading.is_complete(), "tasks are submitted to a loaded lane only");
        if tasks.is_empty() {
            return effects.push(Effect::Submitted { token, outcomes: Vec::new() });
        }
        let submission = Submission { outcomes: vec![None; tasks.len()], missing: tasks.len() };
        self.submissions.insert(token, submission);
        self.urgent = true;
        for (item, task) in tasks.into_iter().enumerate() {
            self.submit_one(task, (token, item));
            // Tasks that can run at once never reach the end of a window.
            if (item + 1).is_multiple_of(self.window) {
                self.assign();
            }
        }
    }

    fn submit_one(&mut self, mut task: NewTask, submit: (SubmitToken, usize)) {
        if self.options.invariants.on(Invariant::KeysKeepLength) {
            task.anchor(self.now, self.clock.shift);
        } else {
            task.shift_by(Shift::ZERO, self.clock.shift);
        }
        let known = self.by_id.contains_key(&task.id);
        let line = if known || !self.options.insert_and_assign {
            None
        } else {
            self.intern_line(&task.spec.head, false)
        };
        // The owner learns from the outcome whether the task is new. Until then the task takes no place and
        // no part of a rate from another task.
        let counts =
            |&line: &Handle| self.cancels_newest(line) || (task.unique.is_some() && self.is_rated(line));
        let line = line.filter(|line| !counts(line));
        self.provisional_seq += 1;
        let seq = Seq(self.provisional_seq);
        // By the store's view, whatever this owner's clock shows: a task that has come due already is
        // released at once.
        let delayed = task.state().delayed;
        let keep = line.filter(|&line| {
            if delayed {
                self.keeps_delayed((task.due, seq))
            } else {
                let rank = task.spec.head.priority.rank();
                self.keeps_in_line(line, OrderKey { rank, due: task.due, seq })
            }
        });
        let Some(line) = keep else {
            self.bare_inserts.push(BareInsert { task: Box::new(task), submit });
            return;
        };
        let entry = self.insert_entry(Entry::from_new(task, seq, line, submit));
        self.mark(entry, true);
        if delayed {
            self.place_in_delayed(entry);
        } else {
            self.place_in_line(entry);
        }
    }

    /// Whether a new task is within the window of its line. A task behind it is left to the store, like a
    /// task submitted by another server.
    fn keeps_in_line(&mut self, handle: Handle, order: OrderKey) -> bool {
        let full = 2 * self.window;
        let line = &mut self.lines[handle];
        if !line.more && line.window.len() >= full {
            line.more = true;
            line.bound = line.window.last().map(|(last, _)| settled(last));
        }
        let keep = !line.more || line.bound.is_some_and(|bound| order <= bound);
        if !keep {
            line.miss(order);
            self.want_refill(handle);
        }
        keep
    }

    fn keeps_delayed(&mut self, key: (Timestamp, Seq)) -> bool {
        if !self.delayed_more && self.delayed.len() >= 2 * self.options.delayed_window {
            self.delayed_more = true;
            self.delayed_bound = self.delayed.last_key_value().map(|(&last, _)| settled_delayed(last));
        }
        let keep = !self.delayed_more || self.delayed_bound.is_some_and(|bound| key <= bound);
        if !keep {
            self.miss_delayed(key);
        }
        keep
    }
}

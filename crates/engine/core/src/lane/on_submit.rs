//! Tasks from the API of the same process: insertion and first assignment become one group of one commit.

use crate::commit::SubmitOutcome;
use crate::id::Seq;
use crate::task::NewTask;

use super::entry::Entry;
use super::input::SubmitToken;
use super::machine::Lane;

/// A submission whose answer is not complete.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) outcomes: Vec<Option<SubmitOutcome>>,
    pub(super) missing: usize,
}

/// A new task that need not be in memory: its line's window is full, or another entry has its id.
#[derive(Debug)]
pub(super) struct BareInsert {
    pub(super) task: Box<NewTask>,
    pub(super) submit: (SubmitToken, usize),
}

impl Lane {
    pub(super) fn on_submit(&mut self, token: SubmitToken, tasks: Vec<NewTask>) {
        assert!(self.loading.is_complete(), "tasks are submitted to a loaded lane only");
        let submission = Submission { outcomes: vec![None; tasks.len()], missing: tasks.len() };
        self.submissions.insert(token, submission);
        self.urgent |= !tasks.is_empty();
        for (item, task) in tasks.into_iter().enumerate() {
            self.submit_one(task, (token, item));
        }
    }

    fn submit_one(&mut self, task: NewTask, submit: (SubmitToken, usize)) {
        let known = self.by_id.contains_key(&task.id);
        let line = if known { None } else { self.intern_line(&task.spec.head, false) };
        let delayed = task.due > self.now;
        // A task behind the bound of its line is left to the store, like one that somebody else has submitted.
        let keep = line.filter(|&line| {
            if delayed {
                !self.delayed_more && self.delayed.len() < 2 * self.options.delayed_window
            } else {
                let line = &self.lines[line];
                !line.more && line.window.len() < 2 * self.options.window
            }
        });
        let Some(line) = keep else {
            if let Some(line) = line {
                if delayed {
                    self.delayed_missed |= self.delayed_reading;
                    self.delayed_more = true;
                } else {
                    self.lines[line].missed |= self.lines[line].reading;
                    self.lines[line].more = true;
                    self.lines[line].bound =
                        self.lines[line].window.last_key_value().map(|(&order, _)| order);
                    self.want_refill(line);
                }
            }
            self.bare_inserts.push(BareInsert { task: Box::new(task), submit });
            return;
        };
        self.provisional_seq += 1;
        let entry = self.insert_entry(Entry::from_new(task, Seq(self.provisional_seq), line, submit));
        self.mark(entry, true);
        let e = &mut self.entries[entry];
        if e.state.delayed && !delayed {
            e.state.delayed = false;
            e.pending.touched = true;
        }
        if delayed {
            self.place_in_delayed(entry);
        } else {
            self.place_in_line(entry);
        }
    }
}

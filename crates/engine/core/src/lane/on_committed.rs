//! The store has answered a commit: its messages are released.

use crate::commit::{GroupOutcome, SubmitOutcome};
use crate::id::{AttemptNo, Seq, SessionId, TaskId};
use crate::invariant::Invariant;
use crate::message::{AckReason, AttemptId, TaskEvent, ToWorker};

use crate::status::Status;

use super::entry::{Handle, Spot, WriteUrgency};
use super::input::{Effect, SubmitToken};
use super::machine::{BODY_BYTES_MAX, Lane};
use super::write::BatchItem;

impl Lane {
    pub(super) fn on_committed(&mut self, outcomes: Vec<GroupOutcome>, effects: &mut Vec<Effect>) {
        let batch = self.batches.pop_front().expect("an answer follows a commit");
        assert_eq!(batch.items.len(), outcomes.len(), "one outcome for each group");
        let mut created: Vec<Seq> = Vec::new();
        for (item, outcome) in batch.items.into_iter().zip(outcomes) {
            if let GroupOutcome::Applied { seq: Some(seq) } = outcome {
                created.push(seq);
            }
            match item {
                BatchItem::Entry { entry, attempt, submit, acks, inbox_done } => {
                    if let Some(submit) = submit {
                        self.answer(submit, &outcome, effects);
                    }
                    let id = self.entries[entry].id;
                    self.on_entry_written(entry, attempt, &outcome);
                    if matches!(outcome, GroupOutcome::Applied { .. }) {
                        for seq in inbox_done {
                            self.inbox_known.remove(&seq);
                        }
                        for (session, attempt) in acks {
                            self.ack(session, attempt, AckReason::Committed);
                        }
                    } else {
                        self.judge_again(id, &inbox_done);
                    }
                }
                BatchItem::Bare { submit, task, head, due, delayed, shift } => {
                    self.answer(submit, &outcome, effects);
                    if let GroupOutcome::Applied { seq: Some(seq) } = outcome {
                        self.changed.push(TaskEvent {
                            task,
                            queue: head.queue.clone(),
                            status: Status::Pending,
                            attempt: AttemptNo(0),
                            at: self.now,
                            // Children are followed for their ends.
                            composite: None,
                        });
                        self.left_in_store(&head, due, seq, delayed);
                        // The clock stepped while it was written.
                        if shift.is_some_and(|shift| shift != self.clock.shift) {
                            self.reread.insert(task);
                        }
                    } else if let Some(&line) = self.line_by_key.get(&head.line()) {
                        self.drop_line_if_empty(line);
                    }
                }
                BatchItem::Loose { inbox_done } => {
                    for seq in inbox_done {
                        self.inbox_known.remove(&seq);
                    }
                }
            }
        }
        self.follow(created);
    }

    /// Own inserts take arrival numbers too. As long as no foreign arrivals lie between, the cursor follows
    /// them, so that the owner need not read them back.
    fn follow(&mut self, mut created: Vec<Seq>) {
        created.sort_unstable();
        for seq in created {
            if seq == self.cursor.next() {
                self.cursor = seq;
            } else if seq > self.cursor {
                self.arrivals_wanted = true;
            }
        }
    }

    fn answer(
        &mut self,
        (token, item): (SubmitToken, usize),
        outcome: &GroupOutcome,
        effects: &mut Vec<Effect>,
    ) {
        let outcome = match outcome {
            GroupOutcome::Applied { seq } => SubmitOutcome::Created { seq: seq.unwrap_or_default() },
            GroupOutcome::NotCreated(outcome) => outcome.clone(),
            // An insert and its change are one group: there is no version that a new task could fail to have.
            GroupOutcome::Mismatch { found } => {
                unreachable!("an insert has no expected version, found {found:?}")
            }
        };
        let submission = self.submissions.get_mut(&token).expect("a submission is kept until it is answered");
        submission.outcomes[item] = Some(outcome);
        submission.missing -= 1;
        if submission.missing == 0 {
            let submission = self.submissions.remove(&token).expect("it was there just now");
            let outcomes = submission.outcomes.into_iter().flatten().collect();
            effects.push(Effect::Submitted { token, outcomes });
        }
    }

    fn on_entry_written(&mut self, handle: Handle, attempt: AttemptNo, outcome: &GroupOutcome) {
        self.entries[handle].writing = false;
        match outcome {
            GroupOutcome::Applied { seq } => {
                if let Some(seq) = *seq {
                    self.renumber(handle, seq);
                }
                self.tell_changed(handle);
                self.on_entry_applied(handle, attempt);
                // A later use reads the large body: memory has room for many tasks, not for many large ones.
                if let Some(entry) = self.entries.get_mut(handle).filter(|_| seq.is_some()) {
                    entry.body.take_if(|body| body.bytes() > BODY_BYTES_MAX);
                }
            }
            GroupOutcome::NotCreated(outcome) => {
                match outcome {
                    SubmitOutcome::Duplicate | SubmitOutcome::Created { .. } => {
                        self.counters.insert_duplicate += 1;
                    }
                    SubmitOutcome::RequestIdReused
                    | SubmitOutcome::Exists { .. }
                    | SubmitOutcome::QueueFull => {
                        self.counters.insert_refused += 1;
                    }
                }
                if self.options.invariants.on(Invariant::InsertOutcome) {
                    // The owner may have skipped the stored task earlier, because this entry had its id.
                    let id = self.entries[handle].id;
                    self.abandon(handle);
                    self.reread.insert(id);
                } else {
                    self.on_entry_applied(handle, attempt);
                }
            }
            GroupOutcome::Mismatch { .. } => {
                self.counters.group_mismatch += 1;
                let id = self.entries[handle].id;
                self.abandon(handle);
                self.reread.insert(id);
            }
        }
    }

    /// Reports the stored state of a task as an event.
    fn tell_changed(&mut self, handle: Handle) {
        let entry = &self.entries[handle];
        self.changed.push(TaskEvent {
            task: entry.id,
            queue: entry.head.queue.clone(),
            status: entry.expected.status,
            attempt: entry.expected.attempt,
            at: self.now,
            composite: entry.state.child_of.as_ref().map(|child| child.composite),
        });
        if entry.state.watched && entry.expected.status.is_final() {
            self.ended.push(entry.id);
        }
    }

    fn on_entry_applied(&mut self, handle: Handle, attempt: AttemptNo) {
        let entry = &self.entries[handle];
        let state = &entry.state;
        if state.status.is_final() {
            if entry.is_clean() {
                self.bury(handle);
            }
            return;
        }
        match entry.spot {
            Spot::Window => return self.evict(entry.line),
            Spot::Delayed => return self.evict_delayed(),
            Spot::Worker | Spot::Nowhere => {}
        }
        if state.attempt != attempt {
            return;
        }
        if let Some(flight) = &entry.flight {
            let worker = flight.worker;
            if flight.sent_at.is_none() {
                self.send_first(handle);
            }
            if self.entries[handle].state.cancel_requested {
                let attempt = self.entries[handle].attempt();
                self.tell(worker, ToWorker::Stop { attempt });
            }
        }
    }

    /// The store has given a new task its arrival number.
    fn renumber(&mut self, handle: Handle, seq: Seq) {
        match self.entries[handle].spot {
            Spot::Window => {
                let line = self.entries[handle].line;
                let before = self.entries[handle].order();
                self.lines[line].window.remove(&before);
                self.entries[handle].seq = seq;
                let after = self.entries[handle].order();
                self.lines[line].window.insert(after, handle);
                self.refresh_line(line);
            }
            Spot::Delayed => {
                let before = self.entries[handle].delayed_key();
                self.delayed.remove(&before);
                self.entries[handle].seq = seq;
                self.delayed.insert(self.entries[handle].delayed_key(), handle);
            }
            Spot::Worker | Spot::Nowhere => self.entries[handle].seq = seq,
        }
    }

    /// Drops all decisions about a task: the store has it in another version, or not at all.
    fn abandon(&mut self, handle: Handle) {
        if let Some(flight) = self.entries[handle].flight.as_ref() {
            let (worker, k) = (flight.worker, flight.k);
            self.end_flight(handle);
            if k.0 > 0 {
                self.counters.dispatch_number_skipped += 1;
                self.skip(worker, k, k);
            }
        }
        match self.entries[handle].spot {
            Spot::Window => self.take_from_line(handle),
            Spot::Delayed => {
                let key = self.entries[handle].delayed_key();
                self.delayed.remove(&key);
            }
            Spot::Worker | Spot::Nowhere => {}
        }
        let entry = &mut self.entries[handle];
        let inbox = entry.pending.take().map(|pending| pending.inbox_done).unwrap_or_default();
        let id = entry.id;
        entry.write_urgency = WriteUrgency::No;
        self.forget_entry(handle);
        self.judge_again(id, &inbox);
    }

    /// Judges commands by the stored task: the change that they were part of was not written.
    fn judge_again(&mut self, task: TaskId, inbox: &[Seq]) {
        if !inbox.is_empty() {
            self.commands.entry(task).or_default().extend_from_slice(inbox);
            self.reread.insert(task);
        }
    }

    /// A task is final, durably: reads under way may still show it unfinished.
    fn bury(&mut self, handle: Handle) {
        if !self.reads.is_empty() {
            self.tombstones.insert(self.entries[handle].id, self.next_read);
        }
        self.forget_entry(handle);
    }

    /// Removes an entry from memory.
    pub(super) fn forget_entry(&mut self, handle: Handle) {
        self.disarm_start_by(handle);
        let entry = self.entries.remove(handle);
        assert!(entry.flight.is_none() && !entry.writing, "task {} is still needed", entry.id);
        self.by_id.swap_remove(&entry.id);
        self.lines[entry.line].entries -= 1;
        self.drop_line_if_empty(entry.line);
    }

    pub(super) fn ack(&mut self, session: SessionId, attempt: AttemptId, verdict: AckReason) {
        if let Some(&worker) = self.worker_by_session.get(&session) {
            self.tell(worker, ToWorker::Ack { attempt, verdict });
        }
    }
}

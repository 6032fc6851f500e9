//! Messages of workers: reports on attempts, credit, heartbeats.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::commit::RecordChange;
use crate::id::{Epoch, SessionId, TaskId};
use crate::invariant::Invariant;
use crate::message::{
    AckReason, AttemptId, Dispatch, Ending, Finish, Heartbeat, HeldState, Report, RetryAdvice, ToLane,
    ToWorker, WorkerBatch,
};
use crate::policy::Rate;
use crate::read::LaneRead;
use crate::status::Status;
use crate::task::{AttemptOutcome, AttemptRecord, Progress, TaskError, TaskResult};
use crate::time::Timestamp;

use super::completions::completion_record;
use super::entry::{Entry, Flight, Handle, Spot};
use super::machine::Lane;

impl Lane {
    pub(super) fn on_worker(&mut self, batch: WorkerBatch) {
        let known = self.worker_by_session.get(&batch.session).copied();
        if !self.loading.is_complete() {
            self.counters.report_while_loading += 1;
            if !self.options.invariants.on(Invariant::StaleAfterLoading) {
                for message in &batch.messages {
                    if let ToLane::Report { attempt, report } = message
                        && report.is_final()
                    {
                        self.ack(batch.session, *attempt, AckReason::Stale);
                    }
                }
            }
            return;
        }
        let Some(worker) = known else { return };
        for message in batch.messages {
            // A report may end the session's readiness (a revoke), never its handle.
            match message {
                ToLane::Report { attempt, report } => self.on_report(batch.session, attempt, report),
                ToLane::Credit { epoch, credit, load, answered } => {
                    if epoch == self.epoch {
                        let w = &mut self.workers[worker];
                        w.confirmed = true;
                        w.credit = w.credit.max(credit);
                        let before = std::mem::replace(&mut w.load, load);
                        self.refresh_load(worker);
                        self.on_answer(worker, answered);
                        self.on_credit(worker);
                        if load != before {
                            self.choose_again_for(worker);
                        }
                    }
                }
                ToLane::Heartbeat(heartbeat) => self.on_heartbeat(worker, &heartbeat),
            }
        }
    }

    fn on_report(&mut self, session: SessionId, attempt: AttemptId, report: Report) {
        let Some(&handle) = self.by_id.get(&attempt.task) else {
            self.counters.report_of_idle_task += 1;
            if !self.is_being_read(attempt.task) {
                self.call_stale(session, attempt, &report);
            }
            return;
        };
        let entry = &self.entries[handle];
        let invariants = self.options.invariants;
        let attempt_matches =
            entry.state.attempt == attempt.number || !invariants.on(Invariant::AttemptMatch);
        let session_matches = entry.state.session == Some(session) || !invariants.on(Invariant::SessionMatch);
        let in_flight = entry.flight.is_some();
        if attempt_matches && session_matches && in_flight {
            return self.apply_report(handle, session, attempt, report);
        }
        if !attempt_matches {
            self.counters.report_of_old_attempt += 1;
        } else if !session_matches {
            self.counters.report_of_other_session += 1;
        } else {
            self.counters.report_of_idle_task += 1;
        }
        // The decision about the task may not be durable yet; the worker will repeat the report.
        if entry.is_clean() || !invariants.on(Invariant::AckAfterCommit) {
            self.call_stale(session, attempt, &report);
        }
    }

    /// Whether memory lacks the task because it is being read again: the owner cannot answer for it yet.
    fn is_being_read(&self, task: TaskId) -> bool {
        let under_way = |read: &LaneRead| matches!(read, LaneRead::Tasks { ids } if ids.contains(&task));
        self.reread.contains(&task) || self.reads.values().any(under_way)
    }

    fn call_stale(&mut self, session: SessionId, attempt: AttemptId, report: &Report) {
        if report.is_final() {
            self.ack(session, attempt, AckReason::Stale);
        }
    }

    fn apply_report(&mut self, handle: Handle, session: SessionId, attempt: AttemptId, report: Report) {
        let is_final = report.is_final();
        match report {
            Report::Accepted => self.note_accepted(handle),
            Report::Started { ago } => self.note_started(handle, ago),
            Report::Progress(progress) => self.note_progress(handle, *progress),
            Report::HandedBack { reason } => self.on_handed_back(handle, &reason),
            Report::Finished(finish) => self.on_finished(handle, *finish),
        }
        if is_final {
            if self.options.invariants.on(Invariant::AckAfterCommit) {
                self.entries[handle].change().ack.push((session, attempt));
            } else {
                self.ack(session, attempt, AckReason::Committed);
            }
        }
    }

    fn note_accepted(&mut self, handle: Handle) {
        let now = self.now;
        let entry = &mut self.entries[handle];
        if let Some(flight) = &mut entry.flight {
            flight.beats_missing = 0;
        }
        if entry.state.status == Status::Scheduled {
            entry.enter(Status::Dispatched, now);
            self.mark(handle, false);
        }
    }

    fn note_progress(&mut self, handle: Handle, progress: Progress) {
        let entry = &mut self.entries[handle];
        entry.state.progress = Some(Box::new(progress.bounded()));
        entry.change().touched = true;
        self.mark(handle, false);
    }

    fn note_started(&mut self, handle: Handle, ago: Duration) {
        self.note_accepted(handle);
        let now = self.now;
        let entry = &mut self.entries[handle];
        let mut first = false;
        if let Some(flight) = &mut entry.flight {
            flight.recalls = 0;
            first = flight.running_since.is_none();
            // The start time after a takeover is a guess; the time from the worker is not.
            flight.running_since = Some(flight.running_since.map_or(now - ago, |since| since.min(now - ago)));
        }
        if first {
            self.count_start(handle, now - ago);
        }
        let entry = &mut self.entries[handle];
        if entry.state.status == Status::Dispatched {
            entry.enter(Status::Running, now - ago);
            self.mark(handle, false);
            self.disarm_start_by(handle);
        }
    }

    /// An attempt has started: rates may let the next one go.
    fn count_start(&mut self, handle: Handle, at: Timestamp) {
        let assigned = self.entries[handle].state.scheduled_at;
        if assigned.is_some_and(|assigned| at > assigned + Rate::AHEAD) {
            self.take_rates(handle, at, true);
        }
        let limits = self.entries[handle].flight.as_ref().map(|flight| flight.limits.clone());
        for limit in limits.into_iter().flatten() {
            let state = self.limits.get_mut(limit);
            state.unstarted = state.unstarted.saturating_sub(1);
            self.wake_parked(limit);
        }
        let queue = self.lines[self.entries[handle].line].queue;
        if std::mem::take(&mut self.queues[queue].full) {
            self.refresh_active(queue);
        }
    }

    fn on_finished(&mut self, handle: Handle, finish: Finish) {
        if let Ending::NotStarted { reason } = &finish.ending {
            return self.on_handed_back(handle, reason);
        }
        self.note_started(handle, finish.ran);
        self.end_flight(handle);
        let (ending, result) = bounded(finish, self.options.result_bytes_max);
        if let Ending::Failed { error, .. } = &ending
            && error.is_loss()
        {
            return self.lose(handle, error.clone());
        }
        self.entries[handle].change().result = result;
        let cancelled = self.entries[handle].state.cancel_requested;
        match ending {
            Ending::Success => {
                self.counters.success_despite_cancel += u64::from(cancelled);
                self.finish(handle, Status::Success, None);
            }
            Ending::Failed { error, .. } | Ending::TimedOut { error } if cancelled => {
                self.finish(handle, Status::Cancelled, Some(error));
            }
            Ending::Failed { error, retry } => self.fail(handle, AttemptOutcome::Failed, error, retry),
            Ending::TimedOut { error } => {
                self.fail(handle, AttemptOutcome::TimedOut, error, RetryAdvice::Policy);
            }
            Ending::Cancelled if cancelled => self.finish(handle, Status::Cancelled, None),
            Ending::Cancelled => {
                let error = TaskError::new(
                    "stopped",
                    "the attempt ended as cancelled, but its task was not cancelled",
                );
                self.fail(handle, AttemptOutcome::Failed, error, RetryAdvice::Policy);
            }
            Ending::NotStarted { .. } => unreachable!("handed back above"),
        }
    }

    fn fail(&mut self, handle: Handle, outcome: AttemptOutcome, error: TaskError, advice: RetryAdvice) {
        let entry = &self.entries[handle];
        let (policy, retries) = (entry.head.retry.clone(), entry.state.retries);
        if advice == RetryAdvice::Never || retries >= policy.max_retries {
            return self.finish(handle, Status::Failed, Some(error));
        }
        let wait = match advice {
            RetryAdvice::After(wait) => wait,
            RetryAdvice::Policy | RetryAdvice::Never => policy.wait(retries, &mut self.rng),
        };
        let now = self.now;
        let entry = &mut self.entries[handle];
        let record = ended(entry, outcome, Some(error.clone()), now);
        entry.change().ended.push(record);
        entry.state.retries += 1;
        entry.state.error = Some(error);
        entry.state.due = now + wait;
        entry.state.shift = Some(self.clock.shift);
        entry.state.delayed = true;
        entry.state.start_by = entry.head.start_timeout.map(|timeout| now + wait + timeout);
        entry.enter(Status::Retrying, now);
        self.mark(handle, true);
        self.place_in_delayed(handle);
    }

    fn on_handed_back(&mut self, handle: Handle, reason: &str) {
        self.counters.handed_back += 1;
        if !self.options.invariants.on(Invariant::NewAttemptAfterRecall) {
            return self.give_to_another(handle);
        }
        let (now, shift) = (self.now, self.clock.shift);
        let started = self.entries[handle].state.status == Status::Running;
        if let Some(flight) = &self.entries[handle].flight {
            let worker = flight.worker;
            self.workers[worker].cooling = true;
            self.refresh_worker(worker);
        }
        self.end_flight(handle);
        let entry = &mut self.entries[handle];
        if entry.state.cancel_requested {
            return self.finish(handle, Status::Cancelled, None);
        }
        if started {
            entry.state.start_by = entry.head.start_timeout.map(|timeout| now + timeout);
            entry.state.shift = Some(shift);
        }
        let error = TaskError::new("handed_back", reason).bounded();
        let record = ended(entry, AttemptOutcome::HandedBack, Some(error), now);
        entry.change().ended.push(record);
        if entry.state.start_by.is_some_and(|at| at <= now) {
            return self.fail_to_start(handle);
        }
        entry.enter(Status::Pending, now);
        self.mark(handle, true);
        self.place_in_line(handle);
    }

    /// Deliberately wrong: gives the same attempt to another worker. Used only when the invariant against it
    /// is off.
    fn give_to_another(&mut self, handle: Handle) {
        let old = self.entries[handle].flight.as_ref().map(|f| f.worker);
        let other = self.workers.iter().map(|(w, _)| w).find(|&w| Some(w) != old);
        let (Some(old), Some(other)) = (old, other) else { return };
        self.workers[old].holds.swap_remove(&handle);
        self.workers[other].holds.insert(handle);
        self.workers[other].unsent.push_back(handle);
        let session = self.workers[other].session;
        let entry = &mut self.entries[handle];
        entry.state.session = Some(session);
        entry.change().touched = true;
        if let Some(flight) = &mut entry.flight {
            flight.worker = other;
            flight.recalls = 0;
        }
        self.mark(handle, true);
        self.on_credit(other);
    }

    /// The attempt is lost: the worker's session has ended, or the worker lost the guard that ran the
    /// attempt.
    pub(super) fn lose(&mut self, handle: Handle, error: TaskError) {
        self.counters.attempt_lost += 1;
        let (now, shift) = (self.now, self.clock.shift);
        let started = self.entries[handle].state.status == Status::Running;
        self.end_flight(handle);
        let entry = &mut self.entries[handle];
        let count = if started { &mut entry.state.lost } else { &mut entry.state.lost_before_start };
        *count += 1;
        let record = ended(entry, AttemptOutcome::Lost, Some(error.clone()), now);
        entry.change().ended.push(record);
        if entry.state.cancel_requested {
            return self.finish(handle, Status::Cancelled, Some(error));
        }
        if let Some(error) = self.lost_too_often(handle) {
            self.counters.lost_limit += 1;
            return self.finish(handle, Status::Failed, Some(error));
        }
        let entry = &mut self.entries[handle];
        if started {
            entry.state.start_by = entry.head.start_timeout.map(|timeout| now + timeout);
            entry.state.shift = Some(shift);
        }
        entry.enter(Status::Pending, now);
        self.mark(handle, true);
        self.place_in_line(handle);
    }

    /// The error of a task that has lost too many attempts to be tried again.
    fn lost_too_often(&self, handle: Handle) -> Option<TaskError> {
        let entry = &self.entries[handle];
        // System tasks take no worker down, and must run however often their workers die.
        if entry.head.task_type.is_system() || !self.options.invariants.on(Invariant::LostLimit) {
            return None;
        }
        let (lost, lost_max) = (entry.state.lost, self.options.lost_max);
        let (unstarted, unstarted_max) = (entry.state.lost_before_start, self.options.lost_before_start_max);
        let message = if lost > lost_max {
            format!("{lost} attempts were lost while they ran, {lost_max} are allowed")
        } else if unstarted > unstarted_max {
            format!("{unstarted} attempts were lost before they had started, {unstarted_max} are allowed")
        } else {
            return None;
        };
        let remedy = "see why their workers ended, then retry the task";
        Some(TaskError::new("lost_limit", format!("{message}: {remedy}")))
    }

    /// The worker's session has ended, and the attempt with it.
    pub(super) fn lose_with_worker(&mut self, handle: Handle) {
        let error = TaskError::new("worker_lost", "the worker's session ended while it had the attempt");
        self.lose(handle, error);
    }

    /// A task that did not start in time.
    pub(super) fn fail_to_start(&mut self, handle: Handle) {
        self.counters.start_timeout += 1;
        let error = TaskError::new("start_timeout", "the task did not start within its start timeout");
        self.finish(handle, Status::Failed, Some(error));
    }

    /// Makes a task final. It is in no window and at no worker any more.
    pub(super) fn finish(&mut self, handle: Handle, status: Status, error: Option<TaskError>) {
        let now = self.now;
        self.disarm_start_by(handle);
        let entry = &mut self.entries[handle];
        assert!(entry.flight.is_none(), "an attempt of task {} is still counted", entry.id);
        entry.spot = Spot::Nowhere;
        entry.state.error = error;
        entry.enter(status, now);
        if entry.state.watched && self.options.invariants.on(Invariant::EndNoted) {
            let note = RecordChange { key: completion_record(entry.id), value: Some(Vec::new()) };
            entry.change().records.push(note);
        }
        self.mark(handle, true);
    }

    /// Takes the attempt off its worker and its limits.
    pub(super) fn end_flight(&mut self, handle: Handle) {
        let entry = &mut self.entries[handle];
        entry.spot = Spot::Nowhere;
        let Some(Flight { worker, limits, running_since, .. }) = entry.flight.take() else { return };
        let queue = self.lines[entry.line].queue;
        self.queues[queue].turn_length.count(self.now);
        if self.workers.contains(worker) {
            self.workers[worker].holds.swap_remove(&handle);
            self.refresh_load(worker);
        }
        for limit in limits {
            let state = self.limits.get_mut(limit);
            state.running -= 1;
            if running_since.is_none() {
                state.unstarted = state.unstarted.saturating_sub(1);
            }
            self.wake_parked(limit);
            self.limits.drop_if_idle(limit);
        }
        if std::mem::take(&mut self.queues[queue].full) {
            self.refresh_active(queue);
        }
    }

    fn on_heartbeat(&mut self, worker: Handle, heartbeat: &Heartbeat) {
        let w = &mut self.workers[worker];
        // A late heartbeat, or a worker that follows a newer owner: this owner is about to be fenced.
        if heartbeat.beat <= w.beat || heartbeat.epoch > self.epoch {
            return;
        }
        w.beat = heartbeat.beat;
        w.load = heartbeat.load;
        (w.cooling, w.slow) = (false, false);
        if heartbeat.epoch == self.epoch {
            w.confirmed = true;
            w.credit = w.credit.max(heartbeat.credit);
            w.skipped.retain(|&(_, last)| last > heartbeat.used);
            for (first, last) in w.skipped.clone() {
                self.send_skip(worker, first, last);
            }
        }
        self.refresh_load(worker);
        let w = &self.workers[worker];
        let session = w.session;
        let mut held: BTreeMap<AttemptId, HeldState> =
            heartbeat.held.iter().map(|h| (h.attempt, h.state)).collect();
        let holds: Vec<Handle> = w.holds.iter().copied().collect();
        for handle in holds {
            let state = held.remove(&self.entries[handle].attempt());
            self.compare(worker, handle, state, heartbeat.epoch);
        }
        self.note_receiving(worker, heartbeat.epoch);
        // The rest are attempts that this lane does not count. If one waits or runs at the worker, it must
        // end.
        for (attempt, state) in held {
            let known = self.by_id.get(&attempt.task).map(|&handle| &self.entries[handle]);
            let settled = known
                .is_none_or(|e| e.is_clean() && (e.attempt() != attempt || e.state.session != Some(session)));
            if settled && state != HeldState::Ended && !self.is_being_read(attempt.task) {
                self.tell(worker, ToWorker::Stop { attempt });
            }
        }
        self.on_credit(worker);
        let idle = !self.has_work_for(worker);
        let w = &mut self.workers[worker];
        if heartbeat.wanted_back && idle && w.credit_left() > 0 {
            let (first, last) = (w.last_k.next(), w.credit);
            w.last_k = last;
            self.counters.credit_returned += 1;
            self.skip(worker, first, last);
        } else if !idle && (heartbeat.wanted_back || heartbeat.epoch < self.epoch || w.credit_left() == 0) {
            // The demand may be lost, and a worker that asks for credit back waits for an answer.
            let wanted = w.classes.clone().into_iter().map(|class| self.wanted(class)).max();
            self.ask_worker(worker, wanted.unwrap_or(0).max(1), false);
        } else if heartbeat.epoch < self.epoch || (idle && w.asked_for.0 > 0) {
            // The worker may not know the epoch, or may keep a demand that is met.
            self.withdraw_demand(worker);
        }
        self.choose_again_for(worker);
    }

    /// A worker does not receive if its heartbeats arrive but name neither this owner's epoch nor the
    /// attempts sent to it.
    fn note_receiving(&mut self, worker: Handle, epoch: Epoch) {
        let max = self.options.beats_missing_max;
        let is_missing = |&entry: &Handle| {
            self.entries[entry].flight.as_ref().is_some_and(|flight| flight.beats_missing > max)
        };
        let misses_some = self.workers[worker].holds.iter().any(is_missing);
        let w = &mut self.workers[worker];
        w.beats_of_old_epoch = if epoch < self.epoch { w.beats_of_old_epoch.saturating_add(1) } else { 0 };
        let not_receiving = misses_some || w.beats_of_old_epoch > max;
        let was_not_receiving = std::mem::replace(&mut w.not_receiving, not_receiving);
        if not_receiving {
            let session = w.session;
            self.not_receiving.push(session);
        }
        if not_receiving != was_not_receiving {
            self.counters.worker_not_receiving += u64::from(not_receiving);
            self.update_worker_classes(worker);
        }
    }

    /// Compares one attempt with its state at the worker, and acts on a difference.
    fn compare(&mut self, worker: Handle, handle: Handle, state: Option<HeldState>, epoch: Epoch) {
        let recalling = |entry: &Entry| entry.flight.as_ref().is_some_and(|flight| flight.recalls > 0);
        let recalled_before = recalling(&self.entries[handle]);
        match state {
            Some(HeldState::Queued | HeldState::Ended) => self.note_accepted(handle),
            Some(HeldState::Running(ago)) => self.note_started(handle, ago),
            None => self.on_missing(worker, handle, epoch),
        }
        let entry = &self.entries[handle];
        let Some(flight) = &entry.flight else { return };
        if state.is_some() && flight.k.0 == 0 && flight.beats_missing == 0 {
            self.counters.attempt_adopted += 1;
        }
        let (attempt, recall_again) = (entry.attempt(), recalled_before && recalling(entry));
        if entry.state.cancel_requested && entry.is_clean() && flight.sent_at.is_some() {
            self.counters.stop_resent += 1;
            self.tell(worker, ToWorker::Stop { attempt });
        }
        if recall_again {
            self.recall(handle);
        }
    }

    /// A heartbeat does not name an attempt that the worker should have.
    fn on_missing(&mut self, worker: Handle, handle: Handle, epoch: Epoch) {
        let (now, resend_after) = (self.now, self.options.resend_after);
        let max = self.options.beats_missing_max;
        let scheduled = self.entries[handle].state.status == Status::Scheduled;
        let Some(flight) = &mut self.entries[handle].flight else { return };
        let Some(sent_at) = flight.sent_at else { return };
        if scheduled && flight.k.0 == 0 {
            // Taken over and perhaps never sent. Only a heartbeat under this owner's epoch proves that: from
            // then on the worker ignores messages of earlier owners, and its heartbeats still name the
            // attempts whose report is not acknowledged.
            if epoch < self.epoch {
                return;
            }
            if !self.workers[worker].unsent.contains(&handle) {
                self.workers[worker].unsent.push_back(handle);
                self.refresh_worker(worker);
            }
            return;
        }
        if now < sent_at + resend_after {
            return;
        }
        flight.beats_missing = flight.beats_missing.saturating_add(1);
        if flight.beats_missing > max {
            if flight.recalls == 0 {
                self.recall(handle);
            }
        } else if scheduled {
            self.counters.dispatch_resent += 1;
            self.dispatch(handle);
        }
    }

    /// Asks for an attempt back. A worker that does not answer, though it sends heartbeats, is given up.
    pub(super) fn recall(&mut self, handle: Handle) {
        let recalls_max = self.options.recalls_max;
        let attempt = self.entries[handle].attempt();
        let Some(flight) = &mut self.entries[handle].flight else { return };
        flight.recalls = flight.recalls.saturating_add(1);
        let (worker, k, recalls) = (flight.worker, flight.k, flight.recalls);
        if recalls > recalls_max {
            return self.revoke(worker);
        }
        self.counters.recall_sent += 1;
        self.tell(worker, ToWorker::Recall { k, attempt });
    }

    /// Lets the session of a worker end.
    pub(super) fn revoke(&mut self, worker: Handle) {
        if std::mem::replace(&mut self.workers[worker].revoked, true) {
            return;
        }
        self.counters.session_revoked += 1;
        self.revocations.push(self.workers[worker].session);
        self.update_worker_classes(worker);
    }

    /// The worker may have room: attempts that it must be sent again go first.
    pub(super) fn on_credit(&mut self, worker: Handle) {
        while self.workers[worker].confirmed && self.workers[worker].credit_left() > 0 {
            let Some(handle) = self.workers[worker].unsent.pop_front() else { break };
            if !self.workers[worker].holds.contains(&handle) {
                continue;
            }
            // An attempt under recall is not sent: the recall would not use up its number.
            if self.entries[handle].flight.as_ref().is_some_and(|flight| flight.recalls > 0) {
                continue;
            }
            let k = self.take_number(worker);
            let Some(flight) = &mut self.entries[handle].flight else { continue };
            flight.k = k;
            self.counters.dispatch_after_takeover += 1;
            self.dispatch(handle);
        }
        self.refresh_worker(worker);
    }

    /// The assignment of an attempt is committed: sends it to its worker, or recalls it if its start timeout
    /// has passed.
    pub(super) fn send_first(&mut self, handle: Handle) {
        let now = self.now;
        let entry = &mut self.entries[handle];
        let late = entry.state.start_by.is_some_and(|at| at <= now);
        match &mut entry.flight {
            Some(flight) if late => {
                flight.sent_at = Some(now);
                self.recall(handle);
            }
            _ => self.dispatch(handle),
        }
    }

    /// Sends an attempt to its worker.
    pub(super) fn dispatch(&mut self, handle: Handle) {
        let now = self.now;
        let entry = &mut self.entries[handle];
        let attempt = entry.attempt();
        let Some(flight) = &mut entry.flight else { return };
        flight.sent_at = Some(now);
        let (worker, k) = (flight.worker, flight.k);
        let dispatch = Dispatch { k, attempt, head: entry.head.clone(), body: entry.body.clone() };
        self.tell(worker, ToWorker::Dispatch(dispatch));
    }
}

/// A worker's finish, cut to a size that every store takes: a commit that is too large would stop the lane.
fn bounded(finish: Finish, data_max: usize) -> (Ending, Option<Box<TaskResult>>) {
    let Finish { ending, result, .. } = finish;
    let too_large = (result.data.len() > data_max).then(|| {
        let message = format!(
            "the result data has {} bytes; result data is limited to {data_max} bytes",
            result.data.len()
        );
        TaskError::new("result_too_large", message)
    });
    let ending = match ending {
        Ending::Failed { error, retry } => Ending::Failed { error: error.bounded(), retry },
        Ending::TimedOut { error } => Ending::TimedOut { error: error.bounded() },
        Ending::Success | Ending::Cancelled | Ending::NotStarted { .. } => ending,
    };
    match too_large {
        // The data would be as large the next time.
        Some(error) if ending == Ending::Success => {
            (Ending::Failed { error, retry: RetryAdvice::Never }, None)
        }
        // The first error is worth more than the data.
        Some(_) => (ending, None),
        None if result.is_empty() => (ending, None),
        None => (ending, Some(Box::new(result.bounded()))),
    }
}

/// The record of an attempt that ended without ending its task.
fn ended(entry: &Entry, outcome: AttemptOutcome, error: Option<TaskError>, now: Timestamp) -> AttemptRecord {
    let state = &entry.state;
    AttemptRecord {
        number: state.attempt,
        session: state.session,
        worker: state.worker.clone(),
        scheduled_at: state.scheduled_at.unwrap_or(now),
        started_at: state.started_at,
        ended_at: Some(now),
        outcome: Some(outcome),
        error,
    }
}

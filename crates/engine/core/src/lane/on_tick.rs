//! The effects of passing time.

use crate::commit::{Group, RecordChange};
use crate::invariant::Invariant;
use crate::read::LaneRead;
use crate::status::Status;
use crate::task::TaskRow;

use super::completions::RECORDS_MAX;
use super::entry::{Handle, Spot};
use super::input::Effect;
use super::limits::rate_record;
use super::machine::{Lane, Timer};

/// Rates forgotten in one sweep.
const RATES_FORGOTTEN_MAX: usize = 10_000;

impl Lane {
    pub(super) fn on_tick(&mut self, effects: &mut Vec<Effect>) {
        self.release_delayed();
        while let Some(&(at, timer)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::StartBy(task) => {
                    if let Some(&entry) = self.by_id.get(&task) {
                        self.on_start_by(entry);
                    }
                }
                Timer::LineRate(line) => {
                    self.lines[line].rate_until = None;
                    self.refresh_line(line);
                }
                Timer::QueueRate(queue) => {
                    self.queues[queue].rate_until = None;
                    self.refresh_active(queue);
                }
                Timer::Answer(worker) => self.on_no_answer(worker),
                Timer::Greeting(worker) => self.on_greeting_due(worker),
            }
        }
        if self.now >= self.next_sweep {
            self.next_sweep = self.now + self.options.sweep_every;
            self.sweep(effects);
        }
    }

    /// Moves delayed and retrying tasks that have come due to their lines. The store moves them too, unless
    /// they are assigned before that is written.
    fn release_delayed(&mut self) {
        while let Some((&(due, seq), &handle)) = self.delayed.first_key_value() {
            if due > self.now {
                break;
            }
            self.delayed.remove(&(due, seq));
            let now = self.now;
            let entry = &mut self.entries[handle];
            entry.state.delayed = false;
            // From now on its start timeout is a duration, whatever its due time was.
            entry.state.shift = Some(self.clock.shift);
            if entry.state.status == Status::Retrying {
                entry.enter(Status::Pending, now);
            } else {
                entry.change().touched = true;
            }
            self.mark(handle, false);
            self.place_in_line(handle);
        }
    }

    fn on_start_by(&mut self, handle: Handle) {
        match self.entries[handle].state.status {
            Status::Pending => {
                self.leave_spot(handle);
                self.fail_to_start(handle);
            }
            Status::Scheduled | Status::Dispatched => {
                // The worker must not learn of the attempt before the assignment is committed: the next owner
                // could give its number to another attempt.
                if self.entries[handle].flight.as_ref().is_some_and(|flight| flight.sent_at.is_some()) {
                    self.recall(handle);
                }
            }
            Status::Running | Status::Retrying | Status::Success | Status::Failed | Status::Cancelled => {}
        }
    }

    /// A waiting task that was not in memory and whose start timeout has passed.
    pub(super) fn on_expiring(&mut self, row: TaskRow) {
        let known = self.by_id.contains_key(&row.id) || self.tombstones.contains_key(&row.id);
        if known || row.state.status != Status::Pending || row.state.start_by.is_none_or(|at| at > self.now) {
            return;
        }
        if self.is_stale(&row) {
            // By the present clock there may be time left.
            self.admit_stale(row);
            return;
        }
        let entry = self.insert_row(row);
        self.fail_to_start(entry);
    }

    /// Watches the start deadline of an entry that has one and has not started.
    pub(super) fn arm_start_by(&mut self, handle: Handle) {
        let entry = &self.entries[handle];
        let waits = matches!(entry.state.status, Status::Pending | Status::Scheduled | Status::Dispatched);
        if let Some(at) = entry.state.start_by.filter(|_| waits && entry.spot != Spot::Delayed) {
            self.timers.insert((at, Timer::StartBy(entry.id)));
        }
    }

    pub(super) fn disarm_start_by(&mut self, handle: Handle) {
        let entry = &self.entries[handle];
        if let Some(at) = entry.state.start_by {
            self.timers.remove(&(at, Timer::StartBy(entry.id)));
        }
    }

    /// Reads everything that a lost message would have announced.
    fn sweep(&mut self, effects: &mut Vec<Effect>) {
        self.arrivals_wanted = true;
        self.read(LaneRead::Policies { after: self.policies_revision }, effects);
        let unseen = self.lines_more || self.lines.iter().any(|(_, line)| line.more);
        if unseen && !self.expiring_reading {
            self.expiring_reading = true;
            self.read(LaneRead::Expiring { until: self.now, after: None }, effects);
        }
        self.forget_full_rates();
        self.forget_idle_queues();
        self.reset_window_cut();
        self.find_overruns();
        if self.lines_more {
            self.look_for_lines();
        }
        if !self.options.invariants.on(Invariant::LostNeedsSessionEnd) {
            let silent: Vec<Handle> =
                self.workers.iter().filter(|(_, w)| w.beat == 0).map(|(h, _)| h).collect();
            for entry in silent.into_iter().flat_map(|w| self.workers[w].holds.clone()).collect::<Vec<_>>() {
                self.lose_with_worker(entry);
            }
        }
    }

    fn forget_full_rates(&mut self) {
        let mut records = Vec::new();
        for handle in self.limits.full_again(self.now, RATES_FORGOTTEN_MAX) {
            let state = self.limits.get_mut(handle);
            state.rate = None;
            let key = rate_record(&self.queues[state.key.queue].key, state.key.limit, &state.key.key);
            records.push(RecordChange { key, value: None });
            self.limits.drop_if_idle(handle);
        }
        for records in records.chunks(RECORDS_MAX) {
            self.write_loose(Group { records: records.to_vec(), ..Group::default() });
        }
    }

    /// The worker stops an attempt at its timeout. If an attempt goes on for much longer, its worker has lost
    /// control of it.
    fn find_overruns(&mut self) {
        let mut late = Vec::new();
        for (handle, worker) in &self.workers {
            let overrun = |&&entry: &&Handle| {
                let entry = &self.entries[entry];
                let since = entry.flight.as_ref().and_then(|flight| flight.running_since);
                let allowed = entry.head.execution_timeout + self.options.overrun_grace;
                since.is_some_and(|since| self.now > since + allowed)
            };
            let count = worker.holds.iter().filter(overrun).count();
            if count > 0 && !worker.revoked {
                late.push((handle, count));
            }
        }
        for (worker, count) in late {
            self.counters.attempt_overrun += count as u64;
            self.revoke(worker);
        }
    }

    /// The store holds lines that are not in memory. Where memory is full of lines, lines that cannot run
    /// make room.
    fn look_for_lines(&mut self) {
        self.lines_loaded = false;
        if self.lines_are_full() {
            self.drop_blocked_lines();
        }
    }

    fn drop_blocked_lines(&mut self) {
        let clean = |line: &super::lines::Line| {
            let may_run = line.ready.is_some()
                && !self.classes[line.class].free.is_empty()
                && self.queues[line.queue].may_assign();
            !may_run
                && !line.reading
                && line.entries as usize == line.window.len()
                && line.window.iter().all(|(_, entry)| self.entries[entry].is_clean())
        };
        let blocked: Vec<Handle> =
            self.lines.iter().filter(|(_, line)| clean(line)).map(|(h, _)| h).collect();
        let room = self.lines.len().div_ceil(2);
        self.lines_missed |= !blocked.is_empty();
        for line in blocked.into_iter().take(room) {
            // This keeps the line until all of its entries are gone.
            self.lines[line].more = true;
            let entries: Vec<Handle> = self.lines[line].window.iter().map(|(_, entry)| entry).collect();
            self.lines[line].window.clear();
            self.count_waiting(line, -entries.len().cast_signed());
            self.refresh_line(line);
            for entry in entries {
                self.entries[entry].spot = Spot::Nowhere;
                self.forget_entry(entry);
            }
            self.refill.remove(&line);
            self.forget_line(line);
        }
    }
}

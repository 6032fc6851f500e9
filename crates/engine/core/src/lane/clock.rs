//! The lane's wall clock, and its steps.
//!
//! Times of day (`runAt`) follow the wall clock at once. Durations (delays, retry waits, start timeouts,
//! rates, and the machine's own timers) keep their length. The lane keeps them as times of the wall clock
//! like all others, so a step of Δ moves them by Δ. Times in memory move at once. Times in the store cannot,
//! so the lane keeps the **sum** of all steps in a record, and each stored state names the sum that it was
//! made under: a reader moves its times by the difference.
//!
//! ```text
//!   sum 0 s            │ sum +3600 s
//!   due 10:05, sum 0   │                    read: 10:05 + (3600 s − 0 s) = 11:05, sum +3600 s
//!   ───────────────────┼──────────────────────────────────────►
//!                    step
//! ```
//! A task that was submitted past the owner names no sum. The record keeps the arrival number up to which
//! each step found tasks in the store: those tasks were made before it.
//!
//! The store sorts delayed tasks by their stored times, and among tasks of different sums this is not the
//! order in which they come due. So after a step the owner reads all of them once and writes them back moved.
//!
//! The record also keeps the distance of the owner's wall clock from its steady clock, and the boot of the
//! machine. The next owner on that machine finds by it a step that no owner noticed, or that its owner did
//! not write before it died.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock_watch::STEP_MIN;
use crate::commit::{Group, RecordChange, RecordKey, RecordKind};
use crate::id::Seq;
use crate::invariant::Invariant;
use crate::read::{LanePage, LaneRead};
use crate::status::Status;
use crate::task::TaskRow;
use crate::time::{Shift, Timestamp};

use super::entry::{Entry, Handle};
use super::input::Effect;
use super::machine::Lane;

/// Steps kept in the record. More are rare, and tasks stored before the oldest have been rewritten since.
const STEPS_MAX: usize = 32;
/// The key of the clock's record, kept among the rates. Servers of an earlier version stop at a kind of
/// record that they do not know, but pass over a rate whose key they cannot parse. It sorts before all rates,
/// so that the owner has it when it reads them.
const KEY: &str = "!clock";
/// Bytes of the record without its steps, …
const FIXED: usize = 25;
/// … and of each step.
const STEP: usize = 32;

/// The position of the wall clock against the steady clock of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// Separates one boot of a machine from all others; 0 if unknown.
    pub boot: u64,
    /// How far the wall clock is ahead of the steady clock.
    pub ahead: Shift,
}

/// The content of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockRecord {
    /// The sum of all steps.
    pub(super) shift: Shift,
    /// The anchor of the owner that wrote the record.
    anchor: Anchor,
    /// All delayed tasks in the store were made under this sum.
    is_rewritten: bool,
    steps: VecDeque<Step>,
}

/// A step, as tasks that name no sum need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// The last task that it found in the store.
    last: Seq,
    /// The sum before it.
    before: Shift,
    /// The wall time without the step, and with it, when the owner noticed the step. Both are the same where
    /// the owner did not have to find the step: all tasks up to the last were then made before it.
    clocks: (Timestamp, Timestamp),
}

impl Step {
    /// Whether a task was made before this step: it is in the store, and the clock from before is nearer to
    /// its time.
    fn is_after(&self, row: &TaskRow) -> bool {
        let made = row.state.created_at;
        let (old, new) = self.clocks;
        row.seq <= self.last && made.shift_from(old).abs() <= made.shift_from(new).abs()
    }
}

/// The pass over the store after a step.
#[derive(Debug)]
pub(super) struct Rewrite {
    /// The next read; `None` when all was read.
    next: Option<LaneRead>,
    /// The read under way.
    read: Option<u64>,
    /// The clock stepped again since the read was sent.
    again: bool,
}

const FIRST: LaneRead = LaneRead::Delayed { after: None };

impl ClockRecord {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.shift.as_micros(), self.anchor.boot.cast_signed(), self.anchor.ahead.as_micros()];
        let steps = self.steps.iter().flat_map(|Step { last, before, clocks: (old, new) }| {
            [last.0.cast_signed(), before.as_micros(), old.as_micros(), new.as_micros()]
        });
        let mut bytes = vec![u8::from(self.is_rewritten)];
        bytes.extend(numbers.into_iter().chain(steps).flat_map(i64::to_le_bytes));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, steps) = bytes.split_at_checked(FIXED)?;
        let (passed, fixed) = fixed.split_first()?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_le_bytes);
        let shift = |at: &[u8]| Shift::from_micros(number(at));
        let time = |at: &[u8]| Timestamp::from_micros(number(at));
        let step = |step: &[u8]| Step {
            last: Seq(number(&step[..8]).cast_unsigned()),
            before: shift(&step[8..16]),
            clocks: (time(&step[16..24]), time(&step[24..])),
        };
        Some(Self {
            shift: shift(&fixed[..8]),
            anchor: Anchor { boot: number(&fixed[8..16]).cast_unsigned(), ahead: shift(&fixed[16..]) },
            is_rewritten: *passed == 1,
            steps: steps.chunks_exact(STEP).map(step).collect(),
        })
    }

    /// The sum that a stored state was made under.
    fn made_under(&self, row: &TaskRow) -> Shift {
        let before = || self.steps.iter().find(|step| step.is_after(row)).map(|step| step.before);
        row.state.shift.or_else(before).unwrap_or(self.shift)
    }

    /// The clock has stepped; the highest arrival number seen so far is `last`.
    fn note(&mut self, by: Shift, last: Seq, clocks: (Timestamp, Timestamp)) {
        self.steps.push_back(Step { last, before: self.shift, clocks });
        if self.steps.len() > STEPS_MAX {
            self.steps.pop_front();
        }
        self.shift = self.shift + by;
        self.is_rewritten = false;
    }
}

/// Decodes the first record of a lane: the sum of all steps, and the anchor of its owner.
pub fn recorded_clock(records: &[(RecordKey, Vec<u8>)]) -> Option<(Shift, Anchor)> {
    let (_, value) = records.first().filter(|(key, _)| *key == clock_key())?;
    ClockRecord::decode(value).map(|record| (record.shift, record.anchor))
}

/// Bounds the wait of a task that names no sum: whichever clock counted it, it waits no longer than its
/// delay.
fn bound_waits(row: &mut TaskRow, delay: Duration, now: Timestamp) -> bool {
    let state = &mut row.state;
    if state.status != Status::Pending {
        return false;
    }
    let before = (state.due, state.start_by);
    if state.delayed && state.relative {
        state.due = state.due.min(now + delay);
    }
    let waits_until = if state.delayed { state.due.max(now) } else { now };
    let start_by = row.head.start_timeout.map(|timeout| waits_until + timeout);
    state.start_by = state.start_by.map(|at| start_by.map_or(at, |latest| at.min(latest)));
    before != (state.due, state.start_by)
}

fn clock_key() -> RecordKey {
    RecordKey { kind: RecordKind::Rate, key: KEY.to_owned() }
}

impl Lane {
    /// Sets the anchor of this owner.
    #[must_use]
    pub fn anchored(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    /// Takes the record of the clock, if this is the record. No times that move are in memory yet.
    pub(super) fn load_clock(&mut self, key: &RecordKey, value: &[u8]) -> bool {
        if *key != clock_key() {
            return false;
        }
        self.clock = ClockRecord::decode(value).unwrap_or_default();
        let before = self.clock.anchor;
        let unseen = self.anchor.ahead - before.ahead;
        let comparable = before.boot == self.anchor.boot && before.boot != 0;
        if comparable
            && unseen.abs() >= STEP_MIN
            && self.options.invariants.on(Invariant::StepFoundAtTakeover)
        {
            self.counters.clock_step_found += 1;
            // Other servers have stored tasks since the step.
            self.clock.note(unseen, self.cursor, (self.now - unseen, self.now));
        }
        true
    }

    /// The lane may act: writes the anchor of this owner to the record, and moves the times that are left to
    /// move.
    pub(super) fn settle_clock(&mut self) {
        let known = self.clock.anchor;
        let moved = (self.anchor.ahead - known.ahead).abs() >= STEP_MIN;
        if self.anchor.boot != 0 && (known.boot != self.anchor.boot || moved) {
            self.write_clock(!self.clock.is_rewritten && !self.clock.steps.is_empty());
        }
        self.begin_rewrite();
    }

    /// The wall clock has stepped.
    pub(super) fn on_clock_stepped(&mut self, by: Shift) {
        self.counters.clock_stepped += 1;
        self.now = self.now + by;
        self.anchor.ahead = self.anchor.ahead + by;
        self.clock.note(by, self.cursor, (self.now, self.now));
        self.write_clock(true);
        if self.options.invariants.on(Invariant::StepMovesMemory) {
            self.move_timers(by);
            self.move_tasks(by);
        }
        self.begin_rewrite();
    }

    /// Moves the machine's own timers.
    fn move_timers(&mut self, by: Shift) {
        self.next_sweep = self.next_sweep + by;
        self.timers =
            std::mem::take(&mut self.timers).into_iter().map(|(at, timer)| (at + by, timer)).collect();
        self.lazy.iter_mut().for_each(|(since, _)| *since = *since + by);
        self.limits.move_rates(by);
        for (_, line) in &mut self.lines {
            line.rate_until = line.rate_until.map(|at| at + by);
        }
        for (_, queue) in &mut self.queues {
            queue.rate_until = queue.rate_until.map(|at| at + by);
            queue.waits_since = queue.waits_since.map(|since| since + by);
            queue.turn_length.move_by(by);
        }
        for (_, worker) in &mut self.workers {
            worker.move_by(by);
        }
    }

    /// Moves the waits of tasks in memory.
    fn move_tasks(&mut self, by: Shift) {
        let shift = self.clock.shift;
        for insert in &mut self.bare_inserts {
            insert.task.shift_by(by, shift);
        }
        let mut moved = Vec::new();
        for (handle, entry) in &mut self.entries {
            if let Some(flight) = &mut entry.flight {
                flight.sent_at = flight.sent_at.map(|at| at + by);
                flight.running_since = flight.running_since.map(|since| since + by);
                let state = &mut entry.state;
                for at in [&mut state.scheduled_at, &mut state.dispatched_at, &mut state.started_at] {
                    *at = at.map(|at| at + by);
                }
            }
            if entry.state.counts_down() {
                entry.state.shift_by(by, shift);
                entry.change().touched = true;
                moved.push(handle);
            }
        }
        for handle in moved {
            self.mark(handle, true);
        }
        let delayed = std::mem::take(&mut self.delayed).into_values();
        self.delayed = delayed.map(|handle| (self.entries[handle].delayed_key(), handle)).collect();
    }

    fn write_clock(&mut self, urgent: bool) {
        self.clock.anchor = self.anchor;
        if !self.options.invariants.on(Invariant::StepRecorded) {
            return;
        }
        let record = RecordChange { key: clock_key(), value: Some(self.clock.encode()) };
        // Where no stored time has to move, the record goes with the next commit.
        self.loose.push(Group { records: vec![record], ..Group::default() });
        self.urgent |= urgent || self.releasing;
    }

    /// The shift of the times of a stored task, if they have to move.
    fn stale_by(&self, row: &TaskRow) -> Option<Shift> {
        let by = self.clock.shift - self.clock.made_under(row);
        let stale = by != Shift::ZERO && row.state.counts_down();
        (stale && self.options.invariants.on(Invariant::StepMovesStored)).then_some(by)
    }

    pub(super) fn is_stale(&self, row: &TaskRow) -> bool {
        self.stale_by(row).is_some()
    }

    /// Makes an entry of a row of the store, with its durations as the clock shows them now.
    pub(super) fn admit(&mut self, mut row: TaskRow, line: Handle) -> Handle {
        let stale = self.stale_by(&row);
        let delay = row.state.shift.is_none().then(|| row.state.due.since(row.state.created_at));
        if let Some(by) = stale {
            self.counters.stored_time_moved += 1;
            row.state.shift_by(by, self.clock.shift);
        }
        let late = delay.is_some_and(|delay| bound_waits(&mut row, delay, self.now));
        if late {
            row.state.shift = Some(self.clock.shift);
        }
        let entry = self.insert_entry(Entry::from_row(row, line));
        if stale.is_some() || late {
            self.entries[entry].change().touched = true;
            self.mark(entry, true);
        }
        entry
    }

    /// Begins the pass over the tasks that a step found in the store.
    fn begin_rewrite(&mut self) {
        if self.clock.is_rewritten || self.clock.steps.is_empty() {
            return;
        }
        match &mut self.rewrite {
            Some(pass) => (pass.next, pass.again) = (Some(FIRST), pass.read.is_some()),
            None => self.rewrite = Some(Rewrite { next: Some(FIRST), read: None, again: false }),
        }
    }

    /// Reads on, unless memory has no room for more.
    pub(super) fn ask_rewrite(&mut self, effects: &mut Vec<Effect>) {
        let full = self.delayed.len() > 2 * self.options.delayed_window || self.waiting > self.cut_windows_at;
        let Some(pass) = self.rewrite.as_ref().filter(|pass| pass.read.is_none()) else { return };
        match &pass.next {
            Some(next) if !full => {
                let next = next.clone();
                self.read(next, effects);
                let read = Some(self.next_read);
                self.rewrite = self.rewrite.take().map(|pass| Rewrite { read, ..pass });
            }
            // All tasks read are written back: the pass is done.
            None if self.unwritten.is_empty() && self.batches.is_empty() => {
                self.rewrite = None;
                self.clock.is_rewritten = true;
                self.write_clock(false);
            }
            Some(_) | None => {}
        }
    }

    /// Whether a read belongs to the pass.
    pub(super) fn is_of_rewrite(&self, read: u64) -> bool {
        self.rewrite.as_ref().is_some_and(|pass| pass.read == Some(read))
    }

    /// A page of the pass: tasks whose times have to move come into memory, and are written from there.
    pub(super) fn on_rewrite(&mut self, what: &LaneRead, page: LanePage) {
        let (Some(pass), LanePage::Tasks { rows, more }) = (&mut self.rewrite, page) else { return };
        pass.read = None;
        let last = rows.last().map(|row| (row.state.due, row.state.start_by, row.seq)).filter(|_| more);
        if !std::mem::take(&mut pass.again) {
            let by_deadline = |after| LaneRead::Expiring { until: Timestamp::MAX, after };
            pass.next = match (what, last) {
                (LaneRead::Delayed { .. }, Some((due, _, seq))) => {
                    Some(LaneRead::Delayed { after: Some((due, seq)) })
                }
                (LaneRead::Delayed { .. }, None) => Some(by_deadline(None)),
                (_, Some((_, Some(start_by), seq))) => Some(by_deadline(Some((start_by, seq)))),
                _ => None,
            };
        }
        for row in rows {
            let known = self.by_id.contains_key(&row.id) || self.tombstones.contains_key(&row.id);
            if !known && self.is_stale(&row) {
                self.admit_stale(row);
            }
        }
    }

    /// Takes in a waiting task at its new times.
    pub(super) fn admit_stale(&mut self, row: TaskRow) {
        let entry = self.insert_row(row);
        if self.entries[entry].state.delayed {
            self.place_in_delayed(entry);
        } else {
            self.place_in_line(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn the_record_of_the_clock_keeps_its_bytes() {
        let anchor = Anchor { boot: u64::MAX - 1, ahead: Shift::from_micros(2) };
        let mut record = ClockRecord { shift: Shift::from_micros(-3), anchor, ..ClockRecord::default() };
        check("lane_clock", |golden| {
            record.is_rewritten = true;
            let stored = golden.bytes("ClockRecord without steps", &record.encode());
            assert_eq!(ClockRecord::decode(&stored), Some(record.clone()));
            let clocks = (Timestamp::from_millis(5), Timestamp::from_millis(6));
            record.note(Shift::from_micros(4), Seq(7), clocks);
            let stored = golden.bytes("ClockRecord", &record.encode());
            assert_eq!(ClockRecord::decode(&stored), Some(record));
            golden.text("its key", clock_key().key);
        });
    }
}

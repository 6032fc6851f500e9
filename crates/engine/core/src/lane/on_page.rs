//! Pages from the store: loading at takeover, and paging afterwards.
//!
//! A new owner reads in this order: the highest readable arrival, policies, records, tasks in flight, the
//! inbox. Then it may act. It pages lines and delayed tasks in meanwhile, and follows arrivals from the
//! number read first, so that it misses no submit.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::commit::{RecordKey, RecordKind};
use crate::id::{Seq, TaskId};
use crate::invariant::Invariant;
use crate::read::{Arrival, LanePage, LaneRead};
use crate::task::{OrderKey, Place, TaskHead, TaskRow};
use crate::time::Timestamp;

use super::entry::{Entry, Flight, Handle, Spot};
use super::input::Effect;
use super::limits::{LimitKey, parse_rate_record};
use super::lines::{PROVISIONAL_SEQ, before};
use super::machine::Lane;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadStage {
    /// Not begun.
    New,
    /// Reading the rows that it needs before any decision.
    Must,
    /// The lane may act.
    Complete,
}

/// As [`settled`](super::lines::settled), for delayed tasks.
pub(super) fn settled_delayed((due, seq): (Timestamp, Seq)) -> (Timestamp, Seq) {
    if seq.0 >= PROVISIONAL_SEQ { (due, Seq(0)) } else { (due, seq) }
}

/// The last position before this one.
fn before_delayed((due, seq): (Timestamp, Seq)) -> (Timestamp, Seq) {
    if seq.0 == 0 { (due - Duration::from_micros(1), Seq(u64::MAX)) } else { (due, Seq(seq.0 - 1)) }
}

impl LoadStage {
    pub(super) fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

impl Lane {
    pub(super) fn on_start(&mut self, effects: &mut Vec<Effect>) {
        assert_eq!(self.loading, LoadStage::New, "a lane is started once");
        self.loading = LoadStage::Must;
        self.read(LaneRead::Cursor, effects);
    }

    /// Asks the store.
    pub(super) fn read(&mut self, what: LaneRead, effects: &mut Vec<Effect>) {
        self.next_read += 1;
        let limit = match what {
            LaneRead::Line { .. } => self.window,
            LaneRead::Delayed { .. } => self.options.delayed_window,
            _ => self.options.page,
        };
        self.reads.insert(self.next_read, what.clone());
        effects.push(Effect::Read { read: self.next_read, what, limit });
    }

    pub(super) fn on_page(&mut self, read: u64, page: LanePage, effects: &mut Vec<Effect>) {
        let Some(what) = self.reads.remove(&read) else { return };
        if self.is_of_rewrite(read) {
            self.on_rewrite(&what, page);
            return self.drop_tombstones();
        }
        match (what, page) {
            (LaneRead::Cursor, LanePage::Cursor(cursor)) => {
                self.cursor = cursor;
                self.read(LaneRead::Policies { after: 0 }, effects);
            }
            (LaneRead::Policies { .. }, LanePage::Policies { rows, revision, more }) => {
                self.policies_revision = self.policies_revision.max(revision);
                for (queue, policy) in rows {
                    self.on_policy(&queue, policy);
                }
                if more {
                    self.read(LaneRead::Policies { after: revision }, effects);
                } else if !self.loading.is_complete() {
                    self.read(LaneRead::Records { after: None }, effects);
                }
            }
            (LaneRead::Records { .. }, LanePage::Records { rows, more }) => {
                let last = rows.last().map(|(key, _)| key.clone());
                for (key, value) in rows {
                    self.load_record(&key, &value);
                }
                let next = match last {
                    Some(_) if more => LaneRead::Records { after: last },
                    _ => LaneRead::InFlight { after: None },
                };
                self.read(next, effects);
            }
            (LaneRead::InFlight { .. }, LanePage::Tasks { rows, more }) => {
                let last = rows.last().map(|row| row.id);
                for row in rows {
                    self.adopt(row);
                }
                match last {
                    Some(_) if more => self.read(LaneRead::InFlight { after: last }, effects),
                    _ if self.options.invariants.on(Invariant::InboxAtTakeover) => {
                        self.read(LaneRead::Inbox { after: Seq(0) }, effects);
                    }
                    _ => self.complete_loading(),
                }
            }
            (LaneRead::Inbox { .. }, LanePage::Inbox { rows, more }) => {
                let last = rows.last().map(|row| row.seq);
                for row in rows {
                    self.on_command(&row);
                }
                match last {
                    Some(after) if more => self.read(LaneRead::Inbox { after }, effects),
                    _ => self.complete_loading(),
                }
            }
            (LaneRead::Lines { .. }, LanePage::Tasks { rows, more }) => self.on_lines(rows, more),
            (LaneRead::Line { line, .. }, LanePage::Tasks { rows, more }) => {
                // The line is there: it is not forgotten while it is being read.
                let line = self.line_by_key[&line];
                self.on_line(line, rows, more);
            }
            (LaneRead::Delayed { .. }, LanePage::Tasks { rows, more }) => self.on_delayed(rows, more),
            (LaneRead::Expiring { .. }, LanePage::Tasks { rows, more }) => {
                self.expiring_reading = false;
                let last = rows.last().and_then(|row| row.state.start_by.map(|at| (at, row.seq)));
                for row in rows {
                    self.on_expiring(row);
                }
                if let Some(after) = last.filter(|_| more) {
                    self.expiring_reading = true;
                    self.read(LaneRead::Expiring { until: self.now, after: Some(after) }, effects);
                }
            }
            (LaneRead::Arrivals { .. }, LanePage::Arrivals { rows, next, more }) => {
                self.arrivals_reading = false;
                for row in rows {
                    match row {
                        Arrival::Task(row) if row.state.status.is_in_flight() => self.look_again(row.id),
                        Arrival::Task(row) => self.adopt(row),
                        Arrival::Command(row) => self.on_command(&row),
                    }
                }
                self.cursor = self.cursor.max(next);
                self.arrivals_wanted |= more;
            }
            (LaneRead::Arrivals { .. }, LanePage::Gap) => effects.push(Effect::Reload),
            (LaneRead::Tasks { ids }, LanePage::Tasks { rows, .. }) => {
                for row in rows {
                    self.adopt_for_command(row);
                }
                self.on_tasks_read(&ids);
            }
            (what, page) => unreachable!("the store answered {what:?} with {page:?}"),
        }
        self.drop_tombstones();
    }

    fn drop_tombstones(&mut self) {
        match self.reads.first_key_value() {
            None => self.tombstones.clear(),
            Some((&oldest, _)) => self.tombstones.retain(|_, read| *read >= oldest),
        }
    }

    fn load_record(&mut self, key: &RecordKey, value: &[u8]) {
        if self.load_clock(key, value) {
            return;
        }
        if key.kind == RecordKind::Completion {
            return self.ended.extend(key.key.parse::<TaskId>());
        }
        let Some(value) = value.try_into().ok().map(i64::from_le_bytes) else { return };
        match key.kind {
            RecordKind::Rate if self.options.invariants.on(Invariant::RateAfterTakeover) => {
                let Some((queue, limit, key)) = parse_rate_record(&key.key) else { return };
                let queue = self.intern_queue(&queue);
                let state = self.limits.intern(LimitKey { queue, limit, key: key.into() });
                self.limits.get_mut(state).rate = Some(Timestamp::from_micros(value) + self.clock.shift);
            }
            RecordKind::Rate | RecordKind::Completion => {}
            RecordKind::AppliedPolicy => {
                let version = u64::try_from(value).unwrap_or(0);
                self.applied.insert(super::on_policy::parse_policy_record(&key.key), version);
            }
        }
    }

    /// The lane may act. Attempts of sessions that had ended before the lane was claimed are lost.
    fn complete_loading(&mut self) {
        self.loading = LoadStage::Complete;
        self.arrivals_wanted = true;
        let gone: Vec<Handle> =
            self.workers.iter().filter(|(_, w)| w.descriptor.is_none()).map(|(handle, _)| handle).collect();
        for worker in gone {
            self.end_worker(worker);
        }
        let workers: Vec<Handle> = self.workers.iter().map(|(handle, _)| handle).collect();
        for worker in workers {
            self.greet(worker);
        }
        let entries: Vec<Handle> = self.by_id.values().copied().collect();
        for entry in entries {
            self.arm_start_by(entry);
        }
        self.settle_clock();
        self.apply_policies();
    }

    /// Memory does not know the attempt in a row: the row was read before the attempt ended, and memory has
    /// dropped the task since.
    fn look_again(&mut self, task: TaskId) {
        if self.tombstones.contains_key(&task) {
            self.counters.stale_row_dropped += 1;
        } else if !self.by_id.contains_key(&task) {
            self.reread.insert(task);
        }
    }

    /// Takes a row of the store into memory, unless memory has a newer state.
    pub(super) fn adopt(&mut self, row: TaskRow) {
        if self.by_id.contains_key(&row.id) {
            return;
        }
        if self.tombstones.contains_key(&row.id) {
            self.counters.stale_row_dropped += 1;
            return;
        }
        match row.state.place() {
            Place::Ready => self.adopt_ready(row),
            Place::Delayed => self.adopt_delayed(row),
            Place::InFlight => self.adopt_in_flight(row),
            Place::Done => {}
        }
    }

    /// The same, but takes in a waiting task with a command even where its line has no room for it.
    fn adopt_for_command(&mut self, row: TaskRow) {
        let waiting = row.state.status.is_waiting();
        let known = self.by_id.contains_key(&row.id) || self.tombstones.contains_key(&row.id);
        if waiting && !known && self.commands.contains_key(&row.id) {
            self.insert_row(row);
        } else {
            self.adopt(row);
        }
    }

    /// Makes an entry of a row; the caller decides where to keep it.
    pub(super) fn insert_row(&mut self, row: TaskRow) -> Handle {
        let line = self.intern_line(&row.head, true).expect("the line may be made");
        self.admit(row, line)
    }

    pub(super) fn insert_entry(&mut self, mut entry: Entry) -> Handle {
        let id = entry.id;
        let line = &mut self.lines[entry.line];
        line.entries += 1;
        // Most tasks of a line have the same head; memory keeps it once.
        if !Arc::ptr_eq(&entry.head, &line.head) && entry.head == line.head {
            entry.head = line.head.clone();
        }
        let handle = self.entries.insert(entry);
        self.by_id.insert(id, handle);
        handle
    }

    fn adopt_ready(&mut self, row: TaskRow) {
        let Some(line) = self.intern_line(&row.head, false) else { return };
        let order = row.order();
        let within = |line: &super::lines::Line| !line.more || line.bound.is_some_and(|bound| order <= bound);
        // A row whose times have to move is taken in and written, wherever it belongs.
        if within(&self.lines[line]) || self.is_stale(&row) {
            let entry = self.admit(row, line);
            self.place_in_line(entry);
        } else {
            self.counters.arrival_left_in_store += 1;
            self.lines[line].miss(order);
            self.want_refill(line);
        }
    }

    fn adopt_delayed(&mut self, row: TaskRow) {
        let key = (row.state.due, row.seq);
        let behind = self.delayed_more && self.delayed_bound.is_none_or(|bound| key > bound);
        if behind && !self.is_stale(&row) {
            self.counters.arrival_left_in_store += 1;
            self.miss_delayed(key);
            return;
        }
        let entry = self.insert_row(row);
        self.place_in_delayed(entry);
    }

    /// Puts an entry among the delayed tasks.
    pub(super) fn place_in_delayed(&mut self, entry: Handle) {
        let key = self.entries[entry].delayed_key();
        self.entries[entry].spot = Spot::Delayed;
        self.delayed.insert(key, entry);
        self.evict_delayed();
    }

    /// Drops the end of the delayed tasks when there are too many; unwritten entries stay until they are
    /// written.
    pub(super) fn evict_delayed(&mut self) {
        if self.delayed.len() <= 2 * self.options.delayed_window {
            return;
        }
        while self.delayed.len() > self.options.delayed_window {
            let (&key, &entry) = self.delayed.last_key_value().expect("there are too many");
            if !self.entries[entry].is_clean() {
                break;
            }
            self.delayed.remove(&key);
            self.entries[entry].spot = Spot::Nowhere;
            self.counters.window_evicted += 1;
            self.miss_delayed(key);
            self.forget_entry(entry);
            self.delayed_more = true;
            let last = self.delayed.last_key_value().map(|(&key, _)| settled_delayed(key));
            self.delayed_bound = match (self.delayed_bound, last) {
                (Some(bound), Some(last)) => Some(bound.min(last)),
                (_, last) => last,
            };
        }
    }

    /// A delayed task is left to the store, and a page under way may lack it.
    pub(super) fn miss_delayed(&mut self, key: (Timestamp, Seq)) {
        if self.delayed_reading {
            let key = settled_delayed(key);
            self.delayed_missed = Some(self.delayed_missed.map_or(key, |missed| missed.min(key)));
        }
    }

    /// The store has a task that was never in memory: its line, or the delayed tasks, no longer cover all
    /// that the store has.
    pub(super) fn left_in_store(&mut self, head: &Arc<TaskHead>, due: Timestamp, seq: Seq, delayed: bool) {
        if delayed {
            self.miss_delayed((due, seq));
            let before = before_delayed((due, seq));
            self.delayed_bound = if self.delayed_more {
                self.delayed_bound.map(|bound| bound.min(before))
            } else {
                Some(before)
            };
            self.delayed_more = true;
            return;
        }
        let Some(handle) = self.intern_line(head, false) else { return };
        let order = OrderKey { rank: head.priority.rank(), due, seq };
        let line = &mut self.lines[handle];
        line.miss(order);
        line.bound =
            if line.more { line.bound.map(|bound| bound.min(before(order))) } else { Some(before(order)) };
        line.more = true;
        self.refresh_line(handle);
        self.want_refill(handle);
    }

    fn adopt_in_flight(&mut self, row: TaskRow) {
        let Some(session) = row.state.session else { return };
        let entry = self.insert_row(row);
        let worker = self.intern_worker(session);
        // Another clock wrote its start time.
        let running_since = self.entries[entry].state.started_at.map(|_| self.now);
        let limits = if self.options.invariants.on(Invariant::LimitsAfterTakeover) {
            self.hold_limits(entry)
        } else {
            SmallVec::default()
        };
        let e = &mut self.entries[entry];
        e.spot = Spot::Worker;
        e.flight = Some(Flight {
            worker,
            k: crate::id::DispatchNo(0),
            limits,
            sent_at: Some(self.now),
            beats_missing: 0,
            recalls: 0,
            running_since,
        });
        self.workers[worker].holds.insert(entry);
        if self.loading.is_complete() {
            self.arm_start_by(entry);
            // By now the lane has the view of all live sessions.
            if self.workers[worker].descriptor.is_none() {
                self.end_worker(worker);
            }
        }
    }

    fn on_lines(&mut self, rows: Vec<TaskRow>, more: bool) {
        self.lines_reading = false;
        let mut full = false;
        for row in rows {
            let key = row.head.line();
            if !self.line_by_key.contains_key(&key) {
                let Some(line) = self.intern_line(&row.head, false) else {
                    full = true;
                    break;
                };
                self.lines[line].more = true;
                self.want_refill(line);
            }
            self.lines_cursor = Some(key);
        }
        if full {
            // The sweep finds the rest, when other lines are gone.
            self.lines_loaded = true;
        } else if !more {
            self.lines_loaded = true;
            self.lines_more = std::mem::take(&mut self.lines_missed);
            self.lines_cursor = None;
        }
    }

    fn on_line(&mut self, line: Handle, rows: Vec<TaskRow>, more: bool) {
        self.lines[line].reading = false;
        let missed = self.lines[line].missed.take().map(|missed| *missed);
        if let Some(last) = rows.last() {
            self.lines[line].bound = Some(last.order());
        }
        self.lines[line].more = more || missed.is_some();
        if let Some(missed) = missed {
            let before = before(missed);
            let bound = self.lines[line].bound;
            self.lines[line].bound = Some(bound.map_or(before, |bound| bound.min(before)));
        }
        for row in rows {
            if self.by_id.contains_key(&row.id) {
                continue;
            }
            if self.tombstones.contains_key(&row.id) {
                self.counters.stale_row_dropped += 1;
                continue;
            }
            let entry = self.admit(row, line);
            self.place_in_line(entry);
        }
        self.refresh_line(line);
        self.want_refill(line);
        self.drop_line_if_empty(line);
    }

    fn on_delayed(&mut self, rows: Vec<TaskRow>, more: bool) {
        self.delayed_reading = false;
        let missed = self.delayed_missed.take();
        if let Some(last) = rows.last() {
            self.delayed_bound = Some((last.state.due, last.seq));
        }
        self.delayed_more = more || missed.is_some();
        if let Some(missed) = missed {
            let before = before_delayed(missed);
            self.delayed_bound = Some(self.delayed_bound.map_or(before, |bound| bound.min(before)));
        }
        for row in rows {
            let known = self.by_id.contains_key(&row.id) || self.tombstones.contains_key(&row.id);
            if !known {
                let entry = self.insert_row(row);
                self.place_in_delayed(entry);
            }
        }
    }

    /// Sends the reads that are due.
    pub(super) fn ask(&mut self, effects: &mut Vec<Effect>) {
        if self.arrivals_wanted && !self.arrivals_reading {
            self.arrivals_wanted = false;
            self.arrivals_reading = true;
            self.read(LaneRead::Arrivals { after: self.cursor }, effects);
        }
        // The owner reads new lines no faster than their windows, so that it knows how much room is left.
        if !self.lines_loaded && !self.lines_reading && self.refill.len() < self.options.page {
            self.lines_reading = true;
            self.read(LaneRead::Lines { after: self.lines_cursor }, effects);
        }
        // Delayed tasks behind the bound may come after tasks that are not read yet.
        let first = self.delayed.first_key_value().map(|(&key, _)| key);
        let behind = first.is_some_and(|first| self.delayed_bound.is_none_or(|bound| first > bound));
        let behind = behind && self.delayed.len() <= 2 * self.options.delayed_window;
        let few = self.delayed.len() <= self.options.delayed_window / 2;
        if self.delayed_more && !self.delayed_reading && (few || behind) {
            self.delayed_reading = true;
            self.read(LaneRead::Delayed { after: self.delayed_bound }, effects);
        }
        if !self.commands_unread.is_empty() || !self.reread.is_empty() {
            let mut ids = std::mem::take(&mut self.commands_unread);
            ids.extend(std::mem::take(&mut self.reread));
            for ids in ids.chunks(self.options.page) {
                self.read(LaneRead::Tasks { ids: ids.to_vec() }, effects);
            }
        }
        self.ask_rewrite(effects);
        let under_way = self.reads.values().filter(|what| matches!(what, LaneRead::Line { .. })).count();
        for _ in under_way..self.options.line_reads {
            let Some(handle) = self.refill.pop_first() else { break };
            if !self.lines.contains(handle) || !self.wants_refill(handle) {
                continue;
            }
            let line = &mut self.lines[handle];
            line.reading = true;
            let what = LaneRead::Line { line: line.key, after: line.bound };
            self.read(what, effects);
        }
    }
}

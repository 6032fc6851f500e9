//! Assignment: the owner gives the next task of the next queue to a worker that can run it and has room.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::commit::{Group, RecordChange};
use crate::id::{DispatchNo, LimitId};
use crate::invariant::Invariant;
use crate::policy::Rate;
use crate::status::Status;
use crate::time::Timestamp;

use super::entry::{Flight, Handle, Spot};
use super::limits::{LimitKey, LimitState, Rule, rate_record, rate_value};
use super::machine::{Lane, Timer};

/// Assignments in one step, so that reports and submits get their turn.
const ASSIGN_MAX: usize = 4096;

/// Why a limit does not allow an assignment now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitVerdict {
    Free,
    /// As many attempts run as the limit allows.
    Full,
    /// The rate allows the next one at this time.
    Until(Timestamp),
}

impl Lane {
    pub(super) fn assign(&mut self) {
        if self.releasing {
            return;
        }
        let mut assigned = 0;
        while assigned < ASSIGN_MAX {
            let Some(&(_, queue)) = self.active.first() else { break };
            let &((_, _, _, _, line), class) =
                self.queues[queue].open.first().expect("an active queue has an open class");
            match self.queue_verdict(queue) {
                LimitVerdict::Free => {}
                LimitVerdict::Full => {
                    self.counters.queue_parked += 1;
                    self.queues[queue].full = true;
                    self.refresh_active(queue);
                    continue;
                }
                LimitVerdict::Until(at) => {
                    self.counters.queue_parked += 1;
                    self.queues[queue].rate_until = Some(at);
                    self.timers.insert((at, Timer::QueueRate(queue)));
                    self.refresh_active(queue);
                    continue;
                }
            }
            match self.line_verdict(line) {
                LimitVerdict::Free => {}
                LimitVerdict::Full => {
                    self.counters.line_parked += 1;
                    self.lines[line].parked = true;
                    self.refresh_line(line);
                    continue;
                }
                LimitVerdict::Until(at) => {
                    self.counters.line_parked += 1;
                    self.lines[line].rate_until = Some(at);
                    self.timers.insert((at, Timer::LineRate(line)));
                    self.refresh_line(line);
                    continue;
                }
            }
            let Some(worker) = self.choose(class, line) else {
                self.wait_for_answer(queue, class);
                continue;
            };
            let (_, entry) = self.lines[line].window.first().expect("an open line has a first task");
            self.assign_to(entry, worker);
            assigned += 1;
            self.end_turn(queue, class, line);
            self.advance_pass(queue);
        }
    }

    /// Advances the rotation to the next line unless the current line has turns left.
    fn end_turn(&mut self, queue: Handle, class: Handle, line: Handle) {
        let q = &mut self.queues[queue];
        if !q.fair || !self.options.invariants.on(Invariant::LinesTakeTurns) {
            return;
        }
        let lines = q.ready.get(&class).map_or(0, BTreeSet::len);
        let state = &mut self.lines[line];
        state.taken += 1;
        if state.taken >= q.turn_length.tasks(lines, self.now) {
            let (round, count) = (q.turn.0.max(state.turn.0), q.turn.1 + 1);
            q.turn = (round, count);
            state.taken = 0;
            state.turn = (self.limits.next_round(state.limits.first().copied(), round + 1), count);
            self.refresh_line(line);
        }
    }

    fn assign_to(&mut self, handle: Handle, worker: Handle) {
        let line = self.entries[handle].line;
        let order = self.entries[handle].order();
        self.lines[line].window.remove(&order);
        self.count_waiting(line, -1);
        let queue = self.lines[line].queue;
        if let Some(policy) = self.unrecorded_policy(queue) {
            let key = self.queues[queue].key.clone();
            self.record_policy(&key, policy);
        }
        let now = self.now;
        self.take_rates(handle, now, false);
        let limits = self.hold_limits(handle);
        let k = self.take_number(worker);
        let w = &self.workers[worker];
        let (session, name) = (w.session, w.descriptor.as_ref().map(|d| d.name.clone()));
        let entry = &mut self.entries[handle];
        entry.state.delayed = false;
        entry.state.session = Some(session);
        entry.state.worker = name;
        entry.spot = Spot::Worker;
        entry.change().assigned = self.uses;
        entry.enter(Status::Scheduled, now);
        entry.flight = Some(Flight {
            worker,
            k,
            limits,
            sent_at: None,
            beats_missing: 0,
            recalls: 0,
            running_since: None,
        });
        self.workers[worker].holds.insert(handle);
        self.refresh_load(worker);
        self.mark(handle, true);
        if !self.options.invariants.on(Invariant::WriteAhead) {
            self.dispatch(handle);
        }
        self.refresh_line(line);
        self.want_refill(line);
        self.refresh_worker(worker);
    }

    /// The policy version of a queue's assignments, if the store does not know it yet.
    fn unrecorded_policy(&self, queue: Handle) -> Option<u64> {
        let q = &self.queues[queue];
        let version = q.policy.version;
        (version > 0 && self.applied.get(&q.key).is_none_or(|&applied| applied < version)).then_some(version)
    }

    /// The next dispatch number of a worker.
    pub(super) fn take_number(&mut self, worker: Handle) -> DispatchNo {
        let w = &mut self.workers[worker];
        assert!(w.last_k < w.credit, "no more dispatches than there is credit for");
        w.last_k = w.last_k.next();
        w.last_k
    }

    /// Counts an attempt under all of its limits.
    pub(super) fn hold_limits(&mut self, handle: Handle) -> SmallVec<[Handle; 2]> {
        let line = &self.lines[self.entries[handle].line];
        let queue = &self.queues[line.queue];
        let limits: SmallVec<[Handle; 2]> = queue.whole.iter().chain(&line.limits).copied().collect();
        let unstarted = u32::from(self.entries[handle].state.status != Status::Running);
        for &limit in &limits {
            let state = self.limits.get_mut(limit);
            state.running += 1;
            state.unstarted += unstarted;
        }
        limits
    }

    /// The limit over the whole queue may be new: counts the attempts in flight under it.
    pub(super) fn recount_whole(&mut self, queue: Handle) {
        let Some(state) = self.queues[queue].whole else { return };
        for (_, entry) in &mut self.entries {
            let Some(flight) = &mut entry.flight else { continue };
            if self.lines[entry.line].queue == queue && !flight.limits.contains(&state) {
                flight.limits.push(state);
                let counted = self.limits.get_mut(state);
                counted.running += 1;
                counted.unstarted += u32::from(flight.running_since.is_none());
            }
        }
    }

    fn queue_verdict(&self, queue: Handle) -> LimitVerdict {
        let q = &self.queues[queue];
        let Some((state, rule)) = q.whole.zip(q.rules.find(LimitId::QUEUE)) else {
            return LimitVerdict::Free;
        };
        self.limit_verdict(rule, self.limits.get(state))
    }

    /// Judges a line by the limits of its keys; a reached one remembers that the line waits for it.
    fn line_verdict(&mut self, line: Handle) -> LimitVerdict {
        let line = &self.lines[line];
        let rules = &self.queues[line.queue].rules;
        let mut verdict = LimitVerdict::Free;
        let mut reached: SmallVec<[Handle; 2]> = SmallVec::new();
        for (flow, &handle) in line.head.flow.iter().zip(&line.limits) {
            for rule in rules.of_key(flow) {
                if flow.own.is_some() && !self.options.invariants.on(Invariant::OwnLimits) {
                    continue;
                }
                let found = self.limit_verdict(&rule, self.limits.get(handle));
                if found == LimitVerdict::Full {
                    reached.push(handle);
                }
                verdict = worse(verdict, found);
            }
        }
        for handle in reached {
            self.limits.get_mut(handle).parked = true;
        }
        verdict
    }

    pub(super) fn limit_verdict(&self, rule: &Rule, state: &LimitState) -> LimitVerdict {
        if rule.concurrency.is_some_and(|max| state.running >= max.limit) {
            return LimitVerdict::Full;
        }
        if let (Some(rate), Some(stored)) = (&rule.rate, state.rate) {
            let next_at = rate.next_at(rate.settle(stored, self.now));
            if next_at > self.now {
                return LimitVerdict::Until(next_at);
            }
        }
        // Attempts that wait at a worker would start together when the worker has room.
        if rule.rate.is_some_and(|rate| state.unstarted >= rate.ahead()) {
            return LimitVerdict::Full;
        }
        LimitVerdict::Free
    }

    /// Whether a rate counts the tasks of a line.
    pub(super) fn is_rated(&self, line: Handle) -> bool {
        !self.rates_of(line).is_empty()
    }

    /// The rates that count the tasks of a line.
    fn rates_of(&self, line: Handle) -> SmallVec<[(Handle, Rate); 2]> {
        let line = &self.lines[line];
        let queue = &self.queues[line.queue];
        let whole = queue.whole.zip(queue.rules.find(LimitId::QUEUE).copied());
        let by_key = line.head.flow.iter().zip(&line.limits);
        let by_key =
            by_key.flat_map(|(flow, &state)| queue.rules.of_key(flow).map(move |rule| (state, rule)));
        whole.into_iter().chain(by_key).filter_map(|(state, rule)| Some((state, rule.rate?))).collect()
    }

    /// Moves the rates that count an assignment; their new times go into the same group. An attempt that
    /// started late moves them again: the next attempts keep their distance from the start, not from the
    /// assignment.
    pub(super) fn take_rates(&mut self, handle: Handle, at: Timestamp, late: bool) {
        for (state, rate) in self.rates_of(self.entries[handle].line) {
            let state = self.limits.get_mut(state);
            // The attempts that wait beside it may start at the same moment.
            let beside = if late { state.unstarted.saturating_sub(1) } else { 0 };
            let mut moved = moved_rate(rate, state.rate, at) + rate.interval() * beside;
            if late {
                // It started in the past, and the lane may have assigned others since.
                moved = moved.max(state.rate.unwrap_or(moved));
            }
            state.rate = Some(moved);
            let LimitKey { queue, limit, key } = &state.key;
            let key = rate_record(&self.queues[*queue].key, *limit, key);
            let record = RecordChange { key, value: Some(rate_value(moved - self.clock.shift)) };
            if late {
                // Written at once, and not with the start: later assignments may be written before the start.
                self.write_loose(Group { records: vec![record], ..Group::default() });
            } else {
                self.entries[handle].change().records.push(record);
            }
        }
    }

    /// Asks workers for room where there is work and no worker with room for it.
    pub(super) fn announce(&mut self) {
        for class in std::mem::take(&mut self.starved) {
            let Some(c) = self.classes.get(class) else { continue };
            if c.free.is_empty() && !c.unasked.is_empty() {
                self.ask_class(class);
            }
        }
    }

    /// Tasks in memory of a line that its limits allow now.
    pub(super) fn assignable(&self, line: Handle) -> usize {
        let line = &self.lines[line];
        let rules = &self.queues[line.queue].rules;
        let by_key = line.head.flow.iter().zip(&line.limits);
        let slots = by_key.flat_map(|(flow, &state)| {
            rules.of_key(flow).map(move |rule| limit_slots(&rule, self.limits.get(state)))
        });
        slots.fold(line.window.len(), usize::min)
    }

    /// Tasks that the limit over the whole queue allows now.
    pub(super) fn queue_slots(&self, queue: Handle) -> usize {
        let q = &self.queues[queue];
        let whole = q.whole.zip(q.rules.find(LimitId::QUEUE));
        whole.map_or(usize::MAX, |(state, rule)| limit_slots(rule, self.limits.get(state)))
    }

    /// Whether there is a ready line that the worker could serve.
    pub(super) fn has_work_for(&self, worker: Handle) -> bool {
        let w = &self.workers[worker];
        let goes = |&queue: &Handle| self.queues[queue].may_assign();
        !w.unsent.is_empty() || w.classes.iter().any(|&class| self.classes[class].queues.iter().any(goes))
    }
}

fn limit_slots(rule: &Rule, state: &LimitState) -> usize {
    let room = rule.concurrency.map_or(u32::MAX, |max| max.limit.saturating_sub(state.running));
    usize::try_from(room).unwrap_or(usize::MAX)
}

fn moved_rate(rate: Rate, stored: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let stored = stored.map_or(Timestamp::from_micros(i64::MIN / 2), |stored| rate.settle(stored, now));
    rate.after(stored, now)
}

fn worse(a: LimitVerdict, b: LimitVerdict) -> LimitVerdict {
    match (a, b) {
        (LimitVerdict::Full, _) | (_, LimitVerdict::Full) => LimitVerdict::Full,
        (LimitVerdict::Until(a), LimitVerdict::Until(b)) => LimitVerdict::Until(a.max(b)),
        (LimitVerdict::Until(at), LimitVerdict::Free) | (LimitVerdict::Free, LimitVerdict::Until(at)) => {
            LimitVerdict::Until(at)
        }
        (LimitVerdict::Free, LimitVerdict::Free) => LimitVerdict::Free,
    }
}

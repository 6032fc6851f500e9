//! Checks when tasks start, and how long they hold unique keys, by a clock that never steps. The wall clock
//! of all servers steps, and servers follow it by design.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::LaneId;
use tasklane_core::id::TaskId;
use tasklane_core::lane::{Anchor, recorded_clock};
use tasklane_core::task::NewTask;
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::Submit;
use tasklane_schedule::BACK_MIN;

use crate::Scenario;
use crate::world::{Event, World};

/// The steps of the wall clock, and the requested times of tasks.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    tasks: BTreeMap<TaskId, RequestedTimes>,
    /// How far the wall clock was ahead, and since when.
    steps: Vec<(Timestamp, Shift)>,
}

/// The requested times of a task.
#[derive(Clone, Debug)]
struct RequestedTimes {
    /// When a server took it in for the first time, and for the last; the checker does not know which of
    /// these the store has.
    first: Timestamp,
    last: Timestamp,
    delay: Option<Duration>,
    run_at: Option<Timestamp>,
    hold_for: Option<Duration>,
    /// The store took it in past the owner of its lane.
    direct: bool,
    /// … before the lane had written the last step.
    unsure: bool,
    started: bool,
}

/// If the store takes a task in past the owner of its lane, this shortly before or after a step, the owner
/// may count it with the tasks of the other side.
const UNSURE: Duration = Duration::from_secs(30);
/// The same for the unique key of any task.
const ON_ITS_WAY: Duration = Duration::from_secs(10);
/// A change that is written later than this after its decision is not judged closely.
const WRITTEN_WITHIN: Duration = Duration::from_secs(40);
/// The allowed difference between the times of servers and of this module.
const SLACK: Duration = Duration::from_millis(600);
/// How far the wall clock is ahead, where it steps by hours and days. The last value lies between the others:
/// so a machine that forgets a step is late by hours for some tasks, and early for others.
const FAR_AHEAD: [i64; 4] = [0, 3_600, 86_400, 864_000];
pub(crate) const FAR_LAST: i64 = 3_600;

impl World {
    /// How far the clock of a server's machine is ahead.
    pub(crate) fn ahead_of(&self, index: usize) -> Shift {
        self.ahead + Shift::from_micros(self.servers[index].wall_ahead)
    }

    /// The wall clock steps.
    pub(crate) fn step_clock(&mut self) {
        self.report.fault("clock stepped");
        if self.scenario.far_steps {
            let secs = FAR_AHEAD[self.rng.index(FAR_AHEAD.len())];
            self.set_clock_far(secs);
            let steps = self.timing.steps.len();
            self.after(Scenario::SETTLE_TIME * 3 / 4, Event::ClockReturns { steps });
        } else {
            let secs = self.rng.below(Scenario::NEAR_STEP_MAX.as_secs());
            self.set_clock(i64::try_from(secs).unwrap_or(0));
        }
    }

    /// The wall clock has not stepped for a while. Where it steps by hours and days it steps again before it settles.
    pub(crate) fn clock_returns(&mut self, steps: usize) {
        if self.timing.steps.len() != steps || self.weather.healed {
            return;
        }
        self.step_clock();
    }

    /// The wall clock steps by hours or days. It never comes back to a time that a server has seen it at: one that was paused
    /// meanwhile would notice no step.
    pub(crate) fn set_clock_far(&mut self, secs: i64) {
        self.set_clock(secs + 2 * i64::try_from(self.timing.steps.len() + 1).unwrap_or(0));
    }

    fn set_clock(&mut self, secs: i64) {
        let ahead = Shift::from_millis(secs * 1000);
        if ahead != self.ahead {
            self.ahead = ahead;
            self.timing.steps.push((self.now, ahead));
        }
    }

    /// A server takes a task in: its times begin now, by the server's clock.
    pub(crate) fn stamp(&mut self, index: usize, task: &mut NewTask) {
        let wall = self.wall_of(index);
        let by = wall.shift_from(task.created_at);
        let relative = task.spec.body.relative;
        let RequestedTimes { last, .. } =
            self.timing.tasks.entry(task.id).or_insert_with(|| RequestedTimes {
                first: self.now,
                last: self.now,
                delay: relative.then(|| task.due.since(task.created_at)),
                run_at: (!relative && task.due > task.created_at).then_some(task.due),
                hold_for: task
                    .unique
                    .as_ref()
                    .and_then(|u| u.until)
                    .map(|until| until.since(task.created_at)),
                direct: false,
                unsure: false,
                started: false,
            });
        *last = self.now;
        if relative || task.due <= task.created_at {
            task.due = task.due + by;
        }
        task.created_at = wall;
        if let Some(until) = task.unique.as_mut().and_then(|unique| unique.until.as_mut()) {
            *until = *until + by;
        }
    }

    /// A server gives tasks to the store, with the times that the owner of their lane would give them.
    pub(crate) fn keyed_submit(&self, submit: &Submit) -> Submit {
        let (shift, _) = self.recorded(submit.lane).unwrap_or_default();
        let mut tasks = submit.tasks.to_vec();
        tasks.iter_mut().filter(|task| task.unique.is_some()).for_each(|task| task.key_by(shift));
        Submit { lane: submit.lane, tasks: tasks.into() }
    }

    fn recorded(&self, lane: LaneId) -> Option<(Shift, Anchor)> {
        let records = self.store.records(lane).take(1);
        let records: Vec<_> = records.map(|(key, value)| (key.clone(), value.to_vec())).collect();
        recorded_clock(&records)
    }

    /// The store has judged a task past the owner of its lane.
    pub(crate) fn stored_directly(&mut self, task: TaskId) {
        let recorded = self.recorded(task.lane()).map(|(_, anchor)| anchor.ahead);
        let unsure = recorded.unwrap_or_default() != self.ahead;
        if let Some(asked) = self.timing.tasks.get_mut(&task) {
            (asked.direct, asked.unsure) = (true, unsure);
        }
    }

    /// The requested times of a task, if they can be checked.
    fn asked(&self, task: TaskId) -> Option<&RequestedTimes> {
        let asked = self.timing.tasks.get(&task).filter(|_| !self.scenario.clock_jumps)?;
        let unsure = asked.unsure || (asked.direct && self.is_near_step(asked, UNSURE));
        (!unsure).then_some(asked)
    }

    /// The same for its unique key: keys of tasks that come this shortly before or after a step may be
    /// counted with the tasks of the other side, whether the owner or the store takes them in.
    fn asked_of_key(&self, task: TaskId) -> Option<&RequestedTimes> {
        self.asked(task).filter(|asked| !self.is_near_step(asked, ON_ITS_WAY))
    }

    fn is_near_step(&self, asked: &RequestedTimes, within: Duration) -> bool {
        let near = |at: Timestamp| at <= asked.last + within && asked.first <= at + within;
        self.timing.steps.iter().any(|(at, _)| near(*at))
    }

    /// Whether a task may wait for as long as a step of the clock, because it was counted by the clock before
    /// the step.
    pub(crate) fn may_wait_for_ever(&self, task: TaskId) -> bool {
        self.scenario.far_steps && self.timing.tasks.contains_key(&task) && self.asked(task).is_none()
    }

    /// The time until which a task holds its unique key at least, and the time by which the store judges the
    /// task itself.
    pub(crate) fn held(&self, task: TaskId) -> Option<(Option<Timestamp>, Timestamp)> {
        let asked = self.asked_of_key(task)?;
        Some((asked.hold_for.map(|time| asked.first + time - SLACK), asked.last))
    }

    /// A task was refused because another task holds its key until a time.
    pub(crate) fn check_refused(&mut self, task: TaskId, holder: TaskId) {
        let (Some(new), Some(old)) = (self.asked_of_key(task), self.asked_of_key(holder)) else { return };
        if let Some(until) = old.hold_for.map(|time| old.last + time + SLACK)
            && until < new.first
        {
            let what = format!("task {task} was refused, but {holder} holds its key only until {until}");
            self.checker.fail(self.now, what);
        }
    }

    /// A worker starts a task.
    pub(crate) fn check_start(&mut self, task: TaskId) {
        let first =
            self.timing.tasks.get_mut(&task).is_some_and(|t| !std::mem::replace(&mut t.started, true));
        let Some(asked) = self.asked(task).filter(|_| first) else { return };
        let (from, now) = (asked.first, self.now);
        if let Some(delay) = asked.delay.filter(|delay| now + SLACK < from + *delay) {
            let what =
                format!("task {task} has a delay of {delay:?}, but started after {:?}", now.since(from));
            self.checker.fail(now, what);
        } else if let Some(run_at) = asked.run_at.filter(|run_at| !self.was(*run_at, from)) {
            let what = format!("task {task} started, but the wall clock never showed its time {run_at}");
            self.checker.fail(now, what);
        }
    }

    /// A task has failed because it did not start in time.
    pub(crate) fn check_start_timeout(&mut self, task: TaskId) {
        let timeout = self.store.task(task).and_then(|task| task.head.start_timeout);
        let asked = self.asked(task).filter(|asked| asked.run_at.is_none());
        let Some((asked, timeout)) = asked.zip(timeout) else { return };
        let (from, time) = (asked.first, asked.delay.unwrap_or_default() + timeout);
        if self.now + SLACK < from + time {
            let passed = self.now.since(from);
            let what = format!("task {task} had {time:?} to start, but failed after {passed:?}");
            self.checker.fail(self.now, what);
        }
    }

    /// When the wall clock of all servers showed a time that was written just now: at the earliest.
    pub(crate) fn shown_at(&self, wall: Timestamp) -> Timestamp {
        let earliest = self.now - WRITTEN_WITHIN;
        let aheads = [Shift::ZERO].into_iter().chain(self.timing.steps.iter().map(|(_, ahead)| *ahead));
        let shown = aheads.map(|ahead| wall - ahead);
        shown.filter(|at| (earliest..=self.now + SLACK).contains(at)).min().unwrap_or(earliest)
    }

    /// Whether the wall clock shows a time again between two others that it has shown before: it went back by more than
    /// schedules pass over.
    pub(crate) fn went_back_between(&self, after: Timestamp, until: Timestamp) -> bool {
        let before = [Shift::ZERO].into_iter().chain(self.timing.steps.iter().map(|(_, ahead)| *ahead));
        let mut steps = before.zip(&self.timing.steps);
        steps.any(|(before, (at, ahead))| {
            (after..=until).contains(at) && (*ahead - before).is_back() && (*ahead - before).abs() > BACK_MIN
        })
    }

    /// How far the wall clock was ahead at a time, and since when.
    pub(crate) fn ahead_at(&self, time: Timestamp) -> (Timestamp, Shift) {
        let steps = self.timing.steps.iter().rev();
        steps.copied().find(|(at, _)| *at <= time).unwrap_or((Timestamp::ZERO, Shift::ZERO))
    }

    /// Whether the wall clock has shown a time since `from`.
    fn was(&self, time: Timestamp, from: Timestamp) -> bool {
        let begin = [(Timestamp::ZERO, Shift::ZERO)];
        let all: Vec<_> = begin.iter().chain(&self.timing.steps).copied().collect();
        let ends = all.iter().skip(1).map(|(at, _)| *at).chain([self.now]);
        all.iter().zip(ends).any(|((_, ahead), end)| end >= from && end + *ahead + SLACK >= time)
    }
}

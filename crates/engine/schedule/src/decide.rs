//! What a schedule does, step by step.
//!
//! A fire is planned, submitted, and settled. The plan holds the task with its id and is written before the task is
//! submitted; the next time is written together with it. So a fire is never lost, because it is found as planned until it
//! is settled, and never doubled, because the task that is submitted again is the same one.
//!
//! All of this is pure: whoever runs it reads the schedule, steps, writes it back if nobody else has written it since,
//! and only then does what the plan says.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::TaskId;
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_core::task::{NewTask, Occasion};
use tasklane_core::time::Timestamp;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::Times;
use crate::alerts::{News, Unbegun};
use crate::rule::{Backfill, Fate, Fire, Missed, Overlap, Planned, Rule, Schedule, State};

/// How late a time is missed where a rule names no time: the distance to the following time, but not less than this. A
/// server or its store may stall for a moment.
pub const MISSED_AFTER_MIN: Duration = Duration::from_secs(5);

/// Likewise, not more than this.
pub const MISSED_AFTER_MAX: Duration = Duration::from_mins(1);

/// The most fires that wait for the end of the task before, with [`Overlap::BufferAll`].
pub const BUFFER_MAX: usize = 1000;

/// The most times that are judged at once; the schedule is due again for the rest.
const JUDGED_MAX: usize = 10_000;

/// How often the end of a task that a fire waits for is looked for, should nobody tell of it.
pub const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The most fires in one plan.
pub const FIRES_MAX: usize = 100;

/// About how many bytes the tasks of a plan may have.
const PLAN_BYTES_MAX: usize = 512 << 10;

/// The most tasks whose end is waited for; the oldest are given up first.
const OPEN_MAX: usize = 1000;

/// How far missed times are counted.
const COUNTED_MAX: u32 = 1000;

/// What a decision is made by.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// The time.
    pub now: Timestamp,
    /// The clock is trusted: what it says to have passed has passed.
    pub settled: bool,
    /// How open tasks stand, of those that have begun.
    pub stands: &'a BTreeMap<TaskId, Stand>,
    /// Which invariants are on.
    pub invariants: Invariants,
}

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It has begun, and not ended.
    Begun,
    /// It succeeded.
    Success,
    /// It began, and failed.
    Failure,
    /// It failed before it began.
    NeverBegan,
    /// It was cancelled, or is not there any more.
    Neither,
}

/// What became of a submitted task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is there.
    Yes,
    /// It is not, for this reason.
    No(String),
}

/// The first time after one, within bounds.
pub fn after_within(
    times: &Times,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    after: Timestamp,
) -> Option<Timestamp> {
    let after = match from {
        Some(from) if from > after => from - Duration::from_micros(1),
        _ => after,
    };
    times.after(after).filter(|next| until.is_none_or(|until| *next <= until))
}

impl Rule {
    /// The first time after one, within the bounds.
    pub fn after(&self, times: &Times, after: Timestamp) -> Option<Timestamp> {
        after_within(times, self.from, self.until, after)
    }

    /// When a time is fired: moved by jitter, always by the same.
    pub fn due(&self, id: &str, nominal: Timestamp) -> Timestamp {
        let span = u64::try_from(self.jitter.as_micros()).unwrap_or(u64::MAX);
        if span == 0 {
            return nominal;
        }
        let moved = xxh3_64_with_seed(id.as_bytes(), nominal.as_micros().cast_unsigned()) % (span + 1);
        nominal + Duration::from_micros(moved)
    }

    /// How late a time is missed, beyond its jitter.
    pub fn missed_after(&self, times: &Times, nominal: Timestamp) -> Duration {
        self.missed_after.unwrap_or_else(|| {
            let apart = self.after(times, nominal).map_or(MISSED_AFTER_MAX, |next| next.since(nominal));
            apart.clamp(MISSED_AFTER_MIN, MISSED_AFTER_MAX)
        })
    }

    /// How many fires go into one plan, which holds their tasks.
    fn fires_max(&self) -> usize {
        (PLAN_BYTES_MAX / (self.task.len() + 1024)).clamp(1, FIRES_MAX)
    }

    /// Whether it matters how its tasks end.
    fn follows(&self) -> bool {
        self.overlap != Overlap::AllowAll || self.watches()
    }

    /// Whether something is to be done as soon as its tasks end.
    pub fn watches(&self) -> bool {
        matches!(self.overlap, Overlap::BufferOne | Overlap::BufferAll | Overlap::CancelOther)
            || self.pause_after.is_some()
            || self.late_after.is_some()
            || self.tells(Occasion::Failing)
    }
}

impl Schedule {
    /// A new one.
    pub fn new(rule: Rule, times: &Times, now: Timestamp) -> Self {
        let mut schedule = Self { rule, state: State::new(now) };
        schedule.state.next = schedule.rule.after(times, now);
        schedule
    }

    /// Gives it another rule. Times before now are not its business.
    pub fn change(&mut self, rule: Rule, times: &Times, now: Timestamp) {
        if self.rule.webhooks != rule.webhooks {
            self.tell_anew();
        }
        if rule.overlap != Overlap::BufferAll {
            self.skip_waiting(now, "the schedule was changed before its turn");
        }
        self.rule = rule;
        self.state.put_off.clear();
        self.state.updated_at = now;
        self.state.next = self.rule.after(times, now);
    }

    /// Stops it, for a reason; what was decided is still carried out.
    pub fn pause(&mut self, reason: &str, now: Timestamp) {
        self.state.paused = Some(reason.to_owned());
        let reason = "the schedule was paused before its turn";
        if let Some(nominal) = self.state.buffered.take() {
            self.state.skip(Fire { nominal, backfill: 0 }, now, reason);
        }
        self.skip_waiting(now, reason);
    }

    fn skip_waiting(&mut self, now: Timestamp, reason: &str) {
        for nominal in std::mem::take(&mut self.state.waiting) {
            self.state.skip(Fire { nominal, backfill: 0 }, now, reason);
        }
    }

    /// Lets it fire again, from now on.
    pub fn resume(&mut self, times: &Times, now: Timestamp) {
        self.state.paused = None;
        self.state.failures = 0;
        self.state.put_off.clear();
        self.state.next = self.rule.after(times, now);
    }

    /// Fires all times from one to another again; answers the number of this backfill, or `None` while another one is
    /// under way.
    pub fn backfill(&mut self, from: Timestamp, until: Timestamp) -> Option<u32> {
        if self.state.backfill.is_some() {
            return None;
        }
        self.state.backfills += 1;
        let number = self.state.backfills;
        let after = from - Duration::from_micros(1);
        self.state.backfill = Some(Backfill { number, after, until });
        Some(number)
    }

    /// When somebody must look at it.
    pub fn due(&self, id: &str, now: Timestamp) -> Option<Timestamp> {
        let next = self.state.next.filter(|_| self.state.paused.is_none());
        let next = next.map(|next| self.rule.due(id, next));
        [next, self.looks_again(now)].into_iter().flatten().min()
    }

    /// When somebody must look at it besides its next time: at once or soon, counted from now, or because it is late.
    pub(crate) fn looks_again(&self, now: Timestamp) -> Option<Timestamp> {
        let state = &self.state;
        let at_once = !state.planned.is_empty()
            || state.put_off.iter().any(|span| span.begun)
            || !state.cancels.is_empty()
            || !state.alerts.is_empty()
            || state.backfill.is_some();
        let is_waiting = state.buffered.is_some() || !state.put_off.is_empty();
        let waiting = is_waiting.then(|| now + LOOK_AGAIN);
        [at_once.then_some(now), waiting, self.late_at(now)].into_iter().flatten().min()
    }

    /// Takes in how tasks have ended and says which fires are due. Each is then [planned](Self::plan). Nothing is
    /// decided while something planned is not settled.
    pub fn decide(&mut self, id: &str, times: &Times, look: &Look<'_>) -> Vec<Fire> {
        let now = look.now;
        let begun = self.take_begun(look);
        self.take_ends(look.stands, now);
        let mut fires = Vec::new();
        if !self.state.planned.is_empty() {
            if look.invariants.on(Invariant::PlannedFirst) {
                // What has begun is seen once.
                self.judge_time(begun, now);
                return fires;
            }
            self.state.planned.clear();
        }
        if self.state.open.is_empty()
            && let Some(nominal) = self.state.take_buffered()
        {
            fires.push(Fire { nominal, backfill: 0 });
        }
        if self.state.paused.is_none() {
            if look.invariants.on(Invariant::PlannedAgain) {
                self.plan_again(times, now);
            }
            if look.settled || !look.invariants.on(Invariant::CatchUpWaits) {
                self.pass_over_dealt_with(times, now);
                self.make_up(id, times, now, &mut fires);
                self.pass_over_missed(times, now, Timestamp::MAX);
            } else {
                self.put_off_missed(times, now);
            }
            self.fire_due(id, times, now, Timestamp::MAX, &mut fires);
        }
        self.fire_again(times, &mut fires);
        self.judge_time(begun, now);
        fires
    }

    /// Judges all times that have come, before an end.
    pub(crate) fn fire_due(
        &mut self,
        id: &str,
        times: &Times,
        now: Timestamp,
        end: Timestamp,
        fires: &mut Vec<Fire>,
    ) {
        let mut judged = 0;
        while let Some(nominal) =
            self.state.next.filter(|next| *next < end && self.rule.due(id, *next) <= now)
            && fires.len() < self.rule.fires_max()
            && judged < JUDGED_MAX
        {
            judged += 1;
            self.state.next = self.rule.after(times, nominal);
            self.judge(Fire { nominal, backfill: 0 }, now, fires);
        }
    }

    fn take_ends(&mut self, stands: &BTreeMap<TaskId, Stand>, now: Timestamp) {
        let State { open, failures, .. } = &mut self.state;
        let (mut failed, mut succeeded) = (None, false);
        open.retain(|task| {
            match stands.get(task) {
                None | Some(Stand::Begun) => return true,
                Some(Stand::Success) => {
                    *failures = 0;
                    (failed, succeeded) = (None, true);
                }
                Some(Stand::Failure | Stand::NeverBegan) => {
                    *failures += 1;
                    failed = Some(*task);
                }
                Some(Stand::Neither) => {}
            }
            false
        });
        if succeeded {
            self.note_success(now);
        }
        if let Some(task) = failed {
            self.note_failure(now, &format!("task {task} has failed"));
        }
        self.pause_if_failing(now);
    }

    fn pause_if_failing(&mut self, now: Timestamp) {
        let failures = self.state.failures;
        if self.rule.pause_after.is_some_and(|max| failures >= max) && self.state.paused.is_none() {
            let s = if failures == 1 { "" } else { "s" };
            let reason = format!("{failures} failure{s} in a row");
            self.pause(&reason, now);
            self.alert(News::Paused, now, &reason);
        }
    }

    /// Times before this one are missed, if `first` is the first that was not dealt with.
    pub(crate) fn late(&self, times: &Times, first: Timestamp, now: Timestamp) -> Timestamp {
        now - self.rule.missed_after(times, first) - self.rule.jitter
    }

    /// Deals with times before an end that passed while nobody was there to fire.
    pub(crate) fn pass_over_missed(&mut self, times: &Times, now: Timestamp, end: Timestamp) {
        let Some(first) = self.state.next else { return };
        let late = self.late(times, first, now).min(end);
        let horizon = (now - self.rule.catch_up).min(end);
        if first >= late {
            return;
        }
        if first < horizon {
            self.miss(times, first, horizon, now, "longer ago than catchUp allows");
        }
        let Some(first) = self.state.next.filter(|next| *next < late) else { return };
        match self.rule.missed {
            Missed::RunAll => {}
            Missed::Skip => self.miss(times, first, late, now, "the schedule skips what it has missed"),
            Missed::RunOnce => {
                let last = self.last_before(times, first, late);
                if last > first {
                    self.miss(times, first, last, now, "a later one is run instead");
                }
            }
        }
    }

    /// Passes over all times from one to before another.
    fn miss(&mut self, times: &Times, first: Timestamp, end: Timestamp, now: Timestamp, reason: &str) {
        let mut count = 1;
        let mut next = self.rule.after(times, first);
        while let Some(at) = next.filter(|at| *at < end) {
            if count == COUNTED_MAX {
                next = self.rule.after(times, end - Duration::from_micros(1));
                break;
            }
            count += 1;
            next = self.rule.after(times, at);
        }
        self.state.next = next;
        self.note_passed(first, reason);
        let what = Fate::Missed { reason: reason.to_owned(), count };
        self.state.tell(Fire { nominal: first, backfill: 0 }, now, what);
    }

    /// The last time before one, which is `first` or later.
    fn last_before(&self, times: &Times, first: Timestamp, end: Timestamp) -> Timestamp {
        const SPANS: [Duration; 4] = [
            Duration::from_mins(1),
            Duration::from_hours(1),
            Duration::from_hours(24),
            Duration::from_hours(24 * 31),
        ];
        let within = |from: Timestamp| self.rule.after(times, from).filter(|at| *at < end);
        let nearby = SPANS.iter().map(|span| end - *span).filter(|from| *from > first).find_map(within);
        let mut last = nearby.unwrap_or(first);
        while let Some(at) = within(last) {
            last = at;
        }
        last
    }

    /// A time has come: it is fired, waits, or is skipped.
    fn judge(&mut self, fire: Fire, now: Timestamp, fires: &mut Vec<Fire>) {
        if self.rule.late_after.is_some_and(|after| fire.nominal + after <= now) {
            self.note_passed(fire.nominal, "no server was there to fire it in time");
        }
        let state = &mut self.state;
        let free = fires.is_empty() && state.open.is_empty() && state.buffered.is_none();
        match self.rule.overlap {
            Overlap::AllowAll => fires.push(fire),
            _ if free => fires.push(fire),
            Overlap::Skip => self.pass_over(fire, now, "the task before is unfinished"),
            Overlap::BufferOne | Overlap::BufferAll if state.buffered.is_none() => {
                state.buffered = Some(fire.nominal);
            }
            Overlap::BufferOne => self.pass_over(fire, now, "another one waits for the task before"),
            Overlap::BufferAll if state.buffered_count() < BUFFER_MAX => state.waiting.push(fire.nominal),
            Overlap::BufferAll => {
                let reason = format!("{BUFFER_MAX} others wait for the task before, the most that may");
                self.pass_over(fire, now, &reason);
            }
            Overlap::CancelOther => {
                let replaced = state.buffered.replace(fire.nominal);
                state.cancels.clone_from(&state.open);
                if let Some(nominal) = replaced {
                    self.pass_over(Fire { nominal, backfill: 0 }, now, "a later one takes its place");
                }
            }
        }
    }

    /// A time leads to no task.
    fn pass_over(&mut self, fire: Fire, now: Timestamp, reason: &str) {
        self.state.skip(fire, now, reason);
        self.note_passed(fire.nominal, reason);
    }

    /// Fires of a backfill: they run beside all others.
    fn fire_again(&mut self, times: &Times, fires: &mut Vec<Fire>) {
        let Some(mut backfill) = self.state.backfill else { return };
        while fires.len() < self.rule.fires_max() {
            let next = self.rule.after(times, backfill.after).filter(|next| *next <= backfill.until);
            let Some(nominal) = next else {
                self.state.backfill = None;
                return;
            };
            fires.push(Fire { nominal, backfill: backfill.number });
            backfill.after = nominal;
        }
        self.state.backfill = Some(backfill);
    }

    /// A fire becomes a plan, or is skipped because no task can be made for it. A task that is planned or fired already is
    /// not planned again.
    pub fn plan(&mut self, fire: Fire, task: Result<NewTask, String>, now: Timestamp) {
        match task {
            Ok(task) if self.state.has_fired(task.id) => {}
            Ok(task) => self.state.planned.push(Planned { fire, task: Box::new(task) }),
            Err(reason) => self.fail(fire, now, &reason),
        }
    }

    /// A planned task was submitted.
    pub fn settle(&mut self, task: TaskId, submitted: Submitted, now: Timestamp) {
        let Some(at) = self.state.planned.iter().position(|planned| planned.task.id == task) else { return };
        let fire = self.state.planned.remove(at).fire;
        match submitted {
            Submitted::Yes => {
                self.state.tell(fire, now, Fate::Fired { task });
                if self.rule.follows() && fire.backfill == 0 {
                    self.state.open.push(task);
                    let surplus = self.state.open.len().saturating_sub(OPEN_MAX);
                    self.state.open.drain(..surplus);
                    if self.rule.late_after.is_some() {
                        let (nominal, task) = (fire.nominal, Some(task));
                        self.state.unbegun.push(Unbegun { nominal, task, reason: String::new() });
                    }
                }
            }
            Submitted::No(reason) => self.fail(fire, now, &reason),
        }
    }

    fn fail(&mut self, fire: Fire, now: Timestamp, reason: &str) {
        self.state.skip(fire, now, reason);
        if fire.backfill == 0 {
            self.state.failures += 1;
            self.note_failure(now, reason);
            self.note_passed(fire.nominal, reason);
            self.pause_if_failing(now);
        }
    }
}

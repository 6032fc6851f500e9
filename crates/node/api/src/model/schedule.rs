//! Schedules.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use tasklane_core::id::TaskId;
use tasklane_core::time::Timestamp;
use tasklane_runtime::node::{BackfillPlan, FireEnd, NamedSchedule};
use tasklane_runtime::request::{DialectName, MissedName, Moment, OverlapName, Preview, Target};
use tasklane_schedule::{Fate, Fire, PastFire, Rule, ScheduleState, Times, When};
use utoipa::ToSchema;

use super::{AnyJson, Seconds, StatusName, Time, WebhookOut};

/// A rule that creates tasks, and its state.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedule {
    /// The name of the lock.
    #[schema(pattern = "^[A-Za-z0-9._:@-]{1,128}$")]
    id: String,
    /// The cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cron: Option<String>,
    /// The dialect of the cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = String, pattern = "^(vixie|quartz)$")]
    dialect: Option<DialectName>,
    /// The interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    every: Option<Seconds>,
    /// The one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    at: Option<Time>,
    /// The time zone of the cron expression.
    timezone: String,
    /// Not before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    from: Option<Time>,
    /// Not after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until: Option<Time>,
    /// A fire is delayed by up to this much.
    jitter: Seconds,
    /// The action while the last task is unfinished.
    #[schema(value_type = String, pattern = "^(skip|bufferOne|bufferAll|cancelOther|allowAll)$")]
    overlap: OverlapName,
    /// The action for times that passed while no server ran.
    #[schema(value_type = String, pattern = "^(skip|runOnce|runAll)$")]
    missed: MissedName,
    /// A time is missed when it is this late; absent: the distance to the following time, at least 5 seconds and at
    /// most a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    missed_after: Option<Seconds>,
    /// The age up to which missed times are made up for.
    catch_up: Seconds,
    /// The number of failed tasks in a row that pauses the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pause_after_failures: Option<u32>,
    /// A time without a running task after this long is late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late_after: Option<Seconds>,
    /// Addresses to notify, and their occasions.
    webhooks: Vec<WebhookOut>,
    /// The task that each fire creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task: Option<AnyJson>,
    /// The run of a workflow that each fire creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    workflow: Option<AnyJson>,
    /// Whether it fires.
    enabled: bool,
    /// Why it does not fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    paused_because: Option<String>,
    /// The next time, before jitter; absent when no time follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_time: Option<Time>,
    /// Failed tasks in a row.
    failures: u32,
    /// The schedule is late since this time or an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late: Option<Time>,
    /// Tasks that may be unfinished; only where `overlap` or `lateAfter` depends on them.
    running: Vec<String>,
    /// A time waits for the previous task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    buffered: Option<Time>,
    /// The number of times that wait for the previous task; absent when none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    buffered_count: Option<usize>,
    /// The last time that created a task; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_run: Option<LastRun>,
    /// When it was put first.
    created_at: Time,
    /// When it was last changed.
    updated_at: Time,
}

/// A time of a schedule that created a task, and the state of the task.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LastRun {
    /// The planned time.
    nominal_time: Time,
    /// Its task.
    #[schema(format = "uuid")]
    task_id: String,
    /// The status of the task; absent when the task is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    status: Option<StatusName>,
    /// When the task ended; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ended_at: Option<Time>,
}

/// The task of the last time that has led to one, backfills aside.
pub(crate) fn last_task(state: &ScheduleState) -> Option<(Timestamp, TaskId)> {
    let fired = state.history.iter().filter(|past| past.fire.backfill == 0);
    let fired = fired.filter_map(|past| match past.what {
        Fate::Fired { task } => Some((past.fire.nominal, task)),
        Fate::Skipped { .. } | Fate::Missed { .. } => None,
    });
    fired.max_by_key(|(nominal, _)| *nominal)
}

impl Schedule {
    pub(crate) fn of(
        NamedSchedule { id, schedule }: NamedSchedule,
        ends: &BTreeMap<TaskId, FireEnd>,
    ) -> Self {
        let (rule, state) = (schedule.rule, schedule.state);
        let is_run = Target::is_run(&rule.task);
        let (mut cron, mut dialect, mut every, mut at) = (None, None, None, None);
        match rule.when {
            When::Cron(text) => (cron, dialect) = (Some(text), Some(DialectName::Vixie)),
            When::Quartz(text) => (cron, dialect) = (Some(text), Some(DialectName::Quartz)),
            When::Every { interval, .. } => every = Some(Seconds(interval)),
            When::At(time) => at = Some(Time(time)),
        }
        let last_run = last_task(&state).map(|(nominal, task)| {
            let end = ends.get(&task);
            LastRun {
                nominal_time: Time(nominal),
                task_id: task.to_string(),
                status: end.map(|end| StatusName(end.status)),
                ended_at: end.and_then(|end| end.ended_at).map(Time),
            }
        });
        let waiting = state.buffered_count();
        Self {
            id: id.to_string(),
            cron,
            dialect,
            every,
            at,
            timezone: rule.timezone,
            from: rule.from.map(Time),
            until: rule.until.map(Time),
            jitter: Seconds(rule.jitter),
            overlap: rule.overlap.into(),
            missed: rule.missed.into(),
            missed_after: rule.missed_after.map(Seconds),
            catch_up: Seconds(rule.catch_up),
            pause_after_failures: rule.pause_after,
            late_after: rule.late_after.map(Seconds),
            webhooks: rule.webhooks.iter().map(WebhookOut::from).collect(),
            task: (!is_run).then(|| AnyJson::from_json(&rule.task)),
            workflow: is_run.then(|| AnyJson::from_json(&rule.task)),
            enabled: state.paused.is_none(),
            next_time: state.next.filter(|_| state.paused.is_none()).map(Time),
            paused_because: state.paused,
            failures: state.failures,
            late: state.late.map(Time),
            running: state.open.iter().map(ToString::to_string).collect(),
            buffered: state.buffered.map(Time),
            buffered_count: (waiting > 0).then_some(waiting),
            last_run,
            created_at: Time(state.created_at),
            updated_at: Time(state.updated_at),
        }
    }
}

/// A page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePage {
    pub(crate) schedules: Vec<Schedule>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// Future times.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextTimes {
    times: Vec<NextTime>,
}

/// A future time.
#[derive(Debug, Serialize, ToSchema)]
struct NextTime {
    /// The planned time.
    time: Time,
    /// The local time in the schedule's time zone.
    local: String,
    /// A note where clocks are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<String>,
}

impl NextTimes {
    pub(crate) fn of(rule: &Rule, times: &Times, after: Timestamp, count: usize) -> Self {
        let next = |after: &Timestamp| rule.after(times, *after);
        Self::shown(std::iter::successors(next(&after), next).take(count), times)
    }

    fn shown(all: impl Iterator<Item = Timestamp>, times: &Times) -> Self {
        let times =
            all.map(|time| NextTime { time: Time(time), local: times.local(time), note: times.note(time) });
        Self { times: times.collect() }
    }
}

impl From<Preview> for NextTimes {
    fn from(preview: Preview) -> Self {
        Self::shown(preview.all.into_iter(), &preview.times)
    }
}

/// The last fires, the latest time first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FireHistory {
    fires: Vec<FireOut>,
}

/// The outcome of a planned time.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FireOut {
    /// The name of the fire: the schedule, the time, and `#n` for the nth backfill.
    #[schema(example = "nightly@2030-01-31T03:00:00Z")]
    fire: String,
    /// The planned time; the first of several missed times.
    nominal_time: Time,
    /// When the outcome was decided.
    at: Time,
    /// The outcome.
    #[schema(value_type = String, pattern = "^(fired|skipped|missed)$")]
    outcome: &'static str,
    /// Its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    task_id: Option<String>,
    /// The status of its task; absent when the task is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task_status: Option<StatusName>,
    /// When its task ended; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ended_at: Option<Time>,
    /// Why the fire has no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The number of missed times, counted up to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<u32>,
}

impl FireHistory {
    /// Sorted by time: times that waited for a task before are settled in another order than they came in.
    pub(crate) fn of(id: &str, history: &[PastFire], ends: &BTreeMap<TaskId, FireEnd>) -> Self {
        let mut sorted: Vec<&PastFire> = history.iter().collect();
        sorted.sort_by_key(|past| std::cmp::Reverse((past.fire, past.at)));
        Self { fires: sorted.into_iter().map(|past| FireOut::of(id, past, ends)).collect() }
    }
}

impl FireOut {
    fn of(id: &str, past: &PastFire, ends: &BTreeMap<TaskId, FireEnd>) -> Self {
        let Fire { nominal, backfill } = past.fire;
        let mut fire = format!("{id}@{}", shown(nominal));
        if backfill > 0 {
            let _ = write!(fire, "#{backfill}");
        }
        let (outcome, task_id, reason, count) = match &past.what {
            Fate::Fired { task } => ("fired", Some(task.to_string()), None, None),
            Fate::Skipped { reason } => ("skipped", None, Some(reason.clone()), None),
            Fate::Missed { reason, count } => ("missed", None, Some(reason.clone()), Some(*count)),
        };
        let end = match &past.what {
            Fate::Fired { task } => ends.get(task),
            Fate::Skipped { .. } | Fate::Missed { .. } => None,
        };
        let task_status = end.map(|end| StatusName(end.status));
        let ended_at = end.and_then(|end| end.ended_at).map(Time);
        let (nominal_time, at) = (Time(nominal), Time(past.at));
        Self { fire, nominal_time, at, outcome, task_id, task_status, ended_at, reason, count }
    }
}

fn shown(time: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(time.as_micros())
        .map_or_else(|_| String::new(), |time| time.to_string())
}

/// A requested fire.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Triggered {
    /// Its task.
    #[schema(format = "uuid")]
    pub(crate) task_id: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) duplicate: bool,
}

/// Times to fire again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BackfillRequest {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
    pub(crate) dry_run: Option<bool>,
}

/// The plan of a backfill.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Backfill {
    /// The request was a dry run.
    pub(crate) dry_run: bool,
    /// The `n` in the names of its fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    number: Option<u32>,
    /// The number of times that it fires.
    count: usize,
    /// The first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first: Option<Time>,
    /// The last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last: Option<Time>,
}

impl From<BackfillPlan> for Backfill {
    fn from(plan: BackfillPlan) -> Self {
        Self {
            dry_run: plan.number.is_none(),
            number: plan.number,
            count: plan.count,
            first: plan.first.map(Time),
            last: plan.last.map(Time),
        }
    }
}

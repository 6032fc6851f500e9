//! Schedules.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use tasklane_core::time::Timestamp;
use tasklane_runtime::node::{BackfillPlan, NamedSchedule};
use tasklane_runtime::request::{MissedName, Moment, OverlapName, Target};
use tasklane_schedule::{Fate, Fire, Past, Rule, Times, When};
use utoipa::ToSchema;

use super::{AnyJson, Seconds, Time, WebhookOut};

/// A rule that creates tasks, and where it stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedule {
    /// Its name.
    #[schema(pattern = "^[A-Za-z0-9._:@-]{1,128}$")]
    id: String,
    /// The cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cron: Option<String>,
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
    /// A fire is moved to later by up to this much.
    jitter: Seconds,
    /// What is done while the last task is unfinished.
    #[schema(value_type = String, pattern = "^(skip|bufferOne|cancelOther|allowAll)$")]
    overlap: OverlapName,
    /// What is done about times that passed while no server ran.
    #[schema(value_type = String, pattern = "^(skip|runOnce|runAll)$")]
    missed: MissedName,
    /// Times that passed longer ago are not made up for.
    catch_up: Seconds,
    /// After so many failed tasks in a row it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pause_after_failures: Option<u32>,
    /// A time for which no task runs after this long is late.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late_after: Option<Seconds>,
    /// Who is told of what.
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
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    paused_because: Option<String>,
    /// The next time, before it is moved by jitter. Not there when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_time: Option<Time>,
    /// Failed tasks in a row.
    failures: u32,
    /// It is late: since this time, or an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late: Option<Time>,
    /// Tasks that are not known to have finished; only where that matters to the schedule.
    running: Vec<String>,
    /// A time that waits for the task before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    buffered: Option<Time>,
    /// When it was put first.
    created_at: Time,
    /// When it was last changed.
    updated_at: Time,
}

impl From<NamedSchedule> for Schedule {
    fn from(NamedSchedule { id, schedule }: NamedSchedule) -> Self {
        let (rule, state) = (schedule.rule, schedule.state);
        let is_run = Target::is_run(&rule.task);
        let (mut cron, mut every, mut at) = (None, None, None);
        match rule.when {
            When::Cron(text) => cron = Some(text),
            When::Every { interval, .. } => every = Some(Seconds(interval)),
            When::At(time) => at = Some(Time(time)),
        }
        Self {
            id: id.to_string(),
            cron,
            every,
            at,
            timezone: rule.timezone,
            from: rule.from.map(Time),
            until: rule.until.map(Time),
            jitter: Seconds(rule.jitter),
            overlap: rule.overlap.into(),
            missed: rule.missed.into(),
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
            created_at: Time(state.created_at),
            updated_at: Time(state.updated_at),
        }
    }
}

/// A page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePage {
    pub(crate) schedules: Vec<Schedule>,
    /// Where to go on; not there at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// Times to come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextTimes {
    times: Vec<NextTime>,
}

/// A time to come.
#[derive(Debug, Serialize, ToSchema)]
struct NextTime {
    /// The time.
    time: Time,
    /// The same on the clocks of the schedule's time zone.
    local: String,
    /// What is special about it, where clocks are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<String>,
}

impl NextTimes {
    pub(crate) fn of(rule: &Rule, times: &Times, now: Timestamp, count: usize) -> Self {
        let next = |after: &Timestamp| rule.after(times, *after);
        let all = std::iter::successors(next(&now), next).take(count);
        let times =
            all.map(|time| NextTime { time: Time(time), local: times.local(time), note: times.note(time) });
        Self { times: times.collect() }
    }
}

/// What became of the last times, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FireHistory {
    pub(crate) fires: Vec<FireOut>,
}

/// What became of a time.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FireOut {
    /// Which one: the schedule, the time, and `#n` for the nth backfill.
    #[schema(example = "nightly@2030-01-31T03:00:00Z")]
    fire: String,
    /// The time; the first, where several were missed.
    nominal_time: Time,
    /// When that was settled.
    at: Time,
    /// What became of it.
    #[schema(value_type = String, pattern = "^(fired|skipped|missed)$")]
    outcome: &'static str,
    /// Its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    task_id: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// How many times were missed, as far as they were counted (1000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<u32>,
}

impl FireOut {
    pub(crate) fn of(id: &str, past: &Past) -> Self {
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
        let (nominal_time, at) = (Time(nominal), Time(past.at));
        Self { fire, nominal_time, at, outcome, task_id, reason, count }
    }
}

fn shown(time: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(time.as_micros())
        .map_or_else(|_| String::new(), |time| time.to_string())
}

/// A fire that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Triggered {
    /// Its task.
    #[schema(format = "uuid")]
    pub(crate) task_id: String,
}

/// Times to fire again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BackfillRequest {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
    pub(crate) dry_run: Option<bool>,
}

/// What a backfill does.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Backfill {
    /// Nothing was done.
    pub(crate) dry_run: bool,
    /// The `n` in the names of its fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    number: Option<u32>,
    /// How many times it fires.
    count: usize,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first: Option<Time>,
    /// The last of them.
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

//! Requests for schedules.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tasklane_core::task::Occasion;
use tasklane_core::time::Timestamp;
use tasklane_schedule::{MissedPolicy, Overlap, Rule, Times, TimesError, When, after_within};

use super::duration::{Positive, Span, parse_span};
use super::error::{FieldError, code};
use super::json::{Moment, Object, Ranged, read_json};
use super::task::TaskRequest;
use super::webhook::{OF_SCHEDULES, WebhookJson, webhooks};
use super::workflow::RunRequest;

/// A client's request for a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleRequest {
    /// Everything but the first time of an interval.
    rule: Rule,
    /// What each fire creates.
    pub target: Target,
    /// Whether it fires; `None` leaves the schedule as it is.
    pub enabled: Option<bool>,
}

/// The most failures in a row that a request may name.
pub const FAILURES_MAX: u32 = 1000;

/// The default time zone of cron expressions.
const UTC: &str = "UTC";
/// The default catch-up: fires of missed times within this span.
const CATCH_UP: Duration = Duration::from_hours(24);
/// The longest time by which a fire may be moved.
const JITTER_MAX: Duration = Duration::from_hours(24);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ScheduleJson {
    cron: Option<String>,
    dialect: Option<DialectName>,
    every: Option<Positive>,
    at: Option<Moment>,
    timezone: Option<String>,
    from: Option<Moment>,
    until: Option<Moment>,
    jitter: Option<Span>,
    overlap: Option<OverlapName>,
    missed: Option<MissedName>,
    missed_after: Option<Positive>,
    catch_up: Option<Span>,
    pause_after_failures: Option<Ranged<1, { FAILURES_MAX }>>,
    late_after: Option<Positive>,
    webhooks: Option<Vec<Object<WebhookJson>>>,
    enabled: Option<bool>,
    task: Option<Box<RawValue>>,
    workflow: Option<Box<RawValue>>,
}

/// How JSON names the dialect of a cron expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DialectName {
    /// The dialect of Vixie cron.
    #[default]
    Vixie,
    /// The dialect of Quartz.
    Quartz,
}

/// How JSON names the overlap policy, for a fire while the last task is unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverlapName {
    /// The fire is skipped.
    Skip,
    /// One fire waits.
    BufferOne,
    /// All fires wait and run one after the other.
    BufferAll,
    /// The last one is cancelled.
    CancelOther,
    /// Both run.
    AllowAll,
}

/// How JSON names the policy for missed times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissedName {
    /// No fire.
    Skip,
    /// One fire.
    RunOnce,
    /// A fire for each.
    RunAll,
}

impl From<OverlapName> for Overlap {
    fn from(name: OverlapName) -> Self {
        match name {
            OverlapName::Skip => Self::Skip,
            OverlapName::BufferOne => Self::BufferOne,
            OverlapName::BufferAll => Self::BufferAll,
            OverlapName::CancelOther => Self::CancelOther,
            OverlapName::AllowAll => Self::AllowAll,
        }
    }
}

impl From<Overlap> for OverlapName {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::Skip => Self::Skip,
            Overlap::BufferOne => Self::BufferOne,
            Overlap::BufferAll => Self::BufferAll,
            Overlap::CancelOther => Self::CancelOther,
            Overlap::AllowAll => Self::AllowAll,
        }
    }
}

impl From<MissedName> for MissedPolicy {
    fn from(name: MissedName) -> Self {
        match name {
            MissedName::Skip => Self::Skip,
            MissedName::RunOnce => Self::RunOnce,
            MissedName::RunAll => Self::RunAll,
        }
    }
}

impl From<MissedPolicy> for MissedName {
    fn from(missed: MissedPolicy) -> Self {
        match missed {
            MissedPolicy::Skip => Self::Skip,
            MissedPolicy::RunOnce => Self::RunOnce,
            MissedPolicy::RunAll => Self::RunAll,
        }
    }
}

impl ScheduleRequest {
    /// Parses and checks a request.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: ScheduleJson = read_json(body)?;
        let target = target_of(&json)?;
        let when = when(json.cron.as_deref(), json.dialect, json.every, json.at.as_ref())?;
        let (from, until) = bounds(json.from, json.until)?;
        let (missed, overlap) = missed_and_overlap(json.missed, json.overlap)?;
        let jitter = json.jitter.map_or(Duration::ZERO, |span| span.0);
        if jitter > JITTER_MAX {
            return Err(FieldError::invalid("jitter", "must be at most a day"));
        }
        let rule = Rule {
            when,
            timezone: json.timezone.unwrap_or_else(|| UTC.to_owned()),
            from,
            until,
            jitter,
            overlap,
            missed,
            missed_after: json.missed_after.map(|after| after.0),
            catch_up: json.catch_up.map_or(CATCH_UP, |span| span.0),
            pause_after: json.pause_after_failures.map(|n| n.0),
            late_after: json.late_after.map(|after| after.0),
            webhooks: webhooks("webhooks", json.webhooks, OF_SCHEDULES)?,
            task: json.task.or(json.workflow).map_or_else(String::new, |target| target.get().to_owned()),
        };
        if rule.missed == MissedPolicy::RunAll && rule.catch_up.is_zero() {
            let message =
                "must be longer than 0 where missed is runAll: no missed time would be run".to_owned();
            return Err(FieldError { field: "catchUp".to_owned(), code: code::CONFLICTING_FIELDS, message });
        }
        if rule.late_after.is_none() && rule.tells(Occasion::Late) {
            let message = "is required: a webhook asks for the event that the schedule is late".to_owned();
            return Err(FieldError { field: "lateAfter".to_owned(), code: code::MISSING_FIELD, message });
        }
        times_of(&rule)?;
        Ok(Self { rule, target, enabled: json.enabled })
    }

    /// The rule. An interval counts from `from`, else from when a rule with this interval was put first.
    pub fn rule(&self, before: Option<&Rule>, now: Timestamp) -> Rule {
        let mut rule = self.rule.clone();
        if let When::Every { interval, anchor } = &mut rule.when {
            let kept = match before.map(|before| &before.when) {
                Some(When::Every { interval: before, anchor }) if before == interval => Some(*anchor),
                _ => None,
            };
            *anchor = self.rule.from.or(kept).unwrap_or(now);
        }
        rule
    }
}

/// A request for the times of a rule that is not stored.
#[derive(Debug)]
pub struct PreviewRequest {
    when: When,
    timezone: String,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    after: Option<Timestamp>,
    count: u32,
}

/// The most times of one request.
pub const TIMES_MAX: u32 = 1000;
/// The default number of times.
pub const TIMES_COUNT: u32 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PreviewJson {
    cron: Option<String>,
    dialect: Option<DialectName>,
    every: Option<Positive>,
    at: Option<Moment>,
    timezone: Option<String>,
    from: Option<Moment>,
    until: Option<Moment>,
    after: Option<Moment>,
    count: Option<Ranged<1, { TIMES_MAX }>>,
}

/// The times of a rule.
#[derive(Debug)]
pub struct Preview {
    /// The times.
    pub all: Vec<Timestamp>,
    /// The rule that they follow from.
    pub times: Times,
}

impl PreviewRequest {
    /// Parses and checks a request.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: PreviewJson = read_json(body)?;
        let when = when(json.cron.as_deref(), json.dialect, json.every, json.at.as_ref())?;
        let (from, until) = bounds(json.from, json.until)?;
        let timezone = json.timezone.unwrap_or_else(|| UTC.to_owned());
        let after = json.after.map(|moment| moment.0);
        let count = json.count.map_or(TIMES_COUNT, |count| count.0);
        Ok(Self { when, timezone, from, until, after, count })
    }

    /// The times after `from`, by default from now on. An interval counts from `from`, else from now.
    pub fn preview(mut self, now: Timestamp) -> Result<Preview, FieldError> {
        let after = self.after.unwrap_or(now);
        if let When::Every { anchor, .. } = &mut self.when {
            *anchor = self.from.unwrap_or(after);
        }
        let times = times(&self.when, &self.timezone)?;
        let next = |after: Timestamp| after_within(&times, self.from, self.until, after);
        let all = std::iter::successors(next(after), |last| next(*last)).take(self.count as usize).collect();
        Ok(Preview { all, times })
    }
}

fn bounds(
    from: Option<Moment>,
    until: Option<Moment>,
) -> Result<(Option<Timestamp>, Option<Timestamp>), FieldError> {
    let (from, until) = (from.map(|moment| moment.0), until.map(|moment| moment.0));
    if from.zip(until).is_some_and(|(from, until)| from >= until) {
        return Err(FieldError::invalid("until", "must be later than from"));
    }
    Ok((from, until))
}

/// The policy `runAll` for missed times allows no overlap policy that leaves fires out.
fn missed_and_overlap(
    missed: Option<MissedName>,
    overlap: Option<OverlapName>,
) -> Result<(MissedPolicy, Overlap), FieldError> {
    let missed = missed.map(MissedPolicy::from).unwrap_or_default();
    let overlap = overlap.map(Overlap::from);
    match (missed, overlap) {
        (MissedPolicy::RunAll, None) => Ok((missed, Overlap::BufferAll)),
        (MissedPolicy::RunAll, Some(Overlap::Skip | Overlap::BufferOne | Overlap::CancelOther)) => Err(FieldError {
            field: "overlap".to_owned(),
            code: code::CONFLICTING_FIELDS,
            message: "must be bufferAll (one after the other) or allowAll (side by side) where missed is runAll: all \
                      others leave missed times out"
                .to_owned(),
        }),
        (_, overlap) => Ok((missed, overlap.unwrap_or_default())),
    }
}

/// Exactly one of the three kinds of rule.
fn when(
    cron: Option<&str>,
    dialect: Option<DialectName>,
    every: Option<Positive>,
    at: Option<&Moment>,
) -> Result<When, FieldError> {
    let conflicting = |field: &str, message: &str| FieldError {
        field: field.to_owned(),
        code: code::CONFLICTING_FIELDS,
        message: message.to_owned(),
    };
    let only = "must be the only one of cron, every and at";
    match (cron, every, at) {
        (Some(cron), None, None) => of_cron(cron, dialect.unwrap_or_default()),
        (None, Some(_), None) | (None, None, Some(_)) if dialect.is_some() => {
            Err(conflicting("dialect", "must be given together with cron; leave it out"))
        }
        // The first time is set when the schedule is stored.
        (None, Some(every), None) => Ok(When::Every { interval: every.0, anchor: Timestamp::ZERO }),
        (None, None, Some(at)) => Ok(When::At(at.0)),
        (None, None, None) => Err(FieldError {
            field: "cron".to_owned(),
            code: code::MISSING_FIELD,
            message: "or every or at is required".to_owned(),
        }),
        (Some(_), Some(_), _) => Err(conflicting("every", only)),
        _ => Err(conflicting("at", only)),
    }
}

/// A cron expression; `@every 5m` is an interval.
fn of_cron(text: &str, dialect: DialectName) -> Result<When, FieldError> {
    let Some(interval) = text.trim().strip_prefix("@every") else {
        return Ok(match dialect {
            DialectName::Vixie => When::Cron(text.to_owned()),
            DialectName::Quartz => When::Quartz(text.to_owned()),
        });
    };
    let interval = parse_span(interval.trim()).ok().filter(|interval| *interval >= Duration::from_secs(1));
    let Some(interval) = interval else {
        let rule =
            "behind @every must be an interval of at least a second, such as @every 5m or @every 1h30m";
        return Err(FieldError::invalid("cron", rule));
    };
    Ok(When::Every { interval, anchor: Timestamp::ZERO })
}

/// The times of a rule, if the rule is valid.
pub fn times_of(rule: &Rule) -> Result<Times, FieldError> {
    times(&rule.when, &rule.timezone)
}

fn times(when: &When, timezone: &str) -> Result<Times, FieldError> {
    Times::new(when, timezone).map_err(|TimesError { field, message }| FieldError::invalid(field, message))
}

/// The target of a fire.
#[derive(Clone, Debug)]
pub enum Target {
    /// A task.
    Task(Box<TaskRequest>),
    /// A run of a workflow.
    Run(RunRequest),
}

impl Target {
    /// Parses the stored target of a rule. Every task has a type, and no run has.
    pub fn from_json(json: &str) -> Result<Self, FieldError> {
        if Self::is_run(json) { scheduled_run(json) } else { scheduled_task(json) }
    }

    /// Whether it is a run, without checking it.
    pub fn is_run(json: &str) -> bool {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Kind {
            task_type: Option<serde::de::IgnoredAny>,
        }
        serde_json::from_str::<Kind>(json).is_ok_and(|kind| kind.task_type.is_none())
    }
}

/// Exactly one of the two targets of a fire.
fn target_of(json: &ScheduleJson) -> Result<Target, FieldError> {
    match (&json.task, &json.workflow) {
        (Some(task), None) => scheduled_task(task.get()),
        (None, Some(run)) => scheduled_run(run.get()),
        (None, None) => Err(FieldError {
            field: "task".to_owned(),
            code: code::MISSING_FIELD,
            message: "or workflow is required".to_owned(),
        }),
        (Some(_), Some(_)) => Err(FieldError {
            field: "workflow".to_owned(),
            code: code::CONFLICTING_FIELDS,
            message: "must not be given together with task".to_owned(),
        }),
    }
}

fn scheduled_run(json: &str) -> Result<Target, FieldError> {
    let below = |error: FieldError| error.below("workflow");
    let run = RunRequest::from_json(json.as_bytes()).map_err(below)?;
    if run.request_id.is_some() {
        let rule = "must not be given: each fire is a run of its own";
        return Err(below(FieldError::invalid("requestId", rule)));
    }
    Ok(Target::Run(run))
}

/// The task of a schedule, as JSON. Errors name fields below `task`.
fn scheduled_task(json: &str) -> Result<Target, FieldError> {
    let below = |error: FieldError| error.below("task");
    let task = TaskRequest::from_json(json.as_bytes()).map_err(below)?;
    task.check_child().map_err(below)?;
    Ok(Target::Task(Box::new(task)))
}

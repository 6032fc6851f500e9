//! Requests for schedules.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tasklane_core::task::Occasion;
use tasklane_core::time::Timestamp;
use tasklane_schedule::{Missed, Overlap, Rule, Times, TimesError, When};

use super::duration::{Positive, Span};
use super::error::{FieldError, code};
use super::json::{Moment, Object, Ranged, read_json};
use super::task::TaskRequest;
use super::webhook::{OF_SCHEDULES, WebhookJson, webhooks};
use super::workflow::RunRequest;

/// What a client asks to be done again and again.
#[derive(Clone, Debug)]
pub struct ScheduleRequest {
    /// Everything but the first time of an interval.
    rule: Rule,
    /// What each fire creates.
    pub target: Target,
    /// Whether it fires; `None` to leave that as it is.
    pub enabled: Option<bool>,
}

/// Failures in a row that can be asked for.
pub const FAILURES_MAX: u32 = 1000;

/// Times that passed within this are made up for, unless something else is asked for.
const CATCH_UP: Duration = Duration::from_hours(24);
/// The longest time by which a fire may be moved.
const JITTER_MAX: Duration = Duration::from_hours(24);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ScheduleJson {
    cron: Option<String>,
    every: Option<Positive>,
    at: Option<Moment>,
    timezone: Option<String>,
    from: Option<Moment>,
    until: Option<Moment>,
    jitter: Option<Span>,
    overlap: Option<OverlapName>,
    missed: Option<MissedName>,
    catch_up: Option<Span>,
    pause_after_failures: Option<Ranged<1, { FAILURES_MAX }>>,
    late_after: Option<Positive>,
    webhooks: Option<Vec<Object<WebhookJson>>>,
    enabled: Option<bool>,
    task: Option<Box<RawValue>>,
    workflow: Option<Box<RawValue>>,
}

/// How JSON names what is done while the last task is unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OverlapName {
    /// Nothing.
    Skip,
    /// One waits.
    BufferOne,
    /// The last one is cancelled.
    CancelOther,
    /// Both run.
    AllowAll,
}

/// How JSON names what is done about times that were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissedName {
    /// Nothing.
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
            Overlap::CancelOther => Self::CancelOther,
            Overlap::AllowAll => Self::AllowAll,
        }
    }
}

impl From<MissedName> for Missed {
    fn from(name: MissedName) -> Self {
        match name {
            MissedName::Skip => Self::Skip,
            MissedName::RunOnce => Self::RunOnce,
            MissedName::RunAll => Self::RunAll,
        }
    }
}

impl From<Missed> for MissedName {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Skip => Self::Skip,
            Missed::RunOnce => Self::RunOnce,
            Missed::RunAll => Self::RunAll,
        }
    }
}

impl ScheduleRequest {
    /// Reads and checks a request.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: ScheduleJson = read_json(body)?;
        let target = target_of(&json)?;
        let when = when(&json)?;
        let (from, until) = (json.from.map(|moment| moment.0), json.until.map(|moment| moment.0));
        if from.zip(until).is_some_and(|(from, until)| from >= until) {
            return Err(FieldError::invalid("until", "must be later than from"));
        }
        let jitter = json.jitter.map_or(Duration::ZERO, |span| span.0);
        if jitter > JITTER_MAX {
            return Err(FieldError::invalid("jitter", "must be at most a day"));
        }
        let rule = Rule {
            when,
            timezone: json.timezone.unwrap_or_else(|| "UTC".to_owned()),
            from,
            until,
            jitter,
            overlap: json.overlap.map(Overlap::from).unwrap_or_default(),
            missed: json.missed.map(Missed::from).unwrap_or_default(),
            catch_up: json.catch_up.map_or(CATCH_UP, |span| span.0),
            pause_after: json.pause_after_failures.map(|n| n.0),
            late_after: json.late_after.map(|after| after.0),
            webhooks: webhooks("webhooks", json.webhooks, OF_SCHEDULES)?,
            task: json.task.or(json.workflow).map_or_else(String::new, |target| target.get().to_owned()),
        };
        if rule.late_after.is_none() && rule.tells(Occasion::Late) {
            let message = "is required: a webhook asks to be told when the schedule is late".to_owned();
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

/// Exactly one of the three ways to say when.
fn when(json: &ScheduleJson) -> Result<When, FieldError> {
    let conflicting = |field: &str| FieldError {
        field: field.to_owned(),
        code: code::CONFLICTING_FIELDS,
        message: "must be the only one of cron, every and at".to_owned(),
    };
    match (&json.cron, &json.every, &json.at) {
        (Some(cron), None, None) => Ok(When::Cron(cron.clone())),
        // The first time is settled when it is stored.
        (None, Some(every), None) => Ok(When::Every { interval: every.0, anchor: Timestamp::ZERO }),
        (None, None, Some(at)) => Ok(When::At(at.0)),
        (None, None, None) => Err(FieldError {
            field: "cron".to_owned(),
            code: code::MISSING_FIELD,
            message: "or every or at is required".to_owned(),
        }),
        (Some(_), Some(_), _) => Err(conflicting("every")),
        _ => Err(conflicting("at")),
    }
}

/// The times of a rule, if it can be right.
pub fn times_of(rule: &Rule) -> Result<Times, FieldError> {
    Times::new(&rule.when, &rule.timezone)
        .map_err(|TimesError { field, message }| FieldError::invalid(field, message))
}

/// What a fire creates.
#[derive(Clone, Debug)]
pub enum Target {
    /// A task.
    Task(Box<TaskRequest>),
    /// A run of a workflow.
    Run(RunRequest),
}

impl Target {
    /// Reads what a rule keeps as JSON. Every task has a type, and no run has.
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

/// Exactly one of the two things that a fire can create.
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
    task.check_part().map_err(below)?;
    Ok(Target::Task(Box::new(task)))
}

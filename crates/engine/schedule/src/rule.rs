//! A schedule as it is stored: its rule and its state.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::id::TaskId;
use tasklane_core::task::{NewTask, Webhook};
use tasklane_core::time::{Timestamp, duration_micros};

use crate::When;
use crate::alerts::{Alert, UnbegunFire};

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The rule.
    #[serde(rename = "r")]
    pub rule: Rule,
    /// Where it stands.
    #[serde(rename = "s")]
    pub state: ScheduleState,
}

/// The rule of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// At which times.
    #[serde(rename = "w")]
    pub when: When,
    /// The time zone of a cron expression, by its IANA name.
    #[serde(rename = "z")]
    pub timezone: String,
    /// Not before this time.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Not after this time.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// A fire is moved to later by up to this much: always by the same for the same time.
    #[serde(rename = "j", with = "duration_micros")]
    pub jitter: Duration,
    /// The behaviour while the last task is unfinished.
    #[serde(rename = "o")]
    pub overlap: Overlap,
    /// The behaviour for times that passed while no server fired them.
    #[serde(rename = "m")]
    pub missed: MissedPolicy,
    /// A time is missed when it is this late; `None` for a time between a few seconds and a minute, by how often it fires.
    #[serde(rename = "ma", default, skip_serializing_if = "Option::is_none")]
    pub missed_after: Option<Duration>,
    /// Times that passed longer ago are not made up for.
    #[serde(rename = "c", with = "duration_micros")]
    pub catch_up: Duration,
    /// After so many failed tasks in a row it is paused.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub pause_after: Option<u32>,
    /// A time for which no task runs after this long is late.
    #[serde(rename = "la", default, skip_serializing_if = "Option::is_none")]
    pub late_after: Option<Duration>,
    /// The receivers of alerts, with their occasions.
    #[serde(rename = "wb", default, skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,
    /// The request for a task, as JSON.
    #[serde(rename = "t")]
    pub task: String,
}

/// The behaviour of a schedule while its last task is unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlap {
    /// Nothing at this time.
    #[default]
    #[serde(rename = "s")]
    Skip,
    /// One fire waits until it has finished; more are skipped.
    #[serde(rename = "b")]
    BufferOne,
    /// Fires wait and follow one after the other, up to [`BUFFER_MAX`](crate::BUFFER_MAX); more are skipped.
    #[serde(rename = "q")]
    BufferAll,
    /// It is cancelled, and the fire follows when it has ended.
    #[serde(rename = "c")]
    CancelOther,
    /// The next task runs beside it.
    #[serde(rename = "a")]
    AllowAll,
}

/// The behaviour of a schedule for times that passed while no server fired them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MissedPolicy {
    /// Nothing.
    #[serde(rename = "s")]
    Skip,
    /// One fire, for the last of them.
    #[default]
    #[serde(rename = "o")]
    RunOnce,
    /// A fire for each.
    #[serde(rename = "a")]
    RunAll,
}

/// Where a schedule stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// When it was put first.
    #[serde(rename = "ca")]
    pub created_at: Timestamp,
    /// When its rule was last changed.
    #[serde(rename = "ua")]
    pub updated_at: Timestamp,
    /// Why it does not fire; `None` while it does.
    #[serde(rename = "pa", default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// The next time, before it is moved by jitter.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Times that passed at a step of the clock: dealt with when it has settled, the oldest first.
    #[serde(rename = "po", default, skip_serializing_if = "Vec::is_empty")]
    pub put_off: Vec<Span>,
    /// Times before this one were dealt with before the clock went back.
    #[serde(rename = "dt", default, skip_serializing_if = "Option::is_none")]
    pub dealt_with: Option<Timestamp>,
    /// Fires that are decided, with their tasks, which may or may not have been submitted.
    #[serde(rename = "pl", default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<PlannedFire>,
    /// Tasks to cancel, likewise.
    #[serde(rename = "cn", default, skip_serializing_if = "Vec::is_empty")]
    pub cancels: Vec<TaskId>,
    /// A fire that waits for the end of the one before.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<Timestamp>,
    /// Fires that wait behind it, the oldest first.
    #[serde(rename = "wt", default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Timestamp>,
    /// Tasks that were submitted and are not known to have finished; only where that matters.
    #[serde(rename = "op", default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<TaskId>,
    /// Failed tasks in a row.
    #[serde(rename = "fl", default)]
    pub failures: u32,
    /// Times that are being fired again.
    #[serde(rename = "bf", default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
    /// How many backfills there were.
    #[serde(rename = "bn", default)]
    pub backfills: u32,
    /// It is known to fail.
    #[serde(rename = "fg", default, skip_serializing_if = "std::ops::Not::not")]
    pub failing: bool,
    /// It is late: since this time, or an earlier one.
    #[serde(rename = "lt", default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Timestamp>,
    /// Tasks that are not known to have begun; only where that matters.
    #[serde(rename = "ub", default, skip_serializing_if = "Vec::is_empty")]
    pub unbegun: Vec<UnbegunFire>,
    /// Alerts that may or may not have been handed on.
    #[serde(rename = "al", default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<Alert>,
    /// How much news there was.
    #[serde(rename = "an", default)]
    pub alerted: u32,
    /// What became of the last times, the oldest first.
    #[serde(rename = "h", default)]
    pub history: Vec<PastFire>,
}

/// Times from one to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first.
    #[serde(rename = "f")]
    pub from: Timestamp,
    /// Behind the last.
    #[serde(rename = "e")]
    pub end: Timestamp,
    /// Some of them are dealt with already; the rest follows at once.
    #[serde(rename = "b", default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
}

/// A fire: the time that it stands for, and for the how manieth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fire {
    /// The time.
    #[serde(rename = "t")]
    pub nominal: Timestamp,
    /// 0 for the time itself, n for the nth backfill.
    #[serde(rename = "n", default)]
    pub backfill: u32,
}

/// A fire that is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFire {
    /// Which one.
    #[serde(rename = "f")]
    pub fire: Fire,
    /// Its task.
    #[serde(rename = "t")]
    pub task: Box<NewTask>,
}

/// Times that are fired again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backfill {
    /// The how manieth backfill it is.
    #[serde(rename = "n")]
    pub number: u32,
    /// Fires times after this one …
    #[serde(rename = "a")]
    pub after: Timestamp,
    /// … up to this one.
    #[serde(rename = "u")]
    pub until: Timestamp,
}

/// What became of a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastFire {
    /// Which one; the first, where there are several.
    #[serde(rename = "f")]
    pub fire: Fire,
    /// When that was settled.
    #[serde(rename = "a")]
    pub at: Timestamp,
    /// What became of it.
    #[serde(rename = "w")]
    pub what: Fate,
}

/// What became of a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// There is a task.
    #[serde(rename = "f")]
    Fired {
        /// Which one.
        #[serde(rename = "t")]
        task: TaskId,
    },
    /// It came, and there is none.
    #[serde(rename = "s")]
    Skipped {
        /// Why.
        #[serde(rename = "r")]
        reason: String,
    },
    /// The time passed while no server fired it.
    #[serde(rename = "m")]
    Missed {
        /// Why it was not made up for.
        #[serde(rename = "r")]
        reason: String,
        /// How many times there were, as far as they were counted.
        #[serde(rename = "n")]
        count: u32,
    },
}

impl ScheduleState {
    /// The most times whose fate is kept.
    pub const HISTORY_MAX: usize = 100;

    /// Whether a task is planned, or was fired as far as its history goes back.
    pub(crate) fn has_fired(&self, task: TaskId) -> bool {
        self.planned.iter().any(|planned| planned.task.id == task)
            || self.history.iter().any(|past| past.what == Fate::Fired { task })
    }

    /// A schedule that was never used.
    pub fn new(now: Timestamp) -> Self {
        Self {
            created_at: now,
            updated_at: now,
            paused: None,
            next: None,
            put_off: Vec::new(),
            dealt_with: None,
            planned: Vec::new(),
            cancels: Vec::new(),
            buffered: None,
            waiting: Vec::new(),
            open: Vec::new(),
            failures: 0,
            backfill: None,
            backfills: 0,
            failing: false,
            late: None,
            unbegun: Vec::new(),
            alerts: Vec::new(),
            alerted: 0,
            history: Vec::new(),
        }
    }

    /// How many fires wait for the end of the task before.
    pub fn buffered_count(&self) -> usize {
        usize::from(self.buffered.is_some()) + self.waiting.len()
    }

    /// Takes the fire whose turn is next.
    pub(crate) fn take_buffered(&mut self) -> Option<Timestamp> {
        let first = self.buffered.take()?;
        self.buffered = (!self.waiting.is_empty()).then(|| self.waiting.remove(0));
        Some(first)
    }

    pub(crate) fn tell(&mut self, fire: Fire, at: Timestamp, what: Fate) {
        self.history.push(PastFire { fire, at, what });
        let surplus = self.history.len().saturating_sub(Self::HISTORY_MAX);
        self.history.drain(..surplus);
    }

    pub(crate) fn skip(&mut self, fire: Fire, at: Timestamp, reason: impl Into<String>) {
        self.tell(fire, at, Fate::Skipped { reason: reason.into() });
    }
}

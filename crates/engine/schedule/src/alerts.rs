//! Alerts of a schedule: it fails, or is late. Each alert is sent once when it begins and once when it ends.
//!
//! A schedule is failing from the first of its tasks that fails, or cannot be submitted, to the next that succeeds. It
//! is late from the first of its times that has led to no running task for `late_after` to the next that does. Alerts
//! are written with the decision that they come from and kept until they are handed on, as planned fires are.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::id::TaskId;
use tasklane_core::task::Occasion;
use tasklane_core::time::Timestamp;

use crate::decide::{DecisionInput, TaskOutcome};
use crate::rule::{Rule, Schedule};

/// Alerts that are kept until they are handed on; beyond that the oldest is given up.
const ALERTS_MAX: usize = 100;

/// An alert to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Counts the news of the schedule.
    #[serde(rename = "n")]
    pub number: u32,
    /// When it was noticed.
    #[serde(rename = "a")]
    pub at: Timestamp,
    /// The kind of alert.
    #[serde(rename = "w")]
    pub what: AlertKind,
    /// Failed tasks in a row, then.
    #[serde(rename = "f", default)]
    pub failures: u32,
    /// The time of the schedule that it is about.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub nominal: Option<Timestamp>,
    /// For people.
    #[serde(rename = "r")]
    pub reason: String,
}

/// The kinds of alerts of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlertKind {
    /// Its tasks fail.
    #[serde(rename = "f")]
    Failing,
    /// They fail so often that it was paused.
    #[serde(rename = "p")]
    Paused,
    /// One has succeeded again.
    #[serde(rename = "r")]
    Recovered,
    /// A time has passed, and no task runs for it.
    #[serde(rename = "l")]
    Late,
    /// One runs again.
    #[serde(rename = "o")]
    OnTime,
}

impl AlertKind {
    /// The occasion that receivers asked for.
    pub fn occasion(self) -> Occasion {
        match self {
            Self::Failing | Self::Paused | Self::Recovered => Occasion::Failing,
            Self::Late | Self::OnTime => Occasion::Late,
        }
    }
}

/// A time for which no task is known to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnbegunFire {
    /// The time.
    #[serde(rename = "n")]
    pub nominal: Timestamp,
    /// Its task; `None` if there is none, or it has ended before it ran.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Why there is none.
    #[serde(rename = "r", default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The pause between two checks of a late schedule.
const LATE_LOOK: Duration = Duration::from_secs(30);

impl Rule {
    /// Whether a receiver asked for this alert.
    pub fn tells(&self, occasion: Occasion) -> bool {
        self.webhooks.iter().any(|webhook| webhook.on.contains(&occasion))
    }
}

impl Schedule {
    pub(crate) fn alert(&mut self, what: AlertKind, now: Timestamp, reason: &str) {
        if !self.rule.tells(what.occasion()) {
            return;
        }
        let state = &mut self.state;
        state.alerted += 1;
        let nominal = state.late.filter(|_| what == AlertKind::Late);
        let (number, failures, reason) = (state.alerted, state.failures, reason.to_owned());
        state.alerts.push(Alert { number, at: now, what, nominal, failures, reason });
        let surplus = state.alerts.len().saturating_sub(ALERTS_MAX);
        state.alerts.drain(..surplus);
    }

    /// The receivers have changed: the new receivers get the alert again.
    pub(crate) fn tell_anew(&mut self) {
        self.state.failing = false;
        self.state.late = None;
    }

    /// A task has failed, or could not be submitted.
    pub(crate) fn note_failure(&mut self, now: Timestamp, reason: &str) {
        if self.rule.tells(Occasion::Failing) && !std::mem::replace(&mut self.state.failing, true) {
            self.alert(AlertKind::Failing, now, reason);
        }
    }

    /// A task has succeeded.
    pub(crate) fn note_success(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.state.failing) {
            self.alert(AlertKind::Recovered, now, "a task has succeeded again");
        }
    }

    /// A time leads to no task. The schedule is late after a while unless a later time runs before. The first of several
    /// times raises the alert.
    pub(crate) fn note_passed(&mut self, nominal: Timestamp, reason: &str) {
        let known = |waiting: &UnbegunFire| waiting.task.is_none() && waiting.nominal <= nominal;
        if self.rule.late_after.is_some() && !self.state.unbegun.iter().any(known) {
            self.state.unbegun.push(UnbegunFire { nominal, task: None, reason: reason.to_owned() });
        }
    }

    /// Takes in which tasks have begun. Answers the last of their times.
    pub(crate) fn take_begun(&mut self, look: &DecisionInput<'_>) -> Option<Timestamp> {
        let (mut begun, mut passed) = (None, Vec::new());
        let stand = |waiting: &UnbegunFire| waiting.task.and_then(|task| look.outcomes.get(&task));
        self.state.unbegun.retain(|waiting| match stand(waiting) {
            None => true,
            Some(TaskOutcome::Begun | TaskOutcome::Success | TaskOutcome::Failure) => {
                begun = begun.max(Some(waiting.nominal));
                false
            }
            Some(TaskOutcome::NeverBegan) => {
                passed.push(waiting.nominal);
                false
            }
            // Whoever cancelled it knows.
            Some(TaskOutcome::Neither) => false,
        });
        for nominal in passed {
            self.note_passed(nominal, "its task failed before it began");
        }
        begun
    }

    /// Judges whether it is late, when everything else is decided.
    pub(crate) fn judge_time(&mut self, begun: Option<Timestamp>, now: Timestamp) {
        let Some(after) = self.rule.late_after else {
            self.state.unbegun.clear();
            self.state.late = None;
            return;
        };
        let open = &self.state.open;
        self.state.unbegun.retain(|waiting| match waiting.task {
            Some(task) => open.contains(&task),
            None => begun.is_none_or(|begun| waiting.nominal > begun),
        });
        let overdue = |nominal: Timestamp| nominal + after <= now;
        let first = self.state.unbegun.iter().filter(|waiting| overdue(waiting.nominal));
        let first = first.min_by_key(|waiting| waiting.nominal).cloned();
        let buffered = self.state.buffered.filter(|nominal| overdue(*nominal));
        let (nominal, reason) = match (first, buffered) {
            (Some(UnbegunFire { nominal, task: Some(task), .. }), _) => {
                (nominal, format!("task {task} has not begun"))
            }
            (Some(UnbegunFire { nominal, reason, .. }), _) => (nominal, reason),
            (None, Some(nominal)) => (nominal, "it waits for the task before".to_owned()),
            (None, None) => {
                if begun.is_some() && self.state.late.take().is_some() {
                    self.alert(AlertKind::OnTime, now, "a task has begun again");
                }
                return;
            }
        };
        if self.state.late.is_none() {
            self.state.late = Some(nominal);
            self.alert(AlertKind::Late, now, &reason);
        }
    }

    /// The time of the next check for lateness.
    pub(crate) fn late_at(&self, now: Timestamp) -> Option<Timestamp> {
        let after = self.rule.late_after?;
        let waiting = || self.state.unbegun.iter();
        if self.state.late.is_some() {
            let runs_soon = waiting().any(|waiting| waiting.task.is_some());
            return runs_soon.then(|| now + LATE_LOOK);
        }
        let times = waiting().map(|waiting| waiting.nominal);
        times.chain(self.state.buffered).min().map(|nominal| nominal + after)
    }
}

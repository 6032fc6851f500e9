//! News about a schedule as a whole: it begins to fail, or is late. Each is told once, and once more when it is over.
//!
//! A schedule is failing from the first of its tasks that fails, or cannot be submitted, to the next that succeeds. It is
//! late from the first of its times that has led to no running task for `late_after`, or never will, to the next that
//! does. News is written with the decision that it comes from and kept until it is handed on, as planned fires are.

use serde::{Deserialize, Serialize};
use tasklane_core::id::TaskId;
use tasklane_core::task::Occasion;
use tasklane_core::time::Timestamp;

use crate::decide::{Look, Stand};
use crate::rule::{Rule, Schedule};

/// News that is kept until it is handed on; beyond that the oldest is given up.
const ALERTS_MAX: usize = 100;

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Counts the news of the schedule.
    #[serde(rename = "n")]
    pub number: u32,
    /// When it was noticed.
    #[serde(rename = "a")]
    pub at: Timestamp,
    /// What it is.
    #[serde(rename = "w")]
    pub what: News,
    /// The time of the schedule that it is about.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub nominal: Option<Timestamp>,
    /// For people.
    #[serde(rename = "r")]
    pub reason: String,
}

/// What can be told of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
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

impl News {
    /// What those who are told of it asked for.
    pub fn occasion(self) -> Occasion {
        match self {
            Self::Failing | Self::Paused | Self::Recovered => Occasion::Failing,
            Self::Late | Self::OnTime => Occasion::Late,
        }
    }
}

/// A task that is not known to have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbegun {
    /// Which one.
    #[serde(rename = "t")]
    pub task: TaskId,
    /// The time that it stands for.
    #[serde(rename = "n")]
    pub nominal: Timestamp,
}

impl Rule {
    /// Whether somebody wants to be told of this.
    pub fn tells(&self, occasion: Occasion) -> bool {
        self.webhooks.iter().any(|webhook| webhook.on.contains(&occasion))
    }
}

impl Schedule {
    pub(crate) fn alert(&mut self, what: News, now: Timestamp, reason: impl Into<String>) {
        if !self.rule.tells(what.occasion()) {
            return;
        }
        let state = &mut self.state;
        state.alerted += 1;
        let nominal = state.late.filter(|_| what == News::Late);
        state.alerts.push(Alert { number: state.alerted, at: now, what, nominal, reason: reason.into() });
        let surplus = state.alerts.len().saturating_sub(ALERTS_MAX);
        state.alerts.drain(..surplus);
    }

    /// Whether it fails has changed, or not.
    pub(crate) fn note_failures(&mut self, now: Timestamp, reason: &str) {
        match (self.state.failures > 0, self.state.failing) {
            (true, false) => {
                self.state.failing = true;
                self.alert(News::Failing, now, reason);
            }
            (false, true) => {
                self.state.failing = false;
                self.alert(News::Recovered, now, "a task has succeeded again");
            }
            _ => {}
        }
    }

    /// A time has led to no running task, and it is too late for that.
    pub(crate) fn note_late(&mut self, nominal: Timestamp, now: Timestamp, reason: &str) {
        if self.rule.late_after.is_none() {
            return;
        }
        let first = self.state.late.is_none();
        self.state.late = self.state.late.max(Some(nominal));
        if first {
            self.alert(News::Late, now, reason);
        }
    }

    /// A fire happens so late that this alone is news.
    pub(crate) fn note_late_fire(&mut self, nominal: Timestamp, now: Timestamp) {
        if self.rule.late_after.is_some_and(|after| nominal + after <= now) {
            self.note_late(nominal, now, "no server was there to fire it in time");
        }
    }

    /// Takes in which tasks have begun. Answers the last of their times.
    pub(crate) fn take_begun(&mut self, look: &Look<'_>) -> Option<Timestamp> {
        let (begun, unbegun): (Vec<Unbegun>, Vec<Unbegun>) = std::mem::take(&mut self.state.unbegun)
            .into_iter()
            .partition(|waiting| look.stands.contains_key(&waiting.task));
        self.state.unbegun = unbegun;
        // One that was cancelled before it ran says nothing about the next one.
        let ran = |waiting: &&Unbegun| look.stands.get(&waiting.task) != Some(&Stand::Neither);
        begun.iter().filter(ran).map(|waiting| waiting.nominal).max()
    }

    /// Judges whether it is late, when everything else is decided.
    pub(crate) fn judge_time(&mut self, begun: Option<Timestamp>, now: Timestamp) {
        let Some(after) = self.rule.late_after else {
            self.state.unbegun.clear();
            self.state.late = None;
            return;
        };
        let open = &self.state.open;
        self.state.unbegun.retain(|waiting| open.contains(&waiting.task));
        let overdue = self.state.unbegun.iter().find(|waiting| waiting.nominal + after <= now).copied();
        let buffered = self.state.buffered.filter(|nominal| *nominal + after <= now);
        if let Some(Unbegun { task, nominal }) = overdue {
            self.note_late(nominal, now, &format!("task {task} has not begun"));
        } else if let Some(nominal) = buffered {
            self.note_late(nominal, now, "it waits for the task before");
        } else if self.state.late.is_some_and(|late| begun.is_some_and(|begun| begun >= late)) {
            self.state.late = None;
            self.alert(News::OnTime, now, "a task has begun again");
        }
    }

    /// When somebody must look whether it is late.
    pub(crate) fn late_at(&self) -> Option<Timestamp> {
        let after = self.rule.late_after.filter(|_| self.state.late.is_none())?;
        let waiting = self.state.unbegun.iter().map(|waiting| waiting.nominal);
        waiting.chain(self.state.buffered).min().map(|nominal| nominal + after)
    }
}

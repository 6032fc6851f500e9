//! Schedules.

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::error::Error;

/// A rule that creates tasks, and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Its name.
    pub id: String,
    /// Whether it fires.
    #[serde(default)]
    pub enabled: bool,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_because: Option<String>,
    /// The next time, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<Timestamp>,
    /// Failed tasks in a row.
    #[serde(default)]
    pub failures: u64,
    /// The last of its times that has led to a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<LastRun>,
    /// The rule itself, as in `docs/schedules.md`, and everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A time of a schedule that has led to a task, and how the task stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastRun {
    /// The time.
    pub nominal_time: Timestamp,
    /// Its task.
    pub task_id: String,
    /// The status of the task, if it is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// When the task ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// A time to come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextTime {
    /// The time.
    pub time: Timestamp,
    /// The same on the clocks of the schedule's time zone.
    #[serde(default)]
    pub local: String,
    /// A remark, where a clock change moves or repeats the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What became of a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fire {
    /// Its name.
    pub fire: String,
    /// The time.
    pub nominal_time: Timestamp,
    /// `fired`, `skipped` or `missed`.
    pub outcome: String,
    /// Its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The status of its task, if that is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_status: Option<String>,
    /// When its task ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many times were missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The span and options of a backfill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backfill {
    /// Nothing was done.
    #[serde(default)]
    pub dry_run: bool,
    /// The `n` in the names of its fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// How many times it fires.
    pub count: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Timestamp>,
    /// The last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Schedules {
    schedules: Vec<Schedule>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct NextTimes {
    times: Vec<NextTime>,
}

#[derive(Deserialize)]
struct History {
    fires: Vec<Fire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Triggered {
    task_id: String,
}

impl Client {
    /// All schedules of the namespace.
    pub async fn schedules(&self) -> Result<Vec<Schedule>, Error> {
        let mut schedules = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&["schedules"]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: Schedules = self.answer(call).await?;
            schedules.extend(page.schedules);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(schedules);
            }
        }
    }

    /// One schedule.
    pub async fn schedule(&self, id: &str) -> Result<Schedule, Error> {
        self.answer(self.get(&["schedules", id])).await
    }

    /// Puts a schedule, in the form of the API. The same again changes nothing.
    pub async fn put_schedule(&self, id: &str, schedule: &Value) -> Result<Schedule, Error> {
        self.answer(self.request(Method::PUT, &["schedules", id]).json(schedule)).await
    }

    /// Removes a schedule; its tasks stay.
    pub async fn delete_schedule(&self, id: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["schedules", id])).await.map(drop)
    }

    /// Lets a schedule fire, or stops it.
    pub async fn enable_schedule(&self, id: &str, enabled: bool) -> Result<Schedule, Error> {
        let action = if enabled { "enable" } else { "disable" };
        self.answer(self.post(&["schedules", id, action])).await
    }

    /// Fires a schedule now and gives the id of the task.
    pub async fn trigger_schedule(&self, id: &str) -> Result<String, Error> {
        let triggered: Triggered = self.answer(self.post(&["schedules", id, "trigger"])).await?;
        Ok(triggered.task_id)
    }

    /// Fires all times between two again, or says what that would be.
    pub async fn backfill_schedule(
        &self,
        id: &str,
        from: Timestamp,
        until: Timestamp,
        dry_run: bool,
    ) -> Result<Backfill, Error> {
        let body = json!({ "from": from, "until": until, "dryRun": dry_run });
        self.answer(self.post(&["schedules", id, "backfill"]).json(&body)).await
    }

    /// The times of a schedule after one, or from now on.
    pub async fn next_times(
        &self,
        id: &str,
        count: u32,
        after: Option<Timestamp>,
    ) -> Result<Vec<NextTime>, Error> {
        let call = self.get(&["schedules", id, "next"]).query(&[("count", count)]);
        let call = match after {
            Some(after) => call.query(&[("after", after.to_string())]),
            None => call,
        };
        let next: NextTimes = self.answer(call).await?;
        Ok(next.times)
    }

    /// The times of a rule that is not stored: `cron`, `every` or `at`, and `dialect`, `timezone`, `from`, `until`, `after`
    /// and `count`, in the form of the API.
    pub async fn preview_times(&self, rule: &Value) -> Result<Vec<NextTime>, Error> {
        let next: NextTimes = self.answer(self.post(&["schedule-preview"]).json(rule)).await?;
        Ok(next.times)
    }

    /// What became of the last times of a schedule, the latest time first.
    pub async fn schedule_history(&self, id: &str) -> Result<Vec<Fire>, Error> {
        let history: History = self.answer(self.get(&["schedules", id, "history"])).await?;
        Ok(history.fires)
    }
}

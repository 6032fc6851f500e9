//! Tasks as the server shows them. Fields that this version does not know are kept in `more`.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::logs::LogChunk;

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum Status {
    /// Waiting for its due time or for a worker.
    Pending,
    /// Assigned to a worker.
    Scheduled,
    /// The worker has it.
    Dispatched,
    /// Executing.
    Running,
    /// Failed, and waiting for its next attempt.
    Retrying,
    /// Ended well.
    Success,
    /// Ended badly.
    Failed,
    /// Stopped on request.
    Cancelled,
    /// A status of a newer server.
    #[serde(other)]
    Unknown,
}

impl Status {
    /// All that this version knows, in the order of a task's life.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Scheduled,
        Self::Dispatched,
        Self::Running,
        Self::Retrying,
        Self::Success,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Nothing will change any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Cancelled)
    }

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Scheduled => "SCHEDULED",
            Self::Dispatched => "DISPATCHED",
            Self::Running => "RUNNING",
            Self::Retrying => "RETRYING",
            Self::Success => "SUCCESS",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A task as the server shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its id.
    pub task_id: String,
    /// The task's name.
    #[serde(default)]
    pub task_name: String,
    /// The type of its executor.
    #[serde(default)]
    pub task_type: String,
    /// Its status.
    pub status: Status,
    /// Its queue.
    #[serde(default)]
    pub queue: String,
    /// 0 to 9; 9 goes first.
    #[serde(default)]
    pub priority: u8,
    /// The number of its current or last attempt; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// The worker that has or had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When its current or last attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it became final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Before this time it does not run (again).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// The executor's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// How far it is, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How many attempts may follow the first.
    #[serde(default)]
    pub retry_count: u32,
    /// Failed attempts that counted against `retry_count`.
    #[serde(default)]
    pub retries_used: u32,
    /// A cancel was accepted and the attempt is being stopped.
    #[serde(default)]
    pub cancel_requested: bool,
    /// The last attempts. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Vec<Attempt>>,
    /// The end of its output. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogChunk>>,
    /// The caller's own pairs.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An executor's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskResult {
    /// 0 for success; else the executor's own code: exit code, HTTP status.
    pub code: i32,
    /// For people.
    pub message: String,
    /// The data of the task's result.
    pub data: Value,
}

/// An error with a stable code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskError {
    /// For programs: `exit_code`, `timeout`, `start_timeout`, `lost_limit` …
    pub code: String,
    /// For people.
    pub message: String,
}

/// How far an attempt is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Of the whole, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// For people.
    pub message: String,
}

/// One execution of a task by one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Counts from 1.
    pub number: u32,
    /// The worker that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When it was assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// How it ended, such as `SUCCESS` or `TIMED_OUT`; none while it is alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Why a task is not running.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Its status.
    pub status: Status,
    /// In a sentence or two.
    #[serde(default)]
    pub summary: String,
    /// The reasons, the most important first. Empty if it runs or is final.
    #[serde(default)]
    pub reasons: Vec<Reason>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A reason why a task does not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    /// Stable, for programs: `no_capable_worker`, `all_full`, `limit`, `rate`, `paused` …
    pub code: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// The facts of this kind of reason.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_newer_server_says_is_kept() {
        let told = json!({ "taskId": "1", "status": "SLEEPING", "mood": "good" });
        let task: Task = serde_json::from_value(told).unwrap();
        assert_eq!(task.status, Status::Unknown);
        assert_eq!(serde_json::to_value(&task).unwrap()["mood"], "good");
    }
}

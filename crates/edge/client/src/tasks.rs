//! One task: look at it, wait for it, stop it, run it again.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::{Client, query_duration, while_waiting};
use crate::error::Error;
use crate::task::{Attempt, Explanation, Status, Task};

/// The longest that one request waits; longer waits are made of several.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A task that runs a finished one again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    /// Its id.
    pub new_task_id: String,
    /// Where it stood.
    pub status: Status,
}

#[derive(Deserialize)]
struct Attempts {
    attempts: Vec<Attempt>,
}

impl Client {
    /// A task with the end of its output.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        self.answer(self.get(&["tasks", id])).await
    }

    /// All attempts of a task.
    pub async fn attempts(&self, id: &str) -> Result<Vec<Attempt>, Error> {
        self.answer(self.get(&["tasks", id, "attempts"])).await.map(|answer: Attempts| answer.attempts)
    }

    /// Waits until a task is final, up to `wait`; then gives it as it is.
    pub async fn wait(&self, id: &str, wait: Duration) -> Result<Task, Error> {
        let started = Instant::now();
        loop {
            let left = wait.saturating_sub(started.elapsed());
            let part = left.min(WAIT_MAX);
            let call = self.get(&["tasks", id]).query(&[("wait", query_duration(part))]);
            let task: Task = self.answer(call.timeout(while_waiting(part))).await?;
            if task.status.is_final() || part == left {
                return Ok(task);
            }
        }
    }

    /// Asks for a task to be stopped. Durable once answered; the task ends a little later.
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        self.send(self.request(reqwest::Method::DELETE, &["tasks", id])).await.map(drop)
    }

    /// Runs a finished task again, as a new task. The same request id twice is one new task.
    pub async fn retry(&self, id: &str, request_id: Option<&str>) -> Result<Retried, Error> {
        let mut body = Map::new();
        if let Some(request_id) = request_id {
            body.insert("requestId".to_owned(), Value::from(request_id));
        }
        self.answer(self.post(&["tasks", id, "retry"]).json(&body)).await
    }

    /// Why a task is not running.
    pub async fn explain(&self, id: &str) -> Result<Explanation, Error> {
        self.answer(self.get(&["tasks", id, "explain"])).await
    }
}

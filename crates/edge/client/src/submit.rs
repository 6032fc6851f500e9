//! Submits tasks, one by one or many at once.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::client::{Client, query_duration, while_waiting};
use crate::error::{Error, Problem};
use crate::task::{Status, Task};
use crate::webhook::Webhook;

/// A task to submit. The queue's policy and the server's defaults fill in missing fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskRequest {
    /// The task's name.
    pub task_name: String,
    /// Chooses the executor: `SHELL`, `PYTHON_SCRIPT`, `HTTP`, `NOOP`, or a registered function.
    pub task_type: String,
    /// The executor's input: text or JSON.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub payload: Value,
    /// An attempt that runs longer is stopped.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub execution_timeout: Option<Duration>,
    /// How many attempts may follow a failed first one. Excludes `retry_policy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// How failed attempts are retried. Excludes `retry_count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// The caller's own name for the request: the same one twice is one task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// 0 to 9; 9 goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Not before this time. Excludes `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Not before this much time has passed. Excludes `run_at`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub delay: Option<Duration>,
    /// The caller's own pairs, to be found by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Labels that a worker must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Under the consistent-hash strategy: tasks with the same key go to the same worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_key: Option<String>,
    /// A task not started this long after its due time fails.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub start_timeout: Option<Duration>,
    /// An attempt that reports no progress for this long is stopped.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub progress_timeout: Option<Duration>,
    /// It does not start while as many attempts of its keys are alive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<Concurrency>,
    /// It does not start faster than its keys allow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate: Vec<Rate>,
    /// While another task holds this key, that one is the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// The receivers that are notified of its end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,
}

impl TaskRequest {
    /// A task of any type.
    pub fn new(name: impl Into<String>, task_type: impl Into<String>, payload: impl Into<Value>) -> Self {
        Self {
            task_name: name.into(),
            task_type: task_type.into(),
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// A line for `/bin/sh`.
    pub fn shell(name: impl Into<String>, command: impl Into<String>) -> Self {
        Self::new(name, "SHELL", command.into())
    }
}

/// How failed attempts are retried. The queue's policy fills in missing fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// How many attempts may follow a failed first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// The wait before the first of them.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub retry_delay: Option<Duration>,
    /// Each further wait is this many times the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_rate: Option<f64>,
    /// No wait is longer.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub max_delay: Option<Duration>,
    /// Up to this share of the wait, 0 to 1, is added or taken away at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

/// At most so many attempts of a key alive at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Concurrency {
    /// Text, or a template such as `{{ metadata.tenant }}`.
    pub key: String,
    /// How many.
    pub limit: u32,
    /// Above it the newest task is cancelled rather than waiting.
    #[serde(rename = "whenFull", serialize_with = "when_full")]
    pub cancel_newest: bool,
}

/// At most so many starts of a key in a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Text, or a template such as `{{ metadata.tenant }}`.
    pub key: String,
    /// How many.
    pub limit: u32,
    /// In what time.
    #[serde(serialize_with = "plain_seconds")]
    pub per: Duration,
    /// How many at once after a quiet time; 1 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// Of tasks of a queue with the same key there is one at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unique {
    /// Text, or a template such as `{{ metadata.tenant }}`.
    pub key: String,
    /// For how long, from the submit; `None` until the task has finished.
    #[serde(rename = "until", skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub hold_for: Option<Duration>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn when_full<S: Serializer>(cancel_newest: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *cancel_newest { "cancelNewest" } else { "wait" })
}

fn plain_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// A task that the server has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Submitted {
    /// Its id.
    pub task_id: String,
    /// Its status.
    pub status: Status,
    /// It existed already: an earlier request with this id created it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The outcome of one task of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchItem {
    /// It was submitted.
    Submitted(Submitted),
    /// It was refused; the others were not affected.
    Refused(Box<Problem>),
}

#[derive(Deserialize)]
struct BatchAnswer {
    results: Vec<ItemAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemAnswer {
    task_id: Option<String>,
    status: Option<Status>,
    #[serde(default)]
    duplicate: bool,
    error: Option<Problem>,
}

#[derive(Serialize)]
struct Batch<'a, T> {
    tasks: &'a [T],
}

impl Client {
    /// Submits one task: a [`TaskRequest`], or JSON of that form.
    pub async fn submit(&self, request: &(impl Serialize + ?Sized)) -> Result<Submitted, Error> {
        self.answer(self.post(&["tasks"]).json(request)).await
    }

    /// Submits one task and waits for its end, up to `wait`. The answered task may be unfinished.
    pub async fn submit_and_wait(
        &self,
        request: &(impl Serialize + ?Sized),
        wait: Duration,
    ) -> Result<Task, Error> {
        let call = self.post(&["tasks"]).query(&[("wait", query_duration(wait))]).json(request);
        self.answer(call.timeout(while_waiting(wait))).await
    }

    /// Submits many tasks. The answers are in the order of the requests; a bad one does not hold back the others.
    pub async fn submit_batch<T: Serialize>(&self, tasks: &[T]) -> Result<Vec<BatchItem>, Error> {
        let answer: BatchAnswer = self.answer(self.post(&["tasks", "batch"]).json(&Batch { tasks })).await?;
        let broken = |why: &str| Error::Answer { url: self.url().to_owned(), why: why.to_owned() };
        if answer.results.len() != tasks.len() {
            return Err(broken("the answer to a batch must have a result for each task"));
        }
        answer
            .results
            .into_iter()
            .map(|item| match (item.error, item.task_id) {
                (Some(problem), _) => Ok(BatchItem::Refused(Box::new(problem))),
                (None, Some(task_id)) => {
                    let status = item.status.unwrap_or(Status::Pending);
                    Ok(BatchItem::Submitted(Submitted { task_id, status, duplicate: item.duplicate }))
                }
                (None, None) => Err(broken("a result of a batch has neither taskId nor error")),
            })
            .collect()
    }
}

/// Seconds as a number, whole where they are.
#[expect(clippy::ref_option, reason = "serde calls it with a reference")]
fn seconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) if duration.subsec_nanos() == 0 => serializer.serialize_u64(duration.as_secs()),
        Some(duration) => serializer.serialize_f64(duration.as_secs_f64()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_said_is_sent() {
        let request = TaskRequest::shell("greet", "echo hello");
        assert_eq!(
            serde_json::to_value(request).unwrap(),
            json!({ "taskName": "greet", "taskType": "SHELL", "payload": "echo hello" })
        );
    }

    #[test]
    fn durations_are_seconds() {
        let request = TaskRequest {
            execution_timeout: Some(Duration::from_secs(90)),
            delay: Some(Duration::from_millis(1500)),
            retry_policy: Some(RetryPolicy { max_retries: Some(2), ..RetryPolicy::default() }),
            ..TaskRequest::new("n", "NOOP", Value::Null)
        };
        assert_eq!(
            serde_json::to_value(request).unwrap(),
            json!({ "taskName": "n", "taskType": "NOOP", "executionTimeout": 90, "delay": 1.5,
                    "retryPolicy": { "maxRetries": 2 } })
        );
    }
}

//! One task: look at it, wait for it, stop it, run it again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::sse::EventSource;
use crate::task::{Attempt, Explanation, Status, Task};

/// Attempts read at once.
const ATTEMPTS_PAGE: u32 = 1000;

/// A position behind all output: a reader that follows from there receives the end only.
const AFTER_ALL: &str = "999999999-999999999";

/// A task that runs a finished one again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    /// Its id.
    pub new_task_id: String,
    /// Where it stood.
    pub status: Status,
    /// It was there already: the request id had been used for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// It runs by the definition of the first task, and a newer one is registered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newer_definition: bool,
    /// Of a run: nodes that succeeded and are taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<String>>,
    /// Of a run: the other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_again: Option<Vec<String>>,
}

/// How a finished task or run is run again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryOptions {
    /// A name for this request: the same one again gives the same new task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// By the definition that is registered now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub latest: bool,
    /// By this definition of the workflow, in the form of the API. Only for runs, and not together with `latest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Value>,
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
        let mut attempts: Vec<Attempt> = Vec::new();
        loop {
            let after = attempts.last().map_or(0, |last| last.number);
            let call =
                self.get(&["tasks", id, "attempts"]).query(&[("after", after), ("limit", ATTEMPTS_PAGE)]);
            let page: Attempts = self.answer(call).await?;
            let full = page.attempts.len() >= ATTEMPTS_PAGE as usize;
            attempts.extend(page.attempts);
            if !full {
                return Ok(attempts);
            }
        }
    }

    /// Waits until a task is final, up to `wait`; then gives it as it is.
    pub async fn wait(&self, id: &str, wait: Duration) -> Result<Task, Error> {
        let task = id.to_owned();
        let mut changes = EventSource::new(self, None, move |client| {
            client.get(&["tasks", &task, "logs"]).query(&[("follow", "true"), ("after", AFTER_ALL)])
        });
        let end = async {
            while let Some(event) = changes.next().await? {
                if event.name == "end" {
                    break;
                }
            }
            Ok::<(), Error>(())
        };
        match tokio::time::timeout(wait, end).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => self.task(id).await,
        }
    }

    /// Asks for a task to be stopped. Durable once answered; the task ends a little later.
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        self.send(self.request(reqwest::Method::DELETE, &["tasks", id])).await.map(drop)
    }

    /// Runs a finished task again, as a new task. The same request id twice is one new task.
    pub async fn retry(&self, id: &str, request_id: Option<&str>) -> Result<Retried, Error> {
        let request_id = request_id.map(str::to_owned);
        self.retry_with(id, &RetryOptions { request_id, ..RetryOptions::default() }).await
    }

    /// Runs a finished task again, as a new task, by one of its definitions.
    pub async fn retry_with(&self, id: &str, options: &RetryOptions) -> Result<Retried, Error> {
        self.answer(self.post(&["tasks", id, "retry"]).json(options)).await
    }

    /// Why a task is not running.
    pub async fn explain(&self, id: &str) -> Result<Explanation, Error> {
        self.answer(self.get(&["tasks", id, "explain"])).await
    }
}

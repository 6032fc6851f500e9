//! Workflows and their runs.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;
use crate::task::{Progress, Status, TaskError, TaskResult};
use crate::tasks::RetryOptions;

/// A workflow that is run by its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// Its name.
    pub id: String,
    /// Changes with every put that changes it.
    pub version: u64,
    /// As it was put.
    pub definition: Value,
}

/// A run of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRun {
    /// Its identity.
    pub run_id: String,
    /// The workflow, or the name of the run.
    #[serde(default)]
    pub name: String,
    /// Its status.
    pub status: Status,
    /// A cancel was accepted, and open nodes are being stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Its nodes, in the order in which they were given. Left out of lists.
    #[serde(default)]
    pub nodes: Vec<RunNode>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A node of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunNode {
    /// Its name.
    pub name: String,
    /// The names of the nodes that it waits for.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// The status of its task; `WAITING` before it has one, `SKIPPED` if it gets none.
    pub status: String,
    /// Why it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// When its task started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When its task ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The result of its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStarted {
    /// Its identity.
    pub run_id: String,
    /// The same request was accepted before.
    #[serde(default)]
    pub duplicate: bool,
}

/// A run that takes over what succeeded in another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRetried {
    /// Its identity.
    pub run_id: String,
    /// The same request was accepted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// It goes by the definition of the first run, and its workflow has a newer one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newer_definition: bool,
    /// Nodes that succeeded and are taken over.
    #[serde(default)]
    pub kept: Vec<String>,
    /// The other nodes.
    #[serde(default)]
    pub runs_again: Vec<String>,
}

#[derive(Deserialize)]
struct Workflows {
    workflows: Vec<Workflow>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Runs {
    runs: Vec<WorkflowRun>,
}

impl Client {
    /// Begins a run, in the form of the API.
    pub async fn start_run(&self, run: &Value) -> Result<RunStarted, Error> {
        self.answer(self.post(&["workflows", "runs"]).json(run)).await
    }

    /// A run with its nodes, when it has ended or `wait` is over.
    pub async fn workflow_run(&self, id: &str, wait: Option<Duration>) -> Result<WorkflowRun, Error> {
        let call = self.get(&["workflows", "runs", id]);
        let call = match wait {
            Some(wait) => call.query(&[("wait", format!("{}ms", wait.as_millis()))]),
            None => call,
        };
        self.answer(call).await
    }

    /// The last runs, the newest first and without their nodes.
    pub async fn workflow_runs(&self, limit: u32) -> Result<Vec<WorkflowRun>, Error> {
        let runs: Runs = self.answer(self.get(&["workflows", "runs"]).query(&[("limit", limit)])).await?;
        Ok(runs.runs)
    }

    /// Asks for a run to be cancelled.
    pub async fn cancel_run(&self, id: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["workflows", "runs", id])).await.map(drop)
    }

    /// Begins a new run that takes over what succeeded in another.
    pub async fn retry_run(&self, id: &str, options: &RetryOptions) -> Result<RunRetried, Error> {
        self.answer(self.post(&["workflows", "runs", id, "retry"]).json(options)).await
    }

    /// All workflows of the namespace.
    pub async fn workflows(&self) -> Result<Vec<Workflow>, Error> {
        let mut workflows = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&["workflows"]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: Workflows = self.answer(call).await?;
            workflows.extend(page.workflows);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(workflows);
            }
        }
    }

    /// One workflow.
    pub async fn workflow(&self, id: &str) -> Result<Workflow, Error> {
        self.answer(self.get(&["workflows", id])).await
    }

    /// Puts a workflow, in the form of the API. The same again changes nothing.
    pub async fn put_workflow(&self, id: &str, workflow: &Value) -> Result<Workflow, Error> {
        self.answer(self.request(Method::PUT, &["workflows", id]).json(workflow)).await
    }

    /// Removes a workflow; its runs go on.
    pub async fn delete_workflow(&self, id: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["workflows", id])).await.map(drop)
    }
}

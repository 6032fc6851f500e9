//! Executors, analyzers and jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;
use crate::task::{Status, TaskError};

/// The kinds of definitions of a task type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionKind {
    /// How it is run.
    Executor,
    /// The analyzer of its results.
    Analyzer,
}

impl DefinitionKind {
    fn path(self) -> &'static str {
        match self {
            Self::Executor => "executors",
            Self::Analyzer => "analyzers",
        }
    }
}

/// The definition of a task type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeDefinition {
    /// The task type.
    pub task_type: String,
    /// Changes with every put that changes it.
    pub version: u64,
    /// As it was put.
    pub definition: Value,
}

/// A job: a task and all that came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Its identity.
    pub job_id: String,
    /// The job's name.
    #[serde(default)]
    pub name: String,
    /// Where it is in its life.
    pub status: Status,
    /// Nothing of it is queued, running or unanalyzed.
    pub finished: bool,
    /// The number of its tasks, without analyses.
    pub total: u64,
    /// The same by status.
    #[serde(default)]
    pub by_status: BTreeMap<String, u64>,
    /// Those that have not ended.
    pub open: u64,
    /// Ended tasks whose results are not analyzed yet.
    pub unanalyzed: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Deserialize)]
struct DefinitionPage {
    #[serde(alias = "executors", alias = "analyzers")]
    all: Vec<TypeDefinition>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Removed {
    removed: u64,
}

impl Client {
    /// All that is registered of a kind.
    pub async fn definitions(&self, kind: DefinitionKind) -> Result<Vec<TypeDefinition>, Error> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&[kind.path()]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: DefinitionPage = self.answer(call).await?;
            all.extend(page.all);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// The definition of a task type.
    pub async fn definition(&self, kind: DefinitionKind, task_type: &str) -> Result<TypeDefinition, Error> {
        self.answer(self.get(&[kind.path(), task_type])).await
    }

    /// Registers something for a task type, in the form of the API. The same again changes nothing; something else is
    /// refused unless it may replace what is there.
    pub async fn register(
        &self,
        kind: DefinitionKind,
        task_type: &str,
        definition: &Value,
        replace: bool,
    ) -> Result<TypeDefinition, Error> {
        let call = self.request(Method::PUT, &[kind.path(), task_type]).query(&[("replace", replace)]);
        self.answer(call.json(definition)).await
    }

    /// Removes what is registered for a task type.
    pub async fn unregister(&self, kind: DefinitionKind, task_type: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &[kind.path(), task_type])).await.map(drop)
    }

    /// A job, when it has ended or `wait` is over.
    pub async fn job(&self, id: &str, wait: Option<Duration>) -> Result<Job, Error> {
        let call = self.get(&["jobs", id]);
        let call = match wait {
            Some(wait) => call.query(&[("wait", format!("{}ms", wait.as_millis()))]),
            None => call,
        };
        self.answer(call).await
    }

    /// Cancels what is open of a job and removes all of it. Answers how many tasks that were.
    pub async fn tear_down(&self, id: &str) -> Result<u64, Error> {
        let removed: Removed = self.answer(self.request(Method::DELETE, &["jobs", id])).await?;
        Ok(removed.removed)
    }
}

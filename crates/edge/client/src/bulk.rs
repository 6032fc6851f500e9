//! One action on all tasks that a filter finds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;
use crate::task::Status;

/// The action on each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BulkAction {
    /// Stop it.
    Cancel,
    /// Run it again, as a new task.
    Retry,
}

/// Which tasks; all that is said must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskFilter {
    /// In one of these states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
    /// Of this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// With this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// At this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Children or retries of this task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<Timestamp>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// With all of these pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// One action on many tasks, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its id.
    pub operation_id: String,
    /// The action.
    pub action: BulkAction,
    /// Where it is in its life.
    pub status: Status,
    /// Tasks that the filter found so far.
    #[serde(default)]
    pub matched: u64,
    /// Tasks that are dealt with.
    #[serde(default)]
    pub done: u64,
    /// Tasks that could not be dealt with: they had changed meanwhile.
    #[serde(default)]
    pub failed: u64,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BulkRequest<'a> {
    action: BulkAction,
    filter: &'a TaskFilter,
    dry_run: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    latest: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    matched: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    operation_id: String,
}

impl Client {
    /// How many tasks an operation would find; nothing is done.
    pub async fn bulk_count(&self, action: BulkAction, filter: &TaskFilter) -> Result<u64, Error> {
        let body = BulkRequest { action, filter, dry_run: true, latest: false };
        self.answer(self.post(&["tasks", "bulk"]).json(&body)).await.map(|answer: Counted| answer.matched)
    }

    /// Begins an operation and gives its id. It is durable: it goes on after a crash of the server.
    pub async fn bulk(&self, action: BulkAction, filter: &TaskFilter) -> Result<String, Error> {
        self.begin_bulk(&BulkRequest { action, filter, dry_run: false, latest: false }).await
    }

    /// Begins to run all tasks of a filter again, by the definitions that are registered now.
    pub async fn bulk_retry_latest(&self, filter: &TaskFilter) -> Result<String, Error> {
        let action = BulkAction::Retry;
        self.begin_bulk(&BulkRequest { action, filter, dry_run: false, latest: true }).await
    }

    async fn begin_bulk(&self, body: &BulkRequest<'_>) -> Result<String, Error> {
        self.answer(self.post(&["tasks", "bulk"]).json(body)).await.map(|answer: Started| answer.operation_id)
    }

    /// How far an operation is.
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> {
        self.answer(self.get(&["operations", id])).await
    }
}

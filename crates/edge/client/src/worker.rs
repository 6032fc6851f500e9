//! Workers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;

/// A live worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Its identity since it was started.
    #[serde(default)]
    pub session: String,
    /// The worker's name.
    pub name: String,
    /// How many attempts it runs at once.
    #[serde(default)]
    pub capacity: u32,
    /// Its share under the weighted strategy.
    #[serde(default)]
    pub weight: u32,
    /// The labels that selectors of tasks match against.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The task types that it executes.
    #[serde(default)]
    pub task_types: Vec<String>,
    /// Where it is reached; workers of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `IDLE`, `ACTIVE`, `BUSY`, `PAUSING`, `DRAINING` or `NOT_RECEIVING`.
    #[serde(default)]
    pub status: String,
    /// Its last heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<WorkerLoad>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The content of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerLoad {
    /// Processor time that its machine uses, all processes together; 100 is one core.
    pub cpu_percent: f64,
    /// Memory that its machine uses, all processes together.
    pub memory_bytes: u64,
    /// Attempts that run.
    pub running: u32,
    /// Attempts that wait at the worker.
    pub queued: u32,
    /// When the worker sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// A change of a worker; missing fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerChange {
    /// How many attempts it runs at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Its share under the weighted strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// All of its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<Worker>,
}

impl Client {
    /// All live workers.
    pub async fn workers(&self) -> Result<Vec<Worker>, Error> {
        self.answer(self.get(&["workers"])).await.map(|answer: Workers| answer.workers)
    }

    /// One worker, by name or session.
    pub async fn worker(&self, id: &str) -> Result<Worker, Error> {
        self.answer(self.get(&["workers", id])).await
    }

    /// Changes a worker's offer, until its next start. Running attempts go on.
    pub async fn change_worker(&self, id: &str, change: &WorkerChange) -> Result<Worker, Error> {
        let call = self.request(Method::PATCH, &["workers", id]).json(change);
        self.answer(call).await
    }

    /// Gives a worker no new work; it finishes its attempts.
    pub async fn drain(&self, id: &str) -> Result<Worker, Error> {
        self.answer(self.post(&["workers", id, "drain"])).await
    }
}

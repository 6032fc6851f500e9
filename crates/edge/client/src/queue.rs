//! Queues and their policies.

use std::collections::BTreeMap;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;

/// How many tasks there are, by the name of their status.
pub type Counts = BTreeMap<String, u64>;

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Rises with every change of the policy.
    #[serde(default)]
    pub version: u64,
    /// Its policy, as in `docs/queues.md`.
    #[serde(default)]
    pub policy: Map<String, Value>,
    /// How many tasks it has.
    #[serde(default)]
    pub counts: Counts,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Queue {
    /// Whether nothing is assigned.
    pub fn is_paused(&self) -> bool {
        self.policy.get("paused").and_then(Value::as_bool).unwrap_or(false)
    }

    /// How many of its tasks are in a status.
    pub fn count(&self, status: crate::Status) -> u64 {
        self.counts.get(status.as_str()).copied().unwrap_or(0)
    }

    /// How many of its tasks are not final.
    pub fn unfinished(&self) -> u64 {
        crate::Status::ALL.iter().filter(|status| !status.is_final()).map(|status| self.count(*status)).sum()
    }
}

/// A key that the limits of a queue count, or that tasks wait for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The key; `None` for a limit over the whole queue.
    #[serde(default)]
    pub key: Option<String>,
    /// The template that it was made by; `None` for a limit of a task's own.
    #[serde(default)]
    pub template: Option<String>,
    /// Attempts alive.
    pub running: u64,
    /// Tasks that wait: at least so many.
    pub waiting: u64,
    /// There may be more of them.
    #[serde(default)]
    pub more_waiting: bool,
    /// How many may be alive at once.
    #[serde(default)]
    pub limit: Option<u64>,
    /// How many may start in a time.
    #[serde(default)]
    pub rate: Option<KeyRate>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The rate of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRate {
    /// So many …
    pub limit: u64,
    /// … in so many seconds,
    pub per: f64,
    /// and so many at once after a quiet time.
    pub burst: u64,
    /// When the next one may start.
    pub next_at: Timestamp,
}

/// A page of keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<Key>,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Queues {
    queues: Vec<Queue>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PutPolicy<'a> {
    version: u64,
    policy: &'a Map<String, Value>,
}

impl Client {
    /// All queues of the namespace.
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        let mut queues = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&["queues"]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: Queues = self.answer(call).await?;
            queues.extend(page.queues);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(queues);
            }
        }
    }

    /// One queue; an unused queue has the default policy.
    pub async fn queue(&self, name: &str) -> Result<Queue, Error> {
        self.answer(self.get(&["queues", name])).await
    }

    /// A page of the keys that the limits of a queue count now; the next one follows its cursor.
    pub async fn queue_keys(&self, name: &str, limit: u32, cursor: Option<&str>) -> Result<KeyPage, Error> {
        let call = self.get(&["queues", name, "keys"]).query(&[("limit", limit)]);
        let call = if let Some(cursor) = cursor { call.query(&[("cursor", cursor)]) } else { call };
        self.answer(call).await
    }

    /// Replaces the policy of a queue if it still has this version, and gives the queue as it is then.
    pub async fn put_queue(
        &self,
        name: &str,
        version: u64,
        policy: &Map<String, Value>,
    ) -> Result<Queue, Error> {
        self.answer(self.request(Method::PUT, &["queues", name]).json(&PutPolicy { version, policy })).await
    }

    /// Assigns nothing of this queue until it is resumed; running attempts go on. A queue without tasks and
    /// without a policy is refused unless it may be created.
    pub async fn pause_queue(&self, name: &str, create: bool) -> Result<Queue, Error> {
        let call = self.post(&["queues", name, "pause"]);
        self.answer(if create { call.query(&[("create", true)]) } else { call }).await
    }

    /// Ends a pause.
    pub async fn resume_queue(&self, name: &str) -> Result<Queue, Error> {
        self.answer(self.post(&["queues", name, "resume"])).await
    }
}

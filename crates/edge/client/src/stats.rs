//! Numbers about the whole server.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;
use crate::queue::Counts;

/// How a server is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// The version of the server.
    #[serde(default)]
    pub version: String,
    /// Tasks by status.
    #[serde(default)]
    pub tasks: Counts,
    /// Lanes and their owners.
    #[serde(default)]
    pub lanes: Vec<Lane>,
    /// The resources that the server's process uses.
    #[serde(default)]
    pub process: Process,
    /// Live workers.
    #[serde(default)]
    pub workers: u64,
    /// Attempts that run.
    #[serde(default)]
    pub running: u64,
    /// Attempts that could run at once.
    #[serde(default)]
    pub capacity: u64,
    /// Counters since the start.
    #[serde(default)]
    pub counters: Map<String, Value>,
    /// When the server was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A lane as this server sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    /// Its number.
    pub lane: u16,
    /// Where the server stands with it.
    #[serde(default)]
    pub phase: String,
    /// Counts its owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Commits that this server has asked the store for since its start.
    #[serde(default)]
    pub commits: u64,
    /// Tasks written by them.
    #[serde(default)]
    pub written: u64,
}

/// The resources that a server's process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Time on all cores together since its start.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// Memory that is its own now.
    #[serde(default)]
    pub anon_bytes: u64,
    /// The most memory of any kind so far.
    #[serde(default)]
    pub peak_bytes: u64,
}

impl Client {
    /// How the server is doing.
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.answer(self.get(&["stats"])).await
    }
}

//! Members: the live processes that the coordinator lists.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{Name, SessionId};
use crate::task::TaskHead;

/// A live process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its session.
    pub session: SessionId,
    /// Its role.
    pub role: Role,
}

/// The role of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Serves the API and owns lanes.
    Server {
        /// Where its API is reached.
        address: String,
        /// Where its bus is reached; empty where messages go another way.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        bus: String,
    },
    /// Executes tasks.
    Worker(WorkerDescriptor),
}

/// The offer of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDescriptor {
    /// Its name for people. Stays the same over restarts, unlike its session.
    pub name: Name,
    /// How many attempts it runs at once. Can be changed while it runs.
    pub capacity: u32,
    /// Share under the weighted strategy.
    pub weight: u32,
    /// The labels that selectors of tasks match against.
    pub labels: BTreeMap<String, String>,
    /// Task types it can execute.
    pub task_types: BTreeSet<Name>,
    /// Takes no new work.
    pub draining: bool,
    /// The reason why the worker takes no new work for a while: its machine lacks something. `None` while it
    /// takes work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_reason: Option<String>,
    /// Where it is reached: its host, with the port of its API or health checks where it listens. Empty if
    /// unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
}

impl WorkerDescriptor {
    /// The label that every worker has: its name.
    pub const NAME_LABEL: &str = "tasklane.worker";

    /// Whether the worker may execute such a task.
    pub fn can_run(&self, head: &TaskHead) -> bool {
        self.serves(head.executor(), &head.labels)
    }

    /// Whether it offers the type and has all the labels.
    pub fn serves(&self, task_type: &Name, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| match key.as_str() {
            Self::NAME_LABEL => self.name.as_str() == value,
            _ => self.labels.get(key) == Some(value),
        };
        self.task_types.contains(task_type) && labels.iter().all(has)
    }
}

//! Durable commands to a lane from processes that do not own it.

use serde::{Deserialize, Serialize};

use crate::id::{Seq, TaskId};

/// A command to the owner of a lane. Applying a command more than once is safe, because the owner judges it
/// by the state of its task. The group that applies a command removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Stop the task, wherever it is.
    Cancel {
        /// The task to stop.
        task: TaskId,
    },
}

/// A command with its place in the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// Its place in the lane's order of arrival, and its identity.
    pub seq: Seq,
    /// The command itself.
    pub command: Command,
}

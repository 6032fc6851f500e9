//! Durable commands to a lane, from anyone who is not its owner.

use serde::{Deserialize, Serialize};

use crate::id::{Seq, TaskId};

/// What is asked of the owner. Every command is safe to apply more than once, because it is judged by the state of its
/// task; it is removed in the group that applies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Stop the task, wherever it is.
    Cancel {
        /// Which one.
        task: TaskId,
    },
}

/// A command as it lies in the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// Its place in the lane's order of arrival, and its identity.
    pub seq: Seq,
    /// What is asked.
    pub command: Command,
}

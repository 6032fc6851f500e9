//! Archive: where final states are kept for good.

use async_trait::async_trait;
use tasklane_core::task::AttemptRecord;

use crate::{ArchiveError, TaskView};

/// Takes finished tasks.
///
/// Promises:
/// 1. A task is durable when `put` has answered.
/// 2. A task that is put twice is kept once.
#[async_trait]
pub trait Archive: Send + Sync + std::fmt::Debug {
    /// Keeps finished tasks.
    async fn put(&self, tasks: &[ArchivedTask]) -> Result<(), ArchiveError>;
}

/// A finished task with all its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedTask {
    /// The task.
    pub task: TaskView,
    /// Its earlier attempts.
    pub attempts: Vec<AttemptRecord>,
}

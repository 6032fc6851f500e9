//! Writing finished tasks to the archive, where there is one.
//!
//! The end of every task is noted in its lane until it has been archived, so that none is passed over, whoever dies. An
//! archive that cannot be reached holds up nobody else: what it has not taken is tried again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::task::AttemptRecord;
use tasklane_core::time::Timestamp;
use tasklane_ports::{ArchivedTask, AttemptList, StoreError, TaskView};

use crate::clock;

use super::Node;

/// How far the archive is.
#[derive(Debug, Default)]
pub(super) struct Archived {
    tasks: AtomicU64,
    /// Since when it has not taken what it was given, in microseconds; 0 while it takes everything.
    behind_since: AtomicI64,
}

/// How far the archive of a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Tasks that this server has archived since its start.
    pub tasks: u64,
    /// For how long the archive has not taken what it was given.
    pub lag: Duration,
}

/// Attempts of one task that are archived.
const ATTEMPTS_MAX: usize = 1000;

impl Node {
    /// Archives tasks that have ended. Answers those that have to be given to it again.
    pub(super) async fn archive(&self, views: &[TaskView]) -> BTreeSet<TaskId> {
        let Some(archive) = &self.0.parts.archive else { return BTreeSet::new() };
        let wanted = |view: &&TaskView| view.row.body.as_ref().is_some_and(|body| body.archived);
        let views: Vec<&TaskView> = views.iter().filter(wanted).collect();
        if views.is_empty() {
            return BTreeSet::new();
        }
        let done = match self.with_attempts(&views).await {
            Ok(tasks) => archive.put(&tasks).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let state = &self.0.archived;
        match done {
            Ok(()) => {
                state.tasks.fetch_add(views.len() as u64, Ordering::Relaxed);
                state.behind_since.store(0, Ordering::Relaxed);
                BTreeSet::new()
            }
            Err(error) => {
                tracing::warn!(%error, tasks = views.len(), "finished tasks were not archived, trying again");
                let now = clock::wall().as_micros();
                let _ = state.behind_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                views.iter().map(|view| view.row.id).collect()
            }
        }
    }

    /// How far the archive is, if there is one.
    pub fn archive_stats(&self) -> Option<ArchiveStats> {
        self.0.parts.archive.as_ref()?;
        let state = &self.0.archived;
        let lag = match state.behind_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => clock::wall().since(Timestamp::from_micros(since)),
        };
        Some(ArchiveStats { tasks: state.tasks.load(Ordering::Relaxed), lag })
    }

    async fn with_attempts(&self, views: &[&TaskView]) -> Result<Vec<ArchivedTask>, StoreError> {
        let mut tasks = Vec::with_capacity(views.len());
        for view in views {
            tasks.push(ArchivedTask { task: (*view).clone(), attempts: self.earlier_attempts(view).await? });
        }
        Ok(tasks)
    }

    /// The last one is part of the task.
    async fn earlier_attempts(&self, view: &TaskView) -> Result<Vec<AttemptRecord>, StoreError> {
        if view.row.state.attempt <= AttemptNo(1) {
            return Ok(Vec::new());
        }
        let list = AttemptList { task: view.row.id, after: AttemptNo(0), limit: ATTEMPTS_MAX };
        self.0.parts.store.attempts(list).await
    }
}

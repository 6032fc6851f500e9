//! Writing finished tasks to the archive, where there is one.
//!
//! The lane notes the end of every task until the task has been archived, so that none is passed over, even
//! if servers die. An unreachable archive holds up only the removal of tasks: tasks that it has not taken
//! wait in a line of their own, and no task is removed before it is archived.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasklane_core::id::{AttemptNo, Name, TaskId};
use tasklane_core::task::AttemptRecord;
use tasklane_ports::{ArchivedTask, AttemptList, StoreError, TaskView};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Node;

/// The tasks that wait for the archive, and the counts.
#[derive(Debug, Default)]
pub(super) struct Archiving {
    waiting: Mutex<ArchiveQueue>,
    came: Notify,
    done: AtomicU64,
}

/// Tasks that wait for the archive, each once: every new owner of a lane reports them again.
#[derive(Debug, Default)]
struct ArchiveQueue {
    /// The oldest first, each with its time of arrival.
    line: VecDeque<(TaskId, Instant)>,
    known: HashSet<TaskId>,
}

impl ArchiveQueue {
    /// Returns how many found no place. They stay noted in their lanes: the next owner reports them, and at
    /// the latest they are archived before their removal.
    fn add(&mut self, tasks: &[TaskId], now: Instant, max: usize) -> usize {
        let mut left_out = 0;
        for task in tasks {
            if self.line.len() >= max {
                left_out += usize::from(!self.known.contains(task));
            } else if self.known.insert(*task) {
                self.line.push_back((*task, now));
            }
        }
        left_out
    }

    fn remove_first(&mut self, count: usize) {
        for (task, _) in self.line.drain(..count) {
            self.known.remove(&task);
        }
    }
}

/// The progress of the archive of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Tasks that this server has archived since its start.
    pub tasks: u64,
    /// Tasks that wait to be archived.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub lag: Duration,
}

/// Tasks archived in one write.
const PAGE: usize = 500;
/// Most tasks that wait for an unreachable archive: about 60 MiB.
const WAITING_MAX: usize = 1_000_000;
/// Attempts of one task that are archived.
const ATTEMPTS_MAX: usize = 1000;
/// Wait after the archive or the store has failed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Archiving {
    fn lock(&self) -> MutexGuard<'_, ArchiveQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for tasks to archive. They stay in the line.
    async fn first(&self) -> Vec<TaskId> {
        loop {
            let came = self.came.notified();
            let tasks: Vec<TaskId> = self.lock().line.iter().take(PAGE).map(|(task, _)| *task).collect();
            if !tasks.is_empty() {
                return tasks;
            }
            came.await;
        }
    }
}

/// Whether a task that has ended needs the archive: there was an archive when it was submitted.
pub(super) fn is_to_be_archived(view: &TaskView) -> bool {
    view.row.body.as_ref().is_some_and(|body| body.archived)
}

impl Node {
    /// Archives tasks that have ended, as soon as possible, and then notifies their lane.
    pub(super) fn archive_later(&self, tasks: &[TaskId]) {
        let left_out = self.0.archiving.lock().add(tasks, Instant::now(), WAITING_MAX);
        if left_out > 0 {
            tracing::warn!(left_out, "the line of the archive is full: these tasks are archived later");
        }
        self.0.archiving.came.notify_one();
    }

    /// Whether a task that is submitted now needs the archive.
    pub(super) fn is_archived(&self, is_composite: bool, task_type: &Name) -> bool {
        // Internal tasks of servers are left out; composites are requests of users.
        self.0.parts.archive.is_some() && (is_composite || !task_type.is_system())
    }

    /// Archives waiting tasks. Never returns.
    pub(super) async fn keep_archiving(&self) {
        loop {
            let tasks = self.0.archiving.first().await;
            if let Err(error) = self.archive_readable(&tasks).await {
                tracing::warn!(%error, tasks = tasks.len(), "finished tasks were not archived, retrying");
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
            // Only this function takes from the line.
            self.0.archiving.lock().remove_first(tasks.len());
            self.0.archiving.done.fetch_add(tasks.len() as u64, Ordering::Relaxed);
            self.completion_handled(tasks).await;
        }
    }

    /// Archives tasks that are about to be removed and may not have been archived yet.
    pub(super) async fn archive_before_removal(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        if self.0.parts.archive.is_none() { Ok(()) } else { self.archive_readable(tasks).await }
    }

    /// A task that cannot be read is passed over, and holds up no other task.
    async fn archive_readable(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        match self.archive(tasks).await {
            Err(error) if error.is_retryable() => Err(error),
            Err(_) if tasks.len() > 1 => {
                let (some, others) = tasks.split_at(tasks.len() / 2);
                Box::pin(self.archive_readable(some)).await?;
                Box::pin(self.archive_readable(others)).await
            }
            Err(error) => {
                tracing::error!(?tasks, %error, "a task that has ended cannot be read: it is not archived");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn archive(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        let Some(archive) = &self.0.parts.archive else { return Ok(()) };
        let mut archived = Vec::with_capacity(tasks.len());
        for view in self.views(tasks).await?.into_iter().flatten() {
            if is_to_be_archived(&view) {
                let attempts = self.earlier_attempts(&view).await?;
                archived.push(ArchivedTask { task: view, attempts });
            }
        }
        archive.put(&archived).await.map_err(StoreError::unavailable)
    }

    /// The progress of the archive, if there is one.
    pub fn archive_stats(&self) -> Option<ArchiveStats> {
        self.0.parts.archive.as_ref()?;
        let Archiving { done, .. } = &self.0.archiving;
        let waiting = self.0.archiving.lock();
        let lag = waiting.line.front().map_or(Duration::ZERO, |(_, came)| came.elapsed());
        Some(ArchiveStats { tasks: done.load(Ordering::Relaxed), waiting: waiting.line.len(), lag })
    }

    /// The attempts that ended before the task did.
    async fn earlier_attempts(&self, view: &TaskView) -> Result<Vec<AttemptRecord>, StoreError> {
        if !view.row.state.has_attempt_rows() {
            return Ok(Vec::new());
        }
        let list = AttemptList { task: view.row.id, after: AttemptNo(0), limit: ATTEMPTS_MAX };
        self.0.parts.store.attempts(list).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_waits_once_and_no_more_wait_than_may() {
        let task = TaskId::from_random;
        let mut waiting = ArchiveQueue::default();
        assert_eq!(waiting.add(&[task(1), task(2)], Instant::now(), 3), 0);
        assert_eq!(waiting.add(&[task(2), task(3), task(1), task(4)], Instant::now(), 3), 1);
        let line: Vec<TaskId> = waiting.line.iter().map(|(task, _)| *task).collect();
        assert_eq!(line, [task(1), task(2), task(3)]);
        waiting.remove_first(2);
        assert_eq!(waiting.add(&[task(1)], Instant::now(), 3), 0);
        assert_eq!(waiting.line.len(), 2);
    }
}

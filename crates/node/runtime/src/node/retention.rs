//! Removing old tasks, in small batches, so that nothing else has to wait.

use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::retention::{Bounds, Retention};
use tasklane_ports::{ExpiredQuery, StoreError, TaskCursor, TaskFilter, TaskList};

use crate::clock;

use super::Node;

/// How long tasks are kept.
#[derive(Clone, Debug)]
pub struct RetentionOptions {
    /// Payload, result and output of finished tasks. Default: 7 days.
    pub tasks: Duration,
    /// The id of finished tasks, so that a repeated request finds it. At least as long as the tasks. Default: 7 days.
    pub request_ids: Duration,
    /// Time between two passes. Default: a minute.
    pub every: Duration,
    /// Tasks of one batch. Default: 500.
    pub batch: usize,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        let week = Duration::from_hours(7 * 24);
        Self { tasks: week, request_ids: week, every: Duration::from_mins(1), batch: 500 }
    }
}

/// Between two batches other work gets its turn.
const PAUSE: Duration = Duration::from_millis(20);

impl Node {
    /// Removes old tasks and their data. Never returns.
    pub(super) async fn retain(&self) {
        // Only a server that owns lanes removes tasks.
        self.loaded().await;
        let mut ticks = tokio::time::interval(self.0.options.retention.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // One server is enough.
            if !self.0.parts.scheduler.owns(LaneId(0)) {
                continue;
            }
            if let Err(error) = self.retire_once().await {
                tracing::warn!(%error, "old tasks were not removed, retrying later");
            }
            if let Err(error) = self.forget_locks().await {
                tracing::warn!(%error, "expired locks were not removed, retrying later");
            }
            if let Err(error) = self.note_time().await {
                tracing::warn!(%error, "the last known time was not written, retrying later");
            }
        }
    }

    /// Makes one pass over everything that is old enough; over nothing while the clock is not settled.
    /// Returns how many tasks lost their data, and how many were removed.
    pub async fn retire_once(&self) -> Result<(u64, u64), StoreError> {
        let options = &self.0.options.retention;
        let parts = &self.0.parts;
        let retention = Retention { tasks: options.tasks, request_ids: options.request_ids };
        let (mut stripped, mut removed) = (0, 0);
        let mut after: Option<TaskCursor> = None;
        loop {
            // Computed before each batch: the clock may step meanwhile.
            let bounds = retention.bounds(&clock::now(), Invariants::ALL_ON);
            let Some(Bounds { finished_before, forget_before }) = bounds else {
                return Ok((stripped, removed));
            };
            let expired = parts
                .store
                .expired(ExpiredQuery { finished_before, forget_before, after, limit: options.batch })
                .await?;
            let tasks: Vec<TaskId> = expired.strip.iter().chain(&expired.forget).copied().collect();
            self.archive_before_removal(&tasks).await?;
            for composite in &expired.composites {
                removed += self.forget_children(*composite).await?;
            }
            if !tasks.is_empty() {
                // Output goes first: without the task, no later pass would find it.
                parts.logs.remove(&tasks).await?;
                parts.store.retire(&expired.strip, &expired.forget).await?;
                stripped += expired.strip.len() as u64;
                removed += expired.forget.len() as u64;
            }
            after = expired.next;
            if after.is_none() {
                return Ok((stripped, removed));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Removes all children of a finished task, and theirs. The composite goes last, so that after a crash
    /// the next pass still finds the rest. Returns the number of removed tasks.
    pub(super) async fn forget_children(&self, composite: TaskId) -> Result<u64, StoreError> {
        let (parts, limit) = (&self.0.parts, self.0.options.retention.batch);
        let mut removed = 0;
        let mut composites = vec![composite];
        while let Some(&of) = composites.last() {
            let filter = TaskFilter { parent: Some(of), ..TaskFilter::default() };
            let (mut found, mut inner, mut after) = (Vec::new(), Vec::new(), None);
            while found.is_empty() && inner.is_empty() {
                let page = parts.store.list(TaskList { filter: filter.clone(), after, limit }).await?;
                let of_it = page
                    .tasks
                    .iter()
                    .filter(|row| row.state.child_of.is_some() && row.state.status.is_final());
                for row in of_it {
                    let list = if row.state.composite { &mut inner } else { &mut found };
                    list.push(row.id);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            self.archive_before_removal(&found).await?;
            parts.logs.remove(&found).await?;
            parts.store.retire(&[], &found).await?;
            removed += found.len() as u64;
            if !inner.is_empty() {
                composites.extend(inner);
            } else if found.is_empty() {
                // All of its children are removed: so this composite goes too, unless it is the root.
                composites.pop();
                self.forget_cancel(of).await?;
                if of != composite {
                    self.archive_before_removal(&[of]).await?;
                    parts.logs.remove(&[of]).await?;
                    parts.store.retire(&[], &[of]).await?;
                    removed += 1;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(removed)
    }
}

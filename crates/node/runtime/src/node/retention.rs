//! Removing what is too old, in small batches, so that nothing else has to wait.

use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::retention::{Bounds, Retention};
use tasklane_ports::{Retire, StoreError, TaskCursor, TaskFilter, TaskList};

use crate::clock;

use super::Node;

/// How long things are kept.
#[derive(Clone, Debug)]
pub struct RetentionOptions {
    /// Payload, result and output of finished tasks. Default: 7 days.
    pub tasks: Duration,
    /// The id of finished tasks, so that a repeated request finds it. At least as long as the tasks. Default: 7 days.
    pub request_ids: Duration,
    /// How often to look. Default: a minute.
    pub every: Duration,
    /// Tasks looked at in one go. Default: 500.
    pub batch: usize,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        let week = Duration::from_hours(7 * 24);
        Self { tasks: week, request_ids: week, every: Duration::from_mins(1), batch: 500 }
    }
}

/// Between two batches others get their turn.
const PAUSE: Duration = Duration::from_millis(20);

impl Node {
    /// Looks again and again for what is too old.
    pub(super) async fn retain(&self) {
        // Only one that owns lanes has something to do here.
        self.loaded().await;
        let mut ticks = tokio::time::interval(self.0.options.retention.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // One server of all is enough.
            if !self.0.parts.scheduler.owns(LaneId(0)) {
                continue;
            }
            if let Err(error) = self.retire_once().await {
                tracing::warn!(%error, "old tasks were not removed, trying again later");
            }
            if let Err(error) = self.forget_locks().await {
                tracing::warn!(%error, "old locks were not removed, trying again later");
            }
            if let Err(error) = self.note_time().await {
                tracing::warn!(%error, "the time was not noted in the store, trying again later");
            }
        }
    }

    /// Goes once over everything that is old enough; over nothing while the clock is not settled. Answers how many tasks
    /// lost their data, and how many are gone.
    pub async fn retire_once(&self) -> Result<(u64, u64), StoreError> {
        let options = &self.0.options.retention;
        let parts = &self.0.parts;
        let retention = Retention { tasks: options.tasks, request_ids: options.request_ids };
        let (mut stripped, mut removed) = (0, 0);
        let mut after: Option<TaskCursor> = None;
        loop {
            // Asked before each batch: the clock may step while this goes on.
            let bounds = retention.bounds(&clock::now(), Invariants::ALL_ON);
            let Some(Bounds { finished_before, forget_before }) = bounds else {
                return Ok((stripped, removed));
            };
            let expired = parts
                .store
                .expired(Retire { finished_before, forget_before, after, limit: options.batch })
                .await?;
            let tasks: Vec<TaskId> = expired.strip.iter().chain(&expired.forget).copied().collect();
            self.archive_before_removal(&tasks).await?;
            for whole in &expired.wholes {
                removed += self.forget_parts(*whole).await?;
            }
            if !tasks.is_empty() {
                // Output goes first: were the task gone, nobody would know that there is any.
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

    /// Forgets all parts of a finished task, and theirs. The whole goes last, so that a crash leaves nothing behind that
    /// nobody knows of. Answers how many it were.
    pub(super) async fn forget_parts(&self, whole: TaskId) -> Result<u64, StoreError> {
        let (parts, limit) = (&self.0.parts, self.0.options.retention.batch);
        let mut removed = 0;
        let mut wholes = vec![whole];
        while let Some(&of) = wholes.last() {
            let filter = TaskFilter { parent: Some(of), ..TaskFilter::default() };
            let (mut found, mut inner, mut after) = (Vec::new(), Vec::new(), None);
            while found.is_empty() && inner.is_empty() {
                let page = parts.store.list(TaskList { filter: filter.clone(), after, limit }).await?;
                let of_it =
                    page.tasks.iter().filter(|row| row.state.part.is_some() && row.state.status.is_final());
                for row in of_it {
                    let list = if row.state.whole { &mut inner } else { &mut found };
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
                wholes.extend(inner);
            } else if found.is_empty() {
                // All of its parts are gone: so may it, if it is not the one that was asked for.
                wholes.pop();
                self.forget_cancel(of).await?;
                if of != whole {
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

//! Looking at watched tasks that have ended: those who asked for it are told, and the schedule that a task came from goes
//! on.
//!
//! The lane notes the end of such a task in the commit that ends it, and tells of it until somebody has looked. What is
//! done here is safe to do twice, and durable before the lane hears of it: so nothing is lost and nothing happens twice,
//! whoever dies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::task::NewTask;
use tasklane_ports::{DocumentKey, StoreError};

use super::Node;
use super::schedules;

/// Tasks looked at in one go.
const PAGE: usize = 500;
/// Wait after the store has failed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Node {
    /// Looks at what has ended, for ever.
    pub(super) async fn look_at_ends(&self) {
        let hub = &self.0.parts.hub;
        loop {
            let tasks = hub.ended(PAGE).await;
            while let Err(error) = self.look_at(&tasks).await {
                tracing::warn!(%error, "tasks that have ended cannot be looked at, trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            let mut lanes: BTreeMap<LaneId, Vec<TaskId>> = BTreeMap::new();
            for task in tasks {
                lanes.entry(task.lane()).or_default().push(task);
            }
            for (lane, tasks) in lanes {
                self.0.parts.scheduler.seen(lane, tasks).await;
            }
        }
    }

    /// Does all that is to be done about tasks that have ended. Durable when it returns.
    async fn look_at(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        let mut schedules: BTreeSet<DocumentKey> = BTreeSet::new();
        let mut deliveries: Vec<NewTask> = Vec::new();
        for view in self.views(tasks).await?.into_iter().flatten() {
            let Some(body) = &view.row.body else { continue };
            deliveries.extend(self.deliveries_of(&view.row, body).await?);
            if let Some(schedule) = body.schedule.as_ref().filter(|_| body.watched) {
                schedules.extend(schedules::key_of_text(&view.row.head.queue.namespace, schedule));
            }
        }
        self.deliver(deliveries).await?;
        for key in schedules {
            self.look_at_schedule(&key).await?;
        }
        Ok(())
    }
}

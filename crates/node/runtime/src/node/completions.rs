//! Looking at watched tasks that have ended: those who asked for it are told, and the schedule that a task came from goes
//! on.
//!
//! The lane notes the end of such a task in the commit that ends it, and tells of it until somebody has looked. What is
//! done here is safe to do twice, and durable before the lane hears of it: so nothing is lost and nothing happens twice,
//! whoever dies in between. A task or a schedule that cannot be read is passed over, and holds up nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::task::NewTask;
use tasklane_ports::{DocumentKey, StoreError, TaskView};

use super::Node;
use super::archive::is_to_be_archived;
use super::schedules;

/// Tasks looked at in one go.
const PAGE: usize = 500;
/// Wait after the store has failed, or others were in the way.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Node {
    /// Looks at what has ended, for ever.
    pub(super) async fn handle_completions(&self) {
        loop {
            let tasks = self.0.parts.notifier.next_completions(PAGE).await;
            let Unhandled { again, archived } = self.handle_some(&tasks).await;
            let is_done = |task: &TaskId| !again.contains(task) && !archived.contains(task);
            self.completion_handled(tasks.into_iter().filter(is_done).collect()).await;
            if !archived.is_empty() {
                self.archive_later(&archived.into_iter().collect::<Vec<_>>());
            }
            if !again.is_empty() {
                tokio::time::sleep(AGAIN_AFTER).await;
                self.0.parts.notifier.add_completions(again.into_iter().collect());
            }
        }
    }

    /// Lets lanes forget that tasks have ended.
    pub(super) async fn completion_handled(&self, tasks: Vec<TaskId>) {
        let mut lanes: BTreeMap<LaneId, Vec<TaskId>> = BTreeMap::new();
        for task in tasks {
            lanes.entry(task.lane()).or_default().push(task);
        }
        for (lane, tasks) in lanes {
            self.0.parts.scheduler.completion_handled(lane, tasks).await;
        }
    }

    /// Looks at tasks, and answers what is left to do.
    async fn handle_some(&self, tasks: &[TaskId]) -> Unhandled {
        match self.handle_all(tasks).await {
            Ok(unhandled) => unhandled,
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "tasks that have ended cannot be looked at, trying again");
                Unhandled { again: tasks.iter().copied().collect(), ..Unhandled::default() }
            }
            // One of them cannot be read: the others can.
            Err(_) if tasks.len() > 1 => {
                let (some, others) = tasks.split_at(tasks.len() / 2);
                let mut unhandled = Box::pin(self.handle_some(some)).await;
                let more = Box::pin(self.handle_some(others)).await;
                unhandled.again.extend(more.again);
                unhandled.archived.extend(more.archived);
                unhandled
            }
            Err(error) => {
                tracing::error!(?tasks, %error, "a task that has ended cannot be read: nobody is told of it");
                Unhandled::default()
            }
        }
    }

    /// Does all that is to be done about tasks that have ended, durably, but for archiving them.
    async fn handle_all(&self, tasks: &[TaskId]) -> Result<Unhandled, StoreError> {
        let mut schedules: BTreeMap<DocumentKey, Vec<TaskId>> = BTreeMap::new();
        let mut deliveries: Vec<NewTask> = Vec::new();
        let views: Vec<TaskView> = self.views(tasks).await?.into_iter().flatten().collect();
        for view in &views {
            let Some(body) = &view.row.body else { continue };
            deliveries.extend(self.deliveries_of(&view.row, body).await?);
            let schedule = body.schedule.as_ref().filter(|_| body.watched);
            if let Some(key) =
                schedule.and_then(|id| schedules::key_of_text(&view.row.head.queue.namespace, id))
            {
                schedules.entry(key).or_default().push(view.row.id);
            }
        }
        self.deliver(deliveries).await?;
        let mut unhandled = Unhandled::default();
        for (key, ended) in schedules {
            match self.look_at_schedule(&key, &ended).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    tracing::warn!(schedule = %key.id, %error, "a schedule cannot be looked at, trying again");
                    unhandled.again.extend(ended);
                }
                Err(error) => {
                    tracing::error!(schedule = %key.id, %error, "a schedule cannot be read");
                }
            }
        }
        let archived = views.iter().filter(|view| is_to_be_archived(view)).map(|view| view.row.id);
        unhandled.archived = archived.filter(|task| !unhandled.again.contains(task)).collect();
        if self.0.parts.archive.is_none() && !unhandled.archived.is_empty() {
            let tasks = std::mem::take(&mut unhandled.archived).len();
            tracing::warn!(
                tasks,
                "not archived, because this server has no `archive`: give all servers the same"
            );
        }
        Ok(unhandled)
    }
}

/// What is left to do about tasks that have ended.
#[derive(Debug, Default)]
struct Unhandled {
    /// Those that somebody must look at again.
    again: BTreeSet<TaskId>,
    /// Those that are only to be archived.
    archived: BTreeSet<TaskId>,
}

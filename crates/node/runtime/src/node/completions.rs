//! Completions of watched tasks: sends their webhooks, and moves the schedule that a task came from.
//!
//! The lane notes the completion in the commit that ends the task, and reports it until this server has
//! handled it. All work here is safe to do twice, and durable before the lane receives the answer: so no
//! completion is lost and nothing happens twice, even if a server dies in between. A task or a schedule that
//! cannot be read is passed over, and holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::task::NewTask;
use tasklane_ports::{DocumentKey, StoreError, TaskView};

use super::Node;
use super::archive::is_to_be_archived;
use super::schedules;

/// Tasks handled together.
const PAGE: usize = 500;
/// Wait after the store has failed, or another writer was first.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Node {
    /// Handles completions. Never returns.
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

    /// Lets lanes forget the completions of tasks.
    pub(super) async fn completion_handled(&self, tasks: Vec<TaskId>) {
        let mut lanes: BTreeMap<LaneId, Vec<TaskId>> = BTreeMap::new();
        for task in tasks {
            lanes.entry(task.lane()).or_default().push(task);
        }
        for (lane, tasks) in lanes {
            self.0.parts.scheduler.completion_handled(lane, tasks).await;
        }
    }

    /// Handles the completions of tasks, and returns the work that is left.
    async fn handle_some(&self, tasks: &[TaskId]) -> Unhandled {
        match self.handle_all(tasks).await {
            Ok(unhandled) => unhandled,
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "completions were not handled, retrying");
                Unhandled { again: tasks.iter().copied().collect(), ..Unhandled::default() }
            }
            // One of the tasks cannot be read: the others can.
            Err(_) if tasks.len() > 1 => {
                let (some, others) = tasks.split_at(tasks.len() / 2);
                let mut unhandled = Box::pin(self.handle_some(some)).await;
                let more = Box::pin(self.handle_some(others)).await;
                unhandled.again.extend(more.again);
                unhandled.archived.extend(more.archived);
                unhandled
            }
            Err(error) => {
                tracing::error!(?tasks, %error, "an ended task cannot be read: its completion is skipped");
                Unhandled::default()
            }
        }
    }

    /// Does everything that tasks which have ended need, durably, except archiving them.
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
                    tracing::warn!(schedule = %key.id, %error, "the schedule was not updated, retrying");
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

/// The work that is left for tasks that have ended.
#[derive(Debug, Default)]
struct Unhandled {
    /// Tasks to handle again.
    again: BTreeSet<TaskId>,
    /// Tasks that need only the archive.
    archived: BTreeSet<TaskId>,
}

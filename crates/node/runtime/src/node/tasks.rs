//! Queries and commands for single tasks.

use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::id::{AttemptNo, Name, TaskId};
use tasklane_core::lane::{Explanation, Reason};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptRecord, TaskRow};
use tasklane_ports::{
    AttemptList, LogChunk, LogPosition, StoreError, TaskCursor, TaskFilter, TaskList, TaskPage, TaskView,
};
use tokio::time::Instant;

use crate::notifier::TaskFollower;

use super::composite::driver::TOMBSTONE_PREFIX;
use super::{BULK_TYPE, Node};

/// The outcome of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// There is no such task.
    NotFound,
    /// The command is durable; the owner of the lane carries it out.
    Accepted,
    /// The task was cancelled before.
    AlreadyCancelled,
    /// The task has ended with another status.
    Finished(Status),
}

/// Bytes after which a page of output ends: many readers together must not fill the memory.
const LOG_PAGE_BYTES: usize = 128 << 10;
/// Chunks read together.
const LOG_STEP: usize = 8;

/// A place in the list of the children of a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCursor {
    /// The composite of these children: the requested one, or a predecessor of it.
    pub of: TaskId,
    /// After this child.
    pub after: Option<TaskCursor>,
}

impl Node {
    /// The full view of a task of a namespace.
    pub async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let found = self.0.parts.store.tasks(&[id]).await?.pop().flatten();
        Ok(found.filter(|view| view.row.head.queue.namespace == *namespace))
    }

    /// The attempts of a task after a number: earlier ones, which have a row of their own.
    pub async fn attempts(
        &self,
        id: TaskId,
        after: AttemptNo,
        limit: usize,
    ) -> Result<Vec<AttemptRecord>, StoreError> {
        self.0.parts.store.attempts(AttemptList { task: id, after, limit }).await
    }

    /// Tasks by filter.
    pub async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        self.0.parts.store.list(list).await
    }

    /// Waits until a task is final, or for the given time; returns the task as it is then.
    pub async fn wait(
        &self,
        namespace: &Name,
        id: TaskId,
        at_most: Duration,
    ) -> Result<Option<TaskView>, StoreError> {
        let deadline = Instant::now() + at_most;
        // Follows before it reads, so that a change between the two is not missed.
        let mut follow = self.follow(id);
        loop {
            let found = self.task(namespace, id).await?;
            let done = found.as_ref().is_none_or(|view| view.row.state.status.is_final());
            if done || Instant::now() >= deadline {
                return Ok(found);
            }
            let _ = tokio::time::timeout_at(deadline, follow.finished()).await;
        }
    }

    /// Follows one task: its state and its output.
    pub fn follow(&self, id: TaskId) -> TaskFollower {
        self.0.parts.notifier.follow(id)
    }

    /// Requests the cancel of a task. Durable when it returns [`Cancel::Accepted`].
    pub async fn cancel(&self, namespace: &Name, id: TaskId) -> Result<Cancel, StoreError> {
        let Some(view) = self.task(namespace, id).await? else { return Ok(Cancel::NotFound) };
        match view.row.state.status {
            Status::Cancelled => Ok(Cancel::AlreadyCancelled),
            status if status.is_final() => Ok(Cancel::Finished(status)),
            _ if view.row.state.composite && view.row.head.task_type.as_str() != BULK_TYPE => {
                self.cancel_composite(&view.row).await?;
                Ok(Cancel::Accepted)
            }
            _ => {
                let lane = id.lane();
                self.0.parts.store.post(lane, &[Command::Cancel { task: id }]).await?;
                self.hint(lane);
                Ok(Cancel::Accepted)
            }
        }
    }

    /// The children of a composite, with their results: the newest first, and children that were taken over
    /// last.
    pub async fn children(
        &self,
        composite: TaskId,
        from: Option<ChildCursor>,
        limit: usize,
    ) -> Result<(Vec<TaskView>, Option<ChildCursor>), StoreError> {
        let composites = [vec![composite], self.taken_over_by(composite).await?].concat();
        let of = from.map_or(composite, |from| from.of);
        let Some(at) = composites.iter().position(|composite| *composite == of) else {
            return Ok((Vec::new(), None));
        };
        let filter = TaskFilter { parent: Some(of), ..TaskFilter::default() };
        let page = self.list(TaskList { filter, after: from.and_then(|from| from.after), limit }).await?;
        // Only successful children are taken over, and no child that was made of the results of all.
        let counts = |row: &TaskRow, name: &str| {
            at == 0 || row.state.status == Status::Success && name != super::composite::map::REDUCE
        };
        let is_child = |row: &&TaskRow| {
            row.state
                .child_of
                .as_ref()
                .is_some_and(|child| !child.name.starts_with(TOMBSTONE_PREFIX) && counts(row, &child.name))
        };
        let children = page.tasks.iter().filter(is_child).map(|row| row.id);
        let views = self.views(&children.collect::<Vec<_>>()).await?;
        let next = match page.next {
            Some(after) => Some(ChildCursor { of, after: Some(after) }),
            None => composites.get(at + 1).map(|&of| ChildCursor { of, after: None }),
        };
        Ok((views.into_iter().flatten().collect(), next))
    }

    /// The maps that a map task takes over from.
    async fn taken_over_by(&self, composite: TaskId) -> Result<Vec<TaskId>, StoreError> {
        let view = self.views(&[composite]).await?.pop().flatten();
        let is_map = view.is_some_and(|view| view.row.head.task_type.as_str() == super::MAP_TYPE);
        let mut composites =
            if is_map { self.earlier_composites(Some(composite)).await? } else { Vec::new() };
        composites.retain(|earlier| *earlier != composite);
        Ok(composites)
    }

    /// Why a task is not running. Without reasons if it runs, or has finished.
    pub async fn explain(&self, namespace: &Name, id: TaskId) -> Result<Option<Explanation>, StoreError> {
        let Some(mut view) = self.task(namespace, id).await? else { return Ok(None) };
        let status = view.row.state.status;
        if status.is_final() {
            return Ok(Some(Explanation { status, reasons: Vec::new() }));
        }
        self.mark_cancelling(std::slice::from_mut(&mut view.row)).await?;
        let cancelling = view.row.state.composite && view.row.state.cancel_requested;
        let explained = self.0.parts.scheduler.explain(view.row).await;
        let mut explained =
            explained.unwrap_or_else(|| Explanation { status, reasons: vec![Reason::Loading] });
        if cancelling && !explained.reasons.contains(&Reason::CancelRequested) {
            explained.reasons.insert(0, Reason::CancelRequested);
        }
        let trouble = match self.0.parts.store.write_trouble() {
            Some(_) if status == Status::Running => None,
            Some(StoreError::Full { .. }) => Some(Reason::StoreFull),
            Some(_) => Some(Reason::StoreLost),
            None => None,
        };
        if let Some(trouble) = trouble {
            // This is the reason, and it lasts longer than a change of owner.
            explained.reasons.retain(|reason| *reason != Reason::Loading);
            explained.reasons.insert(0, trouble);
        }
        for reason in &mut explained.reasons {
            // The lane also counts the system workers.
            if let Reason::NoCapableWorker { workers, .. } = reason {
                *workers = self.workers().len();
            }
        }
        Ok(Some(explained))
    }

    /// Output of a task after a position, or from the start. A page is bounded in bytes too, so it may be
    /// short: only an empty one is the end.
    pub async fn logs(
        &self,
        id: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        let (mut chunks, mut bytes) = (Vec::<LogChunk>::new(), 0);
        while chunks.len() < limit && bytes < LOG_PAGE_BYTES {
            let after = chunks.last().map(|last| last.position).or(after);
            let step = LOG_STEP.min(limit - chunks.len());
            let more = self.0.parts.logs.read(id, after, step).await?;
            let end = more.len() < step;
            bytes += more.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
            chunks.extend(more);
            if end {
                break;
            }
        }
        Ok(chunks)
    }

    /// The last output of a task.
    pub async fn log_tail(&self, id: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError> {
        self.0.parts.logs.tail(id, limit).await
    }
}

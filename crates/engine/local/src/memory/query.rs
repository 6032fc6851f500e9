//! What readers ask for, and the output of attempts.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::RangeInclusive;

use tasklane_core::id::{AttemptNo, QueueKey, TaskId};
use tasklane_core::task::AttemptRecord;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    AttemptList, CountList, LogChunk, LogPosition, QueueCounts, TaskCursor, TaskList, TaskPage, TaskView,
};

use super::state::MemoryState;

/// Most tasks that one `list` looks at.
const SCAN_MAX: usize = 1000;

/// Larger bodies are not listed.
const LISTED_BODY_BYTES_MAX: usize = 4 << 10;

impl MemoryState {
    /// See [`Store::tasks`](tasklane_ports::Store::tasks).
    pub fn tasks(&self, ids: &[TaskId]) -> Vec<Option<TaskView>> {
        let view = |id: &TaskId| {
            let task = self.tasks.get(id)?;
            Some(TaskView { row: task.row(*id, usize::MAX), result: task.result.as_deref().cloned() })
        };
        ids.iter().map(view).collect()
    }

    /// See [`Store::attempts`](tasklane_ports::Store::attempts).
    pub fn attempts(&self, list: AttemptList) -> Vec<AttemptRecord> {
        let Some(task) = self.tasks.get(&list.task) else { return Vec::new() };
        let behind = task.attempts.range((Excluded(list.after), Unbounded));
        behind.take(list.limit).map(|(_, attempt)| attempt.clone()).collect()
    }

    /// See [`Store::list`](tasklane_ports::Store::list).
    pub fn list(&self, list: &TaskList) -> TaskPage {
        let first_of = |created_at: Timestamp| TaskCursor { created_at, id: TaskId::from_random(0) };
        let before = [list.after, list.filter.created_before.map(first_of)].into_iter().flatten().min();
        let from = list.filter.created_from.map(first_of);
        if before.zip(from).is_some_and(|(before, from)| from >= before) {
            return TaskPage { tasks: Vec::new(), next: None };
        }
        let range = (from.map_or(Unbounded, Included), before.map_or(Unbounded, Excluded));
        let mut cursors = self.by_time.range(range).rev();
        let mut tasks = Vec::new();
        let mut looked_at = None;
        for cursor in cursors.by_ref().take(SCAN_MAX) {
            looked_at = Some(*cursor);
            let task = &self.tasks[&cursor.id];
            let mut row = task.row(cursor.id, usize::MAX);
            if list.filter.matches(&row) {
                row.body = row.body.filter(|_| task.body_bytes <= LISTED_BODY_BYTES_MAX);
                tasks.push(row);
                if tasks.len() >= list.limit {
                    break;
                }
            }
        }
        TaskPage { tasks, next: looked_at.filter(|_| cursors.next().is_some()) }
    }

    /// See [`Store::counts`](tasklane_ports::Store::counts).
    pub fn counts(&self, list: &CountList) -> Vec<QueueCounts> {
        let behind = (list.after.as_ref().map_or(Unbounded, Excluded), Unbounded);
        let counts = self.counts.range::<QueueKey, _>(behind).filter(|(_, by_status)| **by_status != [0; 8]);
        let counts = counts.take(list.limit);
        counts.map(|(queue, by_status)| QueueCounts { queue: queue.clone(), by_status: *by_status }).collect()
    }

    /// See [`Logs::append`](tasklane_ports::Logs::append).
    pub fn append_logs(&mut self, chunks: &[LogChunk]) {
        for chunk in chunks {
            self.logs.entry((chunk.task, chunk.position)).or_insert_with(|| chunk.clone());
        }
    }

    /// See [`Logs::read`](tasklane_ports::Logs::read).
    pub fn read_logs(&self, task: TaskId, after: Option<LogPosition>, limit: usize) -> Vec<LogChunk> {
        let (first, last) = logs_of(task).into_inner();
        let from = after.map_or(Included(first), |after| Excluded((task, after)));
        self.logs.range((from, Included(last))).take(limit).map(|(_, chunk)| chunk.clone()).collect()
    }

    /// See [`Logs::tail`](tasklane_ports::Logs::tail).
    pub fn tail_logs(&self, task: TaskId, limit: usize) -> Vec<LogChunk> {
        let newest = self.logs.range(logs_of(task)).rev().take(limit);
        let mut chunks: Vec<_> = newest.map(|(_, chunk)| chunk.clone()).collect();
        chunks.reverse();
        chunks
    }
}

/// Where the output of a task is.
pub(super) fn logs_of(task: TaskId) -> RangeInclusive<(TaskId, LogPosition)> {
    let at = |number: u32| (task, LogPosition { attempt: AttemptNo(number), number });
    at(0)..=at(u32::MAX)
}

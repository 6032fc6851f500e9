//! Retention of finished tasks: first they lose their data, later they are forgotten.

use tasklane_core::id::TaskId;
use tasklane_core::task::TaskState;
use tasklane_core::time::Timestamp;

use crate::TaskCursor;

/// A query for expired tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredQuery {
    /// Tasks that finished before this time lose their data.
    pub finished_before: Timestamp,
    /// Tasks that finished before this time are forgotten altogether.
    pub forget_before: Timestamp,
    /// Where the previous page ended.
    pub after: Option<TaskCursor>,
    /// Most tasks to look at.
    pub limit: usize,
}

impl ExpiredQuery {
    /// Where the search ends: a task that was created at this time or later has not finished before either bound.
    pub fn end(&self) -> Timestamp {
        self.finished_before.max(self.forget_before)
    }
}

/// A page of expired tasks. No task is in both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredTasks {
    /// Tasks to strip: they still have data.
    pub strip: Vec<TaskId>,
    /// Tasks to forget.
    pub forget: Vec<TaskId>,
    /// Tasks of both lists that may have children. Children never expire by themselves: they are forgotten
    /// before their composite.
    pub composites: Vec<TaskId>,
    /// Where to go on; `None` at the end.
    pub next: Option<TaskCursor>,
}

impl ExpiredTasks {
    /// Puts a task into its list if it has expired. `has_data` says that it was not stripped before.
    pub fn judge(&mut self, retire: &ExpiredQuery, id: TaskId, state: &TaskState, has_data: bool) {
        let Some(finished_at) = state.finished_at.filter(|_| state.status.is_final()) else { return };
        if state.child_of.is_some() {
            return;
        }
        if finished_at < retire.forget_before {
            self.forget.push(id);
        } else if finished_at < retire.finished_before && has_data {
            self.strip.push(id);
        } else {
            return;
        }
        if state.composite {
            self.composites.push(id);
        }
    }
}

//! What becomes of tasks that finished long ago, and of their output.

use std::ops::Bound::{Excluded, Unbounded};

use tasklane_core::id::TaskId;
use tasklane_ports::{ExpiredQuery, ExpiredTasks, TaskCursor};

use super::query::logs_of;
use super::state::MemoryState;

impl MemoryState {
    /// See [`Store::expired`](tasklane_ports::Store::expired).
    pub fn expired(&self, retire: &ExpiredQuery) -> ExpiredTasks {
        let mut expired = ExpiredTasks::default();
        let from = retire.after.map_or(Unbounded, Excluded);
        let end = retire.end();
        let mut cursors =
            self.by_time.range((from, Unbounded)).take_while(|cursor| cursor.created_at < end).copied();
        let mut last: Option<TaskCursor> = None;
        for cursor in cursors.by_ref().take(retire.limit.max(1)) {
            let task = &self.tasks[&cursor.id];
            expired.judge(retire, cursor.id, &task.state, task.body.is_some());
            last = Some(cursor);
        }
        expired.next = last.filter(|_| cursors.next().is_some());
        expired
    }

    /// See [`Store::retire`](tasklane_ports::Store::retire).
    pub fn retire(&mut self, strip: &[TaskId], forget: &[TaskId]) {
        for id in strip {
            if let Some(task) = self.tasks.get_mut(id).filter(|task| task.state.status.is_final()) {
                (task.body, task.body_bytes, task.result) = (None, 0, None);
                task.attempts.clear();
            }
        }
        for id in forget {
            if self.tasks.get(id).is_some_and(|task| task.state.status.is_final()) {
                self.forget(*id);
            }
        }
    }

    /// See [`Logs::remove`](tasklane_ports::Logs::remove).
    pub fn remove_logs(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            self.logs.extract_if(logs_of(*task), |_, _| true).for_each(drop);
        }
    }
}

//! Completions of watched tasks, as servers handle them: the store may be away, and the process may die
//! before it can confirm.

use std::collections::BTreeSet;

use tasklane_core::commit::RecordKind;
use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::ownership::Input;

use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::world::World;

/// Tasks whose completion a server has handled.
#[derive(Debug, Default)]
pub(crate) struct HandledCompletions(BTreeSet<TaskId>);

impl World {
    /// A lane reports completions: the server handles them.
    pub(crate) fn handle_completions(&mut self, index: usize, lane: LaneId, tasks: Vec<TaskId>) {
        let incarnation = self.servers[index].incarnation;
        let reply_to = ReplyTo::Completions { index, incarnation, lane, tasks: tasks.clone() };
        self.call_store(StoreRequest::ReadCompletions(tasks), reply_to);
    }

    /// The store has returned the tasks.
    pub(crate) fn completions_shown(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            let is_open = self.store.task(*task).map(|task| !task.state.status.is_final());
            if is_open.unwrap_or_else(|| !self.kept.forgotten.contains(task)) {
                self.checker.fail(self.now, format!("task {task} was reported as ended, but has not ended"));
            }
            if !self.handled.0.insert(*task) {
                self.report.path("completion_repeated");
            }
        }
    }

    /// The store has answered, or not: then the server asks it again.
    pub(crate) fn completions_answered(
        &mut self,
        index: usize,
        lane: LaneId,
        tasks: Vec<TaskId>,
        shown: bool,
    ) {
        if shown {
            self.drive_lane(index, lane, Input::CompletionHandled(tasks));
        } else {
            self.handle_completions(index, lane, tasks);
        }
    }

    pub(crate) fn answer_completions(&mut self, reply_to: ReplyTo, shown: bool, delay: std::time::Duration) {
        if let ReplyTo::Completions { index, incarnation, lane, tasks } = reply_to {
            let input = ServerInput::Completions { lane, tasks, shown };
            self.after(delay, crate::world::Event::Server { index, incarnation, input });
        }
    }

    /// Whether every completion has been handled.
    pub(crate) fn completions_are_handled(&self) -> bool {
        let notes = (0..self.scenario.lanes).flat_map(|lane| self.store.records(LaneId(lane)));
        notes.into_iter().all(|(key, _)| key.kind != RecordKind::Completion)
    }

    /// The run has ended: each watched task must have been handled.
    pub(crate) fn check_completions(&mut self) {
        let watched = self.store.all_tasks().filter(|(_, task)| task.state.watched).map(|(id, _)| id);
        let missed: Vec<TaskId> = watched.filter(|id| !self.handled.0.contains(id)).collect();
        if !missed.is_empty() {
            self.checker.fail(self.now, format!("no server handled the completions of {missed:?}"));
        }
    }
}

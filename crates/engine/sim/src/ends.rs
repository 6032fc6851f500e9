//! Watched tasks that have ended, as servers look at them: the store may be away, and the process may die before it can
//! say that it has looked.

use std::collections::BTreeSet;

use tasklane_core::commit::RecordKind;
use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::ownership::Input;

use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::world::World;

/// Tasks that somebody has looked at.
#[derive(Debug, Default)]
pub(crate) struct Looked(BTreeSet<TaskId>);

impl World {
    /// A lane says that watched tasks have ended: somebody looks at them.
    pub(crate) fn look_at_ends(&mut self, index: usize, lane: LaneId, tasks: Vec<TaskId>) {
        let incarnation = self.servers[index].incarnation;
        let reply_to = ReplyTo::Ends { index, incarnation, lane, tasks: tasks.clone() };
        self.call_store(StoreRequest::LookAtEnds(tasks), reply_to);
    }

    /// The store has shown them.
    pub(crate) fn ends_shown(&mut self, tasks: &[TaskId]) {
        for task in tasks {
            let is_open = self.store.task(*task).map(|task| !task.state.status.is_final());
            if is_open.unwrap_or(!self.kept.forgotten.contains(task)) {
                self.checker.fail(self.now, format!("task {task} is said to have ended and has not"));
            }
            if !self.looked.0.insert(*task) {
                self.report.path("end_told_again");
            }
        }
    }

    /// The store has answered, or not: then it is asked again.
    pub(crate) fn ends_answered(&mut self, index: usize, lane: LaneId, tasks: Vec<TaskId>, shown: bool) {
        if shown {
            self.drive_lane(index, lane, Input::Seen(tasks));
        } else {
            self.look_at_ends(index, lane, tasks);
        }
    }

    pub(crate) fn answer_ends(&mut self, reply_to: ReplyTo, shown: bool, delay: std::time::Duration) {
        if let ReplyTo::Ends { index, incarnation, lane, tasks } = reply_to {
            let input = ServerInput::Ends { lane, tasks, shown };
            self.after(delay, crate::world::Event::Server { index, incarnation, input });
        }
    }

    /// Whether no end is left that somebody must look at.
    pub(crate) fn ends_are_seen(&self) -> bool {
        let notes = (0..self.scenario.lanes).flat_map(|lane| self.store.records(LaneId(lane)));
        notes.into_iter().all(|(key, _)| key.kind != RecordKind::Ended)
    }

    /// Everything is over: somebody has looked at each watched task.
    pub(crate) fn check_ends(&mut self) {
        let watched = self.store.all_tasks().filter(|(_, task)| task.state.watched).map(|(id, _)| id);
        let missed: Vec<TaskId> = watched.filter(|id| !self.looked.0.contains(id)).collect();
        if !missed.is_empty() {
            self.checker.fail(self.now, format!("nobody was told that these have ended: {missed:?}"));
        }
    }
}

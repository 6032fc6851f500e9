//! Completions: the group that ends a watched task notes its end, and each owner reports it until a server
//! has handled it.

use crate::commit::{Group, RecordChange, RecordKey, RecordKind};
use crate::id::TaskId;

use super::machine::Lane;

/// The record that notes the end of a task.
pub(super) fn completion_record(task: TaskId) -> RecordKey {
    RecordKey { kind: RecordKind::Completion, key: task.to_string() }
}

/// Records removed in one group: few, so that any store can take it.
pub(super) const RECORDS_MAX: usize = 32;

impl Lane {
    /// A server has handled these completions: their records are removed.
    pub(super) fn on_completion_handled(&mut self, tasks: &[TaskId]) {
        // The server learned of them from the owner before. This owner reports them once more when all is
        // loaded.
        if !self.loading.is_complete() {
            return;
        }
        for tasks in tasks.chunks(RECORDS_MAX) {
            let removed =
                tasks.iter().map(|task| RecordChange { key: completion_record(*task), value: None });
            self.write_loose(Group { records: removed.collect(), ..Group::default() });
        }
    }
}

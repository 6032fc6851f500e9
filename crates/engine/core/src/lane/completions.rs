//! Ends of watched tasks: noted in the group that ends the task, told until somebody has looked at them.

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
    /// Somebody has looked at these: their notes are removed.
    pub(super) fn on_completion_handled(&mut self, tasks: &[TaskId]) {
        // Whoever saw them was told by the owner before; they are told once more when all is loaded.
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

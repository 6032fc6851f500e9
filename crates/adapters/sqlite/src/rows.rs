//! Stored forms of tasks and states. The calling thread makes them, so that the writer's thread only writes.

use std::sync::Arc;

use tasklane_core::commit::{Commit, Group, TaskChange};
use tasklane_core::id::{AttemptNo, LineKey, QueueKey, TaskId};
use tasklane_core::status::Version;
use tasklane_core::task::{Fingerprint, NewTask, Place, TaskHead, TaskState, Unique};
use tasklane_core::time::Timestamp;
use tasklane_ports::codec::encode;

/// The immutable part of a new task.
pub(crate) struct NewRow {
    pub(crate) id: TaskId,
    pub(crate) queue: QueueKey,
    pub(crate) created_at: Timestamp,
    /// As `NewTask::keyed_at`.
    pub(crate) keyed_at: Timestamp,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) queue_len_max: Option<u32>,
    pub(crate) unique: Option<Unique>,
    pub(crate) head: HeadRow,
    pub(crate) parent: Option<TaskId>,
    pub(crate) schedule: Option<String>,
    pub(crate) body: Vec<u8>,
    /// As `LoadQuery::body_bytes_max` counts them.
    pub(crate) body_bytes: i64,
}

/// The fields that scheduling reads.
#[derive(Clone)]
pub(crate) struct HeadRow {
    pub(crate) line: LineKey,
    pub(crate) rank: u8,
    pub(crate) bytes: Arc<[u8]>,
}

/// Remembers the last head: tasks that come together often have the same.
#[derive(Default)]
pub(crate) struct Heads(Option<(Arc<TaskHead>, HeadRow)>);

impl Heads {
    fn row(&mut self, head: &Arc<TaskHead>) -> HeadRow {
        match &self.0 {
            Some((last, row)) if last == head => row.clone(),
            _ => {
                let bytes = encode(&**head).into();
                let row = HeadRow { line: head.line(), rank: head.priority.rank(), bytes };
                self.0.insert((Arc::clone(head), row)).1.clone()
            }
        }
    }
}

impl NewRow {
    pub(crate) fn of(task: &NewTask, heads: &mut Heads) -> Self {
        let (head, body) = (&task.spec.head, &task.spec.body);
        Self {
            id: task.id,
            queue: head.queue.clone(),
            created_at: task.created_at,
            keyed_at: task.keyed_at(),
            fingerprint: task.fingerprint,
            queue_len_max: task.queue_len_max,
            unique: task.unique.clone(),
            head: heads.row(head),
            parent: body.parent,
            schedule: body.schedule.clone(),
            body: encode(&**body),
            body_bytes: i64::try_from(body.bytes()).unwrap_or(i64::MAX),
        }
    }
}

/// A state, with the fields that have a column.
pub(crate) struct StateRow {
    pub(crate) version: Version,
    pub(crate) place: Place,
    pub(crate) due: Timestamp,
    /// Only of a waiting task: its expiry is in the index.
    pub(crate) start_by: Option<Timestamp>,
    pub(crate) bytes: Vec<u8>,
}

impl StateRow {
    pub(crate) fn of(state: &TaskState) -> Self {
        Self {
            version: state.version(),
            place: state.place(),
            due: state.due,
            start_by: state.start_by.filter(|_| state.status.is_waiting()),
            bytes: encode(state),
        }
    }
}

/// A commit, ready to be written.
pub(crate) struct CommitRows {
    /// Source of inbox rows and records.
    pub(crate) commit: Commit,
    /// In the order of its groups.
    pub(crate) groups: Vec<GroupRows>,
}

impl CommitRows {
    pub(crate) fn of(commit: &Commit) -> Self {
        let mut heads = Heads::default();
        let groups = commit.groups.iter().map(|group| GroupRows::of(group, &mut heads)).collect();
        Self { commit: commit.clone(), groups }
    }
}

/// The prepared parts of a group.
pub(crate) struct GroupRows {
    pub(crate) insert: Option<InsertRow>,
    pub(crate) change: Option<ChangeRow>,
}

/// A task to create.
pub(crate) struct InsertRow {
    pub(crate) task: NewRow,
    /// `None` where the group also has a change of this task, which holds its state.
    pub(crate) state: Option<StateRow>,
}

/// A change of a task.
pub(crate) struct ChangeRow {
    pub(crate) task: TaskId,
    expected: Version,
    /// The change fits a task that is as expected.
    legal: bool,
    pub(crate) state: StateRow,
    pub(crate) ended: Vec<(AttemptNo, Vec<u8>)>,
    pub(crate) result: Option<Vec<u8>>,
}

impl GroupRows {
    fn of(group: &Group, heads: &mut Heads) -> Self {
        let change = group.change.as_ref().map(ChangeRow::of);
        let insert = group.insert.as_ref().map(|task| {
            let changed = change.as_ref().is_some_and(|change| change.task == task.id);
            let state = (!changed).then(|| StateRow::of(&task.state()));
            InsertRow { task: NewRow::of(task, heads), state }
        });
        Self { insert, change }
    }
}

impl ChangeRow {
    /// As `TaskChange::fits`.
    pub(crate) fn fits(&self, stored: Version) -> bool {
        self.legal && self.expected == stored
    }

    fn of(change: &TaskChange) -> Self {
        Self {
            task: change.task,
            expected: change.expected,
            legal: change.fits(change.expected),
            state: StateRow::of(&change.state),
            ended: change.ended.iter().map(|attempt| (attempt.number, encode(attempt))).collect(),
            result: change.result.as_ref().map(|result| encode(&**result)),
        }
    }
}

//! The store: the only truth.

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::command::Command;
use tasklane_core::commit::{ClaimLane, Commit, GroupOutcome, LaneHead, SubmitOutcome};
use tasklane_core::id::{AttemptNo, Epoch, LaneId, Name, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, QueuePolicy, VersionedPolicy};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptRecord, NewTask, TaskResult, TaskRow};
use tasklane_core::time::Timestamp;

use crate::{ExpiredQuery, ExpiredTasks, StoreError};

/// Keeps tasks, their states, policies and inboxes.
///
/// Promises:
/// 1. A submit is durable when it returns, atomic per task, and never touches a task that exists.
/// 2. The same task id is created once, however many clients submit it and however often; another request
///    under the same id is refused.
/// 3. A queue with a maximum length refuses the tasks above it.
/// 4. A claim is a compare-and-set of the lane's epoch; of two with the same `seen` one wins. Repeating one with the
///    same owner id succeeds while that owner has not committed.
/// 5. After a claim has returned, no commit of an earlier owner becomes visible, not even a commit that was
///    being written during the claim.
/// 6. A commit applies only for the stored epoch and owner and only as number last + 1.
/// 7. A repeated commit (the last number again) changes nothing and answers the outcomes of the first.
/// 8. Groups apply in their order, and each group sees the writes of the groups before it. A group whose
///    insert or expectation fails is skipped whole, alone, and reported; the rest of the commit applies.
/// 9. A path that the status table does not allow is never written; final states never change.
/// 10. Arrivals are read in the order in which they become visible: after a reader has seen one, no arrival
///     appears before it. Tasks of one batch are numbered in its order.
/// 11. A posted command is durable when `post` returns, and is gone exactly when a group that names it has applied.
/// 12. Every page is bounded; following pages to the end gives each entry that existed throughout, once.
/// 13. A policy changes by compare-and-set of its version; the first binding of a queue stays.
/// 14. Acknowledged writes survive closing and reopening, and a crash of the process.
/// 15. Counts by queue and status agree with the tasks.
/// 16. `expired` changes nothing and looks at a bounded number of tasks, the oldest first. Followed to its
///     end it names each expired task once, and no other. Children of another task never expire by
///     themselves.
/// 17. `retire` touches finished tasks alone, each of them whole or not at all; doing it again changes nothing.
/// 18. A stripped task has neither body nor result nor ended attempts any more. All else stays, so the same request is
///     still a duplicate and another one under the same id is still refused.
/// 19. A forgotten task leaves no trace: not in lists, counts or arrivals, and its id can be used again.
///     Readers of arrivals pass over it.
/// 20. Of tasks of one lane and queue with the same unique key, one at a time holds it: until it has
///     finished, or until the time it was given. A later task with the key is refused and gets the holder's
///     id; a forgotten task holds no key.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The limits of this store.
    fn capabilities(&self) -> StoreCapabilities;

    /// Why the store takes no writes at the moment, as far as it knows without a write: the disk is full, or
    /// its files are gone.
    fn write_trouble(&self) -> Option<StoreError> {
        None
    }

    /// Stores new tasks of one lane. The outcomes come in the order of the tasks.
    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError>;

    /// The epoch and owner of a lane. A lane without any claim has epoch 0.
    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError>;

    /// Takes a lane over and answers its new epoch.
    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError>;

    /// Writes the owner's changes. The outcomes come in the order of the groups.
    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError>;

    /// Puts commands into the inbox of a lane.
    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError>;

    /// Answers one page of a lane's tasks, commands or records.
    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError>;

    /// Stores a queue's binding unless one is stored, and answers the stored one.
    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError>;

    /// Changes a queue's policy and answers its new version.
    ///
    /// Repeating a change that was made is a conflict. So a caller settles an unknown outcome by repeating
    /// the change and, on a conflict, reading the policy. At version `expected + 1` its content decides: if
    /// it is as sent, the change was made (or another client made the same one, which is as good); otherwise
    /// another client's change was made, and this one never will be. At a later version it may have been made
    /// and replaced since: the policy that was read counts, and a further change starts from it.
    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError>;

    /// A queue's policy; the default one, version 0, where none was put.
    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError>;

    /// Tasks by id with state and result, in the order asked for.
    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError>;

    /// The ended attempts of a task that have a row of their own, by number. The current attempt, and an
    /// attempt that ended the task, are part of the task: see `TaskState::last_attempt`. A page with fewer
    /// than the limit is the last.
    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError>;

    /// Tasks newest first, by (creation time, id). A page may be short, even empty, and still have a cursor.
    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError>;

    /// How many tasks are in which state, by queue, for queues that have any. A page with fewer than the limit is the
    /// last.
    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError>;

    /// One page of the expired tasks, in ascending order of (creation time, id).
    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError>;

    /// Strips some tasks and forgets others. Any number of either; ids of unfinished and unknown tasks are
    /// passed over. A large call runs in parts, so an error may leave some of it done: repeat it.
    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError>;

    /// Ends background work and releases resources. The store answers no calls afterwards.
    async fn close(&self) -> Result<(), StoreError>;
}

/// The limits of a store for one call. Callers ask for them and never derive them from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// Most operations in one commit or submit, counted as `Group::ops` does.
    pub ops_max: usize,
    /// Most bytes in one commit or submit, counted as `Group::bytes` does.
    pub bytes_max: usize,
    /// An insert and its first assignment can be one group.
    pub insert_and_assign: bool,
}

/// New tasks of one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Submit {
    /// The lane that all of them belong to.
    pub lane: LaneId,
    /// The tasks. Shared, because a submit is repeated when its answer is lost.
    pub tasks: Arc<[NewTask]>,
}

/// A query about a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadQuery {
    /// The lane.
    pub lane: LaneId,
    /// The part of the lane to read.
    pub read: LaneRead,
    /// Most rows in the answer.
    pub limit: usize,
    /// Bodies larger than this are left out; 0 for none at all.
    pub body_bytes_max: usize,
}

/// A change of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PutPolicy {
    /// The queue.
    pub queue: QueueKey,
    /// The version that it replaces.
    pub expected: u64,
    /// The new policy.
    pub policy: QueuePolicy,
}

/// A task with its spec, state and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Spec and state; the body is there unless the task was stripped.
    pub row: TaskRow,
    /// The executor's answer.
    pub result: Option<TaskResult>,
}

/// Which tasks to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Only this namespace.
    pub namespace: Option<Name>,
    /// Only this queue.
    pub queue: Option<Name>,
    /// Only these states; empty for all.
    pub statuses: Vec<Status>,
    /// Only this type.
    pub task_type: Option<Name>,
    /// Only this name.
    pub name: Option<String>,
    /// Only tasks whose current or last attempt is at this worker.
    pub worker: Option<Name>,
    /// Only children or retries of this task.
    pub parent: Option<TaskId>,
    /// Only tasks of this schedule.
    pub schedule: Option<String>,
    /// Only tasks with all of these pairs.
    pub metadata: Vec<(String, String)>,
    /// Only tasks created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Only tasks created before this time.
    pub created_before: Option<Timestamp>,
}

impl TaskFilter {
    /// Whether a task is wanted. For stores without an index for a condition.
    pub fn matches(&self, row: &TaskRow) -> bool {
        fn fits<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none_or(|wanted| found == Some(wanted))
        }
        let body = row.body.as_deref();
        fits(self.namespace.as_ref(), Some(&row.head.queue.namespace))
            && fits(self.queue.as_ref(), Some(&row.head.queue.queue))
            && (self.statuses.is_empty() || self.statuses.contains(&row.state.status))
            && fits(self.task_type.as_ref(), Some(&row.head.task_type))
            && fits(self.name.as_ref(), body.map(|b| &b.name))
            && fits(self.worker.as_ref(), row.state.worker.as_ref())
            && fits(self.parent.as_ref(), body.and_then(|b| b.parent.as_ref()))
            && fits(self.schedule.as_ref(), body.and_then(|b| b.schedule.as_ref()))
            && self.metadata.iter().all(|(k, v)| body.and_then(|b| b.metadata.get(k)) == Some(v))
            && self.created_from.is_none_or(|from| row.state.created_at >= from)
            && self.created_before.is_none_or(|before| row.state.created_at < before)
    }
}

/// A query for the ended attempts of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptList {
    /// The task.
    pub task: TaskId,
    /// Only attempts with a higher number; they begin at 1.
    pub after: AttemptNo,
    /// Most attempts in the answer.
    pub limit: usize,
}

/// A query for counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountList {
    /// Only queues after this one, in the order of their keys.
    pub after: Option<QueueKey>,
    /// Most queues in the answer.
    pub limit: usize,
}

/// A query for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskList {
    /// Which tasks.
    pub filter: TaskFilter,
    /// Where the previous page ended.
    pub after: Option<TaskCursor>,
    /// Most tasks in the answer.
    pub limit: usize,
}

/// A position in the list of all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskCursor {
    /// Creation time of the last task looked at.
    pub created_at: Timestamp,
    /// Its id.
    pub id: TaskId,
}

/// A page of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks, without bodies larger than 4 KiB.
    pub tasks: Vec<TaskRow>,
    /// Where to go on; `None` at the end.
    pub next: Option<TaskCursor>,
}

/// How many tasks of a queue are in which state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// The queue.
    pub queue: QueueKey,
    /// By `Status::code`.
    pub by_status: [u64; 8],
}

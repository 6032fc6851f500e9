//! The inputs and effects of the lane machine.

use crate::commit::{Group, GroupOutcome, SubmitOutcome};
use crate::id::{QueueKey, Seq, SessionId, TaskId};
use crate::member::Member;
use crate::message::{OwnerBatch, TaskEvent, WorkerBatch};
use crate::policy::VersionedPolicy;
use crate::read::{LanePage, LaneRead};
use crate::task::NewTask;
use crate::time::Shift;

/// Names a local submission, so that its answer finds its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubmitToken(pub u64);

/// The outcome of one task of a local submission.
pub type Item = SubmitOutcome;

/// An input of the lane machine.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "policies are rare, and everything is moved once")]
pub enum Input {
    /// The lane was claimed: load it.
    Start,
    /// The answer to [`Effect::Read`].
    Page {
        /// Which read.
        read: u64,
        /// The answer.
        page: LanePage,
    },
    /// The answer to [`Effect::Commit`]: outcomes in the order of the groups.
    Committed {
        /// The outcome of each group.
        outcomes: Vec<GroupOutcome>,
    },
    /// Tasks from the API of the same process.
    Submit {
        /// Named in the answer.
        token: SubmitToken,
        /// The tasks.
        tasks: Vec<NewTask>,
    },
    /// Messages of a worker.
    Worker(WorkerBatch),
    /// The members. The first view was read after the lane was claimed.
    Members {
        /// Rises with every change; older views are ignored.
        revision: u64,
        /// All members.
        members: Vec<Member>,
    },
    /// A policy was read.
    Policy {
        /// The queue.
        queue: QueueKey,
        /// The policy.
        policy: VersionedPolicy,
    },
    /// A server has handled the completions of these tasks.
    CompletionHandled(Vec<TaskId>),
    /// The store may hold something new.
    Hint,
    /// The wall clock has stepped: times of day come sooner or later, durations keep their length. The time
    /// of this input and of all later inputs is the time after the step. Sent only to a loaded lane.
    ClockStepped {
        /// By how much.
        by: Shift,
    },
    /// The owner is about to give the lane up: assign nothing more.
    Release,
    /// Time has passed.
    Tick,
}

/// An effect of the lane machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Read from the store.
    Read {
        /// Named in the answer.
        read: u64,
        /// The read.
        what: LaneRead,
        /// Most rows wanted.
        limit: usize,
    },
    /// Write to the store. At most two commits are under way; the second one follows the first.
    Commit {
        /// The changes, in order.
        groups: Vec<Group>,
        /// Arrivals seen so far.
        cursor: Seq,
    },
    /// Send to a worker.
    Send(OwnerBatch),
    /// Answer a local submission.
    Submitted {
        /// Which one.
        token: SubmitToken,
        /// Task by task.
        outcomes: Vec<Item>,
    },
    /// This session sends and does not receive. Repeated with every heartbeat until it receives.
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// Revoke this session: its worker does not follow its owner.
    Revoke {
        /// Which one.
        session: SessionId,
    },
    /// Tasks changed, durably.
    Changed(Vec<TaskEvent>),
    /// Watched tasks have ended, durably. The server must handle each completion and confirm it with
    /// [`Input::CompletionHandled`]; each new owner repeats the effect until then.
    Completed(Vec<TaskId>),
    /// The owner must reload the lane: its view of the store has a gap.
    Reload,
}

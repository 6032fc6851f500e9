//! What goes into the lane machine and what comes out.

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

/// What a local submission is answered, task by task.
pub type Item = SubmitOutcome;

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "policies are rare, and everything is moved once")]
pub enum Input {
    /// The lane was claimed: load it.
    Start,
    /// The answer to [`Effect::Read`].
    Page {
        /// Which read.
        read: u64,
        /// What the store said.
        page: LanePage,
    },
    /// The answer to [`Effect::Commit`]: outcomes in the order of the groups.
    Committed {
        /// What became of each group.
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
    /// Who is alive. The first view was read after the lane was claimed.
    Members {
        /// Rises with every change; older views are ignored.
        revision: u64,
        /// Everyone.
        members: Vec<Member>,
    },
    /// A policy was read.
    Policy {
        /// Whose.
        queue: QueueKey,
        /// What it says.
        policy: VersionedPolicy,
    },
    /// Somebody has looked at these tasks that had ended.
    CompletionHandled(Vec<TaskId>),
    /// There may be something new in the store.
    Hint,
    /// The wall clock has stepped: times of day are reached sooner or later, durations are not. The time of this input, and
    /// of all after it, is the one after the step. Not before the lane is loaded.
    ClockStepped {
        /// By how much.
        by: Shift,
    },
    /// The owner is about to give the lane up: assign nothing more.
    Release,
    /// Time has passed.
    Tick,
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the store.
    Read {
        /// Named in the answer.
        read: u64,
        /// The question.
        what: LaneRead,
        /// Most rows wanted.
        limit: usize,
    },
    /// Write to the store. There is never more than one under way.
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
    /// This session sends and does not receive. Told with every heartbeat while it is so.
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// Let this session end: it does not do what it is asked to.
    Revoke {
        /// Which one.
        session: SessionId,
    },
    /// Tasks changed, durably.
    Changed(Vec<TaskEvent>),
    /// Watched tasks have ended, durably: somebody must look at them, and then say so with
    /// [`Input::CompletionHandled`]. Told again to each new owner until then.
    Completed(Vec<TaskId>),
    /// The lane must be loaded anew: its view of the store has a gap.
    Reload,
}

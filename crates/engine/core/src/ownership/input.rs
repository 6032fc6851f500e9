//! What goes into the ownership machine and what comes out.

use crate::commit::{ClaimLane, Commit, GroupOutcome, LaneHead};
use crate::id::{Epoch, QueueKey, SessionId, TaskId};
use crate::lane;
use crate::member::Member;
use crate::message::{OwnerBatch, TaskEvent, WorkerBatch};
use crate::policy::VersionedPolicy;
use crate::read::{LanePage, LaneRead};
use crate::task::NewTask;
use crate::time::{Shift, Timestamp};

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Whether this server should own the lane.
    Wanted(bool),
    /// Whether the coordinator grants it, now or no longer. `false` is for a view that shows somebody else, or nobody;
    /// an [`Effect::Acquire`] that was refused needs no answer, and one that comes late would hide a later grant.
    Granted(bool),
    /// The answer to [`Effect::Call`].
    Reply {
        /// Which call.
        call: u64,
        /// What the store said.
        reply: Result<Reply, CallError>,
    },
    /// Who is alive: the answer to [`Effect::ReadMembers`], or a change.
    Members {
        /// Rises with every change.
        revision: u64,
        /// Everyone.
        members: Vec<Member>,
        /// It answers the request, and so was read after it.
        requested: bool,
        /// What the wall clock shows. The lane's own clock starts from the one that comes with the requested view and
        /// runs with the steady clock from there, but for its steps.
        wall: Timestamp,
    },
    /// Tasks from the API of the same process.
    Submit {
        /// Named in the answer.
        token: lane::SubmitToken,
        /// The tasks.
        tasks: Vec<NewTask>,
    },
    /// Messages of a worker.
    Worker(WorkerBatch),
    /// A policy was changed.
    Policy {
        /// Whose.
        queue: QueueKey,
        /// What it says now.
        policy: VersionedPolicy,
    },
    /// A grant that was to be released may still be held.
    NotReleased,
    /// Somebody has looked at these tasks that had ended.
    CompletionHandled(Vec<TaskId>),
    /// There may be something new in the store.
    Hint,
    /// The wall clock has stepped since the last input.
    ClockStepped {
        /// By how much.
        by: Shift,
    },
    /// The lane's code failed: a panic was contained. Nothing is done of what the step said before; a submission whose
    /// answer was among it is given to the store.
    Failed,
    /// Time has passed.
    Tick,
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the coordinator for the grant; [`Input::Granted`] follows.
    Acquire,
    /// Give the grant back.
    Release,
    /// Read who is alive, freshly; [`Input::Members`] follows.
    ReadMembers,
    /// Call the store.
    Call {
        /// Named in the answer.
        call: u64,
        /// What to do.
        request: Request,
    },
    /// Send to a worker.
    Send(OwnerBatch),
    /// Answer a local submission; `None` if this server does not own the lane: the store takes the same tasks.
    Submitted {
        /// Which one.
        token: lane::SubmitToken,
        /// Task by task.
        outcomes: Option<Vec<lane::Item>>,
    },
    /// This session sends and does not receive. Told with every heartbeat while it is so.
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// Let this session end.
    Revoke {
        /// Which one.
        session: SessionId,
    },
    /// Tasks changed, durably.
    Changed(Vec<TaskEvent>),
    /// Watched tasks have ended: [`Input::CompletionHandled`] follows when somebody has looked at them.
    Completed(Vec<TaskId>),
    /// The lane has failed under several owners in a row and is left alone for a while: tell people.
    Parked {
        /// How many owners.
        failures: u32,
    },
}

/// What is asked of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Who owns the lane.
    Head,
    /// Take it.
    Claim(ClaimLane),
    /// Write.
    Commit(Commit),
    /// Read.
    Load {
        /// What.
        read: LaneRead,
        /// Most rows.
        limit: usize,
    },
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To `Head`.
    Head(LaneHead),
    /// To `Claim`.
    Claimed(Epoch),
    /// To `Commit`.
    Committed(Vec<GroupOutcome>),
    /// To `Load`.
    Page(LanePage),
}

/// What the store answers instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The lane has another owner.
    Fenced,
    /// Nothing was written; the same call may succeed later.
    NotApplied,
    /// It may have been written.
    Unknown,
    /// The store takes no writes until people have seen to it: no room is left in it, or its files are gone.
    Refused,
    /// It will not succeed.
    Fatal,
}

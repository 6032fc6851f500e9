//! The inputs and effects of the ownership machine.

use crate::commit::{ClaimLane, Commit, GroupOutcome, LaneHead};
use crate::id::{Epoch, QueueKey, SessionId, TaskId};
use crate::lane;
use crate::member::Member;
use crate::message::{OwnerBatch, TaskEvent, WorkerBatch};
use crate::policy::VersionedPolicy;
use crate::read::{LanePage, LaneRead};
use crate::task::NewTask;
use crate::time::{Shift, Timestamp};

/// An input of the ownership machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Whether this server should own the lane.
    Wanted(bool),
    /// Whether the coordinator grants the lane to this server. `false` follows a view that names another
    /// holder, or none. A refused [`Effect::Acquire`] needs no answer: a late one would hide a later grant.
    Granted(bool),
    /// The answer to [`Effect::Call`].
    Reply {
        /// Which call.
        call: u64,
        /// The answer.
        reply: Result<Reply, CallError>,
    },
    /// The members: the answer to [`Effect::ReadMembers`], or a change.
    Members {
        /// Rises with every change.
        revision: u64,
        /// All members.
        members: Vec<Member>,
        /// Whether it answers the request, and so was read after it.
        requested: bool,
        /// The wall time. The lane's own clock starts from the wall time of the requested view and runs with
        /// the steady clock from there, but for its steps.
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
        /// The queue.
        queue: QueueKey,
        /// The new policy.
        policy: VersionedPolicy,
    },
    /// The coordinator may still hold a grant that this server released.
    NotReleased,
    /// A server has handled the completions of these tasks.
    CompletionHandled(Vec<TaskId>),
    /// The store may hold something new.
    Hint,
    /// The wall clock has stepped since the last input.
    ClockStepped {
        /// By how much.
        by: Shift,
    },
    /// The lane's code failed: the driver contained a panic and discarded the effects of that step. A
    /// submission whose answer was among them goes to the store.
    Failed,
    /// Time has passed.
    Tick,
}

/// An effect of the ownership machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the coordinator for the grant; [`Input::Granted`] follows.
    Acquire,
    /// Give the grant back.
    Release,
    /// Read the members, at a moment after this request; [`Input::Members`] follows.
    ReadMembers,
    /// Call the store.
    Call {
        /// Named in the answer.
        call: u64,
        /// The request.
        request: Request,
    },
    /// Send to a worker.
    Send(OwnerBatch),
    /// Answer a local submission; `None` if this server does not own the lane: the store takes the same
    /// tasks.
    Submitted {
        /// Which one.
        token: lane::SubmitToken,
        /// Task by task.
        outcomes: Option<Vec<lane::Item>>,
    },
    /// This session sends and does not receive. Repeated with every heartbeat until it receives.
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// Revoke this session.
    Revoke {
        /// Which one.
        session: SessionId,
    },
    /// Tasks changed, durably.
    Changed(Vec<TaskEvent>),
    /// Watched tasks have ended: [`Input::CompletionHandled`] follows when a server has handled them.
    Completed(Vec<TaskId>),
    /// The lane has failed under several owners in a row and is parked: notify operators.
    Parked {
        /// How many owners.
        failures: u32,
    },
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Who owns the lane.
    Head,
    /// Claim the lane.
    Claim(ClaimLane),
    /// Write.
    Commit(Commit),
    /// Read.
    Load {
        /// The read.
        read: LaneRead,
        /// Most rows.
        limit: usize,
    },
}

/// The answer of the store.
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

/// An error of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The lane has another owner.
    Fenced,
    /// Nothing was written; the same call may succeed later.
    NotApplied,
    /// It may have been written.
    Unknown,
    /// The store takes no writes until an operator repairs it: it is out of space, or its files are gone.
    Refused,
    /// A repetition would fail too.
    Fatal,
}

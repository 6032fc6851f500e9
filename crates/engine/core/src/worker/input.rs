//! The inputs and effects of the worker-session machine.

use std::time::Duration;

use crate::message::{AttemptId, Dispatch, Finish, OwnerBatch, WorkerBatch};
use crate::task::Progress;
use crate::time::Timestamp;

/// An input of the worker session.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The session was opened or renewed.
    Renewed {
        /// When the request was sent, not when it was answered.
        asked_at: Timestamp,
    },
    /// The coordinator refuses to renew the session.
    Refused,
    /// Messages of an owner.
    Owner(OwnerBatch),
    /// All processes of an attempt are gone, and its room is free; [`Input::Ended`] follows when its output
    /// is stored.
    Exited {
        /// Which one.
        attempt: AttemptId,
    },
    /// All processes of an attempt are gone, its output is stored, and it has its result.
    Ended {
        /// Which one.
        attempt: AttemptId,
        /// The end of the attempt.
        finish: Box<Finish>,
    },
    /// An attempt reports progress.
    Progress {
        /// Which one.
        attempt: AttemptId,
        /// The progress.
        progress: Progress,
    },
    /// How many attempts to run at once from now on.
    Capacity(u32),
    /// Take nothing more; hand back the attempts that have not started.
    Drain,
    /// Draining has taken long enough: stop the running attempts and hand them back, too.
    Leave,
    /// Time has passed.
    Tick,
}

/// An effect of the worker session.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Execute this attempt.
    Start(Dispatch),
    /// End this attempt; [`Input::Ended`] follows when its processes are gone.
    Stop {
        /// Which one.
        attempt: AttemptId,
        /// Why.
        reason: StopReason,
    },
    /// The trust window has ended: stop all attempts now and report nothing. The session is over.
    Fence,
    /// Send to the owner of a lane.
    Send(WorkerBatch),
    /// Renew the session.
    Renew,
    /// Draining is complete: nothing is held and nothing unacknowledged.
    Drained,
    /// An attempt could not start because the machine lacks something: no new work is taken for a while.
    Pause {
        /// The resource that the machine lacks, for people.
        reason: String,
        /// How long the pause lasts.
        wait: Duration,
    },
    /// The pause is over: new work is taken.
    Resume,
}

/// Why an attempt is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its task was cancelled.
    Cancelled,
    /// It has run for as long as it may.
    TimedOut,
    /// Its worker leaves. The task is not to blame, and runs again.
    Leaving,
}

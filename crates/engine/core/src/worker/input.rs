//! What goes into the worker-session machine and what comes out.

use std::time::Duration;

use crate::message::{AttemptId, Dispatch, Finish, OwnerBatch, WorkerBatch};
use crate::task::Progress;
use crate::time::Timestamp;

/// Something happened.
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
    /// An attempt and everything it started is gone, and its room is free; [`Input::Ended`] follows when its output is
    /// kept.
    Exited {
        /// Which one.
        attempt: AttemptId,
    },
    /// An attempt and everything it started is gone, and nothing is left to do for it.
    Ended {
        /// Which one.
        attempt: AttemptId,
        /// What came of it.
        finish: Box<Finish>,
    },
    /// An attempt says how far it is.
    Progress {
        /// Which one.
        attempt: AttemptId,
        /// What it says.
        progress: Progress,
    },
    /// How many attempts to run at once from now on.
    Capacity(u32),
    /// Take nothing more; give back what has not started.
    Drain,
    /// Draining has taken long enough: stop what still runs and give it back, too.
    Leave,
    /// Time has passed.
    Tick,
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Execute this.
    Start(Dispatch),
    /// End this; [`Input::Ended`] follows when it is gone.
    Stop {
        /// Which one.
        attempt: AttemptId,
        /// Why.
        reason: StopReason,
    },
    /// The lease is over: end everything now, report nothing. The session is done.
    Fence,
    /// Send to the owner of a lane.
    Send(WorkerBatch),
    /// Renew the session.
    Renew,
    /// Draining is complete: nothing is held and nothing unacknowledged.
    Drained,
    /// An attempt could not start because the machine lacks something: no new work is taken for a while.
    Pause {
        /// What the machine lacks, for people.
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

//! The errors of ports, and whether a caller may retry.

use std::time::Duration;

use tasklane_core::id::{CommitNo, Epoch, LaneId, QueueKey, SessionId};

/// The error that the system itself gave.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Whether a write that failed may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not, and will not.
    NotApplied,
    /// Unknown: the answer was lost. The owner settles a commit by repeating it with the same number;
    /// submits, posts and claims are safe to repeat.
    Unknown,
}

/// The refusals and failures of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The lane has another owner.
    #[error("lane {lane} is owned under epoch {current}, not {held}")]
    Fenced {
        /// The lane.
        lane: LaneId,
        /// The epoch that the caller had.
        held: Epoch,
        /// The epoch that is stored.
        current: Epoch,
    },
    /// The commit number is neither the next one nor the last one.
    #[error("commit {number} of lane {lane} does not follow commit {last}")]
    OutOfOrder {
        /// The lane.
        lane: LaneId,
        /// The number given.
        number: CommitNo,
        /// The number of the last commit.
        last: CommitNo,
    },
    /// The lane's epoch is not the epoch that the claim had seen.
    #[error("lane {lane} was claimed by another owner under epoch {current}")]
    ClaimLost {
        /// The lane.
        lane: LaneId,
        /// The epoch that is stored.
        current: Epoch,
    },
    /// Another client changed the policy first.
    #[error("policy of queue {queue} is at version {current}, not {expected}")]
    PolicyConflict {
        /// The queue.
        queue: QueueKey,
        /// The version that the change was made for.
        expected: u64,
        /// The version that is stored.
        current: u64,
    },
    /// More than the store takes at once.
    #[error("{what} is too large for this store: {size}, at most {max}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        max: usize,
    },
    /// The disk is full. Nothing was written; writes work again when there is room.
    #[error("no room left in the store: {source}")]
    Full {
        /// The system's error.
        source: Source,
    },
    /// The files of the store are gone, or another process writes to them: nothing that is written now would last.
    #[error("the store is lost: {reason}")]
    Lost {
        /// The event, and the remedy.
        reason: String,
    },
    /// Not reachable, too slow, or restarting.
    #[error("store not available: {source}")]
    Unavailable {
        /// Whether a write may have happened.
        outcome: Outcome,
        /// The system's error.
        source: Source,
    },
    /// Another process uses the data, or the data is of a newer version: retrying is of no use.
    #[error("cannot open the store: {reason}")]
    Refused {
        /// The reason, and the remedy.
        reason: String,
    },
    /// Stored data cannot be read, or the system gave an answer that its protocol rules out.
    #[error("store is damaged or not understood: {source}")]
    Corrupt {
        /// The fault in the data or the answer.
        source: Source,
    },
}

impl StoreError {
    /// The same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full { .. } | Self::Lost { .. } | Self::Unavailable { .. } => true,
            Self::Fenced { .. }
            | Self::OutOfOrder { .. }
            | Self::ClaimLost { .. }
            | Self::PolicyConflict { .. }
            | Self::TooLarge { .. }
            | Self::Refused { .. }
            | Self::Corrupt { .. } => false,
        }
    }

    /// Whether the write may have happened.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unavailable { outcome, .. } => *outcome,
            Self::Lost { .. } | Self::Corrupt { .. } => Outcome::Unknown,
            Self::Fenced { .. }
            | Self::OutOfOrder { .. }
            | Self::ClaimLost { .. }
            | Self::PolicyConflict { .. }
            | Self::TooLarge { .. }
            | Self::Full { .. }
            | Self::Refused { .. } => Outcome::NotApplied,
        }
    }

    /// An unreachable store to which no request was sent yet.
    pub fn unavailable(source: impl Into<Source>) -> Self {
        Self::Unavailable { outcome: Outcome::NotApplied, source: source.into() }
    }

    /// A write whose answer was lost.
    pub fn unknown(source: impl Into<Source>) -> Self {
        Self::Unavailable { outcome: Outcome::Unknown, source: source.into() }
    }

    /// Stored data that cannot be read.
    pub fn corrupt(source: impl Into<Source>) -> Self {
        Self::Corrupt { source: source.into() }
    }
}

/// The failures of a bus. Its messages are hints, so no caller waits for the bus to recover.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Not reachable.
    #[error("bus not available: {source}")]
    Unavailable {
        /// The system's error.
        source: Source,
    },
    /// A message is larger than the bus carries.
    #[error("message of {size} bytes is too large for this bus, at most {max}")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The largest one.
        max: usize,
    },
    /// The bus was closed.
    #[error("bus is closed")]
    Closed,
}

impl BusError {
    /// The same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::TooLarge { .. } | Self::Closed => false,
        }
    }
}

/// The refusals and failures of a coordinator.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The session has ended, or may not be renewed any more.
    #[error("session {session} has ended")]
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// The TTL is shorter than this coordinator can keep.
    #[error("a session TTL of {ttl:?} is too short, at least {min:?}")]
    TtlTooShort {
        /// The TTL asked for.
        ttl: Duration,
        /// The shortest one.
        min: Duration,
    },
    /// Not reachable.
    #[error("coordinator not available: {source}")]
    Unavailable {
        /// Whether a write may have happened.
        outcome: Outcome,
        /// The system's error.
        source: Source,
    },
}

impl CoordinatorError {
    /// The same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::SessionEnded { .. } | Self::TtlTooShort { .. } => false,
        }
    }

    /// Whether the write may have happened.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unavailable { outcome, .. } => *outcome,
            Self::SessionEnded { .. } | Self::TtlTooShort { .. } => Outcome::NotApplied,
        }
    }
}

/// The failures of an executor before an attempt could start.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The payload does not fit this executor.
    #[error("payload is not valid: {reason}")]
    BadPayload {
        /// The field, and the rule.
        reason: String,
    },
    /// A program or service that the executor needs on this machine is missing.
    #[error("cannot execute here: {source}")]
    Unavailable {
        /// The system's error.
        source: Source,
    },
}

impl ExecutorError {
    /// The same attempt may succeed later or elsewhere.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::BadPayload { .. } => false,
        }
    }
}

/// The failures of an intake.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// Not reachable.
    #[error("intake not available: {source}")]
    Unavailable {
        /// The system's error.
        source: Source,
    },
}

impl IntakeError {
    /// The same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
        }
    }
}

/// The failures of an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Not reachable. The tasks may have been written; putting them again is safe.
    #[error("archive not available: {source}")]
    Unavailable {
        /// The system's error.
        source: Source,
    },
}

impl ArchiveError {
    /// The same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
        }
    }
}

//! The status table: the statuses of a task and the changes that are allowed between them. Every change of a
//! status, in a machine or in a store, goes through [`check_path`].

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::id::AttemptNo;
use crate::time::Timestamp;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Status {
    /// Waiting for its due time or for a worker.
    Pending = 0,
    /// Assigned to a worker; durable, perhaps not yet sent.
    Scheduled = 1,
    /// The worker has reported that it holds the attempt.
    Dispatched = 2,
    /// Executing.
    Running = 3,
    /// Failed and waiting for the time of its next attempt.
    Retrying = 4,
    /// Ended well. Final.
    Success = 5,
    /// Ended badly and will not be tried again. Final.
    Failed = 6,
    /// Stopped on request. Final.
    Cancelled = 7,
}

use Status::{Cancelled, Dispatched, Failed, Pending, Retrying, Running, Scheduled, Success};

impl Status {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] =
        [Pending, Scheduled, Dispatched, Running, Retrying, Success, Failed, Cancelled];

    /// The statuses that may follow. An attempt that was lost, recalled or refused leads back to `PENDING`;
    /// final statuses lead nowhere. `FAILED` straight from a waiting or unstarted status is a start timeout
    /// or one lost attempt too many.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Pending => &[Scheduled, Failed, Cancelled],
            Scheduled => &[Dispatched, Pending, Failed, Cancelled],
            Dispatched => &[Running, Pending, Failed, Cancelled],
            Running => &[Success, Failed, Cancelled, Retrying, Pending],
            Retrying => &[Pending, Cancelled],
            Success | Failed | Cancelled => &[],
        }
    }

    /// Whether the status allows no more changes.
    pub const fn is_final(self) -> bool {
        self.successors().is_empty()
    }

    /// Whether a worker holds the task, or will be sent it.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Scheduled | Dispatched | Running)
    }

    /// Whether the task is neither at a worker nor finished.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Pending | Retrying)
    }

    /// The name in the API, in metrics and in the docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Pending => "PENDING",
            Scheduled => "SCHEDULED",
            Dispatched => "DISPATCHED",
            Running => "RUNNING",
            Retrying => "RETRYING",
            Success => "SUCCESS",
            Failed => "FAILED",
            Cancelled => "CANCELLED",
        }
    }

    /// The number under which it is stored.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Back from [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The version that a change of a task expects in the store; every write of the change checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// The last committed status.
    pub status: Status,
    /// The last committed attempt.
    pub attempt: AttemptNo,
}

impl Version {
    /// A task that was just created.
    pub const NEW: Self = Self { status: Pending, attempt: AttemptNo(0) };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of attempt {}", self.status, self.attempt)
    }
}

/// One step of a task's path: it entered `status` at `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The status entered.
    pub status: Status,
    /// When.
    pub at: Timestamp,
}

/// The steps between two writes of a task. Usually one, at most a few: several changes that happened while a
/// commit was under way are written together, with the path they took.
pub type Path = SmallVec<[Step; 4]>;

/// A path that the table does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task cannot go from {from} to {to}")]
pub struct IllegalTransition {
    /// The status that the path had reached.
    pub from: Status,
    /// The status that the path asked for.
    pub to: Status,
}

/// The one transition function: follows `path` from `from` and returns the version at its end. Entering
/// `SCHEDULED` takes a new attempt number.
pub fn check_path(from: Version, path: &[Step]) -> Result<Version, IllegalTransition> {
    path.iter().try_fold(from, |at, step| {
        if !at.status.successors().contains(&step.status) {
            return Err(IllegalTransition { from: at.status, to: step.status });
        }
        let attempt = if step.status == Scheduled { at.attempt.next() } else { at.attempt };
        Ok(Version { status: step.status, attempt })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(steps: &[Status]) -> Path {
        steps.iter().map(|&status| Step { status, at: Timestamp::ZERO }).collect()
    }

    #[test]
    fn every_state_but_the_final_ones_leads_on() {
        for status in Status::ALL {
            assert_eq!(status.is_final(), matches!(status, Success | Failed | Cancelled));
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(8), None);
    }

    #[test]
    fn every_state_can_be_cancelled_until_it_is_final() {
        for status in Status::ALL {
            assert_eq!(status.successors().contains(&Cancelled), !status.is_final(), "{status}");
        }
    }

    #[test]
    fn assignment_takes_a_new_attempt_number() {
        let end =
            check_path(Version::NEW, &path(&[Scheduled, Pending, Scheduled, Dispatched, Running, Retrying]));
        assert_eq!(end, Ok(Version { status: Retrying, attempt: AttemptNo(2) }));
    }

    #[test]
    fn final_states_never_change() {
        let done = Version { status: Success, attempt: AttemptNo(1) };
        for status in Status::ALL {
            assert!(check_path(done, &path(&[status])).is_err());
        }
        assert_eq!(check_path(done, &[]), Ok(done));
    }

    #[test]
    fn steps_are_not_skipped() {
        let error = check_path(Version::NEW, &path(&[Running])).unwrap_err();
        assert_eq!(error.to_string(), "a task cannot go from PENDING to RUNNING");
    }
}

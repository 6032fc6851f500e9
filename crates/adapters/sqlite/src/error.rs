//! Errors of SQLite as errors of the store.

use std::any::Any;
use std::sync::Arc;

use rusqlite::{ErrorCode, ffi};
use tasklane_ports::{Outcome, StoreError};

/// Why a transaction was undone or a read failed. All requests of a transaction get it, so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Sqlite(Arc<rusqlite::Error>),
    /// A stored value that cannot be read.
    #[error(transparent)]
    Unreadable(Arc<StoreError>),
    #[error("a request made the store panic: {0}")]
    Panic(String),
    /// The files no longer belong to the store.
    #[error("{0}")]
    Lost(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(Arc::new(error))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Unreadable(Arc::new(error))
    }
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No room; a smaller request may still fit.
    Full,
    /// The files are gone or were replaced.
    Lost,
    /// The file cannot be read or written now, by any request.
    Unavailable,
    /// A stored or given value is not valid.
    NotUnderstood,
}

impl Failure {
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panic(text.unwrap_or_else(|| "no message".to_owned()))
    }

    pub(crate) fn trouble(&self) -> Trouble {
        let error = match self {
            Self::Sqlite(error) => error,
            Self::Lost(_) => return Trouble::Lost,
            Self::Unreadable(_) | Self::Panic(_) => return Trouble::NotUnderstood,
        };
        let Some(error) = error.sqlite_error() else { return Trouble::NotUnderstood };
        match error.code {
            ErrorCode::DiskFull => Trouble::Full,
            // The wal-index is extended by writing to it; when that fails, there is no room.
            ErrorCode::SystemIoFailure if error.extended_code == ffi::SQLITE_IOERR_SHMSIZE => Trouble::Full,
            ErrorCode::SystemIoFailure
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted => Trouble::Unavailable,
            _ => Trouble::NotUnderstood,
        }
    }

    /// The answer to one request of a transaction that failed.
    pub(crate) fn answer(&self, outcome: Outcome) -> StoreError {
        match (self.trouble(), outcome) {
            (Trouble::Lost, _) => StoreError::Lost { reason: self.to_string() },
            (Trouble::Full, Outcome::NotApplied) => StoreError::Full { source: Box::new(self.clone()) },
            (Trouble::Full | Trouble::Unavailable, outcome) => {
                StoreError::Unavailable { outcome, source: Box::new(self.clone()) }
            }
            (Trouble::NotUnderstood, _) => StoreError::corrupt(self.clone()),
        }
    }
}

/// For reads, which change nothing.
pub(crate) fn read_failed(failure: &Failure) -> StoreError {
    failure.answer(Outcome::NotApplied)
}

/// The answer after `close`.
pub(crate) fn closed() -> StoreError {
    StoreError::unavailable("the store was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(code: i32) -> Failure {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    #[test]
    fn a_full_disk_is_told_apart_from_a_bad_disk_and_from_damage() {
        assert_eq!(sqlite(ffi::SQLITE_FULL).trouble(), Trouble::Full);
        assert_eq!(sqlite(ffi::SQLITE_IOERR_SHMSIZE).trouble(), Trouble::Full);
        assert_eq!(sqlite(ffi::SQLITE_IOERR_FSYNC).trouble(), Trouble::Unavailable);
        assert_eq!(sqlite(ffi::SQLITE_BUSY).trouble(), Trouble::Unavailable);
        assert_eq!(sqlite(ffi::SQLITE_CORRUPT).trouble(), Trouble::NotUnderstood);
        assert_eq!(sqlite(ffi::SQLITE_CONSTRAINT_UNIQUE).trouble(), Trouble::NotUnderstood);
    }

    #[test]
    fn full_means_not_applied_and_is_never_said_of_an_unknown_outcome() {
        let full = sqlite(ffi::SQLITE_FULL);
        assert!(matches!(full.answer(Outcome::NotApplied), StoreError::Full { .. }));
        assert_eq!(full.answer(Outcome::NotApplied).outcome(), Outcome::NotApplied);
        assert_eq!(full.answer(Outcome::Unknown).outcome(), Outcome::Unknown);
        assert!(full.answer(Outcome::Unknown).is_retryable());
    }
}

//! Errors of the server as errors of the ports.
//!
//! Callers must know whether a write may have happened. A statement that the server refused with an error was
//! undone with its transaction. A statement that could not be sent never began. The outcome of a statement
//! without an answer is unknown, also where the connection ended with a reason: a server that shuts down may
//! have committed before it sent the reason.

use std::fmt::{self, Write as _};
use std::time::Duration;

use deadpool_postgres::PoolError;
use tasklane_ports::{Outcome, StoreError};
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::pooler::{REMEDY, loses_statements};

/// Raised by `write_lane` after it has written something: the stored values are not the expected ones.
pub(crate) const NOT_AS_EXPECTED: &str = "TL001";

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was sent: there is no connection.
    #[error("{}", ErrorDetail(.0))]
    NoConnection(Error),
    /// Nothing was sent: all connections are busy, or none can be made.
    #[error("no connection was free or could be made in time")]
    NoneFree,
    /// The statement was sent, or may have been; the server refused it, or its answer was lost.
    #[error("{}", ErrorDetail(.0))]
    Failed(Error),
    /// The statement was sent, and no answer has arrived.
    #[error("no answer after {0:?}")]
    TimedOut(Duration),
    /// The store was closed.
    #[error("the store was closed")]
    Closed,
}

impl CallError {
    /// The server's own code, if the server refused.
    pub(crate) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::NoConnection(error) | Self::Failed(error) => error.code(),
            Self::NoneFree | Self::TimedOut(_) | Self::Closed => None,
        }
    }

    /// Whether the connection is of no more use.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Failed(error) => {
                // The next connection through such a pooler is probed.
                error.as_db_error().is_none_or(|db| ends_connection(db) || loses_statements(db))
            }
            Self::NoConnection(_) | Self::NoneFree | Self::TimedOut(_) | Self::Closed => true,
        }
    }

    /// The error for a read.
    pub(crate) fn of_read(self) -> StoreError {
        match StoreError::from(self) {
            StoreError::Unavailable { source, .. } => {
                StoreError::Unavailable { outcome: Outcome::NotApplied, source }
            }
            other => other,
        }
    }
}

impl From<PoolError> for CallError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::NoConnection(error),
            PoolError::Closed => Self::Closed,
            PoolError::Timeout(_) | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                Self::NoneFree
            }
        }
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::NoConnection(cause) => match cause.as_db_error() {
                Some(db) if is_misconfigured(db.code()) || loses_statements(db) => refused(&error),
                _ => Self::unavailable(error),
            },
            CallError::NoneFree | CallError::Closed => Self::unavailable(error),
            CallError::TimedOut(_) => Self::unknown(error),
            CallError::Failed(cause) => match cause.as_db_error() {
                None => Self::unknown(error),
                Some(db) if ends_connection(db) => Self::unknown(error),
                // Nothing ran. The pooler may be configured correctly while this process goes on.
                Some(db) if loses_statements(db) => Self::unavailable(error),
                Some(db) => of_server(&db.code().clone(), error),
            },
        }
    }
}

/// A statement was refused, and so undone.
fn of_server(code: &SqlState, error: CallError) -> StoreError {
    if *code == SqlState::DISK_FULL {
        return StoreError::Full { source: error.into() };
    }
    if is_misconfigured(code) {
        return refused(&error);
    }
    match &code.code()[..2] {
        // Deadlocks; too few resources; locks and timeouts; read-only after a failover; errors of the system,
        // and of the server itself.
        "40" | "53" | "55" | "57" | "25" | "58" | "XX" => StoreError::unavailable(error),
        _ => StoreError::corrupt(error),
    }
}

/// Faults that waiting does not mend: no such database, role, schema or function, or no right to it.
fn is_misconfigured(code: &SqlState) -> bool {
    matches!(&code.code()[..2], "28" | "3D" | "3F" | "42")
}

fn refused(error: &CallError) -> StoreError {
    StoreError::Refused { reason: error.to_string() }
}

fn ends_connection(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) || error.severity() == "FATAL"
}

/// An answer that none of the statements gives.
pub(crate) fn unexpected(error: impl Into<tasklane_ports::Source>) -> StoreError {
    StoreError::corrupt(error)
}

/// The setting that would help.
fn remedy(error: &DbError) -> Option<&'static str> {
    if loses_statements(error) {
        return Some(REMEDY);
    }
    let lacks_cert = *error.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
        && error.message().contains("client certificate");
    lacks_cert.then_some("name the files of one and of its key with sslcert=… and sslkey=…")
}

/// The client's errors hold the cause as their source only.
struct ErrorDetail<'a>(&'a Error);

impl fmt::Display for ErrorDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(db) = self.0.as_db_error() {
            write!(f, "{} ({})", db.message(), db.code().code())?;
            if let Some(more) = db.detail().or_else(|| db.hint()) {
                write!(f, ": {more}")?;
            }
            return match remedy(db) {
                Some(remedy) => write!(f, ": {remedy}"),
                None => Ok(()),
            };
        }
        let mut text = self.0.to_string();
        let mut source = std::error::Error::source(self.0);
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        // The client library has no error of its own for these.
        if text.contains("server does not support TLS") {
            text.push_str("; set ssl = on in its postgresql.conf, or use sslmode=prefer");
        } else if text.contains("received fatal alert") {
            text.push_str("; the server does not take the client's certificate: look at sslcert and sslkey");
        }
        f.write_str(&text)
    }
}

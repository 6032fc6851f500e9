//! Redis errors as errors of the ports.
//!
//! Callers must know whether a write may have happened. A refused script (wrong node, loading, read-only, no
//! memory) has not run. A script without an answer may have run. Scripts write only at their end, by commands
//! that cannot fail, so a script that ran has either refused or written everything.

use redis::{ErrorKind, RedisError};
use tasklane_ports::{CoordinatorError, StoreError};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was sent: there is no connection.
    #[error("{0}")]
    NotSent(RedisError),
    /// The command was sent, or may have been; the server refused it, or its answer was lost.
    #[error("{0}")]
    Sent(RedisError),
}

impl CallError {
    /// The server's code, if the server refused.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::NotSent(_) => None,
            Self::Sent(error) => error.code(),
        }
    }

    fn into_inner(self) -> RedisError {
        match self {
            Self::NotSent(error) | Self::Sent(error) => error,
        }
    }
}

/// Whether the server refuses the command for now: it, or another server, may take it later.
pub(crate) fn is_passing_refusal(code: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "READONLY"
            | "MASTERDOWN"
            | "CLUSTERDOWN"
            | "TRYAGAIN"
            | "MOVED"
            | "ASK"
            | "BUSY"
            | "NOREPLICAS"
            | "MISCONF"
            | "NOSCRIPT"
    )
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        let not_sent = matches!(error, CallError::NotSent(_));
        let error = error.into_inner();
        match error.code() {
            Some("OOM") => return Self::Full { source: error.into() },
            Some("NOAUTH" | "NOPERM" | "WRONGPASS") => return refused(&error),
            Some(code) if is_passing_refusal(code) => return Self::unavailable(error),
            _ => {}
        }
        match error.kind() {
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported => refused(&error),
            _ if not_sent && is_no_database(&error) => refused(&error),
            _ if not_sent => Self::unavailable(error),
            ErrorKind::Io => Self::unknown(error),
            _ => Self::corrupt(error),
        }
    }
}

impl From<CallError> for CoordinatorError {
    fn from(error: CallError) -> Self {
        coordinator_error(error.into())
    }
}

/// As a coordinator error: the coordinator has only the unavailable one.
pub(crate) fn coordinator_error(error: StoreError) -> CoordinatorError {
    let outcome = error.outcome();
    match error {
        StoreError::Unavailable { outcome, source } => CoordinatorError::Unavailable { outcome, source },
        other => CoordinatorError::Unavailable { outcome, source: other.into() },
    }
}

/// The server has no database of the number in the URL.
fn is_no_database(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("DB index"))
}

fn refused(error: &RedisError) -> StoreError {
    StoreError::Refused { reason: error.to_string() }
}

/// An answer that none of the scripts gives.
pub(crate) fn unexpected(what: &str) -> StoreError {
    StoreError::corrupt(format!("unexpected answer: {what}"))
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};
    use tasklane_ports::Outcome;

    use super::*;

    fn of_server(line: &str) -> StoreError {
        let answer = parse_redis_value(format!("-{line}\r\n").as_bytes()).and_then(Value::extract_error);
        CallError::Sent(answer.unwrap_err()).into()
    }

    #[test]
    fn refusals_of_the_server_have_changed_nothing() {
        for line in [
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "BUSY Redis is busy running a script.",
            "MISCONF Redis is configured to save RDB snapshots",
        ] {
            let error = of_server(line);
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
            assert_eq!(error.outcome(), Outcome::NotApplied);
            assert!(error.is_retryable());
        }
        let full = of_server("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(matches!(full, StoreError::Full { .. }), "{full}");
        let refused = of_server("NOAUTH Authentication required.");
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused}");
    }

    #[test]
    fn a_script_that_broke_is_not_hidden() {
        let error = of_server("WRONGTYPE Operation against a key holding the wrong kind of value");
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::Unknown);
    }

    #[test]
    fn a_lost_answer_is_unknown_and_a_missing_connection_is_not() {
        let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(StoreError::from(CallError::Sent(lost())).outcome(), Outcome::Unknown);
        assert_eq!(StoreError::from(CallError::NotSent(lost())).outcome(), Outcome::NotApplied);
    }
}

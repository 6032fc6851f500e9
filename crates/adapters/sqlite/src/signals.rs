//! Places where a test can hold the store. In production no test is attached, and each costs a check of an
//! empty option.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

/// Callbacks of a test, which hold the store until they return.
#[derive(Clone, Default)]
pub struct Signals {
    /// A write is ready, and about to be sent to the writer. Called for the handle with these signals only.
    pub before_send: Option<Arc<dyn Fn() -> SignalFuture + Send + Sync>>,
    /// The writer has taken this many waiting requests and is about to begin their transaction. Called only
    /// for the signals of the options.
    pub before_transaction: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    /// Everything of a transaction is written, and its `COMMIT` comes next. Called only for the signals of
    /// the options.
    pub before_commit: Option<Arc<dyn Fn() + Send + Sync>>,
    /// The writer begins this statement. Called only for the signals of the options.
    pub statement: Option<OnStatement>,
}

/// Called with the text of a statement.
pub type OnStatement = Arc<dyn Fn(&str) + Send + Sync>;

/// The store waits here until it is done.
pub type SignalFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Signals {
    pub(crate) async fn before_send(&self) {
        if let Some(signal) = &self.before_send {
            signal().await;
        }
    }

    pub(crate) fn before_transaction(&self, requests: usize) {
        if let Some(signal) = &self.before_transaction {
            signal(requests);
        }
    }

    /// Makes SQLite report each statement, if a callback is set.
    pub(crate) fn watch(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let Some(signal) = self.statement.clone() else { return Ok(()) };
        conn.trace_v2(
            TraceEventCodes::SQLITE_TRACE_STMT,
            Some(move |event: TraceEvent<'_>| {
                if let TraceEvent::Stmt(_, sql) = event {
                    signal(sql);
                }
            }),
        )
    }

    pub(crate) fn before_commit(&self) {
        if let Some(signal) = &self.before_commit {
            signal();
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

//! A few threads, each with a connection that only reads. SQLite lets them go on while the writer writes;
//! each query is answered from one snapshot.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tasklane_ports::StoreError;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Failure, read_failed};

/// Most queries that wait; further callers wait for room.
pub(crate) const WAITING_MAX: usize = 256;

/// A message to a reader.
pub(crate) enum ReaderMessage {
    Read(Box<dyn FnOnce(&Connection) + Send>),
    Close,
}

impl ReaderMessage {
    /// A query, and the channel of its answer.
    pub(crate) fn of<T: Send + 'static>(
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
        reply: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self::Read(Box::new(move |conn| {
            let answer = catch_unwind(AssertUnwindSafe(|| {
                let snapshot = conn.unchecked_transaction()?;
                read(&snapshot)
            }));
            let answer = answer.unwrap_or_else(|panic| Err(Failure::from_panic(&*panic)));
            // The caller may have dropped its call.
            let _ = reply.send(answer.map_err(|failure| read_failed(&failure)));
        }))
    }
}

/// Runs until `Close` arrives or all senders are dropped. All readers share one queue of queries.
pub(crate) fn run(conn: &Connection, questions: &Arc<Mutex<mpsc::Receiver<ReaderMessage>>>) {
    loop {
        let next = {
            let mut questions = questions.lock().unwrap_or_else(PoisonError::into_inner);
            let next = questions.blocking_recv();
            if matches!(next, Some(ReaderMessage::Close)) {
                // The other readers answer the remaining queries and find the queue closed.
                questions.close();
            }
            next
        };
        match next {
            Some(ReaderMessage::Read(read)) => read(conn),
            Some(ReaderMessage::Close) | None => return,
        }
    }
}

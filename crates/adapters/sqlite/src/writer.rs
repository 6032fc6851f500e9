//! The one thread that writes.
//!
//! The writer takes all waiting requests, applies them in one transaction, and answers them after `COMMIT`:
//! one write to the disk for all requests that arrived during the last one. There is no timer and no waiting
//! for further requests.
//!
//! When a transaction fails, nothing of it is stored. The writer then tries its requests one by one, so that
//! a request which is too large for the remaining room, or meets a damaged row, does not fail the others.
//!
//! A failed `COMMIT` needs care. SQLite has then rolled back, but the frames of the transaction may lie
//! complete in the log, where a recovery after a crash would find them. The next commit writes over them. So
//! the writer makes a commit that changes nothing before it answers that a write has not happened. If that
//! commit fails too, the outcome is unknown.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::Connection;
use tasklane_ports::{Outcome, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::checkpoint::Checkpoints;
use crate::connect::{Options, open_writer};
use crate::error::{Failure, Trouble, closed};
use crate::presence::Presence;
use crate::requests::{Request, Size};
use crate::signals::Signals;
use crate::write_state::WriteState;

/// Most requests that wait; further callers wait for room.
pub(crate) const WAITING_MAX: usize = 1024;
/// A transaction of this size takes no further request.
const TRANSACTION_MAX: Size = Size { ops: 32 << 10, bytes: 16 << 20 };

/// A message to the writer.
pub(crate) enum WriterMessage {
    Write(Box<dyn Job>),
    Close,
}

impl WriterMessage {
    /// A request, and the channel of its answer.
    pub(crate) fn of<R: Request>(
        request: R,
        reply: oneshot::Sender<Result<R::Response, StoreError>>,
    ) -> Self {
        Self::Write(Box::new(PendingRequest { request, reply, answer: None }))
    }
}

/// A request with its answer.
pub(crate) trait Job: Send {
    fn size(&self) -> Size;
    /// Applies the request and keeps its answer.
    fn apply(&mut self, write_state: &mut WriteState<'_>) -> Result<(), Failure>;
    /// Sends the kept answer, or the error.
    fn settle(self: Box<Self>, end: Result<(), StoreError>);
}

struct PendingRequest<R: Request> {
    request: R,
    reply: oneshot::Sender<Result<R::Response, StoreError>>,
    answer: Option<Result<R::Response, StoreError>>,
}

impl<R: Request> Job for PendingRequest<R> {
    fn size(&self) -> Size {
        self.request.size()
    }

    fn apply(&mut self, write_state: &mut WriteState<'_>) -> Result<(), Failure> {
        self.answer = Some(self.request.apply(write_state)?);
        Ok(())
    }

    fn settle(self: Box<Self>, end: Result<(), StoreError>) {
        let Self { reply, answer, .. } = *self;
        let answer = end.and_then(|()| answer.expect("what was committed was applied"));
        // The caller may have dropped its call.
        let _ = reply.send(answer);
    }
}

/// Runs until `Close` arrives or all senders are dropped.
pub(crate) fn run(
    first: Connection,
    options: &Options,
    mut messages: mpsc::Receiver<WriterMessage>,
    checkpoints: &Checkpoints,
    presence: &Presence,
) {
    let mut conn = Some(first);
    loop {
        // A file that has replaced the store's is not opened.
        let reopen = || presence.check().map_err(|lost| lost.answer(Outcome::NotApplied));
        let opened = conn.take().map_or_else(|| reopen().and_then(|()| open_writer(options)), Ok);
        match opened.and_then(|conn| Writer::run(conn, options, &mut messages, checkpoints, presence)) {
            Ok(Exit::Closed) => return,
            Ok(Exit::Broken) => {}
            // The file cannot be opened now: the next request gets the error, then the writer tries again.
            Err(error) => match messages.blocking_recv() {
                Some(WriterMessage::Write(job)) => job.settle(Err(error)),
                Some(WriterMessage::Close) | None => return refuse_rest(&mut messages),
            },
        }
    }
}

enum Exit {
    /// No request can follow.
    Closed,
    /// A transaction could not be ended: the connection is unusable.
    Broken,
}

/// How a transaction failed.
struct FailedTransaction {
    failure: Failure,
    outcome: Outcome,
}

struct Writer<'c> {
    conn: &'c Connection,
    write_state: WriteState<'c>,
    signals: &'c Signals,
    /// None in tests without a file.
    presence: Option<&'c Presence>,
}

impl Writer<'_> {
    fn run(
        mut conn: Connection,
        options: &Options,
        messages: &mut mpsc::Receiver<WriterMessage>,
        checkpoints: &Checkpoints,
        presence: &Presence,
    ) -> Result<Exit, StoreError> {
        let failed = |error: rusqlite::Error| Failure::from(error).answer(Outcome::NotApplied);
        checkpoints.watch(&mut conn).map_err(failed)?;
        options.signals.watch(&mut conn).map_err(failed)?;
        let conn = &conn;
        let write_state = WriteState::new(conn).map_err(failed)?;
        let mut writer = Writer { conn, write_state, signals: &options.signals, presence: Some(presence) };
        let mut batch = Vec::new();
        loop {
            let closing = take_waiting(messages, &mut batch);
            if !batch.is_empty() {
                options.signals.before_transaction(batch.len());
                writer.write(&mut batch);
                checkpoints.on_commit(conn, writer.write_state.erased());
            }
            if closing {
                refuse_rest(messages);
                return Ok(Exit::Closed);
            }
            if !conn.is_autocommit() {
                return Ok(Exit::Broken);
            }
        }
    }

    /// Applies and answers all requests of `batch`.
    fn write(&mut self, batch: &mut Vec<Box<dyn Job>>) {
        match self.transaction(batch) {
            Ok(()) => batch.drain(..).for_each(|job| job.settle(Ok(()))),
            Err(failed) if batch.len() > 1 && failed.may_concern_one() => {
                for mut job in batch.drain(..) {
                    let end = self.transaction(std::slice::from_mut(&mut job));
                    job.settle(end.map_err(|failed| failed.answer()));
                }
            }
            Err(failed) => batch.drain(..).for_each(|job| job.settle(Err(failed.answer()))),
        }
    }

    /// Runs a transaction. It fails if the files are gone at its end.
    fn transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), FailedTransaction> {
        let done = self.try_transaction(jobs);
        let Some(presence) = self.presence else { return done };
        match done.as_ref().map_err(|failed| failed.failure.trouble()) {
            Ok(()) => presence.on_write(true),
            Err(Trouble::Full) => presence.on_write(false),
            Err(Trouble::Lost | Trouble::Unavailable | Trouble::NotUnderstood) => {}
        }
        if let Some(reason) = self.write_state.taken() {
            presence.taken(reason);
        }
        presence.check().map_err(|failure| FailedTransaction { failure, outcome: Outcome::Unknown })?;
        done
    }

    fn try_transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), FailedTransaction> {
        // A panic leaves nothing half-done: the transaction is undone, and the cache is dropped.
        let applied = catch_unwind(AssertUnwindSafe(|| self.apply(jobs)))
            .unwrap_or_else(|panic| Err(Failure::from_panic(&*panic)));
        if let Err(failure) = applied {
            self.undo();
            return Err(FailedTransaction { failure, outcome: Outcome::NotApplied });
        }
        self.signals.before_commit();
        self.conn.execute_batch("COMMIT").map_err(|error| {
            let failure = Failure::from(error);
            self.undo();
            // "Full" comes from a frame that could not be written, and the frame that completes a transaction
            // is the last one.
            let undone = self.conn.is_autocommit()
                && (failure.trouble() == Trouble::Full || self.settle_log().is_ok());
            let outcome = if undone { Outcome::NotApplied } else { Outcome::Unknown };
            FailedTransaction { failure, outcome }
        })
    }

    fn apply(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.write_state.on_begin()?;
        for job in jobs {
            job.apply(&mut self.write_state)?;
        }
        self.write_state.on_commit()
    }

    fn undo(&mut self) {
        self.write_state.forget();
        if !self.conn.is_autocommit() {
            // If this fails too, `run` drops the connection.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }

    /// A commit that changes nothing. It overwrites the frames that a failed commit has left in the log.
    fn settle_log(&self) -> rusqlite::Result<()> {
        let version: i64 = self.conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        self.conn.pragma_update(None, "user_version", version)
    }
}

impl FailedTransaction {
    /// Whether the failure may concern one request only.
    fn may_concern_one(&self) -> bool {
        match self.failure.trouble() {
            Trouble::Full | Trouble::NotUnderstood => self.outcome == Outcome::NotApplied,
            Trouble::Unavailable | Trouble::Lost => false,
        }
    }

    fn answer(&self) -> StoreError {
        self.failure.answer(self.outcome)
    }
}

/// Waits for a request and takes those behind it. Answers whether to close afterwards.
fn take_waiting(messages: &mut mpsc::Receiver<WriterMessage>, batch: &mut Vec<Box<dyn Job>>) -> bool {
    let mut total = Size::default();
    let mut next = messages.blocking_recv();
    loop {
        match next {
            Some(WriterMessage::Write(job)) => {
                let size = job.size();
                total.ops += size.ops;
                total.bytes += size.bytes;
                batch.push(job);
            }
            Some(WriterMessage::Close) | None => return true,
        }
        if total.ops >= TRANSACTION_MAX.ops || total.bytes >= TRANSACTION_MAX.bytes {
            return false;
        }
        match messages.try_recv() {
            Ok(message) => next = Some(message),
            // If all senders are dropped, the next call finds that.
            Err(_) => return false,
        }
    }
}

/// Refuses the requests behind `Close`.
fn refuse_rest(messages: &mut mpsc::Receiver<WriterMessage>) {
    messages.close();
    while let Some(message) = messages.blocking_recv() {
        if let WriterMessage::Write(job) = message {
            job.settle(Err(closed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::migrate;
    use crate::requests::PostRows;
    use tasklane_core::id::LaneId;

    /// A request with a fault of its own.
    enum Faulty {
        Panics,
        Unreadable,
        Constraint,
    }

    impl Request for Faulty {
        type Response = ();

        fn size(&self) -> Size {
            Size::default()
        }

        fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<(), StoreError>, Failure> {
            write_state.add_command(LaneId(1), b"half of what it wanted")?;
            match self {
                Self::Panics => panic!("a request that panics"),
                Self::Unreadable => Err(StoreError::corrupt("a row that cannot be read").into()),
                Self::Constraint => {
                    write_state.put_policy(1, 1, b"")?;
                    write_state.lane_mut(LaneId(1))?.seq.0 = 0;
                    write_state.add_command(LaneId(1), b"under a number that is taken").map(Ok)
                }
            }
        }
    }

    type Response<R> = oneshot::Receiver<Result<<R as Request>::Response, StoreError>>;

    fn job<R: Request>(request: R) -> (Box<dyn Job>, Response<R>) {
        let (reply, answer) = oneshot::channel();
        let WriterMessage::Write(job) = WriterMessage::of(request, reply) else { unreachable!() };
        (job, answer)
    }

    #[test]
    fn request_that_fails_takes_no_other_with_it() {
        let conn = Connection::open_in_memory().unwrap();
        migrate(&conn).unwrap();
        let signals = Signals::default();
        let write_state = WriteState::new(&conn).unwrap();
        let mut writer = Writer { conn: &conn, write_state, signals: &signals, presence: None };
        let post = || job(PostRows { lane: LaneId(1), commands: vec![b"command".to_vec()] });
        for fault in [Faulty::Panics, Faulty::Unreadable, Faulty::Constraint] {
            let (before, mut before_answer) = post();
            let (faulty, mut faulty_answer) = job(fault);
            let (after, mut after_answer) = post();
            writer.write(&mut vec![before, faulty, after]);
            before_answer.try_recv().unwrap().unwrap();
            let error = faulty_answer.try_recv().unwrap().unwrap_err();
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
            after_answer.try_recv().unwrap().unwrap();
        }
        let commands: i64 = conn.query_row("SELECT count(*) FROM inbox", [], |row| row.get(0)).unwrap();
        let last: i64 = conn.query_row("SELECT seq FROM lane", [], |row| row.get(0)).unwrap();
        assert_eq!((commands, last), (6, 6));
    }

    #[test]
    fn all_that_waits_is_taken_up_to_a_bound() {
        let (send, mut messages) = mpsc::channel(16);
        let send_bytes = |bytes: usize| {
            let (reply, _) = oneshot::channel();
            let post = PostRows { lane: LaneId(1), commands: vec![vec![0; bytes]] };
            assert!(send.try_send(WriterMessage::of(post, reply)).is_ok());
        };
        for bytes in [10, 10, TRANSACTION_MAX.bytes, 10] {
            send_bytes(bytes);
        }
        let mut batch = Vec::new();
        assert!(!take_waiting(&mut messages, &mut batch));
        assert_eq!(batch.len(), 3);
        batch.clear();
        assert!(!take_waiting(&mut messages, &mut batch));
        assert_eq!(batch.len(), 1);
        drop(send);
        assert!(take_waiting(&mut messages, &mut batch));
    }
}

//! The port `Archive`: finished tasks as plain rows, for people and their tools. Tasklane itself never reads
//! them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tasklane_core::task::{AttemptOutcome, AttemptRecord, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::{Archive, ArchiveError, ArchivedTask, StoreError};
use tokio::sync::OnceCell;
use tokio_postgres::types::ToSql;

use crate::columns::Column;
use crate::connect::{Database, PostgresOptions, Purpose};
use crate::error::CallError;
use crate::migrate::{self, migrate};

/// Most bytes that one statement writes, and most tasks.
const BYTES_MAX: usize = 4 << 20;
const TASKS_MAX: usize = 1_000;

/// An archive in a schema of a database: the tables `archived_task` and `archived_attempt`. The schema may be
/// that of a store, or any other.
#[derive(Debug)]
pub struct PostgresArchive {
    database: Database,
    /// The tables are there.
    made: OnceCell<()>,
}

impl PostgresArchive {
    /// The fewest connections that an archive works with.
    pub const CONNECTIONS_MIN: usize = Purpose::Archive.connections_min();

    /// Opens the archive that a URL names, as [`PostgresStore::connect`](crate::PostgresStore::connect) does,
    /// and creates its tables. An archive that cannot be reached is opened too: its tasks wait, and
    /// everything else continues.
    pub async fn connect(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let archive =
            Self { database: Database::from_url(url, options, Purpose::Archive)?, made: OnceCell::new() };
        match archive.make().await {
            Err(error) if !error.is_retryable() => Err(error),
            Ok(()) | Err(_) => Ok(archive),
        }
    }

    async fn make(&self) -> Result<(), StoreError> {
        let make = async || {
            self.database.probe().await?;
            migrate(&self.database, &migrate::ARCHIVE).await
        };
        self.made.get_or_try_init(make).await.copied()
    }

    /// Closes the connections. The archive takes no tasks afterwards.
    pub fn close(&self) {
        self.database.close();
    }
}

#[async_trait]
impl Archive for PostgresArchive {
    async fn put(&self, tasks: &[ArchivedTask]) -> Result<(), ArchiveError> {
        self.make().await.map_err(|error| ArchiveError::Unavailable { source: error.into() })?;
        let mut rest = tasks;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(TASKS_MAX).take_while(|task| {
                let first = bytes == 0;
                bytes += task_bytes(task);
                first || bytes <= BYTES_MAX
            });
            let (batch, after) = rest.split_at(fits.count());
            let rows = Rows::of(batch);
            let written = self.database.execute(&self.database.statements.archive, &rows.params()).await;
            written.map_err(|error: CallError| ArchiveError::Unavailable { source: error.into() })?;
            rest = after;
        }
        Ok(())
    }
}

fn task_bytes(archived: &ArchivedTask) -> usize {
    let body = archived.task.row.body.as_ref().map_or(0, |body| body.bytes());
    let result = archived.task.result.as_ref().map_or(0, tasklane_core::task::TaskResult::bytes);
    512 + body + result + 256 * archived.attempts.len()
}

macro_rules! rows {
    ($($column:ident: $kind:ident,)*) => {
        /// Columns in the order of the statement's parameters.
        struct Rows {
            $($column: Column,)*
        }

        impl Rows {
            fn new() -> Self {
                Self { $($column: Column::$kind(),)* }
            }

            fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
                vec![$(&self.$column,)*]
            }
        }
    };
}

rows! {
    attempt_task: uuids,
    attempt_created_at: bigints,
    attempt_number: bigints,
    attempt_outcome: texts,
    attempt_worker: texts,
    attempt_session: uuids,
    attempt_scheduled_at: bigints,
    attempt_started_at: bigints,
    attempt_ended_at: bigints,
    attempt_error_code: texts,
    attempt_error_message: texts,
    id: uuids,
    namespace: texts,
    queue: texts,
    task_type: texts,
    name: texts,
    priority: smallints,
    status: texts,
    attempts: bigints,
    created_at: bigints,
    scheduled_at: bigints,
    started_at: bigints,
    finished_at: bigints,
    worker: texts,
    error_code: texts,
    error_message: texts,
    result_code: integers,
    result_message: texts,
    result: texts,
    payload: texts,
    metadata: texts,
    request_id: texts,
    parent: uuids,
    schedule: texts,
}

impl Rows {
    fn of(tasks: &[ArchivedTask]) -> Self {
        let mut rows = Self::new();
        for task in tasks {
            rows.add(task);
        }
        rows
    }

    fn add(&mut self, archived: &ArchivedTask) {
        let (row, result) = (&archived.task.row, archived.task.result.as_ref());
        let (head, body, state) = (&row.head, row.body.as_deref(), &row.state);
        self.id.uuid(row.id.0);
        self.namespace.text(head.queue.namespace.as_str());
        self.queue.text(head.queue.queue.as_str());
        self.task_type.text(head.task_type.as_str());
        self.name.maybe_text(body.map(|body| body.name.as_str()));
        self.priority.smallint(i16::from(head.priority.get()));
        self.status.text(state.status.as_str());
        self.attempts.bigint(i64::from(state.attempt.0));
        self.created_at.bigint(micros(state.created_at));
        self.scheduled_at.maybe_bigint(state.scheduled_at.map(micros));
        self.started_at.maybe_bigint(state.started_at.map(micros));
        self.finished_at.maybe_bigint(state.finished_at.map(micros));
        self.worker.maybe_text(state.worker.as_ref().map(tasklane_core::id::Name::as_str));
        self.error_code.maybe_text(state.error.as_ref().map(|error| error.code.as_str()));
        self.error_message.maybe_text(state.error.as_ref().map(|error| error.message.as_str()));
        self.result_code.maybe_integer(result.map(|result| result.code));
        self.result_message
            .maybe_text(result.map(|result| result.message.as_str()).filter(|m| !m.is_empty()));
        self.result.maybe_text(result.map(|result| result.data.as_str()).filter(|data| !data.is_empty()));
        self.payload.maybe_text(body.map(|body| body.payload.as_str()));
        let metadata = body.map(|body| json(&body.metadata));
        self.metadata.maybe_text(metadata.as_deref());
        self.request_id.maybe_text(body.and_then(|body| body.request_id.as_deref()));
        self.parent.maybe_uuid(body.and_then(|body| body.parent).map(|id| id.0));
        self.schedule.maybe_text(body.and_then(|body| body.schedule.as_deref()));
        let last = state.last_attempt();
        // The attempt that ended the task is part of the task's row. An attempt that ended earlier has a row
        // of its own.
        let last =
            last.iter().filter(|last| archived.attempts.iter().all(|other| other.number != last.number));
        for attempt in archived.attempts.iter().chain(last) {
            self.add_attempt(row, attempt);
        }
    }

    fn add_attempt(&mut self, task: &TaskRow, attempt: &AttemptRecord) {
        self.attempt_task.uuid(task.id.0);
        self.attempt_created_at.bigint(micros(task.state.created_at));
        self.attempt_number.bigint(i64::from(attempt.number.0));
        self.attempt_outcome.maybe_text(attempt.outcome.map(outcome));
        self.attempt_worker.maybe_text(attempt.worker.as_ref().map(tasklane_core::id::Name::as_str));
        self.attempt_session.maybe_uuid(attempt.session.map(|session| session.0));
        self.attempt_scheduled_at.bigint(micros(attempt.scheduled_at));
        self.attempt_started_at.maybe_bigint(attempt.started_at.map(micros));
        self.attempt_ended_at.maybe_bigint(attempt.ended_at.map(micros));
        self.attempt_error_code.maybe_text(attempt.error.as_ref().map(|error| error.code.as_str()));
        self.attempt_error_message.maybe_text(attempt.error.as_ref().map(|error| error.message.as_str()));
    }
}

/// JSON that the server takes: without zeros, which it cannot hold even as escapes.
fn json(metadata: &BTreeMap<String, String>) -> String {
    let plain = |text: &String| text.replace('\0', "\u{fffd}");
    let metadata: BTreeMap<String, String> = metadata.iter().map(|(k, v)| (plain(k), plain(v))).collect();
    serde_json::to_string(&metadata).expect("texts are JSON")
}

/// Microseconds since 1970, between the years -2000 and 10000: the server takes no others.
fn micros(time: Timestamp) -> i64 {
    time.as_micros().clamp(-125_000_000_000_000_000, 253_000_000_000_000_000)
}

fn outcome(outcome: AttemptOutcome) -> &'static str {
    match outcome {
        AttemptOutcome::Success => "SUCCESS",
        AttemptOutcome::Failed => "FAILED",
        AttemptOutcome::TimedOut => "TIMED_OUT",
        AttemptOutcome::Cancelled => "CANCELLED",
        AttemptOutcome::Lost => "LOST",
        AttemptOutcome::HandedBack => "HANDED_BACK",
    }
}

//! The port `Logs`: output lies in the same schema as the tasks.

use async_trait::async_trait;
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::time::Timestamp;
use tasklane_ports::{LogChunk, LogPosition, LogStream, Logs, StoreError};
use tokio_postgres::Row;

use crate::columns::Column;
use crate::error::unexpected;
use crate::rows::{column, number};
use crate::store::PostgresStore;

/// Most bytes that one statement appends, and most chunks.
const APPEND_BYTES_MAX: usize = 4 << 20;
const APPEND_MAX: usize = 4 << 10;
/// Most chunks that one statement removes, and tasks that it looks for.
const REMOVE_MAX: usize = 1_000;

#[async_trait]
impl Logs for PostgresStore {
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        // In one order, so that two writers of the same chunks cannot wait for each other.
        let mut sorted: Vec<&LogChunk> = chunks.iter().collect();
        sorted.sort_by_key(|chunk| (chunk.task, chunk.position));
        let mut rest = sorted.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(APPEND_MAX).take_while(|chunk| {
                let first = bytes == 0;
                bytes += chunk.bytes.len() + 1;
                first || bytes <= APPEND_BYTES_MAX
            });
            let (batch, after) = rest.split_at(fits.count());
            self.append_batch(batch).await?;
            rest = after;
        }
        Ok(())
    }

    async fn read(
        &self,
        task: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        let (attempt, chunk) =
            after.map_or((-1, -1), |after| (i64::from(after.attempt.0), i64::from(after.number)));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows =
            self.database.read(&self.database.statements.logs, &[&task.0, &attempt, &chunk, &limit]).await?;
        rows.iter().map(|row| log_chunk(task, row)).collect()
    }

    async fn tail(&self, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.database.read(&self.database.statements.log_tail, &[&task.0, &limit]).await?;
        rows.iter().rev().map(|row| log_chunk(task, row)).collect()
    }

    async fn remove(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        let limit = i64::try_from(REMOVE_MAX).unwrap_or(i64::MAX);
        for tasks in tasks.chunks(REMOVE_MAX) {
            let ids = Column::of_uuids(tasks.iter().map(|task| task.0));
            loop {
                let removed =
                    self.database.execute(&self.database.statements.remove_logs, &[&ids, &limit]).await?;
                if removed < REMOVE_MAX as u64 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl PostgresStore {
    async fn append_batch(&self, chunks: &[&LogChunk]) -> Result<(), StoreError> {
        let (mut tasks, mut attempts, mut numbers) = (Column::uuids(), Column::bigints(), Column::bigints());
        let (mut streams, mut times, mut bytes) = (Column::smallints(), Column::bigints(), Column::byteas());
        for chunk in chunks {
            tasks.uuid(chunk.task.0);
            attempts.bigint(i64::from(chunk.position.attempt.0));
            numbers.bigint(i64::from(chunk.position.number));
            streams.smallint(i16::from(chunk.stream.code()));
            times.bigint(chunk.at.as_micros());
            bytes.bytea(&chunk.bytes);
        }
        let statement = &self.database.statements.append_logs;
        self.database.execute(statement, &[&tasks, &attempts, &numbers, &streams, &times, &bytes]).await?;
        Ok(())
    }
}

fn log_chunk(task: TaskId, row: &Row) -> Result<LogChunk, StoreError> {
    let small = |at| u32::try_from(number(row, at)?).map_err(unexpected);
    let stream: i16 = column(row, 2)?;
    Ok(LogChunk {
        task,
        position: LogPosition { attempt: AttemptNo(small(0)?), number: small(1)? },
        stream: u8::try_from(stream)
            .ok()
            .and_then(LogStream::from_code)
            .ok_or_else(|| unexpected(format!("a chunk of task {task} has stream {stream}")))?,
        at: Timestamp::from_micros(column(row, 3)?),
        bytes: column(row, 4)?,
    })
}

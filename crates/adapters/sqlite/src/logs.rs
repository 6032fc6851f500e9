//! The port `Logs`: output lies in the same file as the tasks, and is written in the same transactions.

use async_trait::async_trait;
use tasklane_core::id::TaskId;
use tasklane_ports::{LogChunk, LogPosition, Logs, StoreError};

use crate::query;
use crate::requests::AppendLogs;
use crate::retire::RemoveLogs;
use crate::store::Sqlite;

#[async_trait]
impl Logs for Sqlite {
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        if chunks.is_empty() {
            return Ok(());
        }
        self.write(AppendLogs(chunks.to_vec())).await
    }

    async fn read(
        &self,
        task: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        self.read(move |conn| query::logs(conn, task, after, limit)).await
    }

    async fn tail(&self, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError> {
        self.read(move |conn| query::log_tail(conn, task, limit)).await
    }

    async fn remove(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        let mut left = tasks;
        while !left.is_empty() {
            let done = self.write(RemoveLogs(left.to_vec())).await?;
            left = &left[done..];
        }
        Ok(())
    }
}

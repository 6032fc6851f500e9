//! Decoding of stored rows.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tasklane_core::id::{Name, QueueKey, TaskId};
use tasklane_core::task::{TaskHead, TaskRow};
use tasklane_ports::{StoreError, codec};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::unexpected;
use crate::keys::seq_of;

/// A column of a row.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(unexpected)
}

/// A column with a number that is never negative.
pub(crate) fn number(row: &Row, at: usize) -> Result<u64, StoreError> {
    column::<i64>(row, at).map(i64::cast_unsigned)
}

pub(crate) fn task_id(row: &Row, at: usize) -> Result<TaskId, StoreError> {
    column::<Uuid>(row, at).map(TaskId)
}

pub(crate) fn name(row: &Row, at: usize) -> Result<Name, StoreError> {
    Name::new(column(row, at)?).map_err(unexpected)
}

/// A queue's namespace and name, from two columns.
pub(crate) fn queue_key(row: &Row, at: usize) -> Result<QueueKey, StoreError> {
    Ok(QueueKey::new(name(row, at)?, name(row, at + 1)?))
}

/// Heads decoded so far. Most tasks of a line have the same one: it is decoded once, and kept once.
#[derive(Default)]
pub(crate) struct Heads(FxHashMap<Vec<u8>, Arc<TaskHead>>);

impl Heads {
    /// From columns with key, id, state, head and body.
    pub(crate) fn task_row(&mut self, row: &Row, at: usize) -> Result<TaskRow, StoreError> {
        let head: &[u8] = column(row, at + 3)?;
        let head = if let Some(known) = self.0.get(head) {
            Arc::clone(known)
        } else {
            let read = Arc::new(codec::decode(head)?);
            self.0.insert(head.to_owned(), Arc::clone(&read));
            read
        };
        let body: Option<&[u8]> = column(row, at + 4)?;
        Ok(TaskRow {
            id: task_id(row, at + 1)?,
            seq: seq_of(column(row, at)?),
            head,
            body: body.map(codec::decode).transpose()?.map(Arc::new),
            state: codec::decode(column(row, at + 2)?)?,
        })
    }

    pub(crate) fn task_rows(rows: &[Row]) -> Result<Vec<TaskRow>, StoreError> {
        let mut heads = Self::default();
        rows.iter().map(|row| heads.task_row(row, 0)).collect()
    }
}

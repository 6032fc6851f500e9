//! Retention of finished tasks and their output. A stripped task's body is empty and has size 0, which no
//! other has.

use rusqlite::{Connection, params};
use tasklane_core::id::TaskId;
use tasklane_core::task::TaskState;
use tasklane_core::time::Timestamp;
use tasklane_ports::{ExpiredQuery, ExpiredTasks, StoreError, TaskCursor, codec};

use crate::error::Failure;
use crate::load::task_id;
use crate::requests::{Request, Size};
use crate::write_state::WriteState;

/// Most tasks that one write retires. Each may have a body of 1 MiB, whose pages have to be read.
pub(crate) const RETIRED_MAX: usize = 128;
/// Most chunks, and tasks without any, that one write removes.
const REMOVED_MAX: usize = 512;
/// Pages that one write gives back to the disk, each of which may have to change places with another: see the
/// statement.
pub(crate) const RELEASED_MAX: usize = 256;

/// Reads finished tasks, the oldest first, through the index of creation times that lists read in the other
/// direction.
pub(crate) fn expired(conn: &Connection, retire: &ExpiredQuery) -> Result<ExpiredTasks, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT t.created_at, t.id, t.place IS NULL, t.state, s.body_bytes > 0
         FROM task t INDEXED BY task_created CROSS JOIN spec s ON s.key = t.key
         WHERE (t.created_at, t.id) > (?1, ?2) AND t.created_at < ?3
         ORDER BY t.created_at, t.id",
    )?;
    let after =
        retire.after.map_or((i64::MIN, [0; 16]), |at| (at.created_at.as_micros(), *at.id.0.as_bytes()));
    let mut found = statement.query(params![after.0, after.1, retire.end().as_micros()])?;
    let (mut expired, mut last) = (ExpiredTasks::default(), None);
    let mut looks_left = retire.limit.max(1);
    while let Some(row) = found.next()? {
        if looks_left == 0 {
            expired.next = last;
            break;
        }
        looks_left -= 1;
        let id = task_id(row, 1)?;
        last = Some(TaskCursor { created_at: Timestamp::from_micros(row.get(0)?), id });
        // Only a finished task has no place.
        if row.get(2)? {
            let state: TaskState = codec::decode(row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?)?;
            expired.judge(retire, id, &state, row.get(4)?);
        }
    }
    Ok(expired)
}

/// A part of `Store::retire`.
pub(crate) struct RetireRows {
    pub(crate) tasks: Vec<TaskId>,
    /// Else they only lose their data.
    pub(crate) forget: bool,
}

impl Request for RetireRows {
    type Response = ();

    fn size(&self) -> Size {
        // Rows of `task`, `spec`, `result`, an attempt and an index or two; pages that change, not what is in
        // them.
        Size { ops: 6 * self.tasks.len(), bytes: self.tasks.len() << 12 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<(), StoreError>, Failure> {
        for id in &self.tasks {
            let Some(found) = write_state.task(*id)?.filter(|found| found.version.status.is_final()) else {
                continue;
            };
            write_state.strip_task(*id, found)?;
            if self.forget {
                write_state.forget_task(found)?;
            }
        }
        Ok(Ok(()))
    }
}

/// Gives some of the free pages back to the disk. Answers whether more are left.
pub(crate) struct ReleasePages;

impl Request for ReleasePages {
    type Response = bool;

    fn size(&self) -> Size {
        Size { ops: RELEASED_MAX, bytes: RELEASED_MAX << 12 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<bool, StoreError>, Failure> {
        Ok(Ok(write_state.release_pages()?))
    }
}

/// `Logs::remove`, as much of it as one transaction should take. Answers how many tasks, from the first on,
/// have no output left.
pub(crate) struct RemoveLogs(pub(crate) Vec<TaskId>);

impl Request for RemoveLogs {
    type Response = usize;

    fn size(&self) -> Size {
        Size { ops: REMOVED_MAX, bytes: REMOVED_MAX << 12 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<usize, StoreError>, Failure> {
        let mut left = REMOVED_MAX;
        for (done, task) in self.0.iter().enumerate() {
            if left == 0 {
                return Ok(Ok(done));
            }
            let removed = write_state.drop_logs(*task, left)?;
            if removed == left {
                // More output of the task may be left.
                return Ok(Ok(done));
            }
            left -= removed.max(1);
        }
        Ok(Ok(self.0.len()))
    }
}

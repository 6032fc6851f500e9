//! Retention of finished tasks.

use std::collections::BTreeMap;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::time::Timestamp;
use tasklane_ports::{ExpiredQuery, ExpiredTasks, StoreError, TaskCursor, codec};
use uuid::Uuid;

use crate::columns::Column;
use crate::rows::{column, task_id};
use crate::store::PostgresStore;

/// Most tasks that one transaction retires. It holds up submits to the same lane.
const RETIRED_MAX: usize = 500;

impl PostgresStore {
    /// Reads finished tasks, the oldest first, through the index of creation times that lists read in the
    /// other direction.
    pub(crate) async fn expired_page(&self, retire: &ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        let (after, id) =
            retire.after.map_or((i64::MIN, Uuid::nil()), |at| (at.created_at.as_micros(), at.id.0));
        let limit = retire.limit.max(1);
        let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let end = retire.end().as_micros();
        let rows =
            self.database.read(&self.database.statements.expired, &[&after, &id, &end, &one_more]).await?;
        let mut expired = ExpiredTasks::default();
        for row in rows.iter().take(limit) {
            if let Some(state) = column::<Option<&[u8]>>(row, 2)? {
                expired.judge(retire, task_id(row, 1)?, &codec::decode(state)?, column(row, 3)?);
            }
        }
        if rows.len() > limit {
            let last = &rows[limit - 1];
            let created_at = Timestamp::from_micros(column(last, 0)?);
            expired.next = Some(TaskCursor { created_at, id: task_id(last, 1)? });
        }
        Ok(expired)
    }

    /// Strips tasks and forgets others, lane by lane.
    pub(crate) async fn retire_tasks(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        for (tasks, forget) in [(strip, false), (forget, true)] {
            let mut lanes: BTreeMap<LaneId, Vec<TaskId>> = BTreeMap::new();
            for id in tasks {
                lanes.entry(id.lane()).or_default().push(*id);
            }
            for (lane, tasks) in lanes {
                for tasks in tasks.chunks(RETIRED_MAX) {
                    let ids = Column::of_uuids(tasks.iter().map(|id| id.0));
                    let statement = &self.database.statements.retire;
                    self.database.query(statement, &[&i32::from(lane.0), &ids, &forget]).await?;
                }
            }
        }
        Ok(())
    }
}

//! Queries: tasks by id, lists, counts, policies.

use rustc_hash::FxHashMap;
use tasklane_core::id::{Name, QueueKey, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::task::AttemptRecord;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    AttemptList, CountList, QueueCounts, StoreError, TaskCursor, TaskList, TaskPage, TaskView, codec,
};
use tokio_postgres::types::ToSql;

use crate::columns::Column;
use crate::error::unexpected;
use crate::rows::{Heads, column, number, queue_key, task_id};
use crate::store::PostgresStore;
use crate::write_lane::QueueNo;

/// Most tasks read for one page.
const LOOKS_MAX: usize = 20_000;
/// Most tasks in one read,
const CHUNK_MAX: usize = 1_000;
/// and in one read with the bodies that a filter needs, which may be large.
const BODIES_MAX: usize = 32;
/// About how many bytes of bodies are read for one page.
const LIST_BYTES_MAX: usize = 32 << 20;
/// Larger bodies are left out of lists.
const LIST_BODY_MAX: i32 = 4 << 10;
/// Most tasks in one read by id: their bodies may be large.
const VIEWS_MAX: usize = 1_000;

impl PostgresStore {
    pub(crate) async fn policy_of(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        let (namespace, name) = (queue.namespace.as_str(), queue.queue.as_str());
        let rows = self.database.read(&self.database.statements.policy, &[&namespace, &name]).await?;
        let Some(row) = rows.first() else { return Ok(VersionedPolicy::default()) };
        Ok(VersionedPolicy { version: number(row, 0)?, policy: codec::decode(column(row, 1)?)? })
    }

    pub(crate) async fn views(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        let mut views = Vec::with_capacity(ids.len());
        for ids in ids.chunks(VIEWS_MAX) {
            let asked = Column::of_uuids(ids.iter().map(|id| id.0));
            let rows = self.database.read(&self.database.statements.views, &[&asked]).await?;
            let (mut found, mut heads) = (FxHashMap::default(), Heads::default());
            for row in &rows {
                let result: Option<&[u8]> = column(row, 5)?;
                let view =
                    TaskView { row: heads.task_row(row, 0)?, result: result.map(codec::decode).transpose()? };
                found.insert(view.row.id, view);
            }
            views.extend(ids.iter().map(|id| found.get(id).cloned()));
        }
        Ok(views)
    }

    pub(crate) async fn attempts_of(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        let (after, limit) = (i64::from(list.after.0), i64::try_from(list.limit).unwrap_or(i64::MAX));
        let rows =
            self.database.read(&self.database.statements.attempts, &[&list.task.0, &after, &limit]).await?;
        rows.iter().map(|row| codec::decode(column(row, 0)?)).collect()
    }

    pub(crate) async fn queue_counts(&self, list: &CountList) -> Result<Vec<QueueCounts>, StoreError> {
        // No name is empty.
        let (namespace, name) =
            list.after.as_ref().map_or(("", ""), |after| (after.namespace.as_str(), after.queue.as_str()));
        let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
        let rows = self.database.read(&self.database.statements.counts, &[&namespace, &name, &limit]).await?;
        let counts = rows.iter().map(|row| {
            let mut by_status = [0; 8];
            let (statuses, counts): (Vec<i16>, Vec<i64>) = (column(row, 2)?, column(row, 3)?);
            for (status, count) in statuses.into_iter().zip(counts) {
                let of_status = usize::try_from(status).ok().and_then(|status| by_status.get_mut(status));
                let of_status = of_status.ok_or_else(|| unexpected(format!("tasks have status {status}")))?;
                // A wrong count must not look huge.
                *of_status = u64::try_from(count).unwrap_or(0);
            }
            Ok(QueueCounts { queue: queue_key(row, 0)?, by_status })
        });
        counts.collect()
    }

    /// Tasks newest first. Parents and schedules have their index, the server filters queues and statuses,
    /// and this loop checks the other conditions on rows, a bounded number for each page.
    pub(crate) async fn page(&self, list: &TaskList) -> Result<TaskPage, StoreError> {
        let filter = &list.filter;
        let nothing = TaskPage { tasks: Vec::new(), next: None };
        let Some(queues) = self.queues_named(filter.namespace.as_ref(), filter.queue.as_ref()).await? else {
            return Ok(nothing);
        };
        let statuses: Vec<i32> = filter.statuses.iter().map(|status| i32::from(status.code())).collect();
        let statuses = (!statuses.is_empty()).then_some(statuses);
        let in_body = filter.name.is_some() || !filter.metadata.is_empty();
        // An index finds parents and schedules, but the final check needs the body.
        let told_by_body = in_body || filter.parent.is_some() || filter.schedule.is_some();
        let bodies = if told_by_body { i32::MAX } else { LIST_BODY_MAX };
        let chunk_max = if told_by_body { BODIES_MAX } else { CHUNK_MAX };
        let statements = &self.database.statements;
        let parent = filter.parent.map(|parent| parent.0);
        let schedule = filter.schedule.as_ref().map(String::as_bytes);
        let (statement, key): (_, Option<&(dyn ToSql + Sync)>) = match (&parent, &schedule) {
            (Some(parent), _) => (&statements.list_of_parent, Some(parent)),
            (None, Some(schedule)) => (&statements.list_of_schedule, Some(schedule)),
            (None, None) => (&statements.list, None),
        };
        let start = filter.created_from.map_or(i64::MIN, Timestamp::as_micros);
        let before_time = filter.created_before.map(|time| (time.as_micros(), uuid::Uuid::nil()));
        let cursor = list.after.map(|after| (after.created_at.as_micros(), after.id.0));
        let mut end =
            [before_time, cursor].into_iter().flatten().min().unwrap_or((i64::MAX, uuid::Uuid::max()));

        let limit = list.limit.max(1);
        let (mut tasks, mut heads, mut last) = (Vec::new(), Heads::default(), None);
        let (mut looks, mut bytes) = (0, 0);
        let mut chunk = limit.saturating_add(1).min(chunk_max);
        loop {
            let chunk_limit = i64::try_from(chunk).unwrap_or(i64::MAX);
            let mut params: Vec<&(dyn ToSql + Sync)> =
                vec![&bodies, &start, &end.0, &end.1, &queues, &statuses, &chunk_limit];
            params.extend(key);
            let rows = self.database.read(statement, &params).await?;
            for row in &rows {
                if tasks.len() == limit || looks >= LOOKS_MAX || bytes >= LIST_BYTES_MAX {
                    return Ok(TaskPage { tasks, next: last });
                }
                looks += 1;
                end = (column(row, 0)?, column(row, 1)?);
                last = Some(TaskCursor { created_at: Timestamp::from_micros(end.0), id: task_id(row, 1)? });
                if !column::<bool>(row, 2)? {
                    continue;
                }
                let mut task = heads.task_row(row, 3)?;
                let body_bytes = task.body.as_ref().map_or(0, |body| body.bytes());
                bytes += body_bytes;
                if filter.matches(&task) {
                    task.body =
                        task.body.filter(|_| i32::try_from(body_bytes).is_ok_and(|b| b <= LIST_BODY_MAX));
                    tasks.push(task);
                }
            }
            if rows.len() < chunk {
                return Ok(TaskPage { tasks, next: None });
            }
            chunk = chunk.saturating_mul(2).min(chunk_max);
        }
    }

    /// The numbers of the queues that a filter names: `Some(None)` for all, `None` where there is no such
    /// queue.
    async fn queues_named(
        &self,
        namespace: Option<&Name>,
        queue: Option<&Name>,
    ) -> Result<Option<Option<Vec<QueueNo>>>, StoreError> {
        if namespace.is_none() && queue.is_none() {
            return Ok(Some(None));
        }
        let (namespace, queue) = (namespace.map(Name::as_str), queue.map(Name::as_str));
        let rows = self.database.read(&self.database.statements.queues_named, &[&namespace, &queue]).await?;
        let found = rows.iter().map(|row| column(row, 0)).collect::<Result<Vec<QueueNo>, _>>()?;
        Ok((!found.is_empty()).then_some(Some(found)))
    }
}

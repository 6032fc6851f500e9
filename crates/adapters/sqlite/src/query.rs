//! Queries: tasks by id, lists, counts, policies, output.

use rusqlite::types::ToSql;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Rows, params};
use rustc_hash::FxHashSet;
use tasklane_core::id::{AttemptNo, CommitNo, Epoch, LaneId, OwnerId, QueueKey, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::task::AttemptRecord;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    AttemptList, CountList, LaneHead, LogChunk, LogPosition, LogStream, QueueCounts, StoreError, TaskCursor,
    TaskFilter, TaskList, TaskPage, TaskView, codec,
};

use crate::error::Failure;
use crate::load::{Heads, queue_key, task_columns, task_id};
use crate::write_state::counts_of;

/// Most work for one page, some tens of milliseconds. An index entry costs 1,
const LIST_WORK_MAX: usize = 50_000;
/// reading a task's status this,
const STATUS_WORK: usize = 2;
/// and reading all of a task this.
const TASK_WORK: usize = 10;
/// About how many bytes of bodies are read for one page, where the filter needs them.
const LIST_BYTES_MAX: usize = 32 << 20;
/// Larger bodies are left out of lists.
const LIST_BODY_MAX: i64 = 4 << 10;

pub(crate) fn lane_head(conn: &Connection, lane: LaneId) -> Result<LaneHead, Failure> {
    let mut statement =
        conn.prepare_cached("SELECT epoch, owner, commit_no, failures FROM lane WHERE lane = ?1")?;
    let head = statement.query_row([lane.0], |row| {
        Ok(LaneHead {
            epoch: Epoch(row.get::<_, i64>(0)?.cast_unsigned()),
            owner: row.get::<_, Option<[u8; 16]>>(1)?.map(|id| OwnerId(uuid::Uuid::from_bytes(id))),
            commit: CommitNo(row.get::<_, i64>(2)?.cast_unsigned()),
            failures: row.get(3)?,
        })
    });
    let unclaimed = LaneHead { epoch: Epoch(0), owner: None, commit: CommitNo(0), failures: 0 };
    Ok(head.optional()?.unwrap_or(unclaimed))
}

pub(crate) fn policy(conn: &Connection, queue: &QueueKey) -> Result<VersionedPolicy, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT p.version, p.policy FROM queue q CROSS JOIN policy p ON p.queue = q.queue
         WHERE q.namespace = ?1 AND q.name = ?2",
    )?;
    let name = [queue.namespace.as_str(), queue.queue.as_str()];
    let found =
        statement.query_row(name, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))).optional()?;
    Ok(match found {
        Some((version, policy)) => {
            VersionedPolicy { version: version.cast_unsigned(), policy: codec::decode(&policy)? }
        }
        None => VersionedPolicy::default(),
    })
}

pub(crate) fn tasks(conn: &Connection, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT t.key, t.id, t.state, s.head, CASE WHEN s.body_bytes > 0 THEN s.body END, r.result
         FROM task t CROSS JOIN spec s ON s.key = t.key LEFT JOIN result r ON r.key = t.key WHERE t.id = ?1",
    )?;
    let (mut views, mut heads) = (Vec::with_capacity(ids.len()), Heads::default());
    for id in ids {
        let mut found = statement.query([id.0.as_bytes()])?;
        views.push(match found.next()? {
            Some(row) => {
                let result = row.get_ref(5)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
                let result = result.map(codec::decode).transpose()?;
                Some(TaskView { row: heads.task_row(row)?, result })
            }
            None => None,
        });
    }
    Ok(views)
}

pub(crate) fn attempts(conn: &Connection, list: AttemptList) -> Result<Vec<AttemptRecord>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT a.record FROM task t CROSS JOIN attempt a ON a.key = t.key
         WHERE t.id = ?1 AND a.number > ?2 ORDER BY a.number LIMIT ?3",
    )?;
    let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
    let mut found = statement.query(params![list.task.0.as_bytes(), list.after.0, limit])?;
    let mut attempts = Vec::new();
    while let Some(row) = found.next()? {
        attempts.push(codec::decode(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)?);
    }
    Ok(attempts)
}

pub(crate) fn counts(conn: &Connection, list: &CountList) -> Result<Vec<QueueCounts>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT s0, s1, s2, s3, s4, s5, s6, s7, q.namespace, q.name
         FROM queue q CROSS JOIN counts c ON c.queue = q.queue
         WHERE (q.namespace, q.name) > (?1, ?2) AND s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 > 0
         ORDER BY q.namespace, q.name LIMIT ?3",
    )?;
    // No name is empty.
    let (namespace, name) =
        list.after.as_ref().map_or(("", ""), |after| (after.namespace.as_str(), after.queue.as_str()));
    let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
    let mut found = statement.query(params![namespace, name, limit])?;
    let mut counts = Vec::new();
    while let Some(row) = found.next()? {
        counts.push(QueueCounts { queue: queue_key(row, 8)?, by_status: counts_of(row)? });
    }
    Ok(counts)
}

/// Tasks newest first. Parents and schedules have their index, index entries name the queue, and this loop
/// checks the other conditions on rows, a bounded number for each page.
pub(crate) fn list(conn: &Connection, list: &TaskList) -> Result<TaskPage, Failure> {
    let filter = &list.filter;
    let Some(queues) = queues(conn, filter)? else { return Ok(TaskPage { tasks: Vec::new(), next: None }) };
    let limit = list.limit.max(1);
    let in_body = filter.name.is_some()
        || filter.parent.is_some()
        || filter.schedule.is_some()
        || !filter.metadata.is_empty();
    let bodies = if in_body { i64::MAX } else { LIST_BODY_MAX };
    let mut task =
        conn.prepare_cached(task_columns!("task t CROSS JOIN spec s ON s.key = t.key WHERE t.key = ?2"))?;
    let mut status = conn.prepare_cached("SELECT status FROM task WHERE key = ?1")?;
    let (mut tasks, mut heads) = (Vec::new(), Heads::default());
    let (mut work, mut bytes, mut last) = (0, 0, None);
    let mut entries = entries(conn, list)?;
    let mut entries = entries.raw_query();
    while let Some(entry) = entries.next()? {
        if tasks.len() == limit || work >= LIST_WORK_MAX || bytes >= LIST_BYTES_MAX {
            return Ok(TaskPage { tasks, next: last });
        }
        work += 1;
        let key: i64 = entry.get(0)?;
        last = Some(TaskCursor { created_at: Timestamp::from_micros(entry.get(1)?), id: task_id(entry, 2)? });
        if queues.as_ref().is_some_and(|wanted| entry.get(3).is_ok_and(|queue: i64| !wanted.contains(&queue)))
        {
            continue;
        }
        if !filter.statuses.is_empty() {
            work += STATUS_WORK;
            let code = status.query_row([key], |row| row.get::<_, u8>(0))?;
            if !filter.statuses.iter().any(|status| status.code() == code) {
                continue;
            }
        }
        work += TASK_WORK;
        let mut found = task.query(params![bodies, key])?;
        while let Some(row) = found.next()? {
            let mut task = heads.task_row(row)?;
            let body_bytes = task.body.as_ref().map_or(0, |body| body.bytes());
            bytes += body_bytes;
            if filter.matches(&task) {
                task.body = task.body.filter(|_| i64::try_from(body_bytes).is_ok_and(|b| b <= LIST_BODY_MAX));
                tasks.push(task);
            }
        }
    }
    Ok(TaskPage { tasks, next: None })
}

/// The numbers of the queues that a filter names: `Some(None)` for all, `None` where there is no such queue.
#[expect(clippy::option_option, reason = "no condition and no such queue are different things")]
fn queues(conn: &Connection, filter: &TaskFilter) -> Result<Option<Option<FxHashSet<i64>>>, Failure> {
    let TaskFilter { namespace, queue, .. } = filter;
    if namespace.is_none() && queue.is_none() {
        return Ok(Some(None));
    }
    let mut statement = conn.prepare_cached(
        "SELECT queue FROM queue WHERE (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR name = ?2)",
    )?;
    let name = |name: &Option<tasklane_core::id::Name>| name.as_ref().map(|name| name.as_str().to_owned());
    let found = statement.query_map([name(namespace), name(queue)], |row| row.get(0))?;
    let found: FxHashSet<i64> = found.collect::<rusqlite::Result<_>>()?;
    Ok((!found.is_empty()).then_some(Some(found)))
}

/// Index entries (key, creation time, id, queue) in the order of the list, from where the page before ended.
fn entries<'c>(conn: &'c Connection, list: &TaskList) -> Result<CachedStatement<'c>, Failure> {
    let filter = &list.filter;
    // The end of the range: everything before the cursor, and before the time asked for.
    let before_time = filter.created_before.map(|time| (time.as_micros(), [0; 16]));
    let cursor = list.after.map(|after| (after.created_at.as_micros(), *after.id.0.as_bytes()));
    let end = [before_time, cursor].into_iter().flatten().min().unwrap_or((i64::MAX, [u8::MAX; 16]));
    let start = filter.created_from.map_or(i64::MIN, Timestamp::as_micros);
    let parent = filter.parent.map(|parent| *parent.0.as_bytes());
    let (sql, key): (&str, Option<&dyn ToSql>) = match (&parent, &filter.schedule) {
        (Some(parent), _) => (
            "SELECT key, created_at, id, NULL FROM child
             WHERE parent = ?4 AND created_at >= ?1 AND (created_at, id) < (?2, ?3)
             ORDER BY created_at DESC, id DESC",
            Some(parent),
        ),
        (None, Some(schedule)) => (
            "SELECT key, created_at, id, NULL FROM fired
             WHERE schedule = ?4 AND created_at >= ?1 AND (created_at, id) < (?2, ?3)
             ORDER BY created_at DESC, id DESC",
            Some(schedule),
        ),
        (None, None) => (
            "SELECT key, created_at, id, queue FROM task INDEXED BY task_created
             WHERE created_at >= ?1 AND (created_at, id) < (?2, ?3)
             ORDER BY created_at DESC, id DESC",
            None,
        ),
    };
    let mut statement = conn.prepare_cached(sql)?;
    statement.raw_bind_parameter(1, start)?;
    statement.raw_bind_parameter(2, end.0)?;
    statement.raw_bind_parameter(3, end.1)?;
    if let Some(key) = key {
        statement.raw_bind_parameter(4, key)?;
    }
    Ok(statement)
}

pub(crate) fn logs(
    conn: &Connection,
    task: TaskId,
    after: Option<LogPosition>,
    limit: usize,
) -> Result<Vec<LogChunk>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT attempt, number, stream, at, bytes FROM log
         WHERE task = ?1 AND (attempt, number) > (?2, ?3) ORDER BY attempt, number LIMIT ?4",
    )?;
    let (attempt, number) =
        after.map_or((-1, -1), |after| (i64::from(after.attempt.0), i64::from(after.number)));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    chunks(task, statement.query(params![task.0.as_bytes(), attempt, number, limit])?)
}

pub(crate) fn log_tail(conn: &Connection, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT attempt, number, stream, at, bytes FROM log
         WHERE task = ?1 ORDER BY attempt DESC, number DESC LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut chunks = chunks(task, statement.query(params![task.0.as_bytes(), limit])?)?;
    chunks.reverse();
    Ok(chunks)
}

fn chunks(task: TaskId, mut found: Rows<'_>) -> Result<Vec<LogChunk>, Failure> {
    let mut chunks = Vec::new();
    while let Some(row) = found.next()? {
        let stream = row.get(2)?;
        chunks.push(LogChunk {
            task,
            position: LogPosition { attempt: AttemptNo(row.get(0)?), number: row.get(1)? },
            stream: LogStream::from_code(stream)
                .ok_or_else(|| StoreError::corrupt(format!("a chunk of task {task} has stream {stream}")))?,
            at: Timestamp::from_micros(row.get(3)?),
            bytes: row.get(4)?,
        });
    }
    Ok(chunks)
}

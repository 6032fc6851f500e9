//! The owner's reads: pages of a lane's tasks, arrivals and records.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};
use rustc_hash::FxHashMap;
use tasklane_core::command::InboxRow;
use tasklane_core::commit::{RecordKey, RecordKind};
use tasklane_core::id::{LaneId, LineKey, Name, QueueKey, Seq, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::task::{TaskHead, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::{LoadQuery, StoreError, codec};

use crate::error::Failure;
use crate::keys::{self, IndexKey, seq_of};

/// The columns of a [`TaskRow`]. `?1` is the largest body to read; the body of a stripped task has size 0.
macro_rules! task_columns {
    ($from:literal) => {
        concat!(
            "SELECT t.key, t.id, t.state, s.head, CASE WHEN s.body_bytes BETWEEN 1 AND ?1 THEN s.body END FROM ",
            $from
        )
    };
}
pub(crate) use task_columns;

/// Answers one page.
pub(crate) fn load(conn: &Connection, load: &LoadQuery) -> Result<LanePage, Failure> {
    let lane = load.lane;
    let limit = load.limit.max(1);
    let page =
        PageQuery { conn, lane, limit, bodies: i64::try_from(load.body_bytes_max).unwrap_or(i64::MAX) };
    match &load.read {
        LaneRead::Cursor => Ok(LanePage::Cursor(last_seq(conn, lane)?)),
        LaneRead::Records { after } => page.records(after.as_ref()),
        LaneRead::InFlight { after } => {
            let from = after.map_or_else(|| keys::in_flight_start(lane), |id| keys::in_flight(lane, id));
            page.places(&from, &keys::places_end(lane))
        }
        LaneRead::Inbox { after } => page.inbox(*after),
        LaneRead::Lines { after } => page.lines(*after),
        LaneRead::Line { line, after } => {
            let from =
                after.map_or_else(|| keys::line_start(lane, *line), |order| keys::ready(lane, *line, order));
            page.places(&from, &keys::line_end(lane, *line))
        }
        LaneRead::Delayed { after } => {
            let from =
                after.map_or_else(|| keys::delayed_start(lane), |(due, seq)| keys::delayed(lane, due, seq));
            page.places(&from, &keys::in_flight_start(lane))
        }
        LaneRead::Expiring { until, after } => page.expiring(*until, *after),
        LaneRead::Arrivals { after } => page.arrivals(*after),
        LaneRead::Tasks { ids } => page.tasks(ids),
        LaneRead::Policies { after } => policies(conn, *after, limit),
    }
}

/// The highest number given out in a lane.
fn last_seq(conn: &Connection, lane: LaneId) -> Result<Seq, Failure> {
    let mut statement = conn.prepare_cached("SELECT seq FROM lane WHERE lane = ?1")?;
    let seq = statement.query_row([lane.0], |row| row.get::<_, i64>(0)).optional()?;
    Ok(Seq(seq.map_or(0, i64::cast_unsigned)))
}

struct PageQuery<'c> {
    conn: &'c Connection,
    lane: LaneId,
    limit: usize,
    bodies: i64,
}

impl PageQuery<'_> {
    /// One row more than the page holds: whether there is more.
    fn one_more(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX).saturating_add(1)
    }

    fn cut<T>(&self, mut rows: Vec<T>) -> (Vec<T>, bool) {
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        (rows, more)
    }

    /// Tasks whose place is between two, in the order of their places.
    fn places(&self, after: &IndexKey, before: &IndexKey) -> Result<LanePage, Failure> {
        let mut statement = self.conn.prepare_cached(task_columns!(
            "task t INDEXED BY task_place CROSS JOIN spec s ON s.key = t.key
             WHERE t.place > ?2 AND t.place < ?3 ORDER BY t.place LIMIT ?4"
        ))?;
        let rows = task_rows(
            &mut statement,
            params![self.bodies, after.as_slice(), before.as_slice(), self.one_more()],
        )?;
        let (rows, more) = self.cut(rows);
        Ok(LanePage::Tasks { rows, more })
    }

    /// The first ready task of each line. From the head of one line a single step leads to the next, however
    /// many tasks lie between.
    fn lines(&self, after: Option<LineKey>) -> Result<LanePage, Failure> {
        let mut next = self.conn.prepare_cached(
            "SELECT place, key FROM task INDEXED BY task_place
             WHERE place > ?1 AND place < ?2 ORDER BY place LIMIT 1",
        )?;
        let mut task = self
            .conn
            .prepare_cached(task_columns!("task t CROSS JOIN spec s ON s.key = t.key WHERE t.key = ?2"))?;
        let mut from =
            after.map_or_else(|| keys::ready_start(self.lane), |line| keys::line_end(self.lane, line));
        let end = keys::delayed_start(self.lane);
        let (mut rows, mut heads, mut more) = (Vec::new(), Heads::default(), false);
        loop {
            let found = next.query_row(params![from.as_slice(), end.as_slice()], |row| {
                Ok((keys::line_of(row.get_ref(0)?.as_blob()?), row.get::<_, i64>(1)?))
            });
            let Some((line, key)) = found.optional()? else { break };
            if rows.len() == self.limit {
                more = true;
                break;
            }
            let line = line.ok_or_else(|| StoreError::corrupt(format!("task {key} has a bad place")))?;
            let mut found = task.query(params![self.bodies, key])?;
            while let Some(row) = found.next()? {
                rows.push(heads.task_row(row)?);
            }
            from = keys::line_end(self.lane, line);
        }
        Ok(LanePage::Tasks { rows, more })
    }

    fn expiring(&self, until: Timestamp, after: Option<(Timestamp, Seq)>) -> Result<LanePage, Failure> {
        let earliest = (Timestamp::from_micros(i64::MIN), Seq(0));
        let (start_by, seq) = after.unwrap_or(earliest);
        let mut statement = self.conn.prepare_cached(task_columns!(
            "task t INDEXED BY task_expiry CROSS JOIN spec s ON s.key = t.key
             WHERE t.expiry > ?2 AND t.expiry <= ?3 ORDER BY t.expiry LIMIT ?4"
        ))?;
        let from = keys::expiry(self.lane, start_by, seq);
        let end = keys::expiry(self.lane, until, Seq(u64::MAX));
        let rows = task_rows(
            &mut statement,
            params![self.bodies, from.as_slice(), end.as_slice(), self.one_more()],
        )?;
        let (rows, more) = self.cut(rows);
        Ok(LanePage::Tasks { rows, more })
    }

    fn tasks(&self, ids: &[TaskId]) -> Result<LanePage, Failure> {
        let mut statement = self
            .conn
            .prepare_cached(task_columns!("task t CROSS JOIN spec s ON s.key = t.key WHERE t.id = ?2"))?;
        let (mut rows, mut heads) = (Vec::with_capacity(ids.len()), Heads::default());
        for id in ids.iter().filter(|id| id.lane() == self.lane) {
            let mut found = statement.query(params![self.bodies, id.0.as_bytes()])?;
            while let Some(row) = found.next()? {
                rows.push(heads.task_row(row)?);
            }
        }
        Ok(LanePage::Tasks { rows, more: false })
    }

    fn inbox_rows(&self, after: Seq) -> Result<Vec<InboxRow>, Failure> {
        let mut statement = self.conn.prepare_cached(
            "SELECT key, command FROM inbox WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3",
        )?;
        let range = params![keys::row_key(self.lane, after), keys::last_row_key(self.lane), self.one_more()];
        let mut found = statement.query(range)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            rows.push(InboxRow {
                seq: seq_of(row.get(0)?),
                command: codec::decode(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?,
            });
        }
        Ok(rows)
    }

    fn inbox(&self, after: Seq) -> Result<LanePage, Failure> {
        let (rows, more) = self.cut(self.inbox_rows(after)?);
        Ok(LanePage::Inbox { rows, more })
    }

    fn arrivals(&self, after: Seq) -> Result<LanePage, Failure> {
        let mut statement = self.conn.prepare_cached(task_columns!(
            "task t CROSS JOIN spec s ON s.key = t.key
             WHERE t.key > ?2 AND t.key <= ?3 ORDER BY t.key LIMIT ?4"
        ))?;
        let (from, end) = (keys::row_key(self.lane, after), keys::last_row_key(self.lane));
        let tasks = task_rows(&mut statement, params![self.bodies, from, end, self.one_more()])?;
        let mut rows: Vec<Arrival> = tasks.into_iter().map(Arrival::Task).collect();
        rows.extend(self.inbox_rows(after)?.into_iter().map(Arrival::Command));
        rows.sort_unstable_by_key(Arrival::seq);
        let (rows, more) = self.cut(rows);
        let next = match rows.last() {
            Some(last) if more => last.seq(),
            // The page also covers the numbers of finished commands.
            _ => last_seq(self.conn, self.lane)?,
        };
        Ok(LanePage::Arrivals { rows, next, more })
    }

    fn records(&self, after: Option<&RecordKey>) -> Result<LanePage, Failure> {
        let mut statement = self.conn.prepare_cached(
            "SELECT kind, key, value FROM record
             WHERE lane = ?1 AND (kind, key) > (?2, ?3) ORDER BY kind, key LIMIT ?4",
        )?;
        let (kind, key) = after.map_or((0, ""), |key| (key.kind.code(), key.key.as_str()));
        let mut found = statement.query(params![self.lane.0, kind, key, self.one_more()])?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            let code = row.get(0)?;
            let kind = RecordKind::from_code(code)
                .ok_or_else(|| StoreError::corrupt(format!("a record has kind {code}")))?;
            rows.push((RecordKey { kind, key: row.get(1)? }, row.get(2)?));
        }
        let (rows, more) = self.cut(rows);
        Ok(LanePage::Records { rows, more })
    }
}

fn policies(conn: &Connection, after: u64, limit: usize) -> Result<LanePage, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT p.revision, q.namespace, q.name, p.version, p.policy
         FROM policy p CROSS JOIN queue q ON q.queue = p.queue
         WHERE p.revision > ?1 ORDER BY p.revision LIMIT ?2",
    )?;
    let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut found = statement.query(params![i64::try_from(after).unwrap_or(i64::MAX), one_more])?;
    let (mut rows, mut revision, mut more) = (Vec::new(), 0, false);
    while let Some(row) = found.next()? {
        if rows.len() == limit {
            more = true;
            break;
        }
        revision = row.get::<_, i64>(0)?.cast_unsigned();
        let policy = VersionedPolicy {
            version: row.get::<_, i64>(3)?.cast_unsigned(),
            policy: codec::decode(row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?)?,
        };
        rows.push((queue_key(row, 1)?, policy));
    }
    if rows.is_empty() {
        let mut last = conn.prepare_cached("SELECT coalesce(max(revision), 0) FROM policy")?;
        revision = last.query_row([], |row| row.get::<_, i64>(0))?.cast_unsigned();
    }
    Ok(LanePage::Policies { rows, revision, more })
}

/// A queue's namespace and name, from two columns.
pub(crate) fn queue_key(row: &Row<'_>, column: usize) -> Result<QueueKey, Failure> {
    let name = |column: usize| -> Result<Name, Failure> {
        let text = row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?;
        Ok(Name::new(text).map_err(StoreError::corrupt)?)
    };
    Ok(QueueKey::new(name(column)?, name(column + 1)?))
}

fn task_rows(statement: &mut Statement<'_>, params: impl rusqlite::Params) -> Result<Vec<TaskRow>, Failure> {
    let mut found = statement.query(params)?;
    let (mut rows, mut heads) = (Vec::new(), Heads::default());
    while let Some(row) = found.next()? {
        rows.push(heads.task_row(row)?);
    }
    Ok(rows)
}

/// Heads decoded so far. Most tasks of a line have the same one: it is decoded once, and kept once.
#[derive(Default)]
pub(crate) struct Heads(FxHashMap<Vec<u8>, Arc<TaskHead>>);

impl Heads {
    /// From the columns of [`task_columns`].
    pub(crate) fn task_row(&mut self, row: &Row<'_>) -> Result<TaskRow, Failure> {
        let blob = |column: usize| -> Result<&[u8], Failure> {
            Ok(row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from)?)
        };
        let head = blob(3)?;
        let head = if let Some(known) = self.0.get(head) {
            Arc::clone(known)
        } else {
            let read = Arc::new(codec::decode(head)?);
            self.0.insert(head.to_owned(), Arc::clone(&read));
            read
        };
        let body = match row.get_ref(4)? {
            ValueRef::Null => None,
            _ => Some(Arc::new(codec::decode(blob(4)?)?)),
        };
        Ok(TaskRow {
            id: task_id(row, 1)?,
            seq: seq_of(row.get(0)?),
            head,
            body,
            state: codec::decode(blob(2)?)?,
        })
    }
}

pub(crate) fn task_id(row: &Row<'_>, column: usize) -> Result<TaskId, Failure> {
    Ok(TaskId(uuid::Uuid::from_bytes(row.get(column)?)))
}

//! The state of the writer: prepared statements, and in memory what every transaction looks at.
//!
//! There is one writer, so what it remembers of the lanes and of the counts is what is stored. Changes of them are
//! gathered and written once at the end of a transaction. After a rollback, or when another program has written to the
//! file, everything remembered is dropped and read anew.

use rusqlite::{Connection, OptionalExtension, Statement, params};
use rustc_hash::FxHashMap;
use tasklane_core::id::{AttemptNo, CommitNo, Epoch, LaneId, OwnerId, QueueKey, Seq, TaskId};
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{Fingerprint, Place, TaskBody, TaskHead, Unique};
use tasklane_core::time::Timestamp;
use tasklane_ports::{Content, DocumentKey, StoreError, codec};

use crate::error::Failure;
use crate::keys::{self, IndexKey};
use crate::rows::{NewRow, StateRow};

/// Most tasks in flight remembered from one transaction to the next.
const TASKS_REMEMBERED: usize = 1 << 16;
/// Free pages that the file keeps for what comes next.
const FREE_PAGES_KEPT: i64 = 256;
/// Most queues remembered.
const QUEUES_REMEMBERED: usize = 16 << 10;

macro_rules! statements {
    ($($name:ident: $sql:expr;)*) => {
        struct Statements<'c> {
            $($name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            fn new(conn: &'c Connection) -> rusqlite::Result<Self> {
                Ok(Self { $($name: conn.prepare($sql)?,)* })
            }
        }
    };
}

statements! {
    data_version: "PRAGMA data_version";

    lane: "SELECT epoch, owner, commit_no, failures, seq, outcomes FROM lane WHERE lane = ?1";
    put_lane: "INSERT INTO lane (lane, epoch, owner, commit_no, failures, seq, outcomes)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
               ON CONFLICT (lane) DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner,
                   commit_no = excluded.commit_no, failures = excluded.failures, seq = excluded.seq,
                   outcomes = excluded.outcomes";

    queue: "SELECT queue FROM queue WHERE namespace = ?1 AND name = ?2";
    add_queue: "INSERT INTO queue (namespace, name) VALUES (?1, ?2)";
    binding: "SELECT binding FROM queue WHERE queue = ?1";
    bind: "UPDATE queue SET binding = ?2 WHERE queue = ?1";
    policy_version: "SELECT version FROM policy WHERE queue = ?1";
    put_policy: "INSERT INTO policy (queue, version, revision, policy)
                 VALUES (?1, ?2, (SELECT coalesce(max(revision), 0) + 1 FROM policy), ?3)
                 ON CONFLICT (queue) DO UPDATE SET version = excluded.version, revision = excluded.revision,
                     policy = excluded.policy";

    document: "SELECT version FROM document WHERE kind = ?1 AND namespace = ?2 AND id = ?3";
    next_version: "UPDATE document_version SET version = version + 1 RETURNING version";
    put_document: "INSERT INTO document (kind, namespace, id, version, due, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                   ON CONFLICT (kind, namespace, id) DO UPDATE SET version = excluded.version,
                       due = excluded.due, value = excluded.value";
    drop_document: "DELETE FROM document WHERE kind = ?1 AND namespace = ?2 AND id = ?3";

    counts: "SELECT s0, s1, s2, s3, s4, s5, s6, s7 FROM counts WHERE queue = ?1";
    put_counts: "INSERT INTO counts (queue, s0, s1, s2, s3, s4, s5, s6, s7)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (queue) DO UPDATE SET s0 = excluded.s0, s1 = excluded.s1, s2 = excluded.s2,
                     s3 = excluded.s3, s4 = excluded.s4, s5 = excluded.s5, s6 = excluded.s6, s7 = excluded.s7";

    task: "SELECT key, queue, status, attempt FROM task WHERE id = ?1";
    fingerprint: "SELECT fingerprint_version, fingerprint_hash FROM spec WHERE key = ?1";
    head: "SELECT head FROM spec WHERE key = ?1";
    add_task: "INSERT INTO task (key, id, queue, created_at, status, attempt, place, expiry, state)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING";
    add_spec: "INSERT INTO spec (key, fingerprint_version, fingerprint_hash, body_bytes, head, body)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    add_child: "INSERT INTO child (parent, created_at, id, key) VALUES (?1, ?2, ?3, ?4)";
    holder: "SELECT t.id, t.status, u.until FROM unique_key u CROSS JOIN task t ON t.key = u.key
             WHERE u.lane = ?1 AND u.queue = ?2 AND u.name = ?3";
    put_unique: "INSERT OR REPLACE INTO unique_key (lane, queue, name, until, key)
                 VALUES (?1, ?2, ?3, ?4, ?5)";
    add_fired: "INSERT INTO fired (schedule, created_at, id, key) VALUES (?1, ?2, ?3, ?4)";
    // Names no indexed column, so no index is touched.
    change_in_place: "UPDATE task SET status = ?2, attempt = ?3, state = ?4 WHERE key = ?1";
    change: "UPDATE task SET status = ?2, attempt = ?3, state = ?4, place = ?5, expiry = ?6 WHERE key = ?1";
    put_attempt: "INSERT OR REPLACE INTO attempt (key, number, record) VALUES (?1, ?2, ?3)";
    put_result: "INSERT OR REPLACE INTO result (key, result) VALUES (?1, ?2)";

    body: "SELECT body FROM spec WHERE key = ?1 AND body_bytes > 0";
    created_at: "SELECT created_at FROM task WHERE key = ?1";
    drop_body: "UPDATE spec SET body = x'', body_bytes = 0 WHERE key = ?1";
    drop_result: "DELETE FROM result WHERE key = ?1";
    drop_attempts: "DELETE FROM attempt WHERE key = ?1";
    drop_child: "DELETE FROM child WHERE parent = ?1 AND created_at = ?2 AND id = ?3";
    drop_fired: "DELETE FROM fired WHERE schedule = ?1 AND created_at = ?2 AND id = ?3";
    drop_unique: "DELETE FROM unique_key WHERE key = ?1";
    drop_spec: "DELETE FROM spec WHERE key = ?1";
    drop_task: "DELETE FROM task WHERE key = ?1";

    add_command: "INSERT INTO inbox (key, command) VALUES (?1, ?2)";
    drop_command: "DELETE FROM inbox WHERE key = ?1";
    put_record: "INSERT OR REPLACE INTO record (lane, kind, key, value) VALUES (?1, ?2, ?3, ?4)";
    drop_record: "DELETE FROM record WHERE lane = ?1 AND kind = ?2 AND key = ?3";
    add_log: "INSERT OR IGNORE INTO log (task, attempt, number, stream, at, bytes)
              VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    log_after: "SELECT attempt, number FROM log WHERE task = ?1 ORDER BY attempt, number LIMIT 1 OFFSET ?2";
    drop_logs: "DELETE FROM log WHERE task = ?1 AND (attempt, number) < (?2, ?3)";

    pages: "PRAGMA page_count";
    free_pages: "PRAGMA freelist_count";
    // As many as `retire::RELEASED_MAX`.
    release_pages: "PRAGMA incremental_vacuum(256)";
}

/// Everything that a transaction reads and writes.
pub(crate) struct WriteState<'c> {
    sql: Statements<'c>,
    data_version: i64,
    lanes: FxHashMap<LaneId, Cached<LaneRow>>,
    queues: FxHashMap<QueueKey, i64>,
    counts: FxHashMap<i64, Cached<[u64; 8]>>,
    /// Tasks in flight, as they were written last: what changes next is most likely one of them.
    in_flight: FxHashMap<TaskId, StoredTask>,
    lanes_changed: Vec<LaneId>,
    counts_changed: Vec<i64>,
    /// Under which epochs this process has claimed lanes. Never forgotten: what is stored beyond that is a stranger's.
    claimed: FxHashMap<LaneId, Epoch>,
    taken: Option<String>,
    /// Something was removed for good.
    erased: bool,
}

/// A row in memory.
struct Cached<T> {
    row: T,
    changed: bool,
}

/// A lane's row.
#[derive(Default)]
pub(crate) struct LaneRow {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) commit: CommitNo,
    pub(crate) failures: u32,
    /// The last number given out.
    pub(crate) seq: Seq,
    pub(crate) outcomes: Vec<u8>,
}

/// What a change must know of a task.
#[derive(Clone, Copy)]
pub(crate) struct StoredTask {
    pub(crate) key: i64,
    pub(crate) queue: i64,
    pub(crate) version: Version,
}

impl<'c> WriteState<'c> {
    pub(crate) fn new(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            sql: Statements::new(conn)?,
            data_version: -1,
            lanes: FxHashMap::default(),
            queues: FxHashMap::default(),
            counts: FxHashMap::default(),
            in_flight: FxHashMap::default(),
            lanes_changed: Vec::new(),
            counts_changed: Vec::new(),
            claimed: FxHashMap::default(),
            taken: None,
            erased: false,
        })
    }

    /// After `BEGIN`.
    pub(crate) fn on_begin(&mut self) -> Result<(), Failure> {
        let data_version = self.sql.data_version.query_row([], |row| row.get(0))?;
        if data_version != self.data_version || self.queues.len().max(self.counts.len()) > QUEUES_REMEMBERED {
            self.forget();
            self.data_version = data_version;
        }
        Ok(())
    }

    /// Before `COMMIT`: writes what was gathered.
    pub(crate) fn on_commit(&mut self) -> Result<(), Failure> {
        for lane in self.lanes_changed.drain(..) {
            let cached = self.lanes.get_mut(&lane).expect("a changed lane is remembered");
            cached.changed = false;
            let row = &cached.row;
            self.sql.put_lane.execute(params![
                lane.0,
                row.epoch.0.cast_signed(),
                row.owner.map(|owner| *owner.0.as_bytes()),
                row.commit.0.cast_signed(),
                row.failures,
                row.seq.0.cast_signed(),
                row.outcomes,
            ])?;
        }
        for queue in self.counts_changed.drain(..) {
            let cached = self.counts.get_mut(&queue).expect("changed counts are remembered");
            cached.changed = false;
            let [s0, s1, s2, s3, s4, s5, s6, s7] = cached.row.map(u64::cast_signed);
            self.sql.put_counts.execute(params![queue, s0, s1, s2, s3, s4, s5, s6, s7])?;
        }
        Ok(())
    }

    /// After a rollback: what was remembered may never have been.
    pub(crate) fn forget(&mut self) {
        self.lanes.clear();
        self.queues.clear();
        self.counts.clear();
        self.in_flight.clear();
        self.lanes_changed.clear();
        self.counts_changed.clear();
    }

    pub(crate) fn lane(&mut self, lane: LaneId) -> Result<&LaneRow, Failure> {
        self.cached_lane(lane).map(|cached| &cached.row)
    }

    /// This process has claimed a lane.
    pub(crate) fn claimed(&mut self, lane: LaneId, epoch: Epoch) {
        self.claimed.insert(lane, epoch);
    }

    /// That another process has taken a lane since this one claimed it, if it was found just now.
    pub(crate) fn taken(&mut self) -> Option<String> {
        self.taken.take()
    }

    /// For changing it.
    pub(crate) fn lane_mut(&mut self, lane: LaneId) -> Result<&mut LaneRow, Failure> {
        self.cached_lane(lane)?;
        let cached = self.lanes.get_mut(&lane).expect("just looked at");
        if !cached.changed {
            cached.changed = true;
            self.lanes_changed.push(lane);
        }
        Ok(&mut cached.row)
    }

    fn cached_lane(&mut self, lane: LaneId) -> Result<&mut Cached<LaneRow>, Failure> {
        use std::collections::hash_map::Entry;
        match self.lanes.entry(lane) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let row = self.sql.lane.query_row([lane.0], |row| {
                    Ok(LaneRow {
                        epoch: Epoch(row.get::<_, i64>(0)?.cast_unsigned()),
                        owner: row
                            .get::<_, Option<[u8; 16]>>(1)?
                            .map(|id| OwnerId(uuid::Uuid::from_bytes(id))),
                        commit: CommitNo(row.get::<_, i64>(2)?.cast_unsigned()),
                        failures: row.get(3)?,
                        seq: Seq(row.get::<_, i64>(4)?.cast_unsigned()),
                        outcomes: row.get(5)?,
                    })
                });
                let row = row.optional()?.unwrap_or_default();
                if let Some(claimed) = self.claimed.get(&lane).filter(|claimed| row.epoch > **claimed) {
                    let reason = format!(
                        "another process has taken lane {lane}: its epoch is {} and this server's was {claimed}. Stop the \
                         other process, then start this one again",
                        row.epoch
                    );
                    self.taken = Some(reason.clone());
                    return Err(Failure::Lost(reason));
                }
                Ok(entry.insert(Cached { row, changed: false }))
            }
        }
    }

    /// The number of a queue, which is made if it is not there.
    pub(crate) fn queue(&mut self, queue: &QueueKey) -> Result<i64, Failure> {
        if let Some(number) = self.queues.get(queue) {
            return Ok(*number);
        }
        let name = [queue.namespace.as_str(), queue.queue.as_str()];
        let number = match self.sql.queue.query_row(name, |row| row.get(0)).optional()? {
            Some(number) => number,
            None => self.sql.add_queue.insert(name)?,
        };
        self.queues.insert(queue.clone(), number);
        Ok(number)
    }

    pub(crate) fn binding(&mut self, queue: i64) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.sql.binding.query_row([queue], |row| row.get(0))?)
    }

    pub(crate) fn bind(&mut self, queue: i64, binding: &[u8]) -> Result<(), Failure> {
        self.sql.bind.execute(params![queue, binding])?;
        Ok(())
    }

    pub(crate) fn policy_version(&mut self, queue: i64) -> Result<u64, Failure> {
        let version = self.sql.policy_version.query_row([queue], |row| row.get::<_, i64>(0)).optional()?;
        Ok(version.map_or(0, i64::cast_unsigned))
    }

    pub(crate) fn put_policy(&mut self, queue: i64, version: u64, policy: &[u8]) -> Result<(), Failure> {
        self.sql.put_policy.execute(params![queue, version.cast_signed(), policy])?;
        Ok(())
    }

    /// The version of a document; 0 where there is none.
    pub(crate) fn document_version(&mut self, key: &DocumentKey) -> Result<u64, Failure> {
        let version =
            self.sql.document.query_row(document_name(key), |row| row.get::<_, i64>(0)).optional()?;
        Ok(version.map_or(0, i64::cast_unsigned))
    }

    /// Writes or removes a document and answers its version.
    pub(crate) fn put_document(
        &mut self,
        key: &DocumentKey,
        content: Option<&Content>,
    ) -> Result<u64, Failure> {
        let version: i64 = self.sql.next_version.query_row([], |row| row.get(0))?;
        match content {
            Some(Content { due, value }) => {
                let (kind, namespace, id) = document_name(key);
                let due = due.map(Timestamp::as_micros);
                self.sql.put_document.execute(params![kind, namespace, id, version, due, value])?;
            }
            None => _ = self.sql.drop_document.execute(document_name(key))?,
        }
        Ok(version.cast_unsigned())
    }

    /// How many tasks of a queue wait.
    pub(crate) fn waiting(&mut self, queue: i64) -> Result<u64, Failure> {
        let counts = &self.cached_counts(queue)?.row;
        Ok(Status::ALL.iter().filter(|s| s.is_waiting()).map(|s| counts[usize::from(s.code())]).sum())
    }

    /// A task was created in a state, went from one to another, or is forgotten.
    fn count(&mut self, queue: i64, from: Option<Status>, to: Option<Status>) -> Result<(), Failure> {
        if from == to {
            return Ok(());
        }
        let cached = self.cached_counts(queue)?;
        if let Some(from) = from {
            // A count that is off must not stop the store: it would not start again either.
            let count = &mut cached.row[usize::from(from.code())];
            *count = count.saturating_sub(1);
        }
        if let Some(to) = to {
            cached.row[usize::from(to.code())] += 1;
        }
        if !cached.changed {
            cached.changed = true;
            self.counts_changed.push(queue);
        }
        Ok(())
    }

    fn cached_counts(&mut self, queue: i64) -> Result<&mut Cached<[u64; 8]>, Failure> {
        use std::collections::hash_map::Entry;
        match self.counts.entry(queue) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let row = self.sql.counts.query_row([queue], counts_of).optional()?;
                Ok(entry.insert(Cached { row: row.unwrap_or_default(), changed: false }))
            }
        }
    }

    /// Remembers a task as it is written, if it is in flight.
    fn remember(&mut self, id: TaskId, found: StoredTask) {
        if !found.version.status.is_in_flight() {
            self.in_flight.remove(&id);
        } else if self.in_flight.len() < TASKS_REMEMBERED || self.in_flight.contains_key(&id) {
            self.in_flight.insert(id, found);
        }
    }

    pub(crate) fn task(&mut self, id: TaskId) -> Result<Option<StoredTask>, Failure> {
        if let Some(found) = self.in_flight.get(&id) {
            return Ok(Some(*found));
        }
        let found = self.sql.task.query_row([id.0.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, u8>(2)?, row.get(3)?))
        });
        let Some((key, queue, status, attempt)) = found.optional()? else { return Ok(None) };
        let version = Version { status: status_of(id, status)?, attempt: AttemptNo(attempt) };
        Ok(Some(StoredTask { key, queue, version }))
    }

    pub(crate) fn fingerprint(&mut self, key: i64) -> Result<Fingerprint, Failure> {
        Ok(self.sql.fingerprint.query_row([key], |row| {
            Ok(Fingerprint { version: row.get(0)?, hash: row.get::<_, i64>(1)?.cast_unsigned() })
        })?)
    }

    /// The task that holds the unique key of a new one.
    pub(crate) fn holder(&mut self, task: &NewRow) -> Result<Option<TaskId>, Failure> {
        let Some(unique) = &task.unique else { return Ok(None) };
        let queue = self.queue(&task.queue)?;
        let taken = self.sql.holder.query_row(params![task.id.lane().0, queue, unique.key], |row| {
            Ok((TaskId(uuid::Uuid::from_bytes(row.get(0)?)), row.get::<_, u8>(1)?, row.get(2)?))
        });
        let Some((id, status, until)) = taken.optional()? else { return Ok(None) };
        let held = match until {
            Some(until) => Timestamp::from_micros(until) > task.keyed_at,
            None => !status_of(id, status)?.is_final(),
        };
        Ok(held.then_some(id))
    }

    /// Creates a task with the next number of its lane, or answers `None` if the id is taken.
    pub(crate) fn add_task(
        &mut self,
        lane: LaneId,
        task: &NewRow,
        state: &StateRow,
    ) -> Result<Option<StoredTask>, Failure> {
        let seq = self.lane(lane)?.seq.next();
        let key = keys::row_key(lane, seq);
        let queue = self.queue(&task.queue)?;
        let place = state.place(lane, seq, task.id, || Ok((task.head.line, task.head.rank)))?;
        let expiry = state.start_by.map(|start_by| keys::expiry(lane, start_by, seq));
        let added = self.sql.add_task.execute(params![
            key,
            task.id.0.as_bytes(),
            queue,
            task.created_at.as_micros(),
            state.version.status.code(),
            state.version.attempt.0,
            place.as_deref(),
            expiry.as_deref(),
            state.bytes,
        ])?;
        if added == 0 {
            return Ok(None);
        }
        self.sql.add_spec.execute(params![
            key,
            task.fingerprint.version,
            task.fingerprint.hash.cast_signed(),
            task.body_bytes,
            &*task.head.bytes,
            task.body,
        ])?;
        let (id, created_at) = (task.id.0.as_bytes(), task.created_at.as_micros());
        if let Some(parent) = task.parent {
            self.sql.add_child.execute(params![parent.0.as_bytes(), created_at, id, key])?;
        }
        if let Some(schedule) = &task.schedule {
            self.sql.add_fired.execute(params![schedule, created_at, id, key])?;
        }
        if let Some(Unique { key: name, until, .. }) = &task.unique {
            let until = until.map(Timestamp::as_micros);
            self.sql.put_unique.execute(params![task.id.lane().0, queue, name, until, key])?;
        }
        self.count(queue, None, Some(state.version.status))?;
        self.lane_mut(lane)?.seq = seq;
        let found = StoredTask { key, queue, version: state.version };
        self.remember(task.id, found);
        Ok(Some(found))
    }

    /// Writes a task's new state.
    pub(crate) fn change(
        &mut self,
        lane: LaneId,
        id: TaskId,
        found: StoredTask,
        state: &StateRow,
    ) -> Result<(), Failure> {
        let (key, from, to) = (found.key, found.version.status, state.version);
        if from.is_in_flight() && to.status.is_in_flight() {
            self.sql.change_in_place.execute(params![key, to.status.code(), to.attempt.0, state.bytes])?;
        } else {
            let seq = keys::seq_of(key);
            let head = &mut self.sql.head;
            let place = state.place(lane, seq, id, || {
                let head: TaskHead = codec::decode(&head.query_row([key], |row| row.get::<_, Vec<u8>>(0))?)?;
                Ok((head.line(), head.priority.rank()))
            })?;
            let expiry = state.start_by.map(|start_by| keys::expiry(lane, start_by, seq));
            self.sql.change.execute(params![
                key,
                to.status.code(),
                to.attempt.0,
                state.bytes,
                place.as_deref(),
                expiry.as_deref(),
            ])?;
        }
        self.remember(id, StoredTask { version: to, ..found });
        self.count(found.queue, Some(from), Some(to.status))
    }

    pub(crate) fn put_attempt(&mut self, key: i64, number: AttemptNo, record: &[u8]) -> Result<(), Failure> {
        self.sql.put_attempt.execute(params![key, number.0, record])?;
        Ok(())
    }

    pub(crate) fn put_result(&mut self, key: i64, result: &[u8]) -> Result<(), Failure> {
        self.sql.put_result.execute(params![key, result])?;
        Ok(())
    }

    /// Takes a task's data, and what was found by it.
    pub(crate) fn strip_task(&mut self, id: TaskId, found: StoredTask) -> Result<(), Failure> {
        let key = found.key;
        self.erased = true;
        let body = self.sql.body.query_row([key], |row| row.get::<_, Vec<u8>>(0)).optional()?;
        let Some(body) = body else { return Ok(()) };
        let body: TaskBody = codec::decode(&body)?;
        let created_at: i64 = self.sql.created_at.query_row([key], |row| row.get(0))?;
        let id = id.0.as_bytes();
        if let Some(parent) = body.parent {
            self.sql.drop_child.execute(params![parent.0.as_bytes(), created_at, id])?;
        }
        if let Some(schedule) = &body.schedule {
            self.sql.drop_fired.execute(params![schedule, created_at, id])?;
        }
        self.sql.drop_body.execute([key])?;
        self.sql.drop_result.execute([key])?;
        self.sql.drop_attempts.execute([key])?;
        Ok(())
    }

    /// Removes a task that was stripped.
    pub(crate) fn forget_task(&mut self, found: StoredTask) -> Result<(), Failure> {
        self.sql.drop_unique.execute([found.key])?;
        self.sql.drop_spec.execute([found.key])?;
        self.sql.drop_task.execute([found.key])?;
        self.count(found.queue, Some(found.version.status), None)
    }

    /// Puts a command under the next number of its lane.
    pub(crate) fn add_command(&mut self, lane: LaneId, command: &[u8]) -> Result<(), Failure> {
        let row = self.lane_mut(lane)?;
        row.seq = row.seq.next();
        let key = keys::row_key(lane, row.seq);
        self.sql.add_command.execute(params![key, command])?;
        Ok(())
    }

    pub(crate) fn drop_command(&mut self, lane: LaneId, seq: Seq) -> Result<(), Failure> {
        self.sql.drop_command.execute([keys::row_key(lane, seq)])?;
        Ok(())
    }

    pub(crate) fn put_record(
        &mut self,
        lane: LaneId,
        kind: u8,
        key: &str,
        value: &[u8],
    ) -> Result<(), Failure> {
        self.sql.put_record.execute(params![lane.0, kind, key, value])?;
        Ok(())
    }

    pub(crate) fn drop_record(&mut self, lane: LaneId, kind: u8, key: &str) -> Result<(), Failure> {
        self.sql.drop_record.execute(params![lane.0, kind, key])?;
        Ok(())
    }

    pub(crate) fn add_log(&mut self, chunk: &tasklane_ports::LogChunk) -> Result<(), Failure> {
        self.sql.add_log.execute(params![
            chunk.task.0.as_bytes(),
            chunk.position.attempt.0,
            chunk.position.number,
            chunk.stream.code(),
            chunk.at.as_micros(),
            chunk.bytes,
        ])?;
        Ok(())
    }

    /// Removes the first chunks of a task's output, at most `limit`, and answers how many there were.
    pub(crate) fn drop_logs(&mut self, task: TaskId, limit: usize) -> Result<usize, Failure> {
        let id = task.0.as_bytes();
        let offset = i64::try_from(limit).unwrap_or(i64::MAX);
        let next = self.sql.log_after.query_row(params![id, offset], |row| Ok((row.get(0)?, row.get(1)?)));
        let (attempt, number): (i64, i64) = next.optional()?.unwrap_or((i64::MAX, 0));
        self.erased = true;
        Ok(self.sql.drop_logs.execute(params![id, attempt, number])?)
    }

    /// Whether something was removed for good since this was asked last.
    pub(crate) fn erased(&mut self) -> bool {
        std::mem::take(&mut self.erased)
    }

    /// Gives some free pages back to the disk, unless they are few and soon needed again. Answers whether more are
    /// left.
    pub(crate) fn release_pages(&mut self) -> Result<bool, Failure> {
        let free = self.free_pages()?;
        let all: i64 = self.sql.pages.query_row([], |row| row.get(0))?;
        let kept = FREE_PAGES_KEPT.max(all / 8);
        if free <= kept {
            return Ok(false);
        }
        self.erased = true;
        let mut released = self.sql.release_pages.query([])?;
        while released.next()?.is_some() {}
        drop(released);
        let left = self.free_pages()?;
        Ok(left > kept && left < free)
    }

    fn free_pages(&mut self) -> Result<i64, Failure> {
        Ok(self.sql.free_pages.query_row([], |row| row.get(0))?)
    }
}

fn status_of(task: TaskId, code: u8) -> Result<Status, StoreError> {
    Status::from_code(code).ok_or_else(|| StoreError::corrupt(format!("task {task} has status {code}")))
}

/// Counts by status, from eight columns.
pub(crate) fn counts_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<[u64; 8]> {
    let mut counts = [0; 8];
    for (column, count) in counts.iter_mut().enumerate() {
        *count = row.get::<_, i64>(column)?.cast_unsigned();
    }
    Ok(counts)
}

impl StateRow {
    /// Where a task in this state is found. Line and rank are asked for only if it is in its line.
    fn place(
        &self,
        lane: LaneId,
        seq: Seq,
        id: TaskId,
        line: impl FnOnce() -> Result<(tasklane_core::id::LineKey, u8), Failure>,
    ) -> Result<Option<IndexKey>, Failure> {
        Ok(match self.place {
            Place::Ready => {
                let (line, rank) = line()?;
                Some(keys::ready(lane, line, tasklane_core::task::OrderKey { rank, due: self.due, seq }))
            }
            Place::Delayed => Some(keys::delayed(lane, self.due, seq)),
            Place::InFlight => Some(keys::in_flight(lane, id)),
            Place::Done => None,
        })
    }
}

/// How the table names a document.
fn document_name(key: &DocumentKey) -> (u8, &str, &str) {
    (key.kind.code(), key.namespace.as_str(), key.id.as_str())
}

#[cfg(test)]
mod tests {
    use tasklane_ports::conformance::fixture::{LANE, advance, task};

    use super::*;
    use crate::migrate::migrate;
    use crate::rows::Heads;

    #[test]
    fn a_task_in_flight_is_forgotten_with_the_transaction_that_wrote_it() {
        let conn = Connection::open_in_memory().unwrap();
        migrate(&conn).unwrap();
        let mut write_state = WriteState::new(&conn).unwrap();
        let task = task(1).build();
        let (_, assigned) = advance(&task.state(), &[Status::Scheduled], task.created_at);
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        write_state.on_begin().unwrap();
        let row = NewRow::of(&task, &mut Heads::default());
        assert!(write_state.add_task(LANE, &row, &StateRow::of(&assigned)).unwrap().is_some());
        assert!(write_state.task(task.id).unwrap().is_some());
        conn.execute_batch("ROLLBACK").unwrap();
        write_state.forget();
        assert!(write_state.task(task.id).unwrap().is_none());
    }
}

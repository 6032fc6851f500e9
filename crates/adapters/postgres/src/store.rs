//! The store: submits, claims, commits and posts. Reads are in `load.rs` (for owners) and `query.rs` (for
//! clients), retention in `retire.rs`.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use rustc_hash::FxHashMap;
use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, Group, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{CommitNo, Epoch, LaneId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::LanePage;
use tasklane_core::task::{AttemptRecord, NewTask, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::codec::{decode, encode};
use tasklane_ports::{
    AttemptList, ClaimLane, CountList, ExpiredQuery, ExpiredTasks, LaneHead, LoadQuery, PutPolicy,
    QueueCounts, Store, StoreCapabilities, StoreError, Submit, TaskList, TaskPage, TaskView,
};
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::columns::Column;
use crate::connect::{Database, PostgresOptions, Purpose};
use crate::error::{CallError, NOT_AS_EXPECTED, unexpected};
use crate::migrate::{self, migrate};
use crate::outcomes;
use crate::queue_cache::QueueCache;
use crate::resolve::{self, FactsQuery, Part, Queues, StoredFacts, StoredTask};
use crate::rows::{column, number, task_id};
use crate::write_lane::{Fence, QueueNo, fingerprint_of, version_of};

/// Bounds of one submit or commit. A transaction of this size takes some hundred milliseconds.
const CAPABILITIES: StoreCapabilities =
    StoreCapabilities { ops_max: 16 << 10, bytes_max: 8 << 20, insert_and_assign: true };

/// A write is resolved again this often when other writers change the values that it rests on. Each time
/// another writer makes progress, so many rounds in a row are a sign of trouble.
const ROUNDS_MAX: usize = 20;

/// Most queues remembered.
const QUEUES_REMEMBERED: usize = 16 << 10;

/// The store in a schema of a database. Also keeps logs and documents. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pub(crate) database: Arc<Database>,
    /// Numbers never change, and no queue is ever removed.
    queues: Arc<RwLock<FxHashMap<QueueKey, QueueNo>>>,
    pub(crate) queue_cache: Arc<QueueCache>,
    warnings: Arc<[String]>,
}

impl PostgresStore {
    /// The fewest connections that a store works with.
    pub const CONNECTIONS_MIN: usize = Purpose::Store.connections_min();

    /// Opens the store that a URL names, `postgres://user:password@host:port/database` or
    /// `postgres:///database?host=/run/postgresql`, with `?schema=…` for another schema than that of
    /// `options`. Brings the schema to the newest version.
    pub async fn connect(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let database = Database::from_url(url, options, Purpose::Store)?;
        database.probe().await?;
        migrate(&database, &migrate::STORE).await?;
        let warnings = warnings(&database).await?;
        Ok(Self {
            database: Arc::new(database),
            queues: Arc::default(),
            queue_cache: Arc::default(),
            warnings: warnings.into(),
        })
    }

    /// How the server may lose acknowledged writes, in plain sentences; empty where they are safe.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Writes parts together, and answers the outcome of each.
    async fn write(
        &self,
        lane: LaneId,
        fence: Option<&Commit>,
        parts: &mut [Part<'_>],
    ) -> Result<Vec<GroupOutcome>, StoreError> {
        let queues = self.queue_numbers(queues_of(parts)).await?;
        self.find_changed(parts, &queues).await?;
        let parts = &*parts;
        let mut builder = resolve::optimistic(lane, parts, &queues);
        for _ in 0..ROUNDS_MAX {
            let builder = if let Some(builder) = builder.take() {
                builder
            } else {
                let facts = self.facts(lane, FactsQuery::of(lane, parts, &queues)).await?;
                resolve::resolve(lane, parts, &queues, &facts)
            };
            let write = builder.finish(fence.map(Fence::of));
            if write.is_empty() {
                return Ok(write.outcomes(0));
            }
            let answer = match fence {
                Some(_) => self.database.commit(lane, &write).await,
                None => {
                    self.database.query(&self.database.statements.write, &write.params()).await.map(first)
                }
            };
            let answer = match answer {
                Ok(row) => WriteReply::of(&row)?,
                Err(error) if error.code().is_some_and(|code| code.code() == NOT_AS_EXPECTED) => {
                    WriteReply::Otherwise
                }
                Err(error) => return Err(error.into()),
            };
            match (answer, fence) {
                (WriteReply::Written { base }, _) => {
                    self.queue_cache.forget_finished(parts, &write.outcomes);
                    return Ok(write.outcomes(base));
                }
                (WriteReply::Repeated { packed, base }, _) => {
                    return Ok(outcomes::counted_from(outcomes::unpack(&decode(&packed)?), base));
                }
                (WriteReply::Otherwise, _) => {}
                (WriteReply::Fenced { current }, Some(commit)) => {
                    return Err(StoreError::Fenced { lane, held: commit.epoch, current });
                }
                (WriteReply::OutOfOrder { last }, Some(commit)) => {
                    return Err(StoreError::OutOfOrder { lane, number: commit.number, last });
                }
                (WriteReply::Fenced { .. } | WriteReply::OutOfOrder { .. }, None) => {
                    return Err(unexpected("a submit that is resolved as a commit"));
                }
            }
        }
        Err(StoreError::unavailable("other writers kept changing the values that this write rests on"))
    }

    /// The numbers of queues. New queues get theirs from the server.
    async fn queue_numbers<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueKey> + Send,
    ) -> Result<Queues, StoreError> {
        let mut numbers = Queues::default();
        let mut unknown = Vec::new();
        {
            let known = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            let mut last = None;
            for queue in queues {
                // Tasks of one submit are often of one queue.
                if last == Some(queue) || numbers.contains_key(queue) {
                    continue;
                }
                last = Some(queue);
                match known.get(queue) {
                    Some(number) => _ = numbers.insert(queue.clone(), *number),
                    None => unknown.push(queue.clone()),
                }
            }
        }
        if unknown.is_empty() {
            return Ok(numbers);
        }
        unknown.sort_unstable();
        unknown.dedup();
        let (mut namespaces, mut names) = (Column::texts(), Column::texts());
        for queue in &unknown {
            namespaces.text(queue.namespace.as_str());
            names.text(queue.queue.as_str());
        }
        let row =
            self.database.query_one(&self.database.statements.queue_numbers, &[&namespaces, &names]).await?;
        let found: Vec<QueueNo> = column(&row, 0)?;
        if found.len() != unknown.len() {
            return Err(unexpected("not one number for each queue"));
        }
        let mut known = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() + unknown.len() > QUEUES_REMEMBERED {
            known.clear();
        }
        for (queue, number) in unknown.into_iter().zip(found) {
            known.insert(queue.clone(), number);
            numbers.insert(queue, number);
        }
        Ok(numbers)
    }

    /// Notes tasks that an owner has read, and is likely to change.
    pub(crate) fn note<'a>(&self, rows: impl Iterator<Item = &'a TaskRow>) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        self.queue_cache.note(rows.filter_map(|row| Some((row.id, *queues.get(&row.head.queue)?))));
    }

    /// Finds the queues of the changed tasks. A task's queue never changes, so no row has to be locked for
    /// it.
    async fn find_changed(&self, parts: &mut [Part<'_>], queues: &Queues) -> Result<(), StoreError> {
        let unknown = self.queue_cache.find(parts, queues);
        if unknown.is_empty() {
            return Ok(());
        }
        let ids = Column::of_uuids(unknown.iter().map(|id| id.0));
        let mut found = FxHashMap::default();
        for row in self.database.read(&self.database.statements.queues_of, &[&ids]).await? {
            found.insert(task_id(&row, 0)?, column::<QueueNo>(&row, 1)?);
        }
        for part in parts.iter_mut().filter(|part| part.changed_in.is_none()) {
            part.changed_in = part.changed().and_then(|id| found.get(&id).copied());
        }
        Ok(())
    }

    async fn queue_number(&self, queue: &QueueKey) -> Result<QueueNo, StoreError> {
        Ok(self.queue_numbers(std::iter::once(queue)).await?[queue])
    }

    /// Reads the values that a write rests on.
    async fn facts(&self, lane: LaneId, query: FactsQuery<'_>) -> Result<StoredFacts, StoreError> {
        let statements = &self.database.statements;
        let mut facts = StoredFacts::default();
        let ids = Column::of_uuids(query.ids.iter().map(|id| id.0));
        for row in self.database.read(&statements.facts, &[&ids]).await? {
            facts.tasks.insert(task_id(&row, 0)?, stored(&row, 1)?);
        }
        if !query.keys.is_empty() {
            let keys: Vec<_> = query.keys.into_iter().collect();
            let (mut queues, mut names) = (Column::integers(), Column::byteas());
            for (queue, name) in &keys {
                queues.integer(*queue);
                names.bytea(name.as_bytes());
            }
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&i32::from(lane.0), &queues, &names];
            for row in self.database.read(&statements.key_facts, &params).await? {
                let (task, until) = (task_id(&row, 1)?, column::<Option<i64>>(&row, 2)?);
                let at = usize::try_from(column::<i64>(&row, 0)? - 1).map_err(unexpected)?;
                let (queue, name) = keys.get(at).ok_or_else(|| unexpected("a key that was not asked for"))?;
                facts.keys.insert((*queue, (*name).to_owned()), (task, until.map(Timestamp::from_micros)));
                if column::<Option<i64>>(&row, 3)?.is_some() {
                    facts.tasks.entry(task).or_insert(stored(&row, 3)?);
                }
            }
        }
        if !query.queues.is_empty() {
            let mut queues = Column::integers();
            query.queues.iter().for_each(|queue| queues.integer(*queue));
            for row in self.database.read(&statements.waiting_facts, &[&i32::from(lane.0), &queues]).await? {
                facts.waiting.insert(column(&row, 0)?, column(&row, 1)?);
            }
        }
        Ok(facts)
    }

    /// Claims a lane. It waits for an open commit of the old owner, but at most `claim_patience`.
    async fn claim(&self, claim: ClaimLane) -> Result<Row, CallError> {
        let database = &self.database;
        let (lane, owner) = (i32::from(claim.lane.0), claim.owner.0);
        let (seen, failures) = (claim.seen.0.cast_signed(), i64::from(claim.failures));
        // Its text is found among the server's activities: a pooler may run it in any process of the server.
        let sql = format!("/* claim {:032x} */ {}", rand::random::<u128>(), database.statements.claim);
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&lane, Type::INT4), (&owner, Type::UUID), (&seen, Type::INT8), (&failures, Type::INT8)];
        let claiming = database.claim(&sql, &params);
        tokio::pin!(claiming);
        loop {
            tokio::select! {
                answer = &mut claiming => return answer.map(first),
                () = tokio::time::sleep(database.options.claim_patience) => {
                    // A failure is not reported: the claim goes on waiting, and its own timeout ends it.
                    let end = "SELECT pg_terminate_backend(b.pid) FROM pg_stat_activity a
                               CROSS JOIN unnest(pg_blocking_pids(a.pid)) AS b(pid) WHERE a.query = $1";
                    let _ = database.query(end, &[&sql]).await;
                }
            }
        }
    }

    /// Writes a commit and leaves its transaction open. For tests.
    #[doc(hidden)]
    pub async fn hold_commit(&self, commit: &Commit) -> Result<HeldCommit, StoreError> {
        let mut parts: Vec<_> = commit.groups.iter().map(Part::of_group).collect();
        let queues = self.queue_numbers(queues_of(&parts)).await?;
        self.find_changed(&mut parts, &queues).await?;
        let builder = resolve::optimistic(commit.lane, &parts, &queues)
            .ok_or_else(|| unexpected("not to be written optimistically"))?;
        let write = builder.finish(Some(Fence::of(commit)));
        let (client, driver) = self.database.open().await?;
        let failed = |error| StoreError::from(CallError::Failed(error));
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let row = client.query_one(&self.database.statements.write, &write.params()).await.map_err(failed)?;
        let WriteReply::Written { base } = WriteReply::of(&row)? else {
            return Err(unexpected("not written"));
        };
        Ok(HeldCommit { client, driver, outcomes: write.outcomes(base) })
    }
}

/// A commit that is written and not visible.
#[doc(hidden)]
#[derive(Debug)]
pub struct HeldCommit {
    client: Client,
    driver: JoinHandle<()>,
    outcomes: Vec<GroupOutcome>,
}

impl HeldCommit {
    /// Makes it visible.
    pub async fn release(self) -> Result<Vec<GroupOutcome>, StoreError> {
        self.client
            .batch_execute("COMMIT")
            .await
            .map_err(|error| StoreError::from(CallError::Failed(error)))?;
        drop(self.client);
        let _ = self.driver.await;
        Ok(self.outcomes)
    }
}

/// The answer of `write_lane`.
enum WriteReply {
    Written {
        base: u64,
    },
    Repeated {
        packed: Vec<u8>,
        base: u64,
    },
    Fenced {
        current: Epoch,
    },
    OutOfOrder {
        last: CommitNo,
    },
    /// The stored values differ from the assumptions of the write.
    Otherwise,
}

impl WriteReply {
    fn of(row: &Row) -> Result<Self, StoreError> {
        let base = || Ok::<_, StoreError>(column::<Option<i64>>(row, 3)?.unwrap_or(0).cast_unsigned());
        Ok(match column::<i32>(row, 0)? {
            0 => Self::Written { base: base()? },
            1 => Self::Repeated { packed: column(row, 2)?, base: base()? },
            2 => Self::Fenced { current: Epoch(number(row, 1)?) },
            3 => Self::OutOfOrder { last: CommitNo(number(row, 1)?) },
            4 => Self::Otherwise,
            other => return Err(unexpected(format!("write_lane answers {other}"))),
        })
    }
}

/// The queues of new tasks.
fn queues_of<'a>(parts: &[Part<'a>]) -> impl Iterator<Item = &'a QueueKey> {
    parts.iter().filter_map(|part| part.inserted().map(|(_, queue)| queue))
}

/// The row of an answer with exactly one.
fn first(rows: Vec<Row>) -> Row {
    rows.into_iter().next().expect("a function that answers no set answers one row")
}

/// From columns with version, queue and fixed fields.
fn stored(row: &Row, at: usize) -> Result<StoredTask, StoreError> {
    let version = column(row, at)?;
    Ok(StoredTask {
        version: version_of(version).ok_or_else(|| unexpected(format!("a task has version {version}")))?,
        queue: column(row, at + 1)?,
        fingerprint: fingerprint_of(column(row, at + 2)?)
            .ok_or_else(|| unexpected("a task without a fingerprint"))?,
    })
}

/// Reads the server's settings of durability.
async fn warnings(database: &Database) -> Result<Vec<String>, StoreError> {
    let row = database
        .query_one(
            "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')",
            &[],
        )
        .await?;
    let setting = |at| column::<&str>(&row, at);
    let mut warnings = Vec::new();
    if setting(0)? == "off" {
        warnings.push(
            "PostgreSQL runs with fsync = off: after a crash of its machine the whole database may be lost."
                .to_owned(),
        );
    }
    if setting(1)? == "off" {
        warnings.push(
            "PostgreSQL runs with synchronous_commit = off: a crash of the server may lose the last acknowledged \
             writes."
                .to_owned(),
        );
    }
    if setting(2)? == "off" {
        warnings.push(
            "PostgreSQL runs with full_page_writes = off: after a crash of its machine data may be damaged."
                .to_owned(),
        );
    }
    Ok(warnings)
}

fn check_size(what: &'static str, parts: impl Iterator<Item = (usize, usize)>) -> Result<(), StoreError> {
    let StoreCapabilities { ops_max, bytes_max, .. } = CAPABILITIES;
    let (ops, bytes) = parts.fold((0, 0), |(ops, bytes), part| (ops + part.0, bytes + part.1));
    if ops > ops_max {
        return Err(StoreError::TooLarge { what, size: ops, max: ops_max });
    }
    if bytes > bytes_max {
        return Err(StoreError::TooLarge { what, size: bytes, max: bytes_max });
    }
    Ok(())
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> StoreCapabilities {
        CAPABILITIES
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        check_size("submit", submit.tasks.iter().map(|task| (NewTask::ops(task), NewTask::bytes(task))))?;
        for task in submit.tasks.iter() {
            assert_eq!(task.id.lane(), submit.lane, "task {} is submitted to another lane", task.id);
        }
        let mut parts: Vec<_> = submit.tasks.iter().map(Part::of_task).collect();
        let outcomes = self.write(submit.lane, None, &mut parts).await?;
        outcomes
            .into_iter()
            .map(|outcome| match outcome {
                GroupOutcome::Applied { seq: Some(seq) } => Ok(SubmitOutcome::Created { seq }),
                GroupOutcome::NotCreated(refused) => Ok(refused),
                GroupOutcome::Applied { seq: None } | GroupOutcome::Mismatch { .. } => {
                    Err(unexpected("a submit that changes a task"))
                }
            })
            .collect()
    }

    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError> {
        let rows = self.database.read(&self.database.statements.lane_head, &[&i32::from(lane.0)]).await?;
        let Some(row) = rows.first() else {
            return Ok(LaneHead { epoch: Epoch(0), owner: None, commit: CommitNo(0), failures: 0 });
        };
        Ok(LaneHead {
            epoch: Epoch(number(row, 0)?),
            owner: column::<Option<Uuid>>(row, 1)?.map(tasklane_core::id::OwnerId),
            commit: CommitNo(number(row, 2)?),
            failures: u32::try_from(column::<i64>(row, 3)?).map_err(unexpected)?,
        })
    }

    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        let row = self.claim(claim).await?;
        match column::<Option<i64>>(&row, 0)? {
            Some(claimed) => Ok(Epoch(claimed.cast_unsigned())),
            None => Err(StoreError::ClaimLost { lane: claim.lane, current: Epoch(number(&row, 1)?) }),
        }
    }

    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        check_size("commit", commit.groups.iter().map(|group| (Group::ops(group), Group::bytes(group))))?;
        for new in commit.groups.iter().filter_map(|group| group.insert.as_ref()) {
            assert_eq!(new.id.lane(), commit.lane, "task {} is inserted into another lane", new.id);
        }
        let mut parts: Vec<_> = commit.groups.iter().map(Part::of_group).collect();
        self.write(commit.lane, Some(commit), &mut parts).await
    }

    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError> {
        // A post may be applied in part: each command stands for itself.
        for commands in commands.chunks(CAPABILITIES.ops_max) {
            let mut encoded = Column::byteas();
            for command in commands {
                encoded.bytea(&encode(command));
            }
            self.database.query(&self.database.statements.post, &[&i32::from(lane.0), &encoded]).await?;
        }
        Ok(())
    }

    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        self.load_page(load).await
    }

    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError> {
        let number = self.queue_number(queue).await?;
        let row =
            self.database.query_one(&self.database.statements.bind, &[&number, &encode(binding)]).await?;
        decode(column(&row, 0)?)
    }

    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError> {
        let number = self.queue_number(&put.queue).await?;
        // No version is that high, so it is a conflict.
        let expected = i64::try_from(put.expected).unwrap_or(i64::MAX);
        let policy = encode(&put.policy);
        let row = self
            .database
            .query_one(&self.database.statements.put_policy, &[&number, &expected, &policy])
            .await?;
        match column::<Option<i64>>(&row, 0)? {
            None => Ok(put.expected + 1),
            Some(current) => Err(StoreError::PolicyConflict {
                queue: put.queue,
                expected: put.expected,
                current: current.cast_unsigned(),
            }),
        }
    }

    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        self.policy_of(queue).await
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        self.views(ids).await
    }

    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        self.attempts_of(list).await
    }

    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        self.page(&list).await
    }

    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError> {
        self.queue_counts(&list).await
    }

    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        self.expired_page(&retire).await
    }

    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        self.retire_tasks(strip, forget).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.database.close();
        Ok(())
    }
}

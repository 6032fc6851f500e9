//! The store: submits, claims, commits and posts. Reads are in `load.rs` (for owners) and `query.rs` (for
//! clients), retention in `retire.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, Group, GroupOutcome, SubmitOutcome, TaskChange};
use tasklane_core::id::{CommitNo, Epoch, LaneId, OwnerId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::LanePage;
use tasklane_core::status::Version;
use tasklane_core::task::{AttemptRecord, NewTask, TaskState};
use tasklane_ports::{
    AttemptList, ClaimLane, CountList, ExpiredQuery, ExpiredTasks, LaneHead, LoadQuery, Outcome, PutPolicy,
    QueueCounts, Store, StoreCapabilities, StoreError, Submit, TaskList, TaskPage, TaskView, codec,
};
use uuid::Uuid;

use crate::connect::{Purpose, RedisOptions, Server, Traffic};
use crate::error::unexpected;
use crate::keys::{LaneKey, LaneKeys, SharedKeys};
use crate::layout::{self, ReplyValues};
use crate::script::{SCRIPTS, Script};

/// A server runs one script at a time, so batches are kept to a few milliseconds.
const CAPABILITIES: StoreCapabilities =
    StoreCapabilities { ops_max: 8192, bytes_max: 8 << 20, insert_and_assign: true };

/// Version of all data. A store that finds a newer version leaves it untouched.
const DATA_VERSION: u64 = 2;

/// The store on a Redis server or cluster. Also keeps logs.
#[derive(Debug)]
pub struct RedisStore {
    server: Server,
    prefix: String,
    shared: SharedKeys,
    lanes: RwLock<HashMap<LaneId, Arc<LaneKeys>>>,
    closed: AtomicBool,
}

impl RedisStore {
    /// Opens the store that a URL names: `redis://host:port/db` or `redis+cluster://host:port,host:port`,
    /// with `?prefix=…` to override the prefix of `options`.
    pub async fn connect(url: &str, options: &RedisOptions) -> Result<Self, StoreError> {
        let (server, prefix) = Server::connect(url, options, Purpose::Data).await?;
        let shared = SharedKeys::new(&prefix);
        let store = Self { server, prefix, shared, lanes: RwLock::default(), closed: AtomicBool::new(false) };
        store.check_data().await?;
        Ok(store)
    }

    /// How this server may lose acknowledged writes, in a plain sentence each. Empty where they are safe.
    pub fn warnings(&self) -> &[String] {
        self.server.warnings()
    }

    async fn check_data(&self) -> Result<(), StoreError> {
        let mut call = SCRIPTS.put_once.call([self.shared.meta.as_str()].into_iter());
        call.arg("version").arg(DATA_VERSION);
        let found = layout::number(&self.bytes(&SCRIPTS.put_once, self.shared.slot, call).await?)?;
        if found == DATA_VERSION {
            return Ok(());
        }
        let prefix = &self.prefix;
        let reason = if found > DATA_VERSION {
            format!("the data under prefix {prefix} is of a newer version")
        } else {
            format!(
                "the data under prefix {prefix} was written by a build before the first release and cannot be read any more; \
                 name another prefix"
            )
        };
        Err(StoreError::Refused { reason })
    }

    /// Sends a command.
    pub(crate) async fn send(&self, slot: u16, traffic: Traffic, command: &Cmd) -> Result<Value, StoreError> {
        self.check_open()?;
        Ok(self.server.call(slot, traffic, command).await?)
    }

    /// Calls a script.
    pub(crate) async fn run(
        &self,
        script: &Script,
        slot: u16,
        traffic: Traffic,
        call: Cmd,
    ) -> Result<Value, StoreError> {
        self.check_open()?;
        Ok(self.server.run(script, slot, traffic, &call).await?)
    }

    async fn bytes(&self, script: &Script, slot: u16, call: Cmd) -> Result<Vec<u8>, StoreError> {
        match self.run(script, slot, Traffic::Lane, call).await? {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(unexpected("no bytes")),
        }
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::unavailable("the store was closed"));
        }
        Ok(())
    }

    pub(crate) fn shared(&self) -> &SharedKeys {
        &self.shared
    }

    pub(crate) fn lane(&self, lane: LaneId) -> Arc<LaneKeys> {
        if let Some(keys) = self.lanes.read().unwrap_or_else(PoisonError::into_inner).get(&lane) {
            return Arc::clone(keys);
        }
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lanes.entry(lane).or_insert_with(|| Arc::new(LaneKeys::new(&self.prefix, lane))))
    }

    /// The keys of a lane for a write. The lane is added to the list of lanes first, so that queries over all
    /// lanes find it: the list is in another slot, and one script cannot write both.
    async fn listed_lane(&self, lane: LaneId) -> Result<Arc<LaneKeys>, StoreError> {
        let keys = self.lane(lane);
        if !keys.is_listed() {
            let mut command = redis::cmd("SADD");
            command.arg(&self.shared.lanes).arg(lane.0);
            let listed = self.send(self.shared.slot, Traffic::Lane, &command).await;
            listed.map_err(|error| match error {
                // The list may have been written; the caller's write was not.
                StoreError::Unavailable { source, .. } => {
                    StoreError::Unavailable { outcome: Outcome::NotApplied, source }
                }
                other => other,
            })?;
            keys.set_listed();
        }
        Ok(keys)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> StoreCapabilities {
        CAPABILITIES
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        check_size("submit", submit.tasks.iter().map(|task| (task.ops(), task.bytes())))?;
        if submit.tasks.is_empty() {
            return Ok(Vec::new());
        }
        let lane = self.listed_lane(submit.lane).await?;
        let mut call = SCRIPTS.submit.call(lane.all());
        call.arg(submit.tasks.len());
        for task in submit.tasks.iter() {
            call.arg(id_arg(&task.id));
        }
        for task in submit.tasks.iter() {
            add_insert(&mut call, task, &task.state());
        }
        let answer = self.bytes(&SCRIPTS.submit, lane.slot(), call).await?;
        let outcomes = layout::submit_outcomes(&answer)?;
        check_count(outcomes.len(), submit.tasks.len())?;
        Ok(outcomes)
    }

    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError> {
        let keys = self.lane(lane);
        let mut command = redis::cmd("HMGET");
        command.arg(keys.key(LaneKey::Lane)).arg(&["epoch", "owner", "commit", "failures"]);
        let mut answer = ReplyValues::new(self.send(keys.slot(), Traffic::Lane, &command).await?)?;
        let number = |text: Option<Vec<u8>>| text.map_or(Ok(0), |text| layout::number(&text));
        let epoch = Epoch(number(answer.optional()?)?);
        let owner = answer.optional()?.map(|owner| Uuid::from_slice(&owner)).transpose();
        let owner = owner.map_err(StoreError::corrupt)?.map(OwnerId);
        let commit = CommitNo(number(answer.optional()?)?);
        let failures = u32::try_from(number(answer.optional()?)?).map_err(StoreError::corrupt)?;
        Ok(LaneHead { epoch, owner, commit, failures })
    }

    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        let lane = self.listed_lane(claim.lane).await?;
        let mut call = SCRIPTS.claim.call([lane.key(LaneKey::Lane)].into_iter());
        let claimed = claim.seen.next();
        call.arg(claim.seen.0).arg(claimed.0).arg(owner_arg(&claim.owner)).arg(claim.failures);
        let answer = self.run(&SCRIPTS.claim, lane.slot(), Traffic::Lane, call).await?;
        let mut answer = ReplyValues::new(answer)?;
        match answer.bytes()?.as_slice() {
            b"ok" => Ok(claimed),
            b"lost" => Err(StoreError::ClaimLost { lane: claim.lane, current: Epoch(answer.number()?) }),
            _ => Err(unexpected("neither claimed nor lost")),
        }
    }

    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        check_size("commit", commit.groups.iter().map(|group| (group.ops(), group.bytes())))?;
        let lane = self.lane(commit.lane);
        let call = commit_call(&lane, commit);
        let answer = self.run(&SCRIPTS.commit, lane.slot(), Traffic::Lane, call).await?;
        let mut answer = ReplyValues::new(answer)?;
        match answer.bytes()?.as_slice() {
            b"ok" => {
                let outcomes = layout::group_outcomes(&answer.bytes()?)?;
                check_count(outcomes.len(), commit.groups.len())?;
                Ok(outcomes)
            }
            b"fenced" => {
                let current = Epoch(answer.number()?);
                Err(StoreError::Fenced { lane: commit.lane, held: commit.epoch, current })
            }
            b"order" => {
                let last = CommitNo(answer.number()?);
                Err(StoreError::OutOfOrder { lane: commit.lane, number: commit.number, last })
            }
            _ => Err(unexpected("neither committed nor refused")),
        }
    }

    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError> {
        // Bounded, because one script must be short. A post may be applied in part: each command stands for
        // itself.
        for commands in commands.chunks(CAPABILITIES.ops_max) {
            let lane = self.listed_lane(lane).await?;
            let keys = [LaneKey::Lane, LaneKey::Inbox, LaneKey::Arrivals].map(|key| lane.key(key));
            let mut call = SCRIPTS.post.call(keys.into_iter());
            for command in commands {
                call.arg(codec::encode(command));
            }
            self.run(&SCRIPTS.post, lane.slot(), Traffic::Lane, call).await?;
        }
        Ok(())
    }

    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        self.load_page(load).await
    }

    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError> {
        let mut call = SCRIPTS.put_once.call([self.shared.bindings.as_str()].into_iter());
        call.arg(layout::queue_key(queue)).arg(codec::encode(binding));
        codec::decode(&self.bytes(&SCRIPTS.put_once, self.shared.slot, call).await?)
    }

    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError> {
        let shared = &self.shared;
        let keys = [&shared.policies, &shared.policy_changes, &shared.policy_revision].map(String::as_str);
        let mut call = SCRIPTS.put_policy.call(keys.into_iter());
        let version = put.expected + 1;
        call.arg(layout::queue_key(&put.queue))
            .arg(&put.expected.to_be_bytes())
            .arg(&version.to_be_bytes())
            .arg(codec::encode(&put.policy));
        let answer = self.run(&SCRIPTS.put_policy, shared.slot, Traffic::Lane, call).await?;
        let mut answer = ReplyValues::new(answer)?;
        match answer.bytes()?.as_slice() {
            b"ok" => Ok(version),
            b"conflict" => {
                let current = layout::be_number(&answer.bytes()?)?;
                Err(StoreError::PolicyConflict { queue: put.queue, expected: put.expected, current })
            }
            _ => Err(unexpected("neither put nor refused")),
        }
    }

    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(&self.shared.policies).arg(layout::queue_key(queue));
        match self.send(self.shared.slot, Traffic::Lane, &command).await? {
            Value::Nil => Ok(VersionedPolicy::default()),
            Value::BulkString(stored) => layout::policy_of(&stored),
            _ => Err(unexpected("neither a policy nor nothing")),
        }
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        self.views(ids).await
    }

    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        self.attempts_of(list).await
    }

    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        self.page(list).await
    }

    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError> {
        self.queue_counts(&list).await
    }

    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        self.expired_page(retire).await
    }

    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        self.retire_tasks(strip, forget).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        self.server.close().await;
        Ok(())
    }
}

pub(crate) fn id_arg(id: &TaskId) -> &[u8] {
    id.0.as_bytes()
}

fn owner_arg(owner: &OwnerId) -> &[u8] {
    owner.0.as_bytes()
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

fn check_count(found: usize, expected: usize) -> Result<(), StoreError> {
    if found == expected { Ok(()) } else { Err(unexpected("not one outcome for each part")) }
}

/// As `submit.lua` and `commit.lua` take a new task.
fn add_insert(call: &mut Cmd, task: &NewTask, state: &TaskState) {
    match task.queue_len_max {
        Some(max) => call.arg(max),
        None => call.arg(""),
    };
    match &task.unique {
        Some(unique) => call.arg(layout::unique(unique, task.keyed_at())),
        None => call.arg(""),
    };
    call.arg(task.spec.body.parent.as_ref().map_or(&[][..], id_arg));
    let (spec, body) = layout::spec(&task.spec);
    call.arg(layout::packed(task, state)).arg(spec).arg(body);
}

fn commit_call(lane: &LaneKeys, commit: &Commit) -> Cmd {
    let mut call = SCRIPTS.commit.call(lane.all());
    let previous = commit.number.0.checked_sub(1).map_or(String::new(), |previous| previous.to_string());
    call.arg(commit.epoch.0)
        .arg(owner_arg(&commit.owner))
        .arg(commit.number.0)
        .arg(previous)
        .arg(commit.cursor.0);
    let parts: Vec<GroupParts<'_>> = commit.groups.iter().map(GroupParts::of).collect();
    let ids = parts.iter().flat_map(GroupParts::ids);
    call.arg(ids.clone().count());
    for id in ids {
        call.arg(id_arg(id));
    }
    for group in &parts {
        group.add_to(&mut call);
    }
    call
}

/// A group as `commit.lua` takes it: an insert and a change of the same task are one part.
struct GroupParts<'a> {
    group: &'a Group,
    insert: Option<&'a NewTask>,
    /// Of the inserted task.
    first_change: Option<&'a TaskChange>,
    /// Of any other task.
    change: Option<&'a TaskChange>,
}

impl<'a> GroupParts<'a> {
    fn of(group: &'a Group) -> Self {
        let insert = group.insert.as_deref();
        let change = group.change.as_ref();
        let is_first = change.map(|change| change.task) == insert.map(|task| task.id);
        let (first_change, change) = if is_first { (change, None) } else { (None, change) };
        Self { group, insert, first_change, change }
    }

    fn ids(&self) -> impl Iterator<Item = &'a TaskId> + Clone {
        self.insert.map(|task| &task.id).into_iter().chain(self.change.map(|change| &change.task))
    }

    fn add_to(&self, call: &mut Cmd) {
        let Self { group: Group { inbox_done, records, .. }, insert, first_change, change } = self;
        let any_change = first_change.or(*change);
        let result = any_change.and_then(|change| change.result.as_deref());
        let ended = any_change.map_or(&[][..], |change| &change.ended);
        let is_wrong = first_change.is_some_and(|change| !change.fits(Version::NEW));
        let parts = [
            insert.is_some(),
            change.is_some(),
            !inbox_done.is_empty(),
            result.is_some(),
            !ended.is_empty(),
            !records.is_empty(),
            is_wrong,
        ];
        call.arg(parts.iter().rev().fold(0u8, |bits, part| bits << 1 | u8::from(*part)));
        if let Some(task) = insert {
            match first_change {
                Some(change) => add_insert(call, task, &change.state),
                None => add_insert(call, task, &task.state()),
            }
        }
        if let Some(change) = change {
            // The stored state decides whether a path fits only by its start; the script compares that.
            let possible = change.fits(change.expected);
            let expected = layout::version_key(change.expected);
            call.arg(if possible { &expected[..] } else { &[] }).arg(layout::moving(&change.state));
        }
        if !inbox_done.is_empty() {
            call.arg(inbox_done.iter().flat_map(|seq| seq.0.to_be_bytes()).collect::<Vec<u8>>());
        }
        if let Some(result) = result {
            call.arg(codec::encode(result));
        }
        if !ended.is_empty() {
            call.arg(layout::ended(ended));
        }
        if !records.is_empty() {
            call.arg(records.len());
        }
        for record in records {
            call.arg(layout::record_key(&record.key));
            match &record.value {
                Some(value) => call.arg([b"+".as_slice(), value].concat()),
                None => call.arg("-"),
            };
        }
    }
}

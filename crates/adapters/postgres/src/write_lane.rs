//! What one call of `write_lane` brings: what must hold, and what is written if it does.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tasklane_core::commit::{Commit, GroupOutcome, RecordChange};
use tasklane_core::id::{AttemptNo, LaneId, LineKey, Seq, TaskId};
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{
    AttemptRecord, Fingerprint, NewTask, Place, TaskHead, TaskResult, TaskState, Unique,
};
use tasklane_core::time::Timestamp;
use tasklane_ports::codec::encode;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::columns::Column;
use crate::keys;
use crate::outcomes;

/// The number of a queue.
pub(crate) type QueueNo = i32;

/// Under which lock a count is changed, and so in which row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Coming = 0,
    Moving = 1,
}

/// A version as it is stored.
pub(crate) fn version_number(version: Version) -> i64 {
    (i64::from(version.attempt.0) << 8) | i64::from(version.status.code())
}

/// Back from [`version_number`].
pub(crate) fn version_of(number: i64) -> Option<Version> {
    let status = u8::try_from(number & 0xff).ok().and_then(Status::from_code)?;
    Some(Version { status, attempt: AttemptNo(u32::try_from(number >> 8).ok()?) })
}

/// What a task keeps for good besides its head: fingerprint, line and rank.
pub(crate) fn fixed(fingerprint: Fingerprint, line: LineKey, rank: u8) -> [u8; 26] {
    let mut bytes = [0; 26];
    bytes[0] = fingerprint.version;
    bytes[1..9].copy_from_slice(&fingerprint.hash.to_be_bytes());
    bytes[9..25].copy_from_slice(&line.0.to_be_bytes());
    bytes[25] = rank;
    bytes
}

/// The fingerprint in it.
pub(crate) fn fingerprint_of(fixed: &[u8]) -> Option<Fingerprint> {
    let hash = fixed.get(1..9)?.try_into().ok()?;
    Some(Fingerprint { version: fixed[0], hash: u64::from_be_bytes(hash) })
}

macro_rules! columns {
    ($(#[$doc:meta])* $name:ident { $($column:ident: $kind:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $($column: Column,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($column: Column::$kind(),)* }
            }
        }

        impl $name {
            fn params(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
                [$(&self.$column as &(dyn ToSql + Sync),)*].into_iter()
            }
        }
    };
}

columns! {
    /// In the order of the function's parameters.
    Columns {
        key_queue: integers,
        key_name: byteas,
        key_created: bigints,
        key_allowed: uuids,
        len_queue: integers,
        len_below: bigints,
        change_id: uuids,
        change_expected: bigints,
        change_version: bigints,
        change_state: byteas,
        change_result: byteas,
        change_place: byteas,
        change_expiry: byteas,
        from_waiting: uuids,
        to_waiting: uuids,
        from_flight: uuids,
        to_flight: uuids,
        attempt_id: uuids,
        attempt_number: bigints,
        attempt_record: byteas,
        done: bigints,
        record_kind: smallints,
        record_key: byteas,
        record_value: byteas,
        new_id: uuids,
        new_created: bigints,
        new_queue: integers,
        new_body_bytes: integers,
        new_fixed: byteas,
        new_head: byteas,
        new_body: byteas,
        new_version: bigints,
        new_state: byteas,
        new_parent: uuids,
        new_schedule: byteas,
        new_result: byteas,
        new_place: byteas,
        new_expiry: byteas,
        take_queue: integers,
        take_name: byteas,
        take_until: bigints,
        take_task: uuids,
        count_queue: integers,
        count_side: smallints,
        count_status: smallints,
        count_n: bigints,
    }
}

/// Names the owner and the number of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    epoch: i64,
    owner: Uuid,
    number: i64,
}

impl Fence {
    pub(crate) fn of(commit: &Commit) -> Self {
        Self {
            epoch: commit.epoch.0.cast_signed(),
            owner: commit.owner.0,
            number: commit.number.0.cast_signed(),
        }
    }
}

/// All that is to be written to a lane at once.
#[derive(Debug)]
pub(crate) struct LaneWriteBuilder {
    lane: LaneId,
    columns: Columns,
    created: u64,
    counts: FxHashMap<(QueueNo, Side, Status), i64>,
    limits: SmallVec<[(QueueNo, i64); 4]>,
    head: Option<HeadRow>,
    /// In the order of what was asked. Created tasks are numbered from 1 here.
    pub(crate) outcomes: Vec<GroupOutcome>,
}

/// The last head: tasks that come together often have the same.
#[derive(Debug)]
struct HeadRow {
    head: Arc<TaskHead>,
    line: LineKey,
    rank: u8,
    bytes: Vec<u8>,
}

impl LaneWriteBuilder {
    pub(crate) fn new(lane: LaneId) -> Self {
        Self {
            lane,
            columns: Columns::default(),
            created: 0,
            counts: FxHashMap::default(),
            limits: SmallVec::new(),
            head: None,
            outcomes: Vec::new(),
        }
    }

    /// A unique key must be free for a task that is resolved by a time, or held by the one allowed.
    pub(crate) fn require_key(
        &mut self,
        queue: QueueNo,
        key: &str,
        keyed_at: Timestamp,
        allowed: Option<TaskId>,
    ) {
        self.columns.key_queue.integer(queue);
        self.columns.key_name.bytea(key.as_bytes());
        self.columns.key_created.bigint(keyed_at.as_micros());
        self.columns.key_allowed.maybe_uuid(allowed.map(|id| id.0));
    }

    /// Fewer than this many tasks must wait in a queue before anything is written.
    pub(crate) fn require_below(&mut self, queue: QueueNo, below: i64) {
        match self.limits.iter_mut().find(|(known, _)| *known == queue) {
            Some((_, least)) => *least = below.min(*least),
            None => self.limits.push((queue, below)),
        }
    }

    /// Creates a task in a state, and answers its number among those that are created.
    pub(crate) fn create(
        &mut self,
        new: &NewTask,
        queue: QueueNo,
        state: &TaskState,
        result: Option<&TaskResult>,
    ) -> Seq {
        let row = match &mut self.head {
            Some(row) if row.head == new.spec.head => row,
            other => {
                let head = &new.spec.head;
                let (line, rank, bytes) = (head.line(), head.priority.rank(), encode(&**head));
                other.insert(HeadRow { head: Arc::clone(head), line, rank, bytes })
            }
        };
        let body = &*new.spec.body;
        let columns = &mut self.columns;
        columns.new_id.uuid(new.id.0);
        columns.new_created.bigint(new.created_at.as_micros());
        columns.new_queue.integer(queue);
        columns.new_body_bytes.integer(i32::try_from(body.bytes()).unwrap_or(i32::MAX));
        columns.new_fixed.bytea(&fixed(new.fingerprint, row.line, row.rank));
        columns.new_head.bytea(&row.bytes);
        columns.new_body.bytea(&encode(body));
        columns.new_version.bigint(version_number(state.version()));
        columns.new_state.bytea(&encode(state));
        columns.new_parent.maybe_uuid(body.parent.map(|id| id.0));
        columns.new_schedule.maybe_bytea(body.schedule.as_ref().map(String::as_bytes));
        columns.new_result.maybe_bytea(result.map(encode).as_deref());
        let place = match state.place() {
            Place::Ready => Some(keys::ready_prefix(self.lane, row.line, row.rank, state.due)),
            Place::Delayed => Some(keys::delayed_prefix(self.lane, state.due)),
            Place::InFlight => {
                columns.to_flight.uuid(new.id.0);
                None
            }
            Place::Done => None,
        };
        columns.new_place.maybe_bytea(place.as_deref());
        columns.new_expiry.maybe_bytea(deadline(self.lane, state).as_deref());
        *self.counts.entry((queue, Side::Coming, state.status)).or_default() += 1;
        self.created += 1;
        Seq(self.created)
    }

    /// A created task takes its unique key.
    pub(crate) fn take_key(&mut self, queue: QueueNo, unique: &Unique, task: TaskId) {
        self.columns.take_queue.integer(queue);
        self.columns.take_name.bytea(unique.key.as_bytes());
        self.columns.take_until.maybe_bigint(unique.until.map(Timestamp::as_micros));
        self.columns.take_task.uuid(task.0);
    }

    /// Changes a task that must be stored as expected.
    pub(crate) fn change(
        &mut self,
        id: TaskId,
        queue: QueueNo,
        expected: Version,
        state: &TaskState,
        result: Option<&TaskResult>,
    ) {
        let columns = &mut self.columns;
        columns.change_id.uuid(id.0);
        columns.change_expected.bigint(version_number(expected));
        columns.change_version.bigint(version_number(state.version()));
        columns.change_state.bytea(&encode(state));
        columns.change_result.maybe_bytea(result.map(encode).as_deref());
        let (from, to) = (expected.status, state.status);
        let place = match state.place() {
            // Its line is known where it is stored.
            Place::Ready => Some(SmallVec::from_slice(&keys::time(state.due))),
            Place::Delayed => Some(keys::delayed_prefix(self.lane, state.due)),
            Place::InFlight | Place::Done => None,
        };
        columns.change_place.maybe_bytea(place.as_deref());
        columns.change_expiry.maybe_bytea(deadline(self.lane, state).as_deref());
        if from.is_waiting() {
            columns.from_waiting.uuid(id.0);
        }
        if to.is_waiting() {
            columns.to_waiting.uuid(id.0);
        }
        if from.is_in_flight() && !to.is_in_flight() {
            columns.from_flight.uuid(id.0);
        }
        if to.is_in_flight() && !from.is_in_flight() {
            columns.to_flight.uuid(id.0);
        }
        if from != to {
            *self.counts.entry((queue, Side::Moving, from)).or_default() -= 1;
            *self.counts.entry((queue, Side::Moving, to)).or_default() += 1;
        }
    }

    /// An attempt of a task has ended and was not the last. Of several with one number only the last may be given.
    pub(crate) fn attempt(&mut self, id: TaskId, attempt: &AttemptRecord) {
        self.columns.attempt_id.uuid(id.0);
        self.columns.attempt_number.bigint(i64::from(attempt.number.0));
        self.columns.attempt_record.bytea(&encode(attempt));
    }

    /// An inbox row is dealt with.
    pub(crate) fn done(&mut self, seq: Seq) {
        self.columns.done.bigint(keys::row_key(self.lane, seq));
    }

    /// A record is written or removed. Of several with one key only the last may be given.
    pub(crate) fn record(&mut self, change: &RecordChange) {
        self.columns.record_kind.smallint(i16::from(change.key.kind.code()));
        self.columns.record_key.bytea(change.key.key.as_bytes());
        self.columns.record_value.maybe_bytea(change.value.as_deref());
    }

    /// Ready to be sent.
    pub(crate) fn finish(mut self, fence: Option<Fence>) -> LaneWrite {
        for (queue, below) in &self.limits {
            self.columns.len_queue.integer(*queue);
            self.columns.len_below.bigint(*below);
        }
        for ((queue, side, status), n) in &self.counts {
            if *n != 0 {
                self.columns.count_queue.integer(*queue);
                self.columns.count_side.smallint(*side as i16);
                self.columns.count_status.smallint(i16::from(status.code()));
                self.columns.count_n.bigint(*n);
            }
        }
        LaneWrite {
            lane: i32::from(self.lane.0),
            epoch: fence.map(|fence| fence.epoch),
            owner: fence.map(|fence| fence.owner),
            number: fence.map(|fence| fence.number),
            packed: fence.map(|_| encode(&outcomes::pack(&self.outcomes))),
            columns: self.columns,
            outcomes: self.outcomes,
        }
    }
}

/// When a waiting task is found by its deadline.
fn deadline(lane: LaneId, state: &TaskState) -> Option<keys::IndexKey> {
    let start_by = state.start_by.filter(|_| state.status.is_waiting())?;
    Some(keys::deadline_prefix(lane, start_by))
}

/// A call of `write_lane`.
#[derive(Debug)]
pub(crate) struct LaneWrite {
    lane: i32,
    epoch: Option<i64>,
    owner: Option<Uuid>,
    number: Option<i64>,
    packed: Option<Vec<u8>>,
    columns: Columns,
    /// Created tasks are numbered from 1 here.
    pub(crate) outcomes: Vec<GroupOutcome>,
}

impl LaneWrite {
    /// How many parameters the function takes.
    pub(crate) const PARAMS: usize = 51;

    pub(crate) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let fence: [&(dyn ToSql + Sync); 5] =
            [&self.lane, &self.epoch, &self.owner, &self.number, &self.packed];
        fence.into_iter().chain(self.columns.params()).collect()
    }

    /// The outcomes, once it is known from where created tasks are numbered.
    pub(crate) fn outcomes(self, base: u64) -> Vec<GroupOutcome> {
        outcomes::counted_from(self.outcomes, base)
    }

    /// Whether there is nothing to write: a submit of nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.epoch.is_none() && self.columns.new_id.is_empty()
    }
}

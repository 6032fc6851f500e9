//! The packed form of values. Fields that a script reads without decoding stand first, in fixed places
//! (`writing.lua` has the table). The value follows, encoded by `tasklane_ports::codec`. Numbers in sorted
//! keys are big-endian, times with their sign turned, so that the order of bytes is the order of values.

use std::sync::Arc;

use redis::Value;
use tasklane_core::command::{Command, InboxRow};
use tasklane_core::commit::{GroupOutcome, RecordKey, RecordKind, SubmitOutcome};
use tasklane_core::id::{AttemptNo, LineKey, Name, QueueKey, Seq, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{
    AttemptRecord, NewTask, OrderKey, Place, TaskBody, TaskHead, TaskRow, TaskSpec, TaskState, Unique,
};
use tasklane_core::time::Timestamp;
use tasklane_ports::{StoreError, TaskCursor, codec};
use uuid::Uuid;

use crate::error::unexpected;

/// Layout of the packed state. A new layout is readable beside the old one.
const LAYOUT: u8 = 1;
/// Position of the layout, after the arrival number.
const LAYOUT_AT: usize = 8;
/// Position of the size of the body.
const BODY_BYTES_AT: usize = 35;
/// Position of the queue's name, after its length.
const QUEUE: usize = 49;
/// Length of the changing fields before the encoded state.
const MOVING: usize = 23;
/// A body up to this size is stored with its head.
const BODY_WITH_HEAD_MAX: usize = 4 << 10;

pub(crate) fn time_key(time: Timestamp) -> [u8; 8] {
    (time.as_micros().cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

pub(crate) fn time_of(key: [u8; 8]) -> Timestamp {
    Timestamp::from_micros((u64::from_be_bytes(key) ^ (1 << 63)).cast_signed())
}

pub(crate) fn version_key(version: Version) -> [u8; 5] {
    let mut key = [0; 5];
    key[0] = version.status.code();
    key[1..].copy_from_slice(&version.attempt.0.to_be_bytes());
    key
}

/// The part of a packed state that changes.
pub(crate) fn moving(state: &TaskState) -> Vec<u8> {
    let mut packed = Vec::with_capacity(MOVING + 128);
    add_moving(&mut packed, state);
    packed
}

fn add_moving(packed: &mut Vec<u8>, state: &TaskState) {
    let place = match state.place() {
        Place::Ready => b'r',
        Place::Delayed => b'd',
        Place::InFlight => b'f',
        Place::Done => b'x',
    };
    let start_by = state.start_by.filter(|_| state.status.is_waiting());
    packed.push(u8::from(start_by.is_some()));
    packed.push(place);
    packed.extend_from_slice(&version_key(state.version()));
    packed.extend_from_slice(&time_key(state.due));
    packed.extend_from_slice(&start_by.map_or([0; 8], time_key));
    packed.extend_from_slice(&codec::encode(state));
}

/// The packed state of a new task that is already in some state, but for its arrival number.
pub(crate) fn packed(task: &NewTask, state: &TaskState) -> Vec<u8> {
    let head = &task.spec.head;
    let queue = queue_key(&head.queue);
    let body_bytes = u32::try_from(task.spec.body_bytes()).unwrap_or(u32::MAX);
    let queue_len = u16::try_from(queue.len()).expect("two names of at most 128 bytes");
    let mut packed = Vec::with_capacity(QUEUE + queue.len() + MOVING + 128);
    packed.push(LAYOUT);
    packed.extend_from_slice(&head.line().0.to_be_bytes());
    packed.push(head.priority.rank());
    packed.push(task.fingerprint.version);
    packed.extend_from_slice(&task.fingerprint.hash.to_be_bytes());
    packed.extend_from_slice(&body_bytes.to_be_bytes());
    packed.extend_from_slice(&time_key(task.created_at));
    packed.extend_from_slice(&queue_len.to_be_bytes());
    packed.extend_from_slice(queue.as_bytes());
    add_moving(&mut packed, state);
    packed
}

/// A stored spec: the size of the head, the head, and a small body; a larger body is the second value.
pub(crate) fn spec(spec: &TaskSpec) -> (Vec<u8>, Vec<u8>) {
    let mut packed = vec![0; 4];
    packed.extend_from_slice(&codec::encode(&*spec.head));
    let head_len = u32::try_from(packed.len() - 4).expect("a head is far below 4 GiB");
    packed[..4].copy_from_slice(&head_len.to_be_bytes());
    if spec.body_bytes() <= BODY_WITH_HEAD_MAX {
        packed.extend_from_slice(&codec::encode(&*spec.body));
        (packed, Vec::new())
    } else {
        (packed, codec::encode(&*spec.body))
    }
}

/// A unique key as scripts take it: the time that decides whether an earlier hold has ended; then '-' and the
/// key, or '+', the end of the new hold, and the key.
pub(crate) fn unique(unique: &Unique, keyed_at: Timestamp) -> Vec<u8> {
    let at = time_key(keyed_at);
    match unique.until {
        Some(until) => [&at, b"+".as_slice(), &time_key(until), unique.key.as_bytes()].concat(),
        None => [&at, b"-".as_slice(), unique.key.as_bytes()].concat(),
    }
}

/// A queue as part of a key. Names contain no slash.
pub(crate) fn queue_key(queue: &QueueKey) -> String {
    format!("{}/{}", queue.namespace, queue.queue)
}

pub(crate) fn queue_of(key: &[u8]) -> Result<QueueKey, StoreError> {
    let name = |text: &str| Name::new(text).map_err(StoreError::corrupt);
    let key = std::str::from_utf8(key).map_err(StoreError::corrupt)?;
    let (namespace, queue) = key.split_once('/').ok_or_else(|| unexpected("a queue without a namespace"))?;
    Ok(QueueKey::new(name(namespace)?, name(queue)?))
}

/// A task from its stored parts.
pub(crate) fn row(id: TaskId, state: &[u8], spec: &[u8], body: Option<&[u8]>) -> Result<TaskRow, StoreError> {
    let encoded = encoded_state(state)?;
    let seq = Seq(u64::from_be_bytes(fixed(state, 0)?));
    let head_len = u32::from_be_bytes(fixed(spec, 0)?) as usize;
    let (head, with_head) =
        spec[4..].split_at_checked(head_len).ok_or_else(|| unexpected("a spec that is cut off"))?;
    let body = body.or_else(|| (!with_head.is_empty()).then_some(with_head));
    Ok(TaskRow {
        id,
        seq,
        head: Arc::new(codec::decode::<TaskHead>(head)?),
        body: body.map(codec::decode::<TaskBody>).transpose()?.map(Arc::new),
        state: codec::decode(encoded)?,
    })
}

/// The encoded part of a packed state.
fn encoded_state(packed: &[u8]) -> Result<&[u8], StoreError> {
    if packed.get(LAYOUT_AT) != Some(&LAYOUT) {
        return Err(unexpected("a state of another layout"));
    }
    let queue_len = usize::from(u16::from_be_bytes(fixed(packed, QUEUE - 2)?));
    let encoded = packed.get(QUEUE + queue_len + MOVING..);
    encoded.ok_or_else(|| unexpected("a state that is cut off"))
}

/// The state of a finished task, and whether it still has its data: a stripped task has a body of size 0.
pub(crate) fn finished(packed: &[u8]) -> Result<(TaskState, bool), StoreError> {
    let state = codec::decode(encoded_state(packed)?)?;
    Ok((state, fixed(packed, BODY_BYTES_AT)? != [0; 4]))
}

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], StoreError> {
    let part = bytes.get(at..at + N).and_then(|part| part.try_into().ok());
    part.ok_or_else(|| unexpected("a value that is too short"))
}

pub(crate) fn task_id(bytes: &[u8]) -> Result<TaskId, StoreError> {
    Uuid::from_slice(bytes).map(TaskId).map_err(StoreError::corrupt)
}

/// An entry of the index of creation times.
pub(crate) fn cursor_key(cursor: TaskCursor) -> Vec<u8> {
    [&time_key(cursor.created_at)[..], cursor.id.0.as_bytes()].concat()
}

pub(crate) fn cursor_of(key: &[u8]) -> Result<TaskCursor, StoreError> {
    let id = key.get(8..).unwrap_or_default();
    Ok(TaskCursor { created_at: time_of(fixed(key, 0)?), id: task_id(id)? })
}

pub(crate) fn record_key(key: &RecordKey) -> Vec<u8> {
    [&[key.kind.code()], key.key.as_bytes()].concat()
}

pub(crate) fn record_key_of(bytes: &[u8]) -> Result<RecordKey, StoreError> {
    let (kind, key) = bytes.split_first().ok_or_else(|| unexpected("an empty record key"))?;
    let kind = RecordKind::from_code(*kind).ok_or_else(|| unexpected("an unknown kind of record"))?;
    Ok(RecordKey { kind, key: String::from_utf8(key.to_vec()).map_err(StoreError::corrupt)? })
}

pub(crate) fn inbox_row(bytes: &[u8]) -> Result<InboxRow, StoreError> {
    let seq = Seq(u64::from_be_bytes(fixed(bytes, 0)?));
    let command = codec::decode::<Command>(bytes.get(8..).unwrap_or_default())?;
    Ok(InboxRow { seq, command })
}

/// Ended attempts as they are appended to a task's: number, length, encoded record of each.
pub(crate) fn ended(attempts: &[AttemptRecord]) -> Vec<u8> {
    let mut packed = Vec::new();
    for attempt in attempts {
        let record = codec::encode(attempt);
        let len = u32::try_from(record.len()).expect("an attempt is far below 4 GiB");
        packed.extend_from_slice(&attempt.number.0.to_be_bytes());
        packed.extend_from_slice(&len.to_be_bytes());
        packed.extend_from_slice(&record);
    }
    packed
}

/// The attempts by number; of several with the same number the last counts.
pub(crate) fn attempts_of(mut packed: &[u8]) -> Result<Vec<AttemptRecord>, StoreError> {
    let mut attempts = std::collections::BTreeMap::new();
    while !packed.is_empty() {
        let number = AttemptNo(u32::from_be_bytes(fixed(packed, 0)?));
        let len = u32::from_be_bytes(fixed(packed, 4)?) as usize;
        let record = packed.get(8..8 + len).ok_or_else(|| unexpected("an attempt that is cut off"))?;
        attempts.insert(number, codec::decode(record)?);
        packed = &packed[8 + len..];
    }
    Ok(attempts.into_values().collect())
}

/// Bounds of a range in an index, as `ZRANGEBYLEX` takes them.
pub(crate) mod bound {
    use super::{LineKey, OrderKey, RecordKey, Seq, TaskId, Timestamp, record_key, time_key};

    /// Longer than an id, so it sorts after every entry with the prefix before it.
    const END: [u8; 17] = [0xff; 17];

    fn from(parts: &[&[u8]]) -> Vec<u8> {
        [&[b"[".as_slice()], parts].concat().concat()
    }

    fn after(parts: &[&[u8]]) -> Vec<u8> {
        [&[b"(".as_slice()], parts, &[&END]].concat().concat()
    }

    pub(crate) fn start() -> Vec<u8> {
        b"-".to_vec()
    }

    pub(crate) fn end() -> Vec<u8> {
        b"+".to_vec()
    }

    pub(crate) fn after_id(id: TaskId) -> Vec<u8> {
        [b"(".as_slice(), id.0.as_bytes()].concat()
    }

    pub(crate) fn after_record(key: &RecordKey) -> Vec<u8> {
        [b"(".as_slice(), &record_key(key)].concat()
    }

    pub(crate) fn after_time((time, seq): (Timestamp, Seq)) -> Vec<u8> {
        after(&[&time_key(time), &seq.0.to_be_bytes()])
    }

    pub(crate) fn until_time(time: Timestamp) -> Vec<u8> {
        from(&[&time_key(time), &[0xff; 25]])
    }

    pub(crate) fn after_seq(seq: Seq) -> Vec<u8> {
        after(&[&seq.0.to_be_bytes()])
    }

    pub(crate) fn from_line(line: LineKey) -> Vec<u8> {
        from(&[&line.0.to_be_bytes()])
    }

    pub(crate) fn end_of_line(line: LineKey) -> Vec<u8> {
        from(&[&line.0.to_be_bytes(), &[0xff]])
    }

    pub(crate) fn after_order(line: LineKey, order: OrderKey) -> Vec<u8> {
        after(&[&line.0.to_be_bytes(), &[order.rank], &time_key(order.due), &order.seq.0.to_be_bytes()])
    }
}

/// The outcomes of a submit.
pub(crate) fn submit_outcomes(mut packed: &[u8]) -> Result<Vec<SubmitOutcome>, StoreError> {
    let mut outcomes = Vec::new();
    while let Some((letter, rest)) = packed.split_first() {
        packed = rest;
        outcomes.push(submit_outcome(*letter, &mut packed)?);
    }
    Ok(outcomes)
}

fn submit_outcome(letter: u8, packed: &mut &[u8]) -> Result<SubmitOutcome, StoreError> {
    match letter {
        b'C' => {
            let seq = Seq(u64::from_be_bytes(fixed(packed, 0)?));
            *packed = &packed[8..];
            Ok(SubmitOutcome::Created { seq })
        }
        b'D' => Ok(SubmitOutcome::Duplicate),
        b'R' => Ok(SubmitOutcome::RequestIdReused),
        b'E' => {
            let task = TaskId(Uuid::from_bytes(fixed(packed, 0)?));
            *packed = &packed[16..];
            Ok(SubmitOutcome::Exists { task })
        }
        b'F' => Ok(SubmitOutcome::QueueFull),
        _ => Err(unexpected("an unknown outcome")),
    }
}

/// The outcomes of a commit.
pub(crate) fn group_outcomes(mut packed: &[u8]) -> Result<Vec<GroupOutcome>, StoreError> {
    let mut outcomes = Vec::new();
    while let Some((letter, rest)) = packed.split_first() {
        packed = rest;
        outcomes.push(match letter {
            b'A' => GroupOutcome::Applied { seq: None },
            b'N' => GroupOutcome::Mismatch { found: None },
            b'M' => {
                let [status, attempt @ ..] = fixed::<5>(packed, 0)?;
                packed = &packed[5..];
                let status = Status::from_code(status).ok_or_else(|| unexpected("an unknown status"))?;
                let attempt = AttemptNo(u32::from_be_bytes(attempt));
                GroupOutcome::Mismatch { found: Some(Version { status, attempt }) }
            }
            letter => match submit_outcome(*letter, &mut packed)? {
                SubmitOutcome::Created { seq } => GroupOutcome::Applied { seq: Some(seq) },
                refused => GroupOutcome::NotCreated(refused),
            },
        });
    }
    Ok(outcomes)
}

/// Values of an answer, one after the other.
pub(crate) struct ReplyValues(std::vec::IntoIter<Value>);

impl ReplyValues {
    pub(crate) fn new(answer: Value) -> Result<Self, StoreError> {
        match answer {
            Value::Array(values) => Ok(Self(values.into_iter())),
            _ => Err(unexpected("no list")),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A list within the list.
    pub(crate) fn list(&mut self) -> Result<Self, StoreError> {
        Self::new(self.0.next().unwrap_or(Value::Nil))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn optional(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(Value::Nil) => Ok(None),
            _ => Err(unexpected("neither bytes nor nothing")),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        self.optional()?.ok_or_else(|| unexpected("nothing where bytes should be"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, StoreError> {
        match self.0.next() {
            Some(Value::Int(flag)) => Ok(flag != 0),
            _ => Err(unexpected("no flag")),
        }
    }

    /// A number that is stored as its text.
    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        number(&self.bytes()?)
    }

    /// Whether an empty value comes next.
    pub(crate) fn is_command(&self) -> bool {
        matches!(self.0.as_slice().first(), Some(Value::BulkString(bytes)) if bytes.is_empty())
    }

    /// Id, state, spec and body of a task; `None` if there is no such task.
    pub(crate) fn row(&mut self) -> Result<Option<TaskRow>, StoreError> {
        let id = task_id(&self.bytes()?)?;
        let (state, spec, body) = (self.optional()?, self.optional()?, self.optional()?);
        let Some(state) = state else { return Ok(None) };
        let spec = spec.ok_or_else(|| unexpected("a state without a spec"))?;
        row(id, &state, &spec, body.as_deref()).map(Some)
    }
}

/// A number that is stored as its text.
pub(crate) fn number(text: &[u8]) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(text).map_err(StoreError::corrupt)?;
    text.parse().map_err(StoreError::corrupt)
}

/// A number as its first 8 bytes.
pub(crate) fn be_number(bytes: &[u8]) -> Result<u64, StoreError> {
    fixed(bytes, 0).map(u64::from_be_bytes)
}

/// A policy from its stored revision, version and value.
pub(crate) fn policy_of(stored: &[u8]) -> Result<VersionedPolicy, StoreError> {
    let version = u64::from_be_bytes(fixed(stored, 8)?);
    let policy = codec::decode(stored.get(16..).unwrap_or_default())?;
    Ok(VersionedPolicy { version, policy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sort_as_their_keys() {
        let times = [i64::MIN, -1, 0, 1, 1_700_000_000_000_000, i64::MAX].map(Timestamp::from_micros);
        for pair in times.windows(2) {
            assert!(time_key(pair[0]) < time_key(pair[1]));
        }
        for time in times {
            assert_eq!(time_of(time_key(time)), time);
        }
    }

    #[test]
    fn outcomes_are_read_back() {
        let mut packed = b"AD".to_vec();
        packed.push(b'C');
        packed.extend_from_slice(&7u64.to_be_bytes());
        packed.extend_from_slice(b"NRE");
        let holder = TaskId::from_random(u128::MAX / 3);
        packed.extend_from_slice(holder.0.as_bytes());
        packed.extend_from_slice(b"FM");
        let version = Version { status: Status::Running, attempt: AttemptNo(258) };
        packed.extend_from_slice(&version_key(version));
        assert_eq!(
            group_outcomes(&packed).unwrap(),
            [
                GroupOutcome::Applied { seq: None },
                GroupOutcome::NotCreated(SubmitOutcome::Duplicate),
                GroupOutcome::Applied { seq: Some(Seq(7)) },
                GroupOutcome::Mismatch { found: None },
                GroupOutcome::NotCreated(SubmitOutcome::RequestIdReused),
                GroupOutcome::NotCreated(SubmitOutcome::Exists { task: holder }),
                GroupOutcome::NotCreated(SubmitOutcome::QueueFull),
                GroupOutcome::Mismatch { found: Some(version) },
            ]
        );
        assert!(group_outcomes(b"C").is_err());
        assert!(submit_outcomes(b"E012345678901234").is_err());
        assert!(submit_outcomes(b"A").is_err());
    }

    #[test]
    fn of_two_attempts_with_one_number_the_last_counts() {
        let attempt = |number, scheduled: i64| AttemptRecord {
            number: AttemptNo(number),
            session: None,
            worker: None,
            scheduled_at: Timestamp::from_micros(scheduled),
            started_at: None,
            ended_at: None,
            outcome: None,
            error: None,
        };
        let packed = ended(&[attempt(2, 1), attempt(1, 2), attempt(2, 3)]);
        assert_eq!(attempts_of(&packed).unwrap(), [attempt(1, 2), attempt(2, 3)]);
        assert!(attempts_of(&packed[..packed.len() - 1]).is_err());
    }
}

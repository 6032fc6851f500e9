//! Names and numbers that identify things. Each is its own type, so that two of them never get swapped.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
use uuid::Uuid;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use crate::policy::Rate;
use crate::time::Timestamp;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The unit of ownership: every queue belongs to a lane, every lane to one scheduler at a time.
    LaneId(u16)
}
number! {
    /// Counts the owners of a lane. The store refuses commits under any other epoch than the current one.
    Epoch(u64)
}
number! {
    /// Counts the commits of one owner of a lane, from 1. Settles the outcome of a commit whose answer was
    /// lost.
    CommitNo(u64)
}
number! {
    /// Place in the order in which a lane's tasks and inbox rows became visible.
    Seq(u64)
}
number! {
    /// Number of an attempt of a task, from 1. 0 before the first.
    AttemptNo(u32)
}
number! {
    /// The `k` of a dispatch: counts the dispatches of one owner of a lane to one worker session, from 1.
    DispatchNo(u64)
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// From 128 random bits.
            pub const fn from_random(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

random_id! {
    /// A live process as the coordinator sees it: a new random identity at every start.
    SessionId
}
random_id! {
    /// Identity of one claim of a lane, random for each claim.
    OwnerId
}
random_id! {
    /// Identity of a task: a `UUIDv8` whose first 16 bits are its lane.
    ///
    /// ```text
    /// bytes 0-1   lane
    /// bytes 2-7   44 bits: milliseconds since 1970, or hash (the high nibble of byte 6 is the UUID version)
    /// bytes 8-15  2 bits UUID variant, 1 bit kind (1 = hash of a request id), 61 bits random or hash
    /// ```
    /// With a request id the rest is `hash(namespace, queue, spread key, requestId)`, so that idempotency is
    /// the primary key: one slot, one transaction, in every store.
    TaskId
}

impl TaskId {
    const KIND_HASH: u64 = 1 << 61;
    const LOW: u64 = (1 << 61) - 1;
    const TIME_BITS: u64 = (1 << 44) - 1;

    /// For a task without a request id.
    pub fn from_time(lane: LaneId, now: Timestamp, random: u64) -> Self {
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        Self::pack(lane, millis & Self::TIME_BITS, random & Self::LOW)
    }

    /// For a task with a request id: the same request always gets the same id. In a `spread` queue the scope
    /// of the request id includes the spread key.
    pub fn from_request(lane: LaneId, queue: &QueueKey, spread_key: Option<&str>, request_id: &str) -> Self {
        let mut hash = Xxh3::new();
        let spread_key = spread_key.map_or(String::new(), |k| format!("={k}"));
        for part in [queue.namespace.as_str(), queue.queue.as_str(), &spread_key, request_id] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let bits = hash.digest128();
        #[expect(clippy::cast_possible_truncation, reason = "two disjoint parts of the hash are wanted")]
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        Self::pack(lane, high & Self::TIME_BITS, Self::KIND_HASH | (low & Self::LOW))
    }

    fn pack(lane: LaneId, middle: u64, low: u64) -> Self {
        let high = (u64::from(lane.0) << 48) | ((middle >> 12) << 16) | 0x8000 | (middle & 0xfff);
        let low = (0b10 << 62) | low;
        Self(Uuid::from_u64_pair(high, low))
    }

    /// The lane that owns this task.
    pub fn lane(self) -> LaneId {
        let bytes = self.0.as_bytes();
        LaneId(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

/// A name that a user chose: of a namespace, queue, task type or worker. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing in it.
    #[error("must not be empty")]
    Empty,
    /// Over [`Name::LEN_MAX`].
    #[error("must be at most {max} bytes long, not {len}", max = Name::LEN_MAX)]
    TooLong {
        /// How long it is.
        len: usize,
    },
    /// A character that names may not contain.
    #[error("must contain only letters, digits and - _ . : @, not {0:?}")]
    Character(char),
}

impl Name {
    /// The longest name, in bytes.
    pub const LEN_MAX: usize = 128;

    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > Self::LEN_MAX {
            return Err(NameError::TooLong { len: name.len() });
        }
        match name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.:@".contains(*c))) {
            Some(c) => Err(NameError::Character(c)),
            None => Ok(Self(name.into())),
        }
    }

    /// System names begin with this.
    pub const SYSTEM_PREFIX: &str = "tasklane.";

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a system name: of a task type, queue or worker of the server itself.
    pub fn is_system(&self) -> bool {
        self.0.starts_with(Self::SYSTEM_PREFIX)
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        Self::new(s)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

/// A queue within its namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueKey {
    /// The namespace that owns the queue.
    #[serde(rename = "ns")]
    pub namespace: Name,
    /// The queue's name.
    #[serde(rename = "q")]
    pub queue: Name,
}

impl QueueKey {
    /// The queue `queue` of `namespace`.
    pub fn new(namespace: Name, queue: Name) -> Self {
        Self { namespace, queue }
    }

    /// The lane that a queue gets at its first use, among `lanes` of them.
    pub fn default_lane(&self, lanes: u16) -> LaneId {
        lane_of(&[self.namespace.as_str(), self.queue.as_str()], lanes)
    }

    /// The lane of one spread key of a `spread` queue.
    pub fn spread_lane(&self, spread_key: &str, lanes: u16) -> LaneId {
        lane_of(&[self.namespace.as_str(), self.queue.as_str(), spread_key], lanes)
    }
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.queue)
    }
}

fn lane_of(parts: &[&str], lanes: u16) -> LaneId {
    assert!(lanes > 0, "a deployment has at least one lane");
    let mut hash = Xxh3::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let lane = hash.digest() % u64::from(lanes);
    LaneId(u16::try_from(lane).expect("a remainder of a u16"))
}

/// Identity of a line: tasks of one queue with the same type, labels, flow keys and hash bucket.
/// Wide enough that two lines never share it by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LineKey(pub u128);

/// Makes a [`LineKey`] of the parts that make up a line, each with its length.
#[derive(Debug)]
pub(crate) struct LineHasher(Vec<u8>);

impl Default for LineHasher {
    fn default() -> Self {
        Self(Vec::with_capacity(192))
    }
}

impl LineHasher {
    pub(crate) fn part(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.0.extend_from_slice(part);
    }

    pub(crate) fn finish(self) -> LineKey {
        LineKey(xxh3_128(&self.0))
    }
}

/// Identity of a limit within its queue: the text of its key template, and for a rate that a task brings
/// along also the numbers. Tasks are counted together that have the same limit and the same key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LimitId(pub u64);

impl LimitId {
    /// The limit over the whole queue.
    pub const QUEUE: Self = Self(0);

    /// The limit with this key template. Blanks at the inner side of `{{` and `}}` make no difference.
    pub fn of(template: &str) -> Self {
        // Made for each task that is submitted, so without allocating where it is short.
        let mut plain: SmallVec<[u8; 128]> = SmallVec::new();
        let mut add = |parts: &[&str]| parts.iter().for_each(|part| plain.extend_from_slice(part.as_bytes()));
        for (at, part) in template.split("{{").enumerate() {
            match part.split_once("}}") {
                Some((code, rest)) if at > 0 => add(&["{{", code.trim(), "}}", rest]),
                _ if at > 0 => add(&["{{", part]),
                _ => add(&[part]),
            }
        }
        Self(xxh3_64(&plain).max(1))
    }

    /// The rate that a task brings along: a rate with other numbers has another id.
    pub fn of_own_rate(template: &str, rate: &Rate) -> Self {
        let Rate { limit, per, burst } = rate;
        Self::of(&format!("{template}\0{limit}\0{}\0{burst}", per.as_micros()))
    }
}

impl fmt::Display for LimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for LimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for LineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_around_the_code_of_a_template_make_no_other_limit() {
        let id = LimitId::of("{{ metadata.tenant }}/{{ queue }}");
        assert_eq!(LimitId::of("{{metadata.tenant}}/{{queue  }}"), id);
        for other in ["{{ metadata.tenant }}/ {{ queue }}", "{{ metadata.tenant }}", "{{ metadata.tenant"] {
            assert_ne!(LimitId::of(other), id, "{other}");
        }
    }

    fn queue(name: &str) -> QueueKey {
        QueueKey::new(Name::new("default").unwrap(), Name::new(name).unwrap())
    }

    #[test]
    fn task_id_carries_its_lane() {
        for lane in [0, 1, 15, 0x1234, u16::MAX] {
            let lane = LaneId(lane);
            assert_eq!(
                TaskId::from_time(lane, Timestamp::from_millis(1_700_000_000_000), u64::MAX).lane(),
                lane
            );
            assert_eq!(TaskId::from_request(lane, &queue("q"), None, "r").lane(), lane);
        }
    }

    #[test]
    fn task_id_is_a_uuid_of_version_8() {
        let id = TaskId::from_time(LaneId(7), Timestamp::from_millis(1_700_000_000_000), 42);
        assert_eq!(id.0.get_version_num(), 8);
        assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
    }

    #[test]
    fn ids_of_the_two_kinds_never_meet() {
        let by_time = TaskId::from_time(LaneId(0), Timestamp::from_millis(5), u64::MAX);
        let by_request = TaskId::from_request(LaneId(0), &queue("q"), None, "r");
        assert_ne!(
            by_time.0.as_u64_pair().1 & TaskId::KIND_HASH,
            by_request.0.as_u64_pair().1 & TaskId::KIND_HASH
        );
    }

    #[test]
    fn request_id_is_scoped_by_queue_and_spread_key() {
        let id = |q: &str, spread, r: &str| TaskId::from_request(LaneId(0), &queue(q), spread, r);
        assert_eq!(id("a", None, "1"), id("a", None, "1"));
        assert_ne!(id("a", None, "1"), id("b", None, "1"));
        assert_ne!(id("a", None, "1"), id("a", Some(""), "1"));
        assert_ne!(id("a", Some("x"), "1"), id("a", Some("y"), "1"));
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert_eq!(Name::new("a b"), Err(NameError::Character(' ')));
        assert_eq!(Name::new(&"x".repeat(129)), Err(NameError::TooLong { len: 129 }));
        assert_eq!(Name::new("etl.daily-2:eu@x_1").unwrap().as_str(), "etl.daily-2:eu@x_1");
    }
}

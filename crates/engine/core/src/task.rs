//! The task: an immutable spec and a small state.
//!
//! The spec has two parts. The **head** is the part that scheduling reads; it is always in memory for a task
//! in the window. The **body** is the part for the worker and for readers; it may be large, and the driver
//! reads a large body from the store when the task is sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::clock_watch::STEP_MIN;
use crate::id::{AttemptNo, LimitId, LineHasher, LineKey, Name, QueueKey, Seq, SessionId, TaskId};
use crate::policy::{Concurrency, Rate, UniqueRule, WhenReached};
use crate::retry::RetryPolicy;
use crate::status::{Status, Version};
use crate::time::{Shift, Timestamp, duration_micros};

/// 0 to 9; 9 goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The most urgent.
    pub const MAX: Self = Self(9);

    /// Checks and takes a priority.
    pub fn new(priority: u8) -> Option<Self> {
        (priority <= Self::MAX.0).then_some(Self(priority))
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// 0 for the most urgent: sorts in the order in which tasks are taken.
    pub const fn rank(self) -> u8 {
        Self::MAX.0 - self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = String;
    fn try_from(priority: u8) -> Result<Self, String> {
        Self::new(priority).ok_or_else(|| format!("must be between 0 and 9, not {priority}"))
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

/// A key under which a limit counts this task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowKey {
    /// Which limit.
    #[serde(rename = "l")]
    pub limit: LimitId,
    /// Value of its key for this task.
    #[serde(rename = "k")]
    pub key: Arc<str>,
    /// The task's own limit under this key; the queue's policy may have another.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnLimit>,
}

/// A limit that a task brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnLimit {
    /// The task is not assigned while this many attempts of its key are alive.
    #[serde(rename = "c")]
    Concurrency(Concurrency),
    /// The task counts with all tasks that bring the same rate.
    #[serde(rename = "r")]
    Rate(Rate),
}

impl OwnLimit {
    /// The bytes by which a line differs from lines with other numbers.
    fn bytes(self) -> [u8; 5] {
        let [a, b, c, d] = match self {
            Self::Concurrency(Concurrency { limit, .. }) => limit,
            // The numbers of a rate are part of its id.
            Self::Rate(_) => 0,
        }
        .to_le_bytes();
        let kind = match self {
            Self::Concurrency(Concurrency { when_reached: WhenReached::Wait, .. }) => 0,
            Self::Concurrency(Concurrency { when_reached: WhenReached::CancelNewest, .. }) => 1,
            Self::Rate(_) => 2,
        };
        [kind, a, b, c, d]
    }
}

/// A unique key of a queue: of tasks with the same one there is one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// The key.
    #[serde(rename = "k")]
    pub key: String,
    /// The task holds its key until this time, counted as [`NewTask::keyed_at`] is; `None` until it has
    /// finished.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Holders of the key are judged by a time that is this much earlier: see [`Clock::gap`](crate::clock_watch::Clock).
    #[serde(rename = "g", default, skip_serializing_if = "is_no_shift")]
    pub gap: Shift,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_no_shift(shift: &Shift) -> bool {
    *shift == Shift::ZERO
}

impl Unique {
    /// A key that is held until a time, or until its task has finished.
    pub fn new(key: impl Into<String>, until: Option<Timestamp>) -> Self {
        Self { key: key.into(), until, gap: Shift::ZERO }
    }

    /// The unique key of a task created at `now`, under a rule whose template is rendered already.
    pub fn taken(rule: &UniqueRule, now: Timestamp) -> Self {
        Self::new(&rule.key, rule.hold_for.map(|time| now + time))
    }
}

/// The part of the spec that scheduling reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHead {
    /// Namespace and queue.
    #[serde(rename = "q")]
    pub queue: QueueKey,
    /// Chooses the executor; only workers that offer the type get the task.
    #[serde(rename = "ty")]
    pub task_type: Name,
    /// For a custom type: the type that workers must offer instead, whose executor runs the task.
    #[serde(rename = "ra", default, skip_serializing_if = "Option::is_none")]
    pub runs_as: Option<Name>,
    /// Order within the queue.
    #[serde(rename = "pr")]
    pub priority: Priority,
    /// Labels that a worker must have.
    #[serde(rename = "lb", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Keys under which limits count this task, computed when it was submitted.
    #[serde(rename = "fl", default, skip_serializing_if = "Vec::is_empty")]
    pub flow: Vec<FlowKey>,
    /// For the consistent-hash strategy: tasks of one bucket go to the same worker. The bucket of the hash
    /// key; or of the task's id, if the queue had that strategy at the submit and the task has no hash key.
    #[serde(rename = "hb", default, skip_serializing_if = "Option::is_none")]
    pub hash_bucket: Option<u16>,
    /// An attempt that runs longer is stopped.
    #[serde(rename = "to", with = "duration_micros")]
    pub execution_timeout: Duration,
    /// A task not started this long after its due time fails.
    #[serde(
        rename = "st",
        with = "duration_micros::option",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub start_timeout: Option<Duration>,
    /// An attempt that reports no progress for this long is stopped.
    #[serde(
        rename = "pt",
        with = "duration_micros::option",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub progress_timeout: Option<Duration>,
    /// When and how often a failed attempt is followed by another.
    #[serde(rename = "rp")]
    pub retry: RetryPolicy,
}

impl TaskHead {
    /// Number of hash buckets: enough that a few hundred workers share them evenly, few enough that they add
    /// few lines.
    pub const HASH_BUCKETS: u16 = 1024;

    /// The approximate size of the parts that vary between heads. A line's key holds most of them once more.
    pub fn bytes(&self) -> usize {
        let names = self.queue.namespace.as_str().len()
            + self.queue.queue.as_str().len()
            + self.task_type.as_str().len();
        let labels: usize = self.labels.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let flow: usize = self.flow.iter().map(|flow| flow.key.len() + 48).sum();
        names + labels + flow
    }

    /// The type that a worker must offer to run it.
    pub fn executor(&self) -> &Name {
        self.runs_as.as_ref().unwrap_or(&self.task_type)
    }

    /// The bucket of a hash key.
    pub fn bucket_of(hash_key: &str) -> u16 {
        let bucket = xxh3_64(hash_key.as_bytes()) % u64::from(Self::HASH_BUCKETS);
        u16::try_from(bucket).expect("a remainder of a u16")
    }

    /// The line that this task waits in. A block of one task of a line blocks all of it.
    pub fn line(&self) -> LineKey {
        let bucket = self.hash_bucket.map_or(String::new(), |b| b.to_string());
        let fixed =
            [self.queue.namespace.as_str(), self.queue.queue.as_str(), self.task_type.as_str(), &bucket];
        let labels = self.labels.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]);
        let mut line = LineHasher::default();
        for name in fixed.into_iter().chain(labels).chain(["|"]) {
            line.part(name.as_bytes());
        }
        if let Some(runs_as) = &self.runs_as {
            line.part(runs_as.as_str().as_bytes());
        }
        for flow in &self.flow {
            line.part(&flow.limit.0.to_le_bytes());
            line.part(flow.own.map(OwnLimit::bytes).as_ref().map_or(&[], |own| own));
            line.part(flow.key.as_bytes());
        }
        line.finish()
    }
}

/// The part of the spec that scheduling does not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct TaskBody {
    /// The name for people.
    #[serde(rename = "nm")]
    pub name: String,
    /// The input of the executor.
    #[serde(rename = "pl", default, skip_serializing_if = "Payload::is_empty")]
    pub payload: Payload,
    /// For a custom type: the input of the executor instead, made of the payload at the submit.
    #[serde(rename = "rn", default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Payload>,
    /// The user's own key-value pairs.
    #[serde(rename = "md", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The client's name for the request.
    #[serde(rename = "ri", default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The hash key, of which the hash bucket was made.
    #[serde(rename = "hk", default, skip_serializing_if = "Option::is_none")]
    pub hash_key: Option<String>,
    /// Its unique key, and how long the task holds it. A retry of the task takes the same key.
    #[serde(rename = "uq", default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<Box<UniqueRule>>,
    /// The task that this one is a child or a retry of.
    #[serde(rename = "pa", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    /// Its name among the children of its composite; `None` for a task that is no child.
    #[serde(rename = "pn", default, skip_serializing_if = "Option::is_none")]
    pub child_name: Option<String>,
    /// It may have children: a system task that drives others.
    #[serde(rename = "ow", default, skip_serializing_if = "is_false")]
    pub composite: bool,
    /// The webhooks that receive its end.
    #[serde(rename = "wb", default, skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,
    /// Its schedule reads how it ends.
    #[serde(rename = "wt", default, skip_serializing_if = "is_false")]
    pub watched: bool,
    /// It is archived when it has ended.
    #[serde(rename = "ar", default, skip_serializing_if = "is_false")]
    pub archived: bool,
    /// The schedule that created it.
    #[serde(rename = "sc", default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The planned time of the schedule's fire.
    #[serde(rename = "nt", default, skip_serializing_if = "Option::is_none")]
    pub nominal_time: Option<Timestamp>,
    /// The client gave its due time as a delay, not as a time of day.
    #[serde(rename = "dy", default, skip_serializing_if = "is_false")]
    pub relative: bool,
}

/// A webhook: a URL that receives events over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// The URL.
    #[serde(rename = "u")]
    pub url: String,
    /// The events.
    #[serde(rename = "o")]
    pub on: Vec<Occasion>,
}

/// An event that a webhook may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Occasion {
    /// A task has ended, in any status.
    #[serde(rename = "e")]
    Finished,
    /// A task has failed.
    #[serde(rename = "f")]
    Failed,
    /// The tasks of a schedule begin to fail, or no longer do.
    #[serde(rename = "g")]
    Failing,
    /// A schedule is late.
    #[serde(rename = "l")]
    Late,
}

impl TaskBody {
    /// Whether a webhook, a schedule or the archive needs the end of the task.
    pub fn is_watched(&self) -> bool {
        self.watched || self.archived || !self.webhooks.is_empty()
    }
}

/// The payload of a task: plain text or JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// A plain string.
    #[serde(rename = "t")]
    Text(String),
    /// A JSON value, as its text.
    #[serde(rename = "j")]
    Json(String),
}

impl Payload {
    /// The text, whichever kind it is.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Json(text) => text,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// The whole immutable spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// The part that scheduling reads.
    pub head: Arc<TaskHead>,
    /// The rest.
    pub body: Arc<TaskBody>,
}

impl TaskSpec {
    /// The approximate size of the large part, in memory and in a message.
    pub fn body_bytes(&self) -> usize {
        self.body.bytes()
    }
}

impl TaskBody {
    /// The input of the executor.
    pub fn given(&self) -> &Payload {
        self.run.as_ref().unwrap_or(&self.payload)
    }

    /// The approximate size in bytes.
    pub fn bytes(&self) -> usize {
        let metadata: usize = self.metadata.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let request_id = self.request_id.as_ref().map_or(0, String::len);
        let hash_key = self.hash_key.as_ref().map_or(0, String::len);
        let schedule = self.schedule.as_ref().map_or(0, String::len);
        let child_name = self.child_name.as_ref().map_or(0, |name| 2 * name.len());
        let run = self.run.as_ref().map_or(0, |run| run.as_str().len());
        let unique = self.unique.as_ref().map_or(0, |unique| unique.key.len() + 16);
        self.name.len()
            + unique
            + self.payload.as_str().len()
            + metadata
            + request_id
            + hash_key
            + schedule
            + child_name
            + run
            + 64
    }
}

/// A task as it is submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTask {
    /// Its identity, which carries the lane.
    pub id: TaskId,
    /// The spec.
    pub spec: TaskSpec,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it may run: `created_at` unless it is delayed.
    pub due: Timestamp,
    /// Hash of the request as the client sent it, with the version of the hashing. The same request id with
    /// another fingerprint is refused.
    pub fingerprint: Fingerprint,
    /// Refuse if this many tasks or more wait in the queue already.
    pub queue_len_max: Option<u32>,
    /// Take this key of the queue, or refuse if another task holds it.
    pub unique: Option<Unique>,
    /// The sum of all steps of the lane's clock when its times were made. `None` until the owner of the lane
    /// has seen the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<Shift>,
}

impl NewTask {
    /// Starts its durations at `now` by the clock of its lane, whose steps so far sum up to `shift`. A submit
    /// that was on its way while the clock stepped is thereby judged by the clock after the step.
    pub fn anchor(&mut self, now: Timestamp, shift: Shift) {
        let late = now.shift_from(self.created_at);
        let by = if late.abs() < STEP_MIN { Shift::ZERO } else { late };
        self.key_by(shift);
        if let Some(until) = self.unique.as_mut().and_then(|unique| unique.until.as_mut()) {
            *until = *until + by;
        }
        self.shift_by(by, shift);
    }

    /// Counts the time of its unique key without the steps of the lane's clock, so that the task holds the
    /// key for the time it asked for.
    pub fn key_by(&mut self, shift: Shift) {
        self.shift = Some(shift);
        if let Some(until) = self.unique.as_mut().and_then(|unique| unique.until.as_mut()) {
            *until = *until - shift;
        }
    }

    /// Moves its durations by a step of the clock.
    pub fn shift_by(&mut self, by: Shift, shift: Shift) {
        if self.spec.body.relative || self.due <= self.created_at {
            self.due = self.due + by;
        }
        self.created_at = self.created_at + by;
        self.shift = Some(shift);
    }

    /// The time by which the store judges a unique key that another task holds: when this task was created,
    /// without the steps of the lane's clock, and without the gap of an unsettled clock.
    pub fn keyed_at(&self) -> Timestamp {
        let gap = self.unique.as_ref().map_or(Shift::ZERO, |unique| unique.gap);
        self.created_at - self.shift.unwrap_or_default() - gap
    }

    /// An upper bound of the keys or rows that a store writes for it: state, spec, index of waiting tasks,
    /// arrival, the index of start deadlines if it has one, and its unique key both ways.
    pub fn ops(&self) -> usize {
        4 + usize::from(self.spec.head.start_timeout.is_some()) + 2 * usize::from(self.unique.is_some())
    }

    /// An upper bound of the bytes a store writes for it, but for the fixed size of rows.
    pub fn bytes(&self) -> usize {
        let QueueKey { namespace, queue } = &self.spec.head.queue;
        let unique = self.unique.as_ref().map_or(0, |unique| {
            // Twice, each time with the name of its queue.
            2 * (namespace.as_str().len() + queue.as_str().len() + unique.key.len()) + 64
        });
        512 + self.spec.head.bytes() + self.spec.body_bytes() + unique
    }

    /// The state it starts in.
    pub fn state(&self) -> TaskState {
        let TaskBody { parent, child_name, composite, relative, .. } = &*self.spec.body;
        let watched = self.spec.body.is_watched();
        let delayed = self.due > self.created_at;
        let mut state = TaskState {
            status: Status::Pending,
            attempt: AttemptNo(0),
            retries: 0,
            lost: 0,
            lost_before_start: 0,
            due: self.due,
            delayed,
            relative: delayed && *relative,
            shift: None,
            start_by: self.spec.head.start_timeout.map(|timeout| self.due + timeout),
            cancel_requested: false,
            created_at: self.created_at,
            scheduled_at: None,
            dispatched_at: None,
            started_at: None,
            finished_at: None,
            session: None,
            worker: None,
            error: None,
            progress: None,
            child_of: parent
                .zip(child_name.clone())
                .map(|(composite, name)| Box::new(ChildOf { composite, name })),
            composite: *composite,
            watched,
        };
        state.shift = self.shift.filter(|_| state.counts_down());
        state
    }
}

/// A versioned hash of a request as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The hashed fields and the way of hashing; the highest bit marks the kind of request, see
    /// [`RETRY`](Self::RETRY). Fingerprints of one kind and different versions cannot be compared and count
    /// as equal.
    #[serde(rename = "v")]
    pub version: u8,
    /// The hash.
    #[serde(rename = "h")]
    pub hash: u64,
}

impl Fingerprint {
    /// The bit of the version that separates a request to run a task again from a request with a new spec.
    pub const RETRY: u8 = 0x80;

    /// Whether two requests with the same id may be the same request: never those of different kinds.
    pub fn agrees(self, other: Self) -> bool {
        let same_kind = (self.version ^ other.version) & Self::RETRY == 0;
        same_kind && (self.version != other.version || self.hash == other.hash)
    }
}

/// The small, changing part of a task. Written only by the owner of its lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct TaskState {
    /// Where it is in its life.
    #[serde(rename = "s")]
    pub status: Status,
    /// Its current or last attempt.
    #[serde(rename = "a")]
    pub attempt: AttemptNo,
    /// Failed attempts that counted against the retry policy.
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// Attempts lost after they had started. They do not count as retries, but have a limit: see
    /// `LaneOptions::lost_max`.
    #[serde(rename = "l", default, skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// Attempts lost before their worker had reported that they started. They have a limit of their own, and
    /// a higher one: see `LaneOptions::lost_before_start_max`. Tasks of earlier versions have none: those
    /// versions counted every loss in `lost`.
    #[serde(rename = "lu", default, skip_serializing_if = "is_zero")]
    pub lost_before_start: u32,
    /// When it may run (again).
    #[serde(rename = "d")]
    pub due: Timestamp,
    /// The store keeps it among the delayed tasks rather than in its line. Cleared when the task has come due
    /// and could not be assigned at once.
    #[serde(rename = "dl", default, skip_serializing_if = "is_false")]
    pub delayed: bool,
    /// The client gave its first due time as a delay.
    #[serde(rename = "dy", default, skip_serializing_if = "is_false")]
    pub relative: bool,
    /// The sum of all steps of the lane's clock when its durations were made: see
    /// [`counts_down`](Self::counts_down). `None` until an owner has written the task.
    #[serde(rename = "sf", default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<Shift>,
    /// The task fails if it has not started by then.
    #[serde(rename = "sb", default, skip_serializing_if = "Option::is_none")]
    pub start_by: Option<Timestamp>,
    /// A cancel was accepted while an attempt was alive: any end of the attempt but success then ends the
    /// task.
    #[serde(rename = "cr", default, skip_serializing_if = "is_false")]
    pub cancel_requested: bool,
    /// When it was submitted.
    #[serde(rename = "c")]
    pub created_at: Timestamp,
    /// When its current or last attempt was assigned,
    #[serde(rename = "t1", default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
    /// … taken by the worker,
    #[serde(rename = "t2", default, skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Timestamp>,
    /// … and started.
    #[serde(rename = "t3", default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the task became final.
    #[serde(rename = "t4", default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Worker session of its current or last attempt.
    #[serde(rename = "ws", default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Name of that worker.
    #[serde(rename = "wn", default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Name>,
    /// The last error.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// The last progress that an attempt reported. Few tasks report any.
    #[serde(rename = "pg", default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<Progress>>,
    /// Its composite, and its name there. Never changes; kept in the state, because a composite reads many
    /// children and needs nothing else of their specs. A child is kept as long as its composite.
    #[serde(rename = "pt", default, skip_serializing_if = "Option::is_none")]
    pub child_of: Option<Box<ChildOf>>,
    /// It may have children. Never changes.
    #[serde(rename = "wh", default, skip_serializing_if = "is_false")]
    pub composite: bool,
    /// The owner notes its end in the lane until a server has handled it. Never changes.
    #[serde(rename = "wt", default, skip_serializing_if = "is_false")]
    pub watched: bool,
}

/// Marks a task as a child of a composite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildOf {
    /// The composite.
    #[serde(rename = "o")]
    pub composite: TaskId,
    /// The child's name, unique among the children.
    #[serde(rename = "n")]
    pub name: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(b: &bool) -> bool {
    !b
}

/// Where a store keeps a task so that the owner finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its line, ready to run.
    Ready,
    /// Among the delayed tasks of the lane, by due time.
    Delayed,
    /// Among the attempts that workers hold.
    InFlight,
    /// Finished.
    Done,
}

impl TaskState {
    /// The version that the next change must name.
    pub fn version(&self) -> Version {
        Version { status: self.status, attempt: self.attempt }
    }

    /// Whether it waits for a duration to pass, rather than for a time of day: its times then move with a
    /// step of the wall clock.
    pub fn counts_down(&self) -> bool {
        match self.status {
            Status::Retrying => true,
            Status::Pending if self.delayed => self.relative,
            Status::Pending | Status::Scheduled | Status::Dispatched => self.start_by.is_some(),
            Status::Running | Status::Success | Status::Failed | Status::Cancelled => false,
        }
    }

    /// Moves its durations. The steps of the lane's clock now sum up to `shift`.
    pub fn shift_by(&mut self, by: Shift, shift: Shift) {
        // The due time of a task in its line only sorts it there, so it stays.
        if self.delayed {
            self.due = self.due + by;
        }
        self.start_by = self.start_by.map(|at| at + by);
        self.shift = Some(shift);
    }

    /// Where a store keeps it.
    pub fn place(&self) -> Place {
        match self.status {
            Status::Pending if !self.delayed => Place::Ready,
            Status::Pending | Status::Retrying => Place::Delayed,
            Status::Scheduled | Status::Dispatched | Status::Running => Place::InFlight,
            Status::Success | Status::Failed | Status::Cancelled => Place::Done,
        }
    }

    /// Whether the task can have rows of ended attempts: from its second attempt on, and before that if the
    /// first attempt ended without ending the task.
    pub fn has_attempt_rows(&self) -> bool {
        let ended_with_it = match self.status {
            Status::Success | Status::Scheduled | Status::Dispatched | Status::Running => 1,
            Status::Pending | Status::Retrying | Status::Failed | Status::Cancelled => 0,
        };
        self.attempt.0 > ended_with_it
    }

    /// The current attempt, or the attempt that ended the task, as a record for readers. An attempt that
    /// ended before its task has a row of its own, and that row counts: where the task failed while it
    /// waited, this record shows the end of the task, not of the attempt.
    pub fn last_attempt(&self) -> Option<AttemptRecord> {
        let scheduled_at = self.scheduled_at?;
        let outcome = match self.status {
            Status::Success => Some(AttemptOutcome::Success),
            // Only a live attempt leads to a requested cancel: without one, the task was cancelled while it
            // waited.
            Status::Cancelled if !self.cancel_requested => return None,
            Status::Cancelled => Some(AttemptOutcome::Cancelled),
            Status::Failed if self.error.as_ref().is_some_and(TaskError::is_timeout) => {
                Some(AttemptOutcome::TimedOut)
            }
            Status::Failed => Some(AttemptOutcome::Failed),
            Status::Scheduled | Status::Dispatched | Status::Running => None,
            Status::Pending | Status::Retrying => return None,
        };
        Some(AttemptRecord {
            number: self.attempt,
            session: self.session,
            worker: self.worker.clone(),
            scheduled_at,
            started_at: self.started_at,
            ended_at: self.finished_at,
            outcome,
            error: self.error.clone(),
        })
    }
}

/// One execution of a task by one worker session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Counts from 1.
    #[serde(rename = "n")]
    pub number: AttemptNo,
    /// The worker session that had it.
    #[serde(rename = "ws")]
    pub session: Option<SessionId>,
    /// Name of that worker.
    #[serde(rename = "wn")]
    pub worker: Option<Name>,
    /// When it was assigned.
    #[serde(rename = "t1")]
    pub scheduled_at: Timestamp,
    /// When it started, if it did.
    #[serde(rename = "t3")]
    pub started_at: Option<Timestamp>,
    /// When its end became known.
    #[serde(rename = "t4")]
    pub ended_at: Option<Timestamp>,
    /// How it ended; `None` while it is alive.
    #[serde(rename = "o")]
    pub outcome: Option<AttemptOutcome>,
    /// The error, if there was one.
    #[serde(rename = "e")]
    pub error: Option<TaskError>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttemptOutcome {
    /// The executor reported success.
    Success,
    /// The executor reported a failure.
    Failed,
    /// It ran longer than it may.
    TimedOut,
    /// It was stopped because the task was cancelled.
    Cancelled,
    /// The worker's session ended, or the worker's guard was killed.
    Lost,
    /// The worker gave it back without starting it: refused, recalled or drained.
    HandedBack,
}

/// The error of a task or attempt, with a stable code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// Stable, for programs: `exit_code`, `timeout`, `start_timeout`, `lost_limit`, `result_too_large` …
    #[serde(rename = "c")]
    pub code: String,
    /// For people.
    #[serde(rename = "m")]
    pub message: String,
}

impl TaskError {
    /// The code of an attempt that ran longer than it may.
    pub const TIMEOUT: &str = "timeout";
    /// The code of an attempt that reported no progress for longer than it may.
    pub const PROGRESS_TIMEOUT: &str = "progress_timeout";

    /// The code of an attempt that ended because its worker's guard was killed.
    pub const GUARD_LOST: &str = "guard_lost";
    /// The code of an attempt that its worker could not start because the worker's trust window had ended.
    pub const LEASE_LOST: &str = "lease_lost";

    /// Whether the worker lost the attempt through no fault of the task. A code, because workers of earlier
    /// versions report a loss this way too.
    pub fn is_loss(&self) -> bool {
        self.code == Self::GUARD_LOST || self.code == Self::LEASE_LOST
    }

    /// Whether a timeout stopped the attempt.
    pub fn is_timeout(&self) -> bool {
        self.code == Self::TIMEOUT || self.code == Self::PROGRESS_TIMEOUT
    }

    /// The longest code that the owner keeps, in bytes.
    pub const CODE_BYTES_MAX: usize = 64;
    /// The longest message that the owner keeps, in bytes: of an error, and of a result.
    pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;

    /// The error with long texts cut: a worker may send anything, and the store takes only so much.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.code, Self::CODE_BYTES_MAX);
        cut(&mut self.message, Self::MESSAGE_BYTES_MAX);
        self
    }

    /// An error with a stable code and a text for people.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// The end mark of a cut text.
const CUT_MARK: &str = " … (cut)";

/// Cuts a long text between two characters and adds the mark.
fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - CUT_MARK.len()));
        text.push_str(CUT_MARK);
        text.shrink_to_fit();
    }
}

/// The answer of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// 0 for success; else the executor's own code (exit code, HTTP status).
    #[serde(rename = "c")]
    pub code: i32,
    /// For people.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// JSON text; empty for none.
    #[serde(rename = "d", default, skip_serializing_if = "String::is_empty")]
    pub data: String,
}

impl TaskResult {
    /// The upper bound of the setting for the bytes of result data: every store can carry that many.
    pub const DATA_BYTES_LIMIT: usize = 1 << 20;

    /// The result with a long message cut.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        cut(&mut self.message, TaskError::MESSAGE_BYTES_MAX);
        self
    }

    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The approximate size in bytes.
    pub fn bytes(&self) -> usize {
        self.message.len() + self.data.len() + 16
    }
}

/// The progress that an attempt reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Percent done, 0 to 100.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// For people.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Progress {
    /// The longest message that the owner keeps, in bytes.
    pub const MESSAGE_BYTES_MAX: usize = 1024;

    /// The progress within its bounds.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.percent = self.percent.map(|percent| percent.min(100));
        if self.message.len() > Self::MESSAGE_BYTES_MAX {
            self.message.truncate(self.message.floor_char_boundary(Self::MESSAGE_BYTES_MAX));
        }
        self
    }
}

/// A task as a store gives it to the owner of its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow {
    /// Its identity.
    pub id: TaskId,
    /// Its place in the lane's order of arrival.
    pub seq: Seq,
    /// The part that scheduling reads.
    pub head: Arc<TaskHead>,
    /// The rest of the spec, if the owner asked for it and it is small enough.
    pub body: Option<Arc<TaskBody>>,
    /// Its state.
    pub state: TaskState,
}

/// Position of a ready task in its line: by priority, due time, arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OrderKey {
    /// 0 for the most urgent.
    pub rank: u8,
    /// Due time.
    pub due: Timestamp,
    /// Arrival.
    pub seq: Seq,
}

impl OrderKey {
    /// Before every task.
    pub const FIRST: Self = Self { rank: 0, due: Timestamp::from_micros(i64::MIN), seq: Seq(0) };
}

impl TaskRow {
    /// Its position in its line, should it be ready.
    pub fn order(&self) -> OrderKey {
        OrderKey { rank: self.head.priority.rank(), due: self.state.due, seq: self.seq }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(labels: &[(&str, &str)], flow: &[(&str, &str)]) -> TaskHead {
        let name = |n: &str| Name::new(n).unwrap();
        TaskHead {
            queue: QueueKey::new(name("default"), name("q")),
            task_type: name("SHELL"),
            priority: Priority::default(),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            flow: flow.iter().map(|(l, k)| flow_key(l, k)).collect(),
            hash_bucket: None,
            execution_timeout: Duration::from_mins(5),
            start_timeout: None,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy::default(),
        }
    }

    fn flow_key(limit: &str, key: &str) -> FlowKey {
        FlowKey { limit: LimitId::of(limit), key: key.into(), own: None }
    }

    #[test]
    fn a_line_is_type_labels_flow_keys_and_bucket() {
        let plain = head(&[], &[]).line();
        let own = |own| {
            let flow = FlowKey { own: Some(own), ..flow_key("a", "b") };
            TaskHead { flow: vec![flow], ..head(&[], &[]) }.line()
        };
        assert_eq!(plain, TaskHead { priority: Priority::MAX, ..head(&[], &[]) }.line());
        let others = [
            head(&[("a", "b")], &[]).line(),
            head(&[], &[("a", "b")]).line(),
            head(&[("ab", "")], &[]).line(),
            TaskHead { hash_bucket: Some(0), ..head(&[], &[]) }.line(),
            TaskHead { task_type: Name::new("HTTP").unwrap(), ..head(&[], &[]) }.line(),
            own(OwnLimit::Concurrency(Concurrency { limit: 1, when_reached: WhenReached::Wait })),
            own(OwnLimit::Concurrency(Concurrency { limit: 2, when_reached: WhenReached::Wait })),
            own(OwnLimit::Concurrency(Concurrency { limit: 1, when_reached: WhenReached::CancelNewest })),
            own(OwnLimit::Rate(Rate { limit: 1, per: Duration::from_secs(1), burst: 1 })),
        ];
        for (i, line) in others.iter().enumerate() {
            assert_ne!(*line, plain);
            assert!(!others[..i].contains(line));
        }
    }

    #[test]
    fn requests_of_different_kinds_never_agree() {
        let fingerprint = |version, hash| Fingerprint { version, hash };
        let retry = Fingerprint::RETRY | 1;
        for (one, other, agree) in [
            (fingerprint(1, 7), fingerprint(1, 7), true),
            (fingerprint(1, 7), fingerprint(1, 8), false),
            (fingerprint(1, 7), fingerprint(2, 8), true),
            (fingerprint(1, 7), fingerprint(retry, 7), false),
            (fingerprint(retry, 7), fingerprint(retry, 7), true),
            (fingerprint(retry, 7), fingerprint(retry, 8), false),
        ] {
            assert_eq!((one.agrees(other), other.agrees(one)), (agree, agree), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters_and_says_so() {
        let max = TaskError::MESSAGE_BYTES_MAX;
        for fill in ["x", "é", "€", "🦀"] {
            let whole = TaskError::new("c", fill.repeat(max / fill.len()));
            assert_eq!(whole.clone().bounded(), whole);
            let cut = TaskError::new(&fill.repeat(max), fill.repeat(max + 1)).bounded();
            for (text, max) in [(cut.code, TaskError::CODE_BYTES_MAX), (cut.message, max)] {
                assert!(text.len() <= max && text.len() > max - 4, "{} bytes", text.len());
                assert!(text.starts_with(fill) && text.ends_with(CUT_MARK));
            }
        }
    }

    #[test]
    fn the_most_urgent_task_sorts_first() {
        let key = |rank, due, seq| OrderKey { rank, due: Timestamp::from_micros(due), seq: Seq(seq) };
        assert!(key(Priority::MAX.rank(), 9, 9) < key(Priority::default().rank(), 1, 1));
        assert!(key(4, 1, 9) < key(4, 2, 1));
        assert!(key(4, 1, 1) < key(4, 1, 2));
        assert!(OrderKey::FIRST < key(0, 0, 0));
    }
}

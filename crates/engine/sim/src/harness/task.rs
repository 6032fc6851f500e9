//! Tasks in few words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{LaneId, LimitId, Name, QueueKey, TaskId};
use tasklane_core::policy::{Concurrency, Rate, WhenReached};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{
    Fingerprint, FlowKey, NewTask, OwnLimit, Payload, Priority, TaskBody, TaskHead, TaskSpec, Unique,
};
use tasklane_core::time::Timestamp;

/// A valid name.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("names in stories are valid")
}

/// A queue of the default namespace.
pub fn queue(text: &str) -> QueueKey {
    QueueKey::new(name("default"), name(text))
}

/// A plain task: queue `q`, type `job`, due at once, up to three retries after 10, 20 and 40 seconds.
pub fn task() -> Make {
    Make {
        head: TaskHead {
            queue: queue("q"),
            task_type: name("job"),
            priority: Priority::default(),
            labels: BTreeMap::new(),
            flow: Vec::new(),
            hash_bucket: None,
            execution_timeout: Duration::from_mins(5),
            start_timeout: None,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy { jitter_percent: 0, ..RetryPolicy::default() },
        },
        body: TaskBody::default(),
        delay: Duration::ZERO,
        fingerprint: 0,
        queue_len_max: None,
        unique: None,
        unique_for: None,
    }
}

/// A task in the making.
#[derive(Clone, Debug)]
#[must_use]
pub struct Make {
    pub(super) head: TaskHead,
    body: TaskBody,
    delay: Duration,
    fingerprint: u64,
    queue_len_max: Option<u32>,
    unique: Option<Unique>,
    unique_for: Option<Duration>,
}

impl Make {
    /// Of another queue.
    pub fn queue(mut self, text: &str) -> Self {
        self.head.queue = queue(text);
        self
    }

    /// Of another type.
    pub fn of_type(mut self, text: &str) -> Self {
        self.head.task_type = name(text);
        self
    }

    /// 0 to 9.
    pub fn priority(mut self, priority: u8) -> Self {
        self.head.priority = Priority::new(priority).expect("a priority is at most 9");
        self
    }

    /// Only for workers with this label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.head.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Counted by a limit of the queue, with this template, under this key.
    pub fn flow(mut self, template: &str, key: &str) -> Self {
        self.head.flow.push(FlowKey { limit: LimitId::of(template), key: key.into(), own: None });
        self
    }

    /// Brings along a limit on the attempts alive at once.
    pub fn own_limit(self, template: &str, key: &str, limit: u32) -> Self {
        self.own_concurrency(template, key, Concurrency { limit, when_reached: WhenReached::Wait })
    }

    /// The same, with a rule for tasks above it.
    pub fn own_concurrency(mut self, template: &str, key: &str, concurrency: Concurrency) -> Self {
        let own = Some(OwnLimit::Concurrency(concurrency));
        self.head.flow.push(FlowKey { limit: LimitId::of(template), key: key.into(), own });
        self
    }

    /// Brings along a rate.
    pub fn own_rate(mut self, template: &str, key: &str, rate: Rate) -> Self {
        let limit = LimitId::of_own_rate(template, &rate);
        self.head.flow.push(FlowKey { limit, key: key.into(), own: Some(OwnLimit::Rate(rate)) });
        self
    }

    /// A watched task: a server must handle its completion.
    pub fn watched(mut self) -> Self {
        self.body.watched = true;
        self
    }

    /// One at a time of this key, until it has finished.
    pub fn unique(mut self, key: &str) -> Self {
        self.unique = Some(Unique::new(key, None));
        self
    }

    /// For the consistent-hash strategy.
    pub fn hash_key(mut self, key: &str) -> Self {
        self.head.hash_bucket = Some(TaskHead::bucket_of(key));
        self
    }

    /// One at a time of this key, for so many seconds.
    pub fn unique_for(mut self, key: &str, secs: u64) -> Self {
        self.unique = Some(Unique::new(key, None));
        self.unique_for = Some(Duration::from_secs(secs));
        self
    }

    /// Due at the time of day this many seconds after its submit.
    pub fn after(mut self, secs: u64) -> Self {
        self.delay = Duration::from_secs(secs);
        self
    }

    /// Due when so many seconds have passed.
    pub fn delay(mut self, secs: u64) -> Self {
        self.body.relative = true;
        self.after(secs)
    }

    /// Fails if it has not started so many seconds after it was due.
    pub fn start_timeout(mut self, secs: u64) -> Self {
        self.head.start_timeout = Some(Duration::from_secs(secs));
        self
    }

    /// May run for so many seconds.
    pub fn timeout(mut self, secs: u64) -> Self {
        self.head.execution_timeout = Duration::from_secs(secs);
        self
    }

    /// May be tried again so often.
    pub fn retries(mut self, max: u32) -> Self {
        self.head.retry.max_retries = max;
        self
    }

    /// With a payload of so many bytes.
    pub fn payload_bytes(mut self, bytes: usize) -> Self {
        self.body.payload = Payload::Text("x".repeat(bytes));
        self
    }

    /// The client's name for the request.
    pub fn request_id(mut self, id: &str) -> Self {
        self.body.request_id = Some(id.to_owned());
        self
    }

    /// The hash of the request: two requests with different hashes are different.
    pub fn fingerprint(mut self, hash: u64) -> Self {
        self.fingerprint = hash;
        self
    }

    /// Refused if so many wait already.
    pub fn queue_len_max(mut self, max: u32) -> Self {
        self.queue_len_max = Some(max);
        self
    }

    /// The same task `count` times, as they are submitted to a store. The copies share their equal parts.
    pub fn many(&self, lane: LaneId, now: Timestamp, ids: std::ops::Range<u64>) -> Vec<NewTask> {
        let spec = TaskSpec { head: Arc::new(self.head.clone()), body: Arc::new(self.body.clone()) };
        ids.map(|random| self.new_task(spec.clone(), TaskId::from_time(lane, now, random), now)).collect()
    }

    pub(super) fn make(&self, lane: LaneId, now: Timestamp, random: u64) -> NewTask {
        let spec = TaskSpec { head: Arc::new(self.head.clone()), body: Arc::new(self.body.clone()) };
        let id = match &self.body.request_id {
            Some(request) => TaskId::from_request(lane, &self.head.queue, None, request),
            None => TaskId::from_time(lane, now, random),
        };
        self.new_task(spec, id, now)
    }

    fn new_task(&self, spec: TaskSpec, id: TaskId, now: Timestamp) -> NewTask {
        NewTask {
            id,
            spec,
            created_at: now,
            due: now + self.delay,
            fingerprint: Fingerprint { version: 1, hash: self.fingerprint },
            queue_len_max: self.queue_len_max,
            unique: self
                .unique
                .clone()
                .map(|unique| Unique { until: self.unique_for.map(|time| now + time), ..unique }),
            shift: None,
        }
    }
}

//! A request for a task, and the task that it becomes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{Name, QueueKey, TaskId};
use tasklane_core::policy::{ConcurrencyLimit, QueueBinding, QueuePolicy, RateLimit, Strategy, UniqueRule};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{
    Fingerprint, NewTask, Payload, Priority, TaskBody, TaskHead, TaskSpec, Unique, Webhook,
};
use tasklane_core::time::Timestamp;

use super::custom_types::RunAs;
use super::error::FieldError;
use super::flow::Keys;
use super::limits::{RequestLimits, check_not_system};
use super::map::MapSource;
use super::template::KeySource;
use super::webhook::merge;
use super::{fingerprint, json};

/// What a client asks to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// What people call it.
    pub task_name: String,
    /// Chooses the executor.
    pub task_type: Name,
    /// What the executor is given.
    pub payload: Payload,
    /// An attempt that runs longer is stopped; by default as the queue says.
    pub execution_timeout: Option<Duration>,
    /// What differs from the queue's retry policy.
    pub retry: RetryRequest,
    /// The client's name for the request: the same one twice is one task.
    pub request_id: Option<String>,
    /// Where it waits.
    pub queue: Name,
    /// Order within the queue.
    pub priority: Priority,
    /// Not before this time. Excludes `delay`.
    pub run_at: Option<Timestamp>,
    /// Not before this much time has passed. Excludes `run_at`.
    pub delay: Option<Duration>,
    /// The user's own key-value pairs.
    pub metadata: BTreeMap<String, String>,
    /// Labels that a worker must have.
    pub labels: BTreeMap<String, String>,
    /// Under the consistent-hash strategy: tasks with the same key go to the same worker.
    pub hash_key: Option<String>,
    /// A task not started this long after its due time fails.
    pub start_timeout: Option<Duration>,
    /// An attempt that reports no progress for this long is stopped.
    pub progress_timeout: Option<Duration>,
    /// It is not assigned while as many attempts of its keys are alive.
    pub concurrency: Vec<ConcurrencyLimit>,
    /// It is not assigned faster than its keys allow.
    pub rate: Vec<RateLimit>,
    /// While another task holds this key, there is no second one.
    pub unique: Option<UniqueRule>,
    /// Who is told when it ends, besides those whom its queue tells.
    pub webhooks: Vec<Webhook>,
    /// It becomes many tasks instead of one.
    pub map: Option<Box<MapSource>>,
    /// What it is run as, where its type was registered. Not a client's to say.
    pub run_as: Option<RunAs>,
    /// It belongs to a job, and becomes none itself. Not a client's to say.
    pub in_job: bool,
    /// Who else is told when it ends. Not a client's to say.
    pub extra_webhooks: Vec<Webhook>,
    /// The server makes it of what others answered, so it may be larger than what clients send. Not a client's to say.
    pub roomy: bool,
    /// What tells it from others with the same request id, instead of its payload. Not a client's to say.
    pub identity: Option<String>,
    /// Request ids are told apart by this as well as by the queue. Not a client's to say.
    pub scope: Option<Name>,
    /// The task that this one is a child or a retry of. Not a client's to say.
    pub parent: Option<TaskId>,
    /// The name of the child. Not a client's to say.
    pub child_name: Option<String>,
    /// It may have children. Not a client's to say.
    pub composite: bool,
}

/// A retry policy of which any part may be left to the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryRequest {
    /// How many attempts may follow the first one.
    pub max_retries: Option<u32>,
    /// Wait before the first of them.
    pub delay: Option<Duration>,
    /// Each further wait is this many percent of the one before.
    pub backoff_percent: Option<u32>,
    /// No wait is longer.
    pub delay_max: Option<Duration>,
    /// Up to this many percent of the wait are added or taken away at random.
    pub jitter_percent: Option<u8>,
}

impl RetryRequest {
    /// The whole policy: what is not said here is as in `rest`.
    pub fn over(&self, rest: &RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_retries: self.max_retries.unwrap_or(rest.max_retries),
            delay: self.delay.unwrap_or(rest.delay),
            backoff_percent: self.backoff_percent.unwrap_or(rest.backoff_percent),
            delay_max: self.delay_max.unwrap_or(rest.delay_max),
            jitter_percent: self.jitter_percent.unwrap_or(rest.jitter_percent),
        }
    }
}

/// What a request needs to become a task.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The namespace of the caller.
    pub namespace: &'a Name,
    /// Where the tasks of the request's queue go.
    pub binding: &'a QueueBinding,
    /// The policy of that queue.
    pub policy: &'a QueuePolicy,
    /// The time of the submission.
    pub now: Timestamp,
    /// For the task id.
    pub random: u64,
    /// How large the request may be.
    pub limits: &'a RequestLimits,
    /// It is archived when it has ended.
    pub archived: bool,
}

impl TaskRequest {
    /// The queue of requests that name none.
    pub const DEFAULT_QUEUE: &str = "default";

    /// A request with nothing but what every request has; the fields are open.
    pub fn new(name: impl Into<String>, task_type: Name, payload: Payload) -> Self {
        Self {
            task_name: name.into(),
            task_type,
            payload,
            execution_timeout: None,
            retry: RetryRequest::default(),
            request_id: None,
            queue: Name::new(Self::DEFAULT_QUEUE).expect("a valid name"),
            priority: Priority::default(),
            run_at: None,
            delay: None,
            metadata: BTreeMap::new(),
            labels: BTreeMap::new(),
            hash_key: None,
            start_timeout: None,
            progress_timeout: None,
            concurrency: Vec::new(),
            rate: Vec::new(),
            unique: None,
            webhooks: Vec::new(),
            map: None,
            run_as: None,
            in_job: false,
            extra_webhooks: Vec::new(),
            roomy: false,
            identity: None,
            scope: None,
            parent: None,
            child_name: None,
            composite: false,
        }
    }

    /// Reads a request from JSON. Sizes are checked by [`into_task`](Self::into_task).
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        json::read_task(body)
    }

    /// Checks a request that becomes a task when something else says so: each time another one, of nobody's own names.
    pub(crate) fn check_child(&self) -> Result<(), FieldError> {
        // What servers keep for themselves is not to be had this way either.
        check_not_system("taskType", &self.task_type)?;
        check_not_system("queue", &self.queue)?;
        let given = [("requestId", self.request_id.is_some()), ("runAt", self.run_at.is_some())];
        match given.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => {
                Err(FieldError::invalid(field, "must not be given: each task is one of its own"))
            }
            None => Ok(()),
        }
    }

    /// Tells this request from others with the same request id.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint::of(self)
    }

    /// The same request as a task was made of, as far as keys are made of it.
    pub(crate) fn of_task(head: &TaskHead, body: &TaskBody) -> Self {
        Self {
            queue: head.queue.queue.clone(),
            priority: head.priority,
            metadata: body.metadata.clone(),
            labels: head.labels.clone(),
            hash_key: body.hash_key.clone(),
            request_id: body.request_id.clone(),
            ..Self::new(&body.name, head.task_type.clone(), body.payload.clone())
        }
    }

    /// The head of a task that runs another one again: limits of the queue count it by their present templates, and
    /// what the task itself brought along stays. Where the present ones ask for what the task does not have, nobody could
    /// add it: it is counted as the first one was.
    pub fn again(head: &TaskHead, body: &TaskBody, policy: &QueuePolicy) -> TaskHead {
        let request = Self::of_task(head, body);
        let source = KeySource { namespace: &head.queue.namespace, request: &request };
        let Ok(mut flow) = Keys { policy, source }.flow() else { return head.clone() };
        for own in head.flow.iter().filter(|key| key.own.is_some()) {
            flow.retain(|key| key.limit != own.limit);
            flow.push(own.clone());
        }
        TaskHead { flow, ..head.clone() }
    }

    /// The task to store. The same request id in the same queue always gives the same task id.
    pub fn into_task(self, place: Placement<'_>) -> Result<NewTask, FieldError> {
        place.limits.check(&self)?;
        place.limits.check_flow(&self, place.binding)?;
        let fingerprint = self.fingerprint();
        let queue = QueueKey::new(place.namespace.clone(), self.queue.clone());
        let source = KeySource { namespace: place.namespace, request: &self };
        let keys = Keys { policy: place.policy, source };
        let spread_key = match place.binding {
            QueueBinding::Lane(_) => None,
            QueueBinding::Spread { key, .. } => keys.spread(key)?,
        };
        let spread_key = spread_key.as_deref();
        let (flow, unique) = (keys.flow()?, keys.unique(spread_key)?);
        let lane = match place.binding {
            QueueBinding::Lane(lane) => *lane,
            // Without a spread key those with the same unique key are together, and else those of one request.
            QueueBinding::Spread { lanes, .. } => {
                let unique_key = unique.as_ref().map(|unique| unique.key.as_str());
                let by = spread_key.or(unique_key).or(self.request_id.as_deref());
                queue.spread_lane(by.unwrap_or(&place.random.to_string()), *lanes)
            }
        };
        let id = match &self.request_id {
            Some(request_id) => {
                // No name and no request id has this character, so no two of them are taken for each other.
                let scoped = self.scope.as_ref().map(|scope| format!("{scope}\u{1f}{request_id}"));
                TaskId::from_request(lane, &queue, spread_key, scoped.as_deref().unwrap_or(request_id))
            }
            None => TaskId::from_time(lane, place.now, place.random),
        };
        // Without a key, consistent hashing goes by the task itself.
        let by_id =
            || matches!(place.policy.strategy, Strategy::ConsistentHash { .. }).then(|| id.to_string());
        let hash_bucket = self.hash_key.clone().or_else(by_id).as_deref().map(TaskHead::bucket_of);
        let relative = self.run_at.is_none() && self.delay.is_some();
        let due = self.run_at.unwrap_or_else(|| place.now + self.delay.unwrap_or_default());
        let (runs_as, run) = self.run_as.map(|run_as| (run_as.task_type, run_as.payload)).unzip();
        let head = TaskHead {
            queue,
            task_type: self.task_type,
            runs_as,
            priority: self.priority,
            labels: self.labels,
            flow,
            hash_bucket,
            execution_timeout: self.execution_timeout.unwrap_or(place.policy.execution_timeout),
            start_timeout: self.start_timeout,
            progress_timeout: self.progress_timeout,
            retry: self.retry.over(&place.policy.retry),
        };
        let mut webhooks = self.webhooks;
        merge(&mut webhooks, &self.extra_webhooks);
        // A child is its composite's business.
        if self.child_name.is_none() {
            merge(&mut webhooks, &place.policy.webhooks);
        }
        let taken = unique.as_ref().map(|unique| Unique::taken(unique, place.now));
        let body = TaskBody {
            name: self.task_name,
            payload: self.payload,
            run,
            metadata: self.metadata,
            request_id: self.request_id,
            hash_key: self.hash_key,
            unique: unique.map(Box::new),
            parent: self.parent,
            child_name: self.child_name,
            composite: self.composite,
            webhooks,
            watched: false,
            archived: place.archived,
            schedule: None,
            nominal_time: None,
            relative,
        };
        Ok(NewTask {
            id,
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
            created_at: place.now,
            due: due.max(place.now),
            fingerprint,
            queue_len_max: place.policy.len_max,
            unique: taken,
            shift: None,
        })
    }
}

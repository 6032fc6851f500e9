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

/// A client's request for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// Its display name.
    pub task_name: String,
    /// Chooses the executor.
    pub task_type: Name,
    /// The input of its executor.
    pub payload: Payload,
    /// An attempt that runs longer is stopped; the default is that of the queue.
    pub execution_timeout: Option<Duration>,
    /// The parts of the retry policy that differ from the queue's.
    pub retry: RetryRequest,
    /// The client's name for the request: repeats of it create one task.
    pub request_id: Option<String>,
    /// Its queue.
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
    /// The owner does not assign it while these limits are reached by attempts with its keys.
    pub concurrency: Vec<ConcurrencyLimit>,
    /// The owner assigns tasks of its keys no faster than this.
    pub rate: Vec<RateLimit>,
    /// While a task holds this key, no second one is created.
    pub unique: Option<UniqueRule>,
    /// The webhooks of its end, besides those of its queue.
    pub webhooks: Vec<Webhook>,
    /// The map that it becomes.
    pub map: Option<Box<MapSource>>,
    /// Its built-in form, if its type is a custom type. Clients cannot set it.
    pub run_as: Option<RunAs>,
    /// Whether it belongs to a job and so becomes none itself. Clients cannot set it.
    pub in_job: bool,
    /// More webhooks of its end. Clients cannot set it.
    pub extra_webhooks: Vec<Webhook>,
    /// Whether it may be larger than requests of clients, since the server makes it of results. Clients
    /// cannot set it.
    pub roomy: bool,
    /// The text that the fingerprint uses instead of the payload. Clients cannot set it.
    pub identity: Option<String>,
    /// Separates request ids, in addition to the queue. Clients cannot set it.
    pub scope: Option<Name>,
    /// The task that this one is a child or a retry of. Clients cannot set it.
    pub parent: Option<TaskId>,
    /// The name of the child. Clients cannot set it.
    pub child_name: Option<String>,
    /// Whether it may have children. Clients cannot set it.
    pub composite: bool,
}

/// A retry policy whose absent parts are the queue's.
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
    /// The whole policy: absent parts are those of `rest`.
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

/// The values that turn a request into a task.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The namespace of the caller.
    pub namespace: &'a Name,
    /// The binding of the request's queue.
    pub binding: &'a QueueBinding,
    /// The policy of that queue.
    pub policy: &'a QueuePolicy,
    /// The time of the submission.
    pub now: Timestamp,
    /// For the task id.
    pub random: u64,
    /// The limits of the request.
    pub limits: &'a RequestLimits,
    /// Whether the task is archived when it has ended.
    pub archived: bool,
}

impl TaskRequest {
    /// The queue of requests that name none.
    pub const DEFAULT_QUEUE: &str = "default";

    /// A request with only the fields that every request has; the fields are open.
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

    /// Parses a request from JSON. [`into_task`](Self::into_task) checks its sizes.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        json::read_task(body)
    }

    /// Checks a request that a schedule, a workflow or a map turns into tasks: repeatedly, and without
    /// reserved names.
    pub(crate) fn check_child(&self) -> Result<(), FieldError> {
        // System names are refused here too.
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

    /// The fingerprint, which separates this request from others with the same request id.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint::of(self)
    }

    /// The request that a task was made of, as far as keys are made of it.
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

    /// The head of a task that runs another one again: limits of the queue count it by their present
    /// templates, and the task's own limits stay. If a present template asks for a field that the task does
    /// not have, no caller could add it: the task is counted as the first one was.
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
            // Without a spread key, tasks with the same unique key share a lane, else tasks of one request
            // id.
            QueueBinding::Spread { lanes, .. } => {
                let unique_key = unique.as_ref().map(|unique| unique.key.as_str());
                let by = spread_key.or(unique_key).or(self.request_id.as_deref());
                queue.spread_lane(by.unwrap_or(&place.random.to_string()), *lanes)
            }
        };
        let id = match &self.request_id {
            Some(request_id) => {
                // No name and no request id has this character, so that no two of them collide.
                let scoped = self.scope.as_ref().map(|scope| format!("{scope}\u{1f}{request_id}"));
                TaskId::from_request(lane, &queue, spread_key, scoped.as_deref().unwrap_or(request_id))
            }
            None => TaskId::from_time(lane, place.now, place.random),
        };
        // Without a key, consistent hashing uses the task id.
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
        // The queue's webhooks announce the composite, not its children.
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

//! Accepting tasks.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, Name, QueueKey, TaskId};
use tasklane_core::lane::recorded_clock;
use tasklane_core::policy::{QueueBinding, QueuePolicy};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_core::task::NewTask;
use tasklane_ports::{LoadQuery, StoreError, Submit};
use tokio::time::Instant;

use crate::clock;
use crate::request::{FieldError, Placement, TaskRequest, check_not_system, check_request_id};

use super::Node;
use super::composite::driver::unique_in;

/// An accepted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its identity.
    pub id: TaskId,
    /// It was accepted before: by the same request, or by another one with the same unique key.
    pub duplicate: bool,
}

/// Why a task was refused. Nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The request is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// The queue has reached its maximum length.
    #[error("queue {queue} is full")]
    QueueFull {
        /// The queue.
        queue: QueueKey,
        /// When to try again.
        retry_after: Duration,
    },
    /// The request id belongs to another request.
    #[error("request id {request_id} was used for another request")]
    RequestIdReused {
        /// The request id.
        request_id: String,
    },
    /// The store could not take it, or did not answer. Repeating with the same request id is safe.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl From<StoreError> for SubmitError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// Refuses names that are reserved for the system.
fn not_internal(request: &TaskRequest) -> Result<(), FieldError> {
    check_not_system("taskType", &request.task_type)?;
    check_not_system("queue", &request.queue)?;
    request.request_id.as_deref().map_or(Ok(()), check_request_id)
}

/// When to try again to submit to a full queue.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a cached policy supplies the defaults of tasks.
pub(super) const POLICY_FRESH: Duration = Duration::from_secs(1);
/// Queues in the cache.
const QUEUES_MAX: usize = 10_000;

/// The cache of queues: their lanes, which never change, and their policies, which seldom do.
#[derive(Debug, Default)]
pub(super) struct QueueCache(Mutex<HashMap<QueueKey, CachedQueue>>);

#[derive(Clone, Debug)]
pub(super) struct CachedQueue {
    pub(super) binding: QueueBinding,
    pub(super) policy: Arc<QueuePolicy>,
    read_at: Instant,
}

impl QueueCache {
    pub(super) fn forget(&self, queue: &QueueKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }
}

impl Node {
    /// Accepts tasks, each for itself; the answers come in the order of the requests. Durable when it
    /// returns.
    pub async fn submit(
        &self,
        namespace: &Name,
        requests: Vec<TaskRequest>,
    ) -> Vec<Result<Submitted, SubmitError>> {
        let mut answers: Vec<Option<Result<Submitted, SubmitError>>> = Vec::new();
        answers.resize_with(requests.len(), || None);
        let mut lanes: BTreeMap<LaneId, Vec<(usize, NewTask)>> = BTreeMap::new();
        let mut away = None;
        for (at, request) in requests.into_iter().enumerate() {
            give_way(at).await;
            let placed = match (not_internal(&request), &away) {
                (Err(error), _) => Err(error.into()),
                // Only the first of them waits for a store that does not answer.
                (Ok(()), Some(away)) => Err(SubmitError::Store(Arc::clone(away))),
                (Ok(()), None) => self.place_sent(namespace, request).await,
            };
            match placed {
                Ok(task) => lanes.entry(task.id.lane()).or_default().push((at, task)),
                Err(error) => {
                    if let SubmitError::Store(error) = &error
                        && error.is_retryable()
                    {
                        away = Some(Arc::clone(error));
                    }
                    answers[at] = Some(Err(error));
                }
            }
        }
        let submitted = join_all(lanes.into_iter().map(|(lane, tasks)| async move {
            let (places, tasks): (Vec<usize>, Vec<NewTask>) = tasks.into_iter().unzip();
            places.into_iter().zip(self.submit_to(lane, tasks).await).collect::<Vec<_>>()
        }));
        for (at, answer) in submitted.await.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.expect("every request was answered")).collect()
    }

    /// Turns a request of a client into a task, if its type and payload can be right.
    async fn place_sent(&self, namespace: &Name, request: TaskRequest) -> Result<NewTask, SubmitError> {
        self.check_sent(namespace, &request).await?;
        self.place(namespace, request).await
    }

    /// Turns a request into a task of its queue's lane: it may become a map or a job.
    pub(super) async fn place(&self, namespace: &Name, request: TaskRequest) -> Result<NewTask, SubmitError> {
        // The composite of a map task holds its unique key, and no child does.
        let held = match &request.map {
            Some(_) if request.unique.is_some() => {
                let one = TaskRequest { map: None, ..request.clone() };
                self.place_one(namespace, one).await?.unique.map(|unique| unique_in(&request.queue, &unique))
            }
            _ => None,
        };
        let request = self.map_composite(namespace, request).await?;
        let mut task = self.job_of(namespace, request).await?;
        if held.is_some() {
            task.unique = held;
        }
        Ok(task)
    }

    /// Turns a request into a task as it is: makes no map and no job of it.
    pub(super) async fn place_one(
        &self,
        namespace: &Name,
        mut request: TaskRequest,
    ) -> Result<NewTask, SubmitError> {
        self.run_as(namespace, &mut request).await?;
        // Requests that the server makes itself may be larger.
        let limits =
            if request.composite || request.roomy { self.system_limits() } else { self.0.options.limits };
        let queue = QueueKey::new(namespace.clone(), request.queue.clone());
        let known = self.known(&queue).await?;
        let placement = Placement {
            namespace,
            binding: &known.binding,
            policy: &known.policy,
            now: clock::wall(),
            random: rand::random(),
            limits: &limits,
            archived: self.is_archived(request.composite, &request.task_type),
        };
        Ok(request.into_task(placement)?)
    }

    /// Submits tasks to the owner of their lane if it is in this process, else to the store.
    pub(super) async fn submit_to(
        &self,
        lane: LaneId,
        tasks: Vec<NewTask>,
    ) -> Vec<Result<Submitted, SubmitError>> {
        match self.outcomes(lane, &tasks).await {
            Ok(outcomes) => {
                tasks.iter().zip(outcomes).map(|(task, outcome)| answer(task, &outcome)).collect()
            }
            Err(error) => {
                let error = Arc::new(error);
                tasks.iter().map(|_| Err(SubmitError::Store(Arc::clone(&error)))).collect()
            }
        }
    }

    /// The outcomes of tasks from the owner of their lane, or from the store.
    pub(super) async fn outcomes(
        &self,
        lane: LaneId,
        tasks: &[NewTask],
    ) -> Result<Vec<SubmitOutcome>, StoreError> {
        let mut given = tasks.to_vec();
        judge_by_gap(&mut given);
        match self.0.parts.scheduler.submit(lane, given).await {
            Some(outcomes) => Ok(outcomes),
            None => self.store(lane, tasks).await,
        }
    }

    async fn store(&self, lane: LaneId, tasks: &[NewTask]) -> Result<Vec<SubmitOutcome>, StoreError> {
        let parts = &self.0.parts;
        let capabilities = parts.store.capabilities();
        let mut outcomes = Vec::with_capacity(tasks.len());
        let tasks = self.keyed(lane, tasks).await?;
        let mut rest = &*tasks;
        while !rest.is_empty() {
            let (mut ops, mut bytes, mut count) = (0, 0, 0);
            for task in rest {
                ops += task.ops();
                bytes += task.bytes();
                if count > 0 && (ops > capabilities.ops_max || bytes > capabilities.bytes_max) {
                    break;
                }
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            outcomes.extend(parts.store.submit(Submit { lane, tasks: now.into() }).await?);
            rest = later;
        }
        self.hint(lane);
        Ok(outcomes)
    }

    /// Tasks with unique keys as the owner of their lane would store them: times of keys are counted without
    /// the steps of the lane's clock, which only its owner has seen, and has written down.
    async fn keyed<'a>(&self, lane: LaneId, tasks: &'a [NewTask]) -> Result<Cow<'a, [NewTask]>, StoreError> {
        if !tasks.iter().any(|task| task.unique.is_some()) {
            return Ok(Cow::Borrowed(tasks));
        }
        let read = LaneRead::Records { after: None };
        let page = self.0.parts.store.load(LoadQuery { lane, read, limit: 1, body_bytes_max: 0 }).await?;
        let LanePage::Records { rows, .. } = page else { return Ok(Cow::Borrowed(tasks)) };
        let (shift, _) = recorded_clock(&rows).unwrap_or_default();
        let mut tasks = tasks.to_vec();
        tasks.iter_mut().filter(|task| task.unique.is_some()).for_each(|task| task.key_by(shift));
        judge_by_gap(&mut tasks);
        Ok(Cow::Owned(tasks))
    }

    /// Sends the owner of a lane, on any server, a hint to read the store.
    pub(super) fn hint(&self, lane: LaneId) {
        self.0.parts.scheduler.hint(lane);
    }

    /// The one lane of a queue that is not spread.
    pub(super) fn lane_of(&self, queue: &QueueKey) -> QueueBinding {
        QueueBinding::Lane(queue.default_lane(self.0.options.lanes))
    }

    /// The lanes and policy of a queue. Its first use writes its lanes to the store.
    pub(super) async fn known(&self, queue: &QueueKey) -> Result<CachedQueue, StoreError> {
        let cache = || self.0.queues.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache().get(queue).cloned();
        if let Some(known) = &found
            && known.read_at.elapsed() < POLICY_FRESH
        {
            return Ok(known.clone());
        }
        let (store, read_at) = (&self.0.parts.store, Instant::now());
        let binding = match found {
            Some(known) => known.binding,
            None => store.bind_queue(queue, &self.lane_of(queue)).await?,
        };
        let policy = Arc::new(store.policy(queue).await?.policy);
        let known = CachedQueue { binding, policy, read_at };
        let mut cache = cache();
        if cache.len() >= QUEUES_MAX {
            cache.clear();
        }
        cache.insert(queue.clone(), known.clone());
        Ok(known)
    }
}

/// One of many that came together: others have their turn now and then.
pub(super) async fn give_way(nth: usize) {
    if nth % 64 == 63 {
        tokio::task::yield_now().await;
    }
}

/// A clock that is not settled expires no unique key.
fn judge_by_gap(tasks: &mut [NewTask]) {
    let mut uniques = tasks.iter_mut().filter_map(|task| task.unique.as_mut()).peekable();
    if uniques.peek().is_some() {
        let gap = clock::now().gap;
        uniques.for_each(|unique| unique.gap = gap);
    }
}

fn answer(task: &NewTask, outcome: &SubmitOutcome) -> Result<Submitted, SubmitError> {
    match outcome {
        SubmitOutcome::Created { .. } => Ok(Submitted { id: task.id, duplicate: false }),
        SubmitOutcome::Duplicate => Ok(Submitted { id: task.id, duplicate: true }),
        SubmitOutcome::Exists { task } => Ok(Submitted { id: *task, duplicate: true }),
        SubmitOutcome::RequestIdReused => {
            let request_id = task.spec.body.request_id.clone().unwrap_or_default();
            Err(SubmitError::RequestIdReused { request_id })
        }
        SubmitOutcome::QueueFull => {
            Err(SubmitError::QueueFull { queue: task.spec.head.queue.clone(), retry_after: FULL_RETRY_AFTER })
        }
    }
}

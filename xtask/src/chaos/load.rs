//! The load: tasks that record their own attempts, submitted at a steady pace to whichever server answers.
//!
//! An unanswered submit is sent again, to another server, with the same request ids, until it is answered.
//! Only acknowledged tasks count.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use tasklane_client::{BatchItem, Client, Error, RetryPolicy, Submitted, TaskRequest};
use tasklane_core::id::TaskId;
use tasklane_core::rng::Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::attempt::{Behaviour, MODE};
use super::options::WORKER_TTL;

/// Queues that live in one lane each.
const PLAIN_QUEUES: u64 = 16;
/// A queue over all lanes.
const SPREAD_QUEUE: &str = "spread";
/// A queue with a limit for each key.
const KEYED_QUEUE: &str = "keyed";
const KEYS: u64 = 10;
/// How many attempts of a key may be alive at once.
pub(super) const KEY_LIMIT: u32 = 4;
/// One in so many tasks runs longer than a worker's session lasts without renewal.
pub(super) const LONG_EVERY: u64 = 10;

/// How often a batch is submitted.
const TICK: Duration = Duration::from_millis(200);
/// A submit that is not answered within this time is sent to another server.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Wait before it is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Retries of a task that should succeed in the end, whatever happens to it.
const RETRIES: u32 = 50;
/// Retries of a task that always fails.
pub(super) const RETRIES_OF_FAILING: u32 = 1;
/// Of 100 batches that were acknowledged, so many are sent again as if they had not been.
const REPEATED_PERCENT: u64 = 4;

/// A task that was handed in.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) request_id: String,
    pub(super) behaviour: Behaviour,
    /// It runs longer than a worker's session lasts without renewal.
    pub(super) is_long: bool,
    /// The key that a limit counts.
    pub(super) key: Option<String>,
    /// The load cancels it.
    is_cancelled: bool,
    request: TaskRequest,
}

#[cfg(test)]
impl Order {
    /// A short task that succeeds.
    pub(super) fn of_test(request_id: &str, key: &str) -> Self {
        Self {
            request_id: request_id.to_owned(),
            behaviour: Behaviour::Succeeds,
            is_long: false,
            key: Some(key.to_owned()),
            is_cancelled: false,
            request: TaskRequest::default(),
        }
    }
}

/// The submitted tasks, and the servers' answers.
#[derive(Debug, Default)]
pub(super) struct Book {
    acknowledged: Mutex<BTreeMap<TaskId, Order>>,
    /// Cancels that were acknowledged before the task had ended.
    cancels: Mutex<BTreeMap<TaskId, bool>>,
    wrong: Mutex<Vec<String>>,
    sent: AtomicU64,
    repeated: AtomicU64,
}

/// A copy of the book, at the end.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) acknowledged: BTreeMap<TaskId, Order>,
    /// For each task that the load cancels, whether the cancel was acknowledged.
    pub(super) cancels: BTreeMap<TaskId, bool>,
    pub(super) wrong: Vec<String>,
    pub(super) sent: u64,
    pub(super) repeated: u64,
}

impl Book {
    pub(super) fn acknowledged(&self) -> usize {
        lock(&self.acknowledged).len()
    }

    pub(super) fn close(&self) -> Orders {
        Orders {
            acknowledged: lock(&self.acknowledged).clone(),
            cancels: lock(&self.cancels).clone(),
            wrong: lock(&self.wrong).clone(),
            sent: self.sent.load(Ordering::Relaxed),
            repeated: self.repeated.load(Ordering::Relaxed),
        }
    }

    /// A server has said that it has the task. `again` if another had said so before.
    fn acknowledge(&self, order: &Order, submitted: &Submitted, again: bool) {
        let task = &submitted.task_id;
        let Ok(task) = task.parse::<TaskId>() else {
            lock(&self.wrong).push(format!("{} was answered with {task}, which is no id", order.request_id));
            return;
        };
        let before = lock(&self.acknowledged).insert(task, order.clone());
        let wrong = match before {
            None if again => Some("was acknowledged as another task the second time"),
            Some(_) if again && !submitted.duplicate => Some("was created twice"),
            Some(other) if other.request_id != order.request_id => {
                Some("was given the id of another request")
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            lock(&self.wrong).push(format!("request {} (task {task}) {wrong}", order.request_id));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while holding it")
}

/// Sets up the queues.
pub(super) async fn prepare(client: &Client) -> Result<()> {
    let keyed = json!({ "concurrency": [{ "key": "{{ metadata.key }}", "limit": KEY_LIMIT }] });
    let spread = json!({ "spread": "" });
    for (queue, policy) in [(KEYED_QUEUE, keyed), (SPREAD_QUEUE, spread)] {
        let policy: Map<String, Value> = serde_json::from_value(policy)?;
        client.put_queue(queue, 0, &policy).await.with_context(|| format!("cannot set up {queue}"))?;
    }
    Ok(())
}

/// Hands in tasks.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) clients: Vec<Client>,
    pub(super) book: Arc<Book>,
    /// The program that attempts are.
    pub(super) program: PathBuf,
    /// Tasks a second.
    pub(super) rate: f64,
    pub(super) seed: u64,
}

impl Load {
    /// Submits until stopped; then waits until all submits are acknowledged.
    pub(super) async fn run(self, stop: CancellationToken) {
        let load = Arc::new(self);
        let mut rng = Rng::new(load.seed ^ 0x10ad);
        let mut batches = JoinSet::new();
        let mut tick = tokio::time::interval(TICK);
        let (mut due, mut index) = (0.0, 0);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => break,
            }
            due += load.rate * TICK.as_secs_f64();
            let mut batch = Vec::new();
            while due >= 1.0 {
                due -= 1.0;
                batch.push(load.order(index, &mut rng));
                index += 1;
            }
            let seed = rng.next_u64();
            batches.spawn(Arc::clone(&load).submit(batch, Rng::new(seed)));
            while batches.try_join_next().is_some() {}
        }
        batches.join_all().await;
    }

    fn order(&self, index: u64, rng: &mut Rng) -> Order {
        let is_long = index.is_multiple_of(LONG_EVERY);
        let (behaviour, is_cancelled) = match (is_long, rng.below(100)) {
            (true, ..10) => (Behaviour::Family, false),
            (true, 10..13) | (false, 4..5) => (Behaviour::Succeeds, true),
            (false, ..3) => (Behaviour::FailsFirst, false),
            (false, 3..4) => (Behaviour::Fails, false),
            _ => (Behaviour::Succeeds, false),
        };
        let millis = if is_long {
            u64::try_from(WORKER_TTL.as_millis()).unwrap_or(0) + 200 + rng.below(1_300)
        } else {
            rng.below(200)
        };
        let mut metadata = BTreeMap::new();
        let (queue, key) = match rng.below(100) {
            ..12 => {
                let key = format!("k{}", rng.below(KEYS));
                metadata.insert("key".to_owned(), key.clone());
                (KEYED_QUEUE.to_owned(), Some(key))
            }
            12..24 => (SPREAD_QUEUE.to_owned(), None),
            _ => (format!("q{}", rng.below(PLAIN_QUEUES)), None),
        };
        let request_id = format!("r{index}");
        let argv = [
            self.program.display().to_string(),
            MODE.to_owned(),
            millis.to_string(),
            behaviour.as_str().to_owned(),
        ];
        let retries = if behaviour == Behaviour::Fails { RETRIES_OF_FAILING } else { RETRIES };
        let request = TaskRequest {
            queue: Some(queue),
            metadata,
            request_id: Some(request_id.clone()),
            execution_timeout: Some(Duration::from_mins(1)),
            retry_policy: Some(RetryPolicy {
                max_retries: Some(retries),
                retry_delay: Some(Duration::from_millis(200)),
                backoff_rate: Some(1.0),
                ..RetryPolicy::default()
            }),
            ..TaskRequest::new(behaviour.as_str(), "SHELL", json!({ "argv": argv }))
        };
        Order { request_id, behaviour, is_long, key, is_cancelled, request }
    }

    async fn submit(self: Arc<Self>, batch: Vec<Order>, mut rng: Rng) {
        self.book.sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let accepted = self.until_acknowledged(batch.clone(), &mut rng, false).await;
        let mut later = JoinSet::new();
        for (order, task) in accepted {
            if order.is_cancelled {
                let wait = Duration::from_millis(rng.below(3_000));
                let rng = Rng::new(rng.next_u64());
                later.spawn(Arc::clone(&self).cancel(task, wait, rng));
            }
        }
        if rng.chance(REPEATED_PERCENT) {
            self.book.repeated.fetch_add(batch.len() as u64, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(rng.below(10_000))).await;
            self.until_acknowledged(batch, &mut rng, true).await;
        }
        later.join_all().await;
    }

    /// Sends a batch to one server after the other until all of it is acknowledged.
    async fn until_acknowledged(
        &self,
        batch: Vec<Order>,
        rng: &mut Rng,
        again: bool,
    ) -> Vec<(Order, String)> {
        let (mut left, mut accepted) = (batch, Vec::new());
        let mut at = rng.index(self.clients.len());
        while !left.is_empty() {
            let client = &self.clients[at];
            at = (at + 1) % self.clients.len();
            let requests: Vec<&TaskRequest> = left.iter().map(|order| &order.request).collect();
            match tokio::time::timeout(ANSWER_WITHIN, client.submit_batch(&requests)).await {
                Ok(Ok(items)) => {
                    let answered: Vec<_> = left.into_iter().zip(items).collect();
                    left = Vec::new();
                    for (order, item) in answered {
                        match item {
                            BatchItem::Submitted(submitted) => {
                                self.book.acknowledge(&order, &submitted, again);
                                accepted.push((order, submitted.task_id));
                            }
                            BatchItem::Refused(problem) => {
                                self.refused(&order, problem.status, &problem.to_string());
                                left.push(order);
                            }
                        }
                    }
                }
                Ok(Err(Error::Problem(problem))) => {
                    self.refused(&left[0], problem.status, &problem.to_string());
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if !left.is_empty() {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
        accepted
    }

    /// A server may be unable to for a while; nothing else is a reason to refuse.
    fn refused(&self, order: &Order, status: u16, why: &str) {
        let is_expected = matches!(status, 429 | 502 | 503 | 504);
        let mut wrong = lock(&self.book.wrong);
        if !is_expected && wrong.len() < 50 {
            wrong.push(format!("request {} was refused with {status}: {why}", order.request_id));
        }
    }

    async fn cancel(self: Arc<Self>, task: String, wait: Duration, mut rng: Rng) {
        tokio::time::sleep(wait).await;
        let Ok(id) = task.parse::<TaskId>() else { return };
        lock(&self.book.cancels).insert(id, false);
        let mut at = rng.index(self.clients.len());
        loop {
            let client = &self.clients[at];
            at = (at + 1) % self.clients.len();
            match tokio::time::timeout(ANSWER_WITHIN, client.cancel(&task)).await {
                Ok(Ok(())) => {
                    lock(&self.book.cancels).insert(id, true);
                    return;
                }
                // It had ended.
                Ok(Err(Error::Problem(problem))) if problem.status == 409 => return,
                Ok(Err(Error::Problem(problem))) if problem.status == 404 => {
                    lock(&self.book.wrong).push(format!("task {id} was acknowledged and is lost: {problem}"));
                    return;
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    }
}

/// Asks the first of several servers that answers.
pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
    clients: &[Client],
    within: Duration,
    question: impl Fn(Client) -> F,
) -> Result<T> {
    ensure!(!clients.is_empty(), "there is no server to ask");
    let deadline = tokio::time::Instant::now() + within;
    let mut last = None;
    loop {
        for client in clients {
            match tokio::time::timeout(within, question(client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => last = Some(error),
                Err(_) => {}
            }
        }
        if tokio::time::Instant::now() > deadline {
            return match last {
                Some(error) => Err(error).context("no server answers"),
                None => anyhow::bail!("no server answers"),
            };
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

//! The load whose promises are checked: tasks that record their own attempts, with request ids, delays, times, retries
//! and cancels; schedules; and a lock with an owner and a rival.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tasklane_client::{Client, Error, RetryPolicy, TaskRequest};
use tasklane_core::rng::Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::system::System;
use super::tally::lock;
use crate::chaos::attempt::{Behaviour, MODE};
use crate::chaos::clock::Boot;

/// Wait between attempts of a task that fails.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Retries of a task that always fails, and of the others.
pub(super) const RETRIES_OF_FAILING: u32 = 1;
const RETRIES: u32 = 50;
/// A submit that is not answered within this time is sent again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const AGAIN_AFTER: Duration = Duration::from_millis(150);
/// The lock that one owner keeps, and a rival asks for.
const LOCK: &str = "kept";
const LOCK_TTL: Duration = Duration::from_secs(40);
const RENEW_EVERY: Duration = Duration::from_secs(4);

/// The schedules, with the time between their fires; none where it is a day.
pub(super) const SCHEDULES: [(&str, Option<Duration>); 4] = [
    ("skips", Some(Duration::from_secs(3))),
    ("makes-up", Some(Duration::from_secs(10))),
    ("cron", Some(Duration::from_secs(5))),
    ("daily", None),
];

/// When a task may start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Due {
    AtOnce,
    /// This long after it was submitted.
    Delay(Duration),
    /// At a time of the product, in microseconds since 1970.
    At(i64),
}

/// A task that was handed in.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) behaviour: Behaviour,
    pub(super) due: Due,
    /// When it was sent for the first time.
    pub(super) sent: Boot,
    pub(super) acknowledged: Boot,
    pub(super) task: String,
    /// Whether a cancel was sent, and whether it was acknowledged.
    pub(super) cancel: Option<bool>,
}

/// The acknowledged tasks, by request id.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) orders: Mutex<BTreeMap<String, Order>>,
}

impl Book {
    pub(super) fn acknowledged(&self) -> usize {
        lock(&self.orders).len()
    }
}

/// Hands in tasks.
#[derive(Debug)]
pub(super) struct Honest {
    pub(super) clients: Vec<Client>,
    pub(super) book: Arc<Book>,
    pub(super) system: Arc<System>,
    /// The program that attempts are.
    pub(super) program: PathBuf,
    pub(super) rate: f64,
    pub(super) seed: u64,
}

impl Honest {
    /// Puts the schedules.
    pub(super) async fn prepare(&self) -> Result<()> {
        let rules = [
            json!({"every": "3s", "overlap": "skip"}),
            json!({"every": "10s", "missed": "runAll"}),
            json!({"cron": "*/5 * * * * *"}),
            json!({"cron": "0 0 * * *"}),
        ];
        for ((name, _), mut rule) in SCHEDULES.into_iter().zip(rules) {
            rule["task"] = serde_json::to_value(TaskRequest::new(
                name,
                "SHELL",
                json!({ "argv": self.argv(0, Behaviour::Succeeds) }),
            ))?;
            let put = self.clients[0].put_schedule(name, &rule).await;
            put.with_context(|| format!("cannot put the schedule {name}"))?;
        }
        Ok(())
    }

    fn argv(&self, millis: u64, behaviour: Behaviour) -> Value {
        json!([self.program, MODE, millis.to_string(), behaviour.as_str()])
    }

    /// Submits until stopped; then waits until all submits are acknowledged.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut rng = Rng::new(self.seed ^ 0x4057);
        let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / self.rate.max(0.1)));
        let mut under_way = JoinSet::new();
        under_way.spawn(Arc::clone(&self).keep_lock(stop.clone()));
        for index in 0_u64.. {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => break,
            }
            under_way.spawn(Arc::clone(&self).hand_in(index, Rng::new(rng.next_u64())));
            while under_way.try_join_next().is_some() {}
        }
        under_way.join_all().await;
    }

    async fn hand_in(self: Arc<Self>, index: u64, mut rng: Rng) {
        let request_id = format!("r{index}");
        let behaviour = match rng.below(20) {
            ..2 => Behaviour::FailsFirst,
            2 => Behaviour::Fails,
            3..6 => Behaviour::Family,
            _ => Behaviour::Succeeds,
        };
        let due = match rng.below(10) {
            ..2 => Due::Delay(Duration::from_millis(500 + rng.below(8_000))),
            2 => {
                Due::At(self.system.clock.now() + i64::try_from(500_000 + rng.below(6_000_000)).unwrap_or(0))
            }
            _ => Due::AtOnce,
        };
        let is_long = rng.chance(15);
        let millis = if is_long { 1_500 + rng.below(2_500) } else { rng.below(150) };
        let retries = if behaviour == Behaviour::Fails { RETRIES_OF_FAILING } else { RETRIES };
        let run_at = if let Due::At(at) = due { jiff::Timestamp::from_microsecond(at).ok() } else { None };
        let delay = if let Due::Delay(delay) = due { Some(delay) } else { None };
        let request = TaskRequest {
            queue: Some(format!("q{}", rng.below(4))),
            request_id: Some(request_id.clone()),
            execution_timeout: Some(Duration::from_mins(1)),
            run_at,
            delay,
            retry_policy: Some(RetryPolicy {
                max_retries: Some(retries),
                retry_delay: Some(RETRY_DELAY),
                backoff_rate: Some(1.0),
                jitter: Some(0.0),
                ..RetryPolicy::default()
            }),
            ..TaskRequest::new("honest", "SHELL", json!({ "argv": self.argv(millis, behaviour) }))
        };
        let sent = Boot::now();
        let task = self.until_acknowledged(&request).await;
        let order =
            Order { behaviour, due, sent, acknowledged: Boot::now(), task: task.clone(), cancel: None };
        lock(&self.book.orders).insert(request_id.clone(), order);
        if is_long && rng.chance(30) {
            tokio::time::sleep(Duration::from_millis(rng.below(3_000))).await;
            self.cancel(&request_id, &task).await;
        } else if rng.chance(10) {
            tokio::time::sleep(Duration::from_millis(rng.below(15_000))).await;
            let again = self.until_acknowledged(&request).await;
            if again != task {
                self.system.tally.violation(
                    "a request became two tasks",
                    &format!("requestId {request_id} is task {task}, and task {again} the second time"),
                );
            }
        }
    }

    /// Submits to one server after the other until one of them acknowledges. Answers the id of the task.
    async fn until_acknowledged(&self, request: &TaskRequest) -> String {
        for client in self.clients.iter().cycle() {
            match tokio::time::timeout(ANSWER_WITHIN, client.submit(request)).await {
                Ok(Ok(submitted)) => return submitted.task_id,
                Ok(Err(Error::Problem(problem))) if !is_passing(problem.status) => {
                    self.system.tally.violation(
                        "an honest request was refused",
                        &format!("{:?}: {} {problem}", request.request_id, problem.status),
                    );
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Ok(Err(_)) | Err(_) => {}
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        String::new()
    }

    async fn cancel(&self, request_id: &str, task: &str) {
        let note = |acknowledged| {
            if let Some(order) = lock(&self.book.orders).get_mut(request_id) {
                order.cancel = Some(acknowledged);
            }
        };
        note(false);
        for client in self.clients.iter().cycle() {
            match tokio::time::timeout(ANSWER_WITHIN, client.cancel(task)).await {
                Ok(Ok(())) => return note(true),
                // It had ended.
                Ok(Err(Error::Problem(problem))) if problem.status == 409 => return,
                Ok(Err(Error::Problem(problem))) if !is_passing(problem.status) => {
                    let what = format!("task {task} was acknowledged and cannot be cancelled: {problem}");
                    return self.system.tally.violation("an honest request was refused", &what);
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// An owner renews its lock in time, and a rival asks for it: it is free for the rival at no time.
    async fn keep_lock(self: Arc<Self>, stop: CancellationToken) {
        let mut renewed: Option<Boot> = None;
        for client in self.clients.iter().cycle() {
            let sent = Boot::now();
            match tokio::time::timeout(ANSWER_WITHIN, client.take_lock(LOCK, "owner", LOCK_TTL)).await {
                Ok(Ok(_)) => renewed = Some(sent),
                Ok(Err(Error::Problem(problem))) if problem.status == 409 && is_fresh(renewed) => {
                    self.system
                        .tally
                        .violation("a lock was lost", &format!("it was renewed in time: {problem}"));
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if is_fresh(renewed)
                && let Ok(Ok(taken)) =
                    tokio::time::timeout(ANSWER_WITHIN, client.take_lock(LOCK, "rival", LOCK_TTL)).await
                && is_fresh(renewed)
            {
                let what = format!("a rival got {taken:?} while its owner had renewed it in time");
                self.system.tally.violation("a lock was lost", &what);
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(RENEW_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// A lock was renewed so recently that no other owner can have it.
fn is_fresh(renewed: Option<Boot>) -> bool {
    renewed.is_some_and(|at| Boot::now().since(at) < LOCK_TTL / 2)
}

/// A server may be unable to for a while.
fn is_passing(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504 | 507)
}

//! Clients: they submit, submit again, cancel, change policies, and try until they have an answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, LimitId, QueueKey, TaskId};
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueuePolicy, Rate, RateLimit, Strategy, WhenFull, WhenReached,
};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::rng::Rng;
use tasklane_core::task::{
    Fingerprint, FlowKey, NewTask, OwnLimit, Payload, Priority, TaskBody, TaskHead, TaskSpec, Unique,
};

use tasklane_ports::{PutPolicy, Submit};

use crate::checker::Observation;
use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::worker::{TYPES, name};
use crate::world::{Event, World};

/// All operations of clients.
#[derive(Debug, Default)]
pub(crate) struct Client {
    operations: Vec<Operation>,
    open: usize,
    /// Limits of each queue, with the most that any version of its policy allows.
    pub(crate) limits: BTreeMap<QueueKey, Vec<ConcurrencyLimit>>,
    /// How often each task was sent.
    sent: BTreeMap<TaskId, u32>,
}

#[derive(Debug)]
struct Operation {
    kind: OperationKind,
    done: bool,
    tries: u32,
}

#[derive(Debug)]
enum OperationKind {
    Submit { lane: LaneId, tasks: Arc<[NewTask]> },
    Cancel { task: TaskId },
}

/// An event of a client.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    /// Time to send.
    Send { operation: usize },
    /// A server has answered; `None` when it does not know the outcome.
    Answer { operation: usize, outcomes: Option<Vec<SubmitOutcome>> },
    /// No answer came.
    Timeout { operation: usize, tries: u32 },
    /// An operator changes a policy.
    Policy { queue: QueueKey, policy: Box<QueuePolicy> },
}

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);

impl Client {
    /// Everything was answered.
    pub(crate) fn is_done(&self) -> bool {
        self.open == 0
    }

    /// The lane to hint at when an operation is stored.
    pub(crate) fn lane_of(&self, operation: usize) -> Option<LaneId> {
        match &self.operations.get(operation)?.kind {
            OperationKind::Submit { lane, .. } => Some(*lane),
            OperationKind::Cancel { task } => Some(task.lane()),
        }
    }

    /// The tasks of an operation, if it submits some.
    fn tasks_of(&mut self, operation: usize) -> Option<&mut Arc<[NewTask]>> {
        match &mut self.operations[operation].kind {
            OperationKind::Submit { tasks, .. } => Some(tasks),
            OperationKind::Cancel { .. } => None,
        }
    }

    pub(crate) fn submit_of(&self, operation: usize) -> Option<(LaneId, Vec<NewTask>)> {
        match &self.operations[operation].kind {
            OperationKind::Submit { lane, tasks } => Some((*lane, tasks.to_vec())),
            OperationKind::Cancel { .. } => None,
        }
    }

    pub(crate) fn request_of(&self, operation: usize) -> StoreRequest {
        match &self.operations[operation].kind {
            OperationKind::Submit { lane, tasks } => {
                StoreRequest::Submit(Submit { lane: *lane, tasks: tasks.clone() })
            }
            OperationKind::Cancel { task } => {
                StoreRequest::Post { lane: task.lane(), command: Command::Cancel { task: *task } }
            }
        }
    }
}

/// The type that some worker always offers.
pub(crate) const PLAIN_TYPE: &str = TYPES[1];

/// The head of a task without anything special, that a worker can always be found for.
pub(crate) fn plain_head(queue: QueueKey, max_retries: u32) -> TaskHead {
    TaskHead {
        queue,
        task_type: name(PLAIN_TYPE),
        priority: Priority::default(),
        labels: BTreeMap::new(),
        flow: Vec::new(),
        hash_bucket: None,
        execution_timeout: Duration::from_secs(40),
        start_timeout: None,
        progress_timeout: None,
        runs_as: None,
        retry: RetryPolicy { max_retries, ..RetryPolicy::default() },
    }
}

pub(crate) fn queue_key(index: usize) -> QueueKey {
    QueueKey::new(name("default"), name(&format!("q{index}")))
}

impl World {
    pub(crate) fn plan_client(&mut self) {
        for (index, policy) in policies().into_iter().enumerate() {
            let queue = queue_key(index);
            self.client.limits.insert(queue.clone(), policy.concurrency.clone());
            let put = PutPolicy { queue: queue.clone(), expected: 0, policy: policy.clone() };
            self.store.put_policy(put).expect("the first policy of its queue");
            // Some policies change during the run: a queue pauses for a while, or has a lower limit.
            if self.rng.chance(40) {
                let at = self.between(10_000_000, 40_000_000);
                let mut changed = policy.clone();
                changed.paused = true;
                let changed = Box::new(changed);
                self.after(at, Event::Client(ClientEvent::Policy { queue: queue.clone(), policy: changed }));
                let back = at + self.between(2_000_000, 20_000_000);
                self.after(back, Event::Client(ClientEvent::Policy { queue, policy: Box::new(policy) }));
            }
        }
        self.plan_turns();
        let mut left = self.scenario.tasks;
        let mut number = 0;
        while left > 0 {
            let batch = (1 + self.rng.index(6)).min(left);
            left -= batch;
            let at = self.between(1_000_000, 45_000_000);
            let (lane, tasks) = self.make_tasks(batch, &mut number, at);
            self.plan_twins(&tasks, lane, at);
            self.plan_operation(OperationKind::Submit { lane, tasks: tasks.into() }, at);
        }
    }

    /// Two tenants with many tasks and one with few, in a queue that starts one task in a second.
    fn plan_turns(&mut self) {
        let mut number = 1_000_000;
        for (key, batches, at) in
            [("greedy", 4, 1_000_000), ("eager", 3, 1_500_000), ("modest", 1, 4_000_000)]
        {
            for _ in 0..batches {
                let at = self.between(at, at + 1_000_000);
                let queue = queue_key(FAIR);
                let lane = queue.default_lane(self.scenario.lanes);
                let tasks: Vec<NewTask> = (0..5)
                    .map(|_| {
                        let mut task = self.make_task(FAIR, &queue, lane, false, &mut number, at);
                        let head = Arc::make_mut(&mut task.spec.head);
                        head.flow = vec![FlowKey { limit: LimitId::of(TENANT), key: key.into(), own: None }];
                        (head.task_type, head.labels) = (name(TYPES[1]), BTreeMap::new());
                        (head.priority, head.start_timeout) = (Priority::default(), None);
                        task.due = task.created_at;
                        task
                    })
                    .collect();
                self.plan_operation(OperationKind::Submit { lane, tasks: tasks.into() }, at);
            }
        }
    }

    /// The same request again from somewhere else, and sometimes another one under the same id.
    fn plan_twins(&mut self, tasks: &[NewTask], lane: LaneId, at: Duration) {
        let named = tasks.iter().any(|task| task.spec.body.request_id.is_some());
        if !named || !self.rng.chance(40) {
            return;
        }
        let mut again: Vec<NewTask> = tasks.to_vec();
        if self.rng.chance(25) {
            for task in &mut again {
                task.fingerprint.hash ^= 1;
            }
        }
        let longest = if self.rng.chance(50) { 5_000 } else { 20_000_000 };
        let soon = self.between(0, longest);
        self.plan_operation(OperationKind::Submit { lane, tasks: again.into() }, at + soon);
    }

    /// Lets a client submit tasks.
    pub(crate) fn plan_submit(&mut self, lane: LaneId, tasks: Vec<NewTask>, at: Duration) {
        self.plan_operation(OperationKind::Submit { lane, tasks: tasks.into() }, at);
    }

    fn plan_operation(&mut self, kind: OperationKind, at: Duration) {
        let operation = self.client.operations.len();
        self.client.operations.push(Operation { kind, done: false, tries: 0 });
        self.client.open += 1;
        self.after(at, Event::Client(ClientEvent::Send { operation }));
    }

    fn make_tasks(&mut self, batch: usize, number: &mut u64, at: Duration) -> (LaneId, Vec<NewTask>) {
        let index = [0, 1, 2, 3, 4, 5, UNIQUE, ONLY][self.rng.index(8)];
        let queue = queue_key(index);
        let lane = queue.default_lane(self.scenario.lanes);
        let named = self.rng.chance(40);
        let tasks = (0..batch).map(|_| self.make_task(index, &queue, lane, named, number, at)).collect();
        (lane, tasks)
    }

    fn make_task(
        &mut self,
        index: usize,
        queue: &QueueKey,
        lane: LaneId,
        named: bool,
        number: &mut u64,
        at: Duration,
    ) -> NewTask {
        *number += 1;
        let created_at = self.now + at;
        let request_id = named.then(|| format!("request-{number}"));
        let id = match &request_id {
            Some(request) => TaskId::from_request(lane, queue, None, request),
            None => TaskId::from_time(lane, created_at, self.rng.next_u64()),
        };
        let rng = &mut self.rng;
        let ghost = rng.chance(3);
        let kind = if ghost { 3 } else { rng.index(3) };
        let special = match rng.below(100) {
            0 | 1 => "poison",
            2..=4 => "endless",
            _ => "plain",
        };
        let flow = match index {
            3 | ONLY => {
                vec![FlowKey {
                    limit: LimitId::of(TENANT),
                    key: format!("t{}", rng.below(3)).into(),
                    own: None,
                }]
            }
            0 => own_limits(rng),
            _ => Vec::new(),
        };
        let unique = (index == UNIQUE).then(|| {
            let key = format!("u{}", rng.below(3));
            let until = rng.chance(30).then(|| created_at + Duration::from_millis(rng.below(20_000)));
            Unique::new(key, until)
        });
        let labels = if rng.chance(10) {
            BTreeMap::from([("zone".to_owned(), "b".to_owned())])
        } else {
            BTreeMap::new()
        };
        let start_timeout = (ghost || rng.chance(10)).then(|| Duration::from_secs(5 + rng.below(40)));
        let head = TaskHead {
            queue: queue.clone(),
            // Zone b has workers of every type; labels and a narrow type together might have none.
            task_type: name(TYPES[if labels.is_empty() { kind } else { 1 }]),
            priority: Priority::new(u8::try_from(rng.below(10)).unwrap_or(5)).unwrap_or_default(),
            labels,
            flow,
            hash_bucket: (index == 4).then(|| TaskHead::bucket_of(&format!("key-{}", rng.below(5)))),
            execution_timeout: Duration::from_secs(40),
            start_timeout,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy {
                max_retries: u32::try_from(rng.below(4)).unwrap_or(0),
                delay: Duration::from_millis(200 + rng.below(5_000)),
                backoff_percent: 200,
                delay_max: Duration::from_secs(20),
                jitter_percent: 10,
            },
        };
        let due =
            if rng.chance(15) { created_at + Duration::from_millis(rng.below(30_000)) } else { created_at };
        let relative = due > created_at && (self.scenario.far_steps || rng.chance(60));
        let body = TaskBody {
            relative,
            name: special.to_owned(),
            payload: Payload::Text("x".to_owned()),
            request_id,
            watched: rng.chance(30),
            archived: false,
            ..TaskBody::default()
        };
        NewTask {
            id,
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
            created_at,
            due,
            fingerprint: Fingerprint { version: 1, hash: *number },
            queue_len_max: (index == 5).then_some(25),
            unique,
            shift: None,
        }
    }

    pub(crate) fn client_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Send { operation } => self.send_operation(operation),
            ClientEvent::Timeout { operation, tries } => {
                let open = &self.client.operations[operation];
                if !open.done && open.tries == tries {
                    self.send_operation(operation);
                }
            }
            ClientEvent::Answer { operation, outcomes } => {
                if let Some(outcomes) = outcomes {
                    self.on_answer(operation, &outcomes);
                } else {
                    let delay = self.between(100_000, 2_000_000);
                    let tries = self.client.operations[operation].tries;
                    self.after(delay, Event::Client(ClientEvent::Timeout { operation, tries }));
                }
            }
            ClientEvent::Policy { queue, policy } => {
                let expected = self.store.policy(&queue).version;
                let put = PutPolicy { queue, expected, policy: *policy };
                self.call_store(StoreRequest::PutPolicy(put), ReplyTo::Nobody);
            }
        }
    }

    /// The last change of every policy: nothing stays paused.
    pub(crate) fn settle_policies(&mut self) {
        for (index, policy) in policies().into_iter().enumerate() {
            let queue = queue_key(index);
            let expected = self.store.policy(&queue).version;
            self.store
                .put_policy(PutPolicy { queue, expected, policy })
                .expect("no other writer changes policies now");
        }
    }

    /// A server takes an operation in.
    pub(crate) fn stamp_operation(&mut self, index: usize, operation: usize) {
        let Some(tasks) = self.client.tasks_of(operation) else { return };
        let mut stamped = tasks.to_vec();
        for task in &mut stamped {
            self.stamp(index, task);
        }
        if let Some(tasks) = self.client.tasks_of(operation) {
            *tasks = stamped.into();
        }
    }

    fn send_operation(&mut self, operation: usize) {
        let tries = self.client.operations[operation].tries + 1;
        self.client.operations[operation].tries = tries;
        self.sent_again(operation);
        self.after(PATIENCE, Event::Client(ClientEvent::Timeout { operation, tries }));
        let index = self.rng.index(self.servers.len());
        let incarnation = self.servers[index].incarnation;
        let delay = self.between(50, 500);
        self.after(delay, Event::Server { index, incarnation, input: ServerInput::Operation { operation } });
    }

    fn on_answer(&mut self, operation: usize, outcomes: &[SubmitOutcome]) {
        if std::mem::replace(&mut self.client.operations[operation].done, true) {
            return;
        }
        self.client.open -= 1;
        let tasks = match &self.client.operations[operation].kind {
            OperationKind::Submit { tasks, .. } => tasks.clone(),
            OperationKind::Cancel { task } => {
                let task = *task;
                return self.checker.observe(self.now, Observation::CancelAcknowledged { task });
            }
        };
        for (task, outcome) in tasks.iter().zip(outcomes) {
            let once = self.client.sent.get(&task.id) == Some(&1);
            match outcome {
                SubmitOutcome::Created { .. } => self.acknowledged(task.id, false),
                SubmitOutcome::Duplicate => self.acknowledged(task.id, once),
                SubmitOutcome::RequestIdReused if once => {
                    let what = format!(
                        "task {} was refused as a reused request id, though it was sent once",
                        task.id
                    );
                    self.checker.fail(self.now, what);
                }
                SubmitOutcome::RequestIdReused => self.report.fault("request id reused"),
                SubmitOutcome::QueueFull => self.report.fault("queue full"),
                SubmitOutcome::Exists { task: holder } => {
                    self.report.fault("unique key held");
                    self.check_refused(task.id, *holder);
                }
            }
        }
    }

    fn acknowledged(&mut self, task: TaskId, wrongly_duplicate: bool) {
        self.checker.observe(self.now, Observation::Acknowledged { task, wrongly_duplicate });
        if self.burst.has(task) {
            return;
        }
        // Some tasks are cancelled, at once or later, once or twice.
        for _ in 0..2 {
            if self.rng.chance(10) {
                let longest = if self.rng.chance(40) { 3_000_000 } else { 40_000_000 };
                let later = self.between(0, longest);
                self.plan_operation(OperationKind::Cancel { task }, later);
            }
        }
    }

    /// A server gives an operation to the store after it had given it to a lane.
    pub(crate) fn sent_again(&mut self, operation: usize) {
        if let OperationKind::Submit { tasks, .. } = &self.client.operations[operation].kind {
            for task in tasks.iter() {
                *self.client.sent.entry(task.id).or_default() += 1;
            }
        }
    }
}

/// Limits that some tasks bring along.
fn own_limits(rng: &mut Rng) -> Vec<FlowKey> {
    let number = rng.below(2);
    let key = format!("k{number}");
    if rng.chance(20) {
        // The same for all tasks of a key: the task that is assigned first need not start first.
        let limit = 1 + u32::try_from(number).unwrap_or(0);
        let own = OwnLimit::Concurrency(Concurrency { limit, when_reached: WhenReached::Wait });
        vec![FlowKey { limit: LimitId::of(TENANT), key: key.into(), own: Some(own) }]
    } else if rng.chance(10) {
        let rate = Rate { limit: 1, per: Duration::from_secs(2), burst: 1 };
        let limit = LimitId::of_own_rate(TENANT, &rate);
        vec![FlowKey { limit, key: key.into(), own: Some(OwnLimit::Rate(rate)) }]
    } else {
        Vec::new()
    }
}

/// The queue whose lines take turns, …
pub(crate) const FAIR: usize = 6;
/// … the queue with unique keys, …
const UNIQUE: usize = 7;
/// … and the queue whose limit cancels.
const ONLY: usize = 8;

/// The template of keys by tenant.
const TENANT: &str = "{{ metadata.tenant }}";

/// One queue of each kind.
fn policies() -> Vec<QueuePolicy> {
    let at_once = |key: Option<&str>, limit| ConcurrencyLimit {
        key: key.map(str::to_owned),
        concurrency: Concurrency { limit, when_reached: WhenReached::Wait },
    };
    let rate = |key: Option<&str>| RateLimit {
        key: key.map(str::to_owned),
        rate: Rate { limit: 4, per: Duration::from_secs(1), burst: 2 },
    };
    let plain = QueuePolicy::default;
    vec![
        plain(),
        QueuePolicy { concurrency: vec![at_once(None, 3)], ..plain() },
        QueuePolicy { rate: vec![rate(None)], strategy: Strategy::RoundRobin, ..plain() },
        QueuePolicy {
            concurrency: vec![at_once(Some(TENANT), 1)],
            rate: vec![rate(Some(TENANT))],
            ..plain()
        },
        QueuePolicy {
            strategy: Strategy::ConsistentHash { when_full: WhenFull::Wait },
            weight: 3,
            ..plain()
        },
        QueuePolicy { strategy: Strategy::Weighted, len_max: Some(25), ..plain() },
        QueuePolicy {
            concurrency: vec![at_once(Some(TENANT), 50)],
            rate: vec![RateLimit {
                key: None,
                rate: Rate { limit: 1, per: Duration::from_secs(1), burst: 1 },
            }],
            ..plain()
        },
        plain(),
        QueuePolicy {
            concurrency: vec![ConcurrencyLimit {
                key: Some(TENANT.to_owned()),
                concurrency: Concurrency { limit: 2, when_reached: WhenReached::CancelNewest },
            }],
            ..plain()
        },
    ]
}

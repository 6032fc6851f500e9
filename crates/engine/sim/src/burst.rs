//! The burst at the end of a run: all faults have ended and the world is at rest. Tasks come at once into a
//! queue of their own; the owner must spread them over the idle workers by the strategy of the queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{AttemptNo, Epoch, QueueKey, SessionId, TaskId};
use tasklane_core::message::AttemptId;
use tasklane_core::policy::{QueuePolicy, Strategy};
use tasklane_core::task::{Fingerprint, NewTask, TaskBody, TaskSpec};
use tasklane_ports::PutPolicy;

use crate::client::{PLAIN_TYPE, plain_head};
use crate::worker::name;
use crate::world::{Event, World};

/// The stage of the burst.
#[derive(Debug, Default)]
pub(crate) enum Burst {
    /// Faults and their tasks come first.
    #[default]
    Later,
    /// The world is at rest; owners and workers exchange greetings again.
    Soon,
    /// The tasks are submitted.
    Sent { tasks: BTreeSet<TaskId>, workers: Vec<IdleWorker>, epoch: Epoch },
    /// The spread was right, or workers or the owner of its lane changed meanwhile.
    Over,
}

/// A worker with nothing to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleWorker {
    session: SessionId,
    capacity: u64,
    weight: u64,
}

/// The name of its tasks: they succeed, and none ends before all are assigned.
pub(crate) const BURST: &str = "burst";
/// How long a task of it runs.
pub(crate) const RUNS_FOR: Duration = Duration::from_secs(5);
/// Long enough for sweeps and heartbeats after the last fault.
const CALM: Duration = Duration::from_secs(12);

impl Burst {
    /// Whether a task belongs to it.
    pub(crate) fn has(&self, task: TaskId) -> bool {
        matches!(self, Self::Sent { tasks, .. } if tasks.contains(&task))
    }
}

impl World {
    /// The world is at rest: begins the burst, or judges it when it has ended. Returns whether it is over.
    pub(crate) fn play_burst(&mut self) -> bool {
        match std::mem::take(&mut self.burst) {
            Burst::Later => {
                let policy = QueuePolicy { strategy: self.burst_strategy(), ..QueuePolicy::default() };
                let put = PutPolicy { queue: burst_queue(), expected: 0, policy };
                self.store.put_policy(put).expect("the queue is new");
                self.burst = Burst::Soon;
                self.after(CALM, Event::Burst);
            }
            Burst::Soon => self.burst = Burst::Soon,
            Burst::Sent { tasks, workers, epoch } => {
                self.judge_burst(&tasks, &workers, epoch);
                self.burst = Burst::Over;
            }
            Burst::Over => self.burst = Burst::Over,
        }
        matches!(self.burst, Burst::Over)
    }

    pub(crate) fn send_burst(&mut self) {
        let workers = self.idle_workers();
        let Some(count) = burst_size(self.burst_strategy(), &workers).filter(|_| workers.len() > 1) else {
            self.burst = Burst::Over;
            return;
        };
        let queue = burst_queue();
        let lane = queue.default_lane(self.scenario.lanes);
        let task = |number: u64| NewTask {
            id: TaskId::from_time(lane, self.now, number),
            spec: TaskSpec {
                head: Arc::new(plain_head(queue.clone(), 0)),
                body: Arc::new(TaskBody { name: BURST.to_owned(), ..TaskBody::default() }),
            },
            created_at: self.now,
            due: self.now,
            fingerprint: Fingerprint { version: 1, hash: number },
            queue_len_max: None,
            unique: None,
            shift: None,
        };
        let tasks: Vec<NewTask> = (0..count).map(task).collect();
        let epoch = self.store.lane_head(lane).epoch;
        self.burst = Burst::Sent { tasks: tasks.iter().map(|task| task.id).collect(), workers, epoch };
        self.plan_submit(lane, tasks, Duration::ZERO);
    }

    fn burst_strategy(&self) -> Strategy {
        [Strategy::LeastLoad, Strategy::RoundRobin, Strategy::Weighted]
            [usize::try_from(self.scenario.seed % 3).expect("less than three")]
    }

    fn idle_workers(&self) -> Vec<IdleWorker> {
        let processes = self.workers.iter().filter_map(|host| host.process.as_ref());
        let able = processes.filter(|worker| worker.machine.is_some() && worker.serves(PLAIN_TYPE));
        let idle = able.map(|worker| IdleWorker {
            session: worker.session,
            capacity: worker.descriptor.capacity.into(),
            weight: worker.descriptor.weight.into(),
        });
        idle.collect()
    }

    fn judge_burst(&mut self, tasks: &BTreeSet<TaskId>, workers: &[IdleWorker], epoch: Epoch) {
        let sessions = |idle: &[IdleWorker]| idle.iter().map(|idle| idle.session).collect::<BTreeSet<_>>();
        let lane = burst_queue().default_lane(self.scenario.lanes);
        if sessions(workers) != sessions(&self.idle_workers()) || self.store.lane_head(lane).epoch != epoch {
            return;
        }
        self.report.path("burst_spread");
        let mut got: BTreeMap<SessionId, u64> = BTreeMap::new();
        for &task in tasks {
            let first = AttemptId { task, number: AttemptNo(1) };
            if let Some(session) = self.checker.session_of(first) {
                *got.entry(session).or_default() += 1;
            }
        }
        let shares: Vec<(IdleWorker, u64)> =
            workers.iter().map(|idle| (*idle, got.get(&idle.session).copied().unwrap_or(0))).collect();
        let strategy = self.burst_strategy();
        if !is_spread(strategy, &shares) {
            let what = format!("a burst was not spread as {strategy:?} says: {shares:?}");
            self.checker.fail(self.now, what);
        }
    }
}

fn burst_queue() -> QueueKey {
    QueueKey::new(name("default"), name(BURST))
}

/// As many tasks as fit when every worker takes its share.
fn burst_size(strategy: Strategy, workers: &[IdleWorker]) -> Option<u64> {
    let smallest = workers.iter().map(|idle| idle.capacity).min()?;
    let count = match strategy {
        Strategy::RoundRobin => smallest * workers.len() as u64,
        Strategy::Weighted => {
            let all: u64 = workers.iter().map(|idle| idle.weight).sum();
            workers.iter().map(|idle| idle.capacity * all / idle.weight).min()?
        }
        Strategy::LeastLoad | Strategy::Random | Strategy::ConsistentHash { .. } => {
            workers.iter().map(|idle| idle.capacity).sum::<u64>() / 2
        }
    };
    Some(count).filter(|count| *count > 0)
}

/// Whether a burst was spread over idle workers by the strategy.
fn is_spread(strategy: Strategy, shares: &[(IdleWorker, u64)]) -> bool {
    let count: u64 = shares.iter().map(|(_, got)| got).sum();
    let all: u64 = shares.iter().map(|(idle, _)| idle.weight).sum();
    let load = |idle: &IdleWorker, got: u64| got * 10_000 / idle.capacity;
    match strategy {
        Strategy::RoundRobin => {
            let got = shares.iter().map(|(_, got)| *got);
            got.clone().max().unwrap_or(0) - got.min().unwrap_or(0) <= 1
        }
        // Each worker is within one task of its share.
        Strategy::Weighted => {
            shares.iter().all(|(idle, got)| (got * all).abs_diff(count * idle.weight) < all)
        }
        // No worker got its last task while another had less to do.
        Strategy::LeastLoad | Strategy::Random | Strategy::ConsistentHash { .. } => {
            let least = shares.iter().map(|(idle, got)| load(idle, *got)).min().unwrap_or(0);
            shares.iter().all(|(idle, got)| *got == 0 || load(idle, got - 1) <= least)
        }
    }
}

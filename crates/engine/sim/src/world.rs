//! The simulated world: one queue of events, in the order of their times.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use tasklane_core::id::{LaneId, SessionId, TaskId};
use tasklane_core::lane::Counters;
use tasklane_core::message::{OwnerBatch, WorkerBatch};
use tasklane_core::ownership::OwnershipOptions;
use tasklane_core::rng::Rng;
use tasklane_core::time::{Shift, Timestamp};
use tasklane_local::{MemoryOptions, MemoryState, Sessions, SessionsOptions};

use crate::burst::Burst;
use crate::checker::{Bounds, Checker};
use crate::client::{Client, ClientEvent};
use crate::coordinator::CoordinatorCall;
use crate::ends::Looked;
use crate::locks::{LockEvent, Locks};
use crate::nemesis::Weather;
use crate::report::Report;
use crate::retention::Kept;
use crate::runs::Runs;
use crate::scenario::Scenario;
use crate::schedules::Fired;
use crate::server::{PATHS, Server, ServerInput};
use crate::store::StoreCall;
use crate::timing::Timing;
use crate::worker::{Execution, Worker, WorkerInput};

/// Runs a seed to its end and says what happened.
pub fn run(scenario: &Scenario) -> Report {
    watch_panics();
    let mut world = World::new(scenario.clone());
    IN_RUN.set(true);
    let ended = catch_unwind(AssertUnwindSafe(|| world.play()));
    IN_RUN.set(false);
    if ended.is_err() {
        let what = format!("panic: {}", LAST_PANIC.take());
        world.checker.fail(world.now, what);
    }
    world.finish()
}

thread_local! {
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic of a machine is a finding like any other: kept for the report, with its place, instead of printed.
fn watch_panics() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_RUN.get() {
                LAST_PANIC.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// A process on a host, or the place where one was.
#[derive(Debug)]
pub(crate) struct Host<P, I> {
    /// Counts the starts. What was meant for an earlier process is dropped.
    pub(crate) incarnation: u32,
    pub(crate) process: Option<P>,
    pub(crate) paused: bool,
    /// What came while it was paused.
    pub(crate) deferred: Vec<I>,
    /// How far its wall clock is off from those of the others.
    pub(crate) wall_ahead: i64,
    /// The time for which it will be woken.
    pub(crate) tick_at: Option<Timestamp>,
}

impl<P, I> Host<P, I> {
    pub(crate) fn new() -> Self {
        Self {
            incarnation: 0,
            process: None,
            paused: false,
            deferred: Vec::new(),
            wall_ahead: 0,
            tick_at: None,
        }
    }
}

/// Something that happens at a time.
#[derive(Debug)]
pub(crate) enum Event {
    Server {
        index: usize,
        incarnation: u32,
        input: ServerInput,
    },
    Worker {
        index: usize,
        incarnation: u32,
        input: WorkerInput,
    },
    StartServer {
        index: usize,
    },
    StartWorker {
        index: usize,
    },
    ResumeServer {
        index: usize,
    },
    ResumeWorker {
        index: usize,
    },
    Store(Box<StoreCall>),
    Coordinator(CoordinatorCall),
    DetectFailures,
    ToLane(WorkerBatch),
    Hint(LaneId),
    ToSession(OwnerBatch),
    Execution {
        id: u64,
    },
    /// The guard's deadline for what a worker executes.
    GuardDeadline {
        index: usize,
        incarnation: u32,
    },
    Client(ClientEvent),
    Lock(LockEvent),
    Nemesis,
    /// The wall clock steps again, unless it has stepped since it had stepped so often.
    ClockReturns {
        steps: usize,
    },
    /// Tasks come at once into an idle cluster.
    Burst,
    Heal(&'static str),
}

/// Everything.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: Rng,
    pub(crate) now: Timestamp,
    /// How far the wall clock is ahead of `now`.
    pub(crate) ahead: Shift,
    pub(crate) timing: Timing,
    events: BTreeMap<(Timestamp, u64), Event>,
    next_event: u64,
    pub(crate) store: MemoryState,
    /// The server process that claimed each lane last.
    pub(crate) claimers: BTreeMap<LaneId, (usize, u32)>,
    pub(crate) sessions: Sessions,
    pub(crate) detection_at: Option<Timestamp>,
    pub(crate) servers: Vec<Host<Server, ServerInput>>,
    pub(crate) workers: Vec<Host<Worker, WorkerInput>>,
    pub(crate) executions: BTreeMap<u64, Execution>,
    pub(crate) next_execution: u64,
    pub(crate) client: Client,
    pub(crate) fired: Fired,
    pub(crate) kept: Kept,
    pub(crate) locks: Locks,
    pub(crate) runs: Runs,
    pub(crate) looked: Looked,
    pub(crate) burst: Burst,
    pub(crate) weather: Weather,
    /// A worker's session of which no renewal comes through until then.
    pub(crate) bad_link: Option<(SessionId, Timestamp)>,
    pub(crate) checker: Checker,
    pub(crate) report: Report,
}

/// No seed needs more.
const STEPS_MAX: u64 = 2_000_000;
/// How long everything may take to come to rest when all faults are over.
const DRAIN_MAX: Duration = Duration::from_mins(30);

impl World {
    fn new(scenario: Scenario) -> Self {
        let invariants = scenario.invariants;
        let OwnershipOptions { failures_max, park_for, .. } = scenario.ownership();
        let bounds = Bounds {
            lost_max: Scenario::LOST_MAX,
            lost_before_start_max: Scenario::LOST_BEFORE_START_MAX,
            failures_max,
            park_for,
        };
        let mut world = Self {
            rng: Rng::new(scenario.seed),
            now: Timestamp::from_millis(1_000_000),
            ahead: Shift::ZERO,
            timing: Timing::default(),
            events: BTreeMap::new(),
            next_event: 0,
            claimers: BTreeMap::new(),
            store: MemoryState::new(MemoryOptions { strict: true, history: true, invariants }),
            sessions: Sessions::new(SessionsOptions { invariants, ..SessionsOptions::default() }),
            detection_at: None,
            servers: (0..scenario.servers).map(|_| Host::new()).collect(),
            workers: (0..scenario.workers).map(|_| Host::new()).collect(),
            executions: BTreeMap::new(),
            next_execution: 0,
            client: Client::default(),
            fired: Fired::default(),
            kept: Kept::default(),
            locks: Locks::default(),
            runs: Runs::default(),
            looked: Looked::default(),
            burst: Burst::default(),
            weather: Weather::default(),
            bad_link: None,
            checker: Checker::new(bounds),
            report: Report { servers: scenario.servers, workers: scenario.workers, ..Report::default() },
            scenario,
        };
        for index in 0..world.servers.len() {
            world.after(Duration::from_millis(1), Event::StartServer { index });
        }
        for index in 0..world.workers.len() {
            world.after(Duration::from_millis(2), Event::StartWorker { index });
        }
        world.plan_client();
        world.plan_schedules();
        world.plan_retention();
        world.plan_locks();
        world.plan_runs();
        world.plan_nemesis();
        for (name, _) in Counters::default().iter() {
            world.report.counters.insert(name, 0);
        }
        for (name, _) in tasklane_core::worker::Counters::default().iter() {
            world.report.counters.insert(name, 0);
        }
        for name in PATHS {
            world.report.counters.insert(name, 0);
        }
        world
    }

    /// Lets an event happen after some time.
    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        let at = self.now + delay;
        self.at(at, event);
    }

    pub(crate) fn at(&mut self, at: Timestamp, event: Event) {
        self.next_event += 1;
        self.events.insert((at.max(self.now), self.next_event), event);
    }

    /// Adds to the story of the traced task.
    pub(crate) fn tell(&mut self, task: TaskId, line: impl FnOnce() -> String) {
        if self.scenario.trace == Some(task) {
            self.report.trace.push(format!("{} {}", self.now, line()));
        }
    }

    /// A random time between two, in microseconds.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low + self.rng.below(high - low + 1))
    }

    fn play(&mut self) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.report.steps += 1;
            self.digest(at, &event);
            self.handle(event);
            self.observe_store();
            if !self.checker.violations().is_empty() {
                return;
            }
            if self.weather.healed {
                if self.is_at_rest() && self.play_burst() {
                    self.check_schedules();
                    self.check_runs();
                    self.check_ends();
                    return self.deliver_the_very_late();
                }
                let since = self.weather.healed_at;
                if self.now > since + DRAIN_MAX || self.report.steps > STEPS_MAX {
                    let excused = self.excuse_uncertain();
                    self.checker.conclude(self.now);
                    if !excused || !self.checker.violations().is_empty() {
                        self.explain_stuck();
                    }
                    return;
                }
            }
        }
    }

    fn digest(&mut self, at: Timestamp, event: &Event) {
        let kind = match event {
            Event::Server { index, .. } => 1 + 16 * *index as u64,
            Event::Worker { index, .. } => 2 + 16 * *index as u64,
            Event::Store(_) => 3,
            Event::Coordinator(_) => 4,
            Event::ToLane(batch) => 5 + 16 * batch.messages.len() as u64,
            Event::ToSession(batch) => 6 + 16 * batch.messages.len() as u64,
            Event::Execution { id } => 7 + 16 * id,
            _ => 8,
        };
        let mixed = self.report.digest ^ at.as_micros().unsigned_abs().wrapping_mul(31).wrapping_add(kind);
        self.report.digest = Rng::new(mixed).next_u64();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Server { index, incarnation, input } => self.server_input(index, incarnation, input),
            Event::Worker { index, incarnation, input } => self.worker_input(index, incarnation, input),
            Event::StartServer { index } => self.start_server(index),
            Event::StartWorker { index } => self.start_worker(index),
            Event::ResumeServer { index } => self.resume_server(index),
            Event::ResumeWorker { index } => self.resume_worker(index),
            Event::Store(call) => self.store_call(*call),
            Event::Coordinator(call) => self.coordinator_call(call),
            Event::DetectFailures => self.detect_failures(),
            Event::ToLane(batch) => self.deliver_to_lane(&batch),
            Event::Hint(lane) => self.deliver_hint(lane),
            Event::ToSession(batch) => self.deliver_to_session(batch),
            Event::Execution { id } => self.execution_ends(id),
            Event::GuardDeadline { index, incarnation } => self.guard_deadline(index, incarnation),
            Event::Client(event) => self.client_event(event),
            Event::Lock(event) => self.lock_event(event),
            Event::Nemesis => self.nemesis(),
            Event::ClockReturns { steps } => self.clock_returns(steps),
            Event::Burst => self.send_burst(),
            Event::Heal(kind) => self.heal(kind),
        }
    }

    fn is_at_rest(&self) -> bool {
        self.client.is_done()
            && self.schedules_are_over()
            && self.runs_are_over()
            && self.ends_are_seen()
            && self.store.all_tasks().all(|(_, task)| task.state.status.is_final())
            && (0..self.scenario.lanes).all(|lane| self.store.inbox(LaneId(lane)).next().is_none())
    }

    /// Messages that are late by an hour come when everything is over, and must change nothing.
    fn deliver_the_very_late(&mut self) {
        let events = std::mem::take(&mut self.events);
        for (_, event) in events {
            if matches!(event, Event::ToLane(_) | Event::ToSession(_)) {
                self.handle(event);
                self.observe_store();
            }
        }
        // What they have made the processes do happens at once, too.
        for _ in 0..1000 {
            let Some((&key, event)) = self.events.first_key_value() else { break };
            if key.0 > self.now + Duration::from_secs(1) {
                break;
            }
            let wanted = matches!(event, Event::Worker { .. } | Event::Execution { .. } | Event::Store(_));
            let event = self.events.remove(&key);
            if let Some(event) = event.filter(|_| wanted) {
                self.handle(event);
                self.observe_store();
            }
        }
        self.checker.conclude(self.now);
    }

    /// Tasks that may wait for ever are none that are stuck. Answers whether there are such tasks and no others.
    fn excuse_uncertain(&mut self) -> bool {
        let open = self.store.all_tasks().filter(|(_, task)| !task.state.status.is_final());
        let open: Vec<TaskId> = open.map(|(id, _)| id).collect();
        let (excused, stuck): (Vec<_>, Vec<_>) = open.into_iter().partition(|id| self.may_wait_for_ever(*id));
        for id in &excused {
            self.checker.excuse(*id);
        }
        !excused.is_empty() && stuck.is_empty()
    }

    /// Says what the owners think of the tasks that are stuck.
    fn explain_stuck(&mut self) {
        let open = self.store.all_tasks().filter(|(_, task)| !task.state.status.is_final());
        let open: Vec<_> = open.map(|(id, task)| (id, format!("{:?} {:?}", task.state, task.head))).collect();
        self.explain_schedules();
        let [client, runs, ends] = [self.client.is_done(), self.runs_are_over(), self.ends_are_seen()];
        let inbox: Vec<_> =
            (0..self.scenario.lanes).flat_map(|lane| self.store.inbox(LaneId(lane))).collect();
        let rest = format!(
            "  clients are done: {client}, runs are over: {runs}, ends are seen: {ends}, inbox: {inbox:?}"
        );
        self.checker.fail(self.now, rest);
        for (id, state) in open.into_iter().take(3) {
            for server in self.servers.iter().filter_map(|host| host.process.as_ref()) {
                let machine = server.lanes[usize::from(id.lane().0)].machine();
                let said = machine.map(|machine| machine.explain(id));
                let phase = server.lanes[usize::from(id.lane().0)].phase();
                self.checker.fail(self.now, format!("task {id} is stuck: {phase}, {said:?}"));
            }
            self.checker.fail(self.now, format!("  stored: {state}"));
        }
        let servers: Vec<String> = self.servers.iter().map(|host| format!("{:?}", host.process)).collect();
        for server in servers {
            self.checker.fail(self.now, format!("  server: {}", &server[..200.min(server.len())]));
        }
        let grants = format!("  grants: {:?}", self.sessions.view().grants);
        self.checker.fail(self.now, grants);
        let workers: Vec<String> = self.workers.iter().map(|host| format!("{:?}", host.process)).collect();
        for worker in workers {
            self.checker.fail(self.now, format!("  worker: {worker}"));
        }
    }

    fn finish(mut self) -> Report {
        for index in 0..self.servers.len() {
            self.keep_counters(index);
        }
        for index in 0..self.workers.len() {
            self.keep_worker_counters(index);
        }
        self.report.violations = self.checker.violations().to_vec();
        self.report
    }
}

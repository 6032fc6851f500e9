//! A worker with its guard: the worker-session machine, and executions that take time.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::{Name, SessionId, TaskId};
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_core::message::{AttemptId, Dispatch, Ending, Finish, OwnerBatch, RetryAdvice, ToWorker};
use tasklane_core::rng::Rng;
use tasklane_core::task::{TaskError, TaskResult};
use tasklane_core::time::Timestamp;
use tasklane_core::worker::{Effect, Input, WorkerSession};
use tasklane_ports::{OpenSession, SessionToken};

use crate::burst::{BURST, RUNS_FOR};
use crate::checker::Observation;
use crate::coordinator::{Caller, CoordinatorCall};
use crate::scenario::Scenario;
use crate::world::{Event, World};

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) session: SessionId,
    token: Option<SessionToken>,
    pub(crate) machine: Option<WorkerSession>,
    pub(crate) descriptor: WorkerDescriptor,
    guard_at: Option<Timestamp>,
}

impl Worker {
    /// Offers a type.
    pub(crate) fn serves(&self, task_type: &str) -> bool {
        self.descriptor.serves(&name(task_type), &BTreeMap::new())
    }
}

/// An input of a worker.
#[derive(Debug)]
pub(crate) enum WorkerInput {
    Opened { token: SessionToken, asked_at: Timestamp },
    Renewed { session: SessionId, asked_at: Timestamp, renewed: bool },
    Owner(OwnerBatch),
    ExecutionExited { attempt: AttemptId },
    ExecutionEnded { attempt: AttemptId, finish: Finish },
    Drain,
    Leave,
    Tick,
}

/// An execution on a worker's host.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) worker: usize,
    incarnation: u32,
    attempt: AttemptId,
    ends_at: Timestamp,
    finish: Finish,
    /// Kills its host.
    poison: bool,
}

/// Task types that some workers offer; no worker offers the last.
pub(crate) const TYPES: [&str; 4] = ["alpha", "beta", "gamma", "ghost"];

/// The task that a message is about.
fn about(message: &ToWorker) -> Option<TaskId> {
    match message {
        ToWorker::Dispatch(dispatch) => Some(dispatch.attempt.task),
        ToWorker::Recall { attempt, .. } | ToWorker::Stop { attempt } | ToWorker::Ack { attempt, .. } => {
            Some(attempt.task)
        }
        ToWorker::Skip { .. } | ToWorker::Demand { .. } => None,
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("names of the simulator are valid")
}

impl World {
    pub(crate) fn start_worker(&mut self, index: usize) {
        if self.workers[index].process.is_some() {
            return;
        }
        let session = SessionId::from_random(self.rng.next_u128());
        let capacity = 1 + u32::try_from(self.rng.below(4)).unwrap_or(0);
        // Some worker offers every type, whichever others are away.
        let offers = |at: usize| index == 0 || !(index + at).is_multiple_of(3) || index % 2 == 1;
        let descriptor = WorkerDescriptor {
            name: name(&format!("worker-{index}")),
            capacity,
            weight: 1 + u32::try_from(index).unwrap_or(0),
            labels: BTreeMap::from([(
                "zone".to_owned(),
                if index.is_multiple_of(2) { "a" } else { "b" }.to_owned(),
            )]),
            task_types: (0..3).filter(|at| offers(*at)).map(|at| name(TYPES[at])).collect(),
            draining: false,
            pause_reason: None,
            address: String::new(),
        };
        let host = &mut self.workers[index];
        host.incarnation += 1;
        host.paused = false;
        host.deferred.clear();
        host.tick_at = None;
        let incarnation = host.incarnation;
        let role = Role::Worker(descriptor.clone());
        host.process = Some(Worker { session, token: None, machine: None, descriptor, guard_at: None });
        let open = OpenSession { session, ttl: Scenario::WORKER_TTL, role };
        let caller = Caller { is_server: false, index, incarnation };
        self.call_coordinator(CoordinatorCall::Open { caller, open, asked_at: self.now });
    }

    pub(crate) fn resume_worker(&mut self, index: usize) {
        if !std::mem::take(&mut self.workers[index].paused) {
            return;
        }
        let incarnation = self.workers[index].incarnation;
        let deferred = std::mem::take(&mut self.workers[index].deferred);
        self.workers[index].tick_at = None;
        for input in deferred {
            self.worker_input(index, incarnation, input);
        }
        self.worker_input(index, incarnation, WorkerInput::Tick);
    }

    pub(crate) fn worker_input(&mut self, index: usize, incarnation: u32, input: WorkerInput) {
        let host = &mut self.workers[index];
        if host.incarnation != incarnation || host.process.is_none() {
            return;
        }
        if host.paused {
            return host.deferred.push(input);
        }
        let now = self.now;
        let worker = host.process.as_mut().expect("it was there just now");
        let input =
            match input {
                WorkerInput::Opened { token, asked_at } => {
                    let options = self.scenario.worker(worker.descriptor.capacity);
                    worker.machine = Some(WorkerSession::new(options, token.session, asked_at));
                    worker.token = Some(token);
                    Input::Tick
                }
                WorkerInput::Renewed { session, asked_at, renewed } if session == worker.session => {
                    if renewed { Input::Renewed { asked_at } } else { Input::Refused }
                }
                WorkerInput::Renewed { .. } => return,
                WorkerInput::Owner(batch) => Input::Owner(batch),
                WorkerInput::ExecutionExited { attempt } => Input::Exited { attempt },
                WorkerInput::ExecutionEnded { attempt, finish } => {
                    Input::Ended { attempt, finish: Box::new(finish) }
                }
                WorkerInput::Drain => Input::Drain,
                WorkerInput::Leave => Input::Leave,
                WorkerInput::Tick => {
                    host.tick_at = None;
                    Input::Tick
                }
            };
        let session = worker.session;
        if let (Some(traced), Input::Owner(batch)) = (self.scenario.trace, &input) {
            let about = batch.messages.iter().filter(|m| about(m) == Some(traced));
            for message in about.map(|m| format!("{m:?}")).collect::<Vec<_>>() {
                let line =
                    format!("{} worker {index} {session} gets epoch {} {message}", self.now, batch.epoch);
                self.report.trace.push(line);
            }
        }
        let Some(machine) = &mut worker.machine else { return };
        let awaited: Vec<AttemptId> = match &input {
            Input::Owner(batch) => {
                let acked = batch.messages.iter().filter_map(|m| match m {
                    ToWorker::Ack { attempt, .. } => Some(*attempt),
                    _ => None,
                });
                acked.filter(|attempt| machine.awaits_ack(*attempt)).collect()
            }
            _ => Vec::new(),
        };
        let mut effects = Vec::new();
        machine.step(input, now, &mut effects);
        let fenced = machine.is_fenced();
        let (load, load_max) = (machine.load(), machine.load_max());
        if load > load_max {
            self.checker.fail(now, format!("worker {index} holds {load} attempts; the limit is {load_max}"));
        }
        let acked: Vec<AttemptId> =
            awaited.into_iter().filter(|attempt| !fenced && !machine.awaits_ack(*attempt)).collect();
        for attempt in acked {
            self.checker.observe(now, Observation::ReportAcknowledged { attempt, session });
        }
        for effect in effects {
            self.worker_effect(index, effect);
        }
        self.wake_worker(index);
    }

    fn worker_effect(&mut self, index: usize, effect: Effect) {
        let incarnation = self.workers[index].incarnation;
        let Some(worker) = &self.workers[index].process else { return };
        match effect {
            Effect::Start(dispatch) => self.execute(index, &dispatch),
            Effect::Stop { attempt, .. } => {
                let grace = self.between(10_000, 1_500_000);
                self.end_executions(grace, |e| e.worker == index && e.attempt == attempt);
            }
            Effect::Fence => {
                // All executions end well within the margin; then the session may be closed early.
                self.report.fault("worker fenced itself");
                let kill = self.between(1_000, 900_000);
                self.end_executions(kill, |e| e.worker == index && e.incarnation == incarnation);
                self.leave(index, kill + Duration::from_millis(1));
            }
            Effect::Send(batch) => self.send_to_lane(&batch),
            Effect::Renew => {
                if let Some(token) = worker.token.clone() {
                    let caller = Caller { is_server: false, index, incarnation };
                    self.call_coordinator(CoordinatorCall::Renew { caller, token, asked_at: self.now });
                }
            }
            Effect::Drained => self.leave(index, Duration::from_millis(1)),
            // Simulated machines lack nothing.
            Effect::Pause { .. } | Effect::Resume => {}
        }
    }

    /// Keeps a worker's counters.
    pub(crate) fn keep_worker_counters(&mut self, index: usize) {
        let process = self.workers[index].process.as_ref();
        let Some(counters) = process.and_then(|w| w.machine.as_ref()).map(WorkerSession::counters) else {
            return;
        };
        for (name, count) in counters.iter() {
            *self.report.counters.entry(name).or_default() += count;
        }
    }

    /// The process ends in an orderly way: its session is closed when no attempt runs, and it starts again
    /// later.
    fn leave(&mut self, index: usize, after: Duration) {
        self.keep_worker_counters(index);
        let Some(worker) = self.workers[index].process.take() else { return };
        self.workers[index].incarnation += 1;
        if let Some(token) = worker.token {
            self.after(after, Event::Coordinator(CoordinatorCall::Close { token }));
        }
        let back = after + self.between(10_000, 3_000_000);
        self.after(back, Event::StartWorker { index });
    }

    /// The process is killed. A living guard kills its executions and closes its session; without a guard,
    /// the whole host is gone and the session runs out.
    pub(crate) fn kill_worker(&mut self, index: usize, with_host: bool) {
        self.keep_worker_counters(index);
        let Some(worker) = self.workers[index].process.take() else { return };
        self.workers[index].incarnation += 1;
        self.workers[index].paused = false;
        self.workers[index].deferred.clear();
        if with_host {
            self.end_executions(Duration::ZERO, |e| e.worker == index);
        } else {
            let kill = self.between(1_000, 50_000);
            self.end_executions(kill, |e| e.worker == index);
            if let Some(token) = worker.token {
                self.count_loss(token.session);
                let closed = kill + self.between(1_000, 20_000);
                self.after(closed, Event::Coordinator(CoordinatorCall::Close { token }));
            }
        }
        let back = self.between(100_000, 8_000_000);
        self.after(back, Event::StartWorker { index });
    }

    /// The guard of a paused worker kills its executions when the trust window ends.
    pub(crate) fn guard_deadline(&mut self, index: usize, incarnation: u32) {
        let host = &mut self.workers[index];
        if host.incarnation != incarnation {
            return;
        }
        let Some(worker) = &mut host.process else { return };
        worker.guard_at = None;
        let fence_at = worker.machine.as_ref().map(WorkerSession::fence_at);
        if host.paused && fence_at.is_some_and(|at| at <= self.now) {
            self.report.fault("guard killed a paused worker's attempts");
            let kill = self.between(1_000, 500_000);
            self.end_executions(kill, |e| e.worker == index && e.incarnation == incarnation);
        } else {
            self.wake_guard(index);
        }
    }

    fn wake_guard(&mut self, index: usize) {
        let host = &mut self.workers[index];
        let Some(worker) = &mut host.process else { return };
        let Some(at) = worker.machine.as_ref().map(WorkerSession::fence_at) else { return };
        if worker.guard_at.is_none() && at < Timestamp::MAX {
            worker.guard_at = Some(at);
            let event = Event::GuardDeadline { index, incarnation: host.incarnation };
            self.at(at, event);
        }
    }

    fn wake_worker(&mut self, index: usize) {
        self.wake_guard(index);
        let host = &mut self.workers[index];
        let Some(at) = host.process.as_ref().and_then(|w| w.machine.as_ref()?.next_deadline()) else {
            return;
        };
        if host.tick_at.is_none_or(|tick| at < tick) {
            host.tick_at = Some(at);
            let event = Event::Worker { index, incarnation: host.incarnation, input: WorkerInput::Tick };
            self.at(at, event);
        }
    }

    fn execute(&mut self, index: usize, dispatch: &Dispatch) {
        let Some(worker) = &self.workers[index].process else { return };
        let session = worker.session;
        let limits = self.limits_of(&dispatch.head);
        self.next_execution += 1;
        let id = self.next_execution;
        let attempt = dispatch.attempt;
        self.tell(attempt.task, || format!("worker {index} {session} starts attempt {}", attempt.number));
        self.checker.observe(self.now, Observation::Started { execution: id, attempt, session, limits });
        self.check_start(attempt.task);
        let (runs_for, finish, poison) = self.fate(dispatch);
        let ends_at = self.now + runs_for;
        let incarnation = self.workers[index].incarnation;
        self.executions
            .insert(id, Execution { worker: index, incarnation, attempt, ends_at, finish, poison });
        self.at(ends_at, Event::Execution { id });
    }

    /// The fate of an attempt: decided by the seed, the task and the attempt.
    fn fate(&self, dispatch: &Dispatch) -> (Duration, Finish, bool) {
        let attempt = dispatch.attempt;
        let (high, low) = attempt.task.0.as_u64_pair();
        let seed = self.scenario.seed ^ high.rotate_left(17) ^ low ^ (u64::from(attempt.number.0) << 32);
        let mut rng = Rng::new(seed);
        let kind = dispatch.body.as_ref().map_or("", |body| body.name.as_str());
        if kind == BURST {
            let finish =
                Finish { ran: Duration::ZERO, ending: Ending::Success, result: TaskResult::default() };
            return (RUNS_FOR, finish, false);
        }
        let micros = match rng.below(10) {
            0..=6 => 10_000 + rng.below(500_000),
            7 | 8 => 500_000 + rng.below(4_000_000),
            _ => 5_000_000 + rng.below(25_000_000),
        };
        let micros = if kind == "endless" && attempt.number.0 < 3 { 600_000_000 } else { micros };
        let ending = match rng.below(100) {
            0..=74 => Ending::Success,
            75..=89 => Ending::Failed { error: TaskError::new("exit_code", "1"), retry: RetryAdvice::Policy },
            90..=94 => {
                let wait = Duration::from_secs(rng.below(8));
                Ending::Failed { error: TaskError::new("exit_code", "75"), retry: RetryAdvice::After(wait) }
            }
            _ => Ending::Failed { error: TaskError::new("exit_code", "2"), retry: RetryAdvice::Never },
        };
        let result = TaskResult { code: 0, message: String::new(), data: "{}".to_owned() };
        let finish = Finish { ran: Duration::ZERO, ending, result };
        (Duration::from_micros(micros), finish, kind == "poison")
    }

    /// Kills executions: they are gone after a while.
    fn end_executions(&mut self, after: Duration, wanted: impl Fn(&Execution) -> bool) {
        let at = self.now + after;
        let error = TaskError::new("signal", "killed");
        let killed = Ending::Failed { error, retry: RetryAdvice::Policy };
        let mut ending = Vec::new();
        for (id, execution) in self.executions.iter_mut().filter(|(_, e)| wanted(e)) {
            if execution.ends_at > at {
                execution.ends_at = at;
                execution.poison = false;
                execution.finish.ending = killed.clone();
                ending.push(*id);
            }
        }
        for id in ending {
            self.at(at, Event::Execution { id });
        }
    }

    pub(crate) fn execution_ends(&mut self, id: u64) {
        if self.executions.get(&id).is_none_or(|execution| execution.ends_at > self.now) {
            return;
        }
        let Some(execution) = self.executions.remove(&id) else { return };
        self.checker.observe(self.now, Observation::Ended { execution: id });
        let Execution { worker: index, incarnation, attempt, finish, poison, .. } = execution;
        self.tell(attempt.task, || {
            format!("worker {index} ends attempt {}: {:?}", attempt.number, finish.ending)
        });
        if poison && self.workers[index].incarnation == incarnation {
            self.report.fault("poison task killed its host");
            return self.kill_worker(index, true);
        }
        let ended = WorkerInput::ExecutionEnded { attempt, finish };
        if self.rng.below(4) > 0 {
            return self.worker_input(index, incarnation, ended);
        }
        // Its output takes a while to be stored.
        self.worker_input(index, incarnation, WorkerInput::ExecutionExited { attempt });
        let kept = self.between(1_000, 1_000_000);
        self.after(kept, Event::Worker { index, incarnation, input: ended });
    }

    /// Counts a session that ends while it has attempts.
    pub(crate) fn count_loss(&mut self, session: SessionId) {
        let has_work = |task: &tasklane_local::memory::StoredTask| {
            task.state.session == Some(session) && task.state.status.is_in_flight()
        };
        self.report.worker_losses += u64::from(self.store.all_tasks().any(|(_, task)| has_work(task)));
    }
}

//! The store behind a network: slow, down, or silent about its outcome.

use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, LimitId, TaskId};
use tasklane_core::ownership::{CallError, Reply, Request};
use tasklane_core::policy::{Rate, WhenReached};
use tasklane_core::status::Status;
use tasklane_core::task::{FlowKey, OwnLimit, TaskHead, Unique};
use tasklane_core::time::Timestamp;
use tasklane_local::memory::HistoryEvent;
use tasklane_ports::{LoadQuery, Outcome, PutPolicy, StoreError, Submit};

use crate::checker::{Change, Observation};
use crate::client::{ClientEvent, FAIR, queue_key};
use crate::keyed::TaskKeys;
use crate::locks::{LockAsk, LockRequest};
use crate::retention::{KeeperReply, KeeperRequest};
use crate::runs::{DriverReply, DriverRequest};
use crate::schedules::{ClerkReply, ClerkRequest};
use crate::server::ServerInput;
use crate::world::{Event, World};

/// A call on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreCall {
    pub(crate) request: StoreRequest,
    pub(crate) reply_to: ReplyTo,
    /// The answer is lost.
    pub(crate) silent: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum StoreRequest {
    Lane { lane: LaneId, request: Request },
    Submit(Submit),
    Post { lane: LaneId, command: Command },
    PutPolicy(PutPolicy),
    Clerk(ClerkRequest),
    Driver(DriverRequest),
    Keeper(KeeperRequest),
    Lock(LockRequest),
    ReadCompletions(Vec<TaskId>),
}

#[derive(Clone, Debug)]
pub(crate) enum ReplyTo {
    /// The scheduler of a server.
    Lane {
        index: usize,
        incarnation: u32,
        lane: LaneId,
        call: u64,
    },
    /// The API of a server, for a client's operation.
    Api {
        index: usize,
        incarnation: u32,
        operation: usize,
    },
    /// The part of a server that fires schedules.
    Clerk {
        index: usize,
        incarnation: u32,
        round: u64,
    },
    /// The part of a server that drives runs.
    Driver {
        index: usize,
        incarnation: u32,
        round: u64,
    },
    /// Retention in a server.
    Keeper {
        index: usize,
        incarnation: u32,
        round: u64,
    },
    /// A server, for a client that asks for a lock.
    Lock {
        index: usize,
        incarnation: u32,
        ask: LockAsk,
    },
    /// Who looks at what has ended in a lane.
    Completions {
        index: usize,
        incarnation: u32,
        lane: LaneId,
        tasks: Vec<TaskId>,
    },
    Nobody,
}

/// A caller gives up after this time.
const TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// Sends a call, and decides its fate.
    pub(crate) fn call_store(&mut self, request: StoreRequest, reply_to: ReplyTo) {
        let is_commit = matches!(request, StoreRequest::Lane { request: Request::Commit(_), .. });
        let slow = if self.weather.slow_store { 1_500_000 } else { 1_500 };
        let delay = self.between(150, slow);
        let mut call = StoreCall { request, reply_to, silent: false };
        let force = is_commit && std::mem::take(&mut self.weather.force_unknown);
        let chance = if is_commit { self.scenario.unknown } else { self.scenario.unknown / 2 };
        if force || (!self.weather.healed && self.rng.chance(chance)) {
            self.report.unknown_commits += u64::from(is_commit);
            call.silent = true;
            self.answer(&call.reply_to, Err(CallError::Unknown), TIMEOUT);
            match self.rng.below(4) {
                0 => {
                    self.report.fault("store request lost");
                    return;
                }
                1 => {
                    self.report.fault("store request applied late");
                    let late = self.between(2_000_000, 30_000_000);
                    return self.after(late, Event::Store(Box::new(call)));
                }
                _ => self.report.fault("store answer lost"),
            }
        }
        self.after(delay, Event::Store(Box::new(call)));
    }

    /// A call has arrived.
    pub(crate) fn store_call(&mut self, call: StoreCall) {
        let StoreCall { request, reply_to, silent } = call;
        if self.weather.store_down {
            self.report.fault("store call while down");
            if !silent {
                let unknown = self.rng.chance(30);
                let error = if unknown { CallError::Unknown } else { CallError::NotApplied };
                let delay = if unknown { TIMEOUT } else { self.between(1_000, 10_000) };
                self.answer(&reply_to, Err(error), delay);
            }
            return;
        }
        // Answers are slow too, so that their content is old when it arrives.
        let slow = !self.weather.healed && (self.weather.slow_store || self.rng.chance(3));
        let delay = self.between(100, if slow { 1_500_000 } else { 1_000 });
        match request {
            StoreRequest::Lane { lane, request } => {
                let reply = self.apply_request(lane, request);
                if let (Ok(Reply::Claimed(_)), ReplyTo::Lane { index, incarnation, .. }) = (&reply, &reply_to)
                {
                    // A process that claims its own lane again takes nothing over.
                    let claimer = (*index, *incarnation);
                    let before = self.claimers.insert(lane, claimer);
                    self.report.takeovers += u64::from(before.is_some_and(|before| before != claimer));
                }
                if !silent {
                    self.answer(&reply_to, reply, delay);
                }
            }
            StoreRequest::Submit(submit) => {
                let submit = self.keyed_submit(&submit);
                let outcomes = self.store.submit(&submit).expect("a submit of the simulator fits");
                for (task, outcome) in submit.tasks.iter().zip(&outcomes) {
                    if matches!(outcome, SubmitOutcome::Created { .. } | SubmitOutcome::Exists { .. }) {
                        self.stored_directly(task.id);
                    }
                }
                self.observe_store();
                if !silent && let ReplyTo::Api { index, incarnation, operation } = reply_to {
                    let input = ServerInput::Stored { operation, outcomes: Ok(outcomes) };
                    self.after(delay, Event::Server { index, incarnation, input });
                }
            }
            StoreRequest::Post { lane, command } => {
                self.store.post(lane, &[command]);
                if !silent && let ReplyTo::Api { index, incarnation, operation } = reply_to {
                    let input = ServerInput::Stored { operation, outcomes: Ok(Vec::new()) };
                    self.after(delay, Event::Server { index, incarnation, input });
                }
            }
            StoreRequest::PutPolicy(put) => {
                // A conflict means that an earlier try was applied.
                let _ = self.store.put_policy(put);
            }
            StoreRequest::Driver(request) => {
                let reply = self.apply_driver(request);
                if !silent {
                    self.answer_driver(&reply_to, reply, delay);
                }
            }
            StoreRequest::Keeper(request) => {
                let reply = self.apply_keeper(request);
                if !silent {
                    self.answer_keeper(&reply_to, reply, delay);
                }
            }
            StoreRequest::Lock(request) => {
                let reply = self.apply_lock(request);
                if !silent && let ReplyTo::Lock { index, incarnation, ask } = reply_to {
                    let input = ServerInput::LockRead { ask, reply };
                    self.after(delay, Event::Server { index, incarnation, input });
                }
            }
            StoreRequest::ReadCompletions(tasks) => {
                self.completions_shown(&tasks);
                if !silent {
                    self.answer_completions(reply_to, true, delay);
                }
            }
            StoreRequest::Clerk(request) => {
                let reply = self.apply_clerk(request);
                if !silent && let ReplyTo::Clerk { index, incarnation, round } = reply_to {
                    let input = ServerInput::Schedules { round, reply: Box::new(reply) };
                    self.after(delay, Event::Server { index, incarnation, input });
                }
            }
        }
    }

    fn apply_request(&mut self, lane: LaneId, request: Request) -> Result<Reply, CallError> {
        let reply = match request {
            Request::Head => Ok(Reply::Head(self.store.lane_head(lane))),
            Request::Claim(claim) => self.store.claim_lane(claim).map(Reply::Claimed),
            Request::Commit(commit) => self.store.commit(&commit).map(Reply::Committed),
            Request::Load { read, limit } => {
                Ok(Reply::Page(self.store.load(&LoadQuery { lane, read, limit, body_bytes_max: 4096 })))
            }
        };
        reply.map_err(|error| match (&error, error.outcome()) {
            (StoreError::Fenced { .. } | StoreError::ClaimLost { .. }, _) => CallError::Fenced,
            (_, Outcome::Unknown) => CallError::Unknown,
            (_, Outcome::NotApplied) if error.is_retryable() => CallError::NotApplied,
            (_, Outcome::NotApplied) => CallError::Fatal,
        })
    }

    fn answer(&mut self, reply_to: &ReplyTo, reply: Result<Reply, CallError>, delay: Duration) {
        match *reply_to {
            ReplyTo::Lane { index, incarnation, lane, call } => {
                let input = ServerInput::Reply { lane, call, reply: Box::new(reply) };
                self.after(delay, Event::Server { index, incarnation, input });
            }
            ReplyTo::Api { index, incarnation, operation } => {
                let input = ServerInput::Stored { operation, outcomes: Err(()) };
                self.after(delay, Event::Server { index, incarnation, input });
            }
            ReplyTo::Clerk { index, incarnation, round } => {
                let input = ServerInput::Schedules { round, reply: Box::new(ClerkReply::Failed) };
                self.after(delay, Event::Server { index, incarnation, input });
            }
            ReplyTo::Keeper { .. } => self.answer_keeper(reply_to, KeeperReply::Failed, delay),
            ReplyTo::Driver { .. } => self.answer_driver(reply_to, DriverReply::Failed, delay),
            ReplyTo::Completions { .. } => self.answer_completions(reply_to.clone(), false, delay),
            // A client that asks for a lock asks again.
            ReplyTo::Lock { .. } | ReplyTo::Nobody => {}
        }
    }

    /// Reports the writes to the checker.
    pub(crate) fn observe_store(&mut self) {
        for event in self.store.take_history() {
            let observation = match event {
                HistoryEvent::Created { task, head, unique, .. } => {
                    self.report.tasks += 1;
                    self.tell(task, || "created".to_owned());
                    self.checker.observe(self.now, Observation::Created { task });
                    self.watch_fire(task);
                    self.watch_child(task);
                    Observation::Keyed { task, keyed: self.keyed(task, &head, unique) }
                }
                HistoryEvent::InboxDone { task, .. } => Observation::CommandRemoved { task },
                HistoryEvent::Claimed { lane, epoch, owner } => {
                    let failures = self.store.lane_head(lane).failures;
                    Observation::Claimed { lane, epoch, owner, failures }
                }
                HistoryEvent::Changed { task, lane, epoch, owner, from, path, to, .. } => {
                    if self.error_is(task, "start_timeout") {
                        self.check_start_timeout(task);
                    }
                    if let Some(last) = path.last().filter(|last| last.status.is_final()) {
                        self.note_finished(task, last.at);
                    }
                    self.tell(task, || format!("stored by epoch {epoch}: from {from} by {path:?} to {to:?}"));
                    let mut at = from.status;
                    for step in &path {
                        self.report.transitions.insert((at, step.status));
                        at = step.status;
                    }
                    let assigned = path.iter().any(|step| step.status == Status::Scheduled);
                    let rates =
                        if assigned && self.is_clock_even() { self.rates_of(task) } else { Vec::new() };
                    Observation::Changed(Change {
                        task,
                        lane,
                        epoch,
                        owner,
                        path: path.iter().map(|step| (step.status, step.at)).collect(),
                        status: to.status,
                        attempt: to.attempt,
                        session: to.session,
                        cancel_requested: to.cancel_requested,
                        lost: to.lost,
                        lost_before_start: to.lost_before_start,
                        limit_reached: self.error_is(task, "limit_reached"),
                        rates,
                    })
                }
            };
            self.checker.observe(self.now, observation);
        }
    }

    fn keyed(&self, task: TaskId, head: &TaskHead, unique: Option<Unique>) -> TaskKeys {
        // Times in paths come from wall clocks, and short windows may not have room for a line.
        let checked = !self.scenario.tiny_windows && self.is_clock_even();
        let turns = head.queue == queue_key(FAIR) && checked;
        let policy = self.client.limits.get(&head.queue).into_iter().flatten();
        let mut cancelling = policy.filter(|l| l.concurrency.when_reached == WhenReached::CancelNewest);
        let only = cancelling
            .find_map(|limit| Some((limit_key(head, limit.key.as_deref())?, limit.concurrency.limit)));
        let stored = self.store.task(task).map(|task| &task.state);
        let delayed = stored.is_some_and(|state| state.delayed);
        // Where the time cannot be checked, the key counts as free both when this task comes and when the
        // next one does.
        let (until, created_at) = self.held(task).unwrap_or((Some(Timestamp::ZERO), Timestamp::MAX));
        let of_key = |unique: Unique| (format!("{}/{}", head.queue, unique.key), unique.until.and(until));
        TaskKeys {
            unique: unique.map(of_key),
            created_at,
            turn: head
                .flow
                .first()
                .filter(|_| turns)
                .map(|flow| (head.queue.to_string(), flow.key.to_string())),
            only: only.filter(|_| checked),
            delayed,
        }
    }

    /// Whether the times that the store has can be compared with each other.
    fn is_clock_even(&self) -> bool {
        !self.scenario.clock_jumps && !self.scenario.clock_steps
    }

    fn error_is(&self, task: TaskId, code: &str) -> bool {
        let error = self.store.task(task).and_then(|task| task.state.error.as_ref());
        error.is_some_and(|error| error.code == code)
    }

    fn rates_of(&self, task: tasklane_core::id::TaskId) -> Vec<(String, Rate)> {
        let Some(task) = self.store.task(task) else { return Vec::new() };
        let policy = self.store.policy(&task.head.queue);
        let said = policy.policy.rate.iter();
        let said = said.filter_map(|rate| Some((limit_key(&task.head, rate.key.as_deref())?, rate.rate)));
        let own = task.head.flow.iter().filter_map(|flow| match flow.own? {
            OwnLimit::Rate(rate) => Some((flow_key(&task.head, flow), rate)),
            OwnLimit::Concurrency(_) => None,
        });
        said.chain(own).collect()
    }

    /// Limits that count an attempt: the most that any version of the policy has allowed, and the task's own.
    pub(crate) fn limits_of(&self, head: &TaskHead) -> Vec<(String, u32)> {
        let said = self.client.limits.get(&head.queue).into_iter().flatten();
        let said = said.filter_map(|l| Some((limit_key(head, l.key.as_deref())?, l.concurrency.limit)));
        let own = head.flow.iter().filter_map(|flow| match flow.own? {
            OwnLimit::Concurrency(own) => Some((flow_key(head, flow), own.limit)),
            OwnLimit::Rate(_) => None,
        });
        said.chain(own).collect()
    }

    pub(crate) fn tell_client(&mut self, operation: usize, outcomes: Option<Vec<SubmitOutcome>>) {
        let delay = self.between(100, 1_000);
        self.after(delay, Event::Client(ClientEvent::Answer { operation, outcomes }));
    }
}

/// The key under which a limit of the policy counts a task.
fn limit_key(head: &TaskHead, template: Option<&str>) -> Option<String> {
    let Some(template) = template else { return Some(head.queue.to_string()) };
    let flow = head.flow.iter().find(|flow| flow.limit == LimitId::of(template))?;
    Some(flow_key(head, flow))
}

fn flow_key(head: &TaskHead, flow: &FlowKey) -> String {
    format!("{}/{}/{}", head.queue, flow.limit, flow.key)
}

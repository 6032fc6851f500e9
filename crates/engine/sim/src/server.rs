//! A server: the ownership machines of all lanes, and an API that clients submit to.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::clock_watch::{Clock, ClockWatch, Reading, Reference};
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, SessionId, TaskId};
use tasklane_core::lane::SubmitToken;
use tasklane_core::member::Role;
use tasklane_core::message::WorkerBatch;
use tasklane_core::ownership::{CallError, Effect, Input, Ownership, Reply, fair_shares};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::{OpenSession, SessionToken, View};

use crate::checker::Observation;
use crate::coordinator::{Caller, CoordinatorCall};
use crate::locks::{LockAsk, LockReply};
use crate::retention::{Keeper, KeeperReply};
use crate::runs::{Driver, DriverReply};
use crate::scenario::Scenario;
use crate::schedules::{Clerk, ClerkReply};
use crate::store::{ReplyTo, StoreRequest};
use crate::world::{Event, World};

/// A server process.
#[derive(Debug)]
pub(crate) struct Server {
    session: SessionId,
    token: Option<SessionToken>,
    lease_from: Timestamp,
    next_renew: Timestamp,
    pub(crate) lanes: Vec<Ownership>,
    /// Watches the clocks of the process.
    pub(crate) watch: ClockWatch,
    /// The sum of all steps of the wall clock when each lane last had an input.
    stepped: Vec<Shift>,
    /// When the process started.
    pub(crate) started_at: Timestamp,
    view: View,
    submits: BTreeMap<SubmitToken, usize>,
    next_token: u64,
    pub(crate) clerk: Clerk,
    pub(crate) driver: Driver,
    pub(crate) keeper: Keeper,
}

/// An input of a server.
#[derive(Debug)]
pub(crate) enum ServerInput {
    Opened {
        token: SessionToken,
        asked_at: Timestamp,
        /// What the clock of the coordinator showed.
        wall: Option<Timestamp>,
    },
    Renewed {
        session: SessionId,
        asked_at: Timestamp,
        renewed: bool,
        /// What the clock of the coordinator showed.
        wall: Option<Timestamp>,
    },
    Granted {
        lane: LaneId,
    },
    View {
        view: View,
        requested_by: Option<LaneId>,
    },
    Reply {
        lane: LaneId,
        call: u64,
        reply: Box<Result<Reply, CallError>>,
    },
    Worker(WorkerBatch),
    Hint(LaneId),
    /// A client's operation.
    Operation {
        operation: usize,
    },
    /// The store has answered a client's operation.
    Stored {
        operation: usize,
        outcomes: Result<Vec<SubmitOutcome>, ()>,
    },
    /// Time to look at schedules, runs and retention.
    Look,
    /// The store has answered about retention.
    Kept {
        round: u64,
        reply: Box<KeeperReply>,
    },
    /// A client asks for a lock.
    Lock(LockAsk),
    /// The store has answered about a lock.
    LockRead {
        ask: LockAsk,
        reply: LockReply,
    },
    /// The store has answered about schedules.
    Schedules {
        round: u64,
        reply: Box<ClerkReply>,
    },
    /// The store has answered the driver of runs.
    Driven {
        round: u64,
        reply: Box<DriverReply>,
    },
    /// The store has answered a read of completions, or failed.
    Completions {
        lane: LaneId,
        tasks: Vec<TaskId>,
        shown: bool,
    },
    Tick,
}

/// Rare paths that the driver sees.
pub(crate) const PATHS: [&str; 15] = [
    "lane_parked",
    "lane_parked_again",
    "lane_unparked",
    "schedule_fired",
    "run_ended",
    "child_tombstoned",
    "completion_repeated",
    "burst_spread",
    "clock_unsettled_at_start",
    "schedule_put_off",
    "retention_waited",
    "task_stripped",
    "task_forgotten",
    "lock_changed_hands",
    "lock_refused",
];

/// A server stops owning this long before its session can have ended.
const MARGIN: Duration = Duration::from_secs(1);
const RENEW_EVERY: Duration = Duration::from_secs(1);

impl World {
    pub(crate) fn start_server(&mut self, index: usize) {
        if self.servers[index].process.is_some() {
            return;
        }
        let lanes = (0..self.scenario.lanes).map(|lane| {
            let seed = self.rng.next_u64();
            Ownership::new(self.scenario.ownership(), LaneId(lane), seed, self.now)
        });
        let lanes = lanes.collect();
        let mut watch = ClockWatch::new(Scenario::SETTLE_TIME);
        let reading = self.reading_of(index);
        watch.read(reading);
        if let Some(last_known) = self.noted_time()
            && !watch.started(reading, last_known).is_settled()
        {
            self.report.path("clock_unsettled_at_start");
        }
        let server = Server {
            session: SessionId::from_random(0),
            token: None,
            lease_from: self.now,
            next_renew: Timestamp::MAX,
            lanes,
            watch,
            stepped: vec![Shift::ZERO; usize::from(self.scenario.lanes)],
            started_at: self.now,
            view: View::default(),
            submits: BTreeMap::new(),
            next_token: 0,
            clerk: Clerk::default(),
            driver: Driver::default(),
            keeper: Keeper::default(),
        };
        let host = &mut self.servers[index];
        host.incarnation += 1;
        host.paused = false;
        host.deferred.clear();
        host.tick_at = None;
        host.process = Some(server);
        self.open_server_session(index);
        self.look_later(index);
    }

    fn open_server_session(&mut self, index: usize) {
        let session = SessionId::from_random(self.rng.next_u128());
        let incarnation = self.servers[index].incarnation;
        let Some(server) = &mut self.servers[index].process else { return };
        server.session = session;
        server.token = None;
        server.next_renew = Timestamp::MAX;
        let role = Role::Server { address: format!("server-{index}"), bus: String::new() };
        let open = OpenSession { session, ttl: Scenario::SERVER_TTL, role };
        let caller = Caller { is_server: true, index, incarnation };
        self.call_coordinator(CoordinatorCall::Open { caller, open, asked_at: self.now });
    }

    /// Keeps the counters of a server's lanes.
    pub(crate) fn keep_counters(&mut self, index: usize) {
        let Some(server) = &self.servers[index].process else { return };
        for lane in &server.lanes {
            for (name, count) in lane.counters().iter() {
                *self.report.counters.entry(name).or_default() += count;
            }
        }
    }

    pub(crate) fn kill_server(&mut self, index: usize) {
        self.keep_counters(index);
        let host = &mut self.servers[index];
        host.process = None;
        host.paused = false;
        host.deferred.clear();
        host.incarnation += 1;
    }

    pub(crate) fn resume_server(&mut self, index: usize) {
        if !std::mem::take(&mut self.servers[index].paused) {
            return;
        }
        let incarnation = self.servers[index].incarnation;
        let deferred = std::mem::take(&mut self.servers[index].deferred);
        self.servers[index].tick_at = None;
        for input in deferred {
            self.server_input(index, incarnation, input);
        }
        self.server_input(index, incarnation, ServerInput::Tick);
    }

    pub(crate) fn server_input(&mut self, index: usize, incarnation: u32, input: ServerInput) {
        let host = &mut self.servers[index];
        if host.incarnation != incarnation || host.process.is_none() {
            return;
        }
        if host.paused {
            return host.deferred.push(input);
        }
        self.check_server_lease(index);
        self.server_step(index, input);
        self.wake_server(index);
    }

    fn server(&mut self, index: usize) -> &mut Server {
        self.servers[index].process.as_mut().expect("the server is running")
    }

    fn reading_of(&self, index: usize) -> Reading {
        Reading { steady: self.now, wall: self.now + self.ahead_of(index) }
    }

    /// The clocks of a server, as its watch has them.
    pub(crate) fn clock_of(&mut self, index: usize) -> Clock {
        let reading = self.reading_of(index);
        self.server(index).watch.read(reading)
    }

    /// The corrected wall time of a server.
    pub(crate) fn wall_of(&mut self, index: usize) -> Timestamp {
        self.clock_of(index).wall
    }

    /// A server compares its clock with that of the coordinator.
    fn compare_clock(&mut self, index: usize, asked: Timestamp, wall: Option<Timestamp>) {
        let Some(wall) = wall else { return };
        let reading = self.reading_of(index);
        self.server(index).watch.compare(reading, Reference { asked, answered: reading.steady, wall });
    }

    /// Whether a server knows what the clock of the coordinator shows, if that has one.
    pub(crate) fn knows_the_time(&mut self, index: usize) -> bool {
        !self.scenario.reference || self.server(index).watch.offset().is_some()
    }

    /// A server whose session may have ended owns nothing.
    fn check_server_lease(&mut self, index: usize) {
        let now = self.now;
        let server = self.server(index);
        if server.token.is_none() || now < server.lease_from + Scenario::SERVER_TTL - MARGIN {
            return;
        }
        for lane in 0..self.scenario.lanes {
            self.drive_lane(index, LaneId(lane), Input::Wanted(false));
            self.drive_lane(index, LaneId(lane), Input::Granted(false));
        }
        self.open_server_session(index);
    }

    fn server_step(&mut self, index: usize, input: ServerInput) {
        match input {
            ServerInput::Opened { token, asked_at, wall } => {
                self.compare_clock(index, asked_at, wall);
                let server = self.server(index);
                if token.session == server.session {
                    server.token = Some(token);
                    server.lease_from = asked_at;
                    server.next_renew = asked_at + RENEW_EVERY;
                    // An earlier view is applied again, now that there is a session to own lanes with.
                    let view = server.view.clone();
                    self.server_view(index, &view, None);
                }
            }
            ServerInput::Renewed { session, asked_at, renewed, wall } => {
                self.compare_clock(index, asked_at, wall);
                let server = self.server(index);
                if renewed && session == server.session {
                    server.lease_from = server.lease_from.max(asked_at);
                }
            }
            ServerInput::Granted { lane } => self.drive_lane(index, lane, Input::Granted(true)),
            ServerInput::View { view, requested_by } => self.server_view(index, &view, requested_by),
            ServerInput::Reply { lane, call, reply } => {
                self.drive_lane(index, lane, Input::Reply { call, reply: *reply });
            }
            ServerInput::Worker(batch) => self.drive_lane(index, batch.lane, Input::Worker(batch)),
            ServerInput::Hint(lane) => self.drive_lane(index, lane, Input::Hint),
            ServerInput::Operation { operation } => self.serve(index, operation),
            ServerInput::Stored { operation, outcomes } => {
                if let (Ok(_), Some(lane)) = (&outcomes, self.client.lane_of(operation)) {
                    self.send_hint(lane);
                }
                self.tell_client(operation, outcomes.ok());
            }
            ServerInput::Look => {
                self.look_at_schedules(index);
                self.drive_runs(index);
                self.look_at_retention(index);
            }
            ServerInput::Kept { round, reply } => self.keeper_reply(index, round, *reply),
            ServerInput::Lock(ask) => self.ask_for_lock(index, ask),
            ServerInput::LockRead { ask, reply } => self.lock_read(index, ask, reply),
            ServerInput::Completions { lane, tasks, shown } => {
                self.completions_answered(index, lane, tasks, shown);
            }
            ServerInput::Driven { round, reply } => self.driver_reply(index, round, *reply),
            ServerInput::Schedules { round, reply } => self.clerk_reply(index, round, *reply),
            ServerInput::Tick => {
                self.servers[index].tick_at = None;
                for lane in 0..self.scenario.lanes {
                    self.drive_lane(index, LaneId(lane), Input::Tick);
                }
            }
        }
        let now = self.now;
        let incarnation = self.servers[index].incarnation;
        let server = self.server(index);
        if now >= server.next_renew {
            server.next_renew = now + RENEW_EVERY;
            if let Some(token) = server.token.clone() {
                let caller = Caller { is_server: true, index, incarnation };
                self.call_coordinator(CoordinatorCall::Renew { caller, token, asked_at: now });
            }
        }
    }

    fn server_view(&mut self, index: usize, view: &View, requested_by: Option<LaneId>) {
        let wall = self.wall_of(index);
        let server = self.server(index);
        let (session, has_token) = (server.session, server.token.is_some());
        let revision = view.revision;
        let newest = revision >= server.view.revision;
        if newest {
            server.view = view.clone();
        }
        let members: Vec<_> = view.members.values().cloned().collect();
        let servers =
            view.members.values().filter(|m| matches!(m.role, Role::Server { .. })).map(|m| m.session);
        let shares = fair_shares(self.scenario.lanes, servers);
        for lane in (0..self.scenario.lanes).map(LaneId) {
            let requested = requested_by == Some(lane);
            let input = Input::Members { revision, members: members.clone(), requested, wall };
            self.drive_lane(index, lane, input);
            if newest && has_token {
                let wanted = shares.get(usize::from(lane.0)) == Some(&session);
                self.drive_lane(index, lane, Input::Wanted(wanted));
                if view.grants.get(&lane) == Some(&session) {
                    // The answer with the grant may have been lost, or overtaken by an older one.
                    self.drive_lane(index, lane, Input::Granted(true));
                } else if view.members.contains_key(&session) {
                    self.drive_lane(index, lane, Input::Granted(false));
                }
            }
        }
    }

    /// Gives a lane's machine an input, after a step of the wall clock since the last one.
    pub(crate) fn drive_lane(&mut self, index: usize, lane: LaneId, input: Input) {
        let shift = self.clock_of(index).shift;
        let stepped = &mut self.server(index).stepped[usize::from(lane.0)];
        let by = shift - std::mem::replace(stepped, shift);
        // Where the clocks of servers differ they are not looked at after a lane was claimed.
        if by != Shift::ZERO && !self.scenario.clocks_differ() {
            self.step_lane(index, lane, Input::ClockStepped { by });
        }
        self.step_lane(index, lane, input);
    }

    /// Gives a lane's machine an input and carries out its effects.
    fn step_lane(&mut self, index: usize, lane: LaneId, input: Input) {
        let now = self.now;
        let incarnation = self.servers[index].incarnation;
        let mut effects = Vec::new();
        let is_for_lane = !matches!(input, Input::Wanted(_) | Input::Granted(_) | Input::Failed);
        let machine = &mut self.server(index).lanes[usize::from(lane.0)];
        let (owned, was_parked) = (machine.epoch(), machine.phase() == "parked");
        machine.step(input, now, &mut effects);
        let (owns, is_parked) = (machine.epoch(), machine.phase() == "parked");
        if was_parked && !is_parked {
            self.report.path("lane_unparked");
        }
        if let Some(epoch) = owns.filter(|_| owned != owns) {
            self.checker.observe(now, Observation::Tried { lane, epoch });
        }
        if owns.is_some() && owned == owns && is_for_lane && self.lane_panics(lane) {
            self.contain_panic(index, lane, &mut effects);
        }
        let token = self.server(index).token.clone();
        let caller = Caller { is_server: true, index, incarnation };
        for effect in effects {
            match effect {
                Effect::Acquire => {
                    if let Some(token) = token.clone() {
                        self.call_coordinator(CoordinatorCall::Acquire { caller, token, lane });
                    }
                }
                Effect::Release => {
                    if let Some(token) = token.clone() {
                        self.call_coordinator(CoordinatorCall::Release { token, lane });
                    }
                }
                Effect::ReadMembers => self.call_coordinator(CoordinatorCall::View { caller, lane }),
                Effect::Call { call, request } => {
                    let reply_to = ReplyTo::Lane { index, incarnation, lane, call };
                    self.call_store(StoreRequest::Lane { lane, request }, reply_to);
                }
                Effect::Send(batch) => self.send_to_session(&batch),
                Effect::Submitted { token, outcomes } => {
                    let Some(operation) = self.server(index).submits.remove(&token) else { continue };
                    if let Some(outcomes) = outcomes {
                        self.tell_client(operation, Some(outcomes));
                    } else {
                        self.sent_again(operation);
                        self.store_operation(index, operation);
                    }
                }
                Effect::Revoke { session } => self.call_coordinator(CoordinatorCall::Revoke { session }),
                Effect::NotReceiving { .. } => self.report.path("worker_not_receiving"),
                Effect::Changed(_) => {}
                Effect::Completed(tasks) => self.handle_completions(index, lane, tasks),
                Effect::Parked { failures } => {
                    let first = failures == self.scenario.ownership().failures_max + 1;
                    self.report.path(if first { "lane_parked" } else { "lane_parked_again" });
                }
            }
        }
    }

    /// The lane's machine has panicked in the step that gave these effects. All of them are discarded, as a
    /// real panic would never have returned them. A submission whose answer is lost with them goes to the
    /// store.
    fn contain_panic(&mut self, index: usize, lane: LaneId, effects: &mut Vec<Effect>) {
        self.report.fault("lane machine panicked");
        let answer = |effect: Effect| match effect {
            Effect::Submitted { token, .. } => Some(Effect::Submitted { token, outcomes: None }),
            _ => None,
        };
        let answers: Vec<Effect> = std::mem::take(effects).into_iter().filter_map(answer).collect();
        let now = self.now;
        self.server(index).lanes[usize::from(lane.0)].step(Input::Failed, now, effects);
        effects.extend(answers);
    }

    /// The API takes a client's operation.
    fn serve(&mut self, index: usize, operation: usize) {
        self.stamp_operation(index, operation);
        let Some((lane, tasks)) = self.client.submit_of(operation) else {
            return self.store_operation(index, operation);
        };
        let server = self.server(index);
        server.next_token += 1;
        let token = SubmitToken(server.next_token);
        server.submits.insert(token, operation);
        self.drive_lane(index, lane, Input::Submit { token, tasks });
    }

    /// The API gives a client's operation to the store.
    fn store_operation(&mut self, index: usize, operation: usize) {
        let incarnation = self.servers[index].incarnation;
        let reply_to = ReplyTo::Api { index, incarnation, operation };
        let request = self.client.request_of(operation);
        self.call_store(request, reply_to);
    }

    fn wake_server(&mut self, index: usize) {
        let incarnation = self.servers[index].incarnation;
        let now = self.now;
        let server = self.server(index);
        let lanes = server.lanes.iter().filter_map(Ownership::next_deadline).min();
        let renew = Some(server.next_renew).filter(|at| *at < Timestamp::MAX);
        let lease = server.token.as_ref().map(|_| server.lease_from + Scenario::SERVER_TTL - MARGIN);
        let Some(at) = [lanes, renew, lease].into_iter().flatten().min() else { return };
        let at = at.max(now + Duration::from_micros(1));
        if self.servers[index].tick_at.is_none_or(|tick| at < tick) {
            self.servers[index].tick_at = Some(at);
            self.at(at, Event::Server { index, incarnation, input: ServerInput::Tick });
        }
    }
}

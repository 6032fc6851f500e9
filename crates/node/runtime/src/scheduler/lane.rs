//! Drives the ownership machine of one lane: takes waiting inputs, steps, carries out the effects.
//!
//! Nothing is awaited while the machine's state changes. Calls to the store and the coordinator are jobs
//! whose answers come back as inputs; messages leave through the outbox. A panic in the machine is contained
//! here: the lane is given up, claimed and loaded again.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tasklane_core::clock_watch::STEP_MIN;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{Epoch, LaneId, QueueKey, SessionId, TaskId};
use tasklane_core::lane::{BODY_BYTES_MAX, Explanation, KeyInfo, KeyPosition, SubmitToken};
use tasklane_core::member::Role;
use tasklane_core::message::{EventPlace, Message, OwnerBatch, ToWorker};
use tasklane_core::ownership::{CallError, Effect, Input, Ownership, Reply, Request};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::task::{NewTask, TaskRow};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::{
    Address, CoordinatorError, LoadQuery, Outcome, SessionToken, Store, StoreError, Subscription, TaskView,
    View,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock;

use super::outbox::Outbox;
use super::refusals::{Refusals, StoreAccess};
use super::{LaneEnd, LaneInfo, SchedulerOptions, SchedulerParts};

/// The inputs of a lane's driver.
#[derive(Debug)]
pub(super) enum ToDriver {
    /// The server's session was opened, or has ended.
    Session(Option<SessionToken>),
    /// The coordinator's view, and the server that should own each lane by that view.
    View(Arc<View>, Arc<[SessionId]>),
    /// Tasks from the API of this process.
    Submit { tasks: Vec<NewTask>, reply: oneshot::Sender<Option<Vec<SubmitOutcome>>> },
    /// Completions of tasks were handled.
    CompletionHandled { tasks: Vec<TaskId> },
    /// The store may hold something new.
    Hint,
    /// A policy was changed.
    Policy { queue: QueueKey, policy: VersionedPolicy },
    /// Explain why this task is not running.
    Explain { row: Box<TaskRow>, reply: oneshot::Sender<Option<Explanation>> },
    /// List the keys that the limits of a queue count.
    Keys { queue: QueueKey, after: Option<KeyPosition>, limit: usize, reply: oneshot::Sender<Vec<KeyInfo>> },
    /// Report the state of the lane.
    Info { reply: oneshot::Sender<LaneInfo> },
    /// Take a turn and do nothing else.
    Ping,
    /// Answer when the lane is owned here and loaded.
    Loaded { reply: oneshot::Sender<()> },
    /// Give the lane back and end. The last dropped `done` shows that all lanes have ended.
    Stop { done: mpsc::Sender<()> },
}

/// A job's answer.
#[derive(Debug)]
enum Done {
    Input(Input),
    /// A dispatch whose bodies were read.
    Send(OwnerBatch),
    /// The subscription to messages of workers was opened, or failed.
    Listening(Option<Box<dyn Subscription>>),
    /// A grant was requested; whether it is held.
    Acquired(bool),
    Nothing,
}

/// Inputs that are taken before timers and messages get their turn.
const BATCH: usize = 256;

/// Drives one lane. See the [module](self).
pub(super) struct LaneDriver {
    lane: LaneId,
    machine: Ownership,
    parts: SchedulerParts,
    outbox: Outbox,
    token: Option<SessionToken>,
    view: Arc<View>,
    /// The server that should own each lane.
    shares: Arc<[SessionId]>,
    /// Whether there are other servers.
    has_company: bool,
    /// Whether a grant was requested and the answer is open.
    acquiring: bool,
    /// Whether the grant is held by that answer while no view has shown it yet: a view without it is older.
    unshown: bool,
    /// How far the wall clock was ahead of the steady clock at the machine's last input.
    ahead: Shift,
    /// Wakes this driver when the wall clock has stepped.
    steps: watch::Receiver<Shift>,
    /// The place of the last event batch of the lane, as its owner.
    told: Option<EventPlace>,
    /// Whether the lane is owned here, for readers outside the driver.
    owned: Arc<AtomicBool>,
    /// Turns taken, for the watchdog.
    turns: Arc<AtomicU64>,
    /// Messages of workers to the owner of the lane; closed while this server is not to own it.
    subscription: LaneSubscription,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    submits: HashMap<SubmitToken, oneshot::Sender<Option<Vec<SubmitOutcome>>>>,
    next_token: u64,
    /// The epoch under which the lane was owned here after the last step.
    epoch: Option<Epoch>,
    effects: Vec<Effect>,
    refusals: Arc<Refusals>,
    stopping: Option<mpsc::Sender<()>>,
    /// Callers that wait for the lane to be loaded.
    awaiting: Vec<oneshot::Sender<()>>,
    /// Commits requested, and their groups.
    commits: u64,
    groups: u64,
}

impl LaneDriver {
    pub(super) fn new(
        lane: LaneId,
        options: &SchedulerOptions,
        parts: &SchedulerParts,
        end: &LaneEnd,
    ) -> Self {
        let clock = clock::now();
        let machine = Ownership::new(options.ownership.clone(), lane, rand::random(), clock.steady);
        Self {
            lane,
            machine,
            parts: parts.clone(),
            outbox: Outbox::start(Arc::clone(&parts.bus)),
            token: None,
            view: Arc::default(),
            shares: Arc::default(),
            has_company: false,
            acquiring: false,
            unshown: false,
            ahead: clock.wall.shift_from(clock.steady),
            steps: clock::steps(),
            told: None,
            owned: Arc::clone(&end.owned),
            turns: Arc::clone(&end.turns),
            subscription: LaneSubscription::Closed,
            jobs: FuturesUnordered::new(),
            submits: HashMap::new(),
            next_token: 0,
            epoch: None,
            effects: Vec::new(),
            refusals: Arc::default(),
            stopping: None,
            awaiting: Vec::new(),
            commits: 0,
            groups: 0,
        }
    }

    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<ToDriver>) {
        let timer = tokio::time::sleep(std::time::Duration::ZERO);
        tokio::pin!(timer);
        loop {
            self.turns.fetch_add(1, Ordering::Relaxed);
            self.listen();
            let deadline = self.machine.next_deadline();
            if let Some(deadline) = deadline {
                timer.as_mut().reset(clock::instant(deadline));
            }
            tokio::select! {
                input = inputs.recv() => {
                    let Some(input) = input else { break };
                    self.on_input(input);
                    for _ in 0..BATCH {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.on_input(input);
                    }
                }
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.on_done(done),
                heard = self.subscription.receive() => match heard {
                    Some(heard) => self.on_messages(heard),
                    None => self.subscription = LaneSubscription::Closed,
                },
                () = timer.as_mut(), if deadline.is_some() => self.drive(Input::Tick),
                Ok(()) = self.steps.changed() => self.drive(Input::Tick),
            }
            if !self.awaiting.is_empty() && self.is_as_it_should_be() {
                self.awaiting.drain(..).for_each(|reply| _ = reply.send(()));
            }
            // Requests that are still open, a release too, end with the session.
            if self.stopping.is_some() && self.machine.phase() == "idle" {
                break;
            }
        }
        for (_, reply) in self.submits {
            let _ = reply.send(None);
        }
    }

    fn on_input(&mut self, input: ToDriver) {
        match input {
            ToDriver::Session(token) => {
                if token.is_none() {
                    self.drive(Input::Wanted(false));
                    self.drive(Input::Granted(false));
                }
                self.token = token;
                self.unshown = false;
                // The view is judged again, now that there is a session to own lanes with.
                self.on_view();
            }
            ToDriver::View(view, shares) => {
                if view.revision >= self.view.revision {
                    let servers =
                        view.members.values().filter(|member| matches!(member.role, Role::Server { .. }));
                    self.has_company = servers.count() > 1;
                    self.view = view;
                    self.shares = shares;
                }
                self.on_view();
            }
            ToDriver::Submit { tasks, reply } => {
                self.next_token += 1;
                let token = SubmitToken(self.next_token);
                self.submits.insert(token, reply);
                self.drive(Input::Submit { token, tasks });
            }
            ToDriver::CompletionHandled { tasks } => self.drive(Input::CompletionHandled(tasks)),
            ToDriver::Hint => self.drive(Input::Hint),
            ToDriver::Policy { queue, policy } => self.drive(Input::Policy { queue, policy }),
            ToDriver::Explain { row, reply } => {
                let machine = self.machine.machine();
                let explained = machine
                    .map(|machine| machine.explain(row.id).unwrap_or_else(|| machine.explain_paged(&row)));
                let _ = reply.send(explained);
            }
            ToDriver::Keys { queue, after, limit, reply } => {
                let keys = self.machine.machine().map(|machine| machine.keys(&queue, after, limit));
                let _ = reply.send(keys.unwrap_or_default());
            }
            ToDriver::Info { reply } => {
                let _ = reply.send(LaneInfo {
                    lane: self.lane,
                    phase: self.machine.phase(),
                    epoch: self.machine.epoch(),
                    counters: self.machine.counters(),
                    commits: self.commits,
                    groups: self.groups,
                });
            }
            ToDriver::Ping => {}
            ToDriver::Loaded { reply } => self.awaiting.push(reply),
            ToDriver::Stop { done } => {
                self.stopping = Some(done);
                self.drive(Input::Wanted(false));
            }
        }
    }

    /// Judges the last view: the live members, the server that should own this lane, and its owner.
    fn on_view(&mut self) {
        let view = Arc::clone(&self.view);
        self.drive(Input::Members {
            revision: view.revision,
            members: view.members.values().cloned().collect(),
            requested: false,
            wall: clock::wall(),
        });
        let Some(session) = self.token.as_ref().map(|token| token.session) else { return };
        if self.stopping.is_none() {
            self.drive(Input::Wanted(self.share() == Some(session)));
        }
        if view.grants.get(&self.lane) == Some(&session) {
            self.unshown = false;
            self.drive(Input::Granted(true));
        } else if view.members.contains_key(&session) && !self.unshown {
            self.drive(Input::Granted(false));
        }
    }

    /// The server that should own the lane.
    fn share(&self) -> Option<SessionId> {
        self.shares.get(usize::from(self.lane.0)).copied()
    }

    /// Whether the lane is owned here and loaded, or another server should own it.
    fn is_as_it_should_be(&self) -> bool {
        let session = self.token.as_ref().map(|token| token.session);
        match self.share() {
            Some(share) if Some(share) == session => self.machine.phase() == "owning",
            Some(_) => session.is_some_and(|session| self.view.members.contains_key(&session)),
            None => false,
        }
    }

    /// Subscribes to messages of workers while this server owns the lane or is about to.
    fn listen(&mut self) {
        let concerned = self.machine.phase() != "idle";
        match self.subscription {
            LaneSubscription::Closed if concerned => {
                self.subscription = LaneSubscription::Opening;
                let (bus, lane) = (Arc::clone(&self.parts.bus), self.lane);
                self.job(async move {
                    match bus.subscribe(Address::Lane(lane)).await {
                        Ok(subscription) => Done::Listening(Some(subscription)),
                        Err(error) => {
                            tracing::warn!(%lane, %error, "the lane is not subscribed, retrying");
                            tokio::time::sleep(AGAIN_AFTER).await;
                            Done::Listening(None)
                        }
                    }
                });
            }
            LaneSubscription::Open(_) if !concerned => self.subscription = LaneSubscription::Closed,
            LaneSubscription::Closed | LaneSubscription::Opening | LaneSubscription::Open(_) => {}
        }
    }

    fn on_messages(&mut self, messages: Vec<Message>) {
        let mut joined: Vec<Message> = Vec::with_capacity(1);
        for message in messages {
            let apart = match joined.last_mut() {
                Some(last) => last.join(message),
                None => Some(message),
            };
            joined.extend(apart);
        }
        for message in joined {
            match message {
                Message::ToLane(batch) if batch.lane == self.lane => self.drive(Input::Worker(batch)),
                Message::Hint { lane } if lane == self.lane => self.drive(Input::Hint),
                Message::Policy { lane, queue, policy } if lane == self.lane => {
                    self.drive(Input::Policy { queue, policy: *policy });
                }
                _ => {}
            }
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Input(input) => self.drive(input),
            Done::Send(batch) => self.send(batch),
            Done::Listening(Some(subscription)) => self.subscription = LaneSubscription::Open(subscription),
            Done::Listening(None) => self.subscription = LaneSubscription::Closed,
            Done::Acquired(granted) => {
                self.acquiring = false;
                if granted {
                    self.unshown = true;
                    self.drive(Input::Granted(true));
                }
            }
            Done::Nothing => {}
        }
    }

    /// Passes an input to the machine, after a step of the wall clock since the last one.
    fn drive(&mut self, mut input: Input) {
        let clock = clock::now();
        let ahead = clock.wall.shift_from(clock.steady);
        let by = ahead - self.ahead;
        if by.abs() >= STEP_MIN {
            self.ahead = ahead;
            self.step(Input::ClockStepped { by }, clock.steady);
        }
        // The time may have been read before that step.
        if let Input::Members { wall, .. } = &mut input {
            *wall = clock.steady + self.ahead;
        }
        self.step(input, clock.steady);
    }

    /// Passes an input to the machine and carries out its effects.
    fn step(&mut self, input: Input, now: Timestamp) {
        let mut effects = std::mem::take(&mut self.effects);
        let stepped = catch_unwind(AssertUnwindSafe(|| self.machine.step(input, now, &mut effects)));
        if stepped.is_err() {
            tracing::error!(lane = %self.lane, "the lane has panicked: it is given up and loaded again");
            effects.clear();
            self.machine.step(Input::Failed, now, &mut effects);
        }
        let epoch = self.machine.epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            self.owned.store(epoch.is_some(), Ordering::Relaxed);
            // The last events of the previous owner did not arrive in this process.
            if let Some(epoch) = epoch {
                self.told = Some(EventPlace { lane: self.lane, epoch, number: 0 });
                self.parts.notifier.gap();
            }
        }
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, effect: Effect) {
        let lane = self.lane;
        match effect {
            Effect::Acquire => {
                let Some(token) = self.token.clone().filter(|_| !self.acquiring) else { return };
                self.acquiring = true;
                let coordinator = Arc::clone(&self.parts.coordinator);
                self.job(async move {
                    // A refusal needs no answer: a view shows when the grant is free.
                    Done::Acquired(coordinator.acquire(&token, lane).await.unwrap_or_else(|error| {
                        tracing::warn!(%lane, %error, "the grant was not acquired");
                        false
                    }))
                });
            }
            Effect::Release => {
                self.unshown = false;
                let Some(token) = self.token.clone() else { return };
                let coordinator = Arc::clone(&self.parts.coordinator);
                self.job(async move {
                    match coordinator.release(&token, lane).await {
                        Ok(()) | Err(CoordinatorError::SessionEnded { .. }) => Done::Nothing,
                        Err(error) => {
                            tracing::warn!(%lane, %error, "the grant was not released, retrying");
                            tokio::time::sleep(AGAIN_AFTER).await;
                            Done::Input(Input::NotReleased)
                        }
                    }
                });
            }
            Effect::ReadMembers => self.read_members(),
            Effect::Call { call, request } => {
                if let Request::Commit(commit) = &request {
                    self.commits += 1;
                    self.groups += commit.groups.len() as u64;
                }
                let (store, refusals) = (Arc::clone(&self.parts.store), Arc::clone(&self.refusals));
                self.job(async move {
                    let reply = call_store(&*store, lane, request, &refusals).await;
                    Done::Input(Input::Reply { call, reply })
                });
            }
            Effect::Send(batch) => self.complete(batch),
            Effect::Submitted { token, outcomes } => {
                if let Some(reply) = self.submits.remove(&token) {
                    let _ = reply.send(outcomes);
                }
            }
            Effect::NotReceiving { session } => {
                self.outbox.send(Address::Stats, Message::NotReceiving { session });
            }
            Effect::Revoke { session } => self.revoke(session),
            Effect::Changed(events) => {
                let place = self.told.map(|told| EventPlace { number: told.number + 1, ..told });
                self.told = place;
                let batch = self.parts.notifier.publish(place, events);
                if self.has_company && self.parts.bus.is_heard(Address::Events) {
                    self.outbox.send(Address::Events, Message::Changed(batch));
                }
            }
            Effect::Completed(tasks) => self.parts.notifier.add_completions(tasks),
            Effect::Parked { failures } => {
                tracing::error!(%lane, failures, "the lane has failed under several owners and is parked");
            }
        }
    }

    fn read_members(&mut self) {
        let coordinator = Arc::clone(&self.parts.coordinator);
        self.job(async move {
            // Only a view requested now proves that a session which it does not show has ended.
            loop {
                let view = match coordinator.watch().await {
                    Ok(mut watch) => watch.next().await,
                    Err(error) => {
                        tracing::warn!(%error, "the members were not read, retrying");
                        None
                    }
                };
                if let Some(view) = view {
                    let members = view.members.into_values().collect();
                    let revision = view.revision;
                    let wall = clock::wall();
                    return Done::Input(Input::Members { revision, members, requested: true, wall });
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        });
    }

    fn revoke(&mut self, session: SessionId) {
        let coordinator = Arc::clone(&self.parts.coordinator);
        tracing::warn!(lane = %self.lane, %session, "the worker ignores orders: its session is revoked");
        self.job(async move {
            if let Err(error) = coordinator.revoke(session).await {
                tracing::warn!(%session, %error, "the session was not revoked");
            }
            Done::Nothing
        });
    }

    /// Reads the bodies that were too large to keep, then sends.
    fn complete(&mut self, batch: OwnerBatch) {
        let missing: Vec<TaskId> = batch
            .messages
            .iter()
            .filter_map(|message| match message {
                ToWorker::Dispatch(dispatch) if dispatch.body.is_none() => Some(dispatch.attempt.task),
                _ => None,
            })
            .collect();
        if missing.is_empty() {
            return self.send(batch);
        }
        let store = Arc::clone(&self.parts.store);
        self.job(async move {
            match store.tasks(&missing).await {
                Ok(found) => Done::Send(with_bodies(batch, found)),
                Err(error) => {
                    // The dispatch is repeated until the worker reports that it has it.
                    tracing::warn!(%error, "the spec of a task was not read: its dispatch is sent later");
                    Done::Nothing
                }
            }
        });
    }

    fn send(&self, batch: OwnerBatch) {
        self.outbox.send(Address::Session(batch.session), Message::ToWorker(batch));
    }

    fn job(&mut self, job: impl Future<Output = Done> + Send + 'static) {
        self.jobs.push(Box::pin(job));
    }
}

const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(500);

/// The state of a lane's subscription to workers.
enum LaneSubscription {
    Closed,
    Opening,
    Open(Box<dyn Subscription>),
}

impl LaneSubscription {
    /// The received messages; `None` when the bus has closed.
    async fn receive(&mut self) -> Option<Vec<Message>> {
        match self {
            Self::Open(subscription) => subscription.receive().await,
            Self::Closed | Self::Opening => std::future::pending().await,
        }
    }
}

fn with_bodies(mut batch: OwnerBatch, found: Vec<Option<TaskView>>) -> OwnerBatch {
    let mut bodies: HashMap<_, _> =
        found.into_iter().flatten().filter_map(|view| Some((view.row.id, view.row.body?))).collect();
    batch.messages.retain_mut(|message| match message {
        ToWorker::Dispatch(dispatch) if dispatch.body.is_none() => {
            dispatch.body = bodies.remove(&dispatch.attempt.task);
            dispatch.body.is_some()
        }
        _ => true,
    });
    batch
}

async fn call_store(
    store: &dyn Store,
    lane: LaneId,
    request: Request,
    refusals: &Refusals,
) -> Result<Reply, CallError> {
    let (kind, asked) = match request {
        Request::Head => (StoreAccess::Read, "head"),
        Request::Load { .. } => (StoreAccess::Read, "load"),
        Request::Claim(_) => (StoreAccess::Write, "claim"),
        Request::Commit(_) => (StoreAccess::Write, "commit"),
    };
    let reply = match request {
        Request::Head => store.lane_head(lane).await.map(Reply::Head),
        Request::Claim(claim) => store.claim_lane(claim).await.map(Reply::Claimed),
        Request::Commit(commit) => store.commit(&commit).await.map(Reply::Committed),
        Request::Load { read, limit } => {
            let load = LoadQuery { lane, read, limit, body_bytes_max: BODY_BYTES_MAX };
            store.load(load).await.map(Reply::Page)
        }
    };
    if reply.is_ok()
        && let Some(refused) = refusals.done(kind)
    {
        tracing::info!(%lane, asked, refused, "the store does again what the lane asks for");
    }
    reply.map_err(|error| {
        let answer = match &error {
            StoreError::Fenced { .. } | StoreError::ClaimLost { .. } | StoreError::OutOfOrder { .. } => {
                CallError::Fenced
            }
            StoreError::Full { .. } | StoreError::Lost { .. } => CallError::Refused,
            error if !error.is_retryable() => CallError::Fatal,
            error => match error.outcome() {
                Outcome::NotApplied => CallError::NotApplied,
                Outcome::Unknown => CallError::Unknown,
            },
        };
        if let Some(refused) = refusals.refused(kind, std::time::Instant::now()) {
            tracing::warn!(%lane, asked, refused, %error, "the store did not do what the lane asked for");
        }
        answer
    })
}

//! One session of a worker, from its opening until it is drained or lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::SessionId;
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_core::message::{AttemptId, Control, Dispatch, Finish, Message};
use tasklane_core::task::Progress;
use tasklane_core::time::Timestamp;
use tasklane_core::worker::{Effect, Input, StopReason, WorkerSession};
use tasklane_ports::{
    Address, BusError, Coordinator, CoordinatorError, OpenSession, SessionToken, Stop, Subscription,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::scheduler::Outbox;

use super::attempt::RunningAttempt;
use super::output::Shipper;
use super::stats::Meter;
use super::{AGAIN_AFTER, WorkerOptions, WorkerParts, WorkerState};

/// How a session came to its end.
pub(super) enum SessionEnd {
    /// The worker was asked to leave; nothing runs any more and the session is closed.
    Drained,
    /// The session was lost, and what it ran is gone, as far as it would.
    Lost {
        /// What it offered, as people have changed it meanwhile.
        offered: WorkerDescriptor,
        /// The session, if all that it ran is known to be gone.
        over: Option<SessionToken>,
    },
}

/// What attempts and calls tell the session.
#[derive(Debug)]
pub(super) enum SessionEvent {
    /// Its processes are gone, its output is not kept yet.
    Exited {
        attempt: AttemptId,
    },
    Ended {
        attempt: AttemptId,
        finish: Box<Finish>,
    },
    Progress {
        attempt: AttemptId,
        progress: Progress,
    },
    Renewed {
        asked_at: Timestamp,
        renewed: Result<(), CoordinatorError>,
    },
}

/// An open session.
pub(super) struct Session<'a> {
    options: &'a WorkerOptions,
    parts: &'a WorkerParts,
    shipper: &'a Shipper,
    /// Shown to health checks.
    state: &'a watch::Sender<WorkerState>,
    token: SessionToken,
    descriptor: WorkerDescriptor,
    /// What of it everyone is to know.
    offered: watch::Sender<WorkerDescriptor>,
    machine: WorkerSession,
    subscription: Box<dyn Subscription>,
    outbox: Outbox,
    running: HashMap<AttemptId, RunningAttempt>,
    events: mpsc::UnboundedSender<SessionEvent>,
    received: mpsc::UnboundedReceiver<SessionEvent>,
    effects: Vec<Effect>,
    /// The deadline that was told last.
    lease: Timestamp,
    meter: Meter,
    /// When lanes are told next how the worker is.
    next_beat: Timestamp,
    /// Heartbeats in a row at which there was nothing to do.
    idle_beats: u32,
    /// How far it is on its way out, and when the next step is taken.
    leaving: Option<(Leaving, Instant)>,
    over: Option<SessionExit>,
    /// What attempts said last of how far they are, and when it is passed on: an attempt may say it very often.
    progress: HashMap<AttemptId, Progress>,
    tell_progress_at: Option<Instant>,
}

/// How a worker leaves. It may be done at any time: when nothing runs and every report is acknowledged.
#[derive(Clone, Copy)]
enum Leaving {
    /// What runs may finish.
    Draining,
    /// What still ran is stopped.
    Stopping,
}

#[derive(Clone, Copy)]
enum SessionExit {
    Drained,
    Fenced,
}

/// A worker that has had nothing to do for so many heartbeats tells people so once in as many.
const IDLE_BEATS: u32 = 5;
/// After a lease has run out, attempts have this long to be gone; the guard has ended processes by then.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// When attempts were stopped because the worker leaves, and their grace is over, this is how long it may take until the
/// lanes have acknowledged how they ended.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);
/// How often progress is passed on.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Inputs that are taken before timers get their turn.
const BATCH: usize = 256;

impl<'a> Session<'a> {
    pub(super) async fn open(
        session: SessionId,
        options: &'a WorkerOptions,
        parts: &'a WorkerParts,
        shipper: &'a Shipper,
        state: &'a watch::Sender<WorkerState>,
    ) -> Result<Session<'a>, OpenError> {
        // Listens before anyone can know of the session, so that nothing is missed.
        let subscription = parts.bus.subscribe(Address::Session(session)).await?;
        let descriptor = options.descriptor(parts);
        let asked_at = clock::steady();
        let role = Role::Worker(descriptor.clone());
        let open = OpenSession { session, ttl: options.machine.ttl, role };
        let token = parts.coordinator.open(open).await?;
        parts.held_sessions.add(token.clone());
        let machine = WorkerSession::new(options.machine.clone(), session, asked_at);
        let (events, received) = mpsc::unbounded_channel();
        let (offered, changes) = watch::channel(descriptor.clone());
        tokio::spawn(tell_offers(Arc::clone(&parts.coordinator), token.clone(), changes));
        tracing::info!(worker = %options.name, %session, capacity = options.machine.capacity, "worker is ready");
        Ok(Session {
            options,
            parts,
            shipper,
            state,
            token,
            descriptor,
            offered,
            machine,
            subscription,
            outbox: Outbox::start(Arc::clone(&parts.bus)),
            running: HashMap::new(),
            events,
            received,
            effects: Vec::new(),
            lease: Timestamp::ZERO,
            meter: Meter::new(session),
            next_beat: Timestamp::ZERO,
            idle_beats: 0,
            leaving: None,
            over: None,
            progress: HashMap::new(),
            tell_progress_at: None,
        })
    }

    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> SessionEnd {
        self.settle();
        let end = loop {
            if let Some(end) = self.over {
                break end;
            }
            let deadline = self.machine.next_deadline().unwrap_or(Timestamp::MAX);
            tokio::select! {
                messages = self.subscription.receive() => match messages {
                    Some(messages) => {
                        for message in messages {
                            self.on_message(message);
                        }
                        self.settle();
                    }
                    None => break SessionExit::Fenced,
                },
                Some(event) = self.received.recv() => {
                    self.on_event(event);
                    for _ in 0..BATCH {
                        let Ok(event) = self.received.try_recv() else { break };
                        self.on_event(event);
                    }
                    self.settle();
                }
                () = tokio::time::sleep_until(clock::instant(deadline)) => self.settle(),
                () = shutdown.cancelled(), if self.leaving.is_none() => self.drain(),
                () = sleep_until(self.leaving.map(|(_, until)| until)) => self.leave(),
                () = sleep_until(self.tell_progress_at) => self.tell_progress(),
            }
        };
        self.finish(end).await
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::ToWorker(batch) => self.take(Input::Owner(batch)),
            Message::Control(Control::Capacity(capacity)) => {
                self.descriptor.capacity = capacity;
                self.take(Input::Capacity(capacity));
                self.update();
            }
            Message::Control(Control::Weight(weight)) => {
                self.descriptor.weight = weight;
                self.update();
            }
            Message::Control(Control::Labels(labels)) => {
                self.descriptor.labels = labels;
                self.update();
            }
            Message::Control(Control::Drain) if self.leaving.is_none() => self.drain(),
            _ => {}
        }
    }

    fn on_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Ended { attempt, finish } => {
                if let Some(progress) = self.progress.remove(&attempt) {
                    self.take(Input::Progress { attempt, progress });
                }
                self.take(Input::Ended { attempt, finish });
                let (running, report) = (self.running.remove(&attempt), self.machine.last_report(attempt));
                if let (Some(running), Some(report)) = (running, report) {
                    running.log_end(attempt, report, &self.options.name);
                }
            }
            SessionEvent::Exited { attempt } => self.take(Input::Exited { attempt }),
            SessionEvent::Progress { attempt, progress } => {
                self.progress.insert(attempt, progress);
                self.tell_progress_at.get_or_insert_with(|| Instant::now() + PROGRESS_EVERY);
            }
            SessionEvent::Renewed { asked_at, renewed: Ok(()) } => self.take(Input::Renewed { asked_at }),
            SessionEvent::Renewed { renewed: Err(error), .. } => {
                tracing::warn!(%error, "the worker's session was not renewed");
                if !error.is_retryable() {
                    self.take(Input::Refused);
                }
            }
        }
    }

    fn tell_progress(&mut self) {
        self.tell_progress_at = None;
        for (attempt, progress) in std::mem::take(&mut self.progress) {
            self.take(Input::Progress { attempt, progress });
        }
        self.settle();
    }

    /// Takes nothing more, gives back what has not started, and leaves when the rest is done or time is up.
    fn drain(&mut self) {
        tracing::info!(worker = %self.options.name, running = self.running.len(), "worker is leaving");
        self.leaving = Some((Leaving::Draining, Instant::now() + self.options.drain_grace));
        self.descriptor.draining = true;
        self.state.send_replace(WorkerState::Draining);
        self.update();
        self.take(Input::Drain);
        self.settle();
    }

    /// The time for one step of leaving is up: takes the next.
    fn leave(&mut self) {
        match self.leaving {
            Some((Leaving::Draining, _)) => {
                let within = self.options.stop_grace + SETTLED_WITHIN;
                self.leaving = Some((Leaving::Stopping, Instant::now() + within));
                self.take(Input::Leave);
                self.settle();
            }
            Some((Leaving::Stopping, _)) => {
                tracing::warn!(worker = %self.options.name, "worker leaves before all reports are acknowledged");
                self.over = Some(SessionExit::Drained);
            }
            None => {}
        }
    }

    /// Tells everyone what the worker offers now.
    fn update(&self) {
        self.offered.send_replace(self.descriptor.clone());
    }

    /// Tells how the worker is doing; one that has nothing to do says so less often.
    fn publish_stats(&mut self) {
        let running = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let queued = self.machine.load().saturating_sub(running);
        self.idle_beats = if running + queued == 0 { self.idle_beats.saturating_add(1) } else { 0 };
        if self.idle_beats > IDLE_BEATS && !self.idle_beats.is_multiple_of(IDLE_BEATS) {
            return;
        }
        let stats = self.meter.measure(running, queued);
        self.outbox.send(Address::Stats, Message::Stats(stats));
    }

    /// Gives the machine an input; [`settle`](Self::settle) follows the last of those that came together.
    fn take(&mut self, input: Input) {
        self.machine.take(input, clock::steady(), &mut self.effects);
    }

    /// Lets the machine do what its inputs have made possible, and carries out what it says.
    fn settle(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.settle(clock::steady(), &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        if std::mem::replace(&mut self.next_beat, self.machine.next_heartbeat()) < self.next_beat {
            // In one breath with the heartbeats.
            self.publish_stats();
        }
        let lease = self.machine.fence_at();
        if lease != self.lease && !self.machine.is_fenced() {
            self.lease = lease;
            (self.parts.on_lease)(lease);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Start(dispatch) => self.start(dispatch),
            Effect::Stop { attempt, reason } => self.stop(attempt, reason),
            Effect::Fence => {
                tracing::error!(worker = %self.options.name, "the lease has run out: everything is stopped");
                self.over = Some(SessionExit::Fenced);
            }
            Effect::Send(batch) => self.outbox.send(Address::Lane(batch.lane), Message::ToLane(batch)),
            Effect::Renew => {
                let (coordinator, token) = (Arc::clone(&self.parts.coordinator), self.token.clone());
                let events = self.events.clone();
                let asked_at = clock::steady();
                tokio::spawn(async move {
                    let renewed = coordinator.renew(&token).await;
                    let _ = events.send(SessionEvent::Renewed { asked_at, renewed });
                });
            }
            Effect::Drained => self.over = Some(SessionExit::Drained),
            Effect::Pause { reason, wait } => {
                tracing::warn!(worker = %self.options.name, %reason, ?wait, "the worker takes no new work for a while");
                self.descriptor.pause_reason = Some(reason.clone());
                self.state.send_replace(WorkerState::Pausing { reason });
                self.update();
            }
            Effect::Resume => {
                self.descriptor.pause_reason = None;
                self.state.send_if_modified(|state| {
                    let pauses = matches!(state, WorkerState::Pausing { .. });
                    if pauses {
                        *state = WorkerState::Serving;
                    }
                    pauses
                });
                self.update();
            }
        }
    }

    fn start(&mut self, dispatch: Dispatch) {
        let executor = self.parts.executors.executor(dispatch.head.executor()).cloned();
        let attempt = dispatch.attempt;
        let (task, number, queue) = (attempt.task, attempt.number, &dispatch.head.queue.queue);
        tracing::debug!(%task, attempt = %number, %queue, worker = %self.options.name, "attempt starts");
        let output = self.shipper.attempt(attempt);
        let running = RunningAttempt::start(dispatch, executor, output, self.events.clone());
        self.running.insert(attempt, running);
    }

    fn stop(&self, attempt: AttemptId, reason: StopReason) {
        if let Some(running) = self.running.get(&attempt) {
            running.stop(Stop { reason, grace: self.options.stop_grace });
        }
    }

    /// Ends what still runs, at once; closes the session only when nothing does, because its end is what allows others to run
    /// the same tasks.
    async fn finish(mut self, end: SessionExit) -> SessionEnd {
        let stop = Stop { reason: StopReason::Cancelled, grace: Duration::ZERO };
        for running in self.running.values() {
            running.stop(stop);
        }
        let gone = async {
            while !self.running.is_empty() {
                match self.received.recv().await {
                    Some(SessionEvent::Ended { attempt, .. }) => _ = self.running.remove(&attempt),
                    Some(
                        SessionEvent::Exited { .. }
                        | SessionEvent::Progress { .. }
                        | SessionEvent::Renewed { .. },
                    ) => {}
                    None => break,
                }
            }
        };
        let all_gone = tokio::time::timeout(GONE_WITHIN, gone).await.is_ok();
        if all_gone || matches!(end, SessionExit::Drained) {
            self.parts.held_sessions.remove(self.token.session);
        }
        match end {
            SessionExit::Fenced => {
                SessionEnd::Lost { offered: self.descriptor, over: all_gone.then_some(self.token) }
            }
            SessionExit::Drained => {
                if !all_gone {
                    tracing::error!("some attempts did not end; the session is left to run out");
                } else if let Err(error) = self.parts.coordinator.close(&self.token).await {
                    tracing::warn!(%error, "the session was not closed and has to run out");
                }
                SessionEnd::Drained
            }
        }
    }
}

/// Tells the coordinator what a worker offers whenever that changes, one after the other, so that the last one stands.
async fn tell_offers(
    coordinator: Arc<dyn Coordinator>,
    token: SessionToken,
    mut offered: watch::Receiver<WorkerDescriptor>,
) {
    while offered.changed().await.is_ok() {
        let role = Role::Worker(offered.borrow_and_update().clone());
        match coordinator.update(&token, role).await {
            Ok(()) => {}
            // A worker that leaves may be gone before it could say so.
            Err(CoordinatorError::SessionEnded { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, "what the worker offers was not updated, trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
                offered.mark_changed();
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Why a session was not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
}

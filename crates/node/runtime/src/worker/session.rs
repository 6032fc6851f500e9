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

/// How a session ended.
pub(super) enum SessionEnd {
    /// The worker was drained or shut down; nothing runs any more and the session is closed.
    Drained,
    /// The session was lost, and its attempts were ended as far as possible.
    Lost {
        /// Its offer, with the changes of users.
        offered: WorkerDescriptor,
        /// The session, if all of its attempts are known to have ended.
        over: Option<SessionToken>,
    },
}

/// Events of attempts and calls for the session.
#[derive(Debug)]
pub(super) enum SessionEvent {
    /// Its processes have ended, its output is not stored yet.
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
    /// The public part of the offer.
    offered: watch::Sender<WorkerDescriptor>,
    machine: WorkerSession,
    subscription: Box<dyn Subscription>,
    outbox: Outbox,
    running: HashMap<AttemptId, RunningAttempt>,
    events: mpsc::UnboundedSender<SessionEvent>,
    received: mpsc::UnboundedReceiver<SessionEvent>,
    effects: Vec<Effect>,
    /// The last deadline that was set.
    lease: Timestamp,
    meter: Meter,
    /// The next time of statistics.
    next_beat: Timestamp,
    /// Heartbeats in a row without work.
    idle_beats: u32,
    /// The step of leaving, and when the next step is due.
    leaving: Option<(Leaving, Instant)>,
    over: Option<SessionExit>,
    /// The last progress of attempts, and when it is sent: an attempt may report it very often.
    progress: HashMap<AttemptId, Progress>,
    tell_progress_at: Option<Instant>,
}

/// The steps of leaving. A worker leaves as soon as nothing runs and every report is acknowledged.
#[derive(Clone, Copy)]
enum Leaving {
    /// Running attempts may finish.
    Draining,
    /// Attempts that still ran are stopped.
    Stopping,
}

#[derive(Clone, Copy)]
enum SessionExit {
    Drained,
    Fenced,
}

/// After this many heartbeats without work, a worker publishes statistics at one heartbeat in as many.
const IDLE_BEATS: u32 = 5;
/// After the trust window has ended, attempts have this long to end; the guard has ended processes by then.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// When the worker leaves and the grace of its stopped attempts has passed, the lanes have this long to
/// acknowledge their reports.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);
/// How often progress is sent.
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
        // Subscribes before any owner can know the session, so that no message is missed.
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

    /// Takes nothing more, hands back attempts that have not started, and leaves when the rest has ended or
    /// the grace has passed.
    fn drain(&mut self) {
        tracing::info!(worker = %self.options.name, running = self.running.len(), "worker is leaving");
        self.leaving = Some((Leaving::Draining, Instant::now() + self.options.drain_grace));
        self.descriptor.draining = true;
        self.state.send_replace(WorkerState::Draining);
        self.update();
        self.take(Input::Drain);
        self.settle();
    }

    /// The time of one step of leaving has passed: takes the next.
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

    /// Publishes the worker's current offer.
    fn update(&self) {
        self.offered.send_replace(self.descriptor.clone());
    }

    /// Publishes statistics; a worker without work does so less often.
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

    /// Passes the machine an input; [`settle`](Self::settle) follows the last input of a batch.
    fn take(&mut self, input: Input) {
        self.machine.take(input, clock::steady(), &mut self.effects);
    }

    /// Lets the machine do all that its inputs allow, and carries out its effects.
    fn settle(&mut self) {
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.settle(clock::steady(), &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        if std::mem::replace(&mut self.next_beat, self.machine.next_heartbeat()) < self.next_beat {
            // Together with the heartbeats.
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
                tracing::error!(worker = %self.options.name, "the trust window has ended: all is stopped");
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

    /// Ends running attempts immediately; closes the session only when none is left, because its end allows
    /// other workers to run the same tasks.
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
                    tracing::error!("some attempts did not end: the session stays until its TTL ends");
                } else if let Err(error) = self.parts.coordinator.close(&self.token).await {
                    tracing::warn!(%error, "the session was not closed and stays until its TTL ends");
                }
                SessionEnd::Drained
            }
        }
    }
}

/// Sends the worker's offer to the coordinator at each change, one after the other, so that the last one
/// stands.
async fn tell_offers(
    coordinator: Arc<dyn Coordinator>,
    token: SessionToken,
    mut offered: watch::Receiver<WorkerDescriptor>,
) {
    while offered.changed().await.is_ok() {
        let role = Role::Worker(offered.borrow_and_update().clone());
        match coordinator.update(&token, role).await {
            Ok(()) => {}
            // A leaving worker may be gone before it could send it.
            Err(CoordinatorError::SessionEnded { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, "the coordinator did not take the offer of the worker, retrying");
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

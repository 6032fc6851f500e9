//! The session of a server: opened, renewed, watched, and opened again when it was lost.
//!
//! A server counts its trust window from before it sent the renewal, and stops owning lanes a margin before
//! the window can have ended. The store has the last word in any case. The keeper sends the renewals, even if
//! the other threads are busy, and only while the drivers of all lanes take their turns.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::id::SessionId;
use tasklane_core::member::Role;
use tasklane_core::ownership::fair_shares;
use tasklane_core::time::Timestamp;
use tasklane_ports::{Coordinator, CoordinatorError, OpenSession, SessionToken, View, Watch};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{clock, keeper};

use super::lane::ToDriver;
use super::pulse::HeldUp;
use super::{LaneEnd, SchedulerOptions, SchedulerParts};

/// Wait before the coordinator is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long lanes may take to finish their commits when the server stops.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);
/// How long the driver of a lane may have no room for an input.
const TELL_WITHIN: Duration = Duration::from_secs(3);

/// Observers of the session, and of the coordinator's views.
#[derive(Clone, Copy)]
pub(super) struct SessionObservers<'a> {
    pub(super) lanes: &'a [LaneEnd],
    pub(super) views: &'a watch::Sender<Arc<View>>,
    pub(super) session: &'a watch::Sender<Option<SessionId>>,
    pub(super) held_up: &'a watch::Receiver<Option<HeldUp>>,
}

pub(super) async fn run(
    options: &SchedulerOptions,
    parts: &SchedulerParts,
    observers: SessionObservers<'_>,
    shutdown: CancellationToken,
) {
    let SchedulerParts { coordinator, held_sessions, .. } = parts;
    while !shutdown.is_cancelled() {
        // While a lane is held up, other servers must get it.
        let mut held_up = observers.held_up.clone();
        tokio::select! {
            () = async { _ = held_up.wait_for(Option::is_none).await } => {}
            () = shutdown.cancelled() => return,
        }
        let session = SessionId::from_random(rand::random());
        let asked_at = clock::steady();
        let role = Role::Server { address: options.address.clone(), bus: options.bus_address.clone() };
        let opened = coordinator.open(OpenSession { session, ttl: options.ttl, role }).await;
        let followed = match opened {
            Ok(token) => {
                held_sessions.add(token.clone());
                compare_clocks(&**coordinator, &token).await;
                observers.session.send_replace(Some(session));
                let followed = match coordinator.watch().await {
                    Ok(watch) => {
                        let held =
                            HeldSession { options, coordinator, observers, token, lease_from: asked_at };
                        held.follow(watch, &shutdown).await
                    }
                    Err(error) => Err(error),
                };
                observers.session.send_replace(None);
                held_sessions.remove(session);
                followed
            }
            Err(error) => Err(error),
        };
        if let Err(error) = followed {
            tracing::warn!(%error, "the server has no session with the coordinator, retrying");
            tokio::select! {
                () = tokio::time::sleep(AGAIN_AFTER) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }
}

/// Renews a new session once, so that the coordinator's time is known before any decision by a clock.
async fn compare_clocks(coordinator: &dyn Coordinator, token: &SessionToken) {
    // The next renewal shows whether the session lives.
    let _ = tokio::time::timeout(AGAIN_AFTER, coordinator.renew(token)).await;
    if let Some(reference) = coordinator.clock() {
        clock::compare(reference);
    }
}

/// A session that was opened.
struct HeldSession<'a> {
    options: &'a SchedulerOptions,
    coordinator: &'a Arc<dyn Coordinator>,
    observers: SessionObservers<'a>,
    token: SessionToken,
    /// The time before the last successful renewal was sent.
    lease_from: Timestamp,
}

impl HeldSession<'_> {
    /// Keeps the session until it is lost or the server stops.
    async fn follow(
        mut self,
        mut watch: Box<dyn Watch>,
        shutdown: &CancellationToken,
    ) -> Result<(), CoordinatorError> {
        self.tell(|| ToDriver::Session(Some(self.token.clone()))).await;
        let (renewed, mut renewals) = mpsc::unbounded_channel();
        let renewal = Renewal {
            coordinator: Arc::clone(self.coordinator),
            token: self.token.clone(),
            ttl: self.options.ttl,
            every: self.options.renew_every,
            held_up: self.observers.held_up.clone(),
            lease_from: self.lease_from,
            renewed,
        };
        let _renewing = keeper::spawn(renewal.keep_on());
        let ended = loop {
            // Early rather than late.
            let lease_ends = lease_ends(self.lease_from, self.options.ttl);
            tokio::select! {
                view = watch.next() => {
                    let Some(view) = view else { break Ok(()) };
                    let view = Arc::new(view);
                    self.observers.views.send_replace(Arc::clone(&view));
                    let servers = view.members.values().filter(|m| matches!(m.role, Role::Server { .. }));
                    let shares: Arc<[SessionId]> =
                        fair_shares(self.options.lanes, servers.map(|m| m.session)).into();
                    self.tell(|| ToDriver::View(Arc::clone(&view), Arc::clone(&shares))).await;
                }
                renewed = renewals.recv() => match renewed {
                    Some(Ok(lease_from)) => self.lease_from = lease_from,
                    Some(Err(error)) => break Err(error),
                    // The renewal has ended: the session has to be opened again.
                    None => break Ok(()),
                },
                () = tokio::time::sleep_until(clock::instant(lease_ends)) => {
                    tracing::warn!("the session was not renewed in time: its lanes are given up");
                    break Ok(());
                }
                () = shutdown.cancelled() => {
                    self.release().await;
                    break Ok(());
                }
            }
        };
        self.tell(|| ToDriver::Session(None)).await;
        ended
    }

    /// Gives all lanes back, then the session.
    async fn release(&self) {
        let (done, mut waiting) = mpsc::channel(1);
        self.tell(|| ToDriver::Stop { done: done.clone() }).await;
        drop(done);
        if tokio::time::timeout(RELEASE_WITHIN, waiting.recv()).await.is_err() {
            tracing::warn!("some lanes did not finish in time; their next owner goes on from the store");
        }
        if let Err(error) = self.coordinator.close(&self.token).await {
            tracing::warn!(%error, "the session was not closed and stays until its TTL ends");
        }
    }

    async fn tell(&self, input: impl Fn() -> ToDriver) {
        let sends = self.observers.lanes.iter().map(|lane| {
            // A driver that has ended has panicked outside its machine; a held up driver may have no room.
            // The others go on.
            tokio::time::timeout(TELL_WITHIN, lane.inputs.send(input()))
        });
        join_all(sends).await;
    }
}

/// The end of the trust window of a session that was last renewed at `from`: early rather than late.
fn lease_ends(from: Timestamp, ttl: Duration) -> Timestamp {
    from + ttl * 4 / 5
}

/// Renews a session, on the keeper.
struct Renewal {
    coordinator: Arc<dyn Coordinator>,
    token: SessionToken,
    ttl: Duration,
    every: Duration,
    held_up: watch::Receiver<Option<HeldUp>>,
    /// The time before the last successful renewal was sent.
    lease_from: Timestamp,
    /// Receives the sending time of each successful renewal, and the error that ends the renewals.
    renewed: mpsc::UnboundedSender<Result<Timestamp, CoordinatorError>>,
}

impl Renewal {
    async fn keep_on(mut self) {
        let mut turns = tokio::time::interval(self.every);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        turns.tick().await;
        loop {
            turns.tick().await;
            if self.held_up.borrow().is_some() {
                continue;
            }
            let asked_at = clock::steady();
            let within = (self.ttl / 2).min(lease_ends(self.lease_from, self.ttl).since(asked_at));
            let renewed = tokio::time::timeout(within, self.coordinator.renew(&self.token));
            match renewed.await {
                Ok(Ok(())) => {
                    self.lease_from = asked_at;
                    let _ = self.renewed.send(Ok(asked_at));
                }
                Ok(Err(error)) if !error.is_retryable() => {
                    let _ = self.renewed.send(Err(error));
                    return;
                }
                Ok(Err(error)) => tracing::warn!(%error, "the session was not renewed"),
                Err(_) => tracing::warn!("the coordinator does not answer"),
            }
        }
    }
}

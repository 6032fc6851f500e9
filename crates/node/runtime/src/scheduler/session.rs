//! The session of a server: opened, renewed, watched, and opened anew when it was lost.
//!
//! A server counts its lease from before it asked, and stops owning lanes a margin before it can have ended. Whatever
//! it believes, the store has the last word.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::SessionId;
use tasklane_core::member::Role;
use tasklane_core::ownership::fair_shares;
use tasklane_core::time::Timestamp;
use tasklane_ports::{Coordinator, CoordinatorError, OpenSession, SessionToken, View, Watch};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;

use super::lane::ToDriver;
use super::{LaneEnd, SchedulerOptions, SchedulerParts};

/// Wait before an attempt to reach the coordinator is made again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long lanes may take to finish what they write when the server stops.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Who is told of the session, and of what the coordinator shows.
#[derive(Clone, Copy)]
pub(super) struct Told<'a> {
    pub(super) lanes: &'a [LaneEnd],
    pub(super) views: &'a watch::Sender<Arc<View>>,
    pub(super) session: &'a watch::Sender<Option<SessionId>>,
}

pub(super) async fn run(
    options: &SchedulerOptions,
    parts: &SchedulerParts,
    told: Told<'_>,
    shutdown: CancellationToken,
) {
    let SchedulerParts { coordinator, tokens, .. } = parts;
    while !shutdown.is_cancelled() {
        let session = SessionId::from_random(rand::random());
        let asked_at = clock::steady();
        let role = Role::Server { address: options.address.clone(), bus: options.bus_address.clone() };
        let opened = coordinator.open(OpenSession { session, ttl: options.ttl, role }).await;
        let followed = match opened {
            Ok(token) => {
                tokens.add(token.clone());
                told.session.send_replace(Some(session));
                let followed = match coordinator.watch().await {
                    Ok(watch) => {
                        let held = Held { options, coordinator, told, token, lease_from: asked_at };
                        held.follow(watch, &shutdown).await
                    }
                    Err(error) => Err(error),
                };
                told.session.send_replace(None);
                tokens.remove(session);
                followed
            }
            Err(error) => Err(error),
        };
        if let Err(error) = followed {
            tracing::warn!(%error, "no session with the coordinator, trying again");
            tokio::select! {
                () = tokio::time::sleep(AGAIN_AFTER) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }
}

/// A session that was opened.
struct Held<'a> {
    options: &'a SchedulerOptions,
    coordinator: &'a Arc<dyn Coordinator>,
    told: Told<'a>,
    token: SessionToken,
    /// Before the last renewal that succeeded was asked for.
    lease_from: Timestamp,
}

impl Held<'_> {
    /// Keeps the session until it is lost or the server stops.
    async fn follow(
        mut self,
        mut watch: Box<dyn Watch>,
        shutdown: &CancellationToken,
    ) -> Result<(), CoordinatorError> {
        self.tell(|| ToDriver::Session(Some(self.token.clone()))).await;
        let mut renewals = tokio::time::interval(self.options.renew_every);
        renewals.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        renewals.tick().await;
        let ended = loop {
            // Early rather than late.
            let lease_ends = self.lease_from + self.options.ttl * 4 / 5;
            tokio::select! {
                view = watch.next() => {
                    let Some(view) = view else { break Ok(()) };
                    let view = Arc::new(view);
                    self.told.views.send_replace(Arc::clone(&view));
                    let servers = view.members.values().filter(|m| matches!(m.role, Role::Server { .. }));
                    let shares: Arc<[SessionId]> =
                        fair_shares(self.options.lanes, servers.map(|m| m.session)).into();
                    self.tell(|| ToDriver::View(Arc::clone(&view), Arc::clone(&shares))).await;
                }
                _ = renewals.tick() => {
                    let asked_at = clock::steady();
                    let within = (self.options.ttl / 2).min(lease_ends.since(asked_at));
                    let renewed = tokio::time::timeout(within, self.coordinator.renew(&self.token));
                    match renewed.await {
                        Ok(Ok(())) => self.lease_from = asked_at,
                        Ok(Err(error)) if !error.is_retryable() => break Err(error),
                        Ok(Err(error)) => tracing::warn!(%error, "the session was not renewed"),
                        Err(_) => tracing::warn!("the coordinator does not answer"),
                    }
                }
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
            tracing::warn!(%error, "the session was not closed and has to run out");
        }
    }

    async fn tell(&self, input: impl Fn() -> ToDriver) {
        for lane in self.told.lanes {
            // A driver that is gone has panicked outside its machine; the others go on.
            let _ = lane.inputs.send(input()).await;
        }
    }
}

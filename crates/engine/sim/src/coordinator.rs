//! The coordinator behind a network.

use tasklane_core::id::LaneId;
use tasklane_core::time::Timestamp;
use tasklane_ports::{OpenSession, SessionToken};

use crate::Scenario;
use crate::server::ServerInput;
use crate::worker::WorkerInput;
use crate::world::{Event, World};

/// The caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) is_server: bool,
    pub(crate) index: usize,
    pub(crate) incarnation: u32,
}

/// A call on its way to the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum CoordinatorCall {
    Open { caller: Caller, open: OpenSession, asked_at: Timestamp },
    Renew { caller: Caller, token: SessionToken, asked_at: Timestamp },
    Close { token: SessionToken },
    Revoke { session: tasklane_core::id::SessionId },
    Acquire { caller: Caller, token: SessionToken, lane: LaneId },
    Release { token: SessionToken, lane: LaneId },
    View { caller: Caller, lane: LaneId },
}

/// An answer that comes this much later than usual is late.
const LATE: std::time::Duration = std::time::Duration::from_secs(3);

impl World {
    /// Sends a call.
    pub(crate) fn call_coordinator(&mut self, call: CoordinatorCall) {
        if let (CoordinatorCall::Renew { token, .. }, Some((session, until))) = (&call, self.bad_link)
            && token.session == session
            && self.now < until
        {
            return self.after(until.since(self.now), Event::Coordinator(call));
        }
        if !self.weather.healed && self.rng.chance(2) {
            self.report.fault("coordinator call slow");
            let delay = self.between(100_000, 4_000_000);
            return self.after(delay, Event::Coordinator(call));
        }
        let delay = self.between(100, 2_000);
        self.after(delay, Event::Coordinator(call));
    }

    fn reply_delay(&mut self) -> std::time::Duration {
        let slow = !self.weather.healed && self.rng.chance(3);
        if slow { self.between(100_000, 9_000_000) } else { self.between(100, 2_000) }
    }

    /// What the clock of the coordinator shows, where it has one.
    fn reference_time(&self) -> Option<Timestamp> {
        self.scenario.reference.then(|| self.now + self.ahead)
    }

    /// A call has arrived.
    pub(crate) fn coordinator_call(&mut self, call: CoordinatorCall) {
        if self.weather.coordinator_down {
            // The caller gets no answer; it asks again if it needs one.
            self.report.fault("coordinator call while down");
            let repeated = matches!(call, CoordinatorCall::Open { .. } | CoordinatorCall::View { .. });
            if repeated || matches!(call, CoordinatorCall::Close { .. } | CoordinatorCall::Release { .. }) {
                self.after(std::time::Duration::from_secs(1), Event::Coordinator(call));
            }
            return;
        }
        let before = self.sessions.changes();
        let delay = self.reply_delay();
        match call {
            CoordinatorCall::Open { caller, open, asked_at } => {
                let secret = self.rng.next_u128();
                let wall = self.reference_time();
                if let Ok(token) = self.sessions.open(open, secret, self.now) {
                    let event = if caller.is_server {
                        let input = ServerInput::Opened { token, asked_at, wall };
                        Event::Server { index: caller.index, incarnation: caller.incarnation, input }
                    } else {
                        let input = WorkerInput::Opened { token, asked_at };
                        Event::Worker { index: caller.index, incarnation: caller.incarnation, input }
                    };
                    self.after(delay, event);
                }
            }
            CoordinatorCall::Renew { caller, token, asked_at } => {
                let renewed = self.sessions.renew(&token, self.now).is_ok();
                // Where an answer is late, the next calls may be lost.
                if !caller.is_server && delay > LATE && self.rng.chance(40) {
                    self.report.fault("renewal answered late, and no other came through");
                    self.bad_link = Some((token.session, self.now + Scenario::WORKER_TTL));
                }
                let event = if caller.is_server {
                    let wall = self.reference_time();
                    let input = ServerInput::Renewed { session: token.session, asked_at, renewed, wall };
                    Event::Server { index: caller.index, incarnation: caller.incarnation, input }
                } else {
                    let input = WorkerInput::Renewed { session: token.session, asked_at, renewed };
                    Event::Worker { index: caller.index, incarnation: caller.incarnation, input }
                };
                self.after(delay, event);
            }
            CoordinatorCall::Close { token } => {
                self.sessions.close(&token);
            }
            CoordinatorCall::Revoke { session } => {
                self.report.fault("session revoked");
                self.sessions.revoke(session);
            }
            CoordinatorCall::Acquire { caller, token, lane } => {
                let mut granted = self.sessions.acquire(&token, lane, self.now).unwrap_or(false);
                // A grant only says who should try: correctness must not rest on a single holder.
                if !granted && !self.weather.healed && self.rng.chance(2) {
                    self.report.fault("grant given twice");
                    granted = true;
                }
                if granted {
                    let input = ServerInput::Granted { lane };
                    self.after(
                        delay,
                        Event::Server { index: caller.index, incarnation: caller.incarnation, input },
                    );
                }
            }
            CoordinatorCall::Release { token, lane } => {
                let _ = self.sessions.release(&token, lane, self.now);
            }
            CoordinatorCall::View { caller, lane } => {
                let input = ServerInput::View { view: self.sessions.view(), requested_by: Some(lane) };
                self.after(
                    delay,
                    Event::Server { index: caller.index, incarnation: caller.incarnation, input },
                );
            }
        }
        self.after_change(before);
    }

    /// The failure detector looks at the sessions.
    pub(crate) fn detect_failures(&mut self) {
        self.detection_at = None;
        let before = self.sessions.changes();
        let ended = self.sessions.tick(self.now);
        for session in ended {
            self.count_loss(session);
        }
        self.after_change(before);
    }

    fn after_change(&mut self, before: u64) {
        if let Some(at) = self.sessions.next_deadline()
            && self.detection_at.is_none_or(|detection| at < detection)
        {
            self.detection_at = Some(at);
            self.at(at, Event::DetectFailures);
        }
        if self.sessions.changes() == before {
            return;
        }
        for index in 0..self.servers.len() {
            let incarnation = self.servers[index].incarnation;
            let delay = self.reply_delay();
            let input = ServerInput::View { view: self.sessions.view(), requested_by: None };
            self.after(delay, Event::Server { index, incarnation, input });
        }
    }
}

//! The bus: loses, repeats, reorders and delays.

use std::time::Duration;

use tasklane_core::id::LaneId;
use tasklane_core::message::{OwnerBatch, Report, ToLane, WorkerBatch};

use crate::server::ServerInput;
use crate::worker::WorkerInput;
use crate::world::{Event, World};

impl World {
    /// Sends a message to the current owner of a lane.
    pub(crate) fn send_to_lane(&mut self, batch: &WorkerBatch) {
        for delay in self.fates() {
            self.after(delay, Event::ToLane(batch.clone()));
        }
        if !self.weather.healed && self.rng.chance(1) {
            self.confuse_sessions(batch);
        }
    }

    /// Another worker hands back an attempt that this one has just begun, as a proxy that mixes up its
    /// workers would.
    fn confuse_sessions(&mut self, batch: &WorkerBatch) {
        let begun = batch.messages.iter().find_map(|message| match message {
            ToLane::Report { attempt, report: Report::Accepted | Report::Started { .. } } => Some(*attempt),
            _ => None,
        });
        let other = self.rng.index(self.workers.len());
        let session = self.workers[other].process.as_ref().map(|worker| worker.session);
        let (Some(attempt), Some(session)) = (begun, session.filter(|session| *session != batch.session))
        else {
            return;
        };
        self.report.fault("report in the name of another session");
        let report = Report::HandedBack { reason: "the attempt belongs to another worker".to_owned() };
        let messages = vec![ToLane::Report { attempt, report }];
        let delay = self.between(100, 3_000);
        self.after(delay, Event::ToLane(WorkerBatch { lane: batch.lane, session, messages }));
    }

    /// Sends a message to a worker session.
    pub(crate) fn send_to_session(&mut self, batch: &OwnerBatch) {
        for delay in self.fates() {
            self.after(delay, Event::ToSession(batch.clone()));
        }
    }

    /// Sends a hint to the owner of a lane.
    pub(crate) fn send_hint(&mut self, lane: LaneId) {
        for delay in self.fates() {
            self.after(delay, Event::Hint(lane));
        }
    }

    /// When the copies of a message arrive: usually one, soon.
    fn fates(&mut self) -> Vec<Duration> {
        let usual = self.between(100, 3_000);
        if self.weather.healed {
            return vec![usual];
        }
        let loss = if self.weather.storm { 60 } else { self.scenario.loss };
        let mut fates = Vec::new();
        if self.rng.chance(loss) {
            self.report.fault("message lost");
        } else if self.rng.chance(self.scenario.late) {
            let hour = self.rng.chance(10);
            self.report.fault(if hour { "message late by an hour" } else { "message late" });
            fates.push(if hour { Duration::from_hours(1) } else { self.between(500_000, 60_000_000) });
        } else {
            // Delays differ, so messages overtake each other.
            fates.push(if self.rng.chance(5) { self.between(3_000, 300_000) } else { usual });
        }
        if self.rng.chance(self.scenario.repeat) {
            self.report.fault("message repeated");
            let soon = self.rng.chance(50);
            fates.push(if soon { self.between(1_000, 50_000) } else { self.between(100_000, 90_000_000) });
        }
        fates
    }

    pub(crate) fn deliver_to_lane(&mut self, batch: &WorkerBatch) {
        if let Some(traced) = self.scenario.trace {
            for message in &batch.messages {
                let about = match message {
                    ToLane::Report { attempt, .. } => attempt.task == traced,
                    ToLane::Heartbeat(heartbeat) => {
                        heartbeat.held.iter().any(|held| held.attempt.task == traced)
                    }
                    ToLane::Credit { .. } => false,
                };
                if about {
                    self.report.trace.push(format!("{} lane gets {message:?}", self.now));
                }
            }
        }
        for index in 0..self.servers.len() {
            let incarnation = self.servers[index].incarnation;
            let input = ServerInput::Worker(batch.clone());
            self.server_input(index, incarnation, input);
        }
    }

    pub(crate) fn deliver_hint(&mut self, lane: LaneId) {
        for index in 0..self.servers.len() {
            let incarnation = self.servers[index].incarnation;
            self.server_input(index, incarnation, ServerInput::Hint(lane));
        }
    }

    pub(crate) fn deliver_to_session(&mut self, batch: OwnerBatch) {
        let holds = |worker: &crate::worker::Worker| worker.session == batch.session;
        let index = self.workers.iter().position(|host| host.process.as_ref().is_some_and(holds));
        if let Some(index) = index {
            let incarnation = self.workers[index].incarnation;
            self.worker_input(index, incarnation, WorkerInput::Owner(batch));
        }
    }
}

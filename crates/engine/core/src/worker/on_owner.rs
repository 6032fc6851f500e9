//! Messages of owners.

use crate::id::{DispatchNo, LaneId};
use crate::invariant::Invariant;
use crate::message::{AttemptId, Dispatch, OwnerBatch, Report, ToWorker};

use super::credit::UsedNumbers;
use super::input::{Effect, StopReason};
use super::machine::{Attempt, AttemptState, WorkerSession};

impl WorkerSession {
    pub(super) fn on_owner(&mut self, batch: OwnerBatch, effects: &mut Vec<Effect>) {
        let OwnerBatch { lane, epoch, session, messages } = batch;
        if session != self.session {
            return;
        }
        let lane_credit = self.lane_credits.entry(lane).or_default();
        if epoch < lane_credit.epoch && self.options.invariants.on(Invariant::WorkerEpoch) {
            return;
        }
        if epoch > lane_credit.epoch {
            // A new owner counts from the start, and promises to the old one are void.
            lane_credit.follow(epoch);
            self.heartbeat(lane, false);
        } else {
            lane_credit.unanswered = 0;
        }
        for message in messages {
            match message {
                ToWorker::Dispatch(dispatch) => self.on_dispatch(lane, dispatch),
                ToWorker::Skip { first, last } => {
                    let lane_credit = self.lane_credits.entry(lane).or_default();
                    let mut is_new = false;
                    for k in first.0..=last.0 {
                        is_new |= lane_credit.used.take(DispatchNo(k));
                    }
                    // The owner does not need its old credit, and may be asked again.
                    if is_new {
                        lane_credit.rests();
                        lane_credit.asked_back = false;
                    }
                }
                ToWorker::Recall { k, attempt } => self.on_recall(lane, k, attempt),
                ToWorker::Stop { attempt } => self.on_stop(lane, attempt, effects),
                ToWorker::Ack { attempt, .. } => self.settle_report(attempt),
                ToWorker::Demand { wanted, up_to } => {
                    let now = self.now;
                    let lane_credit = self.lane_credits.entry(lane).or_default();
                    if wanted == 0 {
                        lane_credit.rests();
                    } else {
                        lane_credit.demand(wanted, up_to, now);
                    }
                }
            }
        }
    }

    fn used(&mut self, lane: LaneId) -> &mut UsedNumbers {
        &mut self.lane_credits.entry(lane).or_default().used
    }

    fn on_dispatch(&mut self, lane: LaneId, dispatch: Dispatch) {
        let id = dispatch.attempt;
        let fresh =
            self.used(lane).take(dispatch.k) || !self.options.invariants.on(Invariant::DispatchNumber);
        if self.attempts.contains_key(&id) {
            return self.answer_again(lane, id);
        }
        // Its number is used up: the dispatch is a repetition, was recalled before it came, or its credit was
        // returned.
        if !fresh {
            return;
        }
        if self.draining {
            let reason = "the worker is draining".to_owned();
            return self.conclude(lane, id, Report::HandedBack { reason });
        }
        if let Some((_, reason)) = &self.pause {
            let reason = reason.clone();
            return self.conclude(lane, id, Report::HandedBack { reason });
        }
        if self.is_overfull() {
            self.counters.surplus_handed_back += 1;
            let reason = "the worker has no room".to_owned();
            return self.conclude(lane, id, Report::HandedBack { reason });
        }
        self.weigh(&dispatch);
        self.lane_credits.entry(lane).or_default().attempts += 1;
        self.attempts.insert(id, Attempt { lane, state: AttemptState::Queued(dispatch) });
        self.queued.push_back(id);
        self.arrived.push(id);
    }

    /// The owner does not know the state of an attempt: reports it again.
    fn answer_again(&mut self, lane: LaneId, id: AttemptId) {
        let now = self.now;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        // The sender is the owner of its lane now.
        attempt.lane = lane;
        let report = match &attempt.state {
            AttemptState::Queued(_) => Report::Accepted,
            AttemptState::Running { since, .. } => Report::Started { ago: now.since(*since) },
            AttemptState::Ended(report) => report.clone(),
        };
        self.report(lane, id, report);
    }

    fn on_recall(&mut self, lane: LaneId, k: DispatchNo, id: AttemptId) {
        if k.0 > 0 {
            self.used(lane).take(k);
        }
        let handed_back = || Report::HandedBack { reason: "recalled before it started".to_owned() };
        match self.attempts.get(&id).map(|attempt| &attempt.state) {
            None => self.conclude(lane, id, handed_back()),
            Some(AttemptState::Queued(_)) => {
                if !self.options.invariants.on(Invariant::RecallRefusesLater) {
                    return self.report(lane, id, handed_back());
                }
                self.queued.retain(|&queued| queued != id);
                self.conclude(lane, id, handed_back());
            }
            Some(AttemptState::Running { .. } | AttemptState::Ended(_)) => self.answer_again(lane, id),
        }
    }

    fn on_stop(&mut self, lane: LaneId, id: AttemptId, effects: &mut Vec<Effect>) {
        match self.attempts.get(&id).map(|attempt| &attempt.state) {
            Some(AttemptState::Queued(_)) => {
                self.queued.retain(|&queued| queued != id);
                self.conclude(
                    lane,
                    id,
                    Report::HandedBack { reason: "stopped before it started".to_owned() },
                );
            }
            Some(AttemptState::Running { .. }) => self.stop(id, StopReason::Cancelled, effects),
            Some(AttemptState::Ended(_)) => self.answer_again(lane, id),
            // The dispatch is on its way or lost; the owner sends both again.
            None => {}
        }
    }
}

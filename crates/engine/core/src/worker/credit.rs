//! Sharing the room of a worker among lanes.
//!
//! The worker gives room to lanes that ask for it, in fair shares. Where it does not suffice, the worker asks
//! lanes for credit that they do not need. It answers each lane that asks, also when there is no room: the
//! lane's owner compares workers by their answers. When no lane asks, each lane that asked lately gets its
//! share ahead, so that its next task need not wait for an answer; when no lane asked lately, every lane gets
//! a little.
//!
//! Room promised to a lane without an owner would be lost to the other lanes. So the worker takes an owner
//! for silent if it was asked for unneeded credit and sent no message for some heartbeats. Its promise does
//! not count until its next message. A silent owner may still use its promise, because credit is never
//! lowered; then more dispatches come than there is room for. A few of them wait, the rest is handed back,
//! and the worker promises no more before there is room.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::{DispatchNo, Epoch};
use crate::invariant::Invariant;
use crate::message::ToLane;
use crate::time::Timestamp;

use super::machine::WorkerSession;

/// The worker's account of one lane and its owner.
#[derive(Debug, Default)]
pub(super) struct LaneCredit {
    /// The highest epoch received.
    pub(super) epoch: Epoch,
    /// Dispatch numbers of that epoch that are used up.
    pub(super) used: UsedNumbers,
    /// The highest number that the owner may use.
    pub(super) credit: DispatchNo,
    /// The credit in the last message to the owner.
    pub(super) credit_sent: DispatchNo,
    /// The lane has work for numbers up to this one.
    wanted: DispatchNo,
    /// The demand that the worker has answered, with the credit it could give.
    answered: DispatchNo,
    /// When the lane last asked for room, unless its owner has since reported that it has no work.
    demanded_at: Option<Timestamp>,
    /// The worker has asked the lane for credit that it does not need.
    pub(super) asked_back: bool,
    /// The worker has asked for credit, and the answer is on its way.
    pub(super) is_returning: bool,
    /// Heartbeats since then without a message of its owner.
    pub(super) unanswered: u32,
    /// Attempts of the lane that wait or execute here.
    pub(super) attempts: u32,
    /// The load in the last message to the owner.
    pub(super) load_sent: u32,
    /// Messages of this step.
    pub(super) outbox: Vec<ToLane>,
}

/// How long a fall of the load waits for company before owners learn of it.
const LOAD_AFTER: Duration = Duration::from_millis(10);

impl LaneCredit {
    /// Follows a new owner: no number is used or promised yet.
    pub(super) fn follow(&mut self, epoch: Epoch) {
        let (attempts, outbox) = (self.attempts, std::mem::take(&mut self.outbox));
        *self = Self { epoch, attempts, outbox, ..Self::default() };
    }

    /// Numbers that may still be used: room that is promised.
    pub(super) fn promised(&self) -> u64 {
        self.credit.0.saturating_sub(self.used.count())
    }

    /// The owner asks for room. A demand that is late or repeated adds nothing.
    pub(super) fn demand(&mut self, wanted: u32, up_to: DispatchNo, now: Timestamp) {
        // An owner of an earlier version names no number.
        let up_to = if up_to.0 == 0 { DispatchNo(self.credit.0 + u64::from(wanted)) } else { up_to };
        self.wanted = self.wanted.max(up_to);
        if up_to > self.credit {
            // A demand is answered, also if the last answer had the same credit.
            self.answered = self.answered.min(DispatchNo(up_to.0 - 1));
        }
        self.demanded_at = Some(now);
        self.is_returning = false;
    }

    /// Numbers that the lane has work for and may not use yet.
    fn wants(&self) -> u64 {
        self.wanted.0.saturating_sub(self.credit.0)
    }

    /// Whether it has work for this worker, or had some a moment ago and is likely to have more.
    fn is_busy(&self, now: Timestamp, within: Duration) -> bool {
        self.wants() > 0 || self.demanded_at.is_some_and(|at| now < at + within)
    }

    /// Its owner has reported that it has no work.
    pub(super) fn rests(&mut self) {
        self.wanted = DispatchNo(0);
        self.answered = DispatchNo(0);
        self.demanded_at = None;
        self.is_returning = false;
    }

    /// Whether its owner leaves messages unanswered.
    fn is_silent(&self, after: u32) -> bool {
        self.unanswered >= after
    }

    /// Whether its owner is known, and answers.
    fn is_reachable(&self, silent_after: u32) -> bool {
        self.epoch.0 > 0 && !self.is_silent(silent_after)
    }
}

/// A set of numbers that fills up from below.
#[derive(Debug, Default)]
pub(super) struct UsedNumbers {
    floor: u64,
    above: BTreeSet<u64>,
}

impl UsedNumbers {
    /// Takes a number; false if it was taken before.
    pub(super) fn take(&mut self, k: DispatchNo) -> bool {
        if k.0 <= self.floor || !self.above.insert(k.0) {
            return false;
        }
        while self.above.remove(&(self.floor + 1)) {
            self.floor += 1;
        }
        true
    }

    /// The highest number up to which all are taken.
    pub(super) fn floor(&self) -> DispatchNo {
        DispatchNo(self.floor)
    }

    fn count(&self) -> u64 {
        self.floor + self.above.len() as u64
    }
}

impl WorkerSession {
    /// Gives out the room that is neither used nor promised: to lanes that ask, or a little to each lane if
    /// none asks. Answers the lanes that have asked.
    pub(super) fn share(&mut self) {
        let uncounted = self.promised(true);
        let mut spare = self.spare();
        let before = spare;
        self.share_among_asking(&mut spare);
        let silent_after = self.options.silent_after;
        let is_asking =
            |lane_credit: &LaneCredit| lane_credit.is_reachable(silent_after) && lane_credit.wants() > 0;
        if spare > 0 && !self.lane_credits.values().any(is_asking) {
            self.share_ahead(&mut spare);
        }
        let asking = self.lane_credits.values().filter(|lane_credit| is_asking(lane_credit)).count();
        if spare == 0 && asking > 0 {
            // This includes lanes that ask: a lane without an owner would otherwise keep its credit.
            self.ask_back(|lane_credit| asking > 1 || !is_asking(lane_credit));
        }
        self.counters.promise_passed_on += u64::from(spare < before && uncounted > 0);
        self.answer();
    }

    /// Each lane that asks gets as much as any other that asks, or all that it wants.
    fn share_among_asking(&mut self, spare: &mut u64) {
        let silent_after = self.options.silent_after;
        // A lane that has not answered may have no owner, and would take the room of all others one by one.
        let answers = |lane_credit: &LaneCredit| {
            lane_credit.is_reachable(silent_after) && lane_credit.unanswered == 0 && !lane_credit.is_returning
        };
        let asks = |lane_credit: &LaneCredit| answers(lane_credit) && lane_credit.wants() > 0;
        while *spare > 0 {
            let asking = self.lane_credits.values().filter(|lane_credit| asks(lane_credit)).count() as u64;
            if asking == 0 {
                return;
            }
            let each = spare.div_ceil(asking);
            self.give(spare, |lane_credit| if asks(lane_credit) { each.min(lane_credit.wants()) } else { 0 });
        }
    }

    /// No lane asks. Each lane that asked lately gets a fair share ahead; if no lane did, every lane gets a
    /// little.
    fn share_ahead(&mut self, spare: &mut u64) {
        let (now, silent_after) = (self.now, self.options.silent_after);
        let lately = self.options.heartbeat_every * 2;
        let is_busy = |lane_credit: &LaneCredit| {
            lane_credit.is_reachable(silent_after) && lane_credit.is_busy(now, lately)
        };
        let busy = self.lane_credits.values().filter(|lane_credit| is_busy(lane_credit)).count() as u64;
        let fair = self.fair_share(busy);
        self.give(spare, |lane_credit| {
            let takes = if busy > 0 { is_busy(lane_credit) } else { lane_credit.is_reachable(silent_after) };
            if takes { fair.saturating_sub(lane_credit.promised()) } else { 0 }
        });
    }

    /// The fair share of a lane when `busy` lanes share the slots, or all lanes if none has asked lately.
    fn fair_share(&self, busy: u64) -> u64 {
        let sharing = if busy == 0 { self.lane_credits.len() as u64 } else { busy };
        (self.slots() / sharing.max(1)).max(1)
    }

    /// Raises the credit of lanes in their turn, as long as there is room.
    fn give(&mut self, spare: &mut u64, wanted: impl Fn(&LaneCredit) -> u64) {
        // An ended attempt frees one place at a time, so the next place goes to the lane behind the one
        // served last.
        let last = self.served_last;
        for is_behind in [true, false] {
            for (&lane, lane_credit) in
                self.lane_credits.iter_mut().filter(|(lane, _)| (**lane > last) == is_behind)
            {
                let given = wanted(lane_credit).min(*spare);
                if given > 0 {
                    *spare -= given;
                    lane_credit.credit.0 += given;
                    self.served_last = lane;
                }
            }
        }
    }

    /// Sends raised credit to its lanes, and an answer to each lane that asked when there is no more for now.
    /// While lanes have not answered a request for credit, more may come in a moment.
    fn answer(&mut self) {
        let silent_after = self.options.silent_after;
        let returning = |lane_credit: &LaneCredit| {
            lane_credit.is_returning && lane_credit.promised() > 0 && !lane_credit.is_silent(silent_after)
        };
        let to_come = self.lane_credits.values().filter(|lane_credit| returning(lane_credit)).count();
        let load = self.load();
        for lane_credit in self.lane_credits.values_mut() {
            let is_final = lane_credit.wants() == 0 || to_come == usize::from(returning(lane_credit));
            if lane_credit.credit > lane_credit.credit_sent
                || (is_final && lane_credit.answered < lane_credit.wanted)
            {
                if is_final {
                    lane_credit.answered = lane_credit.wanted;
                }
                lane_credit.credit_sent = lane_credit.credit;
                let (epoch, credit, answered) = (lane_credit.epoch, lane_credit.credit, lane_credit.answered);
                lane_credit.load_sent = load.saturating_sub(lane_credit.attempts);
                let load = lane_credit.load_sent;
                lane_credit.outbox.push(ToLane::Credit { epoch, credit, load, answered });
            }
        }
    }

    /// Sends the load to owners that know a much higher one. Other lanes' tasks have ended since, and the
    /// next burst would pass this worker over until its next heartbeat.
    pub(super) fn report_load(&mut self) {
        let (load, much) = (self.load(), (self.capacity / 4).max(1));
        let has_fallen = |lane_credit: &LaneCredit| {
            let load = load.saturating_sub(lane_credit.attempts);
            lane_credit.epoch.0 > 0
                && load < lane_credit.load_sent
                && (load == 0 || lane_credit.load_sent - load >= much)
        };
        match self.load_at {
            None if self.lane_credits.values().any(has_fallen) => self.load_at = Some(self.now + LOAD_AFTER),
            Some(at) if at <= self.now => {
                self.load_at = None;
                for lane_credit in
                    self.lane_credits.values_mut().filter(|lane_credit| has_fallen(lane_credit))
                {
                    lane_credit.load_sent = load.saturating_sub(lane_credit.attempts);
                    let (epoch, credit, answered) =
                        (lane_credit.epoch, lane_credit.credit, lane_credit.answered);
                    lane_credit.outbox.push(ToLane::Credit {
                        epoch,
                        credit,
                        load: lane_credit.load_sent,
                        answered,
                    });
                }
            }
            None | Some(_) => {}
        }
    }

    /// No lane has work, and one of them has enough room to let every lane have some: asks it for credit.
    pub(super) fn even_out(&mut self) {
        let (now, silent_after) = (self.now, self.options.silent_after);
        let lately = self.options.heartbeat_every * 2;
        let is_busy = |lane_credit: &LaneCredit| {
            lane_credit.is_reachable(silent_after) && lane_credit.is_busy(now, lately)
        };
        let lacks =
            |lane_credit: &LaneCredit| lane_credit.is_reachable(silent_after) && lane_credit.promised() == 0;
        if self.spare() == 0
            && !self.lane_credits.values().any(is_busy)
            && self.lane_credits.values().any(lacks)
        {
            let fair = self.fair_share(0);
            self.ask_back(|lane_credit| lane_credit.promised() > fair);
        }
    }

    /// Room promised to silent owners, or to all others.
    fn promised(&self, silent: bool) -> u64 {
        let after = self.options.silent_after;
        self.lane_credits
            .values()
            .filter(|lane_credit| lane_credit.is_silent(after) == silent)
            .map(LaneCredit::promised)
            .sum()
    }

    /// Room that is neither used nor promised. Many unacknowledged reports take room too, so that a slow
    /// store slows workers down instead of filling their memory.
    fn spare(&self) -> u64 {
        let promised = self.promised(false);
        let unacked = (self.unacked as u64).saturating_sub(u64::from(self.options.unacked_max));
        self.slots().saturating_sub(u64::from(self.load()) + promised + unacked)
    }

    /// Whether the worker has no room for one more, not even for a promise given twice.
    pub(super) fn is_overfull(&self) -> bool {
        (self.load() >= self.load_max() || self.is_overweight())
            && self.options.invariants.on(Invariant::SurplusHandedBack)
    }

    fn slots(&self) -> u64 {
        if self.draining || self.fenced || self.pause.is_some() {
            0
        } else {
            u64::from(self.capacity) + u64::from(self.prefetch())
        }
    }

    /// Asks lanes for credit that they do not need, each once between two heartbeats.
    fn ask_back(&mut self, wanted: impl Fn(&LaneCredit) -> bool) {
        let idle = |lane_credit: &LaneCredit| {
            lane_credit.promised() > 0 && lane_credit.credit == lane_credit.credit_sent
        };
        let asked =
            |lane_credit: &LaneCredit| idle(lane_credit) && !lane_credit.asked_back && wanted(lane_credit);
        let lanes: Vec<_> = self
            .lane_credits
            .iter()
            .filter(|(_, lane_credit)| asked(lane_credit))
            .map(|(&lane, _)| lane)
            .collect();
        for lane in lanes {
            if let Some(lane_credit) = self.lane_credits.get_mut(&lane) {
                (lane_credit.asked_back, lane_credit.is_returning) = (true, true);
            }
            self.heartbeat(lane, true);
        }
    }
}

//! Sharing the room of a worker among lanes.
//!
//! Room goes to lanes that have work. While there are such, the others get none before they ask for it: what lies with a
//! lane that does not need it has to be asked back. When nobody has asked for a while, each lane gets a little, so that
//! the next task need not wait for an answer.
//!
//! What is promised to a lane without an owner would be lost to the others for as long as that lasts. So an owner that
//! was asked for what it does not need, and has not said a word for some heartbeats, is taken for gone: its promise does
//! not count until it is heard again. It may still use it, because credit is never lowered; then more comes than there is
//! room for. A little of that waits, the rest is handed back, and nothing new is promised before there is room.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::guard::Guard;
use crate::id::{DispatchNo, Epoch};
use crate::message::ToLane;
use crate::time::Timestamp;

use super::machine::WorkerSession;

/// What the worker knows of the owner of one lane.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The highest epoch that has spoken.
    pub(super) epoch: Epoch,
    /// Dispatch numbers of that epoch that are used up.
    pub(super) used: Used,
    /// The highest number that may be used.
    pub(super) credit: DispatchNo,
    /// The lane has said that it has work for this worker, and has got nothing since.
    pub(super) demand: bool,
    /// When it has said so last, unless it has said since that it has none.
    pub(super) demanded_at: Option<Timestamp>,
    /// It was asked to give back what it does not need.
    pub(super) asked_back: bool,
    /// Heartbeats since then without a word of its owner.
    pub(super) unheard: u32,
    /// Messages of this step.
    pub(super) outbox: Vec<ToLane>,
}

impl Link {
    /// Numbers that may still be used: room that is promised.
    pub(super) fn promised(&self) -> u64 {
        self.credit.0.saturating_sub(self.used.count())
    }

    /// It has work for this worker, or had some a moment ago and is likely to have more.
    fn is_busy(&self, now: Timestamp, within: Duration) -> bool {
        self.demand || self.demanded_at.is_some_and(|at| now < at + within)
    }

    /// It has said that it has no work.
    pub(super) fn rests(&mut self) {
        self.demand = false;
        self.demanded_at = None;
    }

    /// It does not answer.
    fn is_silent(&self, after: u32) -> bool {
        self.unheard >= after
    }
}

/// A set of numbers that fills up from below.
#[derive(Debug, Default)]
pub(super) struct Used {
    floor: u64,
    above: BTreeSet<u64>,
}

impl Used {
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

    /// All numbers up to here are taken.
    pub(super) fn floor(&self) -> DispatchNo {
        DispatchNo(self.floor)
    }

    fn count(&self) -> u64 {
        self.floor + self.above.len() as u64
    }
}

impl WorkerSession {
    /// Gives out the room that nobody has: to lanes with work, or a little to each if there are none.
    pub(super) fn share(&mut self) {
        let mut spare = self.spare();
        let uncounted = self.promised(true);
        let mut passed_on = false;
        let links = self.links.len() as u64;
        if links == 0 {
            return;
        }
        let (now, load) = (self.now, self.load());
        let (silent_after, lately) = (self.options.silent_after, self.options.heartbeat_every * 2);
        let hears = |link: &Link| link.epoch.0 > 0 && !link.is_silent(silent_after);
        let is_busy = |link: &Link| hears(link) && link.is_busy(now, lately);
        let wanting = self.links.values().filter(|link| hears(link) && link.demand).count() as u64;
        let busy = self.links.values().filter(|link| is_busy(link)).count() as u64;
        // All of it to those who ask. Else each of those who asked lately gets as much as it may need, or a little, if there are
        // none, everybody.
        let each = if wanting == 0 { 0 } else { spare.div_ceil(wanting) };
        let fair = (self.slots() / if busy == 0 { links } else { busy }).max(1);
        // What ends frees one place at a time: so the turn goes on behind whoever was served last.
        let last = self.served_last;
        for is_behind in [true, false] {
            let in_turn = self.links.iter_mut().filter(|(lane, _)| (**lane > last) == is_behind);
            for (&lane, link) in in_turn {
                let give = match (wanting, busy) {
                    (1.., _) if hears(link) && link.demand => each,
                    (0, 1..) if is_busy(link) => fair.saturating_sub(link.promised()),
                    (0, 0) if hears(link) => fair.saturating_sub(link.promised()),
                    _ => 0,
                };
                let give = give.min(spare);
                if give > 0 {
                    passed_on |= uncounted > 0;
                    spare -= give;
                    self.served_last = lane;
                    link.credit.0 += give;
                    // A lane that needs more says so again.
                    link.demand = false;
                    link.outbox.push(ToLane::Credit { epoch: link.epoch, credit: link.credit, load });
                }
            }
        }
        self.counters.promise_passed_on += u64::from(passed_on);
        let starving = self.links.values().any(|link| link.demand && link.promised() == 0);
        if starving && spare == 0 {
            self.ask_back();
        }
    }

    /// Room promised to owners that are silent, or to those that are not.
    fn promised(&self, silent: bool) -> u64 {
        let after = self.options.silent_after;
        self.links.values().filter(|link| link.is_silent(after) == silent).map(Link::promised).sum()
    }

    /// Room that is neither used nor promised. Many unacknowledged reports take room too, so that a store that is
    /// slow slows workers down instead of filling their memory.
    fn spare(&self) -> u64 {
        let promised = self.promised(false);
        let unacked = (self.unacked as u64).saturating_sub(u64::from(self.options.unacked_max));
        self.slots().saturating_sub(u64::from(self.load()) + promised + unacked)
    }

    /// There is no room for one more, not even for what was promised twice.
    pub(super) fn is_overfull(&self) -> bool {
        (self.load() >= self.load_max() || self.is_overweight())
            && self.options.guards.on(Guard::SurplusHandedBack)
    }

    fn slots(&self) -> u64 {
        if self.draining || self.fenced { 0 } else { u64::from(self.capacity) + u64::from(self.prefetch()) }
    }

    fn ask_back(&mut self) {
        let idle = |link: &Link| link.promised() > 0 && !link.asked_back;
        let lanes: Vec<_> = self.links.iter().filter(|(_, link)| idle(link)).map(|(&lane, _)| lane).collect();
        for lane in lanes {
            if let Some(link) = self.links.get_mut(&lane) {
                link.asked_back = true;
            }
            self.heartbeat(lane, true);
        }
    }
}

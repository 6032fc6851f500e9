//! How long a user's lock is held.
//!
//! A TTL is a duration, so it keeps its length on the steady clock while the wall clock steps. The steady
//! clock counts from the boot of a machine: every process on the same machine reads the end of a lease on it
//! until the next boot. A process on another machine uses the wall clock, and expires no lock while that
//! clock is not settled.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock_watch::{Clock, STEP_MIN};
use crate::invariant::{Invariant, Invariants};
use crate::time::Timestamp;

/// When a lock ends, unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The wall time.
    pub until: Timestamp,
    /// The steady time; locks of older versions have none.
    pub steady: Option<SteadyEnd>,
}

/// The end of a lease by the steady clock of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteadyEnd {
    /// The boot of the machine that this clock counts from.
    #[serde(rename = "i")]
    pub boot: Uuid,
    /// The time.
    #[serde(rename = "s")]
    pub until: Timestamp,
}

impl Lease {
    /// A lease that begins now.
    pub fn taken(clock: &Clock, boot: Uuid, ttl: Duration) -> Self {
        let steady = Some(SteadyEnd { boot, until: clock.steady + ttl });
        Self { until: clock.wall + ttl, steady }
    }

    /// Whether it has not ended.
    pub fn is_held(&self, clock: &Clock, boot: Uuid, invariants: Invariants) -> bool {
        if let Some(until) = self.steady_here(boot).filter(|_| invariants.on(Invariant::LocksKeepLength)) {
            return until > clock.steady;
        }
        let waits = !clock.is_settled() && invariants.on(Invariant::LocksWait);
        self.until > clock.wall || waits
    }

    /// When the lease ends, by the present wall clock: the stored time, unless the wall clock has stepped
    /// since.
    pub fn until(&self, clock: &Clock, boot: Uuid) -> Timestamp {
        let now = self.steady_here(boot).map(|until| clock.wall + until.shift_from(clock.steady));
        now.filter(|now| now.shift_from(self.until).abs() > STEP_MIN).unwrap_or(self.until)
    }

    fn steady_here(&self, boot: Uuid) -> Option<Timestamp> {
        self.steady.filter(|end| end.boot == boot).map(|end| end.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock_watch::{Doubt, Trust};
    use crate::time::Shift;

    const HERE: Uuid = Uuid::from_u128(1);
    const ELSEWHERE: Uuid = Uuid::from_u128(2);
    const TTL: Duration = Duration::from_secs(30);

    fn clock(steady: i64, wall: i64) -> Clock {
        let (steady, wall) = (Timestamp::from_millis(steady * 1000), Timestamp::from_millis(wall * 1000));
        Clock { steady, wall, shift: Shift::ZERO, trust: Trust::Settled, gap: Shift::ZERO }
    }

    #[test]
    fn a_lease_keeps_its_length_on_its_machine_whatever_the_wall_clock_does() {
        let lease = Lease::taken(&clock(100, 1_000_000), HERE, TTL);
        for wall in [0, 1_000_000, 9_000_000] {
            assert!(lease.is_held(&clock(129, wall), HERE, Invariants::ALL_ON));
            assert!(!lease.is_held(&clock(130, wall), HERE, Invariants::ALL_ON));
            assert_eq!(lease.until(&clock(110, wall), HERE), clock(0, wall + 20).wall);
        }
    }

    #[test]
    fn another_machine_goes_by_the_wall_clock_when_it_is_settled() {
        let lease = Lease::taken(&clock(100, 1000), HERE, TTL);
        assert!(lease.is_held(&clock(900, 1029), ELSEWHERE, Invariants::ALL_ON));
        assert!(!lease.is_held(&clock(10, 1030), ELSEWHERE, Invariants::ALL_ON));
        let why = Doubt::Step(Shift::from_millis(1));
        let trust = Trust::Unsettled { left: Duration::from_secs(1), why };
        assert!(lease.is_held(&Clock { trust, ..clock(10, 9000) }, ELSEWHERE, Invariants::ALL_ON));
        let older = Lease { steady: None, ..lease };
        assert!(
            older.is_held(&clock(900, 1029), HERE, Invariants::ALL_ON)
                && !older.is_held(&clock(10, 1030), HERE, Invariants::ALL_ON)
        );
    }
}

//! Retention: the age at which finished tasks are stripped and forgotten.

use std::time::Duration;

use crate::clock_watch::Clock;
use crate::invariant::{Invariant, Invariants};
use crate::time::Timestamp;

/// How long finished tasks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Payload, result and output.
    pub tasks: Duration,
    /// The id, so that a repeated request finds its task. Never forgotten before the task.
    pub request_ids: Duration,
}

/// The times by which retention strips and forgets tasks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Tasks that finished before this lose their data.
    pub finished_before: Timestamp,
    /// Tasks that finished before this are removed altogether.
    pub forget_before: Timestamp,
}

impl Retention {
    /// The bounds for now; `None` while the clock is not settled, since removed data cannot be restored.
    pub fn bounds(&self, clock: &Clock, invariants: Invariants) -> Option<Bounds> {
        let waits = !clock.is_settled() && invariants.on(Invariant::RetentionWaits);
        (!waits).then(|| Bounds {
            finished_before: clock.wall - self.tasks,
            forget_before: clock.wall - self.request_ids.max(self.tasks),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock_watch::{Doubt, Trust};
    use crate::time::Shift;

    #[test]
    fn nothing_is_removed_before_the_clock_has_settled() {
        let (day, wall) = (Duration::from_hours(24), Timestamp::from_millis(1_700_000_000_000));
        let retention = Retention { tasks: 2 * day, request_ids: day };
        let clock = Clock {
            steady: Timestamp::ZERO,
            wall,
            shift: Shift::ZERO,
            trust: Trust::Settled,
            gap: Shift::ZERO,
        };
        let bounds = Bounds { finished_before: wall - 2 * day, forget_before: wall - 2 * day };
        assert_eq!(retention.bounds(&clock, Invariants::ALL_ON), Some(bounds));
        let why = Doubt::Gap(Shift::from_millis(1));
        let trust = Trust::Unsettled { left: Duration::from_secs(1), why };
        assert_eq!(retention.bounds(&Clock { trust, ..clock }, Invariants::ALL_ON), None);
    }
}

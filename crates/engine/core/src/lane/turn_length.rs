//! How long a line's turn lasts.
//!
//! Lines with keys take turns, so that no tenant waits behind another's million tasks. Taking one task of
//! each of a thousand lines is the worst order for a store, which keeps the tasks of a line together. So a
//! turn lasts for several tasks while tasks of the queue end so fast that a whole round takes a moment; where
//! tasks are slow it is one.

use std::time::Duration;

use crate::time::{Shift, Timestamp};

/// A round over all lines takes no longer than this, or a turn is one task.
const ROUND: Duration = Duration::from_millis(200);
/// The most tasks in one turn.
const TURN_MAX: u32 = 32;
/// Ends are counted over this time.
const COUNTED_OVER: Duration = Duration::from_millis(100);

/// Counts the attempts that end.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnLength {
    since: Timestamp,
    ended: u64,
    /// Ends in [`ROUND`], when they were last counted.
    in_round: u64,
}

impl TurnLength {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { since: now, ended: 0, in_round: 0 }
    }

    /// An attempt has ended.
    pub(super) fn count(&mut self, now: Timestamp) {
        self.advance(now);
        self.ended += 1;
    }

    /// The clock has stepped.
    pub(super) fn move_by(&mut self, by: Shift) {
        self.since = self.since + by;
    }

    fn advance(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed >= COUNTED_OVER {
            let in_round = u128::from(self.ended) * ROUND.as_micros() / passed.as_micros();
            self.in_round = u64::try_from(in_round).unwrap_or(u64::MAX);
            (self.since, self.ended) = (now, 0);
        }
    }

    /// How many tasks a line may take in its turn, when so many lines are ready.
    pub(super) fn tasks(&mut self, lines: usize, now: Timestamp) -> u32 {
        self.advance(now);
        let turn = self.in_round / (lines as u64).max(1);
        u32::try_from(turn).unwrap_or(TURN_MAX).clamp(1, TURN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn_length(per_second: u64) -> TurnLength {
        let mut turn_length = TurnLength::new(Timestamp::ZERO);
        for _ in 0..per_second {
            turn_length.count(Timestamp::ZERO);
        }
        turn_length.advance(Timestamp::from_millis(1_000));
        turn_length
    }

    #[test]
    fn a_round_is_over_in_a_moment() {
        let now = Timestamp::from_millis(1_000);
        for (per_second, lines, turn) in [
            (50_000, 1_000, 10),
            (50_000, 10, 32),
            (50_000, 100_000, 1),
            (10, 2, 1),
            (0, 1, 1),
            (1_000, 0, 32),
        ] {
            assert_eq!(
                turn_length(per_second).tasks(lines, now),
                turn,
                "{per_second} in a second, {lines} lines"
            );
        }
    }

    #[test]
    fn what_was_fast_once_is_forgotten() {
        let mut turn_length = turn_length(50_000);
        assert_eq!(
            turn_length.tasks(1_000, Timestamp::from_millis(1_050)),
            10,
            "not counted for long enough"
        );
        assert_eq!(turn_length.tasks(1_000, Timestamp::from_millis(1_200)), 1);
    }
}

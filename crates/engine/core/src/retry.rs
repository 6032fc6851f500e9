//! When a failed attempt is followed by another.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::time::duration_micros;

/// Exponential backoff with a cap and jitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How many attempts may follow the first one.
    #[serde(rename = "n")]
    pub max_retries: u32,
    /// Wait before the first of them.
    #[serde(rename = "d", with = "duration_micros")]
    pub delay: Duration,
    /// Each further wait is this many percent of the one before: 200 doubles it.
    #[serde(rename = "b")]
    pub backoff_percent: u32,
    /// No wait is longer.
    #[serde(rename = "x", with = "duration_micros")]
    pub delay_max: Duration,
    /// Up to this many percent of the wait are added or taken away at random.
    #[serde(rename = "j")]
    pub jitter_percent: u8,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            delay: Duration::from_secs(10),
            backoff_percent: 200,
            delay_max: Duration::from_hours(1),
            jitter_percent: 10,
        }
    }
}

impl RetryPolicy {
    /// The wait before the retry that follows `retries` earlier ones.
    pub fn wait(&self, retries: u32, rng: &mut Rng) -> Duration {
        let cap = self.delay_max.as_micros();
        let mut wait = self.delay.as_micros().min(cap);
        // Ends early once the cap is reached: at most 64 rounds even without one.
        for _ in 0..retries.min(64) {
            wait = (wait * u128::from(self.backoff_percent) / 100).min(cap);
        }
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        let spread = wait / 100 * u64::from(self.jitter_percent.min(100));
        let moved = if spread == 0 { wait } else { wait - spread + rng.below(spread.saturating_mul(2)) };
        Duration::from_micros(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_cap() {
        let policy =
            RetryPolicy { jitter_percent: 0, delay_max: Duration::from_mins(1), ..RetryPolicy::default() };
        let waits: Vec<u64> = (0..5).map(|n| policy.wait(n, &mut Rng::new(1)).as_secs()).collect();
        assert_eq!(waits, [10, 20, 40, 60, 60]);
        assert_eq!(policy.wait(u32::MAX, &mut Rng::new(1)).as_secs(), 60);
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let policy = RetryPolicy { jitter_percent: 10, ..RetryPolicy::default() };
        let mut rng = Rng::new(7);
        for _ in 0..1000 {
            let wait = policy.wait(0, &mut rng).as_millis();
            assert!((9_000..=11_000).contains(&wait), "{wait}");
        }
    }
}

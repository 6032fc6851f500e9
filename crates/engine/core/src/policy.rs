//! The policy of a queue: versioned, changed by compare-and-set, applied by the owner of the lane from the
//! commit that first names its version.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::LaneId;
use crate::retry::RetryPolicy;
use crate::task::Webhook;
use crate::time::{Timestamp, duration_micros};

/// How a queue treats its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePolicy {
    /// Nothing is assigned while set.
    pub paused: bool,
    /// Submits are refused while this many tasks wait.
    pub len_max: Option<u32>,
    /// How a worker is chosen.
    pub strategy: Strategy,
    /// Share among the queues of a lane, relative to the others.
    pub weight: u32,
    /// Limits on the attempts that are alive at once.
    pub concurrency: Vec<ConcurrencyLimit>,
    /// Limits on the attempts that start in a time.
    pub rate: Vec<RateLimit>,
    /// The unique rule of tasks that bring no unique key.
    pub unique: Option<UniqueRule>,
    /// The webhooks that receive the ends of its tasks.
    pub webhooks: Vec<Webhook>,
    /// The template of the spread key, if the queue is spread over all lanes; empty for no key. It never
    /// changes, because the binding keeps it: see [`QueueBinding`].
    pub spread: Option<String>,
    /// The retry policy of tasks that bring none.
    pub retry: RetryPolicy,
    /// The timeout of tasks that bring none.
    #[serde(with = "duration_micros")]
    pub execution_timeout: Duration,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            paused: false,
            len_max: None,
            strategy: Strategy::default(),
            weight: 1,
            concurrency: Vec::new(),
            rate: Vec::new(),
            unique: None,
            webhooks: Vec::new(),
            spread: None,
            retry: RetryPolicy::default(),
            execution_timeout: Duration::from_mins(5),
        }
    }
}

/// A policy with its version. Version 0 is the default policy, which is not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionedPolicy {
    /// Rises by one with every change.
    pub version: u64,
    /// The policy.
    pub policy: QueuePolicy,
}

/// The choice among the workers that can run a task and have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Any worker.
    Random,
    /// The workers in turn.
    RoundRobin,
    /// The worker with the smallest share of its capacity in use.
    #[default]
    LeastLoad,
    /// The workers in turn, in proportion to their weights.
    Weighted,
    /// Tasks with the same hash key go to the same worker (rendezvous hashing). Without a key a task goes by
    /// its id.
    ConsistentHash {
        /// The behaviour while that worker has no room.
        when_full: WhenFull,
    },
}

/// The behaviour of consistent hashing while the chosen worker has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenFull {
    /// Wait for it.
    #[default]
    Wait,
    /// Take the next one.
    Next,
}

/// A limit of a queue on how many attempts are alive at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcurrencyLimit {
    /// Template of the key that tasks are counted by; `None` counts all tasks of the queue together.
    pub key: Option<String>,
    /// How many.
    pub concurrency: Concurrency,
}

/// A limit of a queue on how many attempts are assigned in a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Template of the key that tasks are counted by; `None` counts all tasks of the queue together.
    pub key: Option<String>,
    /// How many.
    pub rate: Rate,
}

/// How many attempts of a key may be alive at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// At most this many.
    pub limit: u32,
    /// The fate of tasks above the limit.
    pub when_reached: WhenReached,
}

/// The fate of tasks above a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenReached {
    /// They wait.
    #[default]
    Wait,
    /// No more tasks than the limit wait or run: the newest that never ran are cancelled.
    CancelNewest,
}

/// A rule for unique keys: of tasks with the same key there is one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueRule {
    /// Template of the key.
    pub key: String,
    /// For how long a task holds its key; `None` until it has finished.
    #[serde(with = "duration_micros::option")]
    pub hold_for: Option<Duration>,
}

/// A rate: `limit` assignments in each `per`, up to `burst` of them at once. Kept as one time per key (GCRA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// How many.
    pub limit: u32,
    /// The span of time.
    #[serde(with = "duration_micros")]
    pub per: Duration,
    /// How many at once after a quiet time.
    pub burst: u32,
}

impl Rate {
    /// The time that one assignment takes out of the rate: rounded up to what times are counted in, so that
    /// rounding never lets one more through.
    pub fn interval(&self) -> Duration {
        let micros = self.per.as_micros().div_ceil(u128::from(self.limit.max(1))).max(1);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// An assigned task may start this much later and still counts as started when it was assigned.
    pub const AHEAD: Duration = Duration::from_millis(100);

    /// How many assigned tasks may wait for their start: as many as the burst allows, or as come in
    /// [`AHEAD`](Self::AHEAD).
    pub fn ahead(&self) -> u32 {
        let soon = u128::from(self.limit) * Self::AHEAD.as_micros() / self.per.as_micros().max(1);
        self.burst.max(u32::try_from(soon).unwrap_or(u32::MAX)).max(1)
    }

    fn tolerance(&self) -> Duration {
        self.interval() * self.burst.max(1).saturating_sub(1)
    }

    /// The stored time, cut to a possible one: it never lies further ahead than a full bucket, so a time from
    /// an owner whose clock was ahead does not block the key for longer than that.
    pub fn settle(&self, stored: Timestamp, now: Timestamp) -> Timestamp {
        stored.min(now + self.tolerance() + self.interval())
    }

    /// When the next assignment is allowed, given the stored time of the last one.
    pub fn next_at(&self, stored: Timestamp) -> Timestamp {
        stored - self.tolerance()
    }

    /// The time to store when an assignment happens at `now`.
    pub fn after(&self, stored: Timestamp, now: Timestamp) -> Timestamp {
        stored.max(now) + self.interval()
    }
}

/// The lane or lanes of a queue. Stored at the queue's first use and never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueBinding {
    /// All to one lane.
    Lane(LaneId),
    /// Over this many lanes, by a key of each task.
    Spread {
        /// How many lanes there were at the queue's first use.
        lanes: u16,
        /// Template of the key.
        key: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_allows_the_burst_and_then_one_per_interval() {
        let rate = Rate { limit: 10, per: Duration::from_secs(1), burst: 3 };
        let mut stored = Timestamp::ZERO;
        let mut starts = Vec::new();
        for ms in 1_000..2_000 {
            let now = Timestamp::from_millis(ms);
            while rate.next_at(stored) <= now {
                stored = rate.after(stored, now);
                starts.push(ms);
            }
        }
        assert_eq!(starts[..5], [1000, 1000, 1000, 1100, 1200]);
        assert_eq!(starts.len(), 12);
    }

    /// Counted by hand, not by the arithmetic under test.
    #[test]
    fn no_window_has_more_starts_than_the_rate_allows() {
        for (limit, burst) in [(3, 1), (7, 1), (7, 3), (999, 2)] {
            let rate = Rate { limit, per: Duration::from_secs(1), burst };
            let (mut stored, mut now) = (Timestamp::ZERO, Timestamp::from_millis(5_000));
            let mut starts = Vec::new();
            while starts.len() < 4 * usize::try_from(limit).unwrap() {
                now = now.max(rate.next_at(stored));
                stored = rate.after(stored, now);
                starts.push(now);
            }
            let most = starts
                .iter()
                .map(|from| starts.iter().filter(|at| **at >= *from && **at < *from + rate.per).count());
            let allowed = usize::try_from(limit + burst - 1).unwrap();
            assert_eq!(most.max(), Some(allowed), "{limit} in a second, {burst} at once");
        }
    }

    #[test]
    fn a_stored_time_far_ahead_does_not_block_for_ever() {
        let rate = Rate { limit: 1, per: Duration::from_secs(1), burst: 1 };
        let now = Timestamp::from_millis(0);
        let settled = rate.settle(Timestamp::from_millis(3_600_000), now);
        assert_eq!(rate.next_at(settled), Timestamp::from_millis(1000));
    }
}

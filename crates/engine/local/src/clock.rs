//! Where the coordinator's time comes from.

use std::fmt;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tasklane_core::time::Timestamp;

/// Two clocks, which tests move apart.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some moment. It runs evenly, also while the machine sleeps, and never goes backwards. Leases are
    /// measured by it alone.
    fn steady(&self) -> Timestamp;

    /// The time of day. It may jump at any moment and either way, so no lease may rest on it.
    fn wall(&self) -> Timestamp;

    /// Waits until the steady clock reaches a time. The wait may end a little early, so the caller checks again.
    fn sleep_until(&self, steady: Timestamp) -> Sleep;
}

/// Waits for a time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// Goes on while the machine sleeps, where there is such a clock.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;

impl Clock for SystemClock {
    fn steady(&self) -> Timestamp {
        let now = clock_gettime(STEADY);
        let now = Duration::try_from(now).expect("time since the start is not negative");
        Timestamp::ZERO + now
    }

    fn wall(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::ZERO + now
    }

    fn sleep_until(&self, steady: Timestamp) -> Sleep {
        // The runtime's own clock stands still while the machine sleeps. Then this ends late, and whatever asks
        // meanwhile is judged by the steady time as well.
        Box::pin(tokio::time::sleep(steady.since(self.steady())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_ends_about_when_the_steady_clock_says_so() {
        let start = SystemClock.steady();
        SystemClock.sleep_until(start + Duration::from_millis(20)).await;
        assert!(SystemClock.steady().since(start) >= Duration::from_millis(19));
        SystemClock.sleep_until(start).await;
        assert!(SystemClock.wall() > Timestamp::from_millis(1_700_000_000_000));
    }
}

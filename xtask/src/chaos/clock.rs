//! The clocks that the harness and its attempts share.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started. All processes see the same, and no process sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Boot(pub(crate) u64);

impl Boot {
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let micros = time.tv_sec * 1_000_000 + time.tv_nsec / 1000;
        Self(u64::try_from(micros).unwrap_or(0))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Microseconds since 1970, as the API gives times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wall(pub(crate) i64);

impl Wall {
    pub(crate) fn now() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
    }
}

//! The clocks. The machines never ask for the time; their drivers do, here.

use rustix::time::{ClockId, clock_gettime};
use tasklane_core::time::Timestamp;
use tokio::time::{Duration, Instant};

/// The steady clock: goes on while the machine sleeps, never jumps. Counts from when the machine was started.
pub fn steady() -> Timestamp {
    read(ClockId::Boottime)
}

/// The wall clock, in UTC. May jump.
pub fn wall() -> Timestamp {
    read(ClockId::Realtime)
}

/// When a timer that is due at `at` of the steady clock should ring.
pub fn instant(at: Timestamp) -> Instant {
    // Timers round to milliseconds; one that rings early would only be armed again.
    Instant::now() + at.since(steady()).min(FAR)
}

/// Further ahead no timer is set: it rings once in a while, for nothing.
const FAR: Duration = Duration::from_hours(24);

fn read(clock: ClockId) -> Timestamp {
    let time = clock_gettime(clock);
    Timestamp::from_micros(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
}

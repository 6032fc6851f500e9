//! The clocks. The machines never read the time; their drivers read it here.
//!
//! Every reading of the wall clock passes through the clock watch of the process, so that no decision uses a
//! time whose step was not noticed. See `tasklane_core::clock_watch`.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use tasklane_core::clock_watch::{AGREES_WITHIN, Clock, ClockWatch, Reading, Reference, SETTLE_TIME, Trust};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::Coordinator;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use uuid::Uuid;

/// How often the watch reads the clocks while no caller reads them.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The longest time between the readings of the two clocks. A longer one may hide a step, since the thread
/// had to wait in between.
const PAIR_WITHIN: Duration = Duration::from_millis(1);
/// How often a pair of readings is tried.
const PAIR_TRIES: usize = 10;

/// The steady clock: goes on while the machine sleeps, never jumps. Counts from when the machine was started.
pub fn steady() -> Timestamp {
    read(ClockId::Boottime)
}

/// The wall clock, in UTC, corrected by the reference where there is one. May jump.
pub fn wall() -> Timestamp {
    now().wall
}

/// Both clocks, every step of the wall clock so far, and whether it is trusted.
pub fn now() -> Clock {
    observe(ClockWatch::read)
}

/// Compares the clocks with the answer of the reference.
pub fn compare(reference: Reference) -> Clock {
    observe(|watch, reading| watch.compare(reading, reference))
}

/// Starts the watch of a server, with the last time that its store has seen.
pub fn started(last_known: Timestamp) -> Clock {
    observe(|watch, reading| watch.started(reading, last_known))
}

/// How long the clock takes to settle.
pub fn settle_within(time: Duration) {
    observe(|watch, reading| {
        watch.settle_within(time);
        watch.read(reading)
    });
}

/// Follows the sum of all steps: changes with each.
pub fn steps() -> watch::Receiver<Shift> {
    lock().told.subscribe()
}

/// The state of the wall clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct ClockState {
    /// The clocks now.
    pub clock: Clock,
    /// By how much the reference is ahead of this machine; `None` where there is none.
    pub offset: Option<Shift>,
    /// How many steps were seen.
    pub steps: u64,
}

/// The state of the wall clock of this machine.
pub fn state() -> ClockState {
    let clock = now();
    let process = lock();
    ClockState { clock, offset: process.watch.offset(), steps: process.watch.steps() }
}

/// Notices steps also while no caller reads the time, and compares the clock with the coordinator's. Never
/// returns.
pub(crate) async fn keep_watching(coordinator: Arc<dyn Coordinator>) {
    let mut ticks = tokio::time::interval(WATCH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match coordinator.clock() {
            Some(reference) => compare(reference),
            None => now(),
        };
    }
}

/// The start from which the steady clock counts: each start of the machine has another id.
pub fn boot_id() -> Uuid {
    static BOOT: LazyLock<Uuid> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        #[cfg(feature = "test-clock")]
        let text = crate::test_clock::boot_id().unwrap_or(text);
        // A random id never equals the id of another start.
        text.trim().parse().unwrap_or_else(|_| Uuid::from_u128(rand::random()))
    });
    *BOOT
}

/// When a timer fires that is due at `at` of the steady clock.
pub fn instant(at: Timestamp) -> Instant {
    // Timers round to milliseconds; a timer that fires early would only be armed again.
    Instant::now() + at.since(steady()).min(FAR)
}

/// The longest time of a timer. A timer that is due later fires meanwhile without effect.
const FAR: Duration = Duration::from_hours(24);

fn read(clock: ClockId) -> Timestamp {
    let time = clock_gettime(clock);
    Timestamp::from_micros(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
}

/// The watch of this process.
struct Process {
    watch: ClockWatch,
    told: watch::Sender<Shift>,
    logged: Logged,
    #[cfg(feature = "test-clock")]
    moved: crate::test_clock::TestClock,
}

/// The messages that were logged, so that each is logged once.
#[derive(Clone, Copy, Default)]
struct Logged {
    steps: u64,
    is_off: bool,
}

static PROCESS: LazyLock<Mutex<Process>> = LazyLock::new(|| {
    Mutex::new(Process {
        watch: ClockWatch::new(SETTLE_TIME),
        told: watch::Sender::new(Shift::ZERO),
        logged: Logged::default(),
        #[cfg(feature = "test-clock")]
        moved: crate::test_clock::TestClock::default(),
    })
});

fn lock() -> std::sync::MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn observe(take: impl FnOnce(&mut ClockWatch, Reading) -> Clock) -> Clock {
    let (clock, before, after, offset) = {
        let mut process = lock();
        let reading = process.reading();
        let clock = take(&mut process.watch, reading);
        process.told.send_if_modified(|told| std::mem::replace(told, clock.shift) != clock.shift);
        let offset = process.watch.offset();
        let is_off = offset.map_or(process.logged.is_off, |offset| offset.abs() > AGREES_WITHIN);
        let logged = Logged { steps: process.watch.steps(), is_off };
        (clock, std::mem::replace(&mut process.logged, logged), logged, offset)
    };
    if after.steps > before.steps {
        match clock.trust {
            Trust::Unsettled { left, why } => tracing::warn!(
                "{why}: absolute times follow it, durations keep their length, and steps that cannot be \
                 undone wait for {left:?}"
            ),
            Trust::Settled => tracing::info!("a clock stepped, and agrees with the coordinator's"),
        }
    }
    match (before.is_off, after.is_off, offset) {
        (false, true, Some(offset)) => tracing::warn!(
            %offset,
            "the clock of this machine is wrong: the coordinator's is this far ahead of it, and due times follow that; \
            set the clock of this machine, or of the coordinator, right"
        ),
        (true, false, Some(offset)) => tracing::info!(%offset, "the clock of this machine is right again"),
        _ => {}
    }
    clock
}

impl Process {
    /// Both clocks, as near to each other as they can be read.
    fn reading(&mut self) -> Reading {
        let mut best = (Duration::MAX, Reading { steady: Timestamp::ZERO, wall: Timestamp::ZERO });
        for _ in 0..PAIR_TRIES {
            let (before, wall, after) = (steady(), read(ClockId::Realtime), steady());
            let apart = after.since(before);
            if apart < best.0 {
                best = (apart, Reading { steady: after, wall });
            }
            if apart <= PAIR_WITHIN {
                break;
            }
        }
        let (_, mut reading) = best;
        self.move_wall(&mut reading);
        reading
    }

    #[cfg(feature = "test-clock")]
    fn move_wall(&mut self, reading: &mut Reading) {
        reading.wall = reading.wall + self.moved.shift(reading.steady);
    }

    #[cfg(not(feature = "test-clock"))]
    #[expect(clippy::unused_self, reason = "only tests move the clock")]
    fn move_wall(&mut self, _: &mut Reading) {}
}

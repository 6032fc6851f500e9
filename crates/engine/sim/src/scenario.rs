//! The scenario of a seed: its numbers of processes and tasks, and its faults.

use std::time::Duration;

use tasklane_core::clock_watch::{AGREES_WITHIN, GAP_MAX};
use tasklane_core::id::TaskId;
use tasklane_core::invariant::Invariants;
use tasklane_core::lane::LaneOptions;
use tasklane_core::ownership::{OwnershipOptions, PackLimits};
use tasklane_core::retention::Retention;
use tasklane_core::rng::Rng;
use tasklane_core::worker::WorkerOptions;

/// One simulated run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of trouble of its own")]
pub struct Scenario {
    /// Decides everything.
    pub seed: u64,
    /// Which invariants are on.
    pub invariants: Invariants,
    /// Servers, each an API and a scheduler.
    pub servers: usize,
    /// Workers.
    pub workers: usize,
    /// Lanes.
    pub lanes: u16,
    /// Tasks that clients submit.
    pub tasks: usize,
    /// The wall clocks of servers differ, each from all others. Durations cannot be checked then.
    pub clock_jumps: bool,
    /// The coordinator has a clock, and each server corrects its own by that. Only where the clocks of servers differ.
    pub reference: bool,
    /// The wall clock of all servers steps.
    pub clock_steps: bool,
    /// The steps are hours and days, not seconds. No task then runs at a time of day, and the run does not
    /// wait for schedules: it would take days. The clock never
    /// stays wrong for as long as it takes to settle, because a server believes it then.
    pub far_steps: bool,
    /// Each server runs on a machine of its own, so no server reads the steady clock of another one.
    pub machines_apart: bool,
    /// Chance of losing a message, in percent.
    pub loss: u64,
    /// Chance of repeating one.
    pub repeat: u64,
    /// Chance of delaying one for up to a minute (and a few of them for an hour).
    pub late: u64,
    /// Chance that a commit's outcome is unknown.
    pub unknown: u64,
    /// Small windows, so that everything is paged.
    pub tiny_windows: bool,
    /// How long a parked lane rests.
    pub park_for: Duration,
    /// The report records the story of this task.
    pub trace: Option<TaskId>,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64, invariants: Invariants) -> Self {
        let mut rng = Rng::new(seed ^ 0x7a5c_1a9e);
        let between = |rng: &mut Rng, low: u64, high: u64| low + rng.below(high - low + 1);
        let clock = between(&mut rng, 0, 99);
        let count = |rng: &mut Rng, low, high| usize::try_from(between(rng, low, high)).unwrap_or(0);
        Self {
            seed,
            invariants,
            servers: count(&mut rng, 2, 3),
            workers: count(&mut rng, 3, 5),
            lanes: u16::try_from(between(&mut rng, 1, 3)).unwrap_or(1),
            // The store refuses a few, because a queue is full.
            tasks: count(&mut rng, 120, 150),
            clock_jumps: clock < 25,
            reference: clock < 12,
            clock_steps: clock >= 50,
            far_steps: clock >= 75,
            machines_apart: seed.is_multiple_of(2),
            loss: [0, 1, 5, 15][rng.index(4)],
            repeat: [0, 2, 10, 20][rng.index(4)],
            late: [0, 1, 3, 8][rng.index(4)],
            unknown: [1, 3, 8][rng.index(3)],
            tiny_windows: rng.chance(40),
            park_for: Duration::from_secs(between(&mut rng, 3, 15)),
            trace: None,
        }
    }

    /// How long a worker session lives without renewal.
    pub const WORKER_TTL: Duration = Duration::from_secs(15);
    /// How long a server session lives without renewal.
    pub const SERVER_TTL: Duration = Duration::from_secs(5);
    /// How many attempts of a task may be lost after they had started.
    pub const LOST_MAX: u32 = 3;
    /// How many attempts of a task may be lost before they had started.
    pub const LOST_BEFORE_START_MAX: u32 = 3;

    /// How long a wall clock takes to settle.
    pub const SETTLE_TIME: Duration = Duration::from_secs(16);
    /// The longest step of a clock that does not step by hours or days.
    pub const NEAR_STEP_MAX: Duration = Duration::from_mins(2);

    /// Whether the wall clocks of servers differ, and no reference corrects them.
    pub fn clocks_differ(&self) -> bool {
        self.clock_jumps && !self.reference
    }

    /// The largest error of the wall clock that a server may not notice. A server that starts within an hour of the time
    /// that the store knows of trusts its clock.
    pub fn unseen_step_max(&self) -> Duration {
        match (self.clock_jumps, self.clock_steps) {
            (true, _) if self.reference => AGREES_WITHIN,
            (true, _) => 2 * Self::NEAR_STEP_MAX,
            (false, true) if self.far_steps => GAP_MAX + Self::NEAR_STEP_MAX,
            (false, true) => Self::NEAR_STEP_MAX,
            (false, false) => Duration::ZERO,
        }
    }

    /// How long finished tasks are kept: long enough for every repeated request, whatever the clock does.
    pub fn retention(&self) -> Retention {
        let unseen = self.unseen_step_max();
        Retention { tasks: Duration::from_secs(40) + unseen, request_ids: Duration::from_secs(160) + unseen }
    }

    /// Options of the scheduler.
    pub fn ownership(&self) -> OwnershipOptions {
        let mut lane = LaneOptions {
            lost_max: Self::LOST_MAX,
            lost_before_start_max: Self::LOST_BEFORE_START_MAX,
            resend_after: Duration::from_millis(1500),
            // The values range from a second commit for every write to almost none.
            ahead: 1 + usize::try_from(self.seed % 8).expect("a small number"),
            invariants: self.invariants,
            ..LaneOptions::default()
        };
        if self.tiny_windows {
            lane.window = 4;
            lane.delayed_window = 4;
            lane.page = 3;
            lane.lines_max = 6;
            lane.tasks_max = 16;
            lane.line_reads = 2;
            lane.batch = 16;
        }
        OwnershipOptions {
            lane,
            // All servers are on one machine, which never reboots.
            boot: 1,
            pack: PackLimits { ops_max: 128, bytes_max: 5 << 18 },
            commit_tries_max: 20,
            park_for: self.park_for,
            steady_after: Duration::from_secs(15),
            ..OwnershipOptions::default()
        }
    }

    /// Options of a worker.
    pub fn worker(&self, capacity: u32) -> WorkerOptions {
        WorkerOptions {
            capacity,
            prefetch: 2,
            // In half of the worlds few attempts may wait at a worker, so that work is spread.
            prefetch_max: if self.seed.is_multiple_of(2) { 6 } else { 0 },
            prefetch_for: Duration::from_secs(2),
            surplus: 0,
            silent_after: 1,
            lanes: self.lanes,
            ttl: Self::WORKER_TTL,
            fence_margin: Duration::from_secs(3),
            renew_every: Duration::from_secs(3),
            heartbeat_every: Duration::from_secs(2),
            invariants: self.invariants,
            ..WorkerOptions::default()
        }
    }
}

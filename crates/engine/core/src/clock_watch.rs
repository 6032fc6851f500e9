//! Watches the wall clock of a process: notices its steps, corrects it by a reference, and decides whether it
//! is trusted.
//!
//! The steady clock (`CLOCK_BOOTTIME`) never jumps, so the distance between the two clocks shows every step
//! of the wall clock. Small changes of that distance are slewing: time services bring a clock right by
//! running it a little faster or slower, and the wall time simply follows.
//!
//! A store or coordinator with a clock of its own serves as the reference of all servers. The watch then
//! follows the reference: a step of the local clock alone moves nothing, because the corrected wall time goes
//! on evenly until the reference itself differs. Without a reference the wall time follows the local clock at
//! once.
//!
//! ```text
//!   local clock    ──────┐ step of 10 days ┌──────       corrected wall time = local clock + correction
//!                        └─────────────────┘
//!   with reference ──────────────────────────────       no step: the correction takes it up
//!   without        ──────┐                 ┌──────       two steps: `shift` rises by 10 days, then falls by 10 days
//!                        └─────────────────┘
//! ```
//! Work that cannot be undone (removing finished tasks, forgetting request ids, expiring locks, making up for
//! missed times) waits while the clock is not [settled](Trust): a clock that jumped once may soon jump back.
//! A reference that agrees ends the wait, unless it has just stepped itself: a store on this machine shares
//! its clock.

use std::fmt;
use std::time::Duration;

use crate::time::{Shift, Timestamp};

/// The watch takes a smaller change of the distance between the clocks for slewing.
pub const STEP_MIN: Duration = Duration::from_millis(500);
/// The kernel slews by at most 500 ppm: one part in this many.
const SLEW_PARTS: u32 = 2000;
/// A reference agrees if it differs by no more than this.
pub const AGREES_WITHIN: Duration = Duration::from_secs(2);
/// The watch suspects the clock if a server starts further than this from the last time in the store.
pub const GAP_MAX: Duration = Duration::from_hours(1);
/// How long a clock takes to settle, unless a setting says otherwise.
pub const SETTLE_TIME: Duration = Duration::from_mins(10);
/// The watch ignores an answer of the reference that took longer.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);
/// The watch uses the last answer of a reference for this long.
const HOLD_ON: Duration = Duration::from_mins(5);

/// Both clocks of the machine, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The steady clock.
    pub steady: Timestamp,
    /// The wall clock.
    pub wall: Timestamp,
}

/// An answer of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The steady time before the reference was asked.
    pub asked: Timestamp,
    /// The steady time after it answered.
    pub answered: Timestamp,
    /// Its wall time, at some moment between these.
    pub wall: Timestamp,
}

/// The clocks as the watch judges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The steady time.
    pub steady: Timestamp,
    /// The wall time, corrected by the reference.
    pub wall: Timestamp,
    /// The sum of all steps of the corrected wall time. A reader that remembers the last sum finds every
    /// step, however seldom it looks: durations shift by the difference.
    pub shift: Shift,
    /// Whether destructive work may be done.
    pub trust: Trust,
    /// While the clock is not settled: how far it was ahead of the last time that the store knew of when the server started.
    /// Unique keys are judged by a time that is this much earlier, so that a wrong clock expires none of them.
    pub gap: Shift,
}

impl Clock {
    /// Whether destructive work may be done.
    pub fn is_settled(&self) -> bool {
        self.trust == Trust::Settled
    }
}

/// Whether destructive work may rest on the wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Destructive work may run.
    Settled,
    /// Destructive work waits.
    Unsettled {
        /// How long the wait lasts if the clocks do not step again.
        left: Duration,
        /// The reason.
        why: Doubt,
    },
}

/// Why the wall time is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A clock stepped: the machine's or the reference's.
    Step(Shift),
    /// The server started this long after (or before) the last time in the store.
    Gap(Shift),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(by) => write!(f, "a clock stepped by {by}"),
            Self::Gap(by) => {
                write!(f, "this server started {by} from the last time that the store knows of")
            }
        }
    }
}

/// Watches the clocks of a process. See the [module](self).
#[derive(Clone, Debug)]
pub struct ClockWatch {
    settle: Duration,
    last: Option<Reading>,
    correction: Shift,
    reference: Option<ReferenceOffset>,
    /// When the reference itself stepped last. It may share the clock of this machine, so its agreement ends
    /// no doubt until it has settled as well.
    reference_stepped_at: Option<Timestamp>,
    shift: Shift,
    steps: u64,
    doubt: Option<(Timestamp, Doubt)>,
    /// The gap of the start. It outlasts the steps that follow: one of them may set the clock right.
    gap: Shift,
}

/// The last answer of the reference.
#[derive(Clone, Copy, Debug)]
struct ReferenceOffset {
    at: Timestamp,
    /// By how much the reference is ahead of the machine's clock.
    offset: Shift,
}

impl ClockWatch {
    /// A watch that waits this long after a step. It trusts the clock until it sees a reason for doubt.
    pub fn new(settle: Duration) -> Self {
        Self {
            settle,
            last: None,
            correction: Shift::ZERO,
            reference: None,
            reference_stepped_at: None,
            shift: Shift::ZERO,
            steps: 0,
            doubt: None,
            gap: Shift::ZERO,
        }
    }

    /// Changes the wait after a step, also for a step already seen.
    pub fn settle_within(&mut self, settle: Duration) {
        self.settle = settle;
    }

    /// Takes in a reading. Readings come in the order of the steady clock.
    pub fn read(&mut self, now: Reading) -> Clock {
        if let Some(last) = self.last {
            let elapsed = now.steady.since(last.steady);
            let moved = now.wall.shift_from(last.wall + elapsed);
            if moved.abs() > STEP_MIN + elapsed / SLEW_PARTS {
                self.on_local_step(now, moved);
            }
        }
        self.last = Some(now);
        self.clock(now)
    }

    /// Takes in an answer of the reference; a repeated answer does no harm.
    pub fn compare(&mut self, now: Reading, reference: Reference) -> Clock {
        self.read(now);
        let round_trip = reference.answered.since(reference.asked);
        if round_trip > ROUND_TRIP_MAX || now.steady.since(reference.answered) > HOLD_ON {
            return self.clock(now);
        }
        let theirs = reference.wall + now.steady.since(reference.asked + round_trip / 2);
        let offset = theirs.shift_from(now.wall);
        let known = self.reference.replace(ReferenceOffset { at: reference.answered, offset });
        let moved = offset - self.correction;
        if moved.abs() > STEP_MIN {
            self.correction = offset;
            self.shift = self.shift + moved;
            self.doubt_from(now.steady, Doubt::Step(moved));
            if known.is_some() {
                self.reference_stepped_at = Some(now.steady);
            }
        }
        let has_settled = |at: Timestamp| now.steady.since(at) >= self.settle;
        if offset.abs() <= AGREES_WITHIN && self.reference_stepped_at.is_none_or(has_settled) {
            self.doubt = None;
        }
        self.clock(now)
    }

    /// Takes in the last time in the store when a server starts.
    pub fn started(&mut self, now: Reading, last_known: Timestamp) -> Clock {
        let clock = self.read(now);
        let gap = clock.wall.shift_from(last_known);
        let agrees = self.reference.is_some_and(|compared| compared.offset.abs() <= AGREES_WITHIN);
        if gap.abs() > GAP_MAX && !agrees {
            self.doubt = Some((now.steady, Doubt::Gap(gap)));
            self.gap = gap.max(Shift::ZERO);
        }
        self.clock(now)
    }

    /// By how much the reference was ahead of the machine's clock when it answered last.
    pub fn offset(&self) -> Option<Shift> {
        self.reference.map(|compared| compared.offset)
    }

    /// How many steps were seen, of the machine's clock and of the reference's.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn on_local_step(&mut self, now: Reading, moved: Shift) {
        let is_known = self.reference.is_some_and(|compared| now.steady.since(compared.at) <= HOLD_ON);
        // The last answer of the reference explains such a step even if the reference is silent by now: the
        // machine was set right.
        let is_nearer = (self.correction - moved).abs() < self.correction.abs();
        if is_known || is_nearer {
            // The reference is assumed not to have stepped; its next answer corrects this if it did.
            self.correction = self.correction - moved;
            if let Some(compared) = &mut self.reference {
                compared.offset = compared.offset - moved;
            }
        } else {
            self.reference = None;
            self.shift = self.shift + moved;
        }
        self.doubt_from(now.steady, Doubt::Step(moved));
    }

    fn doubt_from(&mut self, steady: Timestamp, doubt: Doubt) {
        if self.trust(steady) == Trust::Settled {
            self.gap = Shift::ZERO;
        }
        self.steps += 1;
        self.doubt = Some((steady, doubt));
    }

    fn clock(&self, now: Reading) -> Clock {
        let trust = self.trust(now.steady);
        let gap = if trust == Trust::Settled { Shift::ZERO } else { self.gap };
        Clock { steady: now.steady, wall: now.wall + self.correction, shift: self.shift, trust, gap }
    }

    fn trust(&self, steady: Timestamp) -> Trust {
        self.doubt.map_or(Trust::Settled, |(since, why)| match self.settle.checked_sub(steady.since(since)) {
            None | Some(Duration::ZERO) => Trust::Settled,
            Some(left) => Trust::Unsettled { left, why },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600 * 1000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn ms(millis: i64) -> Shift {
        Shift::from_millis(millis)
    }

    /// A machine whose wall clock is this far from its steady clock.
    struct Machine {
        watch: ClockWatch,
        wall_at_zero: i64,
    }

    impl Machine {
        fn new() -> Self {
            Self { watch: ClockWatch::new(SETTLE_TIME), wall_at_zero: 1000 * DAY }
        }

        fn reading(&self, steady: i64) -> Reading {
            Reading { steady: at(steady), wall: at(self.wall_at_zero + steady) }
        }

        fn read(&mut self, steady: i64) -> Clock {
            self.watch.read(self.reading(steady))
        }

        /// A reference answers; its clock was never moved.
        fn compare(&mut self, steady: i64, off: i64) -> Clock {
            let wall = at(1000 * DAY + off + steady - 5);
            let reference = Reference { asked: at(steady - 10), answered: at(steady), wall };
            self.watch.compare(self.reading(steady), reference)
        }
    }

    #[test]
    fn a_step_is_seen_with_its_size_and_direction() {
        let mut machine = Machine::new();
        assert!(machine.read(0).is_settled());
        machine.wall_at_zero += 10 * DAY;
        let clock = machine.read(1000);
        assert_eq!((clock.shift, clock.wall), (ms(10 * DAY), at(1010 * DAY + 1000)));
        let Trust::Unsettled { left: SETTLE_TIME, why } = clock.trust else { panic!("{clock:?}") };
        assert_eq!(why, Doubt::Step(ms(10 * DAY)));
        machine.wall_at_zero -= 11 * DAY;
        assert_eq!(machine.read(2000).shift, ms(-DAY));
        assert_eq!(machine.watch.steps(), 2);
    }

    #[test]
    fn the_clock_settles_after_ten_minutes_without_another_step() {
        let mut machine = Machine::new();
        machine.read(0);
        machine.wall_at_zero += DAY;
        assert!(!machine.read(1000).is_settled());
        assert!(!machine.read(600_999).is_settled());
        assert!(machine.read(601_000).is_settled());
        machine.wall_at_zero -= DAY;
        assert!(!machine.read(602_000).is_settled());
        assert!(!machine.read(1_201_999).is_settled());
        assert!(machine.read(1_202_000).is_settled());
    }

    #[test]
    fn slewing_and_late_readings_are_no_step() {
        let mut machine = Machine::new();
        for second in 0..1000 {
            machine.wall_at_zero += 83;
            assert_eq!(machine.read(second * 1000).shift, Shift::ZERO);
        }
        // A machine that slept for ten hours, with a clock that runs 400 ppm fast.
        machine.wall_at_zero += 36_000 * 400 / 1000;
        let clock = machine.read(37_000_000);
        assert!(clock.is_settled() && clock.shift == Shift::ZERO);
        assert_eq!(clock.wall, at(machine.wall_at_zero + 37_000_000));
    }

    #[test]
    fn a_reference_holds_the_wall_time_over_a_step() {
        let mut machine = Machine::new();
        assert!(machine.compare(1000, 0).is_settled());
        machine.wall_at_zero += 10 * DAY;
        let clock = machine.read(1500);
        assert_eq!((clock.wall, clock.shift), (at(1000 * DAY + 1500), Shift::ZERO));
        assert!(!clock.is_settled());
        let clock = machine.compare(2000, 0);
        assert_eq!((clock.wall, clock.shift), (at(1000 * DAY + 2000), Shift::ZERO));
        assert_eq!(machine.watch.offset(), Some(ms(-10 * DAY)));
        assert!(!clock.is_settled(), "the reference does not agree with the machine");
        machine.wall_at_zero -= 10 * DAY;
        assert!(machine.compare(3000, 0).is_settled(), "the reference agrees");
        assert_eq!(machine.read(3500).shift, Shift::ZERO);
    }

    #[test]
    fn a_reference_that_steps_as_well_is_followed() {
        let mut machine = Machine::new();
        machine.compare(1000, 0);
        machine.wall_at_zero += 60_000;
        assert_eq!(machine.read(1100).shift, Shift::ZERO);
        let clock = machine.compare(2000, 60_000);
        assert_eq!((clock.wall, clock.shift), (at(1000 * DAY + 62_000), ms(60_000)));
        assert!(!clock.is_settled(), "the store runs on this machine, perhaps, and has its clock");
        assert!(!machine.compare(601_999, 60_000).is_settled());
        assert!(machine.compare(602_000, 60_000).is_settled());
    }

    #[test]
    fn a_wrong_clock_is_corrected_from_the_first_comparison() {
        let mut machine = Machine::new();
        machine.wall_at_zero += 3_600_000;
        assert_eq!(machine.read(0).wall, at(1000 * DAY + 3_600_000));
        let clock = machine.compare(1000, 0);
        assert_eq!((clock.wall, clock.shift), (at(1000 * DAY + 1000), ms(-3_600_000)));
        assert!(!clock.is_settled());
        assert!(machine.compare(601_000, 0).is_settled());
    }

    #[test]
    fn an_answer_that_took_long_says_nothing() {
        let mut machine = Machine::new();
        let reference = Reference { asked: at(0), answered: at(501), wall: at(0) };
        let clock = machine.watch.compare(machine.reading(501), reference);
        assert!(clock.is_settled() && clock.shift == Shift::ZERO && machine.watch.offset().is_none());
    }

    #[test]
    fn a_reference_that_is_silent_does_not_hold_the_clock_for_ever() {
        let mut machine = Machine::new();
        machine.compare(1000, 0);
        machine.read(400_000);
        machine.wall_at_zero += DAY;
        assert_eq!(machine.read(401_000).shift, ms(DAY));
        assert_eq!(machine.watch.offset(), None);
    }

    /// The correction stayed, so that the wall time was wrong by ten days once the machine was right.
    #[test]
    fn a_machine_that_is_set_right_while_the_reference_is_silent_is_right() {
        let mut machine = Machine::new();
        machine.wall_at_zero += 10 * DAY;
        machine.compare(1000, 0);
        machine.read(400_000);
        machine.wall_at_zero -= 10 * DAY;
        let clock = machine.read(401_000);
        assert_eq!((clock.wall, clock.shift), (at(1000 * DAY + 401_000), ms(-10 * DAY)));
        machine.wall_at_zero += DAY;
        assert_eq!(machine.read(402_000).wall, at(1001 * DAY + 402_000));
    }

    #[test]
    fn a_start_long_after_the_last_known_time_waits_unless_the_reference_agrees() {
        let mut machine = Machine::new();
        assert!(machine.watch.started(machine.reading(0), at(1000 * DAY - 3_600_000)).is_settled());
        let clock = machine.watch.started(machine.reading(0), at(1000 * DAY - 3_600_001));
        assert!(matches!(clock.trust, Trust::Unsettled { why: Doubt::Gap(gap), .. } if gap == ms(3_600_001)));
        assert!(!machine.read(599_999).is_settled());
        assert!(machine.read(600_000).is_settled());
        assert!(!machine.watch.started(machine.reading(600_000), at(1001 * DAY)).is_settled());
        assert!(machine.compare(601_000, 1900).is_settled());
        assert!(machine.watch.started(machine.reading(601_000), at(1001 * DAY)).is_settled());
    }

    #[test]
    fn the_gap_of_a_start_counts_until_the_clock_has_settled_over_steps_too() {
        let mut machine = Machine::new();
        assert_eq!(machine.watch.started(machine.reading(0), at(990 * DAY)).gap, ms(10 * DAY));
        machine.wall_at_zero -= 10 * DAY;
        let clock = machine.read(1000);
        assert_eq!((clock.shift, clock.gap), (ms(-10 * DAY), ms(10 * DAY)));
        assert_eq!(machine.read(601_000).gap, Shift::ZERO);
        machine.wall_at_zero += DAY;
        assert_eq!(machine.read(602_000).gap, Shift::ZERO, "the gap is believed by now");
        // Behind the last known time no key expires early.
        assert_eq!(machine.watch.started(machine.reading(603_000), at(1100 * DAY)).gap, Shift::ZERO);
    }
}

//! When schedules fire.
//!
//! A [`When`] is what a user writes: a cron expression, an interval or a single time. [`Times`] is the same, checked and
//! bound to a time zone; it answers which fire time comes after a given moment. Everything here is pure: no clock, no
//! I/O, and the time zone database is part of the program, so the answer is the same on every machine.
//!
//! Clocks that go forward or back are the hard part; `zone.rs` handles them.

mod alerts;
mod clock_steps;
mod cron;
mod decide;
mod dialect;
mod fields;
mod names;
mod rule;
mod times;
mod zone;

pub use alerts::{Alert, AlertKind, UnbegunFire};
pub use clock_steps::BACK_MIN;
pub use decide::{
    BUFFER_MAX, DecisionInput, FIRES_MAX, FireSubmission, LOOK_AGAIN, MISSED_AFTER_MAX, MISSED_AFTER_MIN,
    TaskOutcome, after_within,
};
pub use rule::{
    Backfill, Fate, Fire, MissedPolicy, Overlap, PastFire, PlannedFire, Rule, Schedule, ScheduleState, Span,
};
pub use times::{TEXT_LEN_MAX, Times, TimesError, When};

//! Points in time, as the machines see them.
//!
//! A machine receives `now` with every input and never reads a clock. The lane machine's `now` is the wall
//! time at which its owner loaded the lane, plus the time on the steady clock (`CLOCK_BOOTTIME`) since, plus
//! the steps of the wall clock, each of which is an input of its own. The worker session's `now` is the
//! steady clock alone.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970 (or since any fixed moment, where only differences count).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment that all others are counted from.
    pub const ZERO: Self = Self(0);
    /// Later than everything.
    pub const MAX: Self = Self(i64::MAX);

    /// From whole microseconds.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From whole milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// In microseconds.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// In milliseconds, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// By how much this lies after `other`; negative where it lies before.
    pub const fn shift_from(self, other: Self) -> Shift {
        Shift(self.0.saturating_sub(other.0))
    }
}

/// By how much a clock moved, or differs from another one: microseconds, negative where it went back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shift(i64);

impl Shift {
    /// Not at all.
    pub const ZERO: Self = Self(0);

    /// From whole microseconds.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From whole milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// In microseconds.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Its size, whichever way it goes.
    pub const fn abs(self) -> Duration {
        Duration::from_micros(self.0.unsigned_abs())
    }

    /// Backwards in time.
    pub const fn is_back(self) -> bool {
        self.0 < 0
    }
}

impl Add for Shift {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Shift {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add<Shift> for Timestamp {
    type Output = Self;
    fn add(self, shift: Shift) -> Self {
        Self(self.0.saturating_add(shift.0))
    }
}

impl Sub<Shift> for Timestamp {
    type Output = Self;
    fn sub(self, shift: Shift) -> Self {
        Self(self.0.saturating_sub(shift.0))
    }
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, size) = (if self.is_back() { '-' } else { '+' }, self.abs());
        write!(f, "{sign}{}.{:03} s", size.as_secs(), size.subsec_millis())
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000))
    }
}

/// Durations as whole microseconds, for stored values.
pub mod duration_micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// For `#[serde(with = …)]`.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// For `#[serde(with = …)]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }

    /// The same for an optional duration.
    pub mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer};

        /// For `#[serde(with = …)]`.
        pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(duration) => super::serialize(duration, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// For `#[serde(with = …)]`.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_micros))
        }
    }
}

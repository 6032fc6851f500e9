//! Durations as clients write them: seconds as a number, or text such as `90s`, `0.5s`, `5m`, `1h30m`, `250ms`.
//!
//! Every unit may occur once, the larger ones first, each with a bounded number of digits; all but milliseconds may have up
//! to three digits after a point, so that the least duration is a millisecond. So the grammar itself bounds
//! the value, and the description of the API can state it as a pattern.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::json::shown;

/// A duration that may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A duration of at least a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positive(pub Duration);

impl Span {
    /// The most seconds, when they are given as a number: about a hundred years.
    pub const SECONDS_MAX: f64 = 3_153_600_000.0;
    /// The form of texts, as a regular expression.
    pub const PATTERN: &str = "^(?=.)([0-9]{1,4}(\\.[0-9]{1,3})?d)?([0-9]{1,6}(\\.[0-9]{1,3})?h)?([0-9]{1,7}(\\.[0-9]{1,3})?m)?([0-9]{1,9}(\\.[0-9]{1,3})?s)?([0-9]{1,12}ms)?$";
}

impl Positive {
    /// The least seconds, when they are given as a number.
    pub const SECONDS_MIN: f64 = 0.001;
    /// The form of texts, as a regular expression.
    pub const PATTERN: &str = "^(?=.*[1-9])([0-9]{1,4}(\\.[0-9]{1,3})?d)?([0-9]{1,6}(\\.[0-9]{1,3})?h)?([0-9]{1,7}(\\.[0-9]{1,3})?m)?([0-9]{1,9}(\\.[0-9]{1,3})?s)?([0-9]{1,12}ms)?$";
}

const RULE: &str = "seconds as a number, or text such as \"90s\", \"0.5s\", \"5m\", \"1h30m\" or \"250ms\"";

/// Units, the largest first: name, milliseconds, most digits.
const UNITS: [(&str, u64, usize); 5] =
    [("d", 86_400_000, 4), ("h", 3_600_000, 6), ("m", 60_000, 7), ("s", 1_000, 9), ("ms", 1, 12)];

/// The most digits after the point of a unit that is longer than a millisecond: they give whole milliseconds.
const FRACTION_DIGITS_MAX: usize = 3;

/// Parses text such as `1h30m`; the error is the rule.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("must be {RULE}, not {:?}", shortened(text));
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut millis = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let (_, scale, digits_max) = units.find(|(name, ..)| *name == unit).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
        if whole.len() > *digits_max {
            return Err(format!("must have at most {digits_max} digits before {unit:?}"));
        }
        millis += whole.parse::<u64>().map_err(|_| wrong())? * scale;
        if let Some(fraction) = fraction {
            let digits_max = if *scale == 1 { 0 } else { FRACTION_DIGITS_MAX };
            if fraction.len() > digits_max {
                return Err(format!("must have at most {digits_max} digits after the point before {unit:?}"));
            }
            let parts = 10_u64.pow(u32::try_from(fraction.len()).unwrap_or(0));
            millis += fraction.parse::<u64>().map_err(|_| wrong())? * scale / parts;
        }
        rest = tail;
    }
    Ok(Duration::from_millis(millis))
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(RULE)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Duration, E> {
        #[expect(clippy::cast_precision_loss, reason = "larger values are refused")]
        self.visit_f64(seconds as f64)
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Duration, E> {
        #[expect(clippy::cast_precision_loss, reason = "larger values are refused")]
        self.visit_f64(seconds as f64)
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Duration, E> {
        if !(0.0..=Span::SECONDS_MAX).contains(&seconds) {
            let (max, seconds) = (Span::SECONDS_MAX, shown(seconds));
            return Err(E::custom(format_args!("must be between 0 and {max} seconds, not {seconds}")));
        }
        let duration = Duration::from_secs_f64(seconds);
        // Stores keep whole microseconds.
        Ok(Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse_span(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor).map(Self)
    }
}

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let duration = deserializer.deserialize_any(SpanVisitor)?;
        if duration < Duration::from_millis(1) {
            return Err(de::Error::custom("must be at least a millisecond"));
        }
        Ok(Self(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_text_with_units() {
        let cases = [
            ("60", 60_000_000),
            ("0", 0),
            ("1.5", 1_500_000),
            ("0.000001", 1),
            ("\"90s\"", 90_000_000),
            ("\"5m\"", 300_000_000),
            ("\"1h30m\"", 5_400_000_000),
            ("\"250ms\"", 250_000),
            ("\"1m1ms\"", 60_001_000),
            ("\"2d\"", 172_800_000_000),
            ("\"0.1s\"", 100_000),
            ("\"1m0.25s\"", 60_250_000),
            ("\"1.5h\"", 5_400_000_000),
            ("\"0.001d1ms\"", 86_401_000),
        ];
        for (json, micros) in cases {
            let Span(duration) = serde_json::from_str(json).unwrap();
            assert_eq!(duration.as_micros(), micros, "{json}");
        }
    }

    #[test]
    fn other_durations_are_refused() {
        let bad = [
            "-1",
            "1e300",
            "true",
            "\"\"",
            "\"90\"",
            "\"s\"",
            "\".5s\"",
            "\"1.s\"",
            "\"1.2345s\"",
            "\"1.5ms\"",
            "\"1..5s\"",
            "\"1 s\"",
            "\"-1s\"",
            "\"1s1m\"",
            "\"1s1s\"",
            "\"10000d\"",
            "\"1y\"",
            "\"1µs\"",
        ];
        for json in bad {
            assert!(serde_json::from_str::<Span>(json).is_err(), "{json}");
        }
        for json in ["0", "\"0s\"", "0.0001", "\"\""] {
            assert!(serde_json::from_str::<Positive>(json).is_err(), "{json}");
        }
    }
}

//! Durations such as `10s` and sizes such as `64MiB`, as people write them.

use std::time::Duration;

/// Units of time, the largest first, in nanoseconds.
const TIMES: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of size, the largest first, in bytes.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `90s`, `0.5s`, `1m30s`, `7d`. A number alone is refused: its unit would be a guess.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("a duration is a number with a unit, such as 500ms, 10s, 5m, 2h or 7d, not {text:?}");
    let mut nanos = 0_u128;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (whole, fraction) = rest[..digits].split_once('.').unwrap_or((&rest[..digits], "0"));
        let number: u128 = whole.parse().map_err(|_| wrong())?;
        let parts =
            10_u128.pow(u32::try_from(fraction.len()).ok().filter(|len| *len < 10).ok_or_else(wrong)?);
        let fraction: u128 = fraction.parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = &rest[..letters];
        let (_, size) = TIMES.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        if !(fraction * size).is_multiple_of(parts) {
            return Err(wrong());
        }
        nanos = number.checked_mul(*size).and_then(|part| nanos.checked_add(part)).ok_or_else(wrong)?;
        nanos = nanos.checked_add(fraction * size / parts).ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| wrong())?;
    let below = u32::try_from(nanos % 1_000_000_000).map_err(|_| wrong())?;
    Ok(Duration::new(seconds, below))
}

/// Writes a duration so that [`parse_duration`] reads the same: in one unit, the largest that fits exactly.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let (name, size) = TIMES.iter().find(|(_, size)| nanos.is_multiple_of(*size)).unwrap_or(&("ns", 1));
    format!("{}{name}", nanos / size)
}

/// Reads `64MiB`, `256KiB`, `100B`; a number alone is bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("a size is a number with a unit, such as 512B, 256KiB, 16MiB or 1GiB, not {text:?}");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = if digits == text.len() { "B" } else { text[digits..].trim() };
    let (_, size) = SIZES.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number.checked_mul(*size).ok_or_else(wrong)
}

/// Writes a size so that [`parse_size`] reads the same.
pub fn format_size(bytes: u64) -> String {
    let (name, size) =
        SIZES.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size)).unwrap_or(&("B", 1));
    format!("{}{name}", bytes / size)
}

/// A duration in a config file, for `#[serde(with = "…")]`.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = serde_json::Value::deserialize(deserializer)?;
        let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
        super::parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

/// A size in a config file, for `#[serde(with = "…")]`.
pub(crate) mod size {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(crate) fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format_size(*bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = serde_json::Value::deserialize(deserializer)?;
        let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
        super::parse_size(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_alike() {
        for (text, millis) in
            [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)]
        {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(millis));
            assert_eq!(format_duration(duration), text);
        }
        assert_eq!(parse_duration("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_duration("0.1s").unwrap(), Duration::from_millis(100));
        assert_eq!(parse_duration("1h0.5m").unwrap(), Duration::from_secs(3630));
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn a_duration_needs_a_unit_that_exists() {
        for text in [
            "",
            "10",
            "10 s",
            "s",
            "-1s",
            ".5s",
            "1.s",
            "1..5s",
            "0.1234567890s",
            "0.5ns",
            "10sec",
            "9999999999999999999999d",
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains("500ms, 10s, 5m, 2h or 7d"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, bytes) in [("1B", 1), ("256KiB", 262_144), ("16MiB", 16_777_216), ("2GiB", 2_147_483_648)]
        {
            assert_eq!(parse_size(text).unwrap(), bytes);
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size("1000").unwrap(), 1000);
        assert_eq!(format_size(0), "0B");
        for text in ["", "1MB", "MiB", "1.5MiB", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}

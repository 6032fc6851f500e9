//! Values on the command line, and how values are shown.

use std::time::Duration;

use jiff::Timestamp;
use tasklane::config::units::parse_duration;
use tasklane_client::Status;

/// `90s`, `5m`, `1h30m`; a number alone is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(text),
    }
}

/// `2030-01-31T12:00:00Z`, or a time ago such as `2h`.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = parse_duration(text) {
        return Timestamp::now().checked_sub(ago).map_err(|error| error.to_string());
    }
    let wrong =
        |_| format!("a time is written 2030-01-31T12:00:00Z, or as a time ago, such as 2h; not {text:?}");
    text.parse().map_err(wrong)
}

/// A time to come, such as `2030-01-31T12:00:00Z`.
pub(crate) fn time_to_come(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("a time is written 2030-01-31T12:00:00Z, not {text:?}"))
}

/// `key=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("a pair is written key=value, not {text:?}")),
    }
}

/// `key=3`. The key may itself have a `=`.
pub(crate) fn limit(text: &str) -> Result<(String, u32), String> {
    let wrong = || format!("a limit is written key=3, not {text:?}");
    let (key, limit) = text.rsplit_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
    Ok((key.to_owned(), limit.parse().map_err(|_| wrong())?))
}

/// `10/1s`, `600/1m` or `10/s`.
pub(crate) fn rate(text: &str) -> Result<(u32, Duration), String> {
    let wrong = || format!("a rate is written 10/1s or 600/1m, not {text:?}");
    let (count, per) = text.split_once('/').ok_or_else(wrong)?;
    // `10/s` is what people type.
    let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
    Ok((count.parse().map_err(|_| wrong())?, duration(&per).map_err(|_| wrong())?))
}

/// `key=10/1s`.
pub(crate) fn key_rate(text: &str) -> Result<(String, u32, Duration), String> {
    let wrong = || format!("the rate of a key is written key=10/1s, not {text:?}");
    let (key, of_key) = text.rsplit_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
    let (limit, per) = rate(of_key)?;
    Ok((key.to_owned(), limit, per))
}

/// The name of a status, in any case.
pub(crate) fn status(text: &str) -> Result<Status, String> {
    let known = || Status::ALL.iter();
    let found = known().find(|status| status.as_str().eq_ignore_ascii_case(text)).copied();
    found.ok_or_else(|| {
        let names: Vec<&str> = known().map(|status| status.as_str()).collect();
        format!("a status is one of {}", names.join(", "))
    })
}

/// A time as people read it, or nothing.
pub(crate) fn shown_time(time: Option<Timestamp>) -> String {
    time.map(|time| time.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string()).unwrap_or_default()
}

/// The time between two moments, or nothing.
pub(crate) fn shown_span(from: Option<Timestamp>, to: Option<Timestamp>) -> String {
    let (Some(from), Some(to)) = (from, to) else { return String::new() };
    shown_duration(Duration::try_from(to.duration_since(from)).unwrap_or_default())
}

/// A duration in about two figures: as much as people read.
pub(crate) fn shown_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0s".to_owned(),
        0 if duration.as_millis() < 10 => format!("{:.1}ms", duration.as_secs_f64() * 1000.0),
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_short() {
        let shown = |millis| shown_duration(Duration::from_millis(millis));
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(2), "2.0ms");
        assert_eq!(shown(250), "250ms");
        assert_eq!(shown(1_500), "1.5s");
        assert_eq!(shown(61_000), "1m01s");
        assert_eq!(shown(7_260_000), "2h01m");
        assert_eq!(shown(90_000_000), "1d01h");
    }

    #[test]
    fn values_are_read_or_explained() {
        assert_eq!(duration("90").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(status("failed").unwrap(), Status::Failed);
        assert!(status("gone").unwrap_err().contains("PENDING, SCHEDULED"));
        assert_eq!(pair("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert!(pair("=b").is_err() && pair("a").is_err());
        assert!(time("2h").unwrap() < Timestamp::now());
        assert!(time("yesterday").unwrap_err().contains("2030-01-31T12:00:00Z"));
    }
}

//! What is refused, and what people are told then.

use std::time::Duration;

use tasklane_core::time::Timestamp;
use tasklane_schedule::{TEXT_LEN_MAX, Times, When};

fn refused(when: &When, zone: &str) -> String {
    Times::new(when, zone).expect_err(&format!("{when:?} in {zone} must be refused")).to_string()
}

#[test]
fn expressions() {
    let minutes = "may be *, numbers from 0 to 59, ranges such as 0-30, steps such as */10";
    let hours = "may be *, numbers from 0 to 23, ranges such as 9-17, steps such as */2";
    let days = "may be *, numbers from 1 to 31, ranges such as 1-7, steps such as */2, L, LW, 15W";
    let months = "may be *, numbers from 1 to 12, JAN to DEC, ranges such as 1-3, steps such as */3";
    let weekdays =
        "may be *, numbers from 0 to 7, SUN to SAT, ranges such as MON-FRI, steps such as */2, MON#2, FRIL";
    for (text, message) in [
        ("", "must have five fields, or six with seconds first, not 0".into()),
        ("0 0 * *", "must have five fields, or six with seconds first, not 4".into()),
        ("0 0 0 * * * 2024", "must have five fields, or six with seconds first, not 7".into()),
        ("60 * * * * *", format!(r#"second "60": {minutes}"#)),
        ("61 * * * *", format!(r#"minute "61": {minutes}"#)),
        ("+5 * * * *", format!(r#"minute "+5": {minutes}"#)),
        ("-5 * * * *", format!(r#"minute "-5": {minutes}"#)),
        ("1,,2 * * * *", format!(r#"minute "": {minutes}"#)),
        ("99999999999 * * * *", format!(r#"minute "99999999999": {minutes}"#)),
        ("0 24 * * *", format!(r#"hour "24": {hours}"#)),
        ("0 L * * *", format!(r#"hour "L": {hours}"#)),
        ("0 0 0 * *", format!(r#"day of month "0": {days}"#)),
        ("0 0 ? * *", format!(r#"day of month "?": {days}"#)),
        ("0 0 L-3 * *", format!(r#"day of month "L-3": {days}"#)),
        ("0 0 32W * *", format!(r#"day of month "32W": {days}"#)),
        ("0 0 1-5W * *", format!(r#"day of month "1-5W": {days}"#)),
        ("0 0 * 13 *", format!(r#"month "13": {months}"#)),
        ("0 0 * MON *", format!(r#"month "MON": {months}"#)),
        ("0 0 * * 8", format!(r#"weekday "8": {weekdays}"#)),
        ("0 0 * * Monday", format!(r#"weekday "Monday": {weekdays}"#)),
        ("0 0 * * L", format!(r#"weekday "L": {weekdays}"#)),
        ("0 0 * * ÄÖL", format!(r#"weekday "ÄÖL": {weekdays}"#)),
        ("0 0 * * MON#6", r#"weekday "MON#6": what follows # must be 1 to 5"#.into()),
        ("0 0 * * MON#0", r#"weekday "MON#0": what follows # must be 1 to 5"#.into()),
        ("*/0 * * * *", r#"minute "*/0": the step must be 1 to 59"#.into()),
        ("*/90 * * * *", r#"minute "*/90": the step must be 1 to 59"#.into()),
        ("*/x * * * *", r#"minute "*/x": the step must be 1 to 59"#.into()),
        ("0 22-2 * * *", r#"hour "22-2": a range must rise; write 22-23,0-2"#.into()),
        ("0 0 * * FRI-MON", r#"weekday "FRI-MON": a range must rise; write 5-6,0-1"#.into()),
        (
            "@reboot",
            r#""@reboot" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually"#
                .into(),
        ),
    ] {
        assert_eq!(refused(&When::Cron(text.into()), "UTC"), format!("cron: {message}"), "{text}");
    }
}

#[test]
fn expressions_that_never_fire() {
    for (text, zone) in [
        ("30 2 30 2 *", "UTC"),
        ("0 0 31 2,4,6,9,11 *", "Europe/Paris"),
        ("0 0 30W 2 *", "UTC"),
        // Both must fit, since one of them begins with a star.
        ("0 0 31 4 */2", "UTC"),
        // The hour that is skipped on the only days that it could fire.
        ("*/5 2 * 3 SUN#2", "America/New_York"),
    ] {
        let rule = format!(r#""{text}" never fires: no date and time in {zone} fits all of its fields"#);
        assert_eq!(refused(&When::Cron(text.into()), zone), format!("cron: {rule}"));
    }
    assert!(Times::new(&When::Cron("*/5 2 * 3 SUN#2".into()), "UTC").is_ok());
    assert!(Times::new(&When::Cron("30 2 * 3 SUN#2".into()), "America/New_York").is_ok());
}

#[test]
fn texts_that_are_too_long() {
    let long = "0".repeat(TEXT_LEN_MAX + 1);
    let rule = "must be at most 256 bytes long, not 257";
    assert_eq!(refused(&When::Cron(long.clone()), "UTC"), format!("cron: {rule}"));
    assert_eq!(refused(&When::Cron("@daily".into()), &long), format!("timezone: {rule}"));
}

#[test]
fn intervals() {
    let every = |interval| When::Every { interval, anchor: Timestamp::ZERO };
    for interval in [Duration::ZERO, Duration::from_millis(999)] {
        assert_eq!(refused(&every(interval), "UTC"), "every: must be at least 1 second");
    }
    assert!(Times::new(&every(Duration::from_secs(1)), "UTC").is_ok());
}

#[test]
fn zones() {
    for (zone, nearest) in [
        ("Europe/Pariss", "Europe/Paris"),
        ("europe/berln", "Europe/Berlin"),
        ("Paris", "Europe/Paris"),
        ("New York", "America/New_York"),
        ("Asia/Calcuta", "Asia/Calcutta"),
    ] {
        let rule = format!(r#"unknown time zone "{zone}": did you mean "{nearest}"?"#);
        assert_eq!(refused(&When::At(Timestamp::ZERO), zone), format!("timezone: {rule}"));
    }
    for zone in ["", "CST", "+02:00", "Mars/Olympus", "Etc/Unknown", "EST5EDT,M3.2.0,M11.1.0", "Zürich"] {
        let rule =
            format!(r#"unknown time zone "{zone}": use an IANA name such as "Europe/Paris", or "UTC""#);
        assert_eq!(refused(&When::At(Timestamp::ZERO), zone), format!("timezone: {rule}"));
    }
}

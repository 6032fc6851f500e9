//! Refused expressions, and their error messages.

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
    let days = "may be *, numbers from 1 to 31, ranges such as 1-7, steps such as */2, L, L-3, LW, 15W";
    let months = "may be *, numbers from 1 to 12, JAN to DEC, ranges such as 1-3, steps such as */3";
    let weekdays =
        "may be *, numbers from 0 to 7, SUN to SAT, ranges such as MON-FRI, steps such as */2, MON#2, FRIL";
    for (text, message) in [
        ("", "must have five fields, or six with seconds first, not 0; write * where every value fits".into()),
        ("0 0 * *", "must have five fields, or six with seconds first, not 4; write * where every value fits".into()),
        (
            "0 0 0 * * * 2024",
            "must have five fields, or six with seconds first, not 7; with a year as the seventh it is an expression \
             of Quartz: set dialect to quartz"
                .into(),
        ),
        (
            "CRON_TZ=Asia/Tokyo 0 0 * * *",
            "holds a time zone, which is a field of its own: set timezone to Asia/Tokyo, and leave it out here".into(),
        ),
        ("60 * * * * *", format!(r#"second "60": {minutes}"#)),
        ("61 * * * *", format!(r#"minute "61": {minutes}"#)),
        ("+5 * * * *", format!(r#"minute "+5": {minutes}"#)),
        ("-5 * * * *", format!(r#"minute "-5": {minutes}"#)),
        ("1,,2 * * * *", format!(r#"minute "": {minutes}"#)),
        ("99999999999 * * * *", format!(r#"minute "99999999999": {minutes}"#)),
        ("0 24 * * *", format!(r#"hour "24": {hours}"#)),
        ("0 L * * *", format!(r#"hour "L": {hours}"#)),
        ("0 0 0 * *", format!(r#"day of month "0": {days}"#)),
        ("0 0 ? * *", r#""?" is known to the dialect quartz only: write * in its place"#.into()),
        (
            "0 0 0 ? * 2",
            r#""?" is known to the dialect quartz only: if this is an expression of Quartz, set dialect to quartz; else write * in its place"#
                .into(),
        ),
        ("0 0 L-31 * *", format!(r#"day of month "L-31": {days}"#)),
        ("0 0 29-L * *", r#"day of month "29-L": write 29-31"#.into()),
        ("0 0 32W * *", format!(r#"day of month "32W": {days}"#)),
        ("0 0 1-5W * *", format!(r#"day of month "1-5W": {days}"#)),
        ("0 0 * 13 *", format!(r#"month "13": {months}"#)),
        ("0 0 * MON *", format!(r#"month "MON": {months}"#)),
        ("0 0 * * 8", format!(r#"weekday "8": {weekdays}"#)),
        ("0 0 * * Mond", format!(r#"weekday "Mond": {weekdays}"#)),
        (
            "0 0 * * L",
            r#"weekday "L": write the weekday before it, such as FRIL for the last Friday"#.into(),
        ),
        ("0 0 * * FRI#L", r#"weekday "FRI#L": write FRIL"#.into()),
        (
            "0 0 * * SAT-MON#1",
            r#"weekday "SAT-MON#1": a range has no such days; write SAT#1,SUN#1,MON#1"#.into(),
        ),
        ("0 0 * * 4-5L", r#"weekday "4-5L": a range has no such days; write THUL,FRIL"#.into()),
        ("0 0 13 * +FRI", r#"weekday "+FRI": write FRI: a day fits if either day field does"#.into()),
        ("H * * * *", r#"minute "H": write a number; jitter spreads the fires of many schedules"#.into()),
        ("/10 * * * *", r#"minute "/10": write */10"#.into()),
        ("0 0 * * ÄÖL", format!(r#"weekday "ÄÖL": {weekdays}"#)),
        ("0 0 * * MON#6", r#"weekday "MON#6": what follows # must be 1 to 5"#.into()),
        ("0 0 * * MON#0", r#"weekday "MON#0": what follows # must be 1 to 5"#.into()),
        ("*/0 * * * *", r#"minute "*/0": the step must be 1 to 59"#.into()),
        ("*/90 * * * *", r#"minute "*/90": the step must be 1 to 59"#.into()),
        ("*/x * * * *", r#"minute "*/x": the step must be 1 to 59"#.into()),
        (
            "@reboot",
            r#""@reboot" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually or @every 5m"#
                .into(),
        ),
    ] {
        assert_eq!(refused(&When::Cron(text.into()), "UTC"), format!("cron: {message}"), "{text}");
    }
}

#[test]
fn expressions_that_never_fire() {
    let days = "write days that these months have, such as L for the last one";
    for (text, zone, remedy) in [
        ("30 2 30 2 *", "UTC", days),
        ("0 0 31 2,4,6,9,11 *", "Europe/Paris", days),
        ("0 0 30W 2 *", "UTC", days),
        // Both must fit, since one of them begins with a star.
        ("0 0 31 4 */2", "UTC", days),
        // The hour that is skipped on the only days that it could fire.
        (
            "*/5 2 * 3 SUN#2",
            "America/New_York",
            "its clocks skip that hour on those days; write another hour",
        ),
    ] {
        let rule =
            format!(r#""{text}" never fires: no date and time in {zone} fits all of its fields; {remedy}"#);
        assert_eq!(refused(&When::Cron(text.into()), zone), format!("cron: {rule}"));
    }
    assert!(Times::new(&When::Cron("*/5 2 * 3 SUN#2".into()), "UTC").is_ok());
    assert!(Times::new(&When::Cron("30 2 * 3 SUN#2".into()), "America/New_York").is_ok());
}

#[test]
fn expressions_of_quartz() {
    let weekdays = "may be *, ?, numbers from 1 (Sunday) to 7 (Saturday), SUN to SAT, ranges such as MON-FRI, steps \
                    such as */2, MON#2, FRIL, L";
    let fields = "must have six fields with seconds first, or seven with the year last";
    for (text, message) in [
        ("0 12 * * ?", format!("{fields}, not 5; write 0 before the minute, or leave the dialect out")),
        ("0 12 *", format!("{fields}, not 3; write * where every value fits, and ? in one of the day fields")),
        ("0 0 12 ? * ?", r#"day of month and weekday are both "?"; write * in one of them"#.to_owned()),
        (
            "0 0 12 15 * MON",
            r#"day of month "15" and weekday "MON": Quartz takes one of them; write ? in the other"#.to_owned(),
        ),
        ("0 0 12 ? * 0", format!(r#"weekday "0": {weekdays}"#)),
        ("0 0 12 ? * 8", format!(r#"weekday "8": {weekdays}"#)),
        ("0 0 12 ? * 6#6", r#"weekday "6#6": what follows # must be 1 to 5"#.to_owned()),
        (
            "0 0 12 * * ? 1969",
            r#"year "1969": may be *, numbers from 1970 to 2099, ranges such as 2030-2035, steps such as */2"#
                .to_owned(),
        ),
        (
            "0 0 12 * * ? 2035-2030",
            r#"year "2035-2030": a range of years must rise; write 2030-2035"#.to_owned(),
        ),
        (
            "0 0 12 29 2 ? 2025-2027",
            r#""0 0 12 29 2 ? 2025-2027" never fires: no date and time in UTC fits all of its fields; write days that these months have, such as L for the last one"#
                .to_owned(),
        ),
    ] {
        assert_eq!(refused(&When::Quartz(text.into()), "UTC"), format!("cron: {message}"), "{text}");
    }
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

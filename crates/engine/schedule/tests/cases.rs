//! Plain cases, one line each, and what is refused.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tasklane_core::time::Timestamp;
use tasklane_schedule::{Times, When};

mod quartz;
mod recorded;

fn cron(text: &str, zone: &str) -> Times {
    Times::new(&When::Cron(text.into()), zone).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn utc(text: &str) -> Timestamp {
    let time: DateTime = text.parse().unwrap();
    Timestamp::from_micros(TimeZone::UTC.to_timestamp(time).unwrap().as_microsecond())
}

fn text(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).unwrap().strftime("%F %T").to_string()
}

/// The fire times after a moment, in UTC.
fn next<const N: usize>(times: &Times, after: &str) -> [String; N] {
    let mut at = utc(after);
    std::array::from_fn(|_| {
        at = times.after(at).unwrap();
        text(at)
    })
}

/// What comes after the beginning of 2024, a leap year that began on a Monday.
fn fires<const N: usize>(expression: &str, expected: [&str; N]) {
    assert_eq!(next::<N>(&cron(expression, "UTC"), "2024-01-01 00:00"), expected, "{expression}");
}

#[test]
fn numbers_lists_ranges_and_steps() {
    fires("5 4 * * *", ["2024-01-01 04:05:00", "2024-01-02 04:05:00"]);
    fires("0 9,17 * * *", ["2024-01-01 09:00:00", "2024-01-01 17:00:00", "2024-01-02 09:00:00"]);
    fires("58-59 23 * * *", ["2024-01-01 23:58:00", "2024-01-01 23:59:00", "2024-01-02 23:58:00"]);
    fires("*/40 * * * *", ["2024-01-01 00:40:00", "2024-01-01 01:00:00", "2024-01-01 01:40:00"]);
    fires("10-30/15 1 * * *", ["2024-01-01 01:10:00", "2024-01-01 01:25:00", "2024-01-02 01:10:00"]);
    fires("50/5 1 * * *", ["2024-01-01 01:50:00", "2024-01-01 01:55:00", "2024-01-02 01:50:00"]);
    fires("0 0 1-3,30 * *", ["2024-01-02 00:00:00", "2024-01-03 00:00:00", "2024-01-30 00:00:00"]);
    fires("  0\t0  1 */6 *  ", ["2024-07-01 00:00:00", "2025-01-01 00:00:00"]);
}

#[test]
fn seconds_come_first() {
    fires("30 0 0 * * *", ["2024-01-01 00:00:30", "2024-01-02 00:00:30"]);
    fires("*/25 59 23 * * *", ["2024-01-01 23:59:00", "2024-01-01 23:59:25", "2024-01-01 23:59:50"]);
    fires("* * * * * *", ["2024-01-01 00:00:01", "2024-01-01 00:00:02"]);
}

#[test]
fn names_in_any_case() {
    fires("0 0 1 feb *", ["2024-02-01 00:00:00", "2025-02-01 00:00:00"]);
    fires("0 0 1 Mar-MAY *", ["2024-03-01 00:00:00", "2024-04-01 00:00:00", "2024-05-01 00:00:00"]);
    fires("0 0 * * wed", ["2024-01-03 00:00:00", "2024-01-10 00:00:00"]);
    fires("0 0 * * Fri-Sun", ["2024-01-05 00:00:00", "2024-01-06 00:00:00", "2024-01-07 00:00:00"]);
}

#[test]
fn sunday_is_0_and_7() {
    for expression in
        ["0 0 * * 0", "0 0 * * 7", "0 0 * * SUN", "0 0 * * 7/2", "0 0 * * 7-7", "0 0 * * sun-sun"]
    {
        fires(expression, ["2024-01-07 00:00:00", "2024-01-14 00:00:00"]);
    }
    fires("0 0 * * 6-7", ["2024-01-06 00:00:00", "2024-01-07 00:00:00", "2024-01-13 00:00:00"]);
    // Sunday, Wednesday and Saturday: the second number of Sunday does not add a step.
    fires("0 0 * * */3", ["2024-01-03 00:00:00", "2024-01-06 00:00:00", "2024-01-07 00:00:00"]);
    fires("0 0 * * 7L", ["2024-01-28 00:00:00", "2024-02-25 00:00:00"]);
    fires("0 0 * * 7#1", ["2024-01-07 00:00:00", "2024-02-04 00:00:00"]);
}

#[test]
fn last_days() {
    fires("0 0 L * *", ["2024-01-31 00:00:00", "2024-02-29 00:00:00", "2024-03-31 00:00:00"]);
    fires("0 0 15,l * *", ["2024-01-15 00:00:00", "2024-01-31 00:00:00", "2024-02-15 00:00:00"]);
    // The last of March 2024 is a Sunday.
    fires("0 0 LW * *", ["2024-01-31 00:00:00", "2024-02-29 00:00:00", "2024-03-29 00:00:00"]);
    fires("0 0 * * FRIL", ["2024-01-26 00:00:00", "2024-02-23 00:00:00", "2024-03-29 00:00:00"]);
    fires("0 0 * * 5L", ["2024-01-26 00:00:00", "2024-02-23 00:00:00", "2024-03-29 00:00:00"]);
}

#[test]
fn nearest_workdays() {
    // 15 June 2024 is a Saturday, 15 September a Sunday.
    fires("0 0 15W 6,9 *", ["2024-06-14 00:00:00", "2024-09-16 00:00:00"]);
    // 1 June 2024 is a Saturday: the Friday before belongs to another month.
    fires("0 0 1W 6 *", ["2024-06-03 00:00:00"]);
    // 30 June 2024 is a Sunday: so does the Monday after it.
    fires("0 0 30W 6 *", ["2024-06-28 00:00:00"]);
    fires("0 0 31W 3,4 *", ["2024-03-29 00:00:00", "2025-03-31 00:00:00"]);
}

#[test]
fn nth_weekdays() {
    fires("0 0 * * MON#1", ["2024-02-05 00:00:00", "2024-03-04 00:00:00"]);
    fires("0 0 * * 1#5", ["2024-01-29 00:00:00", "2024-04-29 00:00:00", "2024-07-29 00:00:00"]);
    fires("0 0 * * TUE#2,FRI#3", ["2024-01-09 00:00:00", "2024-01-19 00:00:00", "2024-02-13 00:00:00"]);
}

#[test]
fn of_two_restricted_day_fields_either_is_enough() {
    fires("0 0 13 * FRI", ["2024-01-05 00:00:00", "2024-01-12 00:00:00", "2024-01-13 00:00:00"]);
    fires("0 0 L * MON#2", ["2024-01-08 00:00:00", "2024-01-31 00:00:00", "2024-02-12 00:00:00"]);
    // A field that begins with a star does not count as restricted.
    fires("0 0 */10 * WED", ["2024-01-31 00:00:00", "2024-02-21 00:00:00"]);
    fires("0 0 1 * */2", ["2024-02-01 00:00:00", "2024-06-01 00:00:00"]);
}

#[test]
fn ranges_go_on_at_the_beginning() {
    fires(
        "0 0 * * FRI-MON",
        [
            "2024-01-05 00:00:00",
            "2024-01-06 00:00:00",
            "2024-01-07 00:00:00",
            "2024-01-08 00:00:00",
            "2024-01-12 00:00:00",
        ],
    );
    fires(
        "0 22-1 * * *",
        ["2024-01-01 01:00:00", "2024-01-01 22:00:00", "2024-01-01 23:00:00", "2024-01-02 00:00:00"],
    );
    fires("58-1/2 0 * * *", ["2024-01-01 00:58:00", "2024-01-02 00:00:00"]);
    fires(
        "0 0 1 NOV-FEB *",
        ["2024-02-01 00:00:00", "2024-11-01 00:00:00", "2024-12-01 00:00:00", "2025-01-01 00:00:00"],
    );
    // The step goes on across the end: Thursday, Saturday, Monday.
    fires(
        "0 0 * * THU-TUE/2",
        ["2024-01-04 00:00:00", "2024-01-06 00:00:00", "2024-01-08 00:00:00", "2024-01-11 00:00:00"],
    );
    fires("0 0 * * 7-1", ["2024-01-07 00:00:00", "2024-01-08 00:00:00", "2024-01-14 00:00:00"]);
}

#[test]
fn full_names() {
    fires("0 0 * January Friday", ["2024-01-05 00:00:00", "2024-01-12 00:00:00"]);
    fires(
        "0 0 1 september-NOVEMBER *",
        ["2024-09-01 00:00:00", "2024-10-01 00:00:00", "2024-11-01 00:00:00"],
    );
    fires("0 0 * * MONDAY#2", ["2024-01-08 00:00:00", "2024-02-12 00:00:00"]);
    fires("0 0 * * FridayL", ["2024-01-26 00:00:00", "2024-02-23 00:00:00"]);
}

#[test]
fn days_before_the_last() {
    fires("0 0 L-3 * *", ["2024-01-28 00:00:00", "2024-02-26 00:00:00", "2024-03-28 00:00:00"]);
    // 28 January 2024 is a Sunday.
    fires("0 0 L-3W * *", ["2024-01-29 00:00:00", "2024-02-26 00:00:00", "2024-03-28 00:00:00"]);
    fires("0 0 L-30 * *", ["2024-03-01 00:00:00", "2024-05-01 00:00:00"]);
}

#[test]
fn nicknames() {
    fires("@hourly", ["2024-01-01 01:00:00", "2024-01-01 02:00:00"]);
    fires("@daily", ["2024-01-02 00:00:00", "2024-01-03 00:00:00"]);
    fires("@midnight", ["2024-01-02 00:00:00", "2024-01-03 00:00:00"]);
    fires("@weekly", ["2024-01-07 00:00:00", "2024-01-14 00:00:00"]);
    fires("@monthly", ["2024-02-01 00:00:00", "2024-03-01 00:00:00"]);
    fires("@yearly", ["2025-01-01 00:00:00", "2026-01-01 00:00:00"]);
    fires("@Annually", ["2025-01-01 00:00:00", "2026-01-01 00:00:00"]);
}

#[test]
fn rare_days_are_found() {
    fires("0 0 29 2 *", ["2024-02-29 00:00:00", "2028-02-29 00:00:00"]);
    assert_eq!(next(&cron("0 0 29 2 *", "UTC"), "2096-03-01 00:00"), ["2104-02-29 00:00:00"]);
    // A fifth Monday in February: a leap year that began on a Thursday. 2100 is none.
    assert_eq!(
        next(&cron("0 0 * 2 MON#5", "UTC"), "2024-01-01 00:00"),
        ["2044-02-29 00:00:00", "2072-02-29 00:00:00", "2112-02-29 00:00:00"]
    );
}

#[test]
fn fire_times_are_those_of_the_zone() {
    assert_eq!(next(&cron("0 9 * * *", "Asia/Tokyo"), "2024-01-01 00:00"), ["2024-01-02 00:00:00"]);
    assert_eq!(next(&cron("0 9 * * *", "America/New_York"), "2024-07-01 00:00"), ["2024-07-01 13:00:00"]);
    assert_eq!(next(&cron("0 9 * * *", "asia/kolkata"), "2024-01-01 00:00"), ["2024-01-01 03:30:00"]);
    assert_eq!(next(&cron("0 9 * * *", "EST5EDT"), "2024-01-01 00:00"), ["2024-01-01 14:00:00"]);
}

#[test]
fn a_skipped_time_fires_right_after_the_gap() {
    // Europe/Berlin, 31 March 2024: 02:00 is followed by 03:00, which is 01:00 UTC.
    let times = cron("30 2 * * *", "Europe/Berlin");
    assert_eq!(next(&times, "2024-03-30 12:00"), ["2024-03-31 01:00:00", "2024-04-01 00:30:00"]);
    let times = cron("*/30 2 * * *", "Europe/Berlin");
    assert_eq!(next(&times, "2024-03-30 12:00"), ["2024-04-01 00:00:00"]);
    // America/Sao_Paulo, 4 November 2018: the day began at 01:00, which is 03:00 UTC.
    let times = cron("0 0 * * *", "America/Sao_Paulo");
    assert_eq!(next(&times, "2018-11-03 12:00"), ["2018-11-04 03:00:00", "2018-11-05 02:00:00"]);
    // Pacific/Apia left out 30 December 2011.
    let times = cron("0 9 30 12 *", "Pacific/Apia");
    assert_eq!(next(&times, "2011-01-01 00:00"), ["2011-12-30 10:00:00", "2012-12-29 19:00:00"]);
}

#[test]
fn of_two_equal_times_the_first_counts_unless_the_clock_is_followed() {
    // Europe/Berlin, 27 October 2024: 03:00 is followed by 02:00, at 01:00 UTC.
    let times = cron("30 2 * * *", "Europe/Berlin");
    assert_eq!(next(&times, "2024-10-26 12:00"), ["2024-10-27 00:30:00", "2024-10-28 01:30:00"]);
    assert_eq!(next(&times, "2024-10-27 01:10"), ["2024-10-28 01:30:00"]);
    let times = cron("30 * * * *", "Europe/Berlin");
    assert_eq!(next(&times, "2024-10-27 00:00"), ["2024-10-27 00:30:00", "2024-10-27 01:30:00"]);
}

#[test]
fn what_is_special_is_told() {
    let note = |expression, zone, at| cron(expression, zone).note(utc(at));
    let told = |text: &str| Some(text.to_owned());
    assert_eq!(note("30 2 * * *", "Europe/Berlin", "2024-03-30 01:30"), None);
    let missing = told("02:30 does not exist on this day: clocks go forward");
    assert_eq!(note("30 2 * * *", "Europe/Berlin", "2024-03-31 01:00"), missing);
    assert_eq!(note("0 3 * * *", "Europe/Berlin", "2024-03-31 01:00"), None);
    assert_eq!(note("*/30 * * * *", "Europe/Berlin", "2024-03-31 01:00"), None);
    let missing = told("09:00 does not exist on 2011-12-30: clocks go forward");
    assert_eq!(note("0 9 * * *", "Pacific/Apia", "2011-12-30 10:00"), missing);
    let first = told("01:30 comes twice on this day: this is the first");
    assert_eq!(note("30 1 * * *", "America/New_York", "2024-11-03 05:30"), first);
    let second = told("01:30:15 comes twice on this day: this is the second");
    assert_eq!(note("15 30 * * * *", "America/New_York", "2024-11-03 06:30:15"), second);
    let once = Times::new(&When::At(utc("2024-11-03 05:30")), "America/New_York").unwrap();
    assert_eq!(once.note(utc("2024-11-03 05:30")), first);
    assert_eq!(once.note(Timestamp::MAX), None);
}

#[test]
fn a_single_time_fires_once() {
    let at = utc("2024-05-01 12:00");
    let times = Times::new(&When::At(at), "UTC").unwrap();
    assert_eq!(times.after(at - Duration::from_micros(1)), Some(at));
    assert_eq!(times.after(at), None);
}

#[test]
fn an_interval_counts_from_its_anchor() {
    let every = |interval, anchor: &str| {
        let anchor = utc(anchor);
        Times::new(&When::Every { interval, anchor }, "Europe/Berlin").unwrap()
    };
    let times = every(Duration::from_mins(90), "2024-01-01 00:10");
    assert_eq!(next(&times, "2024-01-01 00:00"), ["2024-01-01 00:10:00", "2024-01-01 01:40:00"]);
    assert_eq!(next(&times, "2024-01-01 00:10"), ["2024-01-01 01:40:00", "2024-01-01 03:10:00"]);
    assert_eq!(next(&times, "2020-06-01 00:00"), ["2024-01-01 00:10:00"]);
    assert_eq!(next(&times, "2024-12-31 23:59"), ["2025-01-01 00:10:00"]);
    // Clocks that change do not matter to it.
    let times = every(Duration::from_hours(1), "2024-03-31 00:00");
    assert_eq!(next(&times, "2024-03-31 00:30"), ["2024-03-31 01:00:00", "2024-03-31 02:00:00"]);
    assert_eq!(times.after(Timestamp::MAX), None);
    assert_eq!(every(Duration::MAX, "2024-01-01 00:00").after(utc("2024-01-01 00:00")), None);
}

#[test]
fn the_ends_of_time_are_no_trouble() {
    let times = cron("* * * * *", "America/New_York");
    assert_eq!(times.after(Timestamp::MAX), None);
    assert!(times.after(Timestamp::from_micros(i64::MIN)).is_some());
    let last = Timestamp::from_micros(jiff::Timestamp::MAX.as_microsecond());
    assert_eq!(times.after(last), None);
    assert!(times.after(last - Duration::from_hours(1)).is_some());
}

#[test]
fn what_is_stored_is_read_back() {
    let every = When::Every { interval: Duration::from_mins(1), anchor: utc("1970-01-01 00:00:01") };
    for (when, stored) in [
        (When::Cron("@daily".into()), r#"{"cron":"@daily"}"#),
        (When::Quartz("0 0 0 * * ?".into()), r#"{"quartz":"0 0 0 * * ?"}"#),
        (every, r#"{"every":{"interval":60000000,"anchor":1000000}}"#),
        (When::At(utc("1970-01-01 00:00:02")), r#"{"at":2000000}"#),
    ] {
        assert_eq!(serde_json::to_string(&when).unwrap(), stored);
        assert_eq!(serde_json::from_str::<When>(stored).unwrap(), when);
    }
}

//! Whatever the expression, the zone and the start: fire times are strictly later each time, and do not depend on where
//! one starts to ask.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tasklane_core::time::Timestamp;
use tasklane_schedule::{Times, When};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 24 * 60 * 60 * SECOND;

/// From 1995 to 2060.
const TIMES: std::ops::Range<i64> = 788_918_400 * SECOND..2_840_140_800 * SECOND;

fn expressions() -> impl Strategy<Value = String> {
    let second = select(vec!["", "", "", "0 ", "30 ", "*/20 ", "5,59 "]);
    let minute = select(vec!["0", "30", "59", "*", "*/15", "0,30", "10-50/20", "7/13"]);
    let hour = select(vec!["0", "1", "2", "3", "23", "*", "*/2", "0-4", "1,2", "22-23"]);
    let day = select(vec!["*", "*", "*", "1", "L", "LW", "15W", "31", "*/2", "10-20"]);
    let month = select(vec!["*", "*", "*", "MAR", "3,10", "*/2", "4-11"]);
    let weekday = select(vec!["*", "*", "*", "SUN", "0,6", "MON-FRI", "SUN#1", "SUNL", "6#2,7L"]);
    (second, minute, hour, day, month, weekday)
        .prop_map(|(s, m, h, d, mo, w)| format!("{s}{m} {h} {d} {mo} {w}"))
}

fn zones() -> impl Strategy<Value = String> {
    select(TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect::<Vec<_>>())
}

/// A moment near a change of the zone's clock, if it has any: `apart` before the change that follows `at`.
fn near_a_change(zone: &str, at: i64, apart: i64) -> Timestamp {
    let zone = TimeZoneDatabase::bundled().get(zone).unwrap();
    let change = zone.following(jiff::Timestamp::from_microsecond(at).unwrap()).next();
    Timestamp::from_micros(change.map_or(at, |change| change.timestamp().as_microsecond() - apart))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_start_between_two_fire_times_gives_the_later(
        expression in expressions(),
        zone in zones(),
        at in TIMES,
        apart in -DAY..2 * DAY,
        between in any::<Index>(),
    ) {
        // Days that do not exist, such as the 31st of odd combinations, are refused elsewhere.
        let Ok(times) = Times::new(&When::Cron(expression), &zone) else { return Ok(()) };
        let mut after = near_a_change(&zone, at, apart);
        for _ in 0..12 {
            let next = times.after(after).unwrap();
            prop_assert!(next > after);
            let gap = usize::try_from(next.as_micros() - after.as_micros()).unwrap();
            let inside = after.as_micros() + i64::try_from(between.index(gap)).unwrap();
            for start in [inside, next.as_micros() - 1, next.as_micros() - SECOND] {
                let start = Timestamp::from_micros(start.max(after.as_micros()));
                prop_assert_eq!(times.after(start), Some(next), "from {}", start);
            }
            after = next;
        }
    }

    #[test]
    fn intervals_hold_the_same(
        interval in 1..100 * DAY,
        anchor in TIMES,
        after in TIMES,
    ) {
        let interval = std::time::Duration::from_micros(u64::try_from(interval + SECOND).unwrap());
        let anchor = Timestamp::from_micros(anchor);
        let times = Times::new(&When::Every { interval, anchor }, "UTC").unwrap();
        let after = Timestamp::from_micros(after);
        let next = times.after(after).unwrap();
        prop_assert!(next > after && next >= anchor);
        prop_assert_eq!(next.since(anchor).as_micros() % interval.as_micros(), 0);
        prop_assert!(next == anchor || next - interval <= after);
    }
}

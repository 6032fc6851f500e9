//! Every zone of the database at every change of its clock from 2015 through 2037, against a calculation that shares
//! nothing with the crate: it walks over the minutes, asks another library what the clock shows, looks whether that fits
//! a condition that is written out by hand, and keeps to the rules of Vixie cron by remembering what was shown.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod walk;

use std::collections::BTreeMap;

use chrono::NaiveDate;
use chrono_tz::{TZ_VARIANTS, Tz};
use jiff::tz::TimeZoneDatabase;
use tasklane_core::time::Timestamp;
use tasklane_schedule::{Times, When};
use walk::{CASES, Case, Shown, fire_times, offset, shown};

const DAY: i64 = 24 * 60 * 60;

/// How much of the time around a change is walked, to both sides.
const AROUND: i64 = 2 * DAY;

/// The two databases are of different years. Differences between them are left out, in no more zones than these.
const DIFFERENT_MAX: usize = 30;

/// From when on a zone has which offset, in seconds.
type History = Vec<(i64, i64)>;

#[test]
fn every_change_of_every_zone() {
    let mut different = Vec::new();
    // Zones with the same history share the walk.
    let mut zones: BTreeMap<History, Vec<Tz>> = BTreeMap::new();
    let names = zone_names();
    for name in &names {
        let Some(zone) = TZ_VARIANTS.iter().find(|zone| zone.name() == name) else {
            different.push((name, year(2015)));
            continue;
        };
        let (mut history, other) = (history(*zone), history_by_jiff(name));
        if let Some(at) = first_difference(&history, &other) {
            different.push((name, at));
            history.retain(|(change, _)| change + AROUND <= at);
        }
        zones.entry(history).or_default().push(*zone);
    }
    println!("{} zones, {} different ones", names.len(), zones.len());
    println!("not compared: {} zones from these moments on: {different:?}", different.len());
    assert!(different.len() <= DIFFERENT_MAX, "the databases differ in {} zones", different.len());

    let (mut changes, mut fires) = (0, 0);
    for (history, zones) in &zones {
        let schedules: Vec<Vec<Times>> = zones.iter().map(|zone| all_cases(*zone)).collect();
        for (at, _) in history.iter().skip(1) {
            let minutes = shown(zones[0], at - AROUND, at + AROUND);
            for (index, case) in CASES.iter().enumerate() {
                let expected = fire_times(case, &minutes);
                for (zone, schedules) in zones.iter().zip(&schedules) {
                    check(*zone, case, &schedules[index], &minutes, &expected);
                }
                fires += expected.len() * zones.len();
            }
            changes += zones.len();
        }
    }
    println!("{changes} changes, {fires} fire times");
    assert!(
        changes > 8_000 && fires > 1_000_000,
        "{changes} changes and {fires} fire times are not much of a test"
    );
}

/// Rare dates near a change: ends of months, leap days, workdays. And jumps by a whole day, which are over.
#[test]
fn whole_years_and_days_that_never_were() {
    for (zone, from, to) in [
        (Tz::UTC, (2023, 1), (2025, 3)),
        (Tz::Europe__Berlin, (2023, 1), (2025, 3)),
        (Tz::America__New_York, (2023, 1), (2025, 3)),
        (Tz::Australia__Lord_Howe, (2023, 1), (2025, 3)),
        (Tz::Africa__Casablanca, (2023, 1), (2025, 3)),
        (Tz::America__Sao_Paulo, (2017, 1), (2019, 3)),
        (Tz::Asia__Kathmandu, (2023, 1), (2024, 3)),
        // 30 December 2011 and 21 August 1993 were left out.
        (Tz::Pacific__Apia, (2011, 12), (2012, 2)),
        (Tz::Pacific__Kwajalein, (1993, 8), (1993, 10)),
    ] {
        let minutes = shown(zone, first_of(from), first_of(to));
        for (case, times) in CASES.iter().zip(all_cases(zone)) {
            check(zone, case, &times, &minutes, &fire_times(case, &minutes));
        }
    }
}

/// The crate looks back over one change at a time. That would not be enough if a clock went back and changed again
/// before it has shown all that it had shown before.
#[test]
fn no_zone_changes_again_within_two_days() {
    for name in zone_names() {
        let zone = TimeZoneDatabase::bundled().get(&name).unwrap();
        let changes = zone.following(jiff::Timestamp::MIN).map(|change| change.timestamp().as_second());
        let changes: Vec<i64> = changes.take_while(|at| *at < year(2100)).collect();
        for pair in changes.windows(2) {
            assert!(pair[1] - pair[0] > 2 * DAY, "{name} changes at {} and {}", pair[0], pair[1]);
        }
    }
}

fn zone_names() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

fn all_cases(zone: Tz) -> Vec<Times> {
    CASES.iter().map(|case| Times::new(&When::Cron(case.text.into()), zone.name()).unwrap()).collect()
}

/// Asks for one fire time after the other, from just before the first minute to the end of the last.
fn check(zone: Tz, case: &Case, times: &Times, minutes: &[Shown], expected: &[i64]) {
    let mut after = Timestamp::from_micros(minutes[0].utc * 1_000_000 - 1);
    for second in expected {
        let next = times.after(after);
        assert_eq!(next, Some(seconds(*second)), "\"{}\" in {zone} after {after}", case.text);
        after = seconds(*second);
    }
    let end = seconds(minutes[minutes.len() - 1].utc + 60);
    let next = times.after(after);
    assert!(next.is_some_and(|next| next >= end), "\"{}\" in {zone} after {after}: {next:?}", case.text);
}

fn history(zone: Tz) -> History {
    let mut history = vec![(year(2015), offset(zone, year(2015)))];
    for day in (year(2015)..year(2038)).step_by(86_400) {
        let (mut before, mut after) = (day, day + DAY);
        let (old, new) = (offset(zone, before), offset(zone, after));
        while old != new && after - before > 1 {
            let middle = i64::midpoint(before, after);
            if offset(zone, middle) == old { before = middle } else { after = middle }
        }
        if old != new {
            history.push((after, new));
        }
    }
    history
}

fn history_by_jiff(name: &str) -> History {
    let zone = TimeZoneDatabase::bundled().get(name).unwrap();
    let begin = jiff::Timestamp::from_second(year(2015)).unwrap();
    let offset = |at| i64::from(zone.to_offset(at).seconds());
    let changes = zone.following(begin).map(|change| change.timestamp());
    let mut history = vec![(year(2015), offset(begin))];
    history.extend(changes.map(|at| (at.as_second(), offset(at))).take_while(|(at, _)| *at < year(2038)));
    // Some changes are of the zone's name only.
    history.dedup_by_key(|(_, offset)| *offset);
    history
}

fn first_difference(one: &History, other: &History) -> Option<i64> {
    let len = one.len().max(other.len());
    let index = (0..len).find(|index| one.get(*index) != other.get(*index))?;
    [one.get(index), other.get(index)].into_iter().flatten().map(|(at, _)| *at).min()
}

fn year(year: i32) -> i64 {
    first_of((year, 1))
}

fn first_of((year, month): (i32, u32)) -> i64 {
    NaiveDate::from_ymd_opt(year, month, 1)
        .and_then(|day| day.and_hms_opt(0, 0, 0))
        .unwrap()
        .and_utc()
        .timestamp()
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

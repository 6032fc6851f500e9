//! Fire times by walking over the minutes, with chrono for time zones and calendar.

use chrono::{DateTime, Datelike, NaiveDate, Offset, TimeZone, Timelike};
use chrono_tz::Tz;

const MINUTE: i64 = 60;

/// An expression, and what it means.
pub(crate) struct Case {
    pub(crate) text: &'static str,
    /// It names times of the day, and does not follow the clock.
    pub(crate) fixed: bool,
    /// The seconds of a minute that it fires at.
    pub(crate) seconds: &'static [i64],
    /// Whether it fires in a minute.
    pub(crate) fits: fn(&Shown) -> bool,
}

/// The clock and the calendar in one minute.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) utc: i64,
    /// The local time, as seconds since 1970 on that clock.
    pub(crate) local: i64,
    pub(crate) month: u32,
    pub(crate) day: u32,
    pub(crate) days_in_month: u32,
    /// From Sunday, which is 0.
    pub(crate) weekday: u32,
    pub(crate) hour: u32,
    pub(crate) minute: u32,
}

const fn fixed(text: &'static str, fits: fn(&Shown) -> bool) -> Case {
    Case { text, fixed: true, seconds: &[0], fits }
}

const fn follows(text: &'static str, fits: fn(&Shown) -> bool) -> Case {
    Case { text, fixed: false, seconds: &[0], fits }
}

pub(crate) const CASES: &[Case] = &[
    fixed("30 2 * * *", |s| s.at(2, 30)),
    fixed("30 1 * * *", |s| s.at(1, 30)),
    fixed("0 0 * * *", |s| s.at(0, 0)),
    Case { seconds: &[30], ..fixed("30 59 23 * * *", |s| s.at(23, 59)) },
    Case {
        seconds: &[0, 20, 40],
        ..fixed("*/20 30 1-3 * * *", |s| s.minute == 30 && (1..=3).contains(&s.hour))
    },
    fixed("0,30 0-4 * * *", |s| s.hour <= 4 && (s.minute == 0 || s.minute == 30)),
    fixed("15 2 * * MON-FRI", |s| s.at(2, 15) && (1..=5).contains(&s.weekday)),
    fixed("0 2 * * SUN", |s| s.at(2, 0) && s.weekday == 0),
    fixed("0 0 L * *", |s| s.at(0, 0) && s.day == s.days_in_month),
    fixed("0 3 LW * *", |s| s.at(3, 0) && s.is_workday_nearest_to(s.days_in_month)),
    fixed("0 9 15W * *", |s| s.at(9, 0) && s.is_workday_nearest_to(15)),
    fixed("0 12 * * MON#2", |s| s.at(12, 0) && s.weekday == 1 && (8..=14).contains(&s.day)),
    fixed("30 23 * * SATL", |s| s.at(23, 30) && s.weekday == 6 && s.day + 7 > s.days_in_month),
    fixed("0 0 1 1 *", |s| s.at(0, 0) && s.day == 1 && s.month == 1),
    fixed("45 1 13 * FRI", |s| s.at(1, 45) && (s.day == 13 || s.weekday == 5)),
    fixed("0 0 */2 * MON", |s| s.at(0, 0) && s.day % 2 == 1 && s.weekday == 1),
    follows("*/15 * * * *", |s| s.minute.is_multiple_of(15)),
    follows("0 * * * *", |s| s.minute == 0),
    follows("30 */2 * * *", |s| s.minute == 30 && s.hour.is_multiple_of(2)),
    follows("*/20 2 * * *", |s| s.minute.is_multiple_of(20) && s.hour == 2),
    Case { seconds: &[0, 15, 30, 45], ..follows("*/15 5 1/3 * * *", |s| s.minute == 5 && s.hour % 3 == 1) },
];

impl Shown {
    fn new(utc: i64, local: i64) -> Self {
        let time = DateTime::from_timestamp(local, 0).unwrap();
        let (year, month) = (time.year(), time.month());
        let next = if month == 12 {
            NaiveDate::from_ymd_opt(year + 1, 1, 1)
        } else {
            NaiveDate::from_ymd_opt(year, month + 1, 1)
        };
        Self {
            utc,
            local,
            month,
            day: time.day(),
            days_in_month: next.and_then(|day| day.pred_opt()).unwrap().day(),
            weekday: time.weekday().num_days_from_sunday(),
            hour: time.hour(),
            minute: time.minute(),
        }
    }

    fn at(&self, hour: u32, minute: u32) -> bool {
        self.hour == hour && self.minute == minute
    }

    /// Whether this is Monday to Friday, and no other such day of the month is nearer to `day`.
    fn is_workday_nearest_to(&self, day: u32) -> bool {
        let workdays = (1..=self.days_in_month).filter(|other| {
            let weekday = (i64::from(self.weekday) + i64::from(*other) - i64::from(self.day)).rem_euclid(7);
            (1..=5).contains(&weekday)
        });
        workdays.min_by_key(|other| other.abs_diff(day)) == Some(self.day)
    }
}

/// Every minute from `from` to `to`.
pub(crate) fn shown(zone: Tz, from: i64, to: i64) -> Vec<Shown> {
    (from..to).step_by(60).map(|utc| Shown::new(utc, utc + offset(zone, utc))).collect()
}

/// The offset of a zone from UTC, in seconds.
pub(crate) fn offset(zone: Tz, utc: i64) -> i64 {
    let utc = DateTime::from_timestamp(utc, 0).unwrap().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}

/// The fire times within the minutes, in seconds.
pub(crate) fn fire_times(case: &Case, minutes: &[Shown]) -> Vec<i64> {
    let mut fires = Vec::new();
    // The latest minute that the clock has shown.
    let mut latest = minutes[0].local - MINUTE;
    for shown in minutes {
        if case.fixed {
            let mut missed =
                (latest + MINUTE..shown.local).step_by(60).map(|local| Shown::new(shown.utc, local));
            if missed.any(|missed| (case.fits)(&missed)) {
                fires.push(shown.utc);
            }
            if shown.local <= latest {
                continue;
            }
            latest = shown.local;
        }
        if (case.fits)(shown) {
            fires.extend(case.seconds.iter().map(|second| shown.utc + second));
        }
    }
    fires.dedup();
    fires
}

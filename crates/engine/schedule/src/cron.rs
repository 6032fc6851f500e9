//! A cron expression as sets of numbers, and which times of which days are in them. Time zones are not handled
//! here: `zone.rs` handles changes of the clock.

use std::collections::BTreeSet;
use std::ops::Range;

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time, Weekday};

/// Small numbers, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(u64);

impl Set {
    pub(crate) fn insert(&mut self, number: u8) {
        self.0 |= 1_u64 << number;
    }

    pub(crate) fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.0.checked_shr(number).is_some_and(|rest| rest & 1 == 1))
    }

    /// The smallest number that is not below `from`.
    fn first_from(self, from: i8) -> Option<i8> {
        let rest = self.0.checked_shr(u32::try_from(from).ok()?).filter(|rest| *rest != 0)?;
        Some(from + i8::try_from(rest.trailing_zeros()).ok()?)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A parsed expression. No set of `seconds`, `minutes`, `hours` and `months` is empty.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    pub(crate) seconds: Set,
    pub(crate) minutes: Set,
    pub(crate) hours: Set,
    pub(crate) days: Days,
    pub(crate) months: Set,
    /// The years; `None` for all.
    pub(crate) years: Option<BTreeSet<i16>>,
    /// It names times of the day, with neither `*` nor a step in hour and minute. Otherwise it follows the clock.
    pub(crate) fixed: bool,
}

/// The day of month and the weekday.
#[derive(Clone, Debug, Default)]
pub(crate) struct Days {
    /// 1 to 31.
    pub(crate) of_month: Set,
    /// Days `15W`.
    pub(crate) near: Set,
    /// `L` and `L-3`: days before the last of the month.
    pub(crate) from_last: Set,
    /// `LW` and `L-3W`, likewise.
    pub(crate) near_from_last: Set,
    /// 0 to 6, from Sunday.
    pub(crate) of_week: Set,
    /// `MON#2`: for each of 1 to 5 the weekdays.
    pub(crate) nth: [Set; 5],
    /// `FRIL`: the weekdays.
    pub(crate) last_of_week: Set,
    /// One of the fields begins with `*`, so both must fit; otherwise either is enough.
    pub(crate) both: bool,
}

impl Cron {
    /// The first time in the range that fits all fields.
    pub(crate) fn first_in(&self, range: Range<DateTime>) -> Option<DateTime> {
        let (mut date, mut time) = (range.start.date(), range.start.time());
        while date <= range.end.date() {
            if let Some(years) = &self.years
                && !years.contains(&date.year())
            {
                date = Date::new(*years.range(date.year()..).next()?, 1, 1).ok()?;
                time = Time::midnight();
                continue;
            }
            let in_month = self.months.has(date.month());
            if in_month
                && self.days.has(date)
                && let Some(time) = self.first_time(time)
            {
                let found = date.to_datetime(time);
                return (found < range.end).then_some(found);
            }
            let passed = if in_month { date } else { date.last_of_month() };
            date = passed.tomorrow().ok()?;
            time = Time::midnight();
        }
        None
    }

    /// The first time of day that fits and is not before `from`.
    fn first_time(&self, from: Time) -> Option<Time> {
        let at = |hour, minute, second| Time::new(hour, minute, second, 0).ok();
        let (minute_min, second_min) = (self.minutes.first_from(0)?, self.seconds.first_from(0)?);
        if self.hours.has(from.hour()) {
            if self.minutes.has(from.minute())
                && let Some(second) = self.seconds.first_from(from.second())
            {
                return at(from.hour(), from.minute(), second);
            }
            if let Some(minute) = self.minutes.first_from(from.minute() + 1) {
                return at(from.hour(), minute, second_min);
            }
        }
        at(self.hours.first_from(from.hour() + 1)?, minute_min, second_min)
    }
}

impl Days {
    fn has(&self, date: Date) -> bool {
        if self.both {
            self.fits_month(date) && self.fits_week(date)
        } else {
            self.fits_month(date) || self.fits_week(date)
        }
    }

    fn fits_month(&self, date: Date) -> bool {
        let last = date.last_of_month();
        self.of_month.has(date.day())
            || self.from_last.has(last.day() - date.day())
            || !(self.near.is_empty() && self.near_from_last.is_empty()) && self.is_near(date, last)
    }

    /// Whether this is the workday of some `15W` or `LW`. Those are at most two days away.
    fn is_near(&self, date: Date, last: Date) -> bool {
        let candidates = (-2..=2).filter_map(|days: i64| date.checked_add(days.days()).ok());
        let wanted = |day: i8| self.near.has(day) || self.near_from_last.has(last.day() - day);
        candidates
            .filter(|other| other.month() == date.month() && wanted(other.day()))
            .any(|other| workday_near(other) == Some(date))
    }

    fn fits_week(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let nth = usize::try_from((date.day() - 1) / 7).ok().and_then(|index| self.nth.get(index));
        self.of_week.has(weekday)
            || nth.is_some_and(|weekdays| weekdays.has(weekday))
            || self.last_of_week.has(weekday) && date.day() + 7 > date.days_in_month()
    }
}

/// Of Monday to Friday the day that is nearest, in the same month.
fn workday_near(date: Date) -> Option<Date> {
    let days: i64 = match date.weekday() {
        Weekday::Saturday if date.day() == 1 => 2,
        Weekday::Saturday => -1,
        Weekday::Sunday if date == date.last_of_month() => -2,
        Weekday::Sunday => 1,
        _ => 0,
    };
    date.checked_add(days.days()).ok()
}

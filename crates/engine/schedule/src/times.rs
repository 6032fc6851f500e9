//! The time part of a rule, and the fire times that follow from it.

use std::time::Duration;

use jiff::tz::{AmbiguousOffset, TimeZone};
use serde::{Deserialize, Serialize};
use tasklane_core::time::{Timestamp, duration_micros};

use crate::cron::Cron;
use crate::{dialect, names, zone};

/// The longest cron expression and the longest time zone name, in bytes.
pub const TEXT_LEN_MAX: usize = 256;

/// The shortest interval between two fire times.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

const MICROS_PER_SECOND: i64 = 1_000_000;

/// How far ahead a fire time is looked for. The calendar repeats itself after 400 years, weekdays included.
const SEARCH_SECONDS: i64 = 146_097 * 24 * 60 * 60;

/// Where [`Times::new`] looks whether an expression ever fires: the year 2100, when every zone of the database has
/// reached the rule that it keeps from then on. What fires within one calendar cycle after it always fires again.
const SETTLED: Timestamp = Timestamp::from_millis(4_102_444_800_000);

/// Before all years that an expression can name.
const FIRST_YEAR: Timestamp = Timestamp::from_millis(-2 * 24 * 60 * 60 * 1000);

/// When a schedule fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A cron expression: minute, hour, day of month, month, weekday, and optionally seconds before them; or `@hourly`,
    /// `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`.
    ///
    /// - Fields are `*`, numbers, ranges `1-5`, steps `*/15` `10-40/5` `10/5` (from 10 to the end), and lists of these.
    ///   A range that falls goes on at the beginning: `FRI-MON`. Months may be `JAN` to `DEC`, weekdays `SUN` to `SAT`,
    ///   or their full names, in any case; 0 and 7 are both Sunday.
    /// - Days of the month may also be `L` (the last), `L-3` (three days before it), `LW` (the last from Monday to
    ///   Friday) and `15W` (of Monday to Friday the nearest to the 15th in the same month).
    /// - Weekdays may also be `MON#2` (the second Monday of the month) and `FRIL` (the last Friday).
    /// - If both day fields are restricted, a day fits if **either** does, as in Vixie cron. A field that begins with `*`
    ///   is not restricted, and then both must fit: `0 0 */2 * MON` fires on Mondays with an odd date.
    ///
    /// Changes of the clock follow Vixie cron too. An expression without `*` and steps in hour and minute names times of
    /// the day, and each fires once a day: a skipped time fires right after the gap, a repeated time fires the first
    /// time. Otherwise the expression follows the clock: it does not fire in the gap, and fires
    /// in both passes of a repeated hour.
    Cron(String),
    /// A cron expression as Quartz writes it: second, minute, hour, day of month, month, weekday, and optionally years
    /// from 1970 to 2099 behind them. One of the day fields is `?` or `*`. Weekdays count from 1, which is Sunday; `L`
    /// alone is Saturday. Everything else is as in `Cron`, also where clocks change.
    Quartz(String),
    /// At `anchor + n * interval`, for every `n` from 0.
    Every {
        /// At least a second; whole microseconds count.
        #[serde(with = "duration_micros")]
        interval: Duration,
        /// The first time.
        anchor: Timestamp,
    },
    /// Once.
    At(Timestamp),
}

/// Why a [`When`] is refused: the field that is wrong, and the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct TimesError {
    /// `cron`, `every` or `timezone`.
    pub field: &'static str,
    /// The rule, for people.
    pub message: String,
}

/// The fire times of a schedule: a [`When`] that was checked, in its time zone.
#[derive(Clone, Debug)]
pub struct Times {
    rule: Rule,
    zone: TimeZone,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Cron),
    Every { interval: Duration, anchor: Timestamp },
    At(Timestamp),
}

impl Times {
    /// Checks what a user wrote. `zone` is an IANA name such as `Europe/Paris`, or `UTC`; it decides what a cron
    /// expression means, and for the other kinds only what [`note`](Self::note) says.
    pub fn new(when: &When, zone: &str) -> Result<Self, TimesError> {
        let zone = parse_zone(zone)?;
        let rule = match when {
            When::Cron(text) => Rule::Cron(parse_cron(text, dialect::vixie)?),
            When::Quartz(text) => Rule::Cron(parse_cron(text, dialect::quartz)?),
            When::Every { interval, .. } if *interval < INTERVAL_MIN => {
                return Err(TimesError { field: "every", message: "must be at least 1 second".into() });
            }
            When::Every { interval, anchor } => Rule::Every { interval: *interval, anchor: *anchor },
            When::At(at) => Rule::At(*at),
        };
        let times = Self { rule, zone };
        if let When::Cron(text) | When::Quartz(text) = when
            && !times.fires()
        {
            return Err(times.never(text));
        }
        Ok(times)
    }

    /// Whether there is a time at all.
    fn fires(&self) -> bool {
        let ends = matches!(&self.rule, Rule::Cron(cron) if cron.years.is_some());
        self.after(if ends { FIRST_YEAR } else { SETTLED }).is_some()
    }

    /// Why an expression is refused that has no time.
    fn never(&self, text: &str) -> TimesError {
        let remedy = if (Self { rule: self.rule.clone(), zone: TimeZone::UTC }).fires() {
            "its clocks skip that hour on those days; write another hour"
        } else {
            "write days that these months have, such as L for the last one"
        };
        let zone = self.zone.iana_name().unwrap_or("UTC");
        let message =
            format!(r#""{text}" never fires: no date and time in {zone} fits all of its fields; {remedy}"#);
        TimesError { field: "cron", message }
    }

    /// The first time strictly after `after`. Fire times do not depend on where one starts to ask: any `after` between
    /// two of them gives the later one. There is none after a single time has passed, or beyond the year 9999.
    pub fn after(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            Rule::Cron(cron) => self.cron_after(cron, after),
            Rule::Every { interval, anchor } => every_after(*interval, *anchor, after),
            Rule::At(at) => (*at > after).then_some(*at),
        }
    }

    /// A note for people about the fire time `at` in its zone: it stands for a time that does not exist, or the clock
    /// shows it twice. Ordinarily `None`.
    pub fn note(&self, at: Timestamp) -> Option<String> {
        let at = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?;
        let local = self.zone.to_datetime(at);
        if let Rule::Cron(cron) = &self.rule
            && cron.fixed
            && let Some(change) = zone::stretch(&self.zone, at).begin
            && change.at == at
            && let Some(missed) = cron.first_in(change.stopped..change.shows)
        {
            let day =
                if missed.date() == local.date() { "this day".into() } else { missed.date().to_string() };
            return Some(format!("{} does not exist on {day}: clocks go forward", clock(missed.time())));
        }
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Fold { before, .. } => {
                let which = if self.zone.to_offset(at) == before { "first" } else { "second" };
                Some(format!("{} comes twice on this day: this is the {which}", clock(local.time())))
            }
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Gap { .. } => None,
        }
    }

    /// The local time of its zone at a time, with the offset from UTC.
    pub fn local(&self, at: Timestamp) -> String {
        let at = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::MAX);
        at.display_with_offset(self.zone.to_offset(at)).to_string()
    }

    fn cron_after(&self, cron: &Cron, after: Timestamp) -> Option<Timestamp> {
        // Cron fires at whole seconds, so this is the first moment that can be the answer.
        let second = after.as_micros().div_euclid(MICROS_PER_SECOND) + 1;
        let second = second.max(jiff::Timestamp::MIN.as_second());
        let until = (second + SEARCH_SECONDS).min(jiff::Timestamp::MAX.as_second());
        let until = jiff::Timestamp::from_second(until).ok()?;
        let mut from = jiff::Timestamp::from_second(second).ok()?;
        // At most some hundreds of rounds: zones change their offset a few times a year.
        while from < until {
            let stretch = zone::stretch(&self.zone, from);
            if let Some(found) = stretch.first(cron, from, until) {
                return Some(Timestamp::from_micros(found.as_microsecond()));
            }
            from = stretch.end?;
        }
        None
    }
}

fn every_after(interval: Duration, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
    if after < anchor {
        return Some(anchor);
    }
    // Wide enough for the whole range of times, from the first to the last.
    let interval = i128::try_from(interval.as_micros()).ok()?;
    let anchor = i128::from(anchor.as_micros());
    let passed = (i128::from(after.as_micros()) - anchor) / interval;
    let next = interval.checked_mul(passed + 1)?.checked_add(anchor)?;
    i64::try_from(next).ok().map(Timestamp::from_micros)
}

fn parse_cron(text: &str, dialect: fn(&str) -> Result<Cron, String>) -> Result<Cron, TimesError> {
    let refuse = |message| TimesError { field: "cron", message };
    check_len(text).map_err(refuse)?;
    dialect(text).map_err(refuse)
}

fn parse_zone(name: &str) -> Result<TimeZone, TimesError> {
    let refuse = |message| TimesError { field: "timezone", message };
    check_len(name).map_err(refuse)?;
    zone::find(name).ok_or_else(|| {
        let advice = match names::nearest(name, zone::names()) {
            Some(nearest) => format!(r#"did you mean "{nearest}"?"#),
            None => r#"use an IANA name such as "Europe/Paris", or "UTC""#.into(),
        };
        refuse(format!(r#"unknown time zone "{name}": {advice}"#))
    })
}

fn check_len(text: &str) -> Result<(), String> {
    let len = text.len();
    if len > TEXT_LEN_MAX {
        return Err(format!("must be at most {TEXT_LEN_MAX} bytes long, not {len}"));
    }
    Ok(())
}

/// A time of day as people write it, seconds only if there are some.
fn clock(time: jiff::civil::Time) -> String {
    if time.second() == 0 {
        time.strftime("%H:%M").to_string()
    } else {
        time.strftime("%H:%M:%S").to_string()
    }
}

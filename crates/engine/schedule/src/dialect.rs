//! The two ways to write a cron expression: as Vixie cron does, and as Quartz does (Java's scheduler, and XXL-JOB).
//!
//! They look alike and differ in meaning: Quartz counts weekdays from 1 for Sunday, Vixie cron from 0. So no expression
//! is taken for the other dialect by its looks; an expression that looks like Quartz is refused and the error names the
//! dialect.

use crate::cron::{Cron, Days};
use crate::fields::{HOUR, MINUTE, MONTH, QUARTZ_WEEKDAY, SECOND, WEEKDAY, YEAR, days_of_month};

/// Reads an expression of Vixie cron. The error is the rule that it breaks, with a remedy.
pub(crate) fn vixie(text: &str) -> Result<Cron, String> {
    let text = text.trim();
    check_zone(text)?;
    if text.starts_with('@') {
        return vixie(nickname(text)?);
    }
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let (second, [minute, hour, day, month, weekday]) = match fields[..] {
        [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
        [second, minute, hour, day, month, weekday] => (second, [minute, hour, day, month, weekday]),
        _ => {
            let count = fields.len();
            let remedy = match count {
                7 => "with a year as the seventh it is an expression of Quartz: set dialect to quartz",
                _ => "write * where every value fits",
            };
            return Err(format!("must have five fields, or six with seconds first, not {count}; {remedy}"));
        }
    };
    if text.contains('?') {
        let quartz = if fields.len() == 6 {
            "if this is an expression of Quartz, set dialect to quartz; else "
        } else {
            ""
        };
        return Err(format!(r#""?" is known to the dialect quartz only: {quartz}write * in its place"#));
    }
    cron([second, minute, hour, month], || {
        let mut days = Days { both: day.starts_with('*') || weekday.starts_with('*'), ..Days::default() };
        days_of_month(day, &mut days)?;
        WEEKDAY.days_of_week(weekday, &mut days)?;
        Ok(days)
    })
}

/// Some libraries take a time zone before the fields.
fn check_zone(text: &str) -> Result<(), String> {
    let zone = ["CRON_TZ=", "TZ="].into_iter().find_map(|prefix| text.strip_prefix(prefix));
    match zone.and_then(|rest| rest.split_ascii_whitespace().next()) {
        Some(zone) => Err(format!(
            "holds a time zone, which is a field of its own: set timezone to {zone}, and leave it out here"
        )),
        None => Ok(()),
    }
}

/// Reads an expression of Quartz, likewise.
pub(crate) fn quartz(text: &str) -> Result<Cron, String> {
    let text = text.trim();
    check_zone(text)?;
    if text.starts_with('@') {
        return vixie(nickname(text)?);
    }
    // A step without a beginning counts from the first value.
    let fields = text.split_ascii_whitespace().map(|field| match field.strip_prefix('/') {
        Some(step) => format!("*/{step}"),
        None => field.to_owned(),
    });
    let fields: Vec<String> = fields.collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let ([second, minute, hour, day, month, weekday], year) = match fields[..] {
        [second, minute, hour, day, month, weekday] => ([second, minute, hour, day, month, weekday], "*"),
        [second, minute, hour, day, month, weekday, year] => {
            ([second, minute, hour, day, month, weekday], year)
        }
        _ => {
            let count = fields.len();
            let remedy = match count {
                5 => "write 0 before the minute, or leave the dialect out",
                _ => "write * where every value fits, and ? in one of the day fields",
            };
            return Err(format!(
                "must have six fields with seconds first, or seven with the year last, not {count}; {remedy}"
            ));
        }
    };
    let open = |field: &str| field == "?" || field == "*";
    if day == "?" && weekday == "?" {
        return Err(r#"day of month and weekday are both "?"; write * in one of them"#.to_owned());
    }
    if !open(day) && !open(weekday) {
        return Err(format!(
            r#"day of month "{day}" and weekday "{weekday}": Quartz takes one of them; write ? in the other"#
        ));
    }
    let mut cron = cron([second, minute, hour, month], || {
        let mut days = Days { both: true, ..Days::default() };
        days_of_month(if day == "?" { "*" } else { day }, &mut days)?;
        let weekday = match weekday {
            "?" => "*",
            last if last.eq_ignore_ascii_case("L") => "SAT",
            weekday => weekday,
        };
        QUARTZ_WEEKDAY.days_of_week(weekday, &mut days)?;
        Ok(days)
    })?;
    if year != "*" {
        for item in year.split(',') {
            let years = YEAR.item_numbers(item)?;
            cron.years
                .get_or_insert_default()
                .extend(years.iter().filter_map(|year| i16::try_from(*year).ok()));
        }
    }
    Ok(cron)
}

fn cron(
    [second, minute, hour, month]: [&str; 4],
    days: impl FnOnce() -> Result<Days, String>,
) -> Result<Cron, String> {
    let seconds = SECOND.numbers(second)?;
    let minutes = MINUTE.numbers(minute)?;
    let hours = HOUR.numbers(hour)?;
    Ok(Cron {
        seconds: seconds.set,
        minutes: minutes.set,
        hours: hours.set,
        days: days()?,
        months: MONTH.numbers(month)?.set,
        years: None,
        fixed: !minutes.follows_clock && !hours.follows_clock,
    })
}

fn nickname(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "@hourly" => Ok("0 * * * *"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@monthly" => Ok("0 0 1 * *"),
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        _ => Err(format!(
            r#""{text}" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually or @every 5m"#
        )),
    }
}

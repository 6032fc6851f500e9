//! Reads the text of a cron expression. Errors say which field is wrong and what it may be.

use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::cron::{Cron, Days, Set};

/// What one of the fields is called, and what it may hold.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    /// Words for the numbers from `min` on.
    words: &'static [&'static str],
    /// All that may be written, for people.
    allowed: &'static str,
}

const SECOND: Field = Field {
    name: "second",
    min: 0,
    max: 59,
    words: &[],
    allowed: "*, numbers from 0 to 59, ranges such as 0-30, steps such as */10",
};
const MINUTE: Field = Field { name: "minute", ..SECOND };
const HOUR: Field = Field {
    name: "hour",
    min: 0,
    max: 23,
    words: &[],
    allowed: "*, numbers from 0 to 23, ranges such as 9-17, steps such as */2",
};
const DAY: Field = Field {
    name: "day of month",
    min: 1,
    max: 31,
    words: &[],
    allowed: "*, numbers from 1 to 31, ranges such as 1-7, steps such as */2, L, LW, 15W",
};
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    words: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    allowed: "*, numbers from 1 to 12, JAN to DEC, ranges such as 1-3, steps such as */3",
};
const WEEKDAY: Field = Field {
    name: "weekday",
    min: 0,
    max: 7,
    words: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
    allowed: "*, numbers from 0 to 7, SUN to SAT, ranges such as MON-FRI, steps such as */2, MON#2, FRIL",
};

/// Sunday has two numbers; days are kept under the first.
const SUNDAY_AGAIN: u8 = 7;

/// The numbers of a field, and what matters of how they were written.
#[derive(Default)]
struct Numbers {
    set: Set,
    /// It contains `*` or a step.
    follows_clock: bool,
}

/// Reads an expression. The error is the rule that it breaks.
pub(crate) fn parse(text: &str) -> Result<Cron, String> {
    let text = text.trim();
    if text.starts_with('@') {
        return parse(nickname(text)?);
    }
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let (second, [minute, hour, day, month, weekday]) = match fields[..] {
        [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
        [second, minute, hour, day, month, weekday] => (second, [minute, hour, day, month, weekday]),
        _ => return Err(format!("must have five fields, or six with seconds first, not {}", fields.len())),
    };
    let seconds = SECOND.numbers(second)?;
    let minutes = MINUTE.numbers(minute)?;
    let hours = HOUR.numbers(hour)?;
    Ok(Cron {
        seconds: seconds.set,
        minutes: minutes.set,
        hours: hours.set,
        days: days(day, weekday)?,
        months: MONTH.numbers(month)?.set,
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
            r#""{text}" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually"#
        )),
    }
}

/// The day of month and the weekday, which have forms of their own.
fn days(day: &str, weekday: &str) -> Result<Days, String> {
    let mut days = Days { both: day.starts_with('*') || weekday.starts_with('*'), ..Days::default() };
    let mut plain = Numbers::default();
    for item in day.split(',') {
        if item.eq_ignore_ascii_case("L") {
            days.last = true;
        } else if item.eq_ignore_ascii_case("LW") {
            days.last_workday = true;
        } else if let Some(near) = item.strip_suffix(['W', 'w']) {
            days.near.insert(DAY.number(near, item)?);
        } else {
            DAY.item(item, &mut plain)?;
        }
    }
    days.of_month = plain.set;
    let mut plain = Numbers::default();
    for item in weekday.split(',') {
        if let Some((weekday, nth)) = item.split_once('#') {
            let index = digits::<usize>(nth).and_then(|nth| nth.checked_sub(1));
            let set = index.and_then(|index| days.nth.get_mut(index));
            let set = set.ok_or_else(|| WEEKDAY.wrong(item, "what follows # must be 1 to 5"))?;
            set.insert(WEEKDAY.number(weekday, item)? % SUNDAY_AGAIN);
        } else if let Some(weekday) = item.strip_suffix(['L', 'l']) {
            days.last_of_week.insert(WEEKDAY.number(weekday, item)? % SUNDAY_AGAIN);
        } else {
            WEEKDAY.item(item, &mut plain)?;
        }
    }
    days.of_week = plain.set;
    Ok(days)
}

impl Field {
    fn numbers(&self, text: &str) -> Result<Numbers, String> {
        let mut numbers = Numbers::default();
        for item in text.split(',') {
            self.item(item, &mut numbers)?;
        }
        Ok(numbers)
    }

    /// Adds one item of a list: `*`, a number or a range, perhaps with a step.
    fn item(&self, item: &str, numbers: &mut Numbers) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step, item)?)),
            None => (item, None),
        };
        numbers.follows_clock |= range == "*" || step.is_some();
        for number in self.range(range, step.is_some(), item)?.step_by(step.unwrap_or(1)) {
            numbers.set.insert(if self.max == SUNDAY_AGAIN { number % SUNDAY_AGAIN } else { number });
        }
        Ok(())
    }

    fn step(&self, step: &str, item: &str) -> Result<usize, String> {
        let steps = 1..=usize::from(self.max);
        let wrong = || self.wrong(item, &format!("the step must be 1 to {}", self.max));
        digits(step).filter(|step| steps.contains(step)).ok_or_else(wrong)
    }

    fn range(&self, range: &str, stepped: bool, item: &str) -> Result<RangeInclusive<u8>, String> {
        // Sunday would count twice in `*`, which matters to its steps.
        let max = if self.max == SUNDAY_AGAIN { self.max - 1 } else { self.max };
        if range == "*" {
            return Ok(self.min..=max);
        }
        let Some((from, to)) = range.split_once('-') else {
            let number = self.number(range, item)?;
            return Ok(number..=if stepped { max.max(number) } else { number });
        };
        let (first, mut last) = (self.number(from, item)?, self.number(to, item)?);
        if self.max == SUNDAY_AGAIN && first > 0 && to.eq_ignore_ascii_case("SUN") {
            last = SUNDAY_AGAIN;
        }
        if first > last {
            let min = self.min;
            return Err(self.wrong(item, &format!("a range must rise; write {first}-{max},{min}-{last}")));
        }
        Ok(first..=last)
    }

    fn number(&self, text: &str, item: &str) -> Result<u8, String> {
        let word = self.words.iter().zip(self.min..).find(|(word, _)| word.eq_ignore_ascii_case(text));
        if let Some((_, number)) = word {
            return Ok(number);
        }
        let number = digits(text).filter(|number| (self.min..=self.max).contains(number));
        number.ok_or_else(|| self.wrong(item, &format!("may be {}", self.allowed)))
    }

    fn wrong(&self, item: &str, rule: &str) -> String {
        format!(r#"{} "{item}": {rule}"#, self.name)
    }
}

/// Without the plus sign that the standard library would take.
fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

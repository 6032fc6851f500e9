//! The fields of a cron expression and what they may hold. Errors name the field, its rule and what to write instead.

use std::str::FromStr;

use crate::cron::{Days, Set};

/// What one of the fields is called, and what it may hold.
pub(crate) struct Field {
    name: &'static str,
    min: u16,
    max: u16,
    /// Words for the numbers from `min` on; the first three letters are enough.
    words: &'static [&'static str],
    /// All that may be written, for people.
    allowed: &'static str,
}

pub(crate) const SECOND: Field = Field {
    name: "second",
    min: 0,
    max: 59,
    words: &[],
    allowed: "*, numbers from 0 to 59, ranges such as 0-30, steps such as */10",
};
pub(crate) const MINUTE: Field = Field { name: "minute", ..SECOND };
pub(crate) const HOUR: Field = Field {
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
    allowed: "*, numbers from 1 to 31, ranges such as 1-7, steps such as */2, L, L-3, LW, 15W",
};
pub(crate) const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    words: &[
        "JANUARY",
        "FEBRUARY",
        "MARCH",
        "APRIL",
        "MAY",
        "JUNE",
        "JULY",
        "AUGUST",
        "SEPTEMBER",
        "OCTOBER",
        "NOVEMBER",
        "DECEMBER",
    ],
    allowed: "*, numbers from 1 to 12, JAN to DEC, ranges such as 1-3, steps such as */3",
};
/// Sunday is 0 and 7.
pub(crate) const WEEKDAY: Field = Field {
    name: "weekday",
    min: 0,
    max: 7,
    words: &["SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY"],
    allowed: "*, numbers from 0 to 7, SUN to SAT, ranges such as MON-FRI, steps such as */2, MON#2, FRIL",
};
/// Sunday is 1.
pub(crate) const QUARTZ_WEEKDAY: Field = Field {
    min: 1,
    allowed: "*, ?, numbers from 1 (Sunday) to 7 (Saturday), SUN to SAT, ranges such as MON-FRI, steps such as */2, \
              MON#2, FRIL, L",
    ..WEEKDAY
};
pub(crate) const YEAR: Field = Field {
    name: "year",
    min: 1970,
    max: 2099,
    words: &[],
    allowed: "*, numbers from 1970 to 2099, ranges such as 2030-2035, steps such as */2",
};

/// The numbers of a field, and what matters of how they were written.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) set: Set,
    /// It contains `*` or a step.
    pub(crate) follows_clock: bool,
}

/// The day of month.
pub(crate) fn days_of_month(text: &str, days: &mut Days) -> Result<(), String> {
    let mut plain = Numbers::default();
    for item in text.split(',') {
        let upper = item.to_ascii_uppercase();
        if let Some(of_last) = upper.strip_prefix('L') {
            let (offset, near) = match of_last.strip_suffix('W') {
                Some(offset) => (offset, true),
                None => (of_last, false),
            };
            let offset =
                if offset.is_empty() { Some(0) } else { offset.strip_prefix('-').and_then(digits::<u8>) };
            let offset = offset.filter(|offset| u16::from(*offset) < DAY.max);
            let offset = offset.ok_or_else(|| DAY.not_allowed(item))?;
            if near { days.near_from_last.insert(offset) } else { days.from_last.insert(offset) }
        } else if let Some(near) = upper.strip_suffix('W') {
            days.near.insert(DAY.kept(DAY.number(near, item)?));
        } else {
            DAY.item(item, &mut plain)?;
        }
    }
    days.of_month = plain.set;
    Ok(())
}

impl Field {
    /// The weekday.
    pub(crate) fn days_of_week(&self, text: &str, days: &mut Days) -> Result<(), String> {
        let mut plain = Numbers::default();
        for item in text.split(',') {
            if let Some((weekday, nth)) = item.split_once('#') {
                self.one_weekday(weekday, item, &format!("#{nth}"))?;
                if nth.eq_ignore_ascii_case("L") {
                    return Err(self.wrong(item, &format!("write {weekday}L")));
                }
                let index = digits::<usize>(nth).and_then(|nth| nth.checked_sub(1));
                let set = index.and_then(|index| days.nth.get_mut(index));
                let set = set.ok_or_else(|| self.wrong(item, "what follows # must be 1 to 5"))?;
                set.insert(self.kept(self.number(weekday, item)?));
            } else if let Some(weekday) = item.strip_suffix(['L', 'l']) {
                if weekday.is_empty() {
                    return Err(
                        self.wrong(item, "write the weekday before it, such as FRIL for the last Friday")
                    );
                }
                self.one_weekday(weekday, item, "L")?;
                days.last_of_week.insert(self.kept(self.number(weekday, item)?));
            } else {
                self.item(item, &mut plain)?;
            }
        }
        days.of_week = plain.set;
        Ok(())
    }

    /// Refuses a range of weekdays where one weekday is meant.
    fn one_weekday(&self, weekdays: &str, item: &str, suffix: &str) -> Result<(), String> {
        if !weekdays.contains('-') {
            return Ok(());
        }
        let each = self.range(weekdays, None, item)?.into_iter().map(|number| {
            let name = self.words.get(usize::from(self.kept(number))).map_or("", |word| &word[..3]);
            format!("{name}{suffix}")
        });
        Err(self
            .wrong(item, &format!("a range has no such days; write {}", each.collect::<Vec<_>>().join(","))))
    }

    pub(crate) fn numbers(&self, text: &str) -> Result<Numbers, String> {
        let mut numbers = Numbers::default();
        for item in text.split(',') {
            self.item(item, &mut numbers)?;
        }
        Ok(numbers)
    }

    /// Adds one item of a list.
    fn item(&self, item: &str, numbers: &mut Numbers) -> Result<(), String> {
        numbers.follows_clock |= item == "*" || item.contains('/');
        for number in self.item_numbers(item)? {
            numbers.set.insert(self.kept(number));
        }
        Ok(())
    }

    /// The numbers of an item: `*`, a number or a range, perhaps with a step.
    pub(crate) fn item_numbers(&self, item: &str) -> Result<Vec<u16>, String> {
        match item.split_once('/') {
            Some(("", step)) if digits::<u16>(step).is_some() => {
                Err(self.wrong(item, &format!("write */{step}")))
            }
            Some((range, step)) => {
                let step = self.step(step, item)?;
                self.range(range, Some(step), item)
            }
            None => self.range(item, None, item),
        }
    }

    fn step(&self, step: &str, item: &str) -> Result<usize, String> {
        let max = if self.min > 60 { self.max - self.min } else { self.max };
        let steps = 1..=usize::from(max);
        let wrong = || self.wrong(item, &format!("the step must be 1 to {max}"));
        digits(step).filter(|step| steps.contains(step)).ok_or_else(wrong)
    }

    /// The numbers of a range. A range that falls goes on from the end of the field to its beginning: `FRI-MON`.
    fn range(&self, range: &str, step: Option<usize>, item: &str) -> Result<Vec<u16>, String> {
        let max = if self.has_two_sundays() { self.max - 1 } else { self.max };
        let stepped = |first: u16, last: u16| (first..=last).step_by(step.unwrap_or(1)).collect();
        if range == "*" {
            return Ok(stepped(self.min, max));
        }
        let Some((from, to)) = range.split_once('-') else {
            let number = self.number(range, item)?;
            return Ok(stepped(number, if step.is_some() { max.max(number) } else { number }));
        };
        if to.eq_ignore_ascii_case("L") && self.name == DAY.name {
            return Err(self.wrong(item, &format!("write {from}-31")));
        }
        let (mut first, last) = (self.number(from, item)?, self.number(to, item)?);
        if first != last && first > max {
            first = self.min;
        }
        if first <= last {
            return Ok(stepped(first, last));
        }
        if self.name == YEAR.name {
            return Err(self.wrong(item, &format!("a range of years must rise; write {last}-{first}")));
        }
        let span = max - self.min + 1;
        let on: Vec<u16> = stepped(first, last + span);
        Ok(on.into_iter().map(|number| (number - self.min) % span + self.min).collect())
    }

    fn number(&self, text: &str, item: &str) -> Result<u16, String> {
        let named = |word: &&str| {
            word.eq_ignore_ascii_case(text) || text.len() == 3 && word[..3].eq_ignore_ascii_case(text)
        };
        if let Some((_, number)) = self.words.iter().zip(self.min..).find(|(word, _)| named(word)) {
            return Ok(number);
        }
        let number = digits(text).filter(|number| (self.min..=self.max).contains(number));
        number.ok_or_else(|| self.not_allowed(item))
    }

    /// A number as sets keep it: weekdays count from Sunday, which is 0.
    fn kept(&self, number: u16) -> u8 {
        let number = match self.name {
            _ if self.has_two_sundays() => number % self.max,
            name if name == WEEKDAY.name => number - self.min,
            _ => number,
        };
        u8::try_from(number).unwrap_or(u8::MAX)
    }

    fn has_two_sundays(&self) -> bool {
        self.name == WEEKDAY.name && self.min == 0
    }

    fn not_allowed(&self, item: &str) -> String {
        let upper = item.to_ascii_uppercase();
        match upper.chars().next() {
            Some('H' | 'R')
                if upper.len() == 1 || !upper[1..].starts_with(|c: char| c.is_ascii_alphabetic()) =>
            {
                self.wrong(item, "write a number; jitter spreads the fires of many schedules")
            }
            Some('+') if self.name == WEEKDAY.name => {
                let rest = &item[1..];
                self.wrong(item, &format!("write {rest}: a day fits if either day field does"))
            }
            _ => self.wrong(item, &format!("may be {}", self.allowed)),
        }
    }

    pub(crate) fn wrong(&self, item: &str, rule: &str) -> String {
        format!(r#"{} "{item}": {rule}"#, self.name)
    }
}

/// Without the plus sign that the standard library would take.
pub(crate) fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

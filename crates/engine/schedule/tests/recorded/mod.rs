//! Expressions and times recorded from the test suites of five cron libraries: robfig/cron, gorhill/cronexpr, croniter,
//! cron-parser and croner. The file lies beside the project, not in it; without it the test is skipped, aloud.
//!
//! Where an expression is taken here, the times agree with the library's or the difference is named below. Where it is
//! refused, the error names a remedy.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::ToSpan;
use tasklane_core::time::Timestamp;
use tasklane_schedule::{Times, When};

const FILE: &str = "../../../../shared/data/cron.tsv";

/// The file holds at least this many cases.
const CASES_MIN: usize = 1200;

const STAR_STEP: &str =
    "both day fields must fit where one begins with *, also with a step, as in Vixie cron";
const GAP: &str =
    "a fixed time that clocks skip fires right after the gap, as in Vixie cron; with a step it is left out";
const HALF_HOUR: &str = "clocks of Lord Howe skip half an hour; the library takes it for a whole one";
const TWICE: &str = "a fixed time that clocks show twice fires the first time, as in Vixie cron";
const BACKWARDS: &str = "the library goes by the clock on the wall, and back in time where it is set back";
const MOVED: &str = "the zone has other rules in the year to which the recording is moved";
const STAR_IN_LIST: &str = "* in a list stands for every day";
const WRAPPED_STEP: &str = "a step goes on across the end of a range that wraps, as in Quartz";
const SAME_ENDS: &str = "a range from a day to itself is that day, not the whole week";
const MIXED: &str = "a list may hold plain weekdays beside the nth ones";
const TWICE_IN_LIST: &str = "a number may stand in a list twice";
const WRAPS: &str = "a range that falls goes on at the beginning, in every field";
const FROM_STEP: &str = "n/step counts from n, as in robfig/cron and Quartz";
const OPTION: &str = "refused there because of an option of the library";

/// Differences, by suite, expression and zone.
#[rustfmt::skip]
const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    ("robfig", "* * */10 * Sun", "UTC", STAR_STEP),
    ("robfig", "0 0 0 */5 Apr,Aug,Oct Mon", "UTC", STAR_STEP),
    ("croniter", "0 16 */2 * sat", "UTC", STAR_STEP),
    ("robfig", "0 30 2 11 Mar ?", "America/New_York", GAP),
    ("robfig", "0 0 2 * * ?", "America/New_York", GAP),
    ("croniter", "1 2 * * *", "Europe/Paris", GAP),
    ("cron-parser", "*/20 3 * * *", "Europe/Athens", GAP),
    ("cron-parser", "30 1 * * *", "Antarctica/Troll", GAP),
    ("cron-parser", "30 2 * * *", "Antarctica/Troll", GAP),
    ("cron-parser", "30 59 2 * * *", "America/New_York", GAP),
    ("cron-parser", "30 1,2 * * *", "Australia/Lord_Howe", HALF_HOUR),
    ("croner", "0 30 2 12 3 *", "America/New_York", GAP),
    ("croner", "0 30 2 * * *", "America/New_York", GAP),
    ("croner", "0 30 1 * * *", "Europe/London", GAP),
    ("robfig", "0 30 1 04 Nov ?", "America/New_York", TWICE),
    ("robfig", "0 0 1 * * ?", "America/New_York", TWICE),
    ("croner", "0 30 1 * * *", "America/New_York", BACKWARDS),
    ("croner", "* * * * *", "America/Los_Angeles", BACKWARDS),
    ("croniter", "0 0 * * *", "Asia/Hebron", MOVED),
    ("cron-parser", "0 9 1 1 *", "America/Sao_Paulo", MOVED),
    ("cron-parser", "0 12 * * *", "Pacific/Apia", MOVED),
    ("croniter", "0 0 * * *,sat#3", "UTC", STAR_IN_LIST),
    ("croniter", "0 0 1 Apr-Mar/2 *", "UTC", WRAPPED_STEP),
    ("croniter", "0 0 * * Thu-Tue/2", "UTC", WRAPPED_STEP),
    ("croniter", "0 0 * * thu-tue/2", "UTC", WRAPPED_STEP),
    ("croniter", "0 0 * * Sun-Sun", "UTC", SAME_ENDS),
    ("croniter", "0 0 * * 7-7", "UTC", SAME_ENDS),
    ("croniter", "0 0 * * 0-0", "UTC", SAME_ENDS),
    ("croniter", "0 0 * * 5,6#3", "UTC", MIXED),
    ("cron-parser", "0,0 0 0 1 1 0", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0,0 * * * *", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0,0 * * *", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0 * * 0,0", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0 * * 0,7", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0 * * 7,0", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0,0,0 * * * *", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0 * * 0,0,0", "UTC", TWICE_IN_LIST),
    ("cron-parser", "0 0 12 1-31 * 1", "UTC", OPTION),
    ("croner", "0 0 * * * *", "UTC", OPTION),
    ("croner", "0 * * * *", "UTC", OPTION),
    ("cron-parser", "30-20 * * * * *", "UTC", WRAPS),
    ("croner", "0 17-9 * * *", "UTC", WRAPS),
    ("croner", "* 12-2 * * * *", "UTC", WRAPS),
    ("croner", "* 50-40/5 * * * *", "UTC", WRAPS),
    ("croner", "* 5/5 * * * *", "UTC", FROM_STEP),
    ("croner", "* 1,2/5 * * * *", "UTC", FROM_STEP),
    ("croner", "0/10 * * * * *", "UTC", FROM_STEP),
    ("croner", "30/30 * * * * *", "UTC", FROM_STEP),
    ("croner", "5/5 * * * * *", "UTC", FROM_STEP),
    ("croner", "* 0/10 * * * *", "UTC", FROM_STEP),
    ("croner", "* * 12/6 * * *", "UTC", FROM_STEP),
    ("croner", "* * * 5/2 * *", "UTC", FROM_STEP),
    ("croner", "* * * * 3/3 *", "UTC", FROM_STEP),
    ("croner", "* * * * * 2/2", "UTC", FROM_STEP),
    ("croner", "15/5 * * * * *", "UTC", FROM_STEP),
];

/// Starts before this time are recorded as moved.
const RECORDED: &str = "2027-01-01T00:00:00Z";

struct Case {
    suite: String,
    expression: String,
    zone: String,
    from: String,
    class: String,
    said: String,
    /// What Tasklane said when the cases were recorded.
    recorded: String,
    note: String,
}

/// The cells of a line: tabs separate them, quotes surround cells with tabs or quotes.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if quoted || cell.is_empty() => quoted = !quoted,
            '\t' if !quoted => cells.push(std::mem::take(&mut cell)),
            '\r' => {}
            char => cell.push(char),
        }
    }
    cells.push(cell);
    cells
}

fn parsed(time: &str) -> jiff::Timestamp {
    time.parse().unwrap_or_else(|error| panic!("{time}: {error}"))
}

fn moved(time: jiff::Timestamp, years: i64) -> jiff::Timestamp {
    time.to_zoned(jiff::tz::TimeZone::UTC).checked_add(years.years()).unwrap().timestamp()
}

fn micros(time: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(time.as_microsecond())
}

impl Case {
    fn of(line: &str) -> Self {
        let cells: [String; 8] = cells(line).try_into().unwrap_or_else(|_| panic!("not eight cells: {line}"));
        let [suite, expression, zone, from, class, said, recorded, note] = cells;
        Self { suite, expression, zone, from, class, said, recorded, note }
    }

    /// Starts are moved to after the recording by 28 years at a time, after which weekdays and leap years are the same;
    /// not those of expressions that were refused then.
    fn years_moved(&self) -> i64 {
        let (mut from, mut years) = (parsed(&self.from), 0);
        while from < parsed(RECORDED) && !self.class.starts_with("refused") {
            years += 28;
            from = moved(parsed(&self.from), years);
        }
        years
    }

    /// The difference between our times and those of the library, if there is one.
    fn wrong(&self, times: &Times) -> Option<String> {
        if self.from.is_empty() {
            return None;
        }
        let years = self.years_moved();
        let mut at = micros(moved(parsed(&self.from), years));
        if let Some(not) = self.note.strip_prefix("not:") {
            let not = micros(moved(parsed(not), years));
            return (times.after(at) == Some(not)).then(|| format!("fires at {not}"));
        }
        for said in self.said.split(' ').filter(|said| !said.is_empty()) {
            let said = parsed(said);
            let ours = times.after(at).map(|at| jiff::Timestamp::from_microsecond(at.as_micros()).unwrap());
            if ours != Some(said) {
                return Some(format!("{ours:?}, not {said}"));
            }
            at = micros(said);
        }
        None
    }

    /// Whether Tasklane took the expression when the cases were recorded.
    fn was_taken(&self) -> bool {
        !self.recorded.starts_with("REFUSED")
    }

    /// Whether weekdays mean the same in both dialects.
    fn is_the_same_in_quartz(&self) -> bool {
        let weekday = self.expression.split_ascii_whitespace().nth(5);
        weekday.is_some_and(|weekday| !weekday.bytes().any(|byte| byte.is_ascii_digit()))
    }
}

#[test]
fn recorded_cases_agree_or_differ_by_name() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("SKIPPED: {FILE} is not there");
        return;
    };
    let cases: Vec<Case> = text.lines().skip(1).map(Case::of).collect();
    assert!(cases.len() >= CASES_MIN, "only {} cases", cases.len());
    let (mut failures, mut named, mut agreed, mut in_quartz) = (Vec::new(), BTreeSet::new(), 0, 0);
    let (mut refused, mut differ, mut still_taken) = (0, 0, 0);
    for case in &cases {
        let Case { suite, expression, zone, .. } = case;
        let refused_there = case.said == "refused";
        let taken = Times::new(&When::Cron(expression.clone()), zone);
        let quartz = || Times::new(&When::Quartz(expression.clone()), zone).ok();
        // Stored schedules go on: an expression that was taken once is never refused.
        if case.was_taken() {
            match &taken {
                Ok(_) => still_taken += 1,
                Err(error) => failures.push(format!("{expression} ({zone}) was taken before: {error}")),
            }
        }
        let wrong = match &taken {
            Ok(_) if refused_there => Some("taken, though the library refuses it".to_owned()),
            Ok(times) => case.wrong(times),
            Err(error) => {
                let error = error.to_string();
                if !["write ", "may be ", "must be ", "use ", "set "]
                    .iter()
                    .any(|remedy| error.contains(remedy))
                {
                    failures.push(format!("{expression}: no remedy in {error}"));
                }
                let same = quartz().filter(|_| !refused_there && case.is_the_same_in_quartz());
                let Some(times) = same else {
                    agreed += usize::from(refused_there);
                    refused += usize::from(!refused_there);
                    continue;
                };
                in_quartz += 1;
                case.wrong(&times)
            }
        };
        let key = (suite.split('/').next().unwrap_or_default(), expression.as_str(), zone.as_str());
        let known = DIFFERENCES.iter().find(|(suite, text, zone, _)| (*suite, *text, *zone) == key);
        match (wrong, known) {
            (None, _) => agreed += 1,
            (Some(_), Some(known)) => {
                named.insert(known);
                differ += 1;
            }
            (Some(wrong), None) => {
                failures.push(format!("{key:?} from {}: {wrong} ({})", case.from, case.class));
            }
        }
    }
    for unused in DIFFERENCES.iter().filter(|known| !named.contains(known)) {
        failures.push(format!("{unused:?} is no difference any more"));
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
    let counts = format!(
        "{agreed} of {} agree ({in_quartz} with the dialect quartz), {differ} differ by name, {refused} are refused here",
        cases.len()
    );
    assert!(agreed > 1000 && in_quartz > 30 && still_taken > 900, "{counts}, {still_taken} still taken");
    eprintln!("{counts}");
}

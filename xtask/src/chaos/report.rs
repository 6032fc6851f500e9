//! The printed report of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::TaskId;

use super::check::{Evidence, Verdict};
use super::plan::Kind;
use super::recovery::{Times, percentile};

/// Violations that are printed; all of them are in the folder of the run.
const PRINTED_MAX: usize = 30;

/// The most tasks whose stories are printed.
const STORIES_MAX: usize = 50;

/// The account of the tasks that violations name: the API's answers, their attempts' records, and the faults
/// meanwhile.
pub(super) fn stories(evidence: &Evidence, verdict: &Verdict) -> BTreeMap<TaskId, String> {
    let words = verdict.violations.iter().flat_map(|violation| violation.split([' ', ':', ',']));
    let named: BTreeSet<TaskId> = words.filter_map(|word| word.parse().ok()).take(STORIES_MAX).collect();
    named.into_iter().map(|task| (task, story(evidence, task))).collect()
}

fn story(evidence: &Evidence, task: TaskId) -> String {
    let mut text = Text::default();
    let id = task.to_string();
    for (when, tasks) in [("first", &evidence.tasks), ("second", &evidence.tasks_later)] {
        for task in tasks.iter().filter(|task| task.task_id == id) {
            text.line(&format!("{when} look: {}", serde_json::to_string_pretty(task).unwrap_or_default()));
        }
    }
    for attempt in evidence.attempts.get(&task).into_iter().flatten() {
        text.line(&format!("attempt: {}", serde_json::to_string(attempt).unwrap_or_default()));
    }
    text.line(&format!("order: {:?}", evidence.orders.acknowledged.get(&task)));
    text.line(&format!("cancel: {:?}", evidence.orders.cancels.get(&task)));
    text.line(&format!("events: {:?}", evidence.events.finals.get(&task)));
    let starts = evidence.history.starts.iter().filter(|start| start.attempt.task == task);
    let ends = evidence.history.ends.iter().filter(|end| end.attempt.task == task);
    let mut lines: Vec<_> = starts.map(|start| (start.at, format!("{start:?}"))).collect();
    lines.extend(ends.map(|end| (end.at, format!("{end:?}"))));
    let (first, last) = (lines.iter().map(|line| line.0).min(), lines.iter().map(|line| line.0).max());
    let meanwhile =
        evidence.faults.iter().filter(|fault| Some(fault.until) >= first && Some(fault.at) <= last);
    lines.extend(meanwhile.map(|fault| (fault.at, fault.to_string())));
    let lane = task.lane().0;
    let claims = evidence.claims.iter().filter(|claim| claim.lane == lane);
    lines.extend(claims.map(|claim| (claim.at, format!("{claim:?}"))));
    lines.sort();
    for (at, line) in lines {
        text.line(&format!("{} {line}", at.0));
    }
    text.0
}

/// The report of a run, as text.
pub(super) fn report(evidence: &Evidence, verdict: &Verdict, times: &[Times]) -> String {
    let mut text = Text::default();
    let numbers = &verdict.numbers;
    let orders = &evidence.orders;
    text.line("");
    text.line("faults");
    for kind in Kind::ALL {
        let faults: Vec<_> = evidence.faults.iter().filter(|fault| fault.kind == kind).collect();
        let wanted = kind.wanted(&evidence.scenario);
        if faults.is_empty() && wanted == 0 {
            continue;
        }
        let running = faults.iter().map(|fault| fault.running).min().unwrap_or(0);
        text.line(&format!("  {:>5}  {kind:<42} at least {running} attempts ran", faults.len()));
    }
    let total = evidence.faults.len();
    text.line(&format!("  {total:>5}  in all"));
    text.line(&format!(
        "tasks: {} acknowledged of {} sent ({} sent twice), {} of them long; {}",
        numbers.tasks,
        orders.sent,
        orders.repeated,
        numbers.long_tasks,
        list(&numbers.statuses)
    ));
    text.line(&format!(
        "attempts: {} started, {} longer than the worker TTL, {} at most of one task",
        numbers.starts, numbers.long_runs, numbers.attempts_max
    ));
    text.line(&format!(
        "attempts of the {} tasks with more than one: {}",
        evidence.attempts.len(),
        list(&numbers.outcomes)
    ));
    text.line(&format!(
        "lanes taken over: {}; events: {} received, {} gaps",
        numbers.takeovers, evidence.events.seen, evidence.events.gaps
    ));
    let exits: Vec<String> = evidence.exits.iter().map(ToString::to_string).collect();
    text.list("processes that ended by themselves", &exits);
    text.line("");
    text.line(&format!(
        "{:<42} {:>5} {:>8} {:>8} {:>8}   {:>5} {:>8} {:>8}",
        "recovery, seconds", "alone", "p50", "p99", "bar", "all", "p50", "p99"
    ));
    for times in times {
        let Times { kind, all, undisturbed, bar } = times;
        let worst = percentile(undisturbed, 99);
        let met = match (bar, worst) {
            (Some(bar), Some(worst)) if worst > *bar => " ✗",
            (Some(_), Some(_)) => " ✓",
            _ => "",
        };
        text.line(&format!(
            "  {:<40} {:>5} {:>8} {:>8} {:>8}{met:<2} {:>5} {:>8} {:>8}",
            kind.as_str(),
            undisturbed.len(),
            seconds(percentile(undisturbed, 50)),
            seconds(worst),
            seconds(*bar),
            all.len(),
            seconds(percentile(all, 50)),
            seconds(percentile(all, 99))
        ));
    }
    text.line("  (worker: until a task of it starts again, each; server: until all of its lanes are owned)");
    text.line("");
    text.list("violations", &verdict.violations);
    text.list("too little of", &verdict.vacuous);
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn list(&mut self, what: &str, items: &[String]) {
        self.line(&format!("{what}: {}", items.len()));
        for item in items.iter().take(PRINTED_MAX) {
            self.line(&format!("  {item}"));
        }
        if items.len() > PRINTED_MAX {
            self.line(&format!("  … and {} more", items.len() - PRINTED_MAX));
        }
    }
}

fn list(counts: &BTreeMap<String, usize>) -> String {
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}

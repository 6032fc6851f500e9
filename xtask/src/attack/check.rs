//! The judge of a run: attempts' own records, on the steady clock, beside the API's answers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;
use tasklane_client::{Status, Task};

use super::honest::{Due, Order, RETRIES_OF_FAILING, RETRY_DELAY, SCHEDULES};
use super::steps::Clock;
use super::tally::Tally;
use crate::chaos::attempt::Behaviour;
use crate::chaos::clock::Boot;
use crate::chaos::history::{End, History, Start};

/// Clocks are read before and after what they measure.
const EXACT: Duration = Duration::from_millis(20);
/// A task that waits for its time starts at most this much later, besides the time in which processes are down.
const LATE_MAX: Duration = Duration::from_secs(45);
/// A schedule is silent for at most this long, besides the time in which processes are down.
const SILENT_MAX: Duration = Duration::from_mins(1);
/// A task may be lost this often before it fails.
const LOST_MAX: usize = 5;

/// Everything that was seen of a run.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) orders: BTreeMap<String, Order>,
    /// All tasks of the honest namespace.
    pub(super) tasks: Vec<Task>,
    pub(super) history: History,
    pub(super) clock: &'a Clock,
    pub(super) tally: &'a Tally,
    /// When schedules began and when the attack ended.
    pub(super) begun: Boot,
    pub(super) ended: Boot,
    /// Kills and steps of the clock, each of which may make a schedule fire once more.
    pub(super) disturbances: usize,
}

/// Judges a run: violations go to the tally.
pub(super) fn judge(evidence: &Evidence) {
    let tasks: HashMap<&str, &Task> =
        evidence.tasks.iter().map(|task| (task.task_id.as_str(), task)).collect();
    let mut attempts: HashMap<String, Attempts> = HashMap::new();
    for start in &evidence.history.starts {
        attempts.entry(start.attempt.task.to_string()).or_default().starts.push(start);
    }
    for end in &evidence.history.ends {
        attempts.entry(end.attempt.task.to_string()).or_default().ends.push(end);
    }
    for found in &evidence.history.two_alive {
        let what = format!(
            "task {}: attempt {} found process {} of attempt {} alive",
            found.attempt.task, found.attempt.number, found.pid, found.other
        );
        evidence.tally.violation("two attempts at the same time", &what);
    }
    for (request, order) in &evidence.orders {
        let attempts = attempts.get(&order.task);
        let violation = |kind: &str, what: String| {
            evidence.tally.violation(kind, &format!("task {} (request {request}): {what}", order.task));
        };
        match tasks.get(order.task.as_str()) {
            None => violation("an acknowledged task is gone", "the API does not list it".to_owned()),
            Some(task) => outcome(order, task, attempts, &violation),
        }
        if let Some(attempts) = attempts {
            times(evidence, order, attempts, &violation);
        }
    }
    requests(evidence);
    for (name, period) in SCHEDULES {
        schedule(evidence, name, period, &attempts);
    }
}

/// The records of a task's attempts, by time.
#[derive(Default)]
struct Attempts<'a> {
    starts: Vec<&'a Start>,
    ends: Vec<&'a End>,
}

impl Attempts<'_> {
    /// Attempts that started and had no time to write down their end.
    fn cut_off(&self) -> usize {
        self.starts.len().saturating_sub(self.ends.len())
    }
}

/// A task ended as its attempts say, and for a reason.
fn outcome(order: &Order, task: &Task, attempts: Option<&Attempts>, violation: &impl Fn(&str, String)) {
    let codes = attempts.map(|attempts| attempts.ends.iter().map(|end| (end.attempt.number.0, end.code)));
    let codes: HashMap<u32, u8> = codes.into_iter().flatten().collect();
    let why = task.error.as_ref().map_or("", |error| error.code.as_str());
    match task.status {
        Status::Success if codes.get(&task.attempt) == Some(&0) => {}
        Status::Success => violation(
            "a success without an attempt that says so",
            format!("attempt {} wrote {:?}", task.attempt, codes.get(&task.attempt)),
        ),
        Status::Failed => {
            let failed = order.behaviour == Behaviour::Fails && task.retries_used >= RETRIES_OF_FAILING;
            let lost = why == "lost_limit" && attempts.is_some_and(|attempts| attempts.cut_off() > LOST_MAX);
            if !failed && !lost {
                let cut_off = attempts.map_or(0, Attempts::cut_off);
                let what = format!("{:?} is FAILED: {why}; {cut_off} attempts were cut off", order.behaviour);
                violation("a failure without a reason", what);
            }
        }
        Status::Cancelled if order.cancel.is_some() => {}
        Status::Cancelled => violation("a cancel without a request", String::new()),
        status => violation("a task is stuck", format!("it is {status}")),
    }
    if order.cancel == Some(true) && task.status == Status::Failed {
        violation("an acknowledged cancel was forgotten", format!("it is {}", task.status));
    }
}

/// Delays and retry waits keep their length, and times are not early, whatever the clock does.
fn times(evidence: &Evidence, order: &Order, attempts: &Attempts, violation: &impl Fn(&str, String)) {
    let Some(first) = attempts.starts.first() else { return };
    match order.due {
        Due::AtOnce => {}
        Due::Delay(delay) => {
            let waited = first.at.since(order.sent);
            if waited + EXACT < delay {
                violation("a delay was cut short", format!("{waited:?} instead of {delay:?}"));
            }
            let down = evidence.tally.down_between(order.sent, first.at);
            let late = first.at.since(order.acknowledged).saturating_sub(delay);
            let late = late.saturating_sub(Duration::from_micros(down));
            if late > LATE_MAX {
                violation("a delay was drawn out", format!("by {late:?}"));
            }
        }
        Due::At(at) => {
            let latest = evidence.clock.latest_between(order.sent, first.at);
            if latest + 20_000 < at {
                let early = Duration::from_micros(at.abs_diff(latest));
                violation("a task ran before its time", format!("by {early:?}"));
            }
        }
    }
    for end in attempts.ends.iter().filter(|end| end.code != 0) {
        let next = attempts.starts.iter().find(|start| start.attempt.number > end.attempt.number);
        let Some(next) = next else { continue };
        let waited = next.at.since(end.at);
        if waited + EXACT < RETRY_DELAY {
            let what = format!("{waited:?} after attempt {} instead of {RETRY_DELAY:?}", end.attempt.number);
            violation("a retry came early", what);
        }
    }
}

/// Each request is one task, and each task belongs to a request that was sent.
fn requests(evidence: &Evidence) {
    let mut by_request: HashMap<&str, &str> = HashMap::new();
    for task in &evidence.tasks {
        let Some(request) = task.more.get("requestId").and_then(Value::as_str) else { continue };
        if let Some(other) = by_request.insert(request, &task.task_id) {
            let what = format!("requestId {request} is task {other} and task {}", task.task_id);
            evidence.tally.violation("a request became two tasks", &what);
        }
        if evidence.orders.get(request).is_none_or(|order| order.task != task.task_id) {
            let what = format!("task {} has requestId {request}", task.task_id);
            evidence.tally.violation("a task that was never acknowledged", &what);
        }
    }
}

/// A schedule fires as often as time passes: it neither floods nor falls silent.
fn schedule(evidence: &Evidence, name: &str, period: Option<Duration>, attempts: &HashMap<String, Attempts>) {
    let of_it: HashSet<&str> = evidence
        .tasks
        .iter()
        .filter(|task| task.task_name == name)
        .map(|task| task.task_id.as_str())
        .collect();
    let length = evidence.ended.since(evidence.begun);
    let regular = period.map_or(0, |period| length.as_millis() / period.as_millis().max(1));
    let most = usize::try_from(regular).unwrap_or(usize::MAX).saturating_add(2 * evidence.disturbances + 10);
    if of_it.len() > most {
        let what = format!("{name} made {} tasks in {length:?}, at most {most} are right", of_it.len());
        evidence.tally.violation("a schedule floods", &what);
    }
    if period.is_none() {
        return;
    }
    let mut times: Vec<Boot> = attempts
        .iter()
        .filter(|(task, _)| of_it.contains(task.as_str()))
        .filter_map(|(_, attempts)| attempts.starts.first().map(|start| start.at))
        .chain([evidence.begun, evidence.ended])
        .collect();
    times.sort();
    for pair in times.windows(2) {
        let down = Duration::from_micros(evidence.tally.down_between(pair[0], pair[1]));
        let silent = pair[1].since(pair[0]).saturating_sub(down);
        if silent > SILENT_MAX {
            let at = pair[0].since(evidence.begun);
            evidence
                .tally
                .violation("a schedule is silent", &format!("{name} for {silent:?}, {at:?} after the start"));
        }
    }
}

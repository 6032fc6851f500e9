//! Checks whether the cluster kept its promises, and whether the run could have shown that it did not.
//!
//! The API's answers and the attempts' own records are joined into one account, which the checker of the
//! simulator judges. Both clocks are those of one machine, so they can be compared. An account from outside
//! cannot contain the writers of the store's rows; the simulator checks those.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;
use tasklane_client as api;
use tasklane_core::id::{AttemptNo, Epoch, LaneId, OwnerId, SessionId, TaskId};
use tasklane_core::message::AttemptId;
use tasklane_core::status::Status;
use tasklane_core::time::Timestamp;
use tasklane_sim::checker::{Bounds, Change, Checker, Observation};

use super::attempt::Behaviour;
use super::clock::Boot;
use super::history::{End, History};
use super::load::{KEY_LIMIT, LONG_EVERY, Orders, RETRIES_OF_FAILING};
use super::nemesis::{Fault, RUNNING_MIN};
use super::options::{Scenario, Topology, WORKER_TTL};
use super::plan::Kind;
use super::process::Exit;
use super::watch::{Claim, Events};

/// Everything that was seen of a run.
#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) scenario: Scenario,
    pub(super) orders: Orders,
    pub(super) history: History,
    /// All tasks, when everything had come to rest …
    pub(super) tasks: Vec<api::Task>,
    /// … and some time later.
    pub(super) tasks_later: Vec<api::Task>,
    /// The attempts of each task that had more than one.
    pub(super) attempts: BTreeMap<TaskId, Vec<api::Attempt>>,
    /// Tasks by status, from the statistics.
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) events: Events,
    pub(super) claims: Vec<Claim>,
    pub(super) faults: Vec<Fault>,
    /// Attempts that were alive when all tasks were final.
    pub(super) left_alive: Vec<AttemptId>,
    /// Log lines that show a panic.
    pub(super) panics: Vec<String>,
    /// Processes that ended by themselves.
    pub(super) exits: Vec<Exit>,
    /// Why the run came to no rest, if so.
    pub(super) unrest: Option<String>,
}

/// The outcome of the check.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Promises that were not kept.
    pub(super) violations: Vec<String>,
    /// The events that the run did not have enough of.
    pub(super) vacuous: Vec<String>,
    pub(super) numbers: Numbers,
}

/// The run in numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) tasks: usize,
    pub(super) long_tasks: usize,
    /// Long tasks that ran to their end, in one attempt longer than the TTL.
    pub(super) long_runs: usize,
    pub(super) statuses: BTreeMap<String, usize>,
    pub(super) starts: usize,
    pub(super) outcomes: BTreeMap<String, usize>,
    pub(super) takeovers: usize,
    pub(super) attempts_max: u32,
}

/// The share of the tasks that should have been submitted by then, below which a run shows too little.
const TASKS_PERCENT: u64 = 90;
/// The bounds of the product; parked lanes cannot be seen from outside.
const BOUNDS: Bounds =
    Bounds { lost_max: 5, lost_before_start_max: 20, failures_max: 3, park_for: Duration::from_mins(1) };
/// The most violations of one kind that are printed.
const TOLD_MAX: usize = 20;

/// Judges a run.
pub(super) fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict { numbers: numbers(evidence), ..Verdict::default() };
    let found = &mut verdict.violations;
    found.extend(evidence.unrest.clone());
    found.extend(evidence.orders.wrong.iter().cloned());
    found.extend(evidence.panics.iter().cloned());
    found.extend(evidence.events.wrong.iter().cloned());
    found.extend(by_the_checker(evidence));
    for check in [ends, created, counted, agreed, exited] {
        found.extend(check(evidence).into_iter().take(TOLD_MAX));
    }
    for AttemptId { task, number } in &evidence.left_alive {
        found.push(format!("attempt {number} of task {task} is alive though its task is final"));
    }
    verdict.vacuous = vacuous(evidence, &verdict.numbers);
    verdict
}

fn id_of(task: &api::Task) -> Option<TaskId> {
    task.task_id.parse().ok()
}

fn status_of(task: &api::Task) -> Option<Status> {
    let all = [
        Status::Pending,
        Status::Scheduled,
        Status::Dispatched,
        Status::Running,
        Status::Retrying,
        Status::Success,
        Status::Failed,
        Status::Cancelled,
    ];
    all.into_iter().find(|status| status.as_str() == task.status.as_str())
}

/// One account of what happened, judged by the checker of the simulator.
fn by_the_checker(evidence: &Evidence) -> Vec<String> {
    let mut observations = Account::default();
    for task in &evidence.tasks {
        observations.add_task(evidence, task);
    }
    let first: HashMap<&str, &api::Task> =
        evidence.tasks.iter().map(|task| (task.task_id.as_str(), task)).collect();
    for task in &evidence.tasks_later {
        // Whoever looks twice sees the same.
        let same = |before: &&api::Task| {
            (before.status, before.attempt, before.finished_at)
                == (task.status, task.attempt, task.finished_at)
        };
        if let (Some(id), Some(status)) = (id_of(task), status_of(task))
            && !first.get(task.task_id.as_str()).is_some_and(same)
        {
            observations.change(LATER, id, status, task.attempt, None, Lost::default());
        }
    }
    observations.add_history(evidence);
    for &task in evidence.orders.acknowledged.keys() {
        observations.push(LAST, Rank::Client, Observation::Acknowledged { task, wrongly_duplicate: false });
    }
    let statuses: HashMap<TaskId, Status> =
        evidence.tasks.iter().filter_map(|task| Some((id_of(task)?, status_of(task)?))).collect();
    for (&task, &acknowledged) in &evidence.orders.cancels {
        if !acknowledged {
            continue;
        }
        observations.push(LAST, Rank::Client, Observation::CancelAcknowledged { task });
        // A success wins; nothing else does.
        if matches!(statuses.get(&task), Some(Status::Cancelled | Status::Success)) {
            observations.push(LAST, Rank::Last, Observation::CommandRemoved { task });
        }
    }

    let mut checker = Checker::new(BOUNDS);
    observations.list.sort_by_key(|(at, rank, _)| (*at, *rank));
    for (at, _, observation) in observations.list {
        checker.observe(at, observation);
    }
    checker.conclude(LAST);
    checker.violations().iter().map(|violation| format!("{} {}", violation.at, violation.what)).collect()
}

/// What comes first of things that have the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Owner,
    Created,
    /// An attempt is given up; the next may be assigned in the same moment.
    GivenUp,
    Assigned,
    Ended,
    Started,
    Changed,
    Client,
    Last,
}

/// After everything else.
const LAST: Timestamp = Timestamp::from_micros(i64::MAX / 2);
/// The time of the second look.
const LATER: Timestamp = Timestamp::from_micros(i64::MAX / 2 - 1);

#[derive(Default)]
struct Account {
    list: Vec<(Timestamp, Rank, Observation)>,
    lanes: HashSet<LaneId>,
    /// The session that each attempt was given to, and the name of its worker.
    sessions: HashMap<AttemptId, (SessionId, String)>,
}

/// How many attempts of a task were lost so far.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    running: u32,
    before_start: u32,
}

impl Account {
    fn push(&mut self, at: Timestamp, rank: Rank, observation: Observation) {
        self.list.push((at, rank, observation));
    }

    fn change(
        &mut self,
        at: Timestamp,
        task: TaskId,
        status: Status,
        attempt: u32,
        session: Option<SessionId>,
        lost: Lost,
    ) {
        // Who wrote it cannot be seen from outside: each lane has one owner in this account.
        let (lane, epoch, owner) = (task.lane(), Epoch(1), OwnerId::from_random(1));
        if self.lanes.insert(lane) {
            let claimed = Observation::Claimed { lane, epoch, owner, failures: 0 };
            self.push(Timestamp::ZERO, Rank::Owner, claimed);
        }
        let change = Change {
            task,
            lane,
            epoch,
            owner,
            path: vec![(status, at)],
            status,
            attempt: AttemptNo(attempt),
            session,
            cancel_requested: false,
            lost: lost.running,
            lost_before_start: lost.before_start,
            limit_reached: false,
            rates: Vec::new(),
        };
        let rank = match status {
            Status::Scheduled => Rank::Assigned,
            Status::Pending | Status::Retrying => Rank::GivenUp,
            _ => Rank::Changed,
        };
        self.push(at, rank, Observation::Changed(change));
    }

    /// The life of a task, as the API shows it.
    fn add_task(&mut self, evidence: &Evidence, task: &api::Task) {
        let (Some(id), Some(status)) = (id_of(task), status_of(task)) else { return };
        let created = task.created_at.map_or(Timestamp::ZERO, micros);
        let mut lost = Lost::default();
        let known = evidence.attempts.get(&id).map(Vec::as_slice).unwrap_or_default();
        let scheduled = task.more.get("scheduledAt").and_then(Value::as_str);
        let scheduled = scheduled.and_then(|text| text.parse().ok()).map(micros);
        // The scheduling server may have read the clock before the submitting one.
        let first =
            known.iter().filter_map(|attempt| attempt.scheduled_at).map(micros).chain(scheduled).min();
        let created = first.map_or(created, |first| first.min(created));
        self.push(created, Rank::Created, Observation::Created { task: id });
        for attempt in known {
            let session = session(&attempt.more);
            if let Some(at) = attempt.scheduled_at {
                self.assign(micros(at), id, attempt.number, session, attempt.worker.as_deref(), lost);
            }
            let next = match attempt.outcome.as_deref() {
                Some("LOST") => {
                    let started = attempt.started_at.is_some();
                    *(if started { &mut lost.running } else { &mut lost.before_start }) += 1;
                    Status::Pending
                }
                Some("HANDED_BACK") => Status::Pending,
                Some("FAILED" | "TIMED_OUT") => Status::Retrying,
                _ => continue,
            };
            let is_last = attempt.number == task.attempt;
            if let Some(at) = attempt.ended_at.filter(|_| !is_last) {
                self.change(micros(at), id, next, attempt.number, None, lost);
            }
        }
        if let Some(at) = scheduled.filter(|_| known.is_empty() && task.attempt > 0) {
            let session = session(&task.more);
            self.assign(at, id, task.attempt, session, task.worker.as_deref(), lost);
        }
        if status.is_final() {
            let at = task.finished_at.map_or(LATER, micros);
            self.change(at, id, status, task.attempt, None, lost);
        }
    }

    fn assign(
        &mut self,
        at: Timestamp,
        task: TaskId,
        number: u32,
        session: Option<SessionId>,
        worker: Option<&str>,
        lost: Lost,
    ) {
        if let (Some(session), Some(worker)) = (session, worker) {
            let attempt = AttemptId { task, number: AttemptNo(number) };
            self.sessions.insert(attempt, (session, worker.to_owned()));
        }
        self.change(at, task, Status::Scheduled, number, session, lost);
    }

    /// The attempts' own records.
    fn add_history(&mut self, evidence: &Evidence) {
        let Evidence { history, orders, .. } = evidence;
        let ends: HashMap<AttemptId, &End> = history.ends.iter().map(|end| (end.attempt, end)).collect();
        let alive: HashSet<(TaskId, AttemptNo)> =
            history.two_alive.iter().map(|found| (found.attempt.task, found.other)).collect();
        // The next start of the same task, for attempts that had no time to record their end: that start
        // looked, and if it found them dead they had ended before.
        let mut next: HashMap<AttemptId, Timestamp> = HashMap::new();
        let mut last: HashMap<TaskId, AttemptId> = HashMap::new();
        for start in &history.starts {
            if let Some(before) = last.insert(start.attempt.task, start.attempt) {
                next.insert(before, Timestamp::from_micros(start.wall.0));
            }
        }
        for (execution, start) in (0..).zip(&history.starts) {
            let AttemptId { task, number } = start.attempt;
            let at = Timestamp::from_micros(start.wall.0);
            let name = start.worker.split('.').next().unwrap_or_default();
            let given_to = self.sessions.get(&start.attempt).filter(|(_, worker)| worker == name);
            let session = given_to.map_or(SessionId::from_random(0), |(session, _)| *session);
            let end = ends.get(&start.attempt);
            // How long the others lived is not known exactly enough.
            let key = orders.acknowledged.get(&task).and_then(|order| order.key.clone());
            let limits = key.filter(|_| end.is_some()).map(|key| (key, KEY_LIMIT)).into_iter().collect();
            let started = Observation::Started { execution, attempt: start.attempt, session, limits };
            self.push(at, Rank::Started, started);
            let ended = match end {
                Some(end) => Timestamp::from_micros(end.wall.0),
                None if alive.contains(&(task, number)) => LAST,
                None => next.get(&start.attempt).copied().unwrap_or(LATER),
            };
            self.push(ended, Rank::Ended, Observation::Ended { execution });
        }
    }
}

fn micros(time: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(time.as_microsecond())
}

fn session(more: &serde_json::Map<String, Value>) -> Option<SessionId> {
    more.get("session")?.as_str()?.parse().ok()
}

/// Tasks ended as their attempts say, and for a reason.
fn ends(evidence: &Evidence) -> Vec<String> {
    let codes: HashMap<AttemptId, u8> =
        evidence.history.ends.iter().map(|end| (end.attempt, end.code)).collect();
    let mut found = Vec::new();
    for task in &evidence.tasks {
        let Some(id) = id_of(task) else { continue };
        let code = codes.get(&AttemptId { task: id, number: AttemptNo(task.attempt) });
        let order = evidence.orders.acknowledged.get(&id);
        let behaviour = order.map_or(Behaviour::Succeeds, |order| order.behaviour);
        let attempt = task.attempt;
        match task.status {
            api::Status::Success if code != Some(&0) => found.push(format!(
                "task {id} is SUCCESS by attempt {attempt}, which wrote no such end: {code:?}"
            )),
            api::Status::Failed => {
                let why = task.error.as_ref().map_or("", |error| error.code.as_str());
                let count = |name| task.more.get(name).and_then(Value::as_u64).unwrap_or(0);
                let is_right = match why {
                    "lost_limit" => {
                        count("lostCount") > u64::from(BOUNDS.lost_max)
                            || count("lostBeforeStartCount") > u64::from(BOUNDS.lost_before_start_max)
                    }
                    _ => behaviour == Behaviour::Fails && task.retries_used >= RETRIES_OF_FAILING,
                };
                if !is_right {
                    let error = task.error.as_ref().map_or("", |error| error.message.as_str());
                    found.push(format!(
                        "task {id} ({behaviour:?}) is FAILED for no good reason: {why}: {error}"
                    ));
                }
            }
            api::Status::Cancelled if !evidence.orders.cancels.contains_key(&id) => {
                found.push(format!("task {id} is CANCELLED, without a cancel request"));
            }
            _ => {}
        }
    }
    for found_alive in &evidence.history.two_alive {
        let super::history::TwoAlive { attempt: AttemptId { task, number }, other, pid } = found_alive;
        found.push(format!(
            "attempts {other} and {number} of task {task} are alive at the same time: {number} found process {pid}"
        ));
    }
    found
}

/// Each request made one task, and nothing else did.
fn created(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_request: HashMap<&str, &str> = HashMap::new();
    let known: HashSet<&str> =
        evidence.orders.acknowledged.values().map(|order| order.request_id.as_str()).collect();
    for task in &evidence.tasks {
        let request = task.more.get("requestId").and_then(Value::as_str).unwrap_or_default();
        if let Some(other) = by_request.insert(request, &task.task_id) {
            let id = &task.task_id;
            found.push(format!("task {id} was created twice: {other} is of the same request {request}"));
        }
        if evidence.unrest.is_none() && !known.contains(request) {
            found.push(format!("task {} is of request {request:?}, which was never sent", task.task_id));
        }
    }
    found
}

/// The numbers are those of the list.
fn counted(evidence: &Evidence) -> Vec<String> {
    let mut listed: BTreeMap<&str, u64> = BTreeMap::new();
    for task in &evidence.tasks {
        *listed.entry(task.status.as_str()).or_default() += 1;
    }
    let counted: BTreeMap<&str, u64> =
        evidence.counts.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.as_str(), *n)).collect();
    if listed == counted || evidence.unrest.is_some() {
        return Vec::new();
    }
    vec![format!("tasks are counted as {counted:?}, and listed as {listed:?}")]
}

/// The ends in events agree with the list.
fn agreed(evidence: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    for task in &evidence.tasks {
        let Some(told) = id_of(task).and_then(|id| evidence.events.finals.get(&id)) else { continue };
        if *told != (task.status, task.attempt) {
            let (status, attempt) = told;
            found.push(format!(
                "task {} was final and became {}: an event said {status} by attempt {attempt}, it has {} by {}",
                task.task_id, task.status, task.status, task.attempt
            ));
        }
    }
    found
}

/// A process may give up while it cannot reach what it needs; else it goes on.
fn exited(evidence: &Evidence) -> Vec<String> {
    let has_reason = |exit: &Exit| {
        let keeps_from_the_database = |fault: &&Fault| {
            let is_meant = match fault.kind {
                Kind::DatabaseKilled | Kind::DatabasePaused => true,
                Kind::WorkerCut
                | Kind::WorkerRequestsHeld
                | Kind::WorkerAnswersHeld
                | Kind::ServerCut
                | Kind::ServerRequestsHeld
                | Kind::ServerAnswersHeld
                | Kind::ServerUnreachable => fault.victim.split('.').next() == exit.who.split('.').next(),
                _ => false,
            };
            is_meant && fault.at < exit.at && Boot(fault.until.0 + GIVES_UP_WITHIN) > exit.at
        };
        evidence.faults.iter().any(|fault| keeps_from_the_database(&fault))
    };
    evidence.exits.iter().filter(|exit| !has_reason(exit)).map(ToString::to_string).collect()
}

/// How long after a trouble a process may still give up because of it, in microseconds.
const GIVES_UP_WITHIN: u64 = 15_000_000;

fn numbers(evidence: &Evidence) -> Numbers {
    let Evidence { orders, history, tasks, attempts, claims, .. } = evidence;
    let mut numbers = Numbers {
        tasks: orders.acknowledged.len(),
        long_tasks: orders.acknowledged.values().filter(|order| order.is_long).count(),
        starts: history.starts.len(),
        attempts_max: tasks.iter().map(|task| task.attempt).max().unwrap_or(0),
        ..Numbers::default()
    };
    let starts: HashMap<AttemptId, _> =
        history.starts.iter().map(|start| (start.attempt, start.at)).collect();
    let is_long_run =
        |end: &&End| starts.get(&end.attempt).is_some_and(|start| end.at.since(*start) > WORKER_TTL);
    numbers.long_runs = history.ends.iter().filter(is_long_run).count();
    for task in tasks {
        let why = task.error.as_ref().filter(|_| task.status == api::Status::Failed);
        let name = match why {
            Some(error) => format!("{} ({})", task.status, error.code),
            None => task.status.to_string(),
        };
        *numbers.statuses.entry(name).or_default() += 1;
    }
    for attempt in attempts.values().flatten() {
        let outcome = attempt.outcome.as_deref().unwrap_or("none");
        let name = match &attempt.error {
            Some(error) if outcome == "FAILED" => format!("{outcome} ({})", error.code),
            _ => outcome.to_owned(),
        };
        *numbers.outcomes.entry(name).or_default() += 1;
    }
    let lanes: HashSet<u16> = claims.iter().map(|claim| claim.lane).collect();
    numbers.takeovers = claims.len() - lanes.len();
    numbers
}

/// The events that the run had too few of.
fn vacuous(evidence: &Evidence, numbers: &Numbers) -> Vec<String> {
    let Evidence { scenario, faults, .. } = evidence;
    let mut found = Vec::new();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and not that many"
    )]
    let wanted = (scenario.rate * scenario.length.as_secs_f64()) as u64 * TASKS_PERCENT / 100;
    let mut at_least = |what: &str, is: usize, wanted: u64| {
        if (is as u64) < wanted {
            found.push(format!("{what}: {is}, at least {wanted} are wanted"));
        }
    };
    at_least("tasks", numbers.tasks, wanted);
    at_least("tasks that should run longer than the worker TTL", numbers.long_tasks, wanted / LONG_EVERY);
    // Some are lost to the faults until none of their attempts are left, and some are cancelled.
    at_least("attempts that ran longer than the worker TTL", numbers.long_runs, wanted / LONG_EVERY / 2);
    for kind in Kind::ALL {
        let hits = faults.iter().filter(|fault| fault.kind == kind && fault.running >= RUNNING_MIN).count();
        let what = format!("{kind}, while {RUNNING_MIN} attempts ran");
        at_least(&what, hits, kind.wanted(scenario) as u64);
    }
    if scenario.only.is_none() {
        let outcome = |name: &str| numbers.outcomes.get(name).copied().unwrap_or(0);
        if !scenario.is_upgrade {
            at_least("attempts lost with their worker", outcome("LOST"), 1);
        }
        let failed = numbers.outcomes.iter().filter(|(name, _)| name.starts_with("FAILED"));
        at_least("attempts that failed", failed.map(|(_, n)| *n).sum(), 1);
        at_least("tasks with more than one attempt", evidence.attempts.len(), 1);
        if scenario.topology != Topology::Sqlite {
            at_least("attempts handed back", outcome("HANDED_BACK"), 1);
            at_least("lanes taken over", numbers.takeovers, 1);
        }
        at_least("ends reported by events", evidence.events.finals.len(), numbers.tasks as u64 / 4);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::attempt::Process;
    use super::super::clock::Wall;
    use super::super::history::{Start, TwoAlive};
    use super::super::load::Order;
    use super::*;

    fn task(n: u64) -> TaskId {
        format!("00030000-0000-8000-8000-{n:012}").parse().unwrap()
    }

    fn attempt(n: u64, number: u32) -> AttemptId {
        AttemptId { task: task(n), number: AttemptNo(number) }
    }

    /// Seconds after a moment in 2026.
    fn at(seconds: i64) -> Wall {
        Wall(1_800_000_000_000_000 + seconds * 1_000_000)
    }

    fn time(seconds: i64) -> String {
        jiff::Timestamp::from_microsecond(at(seconds).0).unwrap().to_string()
    }

    fn start(n: u64, number: u32, seconds: i64) -> Start {
        let process = Process { pid: 1, ticks: 1 };
        let boot = Boot(u64::try_from(seconds).unwrap() * 1_000_000);
        Start { attempt: attempt(n, number), worker: "w1.1".to_owned(), process, at: boot, wall: at(seconds) }
    }

    fn end(n: u64, number: u32, seconds: i64) -> End {
        let boot = Boot(u64::try_from(seconds).unwrap() * 1_000_000);
        End { attempt: attempt(n, number), worker: "w1.1".to_owned(), at: boot, wall: at(seconds), code: 0 }
    }

    fn told(n: u64, number: u32, from: i64, to: i64) -> api::Task {
        let session = SessionId::from_random(7).to_string();
        serde_json::from_value(json!({
            "taskId": task(n).to_string(), "status": "SUCCESS", "attempt": number, "worker": "w1",
            "session": session, "createdAt": time(0), "scheduledAt": time(from), "finishedAt": time(to),
            "requestId": format!("r{n}"),
        }))
        .unwrap()
    }

    /// A task that was run twice, because its first attempt was lost, and a task that was run once.
    fn evidence() -> Evidence {
        let lost = json!({
            "number": 1, "worker": "w1", "session": SessionId::from_random(6).to_string(), "outcome": "LOST",
            "scheduledAt": time(1), "endedAt": time(3),
        });
        let second = json!({
            "number": 2, "worker": "w1", "session": SessionId::from_random(7).to_string(), "outcome": "SUCCESS",
            "scheduledAt": time(3), "endedAt": time(6),
        });
        let attempts = serde_json::from_value(json!([lost, second])).unwrap();
        let order = |n: u64| Order::of_test(&format!("r{n}"), "k1");
        let tasks = vec![told(1, 2, 3, 6), told(2, 1, 3, 6)];
        Evidence {
            scenario: Scenario {
                topology: Topology::Redis,
                length: Duration::from_secs(1),
                seed: 1,
                servers: 1,
                workers: 1,
                rate: 1.0,
                capacity: 1,
                only: Some("nothing".to_owned()),
                is_calm: false,
                is_upgrade: false,
                isolated: false,
            },
            orders: Orders {
                acknowledged: [(task(1), order(1)), (task(2), order(2))].into(),
                ..Orders::default()
            },
            history: History {
                starts: vec![start(1, 1, 2), start(1, 2, 4), start(2, 1, 4)],
                ends: vec![end(1, 2, 5), end(2, 1, 5)],
                two_alive: Vec::new(),
            },
            tasks_later: tasks.clone(),
            tasks,
            attempts: [(task(1), attempts)].into(),
            counts: [("SUCCESS".to_owned(), 2), ("FAILED".to_owned(), 0)].into(),
            events: Events { finals: [(task(1), (api::Status::Success, 2))].into(), ..Events::default() },
            claims: Vec::new(),
            faults: Vec::new(),
            left_alive: Vec::new(),
            panics: Vec::new(),
            exits: Vec::new(),
            unrest: None,
        }
    }

    fn found(change: impl FnOnce(&mut Evidence)) -> String {
        let mut evidence = evidence();
        change(&mut evidence);
        judge(&evidence).violations.join("\n")
    }

    #[test]
    fn a_run_in_which_all_was_well_has_no_violations() {
        assert_eq!(found(|_| {}), "");
    }

    #[test]
    fn a_process_that_ends_by_itself_needs_a_reason() {
        let status = std::os::unix::process::ExitStatusExt::from_raw(256);
        let why = "error: no luck".to_owned();
        let exit = Exit { who: "s1.1".to_owned(), at: Boot(5_000_000), status, why };
        let found = found(|evidence| evidence.exits.push(exit));
        assert_eq!(found, "s1.1 ended by itself with code 1: error: no luck");
    }

    #[test]
    fn what_was_not_well_is_found() {
        let lost = found(|evidence| {
            evidence.tasks.retain(|told| told.task_id != task(2).to_string());
            evidence.tasks_later = evidence.tasks.clone();
        });
        assert!(lost.contains("was acknowledged and is lost"), "{lost}");
        let stuck = found(|evidence| {
            evidence.tasks[1].status = api::Status::Running;
            evidence.tasks_later = evidence.tasks.clone();
        });
        assert!(stuck.contains("is stuck in"), "{stuck}");
        let changed = found(|evidence| evidence.tasks_later[0].status = api::Status::Failed);
        assert!(changed.contains("was final and became FAILED"), "{changed}");
        let said = found(|evidence| {
            evidence.events.finals.insert(task(2), (api::Status::Failed, 1));
        });
        assert!(said.contains("an event said FAILED"), "{said}");
        let unrecorded = found(|evidence| evidence.history.ends.truncate(1));
        assert!(unrecorded.contains("wrote no such end"), "{unrecorded}");
        let twice = found(|evidence| evidence.history.starts.push(start(2, 1, 5)));
        assert!(twice.contains("was started twice"), "{twice}");
        let counted = found(|evidence| _ = evidence.counts.insert("SUCCESS".to_owned(), 3));
        assert!(counted.contains("are counted as"), "{counted}");
        let created = found(|evidence| {
            let mut other = told(3, 1, 3, 6);
            other.more.insert("requestId".to_owned(), json!("r2"));
            evidence.tasks.push(other);
        });
        assert!(created.contains("was created twice"), "{created}");
    }

    #[test]
    fn attempts_that_should_not_have_run_are_found() {
        let alive = found(|evidence| {
            let found = TwoAlive { attempt: attempt(1, 2), other: AttemptNo(1), pid: 5 };
            evidence.history.two_alive.push(found);
        });
        assert!(alive.contains("attempts 1 and 2 of task"), "{alive}");
        let late = found(|evidence| evidence.history.starts[0].wall = at(4));
        assert!(late.contains("was started after its end"), "{late}");
        let elsewhere = found(|evidence| evidence.history.starts[2].worker = "w2.1".to_owned());
        assert!(elsewhere.contains("was started before it was assigned"), "{elsewhere}");
        let crowded = found(|evidence| {
            for n in 3..8 {
                evidence.tasks.push(told(n, 1, 3, 6));
                evidence.tasks_later.push(told(n, 1, 3, 6));
                evidence.orders.acknowledged.insert(task(n), Order::of_test(&format!("r{n}"), "k1"));
                evidence.history.starts.push(start(n, 1, 4));
                evidence.history.ends.push(end(n, 1, 5));
            }
        });
        assert!(crowded.contains("5 attempts of k1 are alive; the limit is 4"), "{crowded}");
    }
}

//! Schedules, as servers fire them: the real decisions, over documents that are read and written through the
//! network. Every server handles all of them, so that servers get in each other's way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::clock_watch::Clock;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_core::task::{Fingerprint, NewTask, Payload, TaskBody, TaskSpec};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DueList, PutDocument, PutOutcome, Submit, codec,
};
use tasklane_schedule::{
    BACK_MIN, DecisionInput, Fate, Fire, FireSubmission, MISSED_AFTER_MAX, MissedPolicy, Overlap, Rule,
    Schedule, ScheduleState, TaskOutcome, Times, When,
};

use crate::Scenario;
use crate::client::{plain_head, queue_key};
use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::worker::name;
use crate::world::{Event, World};

/// The state of a server's clerk, which handles schedules.
#[derive(Debug, Default)]
pub(crate) struct Clerk {
    /// Counts the rounds. Answers to abandoned rounds are dropped.
    round: u64,
    since: Timestamp,
    step: ClerkStep,
    /// The sum of all steps of the wall clock, and whether it was settled, when all schedules were last looked at.
    planned_by: Option<(Shift, bool)>,
}

#[derive(Debug, Default)]
enum ClerkStep {
    #[default]
    Idle,
    /// Schedules that are due; all that a step of the clock, or its settling, changes, where one is given.
    Reading(Option<(Shift, bool)>),
    Planning(Vec<ReadSchedule>),
    Acting(Vec<ReadSchedule>),
    Settling,
}

/// A schedule that was read, to be written back.
#[derive(Debug)]
struct ReadSchedule {
    key: DocumentKey,
    version: u64,
    schedule: Schedule,
}

/// A request of a clerk to the store.
#[derive(Clone, Debug)]
pub(crate) enum ClerkRequest {
    /// The schedules due at this time, and how their open tasks have ended.
    Due(Timestamp),
    Put(Vec<PutDocument>),
    /// Cancel these and submit those.
    Act {
        cancels: Vec<TaskId>,
        tasks: Vec<NewTask>,
    },
}

/// The answer to a clerk; `Failed` where the call failed or its outcome is unknown.
#[derive(Clone, Debug)]
pub(crate) enum ClerkReply {
    Due(Vec<Document>, BTreeMap<TaskId, TaskOutcome>),
    Put(Vec<PutOutcome>),
    Acted(Vec<SubmitOutcome>),
    Failed,
}

/// The task of each fire.
#[derive(Debug, Default)]
pub(crate) struct FiredTimes {
    /// The tasks of each time, and when each was decided.
    tasks: BTreeMap<(String, Timestamp), Vec<(TaskId, Timestamp)>>,
    /// Missed times of a schedule that were made up for while the clock was not settled.
    made_up_early: BTreeMap<String, usize>,
}

/// A clerk gives a round up after this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest jitter of a schedule.
const JITTER_MAX: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_secs(4);
/// The schedules of a run: each has another overlap rule.
const RULES: [(&str, Overlap); 4] = [
    ("all", Overlap::AllowAll),
    ("skip", Overlap::Skip),
    ("one", Overlap::BufferOne),
    ("cancel", Overlap::CancelOther),
];

/// A schedule whose times go on for longer than the wall clock ever steps. Only where that steps by hours and days.
const HOURLY: &str = "hourly";
/// A schedule may make up for so many missed times before the clock is settled: a server that starts when the clock is right
/// again trusts it.
const MADE_UP_EARLY_MAX: usize = 15;

fn times_of(rule: &Rule) -> Times {
    Times::new(&rule.when, &rule.timezone).expect("the rules of the simulator are right")
}

fn key_of(id: &str) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Schedule, namespace: name("default"), id: name(id) }
}

impl ReadSchedule {
    fn put(&self, now: Timestamp) -> PutDocument {
        let due = self.schedule.due(self.key.id.as_str(), now);
        let content = Some(Content { due, value: codec::encode(&self.schedule) });
        PutDocument { key: self.key.clone(), expected: self.version, content }
    }
}

impl World {
    /// Some seeds have schedules.
    pub(crate) fn plan_schedules(&mut self) {
        for (id, overlap) in RULES {
            let from = self.now + self.between(1_000_000, 20_000_000);
            let rule = Rule {
                when: When::Every { interval: INTERVAL, anchor: from },
                timezone: "UTC".to_owned(),
                from: Some(from),
                until: Some(from + INTERVAL * 12),
                jitter: self.between(0, 3_000_000),
                overlap,
                missed: MissedPolicy::RunAll,
                missed_after: None,
                catch_up: Duration::from_hours(1_000_000),
                pause_after: None,
                late_after: None,
                webhooks: Vec::new(),
                task: String::new(),
            };
            let schedule = Schedule::new(rule.clone(), &times_of(&rule), self.now);
            let work = ReadSchedule { key: key_of(id), version: 0, schedule };
            self.store.put_documents(&[work.put(self.now)]);
            if id == RULES[0].0 && self.scenario.far_steps {
                self.plan_hourly(rule);
            }
        }
    }

    fn plan_hourly(&mut self, rule: Rule) {
        let (interval, anchor) = (Duration::from_hours(1), self.now + self.between(1_000_000, 60_000_000));
        let until = Some(anchor + Duration::from_hours(24 * 365));
        let rule = Rule { when: When::Every { interval, anchor }, from: Some(anchor), until, ..rule };
        let schedule = Schedule::new(rule.clone(), &times_of(&rule), self.now);
        let work = ReadSchedule { key: key_of(HOURLY), version: 0, schedule };
        self.store.put_documents(&[work.put(self.now)]);
    }

    /// Whether all schedules are over that end.
    pub(crate) fn schedules_are_over(&self) -> bool {
        let due = DueList { kind: DocumentKind::Schedule, until: Timestamp::MAX, after: None, limit: 2 };
        self.store.documents_by_time(&due).iter().all(|document| document.key.id.as_str() == HOURLY)
    }

    /// Says where the schedules stand that are not over.
    pub(crate) fn explain_schedules(&mut self) {
        for (id, _) in RULES {
            let Some(schedule) = self.stored_schedule(id) else { continue };
            if schedule.due(id, self.now).is_some() {
                let state = ScheduleState { history: Vec::new(), ..schedule.state };
                self.checker.fail(self.now, format!("  schedule {id} is not over: {state:?}"));
            }
        }
    }

    /// A server handles schedules from time to time.
    pub(crate) fn look_later(&mut self, index: usize) {
        let incarnation = self.servers[index].incarnation;
        let delay = self.between(300_000, 1_500_000);
        self.after(delay, Event::Server { index, incarnation, input: ServerInput::Look });
    }

    fn clerk(&mut self, index: usize) -> &mut Clerk {
        &mut self.servers[index].process.as_mut().expect("the server is running").clerk
    }

    pub(crate) fn look_at_schedules(&mut self, index: usize) {
        self.look_later(index);
        if !self.knows_the_time(index) {
            return;
        }
        let now = self.now;
        let clock = self.clock_of(index);
        let clerk = self.clerk(index);
        if !matches!(clerk.step, ClerkStep::Idle) && now < clerk.since + PATIENCE {
            return;
        }
        let by = Some((clock.shift, clock.is_settled()));
        let stirred = by.filter(|_| clerk.planned_by != by);
        (clerk.round, clerk.since, clerk.step) = (clerk.round + 1, now, ClerkStep::Reading(stirred));
        let until = if stirred.is_some() { Timestamp::MAX } else { clock.wall };
        self.ask(index, ClerkRequest::Due(until));
    }

    fn ask(&mut self, index: usize, request: ClerkRequest) {
        let incarnation = self.servers[index].incarnation;
        let round = self.clerk(index).round;
        self.call_store(StoreRequest::Clerk(request), ReplyTo::Clerk { index, incarnation, round });
    }

    /// The store has answered a clerk.
    pub(crate) fn clerk_reply(&mut self, index: usize, round: u64, reply: ClerkReply) {
        let clock = self.clock_of(index);
        let wall = clock.wall;
        let clerk = self.clerk(index);
        if clerk.round != round {
            return;
        }
        match (std::mem::take(&mut clerk.step), reply) {
            (ClerkStep::Reading(stirred), ClerkReply::Due(documents, ended)) => {
                clerk.planned_by = stirred.or(clerk.planned_by);
                let wanted = documents.into_iter().filter(|document| is_wanted(document, wall));
                let works: Vec<ReadSchedule> =
                    wanted.map(|document| self.planned(document, &clock, &ended)).collect();
                if !works.is_empty() {
                    let puts = works.iter().map(|work| work.put(wall)).collect();
                    self.clerk(index).step = ClerkStep::Planning(works);
                    self.ask(index, ClerkRequest::Put(puts));
                }
            }
            (ClerkStep::Planning(works), ClerkReply::Put(outcomes)) => {
                let mut written = written(works, &outcomes);
                written.retain(|work| {
                    !work.schedule.state.planned.is_empty() || !work.schedule.state.cancels.is_empty()
                });
                let cancels =
                    written.iter_mut().flat_map(|work| std::mem::take(&mut work.schedule.state.cancels));
                let cancels: Vec<TaskId> = cancels.collect();
                let planned = written.iter().flat_map(|work| &work.schedule.state.planned);
                let tasks: Vec<NewTask> = planned.map(|planned| NewTask::clone(&planned.task)).collect();
                if !written.is_empty() {
                    self.clerk(index).step = ClerkStep::Acting(written);
                    self.ask(index, ClerkRequest::Act { cancels, tasks });
                }
            }
            (ClerkStep::Acting(mut works), ClerkReply::Acted(outcomes)) => {
                let planned = works.iter().flat_map(|work| &work.schedule.state.planned);
                let tasks: Vec<TaskId> = planned.map(|planned| planned.task.id).collect();
                for (task, outcome) in tasks.into_iter().zip(outcomes) {
                    let submitted = match outcome {
                        SubmitOutcome::Created { .. } | SubmitOutcome::Duplicate => FireSubmission::Yes,
                        other => FireSubmission::No(format!("{other:?}")),
                    };
                    for work in &mut works {
                        work.schedule.settle(task, submitted.clone(), wall);
                    }
                }
                let puts = works.iter().map(|work| work.put(wall)).collect();
                self.clerk(index).step = ClerkStep::Settling;
                self.ask(index, ClerkRequest::Put(puts));
            }
            _ => {}
        }
    }

    /// A schedule with what is decided about it.
    fn planned(
        &mut self,
        document: Document,
        clock: &Clock,
        ended: &BTreeMap<TaskId, TaskOutcome>,
    ) -> ReadSchedule {
        let mut schedule: Schedule = codec::decode(&document.value).expect("it was written here");
        let (id, times) = (document.key.id.to_string(), times_of(&schedule.rule));
        let (wall, settled) = (clock.wall, clock.is_settled());
        let look =
            DecisionInput { now: wall, settled, outcomes: ended, invariants: self.scenario.invariants };
        let put_off = schedule.state.put_off.len();
        for fire in schedule.decide(&id, &times, &look) {
            let task = self.scheduled_task(&id, fire, wall);
            schedule.plan(fire, Ok(task), wall);
        }
        if schedule.state.put_off.len() > put_off {
            self.report.path("schedule_put_off");
        }
        ReadSchedule { key: document.key, version: document.version, schedule }
    }

    fn scheduled_task(&mut self, id: &str, fire: Fire, wall: Timestamp) -> NewTask {
        let queue = queue_key(1);
        let lane = queue.default_lane(self.scenario.lanes);
        let head = plain_head(queue, 1);
        let body = TaskBody {
            name: "plain".to_owned(),
            payload: Payload::Text("x".to_owned()),
            schedule: Some(id.to_owned()),
            nominal_time: Some(fire.nominal),
            ..TaskBody::default()
        };
        NewTask {
            id: TaskId::from_time(lane, wall, self.rng.next_u64()),
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
            created_at: self.now,
            due: self.now,
            fingerprint: Fingerprint { version: 1, hash: 0 },
            queue_len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// The store applies a request of a clerk.
    pub(crate) fn apply_clerk(&mut self, request: ClerkRequest) -> ClerkReply {
        match request {
            ClerkRequest::Due(until) => {
                let list = DueList { kind: DocumentKind::Schedule, until, after: None, limit: 100 };
                let documents = self.store.documents_by_time(&list);
                let schedules = documents.iter().map(|document| codec::decode::<Schedule>(&document.value));
                let open = schedules.flat_map(|schedule| schedule.expect("it was written here").state.open);
                let ended = open.filter_map(|task| Some((task, self.end_of(task)?))).collect();
                ClerkReply::Due(documents, ended)
            }
            ClerkRequest::Put(puts) => ClerkReply::Put(self.store.put_documents(&puts)),
            ClerkRequest::Act { cancels, tasks } => {
                for task in cancels {
                    let cancel = tasklane_core::command::Command::Cancel { task };
                    self.store.post(task.lane(), &[cancel]);
                }
                let Some(lane) = tasks.first().map(|task| task.id.lane()) else {
                    return ClerkReply::Acted(Vec::new());
                };
                let mut outcomes = Vec::new();
                for tasks in tasks.chunks(4) {
                    let submit = Submit { lane, tasks: tasks.into() };
                    outcomes.extend(self.store.submit(&submit).expect("a submit of the simulator fits"));
                    self.observe_store();
                }
                self.send_hint(lane);
                ClerkReply::Acted(outcomes)
            }
        }
    }

    fn end_of(&self, task: TaskId) -> Option<TaskOutcome> {
        match self.store.task(task).map(|task| task.state.status) {
            Some(Status::Success) => Some(TaskOutcome::Success),
            Some(Status::Failed) => Some(TaskOutcome::Failure),
            Some(Status::Cancelled) | None => Some(TaskOutcome::Neither),
            Some(_) => None,
        }
    }

    /// A task was created: each fire has one task, and where tasks must not overlap all others have ended.
    pub(crate) fn watch_fire(&mut self, task: TaskId) {
        let Some(body) = self.store.task(task).and_then(|task| task.body.clone()) else { return };
        let (Some(id), Some(nominal)) = (body.schedule.clone(), body.nominal_time) else { return };
        self.report.path("schedule_fired");
        self.watch_time(&id, nominal, task);
        let alone = RULES.iter().any(|(known, overlap)| *known == id && *overlap != Overlap::AllowAll);
        let of_schedule = self.fired.tasks.iter().filter(|((of, _), _)| alone && *of == id);
        let open = of_schedule.flat_map(|(_, tasks)| tasks).map(|(other, _)| *other);
        let open: Vec<TaskId> =
            open.filter(|other| *other != task && self.end_of(*other).is_none()).collect();
        for other in open {
            let wrong = format!("task {task} of schedule {id} was created while {other} had not ended");
            self.checker.fail(self.now, wrong);
        }
    }

    /// A task was created for a time: the only one, unless the clock went back meanwhile. Missed times wait until the
    /// clock is settled.
    fn watch_time(&mut self, id: &str, nominal: Timestamp, task: TaskId) {
        let decided = self.store.task(task).map_or(self.now, |task| task.state.created_at);
        let tasks = self.fired.tasks.entry((id.to_owned(), nominal)).or_default();
        let before = tasks.last().copied();
        tasks.push((task, decided));
        if let Some((other, before)) = before
            && !self.comes_again(before, decided)
        {
            let wrong = format!("tasks {other} and {task} are both for {nominal} of schedule {id}");
            self.checker.fail(self.now, wrong);
        }
        let (since, ahead) = self.ahead_at(decided);
        let late = (decided + ahead).since(nominal) > MISSED_AFTER_MAX + JITTER_MAX;
        if late && self.scenario.far_steps && decided.since(since) < Scenario::SETTLE_TIME {
            let count = self.fired.made_up_early.entry(id.to_owned()).or_default();
            *count += 1;
            if *count > MADE_UP_EARLY_MAX {
                let wrong = format!("schedule {id} has made up for {count} times before the clock settled");
                self.checker.fail(self.now, wrong);
            }
        }
    }

    /// Whether a time may be fired twice: the clock went back between the two decisions, or servers differ by as much.
    fn comes_again(&self, before: Timestamp, after: Timestamp) -> bool {
        self.scenario.clocks_differ() || self.went_back_between(before, after)
    }

    /// Everything is over: each time has a fate, and each task is the fate of a time.
    pub(crate) fn check_schedules(&mut self) {
        for (id, _) in RULES {
            let Some(schedule) = self.stored_schedule(id) else { continue };
            let (rule, times) = (&schedule.rule, times_of(&schedule.rule));
            let next = |after: &Timestamp| rule.after(&times, *after);
            let wanted: BTreeSet<Timestamp> = std::iter::successors(next(&Timestamp::ZERO), next).collect();
            let mut fates: BTreeMap<Timestamp, Vec<Option<TaskId>>> = BTreeMap::new();
            for past in &schedule.state.history {
                let said = match past.what {
                    Fate::Fired { task } => Some(task),
                    Fate::Skipped { .. } | Fate::Missed { .. } => None,
                };
                fates.entry(past.fire.nominal).or_default().push(said);
            }
            for (nominal, fates) in &fates {
                if !wanted.contains(nominal)
                    || (fates.len() > 1 && !self.comes_again(Timestamp::ZERO, self.now))
                {
                    self.checker.fail(self.now, format!("{nominal} of schedule {id} has two fates"));
                }
                let said: BTreeSet<TaskId> = fates.iter().copied().flatten().collect();
                let tasks = self.fired.tasks.get(&(id.to_owned(), *nominal)).into_iter().flatten();
                let tasks: BTreeSet<TaskId> = tasks.map(|(task, _)| *task).collect();
                if said != tasks {
                    let wrong =
                        format!("{nominal} of schedule {id} is said to have {said:?} and has {tasks:?}");
                    self.checker.fail(self.now, wrong);
                }
            }
            let lost: Vec<&Timestamp> = wanted.iter().filter(|time| !fates.contains_key(time)).collect();
            if !lost.is_empty() {
                self.checker.fail(self.now, format!("schedule {id} has lost {lost:?}"));
            }
        }
        self.check_hourly();
    }

    /// The schedule that goes on fires at its next time by the clock as it is now.
    fn check_hourly(&mut self) {
        let Some(schedule) = self.stored_schedule(HOURLY) else { return };
        let nearest = schedule.rule.after(&times_of(&schedule.rule), self.now + self.ahead + BACK_MIN);
        if schedule.state.next > nearest {
            let (next, nearest) = (schedule.state.next, nearest);
            let wrong =
                format!("schedule {HOURLY} is silent until {next:?}, and its next time is {nearest:?}");
            self.checker.fail(self.now, wrong);
        }
    }

    fn stored_schedule(&self, id: &str) -> Option<Schedule> {
        let document = self.store.documents(&[key_of(id)]).pop().flatten()?;
        Some(codec::decode(&document.value).expect("it was written here"))
    }
}

/// Whether a schedule is due, or a step of the clock changes it.
fn is_wanted(document: &Document, wall: Timestamp) -> bool {
    if document.due.is_some_and(|due| due <= wall) {
        return true;
    }
    let schedule: Schedule = codec::decode(&document.value).expect("it was written here");
    schedule.is_stirred(&times_of(&schedule.rule), wall)
}

fn written(works: Vec<ReadSchedule>, outcomes: &[PutOutcome]) -> Vec<ReadSchedule> {
    let written = works.into_iter().zip(outcomes).filter_map(|(mut work, outcome)| match *outcome {
        PutOutcome::Stored { version } => {
            work.version = version;
            Some(work)
        }
        PutOutcome::Conflict { .. } => None,
    });
    written.collect()
}

//! Schedules, as servers fire them: the real decisions, over documents that are read and written through the
//! network. Every server handles all of them, so that servers get in each other's way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_core::task::{Fingerprint, NewTask, Payload, TaskBody, TaskSpec};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DueList, PutDocument, PutOutcome, Submit, codec,
};
use tasklane_schedule::{
    DecisionInput, Fate, Fire, FireSubmission, MissedPolicy, Overlap, Rule, Schedule, TaskOutcome, Times,
    When,
};

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
}

#[derive(Debug, Default)]
enum ClerkStep {
    #[default]
    Idle,
    Reading,
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
pub(crate) struct FiredTimes(BTreeMap<(String, Timestamp), TaskId>);

/// A clerk gives a round up after this time.
const PATIENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(4);
/// The schedules of a run: each has another overlap rule.
const RULES: [(&str, Overlap); 4] = [
    ("all", Overlap::AllowAll),
    ("skip", Overlap::Skip),
    ("one", Overlap::BufferOne),
    ("cancel", Overlap::CancelOther),
];

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
        }
    }

    /// Whether all schedules are over.
    pub(crate) fn schedules_are_over(&self) -> bool {
        let due = DueList { kind: DocumentKind::Schedule, until: Timestamp::MAX, after: None, limit: 1 };
        self.store.documents_by_time(&due).is_empty()
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
        let now = self.now;
        let clerk = self.clerk(index);
        if !matches!(clerk.step, ClerkStep::Idle) && now < clerk.since + PATIENCE {
            return;
        }
        (clerk.round, clerk.since, clerk.step) = (clerk.round + 1, now, ClerkStep::Reading);
        let wall = self.wall_of(index);
        self.ask(index, ClerkRequest::Due(wall));
    }

    fn ask(&mut self, index: usize, request: ClerkRequest) {
        let incarnation = self.servers[index].incarnation;
        let round = self.clerk(index).round;
        self.call_store(StoreRequest::Clerk(request), ReplyTo::Clerk { index, incarnation, round });
    }

    /// The store has answered a clerk.
    pub(crate) fn clerk_reply(&mut self, index: usize, round: u64, reply: ClerkReply) {
        let wall = self.wall_of(index);
        let clerk = self.clerk(index);
        if clerk.round != round {
            return;
        }
        match (std::mem::take(&mut clerk.step), reply) {
            (ClerkStep::Reading, ClerkReply::Due(documents, ended)) => {
                let works: Vec<ReadSchedule> =
                    documents.into_iter().map(|document| self.planned(document, wall, &ended)).collect();
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

    /// A schedule with the decisions about it.
    fn planned(
        &mut self,
        document: Document,
        wall: Timestamp,
        ended: &BTreeMap<TaskId, TaskOutcome>,
    ) -> ReadSchedule {
        let mut schedule: Schedule = codec::decode(&document.value).expect("it was written here");
        let (id, times) = (document.key.id.to_string(), times_of(&schedule.rule));
        let look =
            DecisionInput { now: wall, settled: true, outcomes: ended, invariants: self.scenario.invariants };
        for fire in schedule.decide(&id, &times, &look) {
            let task = self.scheduled_task(&id, fire, wall);
            schedule.plan(fire, Ok(task), wall);
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
                let submit = Submit { lane, tasks: tasks.into() };
                let outcomes = self.store.submit(&submit).expect("a submit of the simulator fits");
                self.observe_store();
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
        if let Some(other) = self.fired.0.insert((id.clone(), nominal), task) {
            let wrong = format!("tasks {other} and {task} are both for {nominal} of schedule {id}");
            self.checker.fail(self.now, wrong);
        }
        let alone = RULES.iter().any(|(known, overlap)| *known == id && *overlap != Overlap::AllowAll);
        let open = self.fired.0.iter().filter(|((of, _), _)| *of == id).map(|(_, other)| *other);
        let open = open.filter(|other| *other != task && self.end_of(*other).is_none());
        let open: Vec<TaskId> = if alone { open.collect() } else { Vec::new() };
        for other in open {
            let wrong = format!("task {task} of schedule {id} was created while {other} had not ended");
            self.checker.fail(self.now, wrong);
        }
    }

    /// The world is at rest: each planned time has an outcome, and each submitted fire has its task.
    pub(crate) fn check_schedules(&mut self) {
        for (id, _) in RULES {
            let Some(document) = self.store.documents(&[key_of(id)]).pop().flatten() else { continue };
            let schedule: Schedule = codec::decode(&document.value).expect("it was written here");
            let (rule, times) = (&schedule.rule, times_of(&schedule.rule));
            let next = |after: &Timestamp| rule.after(&times, *after);
            let mut wanted: Vec<Timestamp> = std::iter::successors(next(&Timestamp::ZERO), next).collect();
            for past in &schedule.state.history {
                let nominal = past.fire.nominal;
                let known = wanted.iter().position(|time| *time == nominal);
                match known {
                    Some(at) => _ = wanted.remove(at),
                    None => self.checker.fail(self.now, format!("{nominal} of schedule {id} has two fates")),
                }
                let task = self.fired.0.get(&(id.to_owned(), nominal)).copied();
                let said = match past.what {
                    Fate::Fired { task } => Some(task),
                    Fate::Skipped { .. } | Fate::Missed { .. } => None,
                };
                if task != said {
                    let wrong =
                        format!("{nominal} of schedule {id} is stored as {said:?}, but its task is {task:?}");
                    self.checker.fail(self.now, wrong);
                }
            }
            if !wanted.is_empty() {
                self.checker.fail(self.now, format!("schedule {id} has lost {wanted:?}"));
            }
        }
    }
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

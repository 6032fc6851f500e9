//! Tasks that drive others, as servers drive them: the real decisions, by what the store has of their parts. Every server
//! drives all of them at once, which no deployment does: so they get in each other's way, and come late. A run is any of
//! them here: of a workflow, of a task that becomes many, of a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_core::task::{Fingerprint, NewTask, Payload, TaskBody, TaskSpec};
use tasklane_core::time::Timestamp;
use tasklane_ports::Submit;
use tasklane_workflow::ROOT;

use crate::client::{plain_head, queue_key};
use crate::kinds::{Kind, PartNow};
use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::world::{Event, World};

/// What a server does about runs at the moment.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    /// Counts what was begun. Answers to what was given up are dropped.
    round: u64,
    since: Timestamp,
    /// Which run it looks at.
    run: usize,
    is_asking: bool,
}

/// What a driver asks of the store.
#[derive(Clone, Debug)]
pub(crate) enum DriverRequest {
    /// The tasks of a run, and whether it was cancelled.
    Read(usize),
    /// Submit these, then cancel those.
    Act { tasks: Vec<NewTask>, cancels: Vec<TaskId> },
    /// The run is over.
    Finish { run: usize, failed: bool },
}

/// What it is told.
#[derive(Clone, Debug)]
pub(crate) enum DriverReply {
    Read { run: usize, parts: Vec<PartNow>, cancelled: bool },
    Done,
    Failed,
}

/// The runs of a seed, and what was said of them.
#[derive(Debug, Default)]
pub(crate) struct Runs(Vec<Planned>);

#[derive(Debug)]
struct Planned {
    id: TaskId,
    kind: Kind,
    /// When somebody cancels it.
    cancel_at: Option<Timestamp>,
    /// Or somebody does just after so many times that something was to begin, when that is still on its way.
    cancel_after_begins: Option<u64>,
    cancelled: bool,
    /// Whether it failed, when it is said to be over.
    ended: Option<bool>,
}

/// Two runs of workflows, a task that becomes many, and a job.
const RUNS: usize = 4;
const NODES: u64 = 8;
/// What takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a name begins with that only takes an id.
const TAKEN: &str = "~";

impl Planned {
    /// Why a part should not exist yet.
    fn too_early(&self, name: &str, parts: &BTreeMap<String, Status>) -> Option<String> {
        self.kind.too_early(name, parts, self.cancelled)
    }

    /// What should exist, or have come to something else.
    fn forgotten(&self, parts: &BTreeMap<String, Status>) -> Option<String> {
        self.kind.forgotten(parts, self.cancelled, self.ended == Some(true))
    }
}

impl World {
    pub(crate) fn plan_runs(&mut self) {
        for number in 0..RUNS {
            let kind = match number {
                0 | 1 => Kind::graph(&mut self.rng, NODES),
                2 => Kind::fan(&mut self.rng),
                _ => Kind::job(&mut self.rng),
            };
            let cancel_after = self.between(500_000, 40_000_000);
            let cancel_at = self.rng.chance(40).then(|| self.now + cancel_after);
            let cancel_after_begins = self.rng.chance(30).then(|| self.rng.below(4));
            self.runs.0.push(Planned {
                id: TaskId::from_random(0x4e00_0000 + number as u128),
                kind,
                cancel_at,
                cancel_after_begins,
                cancelled: false,
                ended: None,
            });
        }
    }

    /// Whether all runs are over.
    pub(crate) fn runs_are_over(&self) -> bool {
        self.runs.0.iter().all(|run| run.ended.is_some())
    }

    fn driver(&mut self, index: usize) -> &mut Driver {
        &mut self.servers[index].process.as_mut().expect("the server is running").driver
    }

    /// Looks at the next run.
    pub(crate) fn drive_runs(&mut self, index: usize) {
        let now = self.now;
        for run in &mut self.runs.0 {
            run.cancelled |= run.cancel_at.is_some_and(|at| at <= now) && run.ended.is_none();
        }
        let driver = self.driver(index);
        if driver.is_asking && now < driver.since + PATIENCE {
            return;
        }
        (driver.run, driver.since) = ((driver.run + 1) % RUNS, now);
        let run = driver.run;
        self.ask_driver(index, DriverRequest::Read(run));
    }

    fn ask_driver(&mut self, index: usize, request: DriverRequest) {
        let incarnation = self.servers[index].incarnation;
        let driver = self.driver(index);
        (driver.round, driver.is_asking) = (driver.round + 1, true);
        let round = driver.round;
        self.call_store(StoreRequest::Driver(request), ReplyTo::Driver { index, incarnation, round });
    }

    /// The store has answered a driver.
    pub(crate) fn driver_reply(&mut self, index: usize, round: u64, reply: DriverReply) {
        let driver = self.driver(index);
        if driver.round != round {
            return;
        }
        driver.is_asking = false;
        if let DriverReply::Read { run, parts, cancelled } = reply
            && let Some(request) = self.decided(run, &parts, cancelled)
        {
            self.ask_driver(index, request);
        }
    }

    /// What is to be done about a run of which this is known.
    fn decided(&mut self, number: usize, parts: &[PartNow], cancelled: bool) -> Option<DriverRequest> {
        let own: Vec<PartNow> = parts.iter().filter(|part| !part.name.starts_with(TAKEN)).cloned().collect();
        let decision = self.runs.0[number].kind.decide(&own, cancelled, self.scenario.guards);
        if cancelled && decision.begin.iter().any(|name| name != ROOT) {
            let wrong = format!("{:?} of run {number} were to begin, and it is cancelled", decision.begin);
            self.checker.fail(self.now, wrong);
        }
        if !decision.begin.is_empty() {
            let run = &mut self.runs.0[number];
            run.cancelled |= run.cancel_after_begins == Some(0) && run.ended.is_none();
            run.cancel_after_begins = run.cancel_after_begins.and_then(|begins| begins.checked_sub(1));
        }
        let mut cancels = Vec::new();
        if decision.stops {
            cancels.extend(own.iter().filter(|part| !part.status.is_final()).map(|part| part.id));
        }
        // What takes ids is cancelled again, should that have been lost.
        let taking = parts.iter().filter(|part| part.name.starts_with(TAKEN) && !part.status.is_final());
        cancels.extend(taking.clone().map(|part| part.id));
        let mut tasks: Vec<NewTask> =
            decision.begin.iter().map(|name| self.part(number, name, false)).collect();
        if let Some(failed) = decision.over.filter(|_| tasks.is_empty() && taking.count() == 0) {
            let is_taken = |name: &String| parts.iter().any(|part| part.name[..] == format!("{TAKEN}{name}"));
            let at_risk: Vec<&String> = decision.at_risk.iter().filter(|name| !is_taken(name)).collect();
            if at_risk.is_empty() {
                return Some(DriverRequest::Finish { run: number, failed });
            }
            self.report.path("part_id_taken");
            tasks = at_risk.into_iter().map(|name| self.part(number, name, true)).collect();
            cancels.extend(tasks.iter().map(|task| task.id));
        }
        (!tasks.is_empty() || !cancels.is_empty()).then_some(DriverRequest::Act { tasks, cancels })
    }

    /// The task of a node, or one that takes its id.
    fn part(&mut self, run: usize, node: &str, taking: bool) -> NewTask {
        let whole = self.runs.0[run].id;
        let queue = queue_key(1);
        let lane = queue.default_lane(self.scenario.lanes);
        let request_id = format!("{whole}:{node}");
        let id = TaskId::from_request(lane, &queue, None, &request_id);
        let head = plain_head(queue, 0);
        let body = TaskBody {
            name: "plain".to_owned(),
            payload: Payload::Text("x".to_owned()),
            request_id: Some(request_id),
            parent: Some(whole),
            part: Some(if taking { format!("{TAKEN}{node}") } else { node.to_owned() }),
            ..TaskBody::default()
        };
        NewTask {
            id,
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
            created_at: self.now,
            due: if taking { self.now + Duration::from_hours(1_000_000) } else { self.now },
            fingerprint: Fingerprint { version: 1, hash: 0 },
            queue_len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// The store does what a driver asks.
    pub(crate) fn apply_driver(&mut self, request: DriverRequest) -> DriverReply {
        match request {
            DriverRequest::Read(run) => {
                let parts = self.parts_of(run);
                DriverReply::Read { run, parts, cancelled: self.runs.0[run].cancelled }
            }
            DriverRequest::Act { tasks, cancels } => {
                if let Some(lane) = tasks.first().map(|task| task.id.lane()) {
                    for tasks in tasks.chunks(4) {
                        let submit = Submit { lane, tasks: tasks.into() };
                        self.store.submit(&submit).expect("a submit of the simulator fits");
                    }
                    self.observe_store();
                    self.send_hint(lane);
                }
                for task in cancels {
                    self.store.post(task.lane(), &[Command::Cancel { task }]);
                }
                DriverReply::Done
            }
            DriverRequest::Finish { run, failed } => {
                self.finish_run(run, failed);
                DriverReply::Done
            }
        }
    }

    fn parts_of(&self, run: usize) -> Vec<PartNow> {
        let whole = self.runs.0[run].id;
        let parts = self.store.all_tasks().filter_map(|(id, task)| {
            let part = task.state.part.as_ref().filter(|part| part.of == whole)?;
            Some(PartNow { name: part.name.clone(), id, status: task.state.status })
        });
        parts.collect()
    }

    /// Somebody says that a run is over: then everything of it is, and everybody says the same.
    fn finish_run(&mut self, run: usize, failed: bool) {
        let open: Vec<_> = self.parts_of(run).into_iter().filter(|part| !part.status.is_final()).collect();
        if !open.is_empty() {
            self.checker.fail(self.now, format!("run {run} is said to be over, and {open:?} are open"));
        }
        let Planned { kind, cancelled, ended, .. } = &mut self.runs.0[run];
        // A driver that looks before a cancel and one that looks after it may differ, where the kind goes by the cancel itself.
        let may_differ = *cancelled && !matches!(kind, Kind::Graph { .. });
        if ended.replace(failed).is_some_and(|before| before != failed && !may_differ) {
            self.checker.fail(self.now, format!("run {run} is said to have failed, and not to have failed"));
        }
        self.report.path("run_ended");
    }

    /// A task was created: if it is of a run, that is not over, and it is time for the task.
    pub(crate) fn watch_part(&mut self, task: TaskId) {
        let Some(part) = self.store.task(task).and_then(|task| task.state.part.clone()) else { return };
        let Some(run) = self.runs.0.iter().position(|run| run.id == part.of) else { return };
        if self.runs.0[run].ended.is_some() {
            let wrong = format!("{} of run {run} was created when the run was over", part.name);
            return self.checker.fail(self.now, wrong);
        }
        let parts: BTreeMap<String, Status> =
            self.parts_of(run).into_iter().map(|part| (part.name, part.status)).collect();
        if part.name.starts_with(TAKEN) {
            return;
        }
        if let Some(wrong) = self.runs.0[run].too_early(&part.name, &parts) {
            self.checker.fail(self.now, format!("{} of run {run} was created too early: {wrong}", part.name));
        }
    }

    /// Everything is over: nothing of a run was forgotten.
    pub(crate) fn check_runs(&mut self) {
        for run in 0..self.runs.0.len() {
            let parts: BTreeMap<String, Status> =
                self.parts_of(run).into_iter().map(|part| (part.name, part.status)).collect();
            if let Some(wrong) = self.runs.0[run].forgotten(&parts) {
                self.checker.fail(self.now, format!("run {run} is over, and {wrong}: {parts:?}"));
            }
        }
    }

    pub(crate) fn answer_driver(&mut self, reply_to: &ReplyTo, reply: DriverReply, delay: Duration) {
        if let ReplyTo::Driver { index, incarnation, round } = *reply_to {
            let input = ServerInput::Driven { round, reply: Box::new(reply) };
            self.after(delay, Event::Server { index, incarnation, input });
        }
    }
}

//! Runs: composites as servers drive them, with the real decisions by the children in the store. Every server
//! drives all of them at once, which no deployment does: so drivers get in each other's way, and come late. A
//! run is any composite here: of a workflow, a map or a job.

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
use crate::composites::{CompositeKind, StoredChild};
use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::world::{Event, World};

/// The state of a server's driver.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    /// Counts the requests. Answers to abandoned requests are dropped.
    round: u64,
    since: Timestamp,
    /// Which run it looks at.
    run: usize,
    is_asking: bool,
}

/// A request of a driver to the store.
#[derive(Clone, Debug)]
pub(crate) enum DriverRequest {
    /// The tasks of a run, and whether it was cancelled.
    Read(usize),
    /// Submit these, then cancel those.
    Act { tasks: Vec<NewTask>, cancels: Vec<TaskId> },
    /// The run is over.
    Finish { run: usize, failed: bool },
}

/// The answer to a driver.
#[derive(Clone, Debug)]
pub(crate) enum DriverReply {
    Read { run: usize, children: Vec<StoredChild>, cancelled: bool },
    Done,
    Failed,
}

/// The runs of a seed, and their reported ends.
#[derive(Debug, Default)]
pub(crate) struct Runs(Vec<PlannedComposite>);

#[derive(Debug)]
struct PlannedComposite {
    id: TaskId,
    kind: CompositeKind,
    /// When a client cancels it.
    cancel_at: Option<Timestamp>,
    /// Or a client cancels it just after so many children were begun, while the submit is still on its way.
    cancel_after_begins: Option<u64>,
    cancelled: bool,
    /// Whether it failed, once a driver has reported its end.
    ended: Option<bool>,
}

/// Two runs of workflows, a task that becomes many, and a job.
const RUNS: usize = 4;
const NODES: u64 = 8;
/// A driver gives a request up after this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The name of a tombstone begins with this.
const TOMBSTONE_PREFIX: &str = "~";

impl PlannedComposite {
    /// The reason why a child should not exist yet.
    fn too_early(&self, name: &str, children: &BTreeMap<String, Status>) -> Option<String> {
        self.kind.too_early(name, children, self.cancelled)
    }

    /// A child that is missing, or a wrong end.
    fn forgotten(&self, children: &BTreeMap<String, Status>) -> Option<String> {
        self.kind.forgotten(children, self.cancelled, self.ended == Some(true))
    }
}

impl World {
    pub(crate) fn plan_runs(&mut self) {
        for number in 0..RUNS {
            let kind = match number {
                0 | 1 => CompositeKind::graph(&mut self.rng, NODES),
                2 => CompositeKind::map(&mut self.rng),
                _ => CompositeKind::job(&mut self.rng),
            };
            let cancel_after = self.between(500_000, 40_000_000);
            let cancel_at = self.rng.chance(40).then(|| self.now + cancel_after);
            let cancel_after_begins = self.rng.chance(30).then(|| self.rng.below(4));
            self.runs.0.push(PlannedComposite {
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
        if let DriverReply::Read { run, children, cancelled } = reply
            && let Some(request) = self.decided(run, &children, cancelled)
        {
            self.ask_driver(index, request);
        }
    }

    /// The next request about a run, by its children.
    fn decided(&mut self, number: usize, children: &[StoredChild], cancelled: bool) -> Option<DriverRequest> {
        let own: Vec<StoredChild> =
            children.iter().filter(|child| !child.name.starts_with(TOMBSTONE_PREFIX)).cloned().collect();
        let decision = self.runs.0[number].kind.decide(&own, cancelled, self.scenario.invariants);
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
            cancels.extend(own.iter().filter(|child| !child.status.is_final()).map(|child| child.id));
        }
        // Tombstones are cancelled again, in case the first cancel was lost.
        let tombstones = children
            .iter()
            .filter(|child| child.name.starts_with(TOMBSTONE_PREFIX) && !child.status.is_final());
        cancels.extend(tombstones.clone().map(|child| child.id));
        let mut tasks: Vec<NewTask> =
            decision.begin.iter().map(|name| self.child(number, name, false)).collect();
        if let Some(failed) = decision.over.filter(|_| tasks.is_empty() && tombstones.count() == 0) {
            let has_tombstone = |name: &String| {
                children.iter().any(|child| child.name[..] == format!("{TOMBSTONE_PREFIX}{name}"))
            };
            let maybe_submitted: Vec<&String> =
                decision.maybe_submitted.iter().filter(|name| !has_tombstone(name)).collect();
            if maybe_submitted.is_empty() {
                return Some(DriverRequest::Finish { run: number, failed });
            }
            self.report.path("child_tombstoned");
            tasks = maybe_submitted.into_iter().map(|name| self.child(number, name, true)).collect();
            cancels.extend(tasks.iter().map(|task| task.id));
        }
        (!tasks.is_empty() || !cancels.is_empty()).then_some(DriverRequest::Act { tasks, cancels })
    }

    /// The task of a node, or the tombstone that takes its id.
    fn child(&mut self, run: usize, node: &str, is_tombstone: bool) -> NewTask {
        let composite = self.runs.0[run].id;
        let queue = queue_key(1);
        let lane = queue.default_lane(self.scenario.lanes);
        let request_id = format!("{composite}:{node}");
        let id = TaskId::from_request(lane, &queue, None, &request_id);
        let head = plain_head(queue, 0);
        let body = TaskBody {
            name: "plain".to_owned(),
            payload: Payload::Text("x".to_owned()),
            request_id: Some(request_id),
            parent: Some(composite),
            child_name: Some(if is_tombstone {
                format!("{TOMBSTONE_PREFIX}{node}")
            } else {
                node.to_owned()
            }),
            ..TaskBody::default()
        };
        NewTask {
            id,
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
            created_at: self.now,
            due: if is_tombstone { self.now + Duration::from_hours(1_000_000) } else { self.now },
            fingerprint: Fingerprint { version: 1, hash: 0 },
            queue_len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// The store applies a request of a driver.
    pub(crate) fn apply_driver(&mut self, request: DriverRequest) -> DriverReply {
        match request {
            DriverRequest::Read(run) => {
                let children = self.children_of(run);
                DriverReply::Read { run, children, cancelled: self.runs.0[run].cancelled }
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

    fn children_of(&self, run: usize) -> Vec<StoredChild> {
        let composite = self.runs.0[run].id;
        let children = self.store.all_tasks().filter_map(|(id, task)| {
            let child = task.state.child_of.as_ref().filter(|child| child.composite == composite)?;
            Some(StoredChild { name: child.name.clone(), id, status: task.state.status })
        });
        children.collect()
    }

    /// A driver reports the end of a run: all its children must have ended, and all drivers must report the
    /// same.
    fn finish_run(&mut self, run: usize, failed: bool) {
        let open: Vec<_> =
            self.children_of(run).into_iter().filter(|child| !child.status.is_final()).collect();
        if !open.is_empty() {
            self.checker.fail(self.now, format!("run {run} was reported as over, but {open:?} are open"));
        }
        let PlannedComposite { kind, cancelled, ended, .. } = &mut self.runs.0[run];
        // Two drivers may differ where one read the run before its cancel and the other after it, and the kind goes by
        // the cancel itself.
        let may_differ = *cancelled && !matches!(kind, CompositeKind::Graph { .. });
        if ended.replace(failed).is_some_and(|before| before != failed && !may_differ) {
            self.checker.fail(self.now, format!("run {run} was reported both as failed and as not failed"));
        }
        self.report.path("run_ended");
    }

    /// A task was created: if it is a child of a run, the run must be open, and it must be time for the
    /// child.
    pub(crate) fn watch_child(&mut self, task: TaskId) {
        let Some(child) = self.store.task(task).and_then(|task| task.state.child_of.clone()) else { return };
        let Some(run) = self.runs.0.iter().position(|run| run.id == child.composite) else { return };
        if self.runs.0[run].ended.is_some() {
            let wrong = format!("{} of run {run} was created when the run was over", child.name);
            return self.checker.fail(self.now, wrong);
        }
        let children: BTreeMap<String, Status> =
            self.children_of(run).into_iter().map(|child| (child.name, child.status)).collect();
        if child.name.starts_with(TOMBSTONE_PREFIX) {
            return;
        }
        if let Some(wrong) = self.runs.0[run].too_early(&child.name, &children) {
            self.checker
                .fail(self.now, format!("{} of run {run} was created too early: {wrong}", child.name));
        }
    }

    /// The world is at rest: no child of a run may be missing.
    pub(crate) fn check_runs(&mut self) {
        for run in 0..self.runs.0.len() {
            let children: BTreeMap<String, Status> =
                self.children_of(run).into_iter().map(|child| (child.name, child.status)).collect();
            if let Some(wrong) = self.runs.0[run].forgotten(&children) {
                self.checker.fail(self.now, format!("run {run} is over, and {wrong}: {children:?}"));
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

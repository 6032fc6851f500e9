//! The invariants, stated once. The simulator and the end-to-end tests report their observations to the
//! checker, in the order in which they happened, and ask for its violations at the end.
//!
//! 1. No acknowledged task is lost: each reaches a final state.
//! 2. A final state is written once and never changes.
//! 3. No two attempts of a task are alive at the same time.
//! 4. An attempt is started once, after its assignment was committed, and while it is the current one.
//! 5. An assignment takes a new attempt number; an attempt has one session.
//! 6. Only the current owner of a lane writes to it.
//! 7. Limits and rates are never exceeded.
//! 8. A task is created once; a request never sent before is not answered as a duplicate.
//! 9. An acknowledged command is not lost, and is removed only when it has taken effect; a cancelled task is
//!    not started again.
//! 10. A report is acknowledged only when its effect is durable.
//! 11. A task whose attempts keep getting lost is stopped.
//! 12. A lane that failed under several owners in a row rests for a while before it is tried again.
//! 13. Of tasks with the same unique key there is one at a time.
//! 14. A line that may run gets its turn.
//! 15. Under a limit that cancels, no more tasks of a key wait or run than the limit allows.
//!
//! The simulator also plays a burst onto idle workers, and judges the spread by the strategy of its queue
//! (`burst.rs`). It steps the wall clock, and checks that durations keep their length (`timing.rs`), that retention
//! removes no task early (`retention.rs`), that locks keep their holders (`locks.rs`), and that a jump causes no flood
//! of fires (`schedules.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::{AttemptNo, Epoch, LaneId, OwnerId, SessionId, TaskId};
use tasklane_core::message::AttemptId;
use tasklane_core::policy::Rate;
use tasklane_core::status::Status;
use tasklane_core::time::Timestamp;

use crate::keyed::{KeyWatch, TaskKeys};

/// An observation.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A client received the answer that its task is stored.
    Acknowledged {
        /// The task.
        task: TaskId,
        /// The answer was a duplicate, though the id had never been sent before.
        wrongly_duplicate: bool,
    },
    /// The store answers again.
    StoreBack,
    /// The store has a new task.
    Created {
        /// The task.
        task: TaskId,
    },
    /// The rules for the keys of a task that was just created.
    Keyed {
        /// The task.
        task: TaskId,
        /// Its keys.
        keyed: TaskKeys,
    },
    /// A lane got a new owner.
    Claimed {
        /// The lane.
        lane: LaneId,
        /// Its epoch.
        epoch: Epoch,
        /// Its owner.
        owner: OwnerId,
        /// Failed owners in a row, as recorded by the claim.
        failures: u32,
    },
    /// The owner of a lane begins to work.
    Tried {
        /// The lane.
        lane: LaneId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A task was changed in the store.
    Changed(Change),
    /// A client received the answer that its cancel is stored.
    CancelAcknowledged {
        /// The task.
        task: TaskId,
    },
    /// A command for a task was removed from the inbox.
    CommandRemoved {
        /// The task.
        task: TaskId,
    },
    /// A worker began to execute an attempt.
    Started {
        /// Names the execution.
        execution: u64,
        /// Which attempt.
        attempt: AttemptId,
        /// By whom.
        session: SessionId,
        /// Limits that count it: key, and how many may be alive.
        limits: Vec<(String, u32)>,
    },
    /// All processes of an execution are gone.
    Ended {
        /// Which one.
        execution: u64,
    },
    /// A worker received the acknowledgement of its report.
    ReportAcknowledged {
        /// About which attempt.
        attempt: AttemptId,
        /// Whose.
        session: SessionId,
    },
}

/// A change of a task in the store.
#[derive(Clone, Debug)]
pub struct Change {
    /// The task.
    pub task: TaskId,
    /// Its lane.
    pub lane: LaneId,
    /// Who wrote it: epoch …
    pub epoch: Epoch,
    /// … and identity.
    pub owner: OwnerId,
    /// The statuses it entered, with the time.
    pub path: Vec<(Status, Timestamp)>,
    /// Where it stands now.
    pub status: Status,
    /// Its attempt.
    pub attempt: AttemptNo,
    /// Who has that attempt.
    pub session: Option<SessionId>,
    /// A cancel was accepted.
    pub cancel_requested: bool,
    /// Attempts lost after they had started.
    pub lost: u32,
    /// Attempts lost before they had started.
    pub lost_before_start: u32,
    /// It was cancelled because the limit of its key was reached.
    pub limit_reached: bool,
    /// Rates that count its assignment, by key.
    pub rates: Vec<(String, Rate)>,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was noticed.
    pub at: Timestamp,
    /// The violation.
    pub what: String,
}

/// The options that the checker needs.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many attempts of a task may be lost after they had started.
    pub lost_max: u32,
    /// How many attempts of a task may be lost before they had started.
    pub lost_before_start_max: u32,
    /// How many owners in a row may fail before a lane is parked.
    pub failures_max: u32,
    /// How long a parked lane is left alone.
    pub park_for: Duration,
}

/// The checker. See the [module](self).
#[derive(Debug)]
pub struct Checker {
    bounds: Bounds,
    violations: Vec<Violation>,
    tasks: BTreeMap<TaskId, Task>,
    acknowledged: BTreeSet<TaskId>,
    /// Tasks with an acknowledged cancel whose command is not removed yet.
    cancels: BTreeSet<TaskId>,
    excused: BTreeSet<TaskId>,
    owners: BTreeMap<LaneId, (Epoch, OwnerId)>,
    /// Failures in a row of each lane, and when a claim first counted them.
    failures: BTreeMap<LaneId, (u32, Timestamp)>,
    /// Tasks whose command was removed; its acknowledgement may come later.
    removed: BTreeSet<TaskId>,
    executions: BTreeMap<u64, (AttemptId, Vec<String>)>,
    alive: BTreeMap<TaskId, u64>,
    alive_by_limit: BTreeMap<String, u32>,
    sessions: BTreeMap<AttemptId, SessionId>,
    started: BTreeSet<AttemptId>,
    rates: BTreeMap<String, Timestamp>,
    keys: KeyWatch,
}

#[derive(Debug, Default)]
struct Task {
    status: Option<Status>,
    attempt: AttemptNo,
    session: Option<SessionId>,
    cancel_requested: bool,
}

/// Violations kept: the first ones show the cause.
const VIOLATIONS_MAX: usize = 200;

impl Checker {
    /// A checker without observations.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            violations: Vec::new(),
            tasks: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            cancels: BTreeSet::new(),
            excused: BTreeSet::new(),
            owners: BTreeMap::new(),
            failures: BTreeMap::new(),
            removed: BTreeSet::new(),
            executions: BTreeMap::new(),
            alive: BTreeMap::new(),
            alive_by_limit: BTreeMap::new(),
            sessions: BTreeMap::new(),
            started: BTreeSet::new(),
            rates: BTreeMap::new(),
            keys: KeyWatch::default(),
        }
    }

    /// The session that an attempt was given to.
    pub fn session_of(&self, attempt: AttemptId) -> Option<SessionId> {
        self.sessions.get(&attempt).copied()
    }

    /// The violations so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Notes a violation that the caller has found itself.
    pub fn fail(&mut self, at: Timestamp, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { at, what });
        }
    }

    /// Takes an observation.
    pub fn observe(&mut self, at: Timestamp, observation: Observation) {
        match observation {
            Observation::Acknowledged { task, wrongly_duplicate } => {
                self.acknowledged.insert(task);
                if wrongly_duplicate {
                    self.fail(
                        at,
                        format!(
                            "task {task} was answered as a duplicate, but its request was never sent before"
                        ),
                    );
                }
                if !self.tasks.contains_key(&task) {
                    self.fail(at, format!("task {task} was acknowledged, but it is not stored"));
                }
            }
            Observation::StoreBack => self.keys.store_back(at),
            Observation::Created { task } => {
                let fresh = Task { status: Some(Status::Pending), ..Task::default() };
                if self.tasks.insert(task, fresh).is_some() {
                    self.fail(at, format!("task {task} was created twice"));
                }
            }
            Observation::Keyed { task, keyed } => {
                let tasks = &self.tasks;
                let is_final = |task| {
                    tasks.get(&task).is_some_and(|task: &Task| task.status.is_some_and(Status::is_final))
                };
                let wrong = self.keys.created(at, task, keyed, is_final);
                if let Some(wrong) = wrong {
                    self.fail(at, wrong);
                }
            }
            Observation::Claimed { lane, epoch, owner, failures } => {
                self.keys.claimed(lane, at);
                if self.failures.get(&lane).is_none_or(|(known, _)| *known != failures) {
                    self.failures.insert(lane, (failures, at));
                }
                let before = self.owners.insert(lane, (epoch, owner));
                if before.is_some_and(|(last, _)| epoch <= last) {
                    self.fail(at, format!("lane {lane} was claimed under epoch {epoch} again"));
                }
            }
            Observation::Tried { lane, epoch } => self.on_tried(at, lane, epoch),
            Observation::Changed(change) => self.on_changed(at, &change),
            Observation::CancelAcknowledged { task } => {
                if !self.removed.contains(&task) {
                    self.cancels.insert(task);
                }
            }
            Observation::CommandRemoved { task } => {
                self.cancels.remove(&task);
                self.removed.insert(task);
                let settled = self
                    .tasks
                    .get(&task)
                    .is_none_or(|task| task.cancel_requested || task.status.is_some_and(Status::is_final));
                if !settled {
                    self.fail(at, format!("the cancel of task {task} was removed without effect"));
                }
            }
            Observation::Started { execution, attempt, session, limits } => {
                self.on_started(at, execution, attempt, session, limits);
            }
            Observation::Ended { execution } => {
                let Some((attempt, limits)) = self.executions.remove(&execution) else { return };
                if self.alive.get(&attempt.task) == Some(&execution) {
                    self.alive.remove(&attempt.task);
                }
                for limit in limits {
                    *self.alive_by_limit.entry(limit).or_default() -= 1;
                }
            }
            Observation::ReportAcknowledged { attempt, session } => {
                let Some(task) = self.tasks.get(&attempt.task) else { return };
                let in_flight = task.status.is_some_and(Status::is_in_flight);
                if in_flight && task.attempt == attempt.number && task.session == Some(session) {
                    let AttemptId { task, number } = attempt;
                    self.fail(
                        at,
                        format!("the report on attempt {number} of task {task} was acknowledged too early"),
                    );
                }
            }
        }
    }

    fn on_tried(&mut self, at: Timestamp, lane: LaneId, epoch: Epoch) {
        // An overtaken owner can do no harm, and its count of failures is old.
        if self.owners.get(&lane).is_none_or(|(current, _)| *current != epoch) {
            return;
        }
        let Some(&(failures, since)) = self.failures.get(&lane) else { return };
        let rested = at.since(since);
        if failures > self.bounds.failures_max && rested < self.bounds.park_for {
            self.fail(
                at,
                format!(
                    "lane {lane} was tried {rested:?} after it had failed under {failures} owners in a row"
                ),
            );
        }
    }

    fn on_changed(&mut self, at: Timestamp, change: &Change) {
        let id = change.task;
        if self.owners.get(&change.lane) != Some(&(change.epoch, change.owner)) {
            self.fail(at, format!("task {id} was written by a former owner of lane {}", change.lane));
        }
        let task = self.tasks.entry(id).or_default();
        let was_final = task.status.is_some_and(Status::is_final);
        let was_cancelled = task.cancel_requested;
        task.status = Some(change.status);
        task.attempt = change.attempt;
        task.session = change.session;
        task.cancel_requested = change.cancel_requested;
        let assigned = change.path.iter().any(|(status, _)| *status == Status::Scheduled);
        let scheduled = change.path.iter().rev().find(|(status, _)| *status == Status::Scheduled);
        let scheduled = scheduled.map(|(_, time)| *time);
        let wrong = self.keys.changed(at, id, change.status, scheduled, change.limit_reached);
        if let Some(wrong) = wrong {
            self.fail(at, wrong);
        }
        if was_final && !change.path.is_empty() {
            self.fail(at, format!("task {id} was final and became {}", change.status));
        }
        if was_cancelled && (!change.cancel_requested || assigned) {
            self.fail(at, format!("task {id} lost its requested cancel"));
        }
        if change.lost > self.bounds.lost_max + 1 {
            self.fail(at, format!("task {id} went on after {} lost attempts", change.lost));
        }
        if change.lost_before_start > self.bounds.lost_before_start_max + 1 {
            let count = change.lost_before_start;
            self.fail(at, format!("task {id} went on after {count} attempts were lost before they started"));
        }
        if change.status.is_in_flight()
            && let Some(session) = change.session
        {
            let attempt = AttemptId { task: id, number: change.attempt };
            let before = self.sessions.insert(attempt, session);
            if before.is_some_and(|before| before != session) {
                self.fail(at, format!("attempt {} of task {id} was given to two sessions", change.attempt));
            }
        }
        for (key, rate) in &change.rates {
            // Assignments before the last one of a path were given up before they were written, and were
            // never sent.
            let assigned = change.path.iter().rev().find(|(status, _)| *status == Status::Scheduled);
            if let Some((_, time)) = assigned {
                self.on_rated(at, id, key, *rate, *time);
            }
        }
    }

    fn on_rated(&mut self, at: Timestamp, task: TaskId, key: &str, rate: Rate, time: Timestamp) {
        let stored = self.rates.get(key).copied();
        if let Some(stored) = stored {
            let next_at = rate.next_at(rate.settle(stored, time));
            if next_at > time {
                self.fail(
                    at,
                    format!("task {task} was assigned at {time}; the rate of {key} allows it at {next_at}"),
                );
            }
        }
        let stored = stored.map_or(time, |stored| rate.settle(stored, time));
        self.rates.insert(key.to_owned(), rate.after(stored, time));
    }

    fn on_started(
        &mut self,
        at: Timestamp,
        execution: u64,
        attempt: AttemptId,
        session: SessionId,
        limits: Vec<(String, u32)>,
    ) {
        let AttemptId { task, number } = attempt;
        if self.sessions.get(&attempt) != Some(&session) {
            self.fail(at, format!("attempt {number} of task {task} was started before it was assigned"));
        }
        let current = self.tasks.get(&task);
        let counts = |task: &Task| task.status.is_some_and(Status::is_in_flight) && task.attempt == number;
        if !current.is_some_and(counts) {
            self.fail(at, format!("attempt {number} of task {task} was started after its end"));
        }
        if !self.started.insert(attempt) {
            self.fail(at, format!("attempt {number} of task {task} was started twice"));
        }
        if let Some(other) = self.alive.insert(task, execution) {
            let other = self.executions.get(&other).map_or(AttemptNo(0), |(attempt, _)| attempt.number);
            self.fail(at, format!("attempts {other} and {number} of task {task} are alive at the same time"));
        }
        for (key, max) in &limits {
            let alive = self.alive_by_limit.entry(key.clone()).or_default();
            *alive += 1;
            if *alive > *max {
                let text = format!("{alive} attempts of {key} are alive; the limit is {max}");
                self.fail(at, text);
            }
        }
        self.executions.insert(execution, (attempt, limits.into_iter().map(|(key, _)| key).collect()));
    }

    /// This task need not finish.
    pub fn excuse(&mut self, task: TaskId) {
        self.excused.insert(task);
    }

    /// The world is at rest: every task that should have finished must have.
    pub fn conclude(&mut self, at: Timestamp) {
        let lost: Vec<TaskId> =
            self.acknowledged.iter().copied().filter(|task| !self.tasks.contains_key(task)).collect();
        for task in lost {
            self.fail(at, format!("task {task} was acknowledged and is lost"));
        }
        for task in std::mem::take(&mut self.cancels) {
            self.fail(at, format!("the cancel of task {task} was acknowledged and is lost"));
        }
        let open = self.tasks.iter().filter(|(_, task)| !task.status.is_some_and(Status::is_final));
        let open = open.filter(|(id, _)| !self.excused.contains(id));
        let open: Vec<(TaskId, String)> =
            open.map(|(&id, task)| (id, task.status.map_or("", Status::as_str).to_owned())).collect();
        for (task, status) in open {
            self.fail(at, format!("task {task} is stuck in {status}"));
        }
    }
}

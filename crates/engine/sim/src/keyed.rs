//! The invariants about keys: uniqueness, turns, and limits that cancel. Part of the
//! [checker](crate::checker).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::status::Status;
use tasklane_core::time::Timestamp;

/// The rules for the keys of a new task.
#[derive(Clone, Debug, Default)]
pub struct TaskKeys {
    /// Of tasks with this key there is one at a time: until a time, or else until it has finished.
    pub unique: Option<(String, Option<Timestamp>)>,
    /// When it was created, by the clock that `unique` was made by.
    pub created_at: Timestamp,
    /// Lines take turns: the group of lines, and the line of this task in it. Only its turn keeps the task
    /// from running.
    pub turn: Option<(String, String)>,
    /// At most this many tasks of the key wait or run.
    pub only: Option<(String, u32)>,
    /// The rules apply when it is due.
    pub delayed: bool,
}

/// How long an owner with a store may take to notice a waiting task: two sweeps, and the time to read.
const NOTICED_AFTER: Duration = Duration::from_secs(15);

/// Turns that other lines may take before a waiting one, under one owner: a new owner begins a new round.
const TURNS_MAX: u32 = 3;

/// Checks the rules for keys.
#[derive(Debug, Default)]
pub(crate) struct KeyWatch {
    tasks: BTreeMap<TaskId, TaskKeys>,
    /// The task that took each key last.
    holders: BTreeMap<String, TaskId>,
    lines: BTreeMap<(String, String), Line>,
    /// Tasks of each key under a limit that cancels.
    only: BTreeMap<String, UniqueKeyState>,
    /// When the owner of a lane last changed.
    claimed: BTreeMap<LaneId, Timestamp>,
    /// When the store was last down.
    store_back: Timestamp,
}

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<TaskId, Timestamp>,
    /// Turns that others of the group took while it waited.
    passed: u32,
    /// When the owner of its lane claimed the lane.
    owner_since: Timestamp,
}

#[derive(Debug, Default)]
struct UniqueKeyState {
    /// All that have not finished.
    open: BTreeSet<TaskId>,
    /// When some of them last finished, and how many did then.
    finished: (Timestamp, usize),
    fresh: BTreeMap<TaskId, Timestamp>,
    in_flight: BTreeSet<TaskId>,
}

impl KeyWatch {
    pub(crate) fn claimed(&mut self, lane: LaneId, at: Timestamp) {
        self.claimed.insert(lane, at);
    }

    pub(crate) fn store_back(&mut self, at: Timestamp) {
        self.store_back = at;
    }

    /// A task was created. Returns the violation, if there is one.
    pub(crate) fn created(
        &mut self,
        at: Timestamp,
        task: TaskId,
        keyed: TaskKeys,
        is_final: impl Fn(TaskId) -> bool,
    ) -> Option<String> {
        let mut wrong = None;
        if let Some((key, _)) = &keyed.unique
            && let Some(holder) = self.holders.insert(key.clone(), task)
        {
            let until = self.tasks.get(&holder).and_then(|keyed| keyed.unique.as_ref()?.1);
            let held = until.map_or_else(|| !is_final(holder), |until| until > keyed.created_at);
            wrong = held.then(|| format!("tasks {holder} and {task} have the key {key} at the same time"));
        }
        if let Some(line) = &keyed.turn {
            self.lines.entry(line.clone()).or_default().waiting.insert(task, at);
        }
        if let Some((key, _)) = &keyed.only {
            let only = self.only.entry(key.clone()).or_default();
            only.open.insert(task);
            if !keyed.delayed {
                only.fresh.insert(task, at);
            }
        }
        self.tasks.insert(task, keyed);
        wrong
    }

    /// A task changed. Returns the violation, if there is one.
    pub(crate) fn changed(
        &mut self,
        at: Timestamp,
        task: TaskId,
        status: Status,
        assigned: Option<Timestamp>,
        limit_reached: bool,
    ) -> Option<String> {
        let keyed = self.tasks.get(&task)?.clone();
        let since = self.claimed.get(&task.lane()).copied().unwrap_or(at);
        // The decision for a change may be much older than its write.
        let written = at;
        let at = assigned.unwrap_or(at);
        let noticed = |from: Timestamp| at.since(from.max(since).max(self.store_back)) > NOTICED_AFTER;
        let mut wrong = None;
        if let Some((key, max)) = &keyed.only {
            let only = self.only.entry(key.clone()).or_default();
            if status.is_final() && only.open.remove(&task) && !limit_reached {
                let before = if only.finished.0 == written { only.finished.1 } else { 0 };
                only.finished = (written, before + 1);
            }
            // Tasks that finished in the same commit may have done so after this one was found to exceed the
            // limit.
            let finished = if only.finished.0 == written { only.finished.1 } else { 0 };
            let others = only.open.len() + finished;
            if limit_reached && others < usize::try_from(*max).unwrap_or(usize::MAX) {
                return Some(format!(
                    "task {task} was cancelled, though only {others} others of {key} wait or run"
                ));
            }
            if status != Status::Pending || assigned.is_some() {
                only.fresh.remove(&task);
            }
            if status.is_in_flight() {
                only.in_flight.insert(task);
            } else {
                only.in_flight.remove(&task);
            }
            let fresh = only.fresh.values().filter(|from| noticed(**from)).count();
            let taken = fresh + only.in_flight.len();
            // Ends are written before the assignments that they made room for, so the check is made at an
            // assignment.
            if assigned.is_some() && fresh > 0 && taken > usize::try_from(*max).unwrap_or(usize::MAX) {
                wrong = Some(format!("{taken} tasks of {key} wait or run; the limit is {max}"));
            }
        }
        if let Some((group, own)) = &keyed.turn {
            let line = self.lines.entry((group.clone(), own.clone())).or_default();
            if status == Status::Pending {
                line.waiting.entry(task).or_insert(at);
            } else {
                line.waiting.remove(&task);
            }
            if assigned.is_some() {
                line.passed = 0;
                for ((other_group, other), line) in &mut self.lines {
                    if other_group != group || other == own {
                        continue;
                    }
                    let waits = line.waiting.values().any(|from| noticed(*from));
                    let before = if line.owner_since == since { line.passed } else { 0 };
                    line.passed = if waits { before + 1 } else { 0 };
                    line.owner_since = since;
                    if line.passed > TURNS_MAX {
                        let task = line.waiting.keys().next().copied().unwrap_or(task);
                        let turns = line.passed;
                        wrong = Some(format!(
                            "{other} (task {task}) waits while others of {group} had {turns} turns"
                        ));
                    }
                }
            }
        }
        wrong
    }
}

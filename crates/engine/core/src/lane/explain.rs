//! Explanations: the reasons why an unfinished task is not running.

use crate::id::{AttemptNo, LimitId, Name, SessionId, TaskId};
use crate::status::Status;
use crate::task::{TaskHead, TaskRow};
use crate::time::Timestamp;

use super::assign::LimitVerdict;
use super::entry::{Entry, Spot};
use super::keys::template;
use super::limits::{LimitKey, LimitState, Rule};
use super::lines::ClassKey;
use super::machine::Lane;
use super::workers::Readiness;

/// The reasons why an unfinished task is not running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Its decided status; perhaps not yet written.
    pub status: Status,
    /// Every reason, the most important first. Empty if the task runs.
    pub reasons: Vec<Reason>,
}

/// A reason why a task does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lane is being loaded after a change of owner.
    Loading,
    /// The store takes no writes because it is out of space, so the owner can assign nothing.
    StoreFull,
    /// The files of the store are gone, so the owner can assign nothing.
    StoreLost,
    /// No live worker offers its type and labels.
    NoCapableWorker {
        /// The type.
        task_type: Name,
        /// Live workers, of any kind.
        workers: usize,
    },
    /// Workers that could run it take no work for a while, because their machines lack something.
    WorkersPause {
        /// How many.
        workers: usize,
        /// The pause reason of one of them.
        reason: String,
    },
    /// All workers that could run it are full.
    AllFull {
        /// How many there are.
        workers: usize,
    },
    /// A limit is reached.
    Limit {
        /// The template of its key, if the queue's policy has it.
        template: Option<String>,
        /// Its key, for a limit by key.
        key: Option<String>,
        /// Attempts of the key that are alive.
        running: u32,
        /// The limit.
        max: u32,
        /// Some of the tasks that hold it.
        held_by: Vec<Holder>,
    },
    /// A rate allows the next task at a time.
    Rate {
        /// The template of its key, if the queue's policy has it.
        template: Option<String>,
        /// Its key, for a limit by key.
        key: Option<String>,
        /// When.
        until: Timestamp,
    },
    /// Its queue is paused.
    Paused,
    /// It is not due yet.
    DelayedUntil(Timestamp),
    /// Its last attempt failed; the next one is due at a time.
    RetryingAt(Timestamp),
    /// This many tasks of its line are before it.
    Position(usize),
    /// It is not in memory: more tasks than this of its line are before it.
    MoreThan(usize),
    /// It is assigned, and the worker has not reported that it holds it.
    Sent {
        /// The session of the worker.
        session: SessionId,
    },
    /// It is in the local queue of its worker.
    QueuedAtWorker {
        /// The session of the worker.
        session: SessionId,
    },
    /// A cancel is requested, and the attempt has not ended.
    CancelRequested,
}

/// A task that holds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which one.
    pub task: TaskId,
    /// Its attempt.
    pub attempt: AttemptNo,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// The most holders of a limit in one explanation.
const HOLDERS_MAX: usize = 10;

impl Lane {
    /// Why a task is not running; `None` if it is not in memory (finished, or behind the window: see
    /// [`explain_paged`](Self::explain_paged)).
    pub fn explain(&self, task: TaskId) -> Option<Explanation> {
        let entry = &self.entries[*self.by_id.get(&task)?];
        let mut reasons = Vec::new();
        if !self.loading.is_complete() {
            reasons.push(Reason::Loading);
        }
        if entry.state.cancel_requested {
            reasons.push(Reason::CancelRequested);
        }
        match entry.state.status {
            Status::Pending if entry.spot == Spot::Delayed => {
                reasons.push(Reason::DelayedUntil(entry.state.due));
            }
            Status::Retrying => reasons.push(Reason::RetryingAt(entry.state.due)),
            Status::Pending => self.explain_line(entry.line, Some(entry), &mut reasons),
            Status::Scheduled => reasons.extend(entry.state.session.map(|session| Reason::Sent { session })),
            Status::Dispatched => {
                reasons.extend(entry.state.session.map(|session| Reason::QueuedAtWorker { session }));
            }
            Status::Running | Status::Success | Status::Failed | Status::Cancelled => {}
        }
        Some(Explanation { status: entry.state.status, reasons })
    }

    /// The same for a waiting task that the store has and memory does not.
    pub fn explain_paged(&self, row: &TaskRow) -> Explanation {
        let mut reasons = Vec::new();
        if !self.loading.is_complete() {
            reasons.push(Reason::Loading);
        }
        match row.state.status {
            Status::Pending if row.state.delayed => reasons.push(Reason::DelayedUntil(row.state.due)),
            Status::Retrying => reasons.push(Reason::RetryingAt(row.state.due)),
            _ => {
                if let Some(&line) = self.line_by_key.get(&row.head.line()) {
                    self.explain_line(line, None, &mut reasons);
                } else {
                    self.explain_queue(&row.head, &mut reasons);
                    let class = self.class_of(&row.head);
                    let serving = self.serving(&class);
                    let free = serving
                        .iter()
                        .filter(|&&worker| self.workers[worker].readiness == Readiness::Free)
                        .count();
                    reasons.extend(self.explain_workers(&class, serving.len(), free));
                    reasons.push(Reason::MoreThan(0));
                }
            }
        }
        Explanation { status: row.state.status, reasons }
    }

    fn explain_line(&self, line: usize, entry: Option<&Entry>, reasons: &mut Vec<Reason>) {
        let line = &self.lines[line];
        self.explain_queue(&line.head, reasons);
        let class = &self.classes[line.class];
        reasons.extend(self.explain_workers(&class.key, class.serving.len(), class.free.len()));
        reasons.push(match entry {
            Some(entry) => Reason::Position(line.window.before(entry.order())),
            None => Reason::MoreThan(line.window.len()),
        });
    }

    /// Adds the reasons of its queue and its keys.
    fn explain_queue(&self, head: &TaskHead, reasons: &mut Vec<Reason>) {
        let policy = self.policies.get(&head.queue).map(|versioned| &versioned.policy);
        if policy.is_some_and(|policy| policy.paused) {
            reasons.push(Reason::Paused);
        }
        let Some(&queue) = self.queue_by_key.get(&head.queue) else { return };
        let q = &self.queues[queue];
        let whole = q.rules.find(LimitId::QUEUE).map(|rule| (LimitKey::whole(queue), *rule));
        let by_key = head
            .flow
            .iter()
            .flat_map(|flow| q.rules.of_key(flow).map(move |rule| (LimitKey::of(queue, flow), rule)));
        for (key, rule) in whole.into_iter().chain(by_key) {
            if let Some(state) = self.limits.find(&key) {
                let template = policy.and_then(|policy| template(policy, key.limit));
                reasons.extend(self.explain_limit(&rule, state, template));
            }
        }
    }

    fn explain_workers(&self, class: &ClassKey, able: usize, free: usize) -> Vec<Reason> {
        if free > 0 {
            return Vec::new();
        }
        let pausing = self.pausing(class).map(|(workers, reason)| Reason::WorkersPause { workers, reason });
        let task_type = class.task_type.clone();
        let others = match able {
            0 if pausing.is_some() => None,
            0 => Some(Reason::NoCapableWorker { task_type, workers: self.workers.len() }),
            workers => Some(Reason::AllFull { workers }),
        };
        pausing.into_iter().chain(others).collect()
    }

    fn explain_limit(&self, rule: &Rule, state: &LimitState, template: Option<String>) -> Option<Reason> {
        let key = (state.key.limit != LimitId::QUEUE).then(|| state.key.key.to_string());
        match self.limit_verdict(rule, state) {
            LimitVerdict::Free => None,
            LimitVerdict::Until(until) => Some(Reason::Rate { template, key, until }),
            // As many as the limit allows are on their way, and have not started.
            LimitVerdict::Full if rule.concurrency.is_none_or(|max| state.running < max.limit) => {
                Some(Reason::Rate { template, key, until: self.now })
            }
            LimitVerdict::Full => {
                let holds = |entry: &&Entry| {
                    let limits = entry.flight.as_ref().map(|flight| &flight.limits);
                    limits
                        .is_some_and(|l| l.iter().any(|&handle| std::ptr::eq(self.limits.get(handle), state)))
                };
                let held_by = self.entries.iter().map(|(_, entry)| entry).filter(holds).take(HOLDERS_MAX);
                let held_by = held_by.map(|entry| Holder {
                    task: entry.id,
                    attempt: entry.state.attempt,
                    since: entry.state.scheduled_at,
                });
                Some(Reason::Limit {
                    template,
                    key,
                    running: state.running,
                    max: rule.concurrency.map_or(0, |max| max.limit),
                    held_by: held_by.collect(),
                })
            }
        }
    }
}

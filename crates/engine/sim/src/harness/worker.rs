//! Workers that are moved by hand.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use tasklane_core::id::{DispatchNo, Epoch, SessionId, TaskId};
use tasklane_core::lane::Input;
use tasklane_core::member::{Member, Role, WorkerDescriptor};
use tasklane_core::message::{
    AttemptId, Dispatch, Ending, Finish, Heartbeat, HeldAttempt, HeldState, OwnerBatch, Report, RetryAdvice,
    ToLane, ToWorker, WorkerBatch,
};
use tasklane_core::task::{TaskError, TaskResult};

use super::story::{Inner, LANE};

/// A worker of a story. It gives credit for as many attempts as it has capacity for, at once and by itself;
/// all else it does when the story moves it.
#[derive(Clone, Debug)]
pub struct Worker {
    pub(super) inner: Rc<RefCell<Inner>>,
    pub(super) index: usize,
}

/// The state of a worker.
#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) session: SessionId,
    pub(super) descriptor: WorkerDescriptor,
    pub(super) alive: bool,
    not_receiving: bool,
    epoch: Epoch,
    credit: u64,
    /// Dispatch numbers of the epoch that it has taken.
    numbers: BTreeSet<DispatchNo>,
    /// Dispatches that came and were not taken yet.
    mailbox: Vec<Dispatch>,
    held: BTreeMap<AttemptId, HeldState>,
    told: Vec<ToWorker>,
    beat: u64,
    /// The highest dispatch number of the owner's demand.
    asked_for: DispatchNo,
    /// It has room for one task at first, and gives more only when the story lets it.
    is_sparing: bool,
    /// Attempts that it holds for other lanes.
    load_of_others: u32,
}

impl WorkerState {
    pub(super) fn new(session: SessionId, descriptor: WorkerDescriptor) -> Self {
        Self {
            session,
            descriptor,
            alive: true,
            not_receiving: false,
            epoch: Epoch(0),
            credit: 0,
            numbers: BTreeSet::new(),
            mailbox: Vec::new(),
            held: BTreeMap::new(),
            told: Vec::new(),
            beat: 0,
            asked_for: DispatchNo(0),
            is_sparing: false,
            load_of_others: 0,
        }
    }

    pub(super) fn sparing(mut self) -> Self {
        self.is_sparing = true;
        self
    }

    pub(super) fn member(&self) -> Option<Member> {
        let role = Role::Worker(self.descriptor.clone());
        self.alive.then_some(Member { session: self.session, role })
    }

    /// Takes messages of an owner, and returns the answers that it gives by itself.
    pub(super) fn hear(&mut self, batch: OwnerBatch) -> Vec<ToLane> {
        let mut answers = Vec::new();
        if !self.alive || self.not_receiving || batch.epoch < self.epoch {
            return answers;
        }
        if batch.epoch > self.epoch {
            self.epoch = batch.epoch;
            self.numbers.clear();
            // Dispatches of an earlier owner that were not taken are void.
            self.mailbox.clear();
            let capacity = if self.is_sparing { 1 } else { u64::from(self.descriptor.capacity) };
            self.credit = capacity.saturating_sub(self.held.len() as u64);
            answers.push(self.heartbeat());
        }
        for message in batch.messages {
            match message {
                ToWorker::Dispatch(dispatch) => {
                    if self.numbers.insert(dispatch.k) {
                        self.mailbox.push(dispatch);
                    }
                }
                // It has given all that it has, by itself.
                ToWorker::Demand { wanted: 0, .. } => self.asked_for = DispatchNo(0),
                ToWorker::Demand { up_to, .. } => {
                    self.asked_for = up_to;
                    if !self.is_sparing {
                        answers.push(self.more_credit(0));
                    }
                }
                ToWorker::Skip { first, last } => {
                    self.numbers.extend((first.0..=last.0).map(DispatchNo));
                    self.told.push(message);
                    answers.push(self.more_credit(last.0 + 1 - first.0));
                }
                ToWorker::Ack { attempt, .. } => {
                    if self.held.get(&attempt) == Some(&HeldState::Ended) {
                        self.held.remove(&attempt);
                    }
                    self.told.push(message);
                }
                ToWorker::Recall { .. } | ToWorker::Stop { .. } => self.told.push(message),
            }
        }
        answers
    }

    fn more_credit(&mut self, count: u64) -> ToLane {
        self.credit += count;
        let (credit, answered) = (DispatchNo(self.credit), self.asked_for);
        ToLane::Credit { epoch: self.epoch, credit, load: self.load_of_others, answered }
    }

    fn heartbeat(&mut self) -> ToLane {
        self.beat += 1;
        ToLane::Heartbeat(Heartbeat {
            beat: self.beat,
            epoch: self.epoch,
            credit: DispatchNo(self.credit),
            used: self.numbers.last().copied().unwrap_or_default(),
            held: self.held.iter().map(|(&attempt, &state)| HeldAttempt { attempt, state }).collect(),
            load: self.load_of_others,
            wanted_back: false,
        })
    }
}

impl Worker {
    /// Its session.
    pub fn session(&self) -> SessionId {
        self.inner.borrow().workers[self.index].session
    }

    /// Accepts all dispatches, and returns their tasks.
    pub fn takes(&self) -> Vec<TaskId> {
        let taken = self.with(|w| {
            let taken = std::mem::take(&mut w.mailbox);
            w.held.extend(taken.iter().map(|dispatch| (dispatch.attempt, HeldState::Queued)));
            taken
        });
        let reports = taken.iter().map(|d| report(d.attempt, Report::Accepted)).collect();
        self.says(reports);
        taken.into_iter().map(|dispatch| dispatch.attempt.task).collect()
    }

    /// Accepts and starts all dispatches, and returns their tasks.
    pub fn runs(&self) -> Vec<TaskId> {
        let taken = self.takes();
        for &task in &taken {
            self.starts(task);
        }
        taken
    }

    /// Runs every dispatch with success, until no more come. Returns the tasks.
    pub fn works_off(&self) -> Vec<TaskId> {
        let mut done = Vec::new();
        loop {
            let taken = self.runs();
            if taken.is_empty() {
                return done;
            }
            for &task in &taken {
                self.finishes(task);
            }
            done.extend(taken);
        }
    }

    /// Dispatches that came and were not taken.
    pub fn mailbox(&self) -> Vec<Dispatch> {
        self.inner.borrow().workers[self.index].mailbox.clone()
    }

    /// Loses the dispatches that came and were not taken.
    pub fn loses_mail(&self) {
        self.with(|w| {
            for dispatch in std::mem::take(&mut w.mailbox) {
                w.numbers.remove(&dispatch.k);
            }
        });
    }

    /// The attempt of a task that it holds or was sent.
    pub fn attempt(&self, task: TaskId) -> AttemptId {
        let inner = self.inner.borrow();
        let w = &inner.workers[self.index];
        let held = w.held.keys().rfind(|attempt| attempt.task == task).copied();
        let sent = || w.mailbox.iter().map(|dispatch| dispatch.attempt).rfind(|attempt| attempt.task == task);
        held.or_else(sent).expect("the worker has the task")
    }

    /// Begins with a task.
    pub fn starts(&self, task: TaskId) {
        let attempt = self.attempt(task);
        self.with(|w| w.held.insert(attempt, HeldState::Running(Duration::ZERO)));
        self.says(vec![report(attempt, Report::Started { ago: Duration::ZERO })]);
    }

    /// Ends a task well.
    pub fn finishes(&self, task: TaskId) {
        self.ends(task, Ending::Success);
    }

    /// Ends a task badly; it may be tried again.
    pub fn fails(&self, task: TaskId) {
        self.fails_with(task, RetryAdvice::Policy);
    }

    /// Ends a task badly.
    pub fn fails_with(&self, task: TaskId, retry: RetryAdvice) {
        self.ends(task, Ending::Failed { error: TaskError::new("exit_code", "1"), retry });
    }

    /// Ends a task.
    pub fn ends(&self, task: TaskId, ending: Ending) {
        let attempt = self.attempt(task);
        self.concludes(attempt, finished(ending));
    }

    /// Ends a task and answers with something.
    pub fn answers(&self, task: TaskId, ending: Ending, result: TaskResult) {
        let attempt = self.attempt(task);
        self.concludes(attempt, Report::Finished(Box::new(Finish { ran: Duration::ZERO, ending, result })));
    }

    /// Gives a task back.
    pub fn hands_back(&self, task: TaskId) {
        self.hands_back_because(task, "no room");
    }

    /// Gives a task back, with a reason.
    pub fn hands_back_because(&self, task: TaskId, reason: &str) {
        let attempt = self.attempt(task);
        self.concludes(attempt, Report::HandedBack { reason: reason.to_owned() });
    }

    fn concludes(&self, attempt: AttemptId, last: Report) {
        let credit = self.with(|w| {
            w.mailbox.retain(|dispatch| dispatch.attempt != attempt);
            w.held.insert(attempt, HeldState::Ended);
            w.more_credit(1)
        });
        self.says(vec![report(attempt, last), credit]);
    }

    /// Answers a demand: with more room, and with its load for other lanes.
    pub fn gives(&self, room: u64, load_of_others: u32) {
        let credit = self.with(|w| {
            w.load_of_others = load_of_others;
            w.more_credit(room)
        });
        self.says(vec![credit]);
    }

    /// Sends a heartbeat with its attempts.
    pub fn beats(&self) {
        let heartbeat = self.with(WorkerState::heartbeat);
        self.says(vec![heartbeat]);
    }

    /// Its next heartbeat names this task as running for this long.
    pub fn has_run_for(&self, task: TaskId, secs: u64) {
        let attempt = self.attempt(task);
        self.with(|w| w.held.insert(attempt, HeldState::Running(Duration::from_secs(secs))));
    }

    /// Reports on an attempt, whether or not the report is true.
    pub fn claims(&self, attempt: AttemptId, claim: Report) {
        self.says(vec![report(attempt, claim)]);
    }

    /// The same, with a success.
    pub fn claims_success(&self, attempt: AttemptId) {
        self.claims(attempt, finished(Ending::Success));
    }

    fn says(&self, messages: Vec<ToLane>) {
        let mut inner = self.inner.borrow_mut();
        let session = inner.workers[self.index].session;
        inner.step(Input::Worker(WorkerBatch { lane: LANE, session, messages }));
    }

    /// Its session ends.
    pub fn dies(&self) {
        self.with(|w| w.alive = false);
        self.inner.borrow_mut().announce_members();
    }

    /// Its session ends, and the owner learns of it only with the next change.
    pub fn vanishes(&self) {
        self.with(|w| w.alive = false);
    }

    /// Its session ends and a new one of the same name begins.
    #[must_use]
    pub fn restarts(&self) -> Self {
        self.dies();
        let mut inner = self.inner.borrow_mut();
        let descriptor = inner.workers[self.index].descriptor.clone();
        let index = inner.add_worker(descriptor, false);
        drop(inner);
        Self { inner: Rc::clone(&self.inner), index }
    }

    /// Its offer changes.
    pub fn offers(&self, change: impl FnOnce(&mut WorkerDescriptor)) {
        self.with(|w| change(&mut w.descriptor));
        self.inner.borrow_mut().announce_members();
    }

    /// Whether messages to it are lost.
    pub fn not_receiving(&self, not_receiving: bool) {
        self.with(|w| w.not_receiving = not_receiving);
    }

    /// Forgets an attempt, as if it had never come.
    pub fn forgets(&self, task: TaskId) {
        let attempt = self.attempt(task);
        self.with(|w| {
            w.held.remove(&attempt);
            w.mailbox.retain(|dispatch| dispatch.attempt != attempt);
        });
    }

    /// Recalls, stops, acknowledgements and skips since the last look.
    pub fn told(&self) -> Vec<ToWorker> {
        self.with(|w| std::mem::take(&mut w.told))
    }

    /// Attempts that the owner has stopped since the last look; other messages are discarded.
    pub fn stops(&self) -> Vec<TaskId> {
        let stop = |message| match message {
            ToWorker::Stop { attempt } => Some(attempt.task),
            _ => None,
        };
        self.told().into_iter().filter_map(stop).collect()
    }

    /// The same for recalls.
    pub fn recalls(&self) -> Vec<TaskId> {
        let recall = |message| match message {
            ToWorker::Recall { attempt, .. } => Some(attempt.task),
            _ => None,
        };
        self.told().into_iter().filter_map(recall).collect()
    }

    fn with<T>(&self, change: impl FnOnce(&mut WorkerState) -> T) -> T {
        change(&mut self.inner.borrow_mut().workers[self.index])
    }
}

fn report(attempt: AttemptId, report: Report) -> ToLane {
    ToLane::Report { attempt, report }
}

fn finished(ending: Ending) -> Report {
    Report::Finished(Box::new(Finish { ran: Duration::ZERO, ending, result: TaskResult::default() }))
}

//! The lane of a story, its store and its time.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::{ClaimLane, Commit, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{CommitNo, Epoch, LaneId, OwnerId, Seq, SessionId, TaskId};
use tasklane_core::lane::{
    Anchor, Counters, Effect, Explanation, Input, Lane, LaneOptions, Reason, SubmitToken,
};
use tasklane_core::member::WorkerDescriptor;
use tasklane_core::message::WorkerBatch;
use tasklane_core::policy::{QueuePolicy, VersionedPolicy};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, NewTask, TaskResult, TaskRow, TaskState};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_local::memory::{HistoryEvent, MemoryOptions, MemoryState};
use tasklane_ports::{LoadQuery, PutPolicy, Submit};

use super::task::{Make, name, queue};
use super::worker::{Worker, WorkerState};

/// The lane of every story.
pub(super) const LANE: LaneId = LaneId(3);

/// When every story begins.
const BEGIN: Timestamp = Timestamp::from_millis(1_000_000_000);

/// Ticks in a row that may move nothing before the stage takes time to stand still.
const IDLE_TICKS_MAX: u32 = 10_000;

/// A lane with its owner. Clones are the same lane.
#[derive(Clone, Debug)]
pub struct Story {
    inner: Rc<RefCell<Inner>>,
}

/// The state of a story.
#[derive(Debug)]
pub(super) struct Inner {
    now: Timestamp,
    /// The sum of all steps of the clock.
    ahead: Shift,
    /// The boot of the machine that owners run on; 0 if unknown.
    boot: u64,
    store: MemoryState,
    options: LaneOptions,
    machine: Lane,
    epoch: Epoch,
    number: CommitNo,
    pub(super) workers: Vec<WorkerState>,
    revision: u64,
    inputs: VecDeque<Input>,
    hold_commits: bool,
    held_commits: VecDeque<Vec<GroupOutcome>>,
    hold_reads: bool,
    held_reads: VecDeque<(u64, LanePage)>,
    lose_messages: bool,
    next_random: u64,
    next_token: u64,
    answers: BTreeMap<SubmitToken, Vec<SubmitOutcome>>,
    finished: Vec<TaskId>,
    ended: Vec<TaskId>,
    not_receiving: Vec<SessionId>,
    revoked: Vec<SessionId>,
    history: Vec<HistoryEvent>,
    steps: u64,
    reads: u64,
    commits: u64,
}

impl Inner {
    fn new(options: LaneOptions, history: bool) -> Self {
        let store = MemoryState::new(MemoryOptions { history, ..MemoryOptions::default() });
        let machine = Lane::new(options.clone(), LANE, Epoch(0), 0, BEGIN);
        let mut inner = Self {
            now: BEGIN,
            ahead: Shift::ZERO,
            boot: 0,
            store,
            options,
            machine,
            epoch: Epoch(0),
            number: CommitNo(0),
            workers: Vec::new(),
            revision: 0,
            inputs: VecDeque::new(),
            hold_commits: false,
            held_commits: VecDeque::new(),
            hold_reads: false,
            held_reads: VecDeque::new(),
            lose_messages: false,
            next_random: 0,
            next_token: 0,
            answers: BTreeMap::new(),
            finished: Vec::new(),
            ended: Vec::new(),
            not_receiving: Vec::new(),
            revoked: Vec::new(),
            history: Vec::new(),
            steps: 0,
            reads: 0,
            commits: 0,
        };
        inner.takeover();
        inner
    }

    fn owner(&self) -> OwnerId {
        OwnerId::from_random(u128::from(self.epoch.0))
    }

    fn takeover(&mut self) {
        let seen = self.store.lane_head(LANE).epoch;
        self.epoch = seen.next();
        self.number = CommitNo(0);
        let claim = ClaimLane { lane: LANE, owner: self.owner(), seen, failures: 0 };
        self.store.claim_lane(claim).expect("no other owner claims the lane");
        let anchor = Anchor { boot: self.boot, ahead: self.ahead };
        let machine = Lane::new(self.options.clone(), LANE, self.epoch, self.epoch.0, self.now);
        self.machine = machine.anchored(anchor);
        self.inputs.clear();
        self.held_commits.clear();
        self.held_reads.clear();
        self.announce_members();
        self.step(Input::Start);
    }

    pub(super) fn announce_members(&mut self) {
        self.revision += 1;
        let members = self.workers.iter().filter_map(WorkerState::member).collect();
        self.step(Input::Members { revision: self.revision, members });
    }

    pub(super) fn add_worker(&mut self, descriptor: WorkerDescriptor, sparing: bool) -> usize {
        let index = self.workers.len();
        let session = SessionId::from_random(1000 + index as u128);
        let worker = WorkerState::new(session, descriptor);
        self.workers.push(if sparing { worker.sparing() } else { worker });
        self.announce_members();
        index
    }

    /// Gives the machine an input, and carries out its effects.
    pub(super) fn step(&mut self, input: Input) {
        self.inputs.push_back(input);
        let mut effects = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.steps += 1;
            self.machine.step(input, self.now, &mut effects);
            for effect in effects.drain(..) {
                self.carry_out(effect);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Read { read, what, limit } => {
                self.reads += 1;
                let page = self.load(what, limit);
                if self.hold_reads {
                    self.held_reads.push_back((read, page));
                } else {
                    self.inputs.push_back(Input::Page { read, page });
                }
            }
            Effect::Commit { groups, cursor } => {
                self.commits += 1;
                self.number = self.number.next();
                let (epoch, owner, number) = (self.epoch, self.owner(), self.number);
                let commit = Commit { lane: LANE, epoch, owner, number, groups: groups.into(), cursor };
                let outcomes = self.store.commit(&commit).expect("the owner's commits are taken");
                self.history.extend(self.store.take_history());
                if self.hold_commits {
                    self.held_commits.push_back(outcomes);
                } else {
                    self.inputs.push_back(Input::Committed { outcomes });
                }
            }
            Effect::Send(batch) => {
                let session = batch.session;
                let worker = self.workers.iter_mut().find(|w| w.session == session);
                if let Some(worker) = worker.filter(|_| !self.lose_messages) {
                    let messages = worker.hear(batch);
                    if !messages.is_empty() {
                        self.inputs.push_back(Input::Worker(WorkerBatch { lane: LANE, session, messages }));
                    }
                }
            }
            Effect::Submitted { token, outcomes } => {
                self.answers.insert(token, outcomes);
            }
            Effect::NotReceiving { session } => self.not_receiving.push(session),
            Effect::Revoke { session } => self.revoked.push(session),
            Effect::Changed(events) => {
                let finished = events.into_iter().filter(|event| event.status.is_final());
                self.finished.extend(finished.map(|event| event.task));
            }
            Effect::Completed(tasks) => self.ended.extend(tasks),
            Effect::Reload => self.takeover(),
        }
    }

    fn load(&mut self, read: LaneRead, limit: usize) -> LanePage {
        self.store.load(&LoadQuery { lane: LANE, read, limit, body_bytes_max: 1 << 16 })
    }

    fn row(&mut self, task: TaskId) -> TaskRow {
        match self.load(LaneRead::Tasks { ids: vec![task] }, 1) {
            LanePage::Tasks { mut rows, .. } => rows.pop().expect("the task is stored"),
            page => unreachable!("the store answered with {page:?}"),
        }
    }

    fn make(&mut self, make: &Make) -> NewTask {
        self.next_random += 1;
        make.make(LANE, self.now, self.next_random)
    }
}

impl Story {
    /// A lane that is loaded and empty.
    #[expect(clippy::new_without_default, reason = "a story begins, it is not a value")]
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same with other numbers.
    pub fn with(change: impl FnOnce(&mut LaneOptions)) -> Self {
        let mut options = LaneOptions::default();
        change(&mut options);
        Self { inner: Rc::new(RefCell::new(Inner::new(options, true))) }
    }

    /// A lane for many tasks: the store keeps no history.
    pub fn large() -> Self {
        Self { inner: Rc::new(RefCell::new(Inner::new(LaneOptions::default(), false))) }
    }

    /// A worker that runs tasks of type `job`.
    pub fn worker(&self, text: &str, capacity: u32) -> Worker {
        self.worker_with(text, capacity, |_| {})
    }

    /// A worker that has room for one task, and gives more when the story lets it ([`Worker::gives`]).
    pub fn sparing_worker(&self, text: &str, capacity: u32) -> Worker {
        self.add_worker(text, capacity, |_| {}, true)
    }

    /// A worker that offers something else.
    pub fn worker_with(
        &self,
        text: &str,
        capacity: u32,
        change: impl FnOnce(&mut WorkerDescriptor),
    ) -> Worker {
        self.add_worker(text, capacity, change, false)
    }

    fn add_worker(
        &self,
        text: &str,
        capacity: u32,
        change: impl FnOnce(&mut WorkerDescriptor),
        sparing: bool,
    ) -> Worker {
        let mut descriptor = WorkerDescriptor {
            name: name(text),
            capacity,
            weight: 1,
            labels: BTreeMap::new(),
            task_types: [name("job")].into(),
            draining: false,
            pause_reason: None,
            address: String::new(),
        };
        change(&mut descriptor);
        let index = self.inner.borrow_mut().add_worker(descriptor, sparing);
        Worker { inner: Rc::clone(&self.inner), index }
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        self.inner.borrow().now
    }

    /// So many seconds after now.
    pub fn in_secs(&self, secs: u64) -> Timestamp {
        self.now() + Duration::from_secs(secs)
    }

    /// Submits a task through the lane's owner.
    pub fn submit(&self, make: Make) -> TaskId {
        self.submit_all([make])[0]
    }

    /// Submits tasks through the lane's owner, together.
    pub fn submit_all(&self, makes: impl IntoIterator<Item = Make>) -> Vec<TaskId> {
        let mut inner = self.inner.borrow_mut();
        let tasks: Vec<NewTask> = makes.into_iter().map(|make| inner.make(&make)).collect();
        drop(inner);
        let ids = tasks.iter().map(|task| task.id).collect();
        self.submit_made(tasks);
        ids
    }

    /// The same with tasks that are made already.
    pub fn submit_made(&self, tasks: Vec<NewTask>) {
        let mut inner = self.inner.borrow_mut();
        inner.next_token += 1;
        let token = SubmitToken(inner.next_token);
        inner.step(Input::Submit { token, tasks });
    }

    /// The answer to the last submission through the owner; `None` while there is none.
    pub fn answer(&self) -> Option<Vec<SubmitOutcome>> {
        let inner = self.inner.borrow();
        inner.answers.get(&SubmitToken(inner.next_token)).cloned()
    }

    /// Submits a task to the store, as another server does, and hints.
    pub fn arrive(&self, make: Make) -> TaskId {
        let id = self.store_only(make);
        self.hint();
        id
    }

    /// The same, but the hint is lost.
    pub fn store_only(&self, make: Make) -> TaskId {
        self.store_all([make])[0]
    }

    /// Submits tasks to the store, together; the hint is lost.
    pub fn store_all(&self, makes: impl IntoIterator<Item = Make>) -> Vec<TaskId> {
        let mut inner = self.inner.borrow_mut();
        let tasks: Vec<NewTask> = makes.into_iter().map(|make| inner.make(&make)).collect();
        drop(inner);
        let ids = tasks.iter().map(|task| task.id).collect();
        self.store_made(tasks);
        ids
    }

    /// Submits tasks to the store that are made already, without a hint.
    pub fn store_made(&self, tasks: Vec<NewTask>) -> Vec<SubmitOutcome> {
        let submit = Submit { lane: LANE, tasks: Arc::from(tasks) };
        let mut inner = self.inner.borrow_mut();
        let outcomes = inner.store.submit(&submit).expect("a submit fits");
        let history = inner.store.take_history();
        inner.history.extend(history);
        outcomes
    }

    /// Hints to the owner that the store has something new.
    pub fn hint(&self) {
        self.inner.borrow_mut().step(Input::Hint);
    }

    /// Puts a cancel into the inbox, and hints.
    pub fn cancel(&self, task: TaskId) {
        self.post_cancel(task);
        self.hint();
    }

    /// The same, but the hint is lost.
    pub fn post_cancel(&self, task: TaskId) {
        self.inner.borrow_mut().store.post(LANE, &[Command::Cancel { task }]);
    }

    /// Changes the policy of queue `q`; the owner receives it at once.
    pub fn policy(&self, change: impl FnOnce(&mut QueuePolicy)) {
        self.policy_of("q", change);
    }

    /// Changes the policy of a queue.
    pub fn policy_of(&self, text: &str, change: impl FnOnce(&mut QueuePolicy)) {
        self.store_policy(text, change);
        let queue = queue(text);
        let mut inner = self.inner.borrow_mut();
        let policy = inner.store.policy(&queue);
        inner.step(Input::Policy { queue, policy });
    }

    /// The same, but the owner receives no message.
    pub fn store_policy(&self, text: &str, change: impl FnOnce(&mut QueuePolicy)) {
        let queue = queue(text);
        let mut inner = self.inner.borrow_mut();
        let VersionedPolicy { version: expected, mut policy } = inner.store.policy(&queue);
        change(&mut policy);
        inner
            .store
            .put_policy(PutPolicy { queue, expected, policy })
            .expect("no other writer changes policies");
    }

    /// Lets time pass; the machine is woken whenever it wants to be.
    pub fn advance(&self, secs: u64) {
        self.advance_millis(secs * 1000);
    }

    /// The same in milliseconds.
    pub fn advance_millis(&self, millis: u64) {
        let mut inner = self.inner.borrow_mut();
        let until = inner.now + Duration::from_millis(millis);
        let mut idle = 0;
        while let Some(at) = inner.machine.next_deadline().filter(|at| *at <= until) {
            idle = if at > inner.now { 0 } else { idle + 1 };
            assert!(idle < IDLE_TICKS_MAX, "time stands still at {at}");
            inner.now = inner.now.max(at);
            inner.step(Input::Tick);
        }
        inner.now = until;
        inner.step(Input::Tick);
    }

    /// Lets the lazy changes be written.
    pub fn settle(&self) {
        self.advance_millis(200);
    }

    /// The status of a task in the store.
    pub fn status(&self, task: TaskId) -> Status {
        self.stored(task).status
    }

    /// The state of a task in the store.
    pub fn stored(&self, task: TaskId) -> TaskState {
        self.inner.borrow().store.task(task).expect("the task is stored").state.clone()
    }

    /// The arrival number of a task in the store.
    pub fn arrival(&self, task: TaskId) -> Seq {
        self.inner.borrow().store.task(task).expect("the task is stored").seq
    }

    /// The code of the error that a task ended with.
    pub fn error(&self, task: TaskId) -> Option<String> {
        self.stored(task).error.map(|error| error.code)
    }

    /// The answer of a task's last attempt.
    pub fn result(&self, task: TaskId) -> Option<TaskResult> {
        self.inner.borrow().store.task(task).expect("the task is stored").result.as_deref().cloned()
    }

    /// The outcomes of a task's attempts before the last.
    pub fn earlier_attempts(&self, task: TaskId) -> Vec<AttemptOutcome> {
        let inner = self.inner.borrow();
        let stored = inner.store.task(task).expect("the task is stored");
        stored.attempts.values().filter_map(|attempt| attempt.outcome).collect()
    }

    /// The outcomes of all attempts of a task, as readers see them: an attempt without a row is part of the
    /// task.
    pub fn attempts(&self, task: TaskId) -> Vec<AttemptOutcome> {
        let inner = self.inner.borrow();
        let stored = inner.store.task(task).expect("the task is stored");
        let rows = if stored.state.has_attempt_rows() { stored.attempts.clone() } else { BTreeMap::new() };
        let last = stored.state.last_attempt().filter(|last| !rows.contains_key(&last.number));
        rows.into_values().chain(last).filter_map(|attempt| attempt.outcome).collect()
    }

    /// The paths that were written for a task, one for each write.
    pub fn written(&self, task: TaskId) -> Vec<Vec<Status>> {
        let inner = self.inner.borrow();
        let path = |event: &HistoryEvent| match event {
            HistoryEvent::Changed { task: changed, path, .. } if *changed == task => {
                Some(path.iter().map(|step| step.status).collect())
            }
            _ => None,
        };
        inner.history.iter().filter_map(path).collect()
    }

    /// The reasons why a task does not run, whether it is in memory or not.
    pub fn explain(&self, task: TaskId) -> Vec<Reason> {
        let mut inner = self.inner.borrow_mut();
        if let Some(Explanation { reasons, .. }) = inner.machine.explain(task) {
            return reasons;
        }
        let row = inner.row(task);
        inner.machine.explain_paged(&row).reasons
    }

    /// The decided status of a task; `None` if it is not in memory.
    pub fn decided(&self, task: TaskId) -> Option<Status> {
        self.inner.borrow().machine.explain(task).map(|explanation| explanation.status)
    }

    /// Commands in the inbox.
    pub fn inbox_len(&self) -> usize {
        self.inner.borrow().store.inbox(LANE).count()
    }

    /// Records of the lane, by kind and key.
    pub fn record_keys(&self) -> Vec<String> {
        self.inner
            .borrow()
            .store
            .records(LANE)
            .map(|(key, _)| format!("{:?} {}", key.kind, key.key))
            .collect()
    }

    /// The machine forgets everything; a new owner claims the lane and loads it.
    pub fn takeover(&self) {
        self.inner.borrow_mut().takeover();
    }

    /// The same by an owner whose clock is so many seconds behind.
    pub fn takeover_behind(&self, secs: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.now = inner.now - Duration::from_secs(secs);
        inner.takeover();
    }

    /// A new owner loads the lane, on a machine with this boot.
    pub fn takeover_on(&self, boot: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.boot = boot;
        inner.takeover();
    }

    /// The wall clock steps by so many seconds, and the owner notices.
    pub fn clock_steps(&self, secs: i64) {
        let by = self.clock_steps_unseen(secs);
        self.inner.borrow_mut().step(Input::ClockStepped { by });
    }

    /// The wall clock steps by so many seconds, and no owner notices.
    pub fn clock_steps_unseen(&self, secs: i64) -> Shift {
        let by = Shift::from_millis(secs * 1000);
        let mut inner = self.inner.borrow_mut();
        (inner.now, inner.ahead) = (inner.now + by, inner.ahead + by);
        by
    }

    /// The owner prepares to give the lane up.
    pub fn release(&self) {
        self.inner.borrow_mut().step(Input::Release);
    }

    /// Whether the lane has loaded everything that it needs.
    pub fn is_loaded(&self) -> bool {
        self.inner.borrow().machine.is_loaded()
    }

    /// From now on the store applies commits without an answer.
    pub fn hold_commits(&self) {
        self.inner.borrow_mut().hold_commits = true;
    }

    /// Answers commits again, beginning with the held ones.
    pub fn release_commits(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.hold_commits = false;
        // All of them before the commits that follow from them.
        let mut held = std::mem::take(&mut inner.held_commits).into_iter();
        let last = held.next_back();
        inner.inputs.extend(held.map(|outcomes| Input::Committed { outcomes }));
        if let Some(outcomes) = last {
            inner.step(Input::Committed { outcomes });
        }
    }

    /// From now on the store takes reads without an answer.
    pub fn hold_reads(&self) {
        self.inner.borrow_mut().hold_reads = true;
    }

    /// Answers the oldest held read; false if there is none.
    pub fn answer_read(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let Some((read, page)) = inner.held_reads.pop_front() else { return false };
        inner.step(Input::Page { read, page });
        true
    }

    /// Answers reads again, beginning with the held ones.
    pub fn release_reads(&self) {
        self.inner.borrow_mut().hold_reads = false;
        while self.answer_read() {}
    }

    /// Whether all messages to workers are lost.
    pub fn lose_messages(&self, lose: bool) {
        self.inner.borrow_mut().lose_messages = lose;
    }

    /// Changes a task in the store behind the owner's back, which no real process may do.
    pub fn meddle(&self, task: TaskId, path: &[Status]) {
        let mut inner = self.inner.borrow_mut();
        let now = inner.now;
        let mut state = inner.store.task(task).expect("the task is stored").state.clone();
        let expected = state.version();
        for &status in path {
            if status == Status::Scheduled {
                state.attempt = state.attempt.next();
            }
            state.status = status;
        }
        let path = path.iter().map(|&status| tasklane_core::status::Step { status, at: now }).collect();
        let change =
            tasklane_core::commit::TaskChange { task, expected, path, state, ended: vec![], result: None };
        let group = tasklane_core::commit::Group { change: Some(change), ..Default::default() };
        inner.number = inner.number.next();
        let (epoch, owner, number) = (inner.epoch, inner.owner(), inner.number);
        let groups = [group].into();
        let cursor = tasklane_core::id::Seq(0);
        let outcomes = inner.store.commit(&Commit { lane: LANE, epoch, owner, number, groups, cursor });
        let outcomes = outcomes.expect("the owner's commits are taken");
        assert!(matches!(outcomes[..], [GroupOutcome::Applied { .. }]), "the change does not fit");
    }

    /// How often rare things happened under this owner.
    pub fn counters(&self) -> Counters {
        *self.inner.borrow().machine.counters()
    }

    /// The machine itself.
    pub fn machine(&self) -> Ref<'_, Lane> {
        Ref::map(self.inner.borrow(), |inner| &inner.machine)
    }

    /// Tasks reported as final.
    pub fn finished(&self) -> Vec<TaskId> {
        self.inner.borrow().finished.clone()
    }

    /// Completions that the owner has reported since the last call.
    pub fn completions(&self) -> Vec<TaskId> {
        std::mem::take(&mut self.inner.borrow_mut().ended)
    }

    /// A server has handled the completions of these tasks.
    pub fn completion_handled(&self, tasks: &[TaskId]) {
        self.inner.borrow_mut().step(Input::CompletionHandled(tasks.to_vec()));
    }

    /// Sessions reported as not receiving, once for each report.
    pub fn not_receiving(&self) -> Vec<SessionId> {
        self.inner.borrow().not_receiving.clone()
    }

    /// Sessions that were revoked.
    pub fn revoked(&self) -> Vec<SessionId> {
        self.inner.borrow().revoked.clone()
    }

    /// Steps of the machine, reads and commits so far.
    pub fn effort(&self) -> (u64, u64, u64) {
        let inner = self.inner.borrow();
        (inner.steps, inner.reads, inner.commits)
    }
}

//! One of the two stores, and the arrivals behind its own numbers.
//!
//! Stores may leave numbers out, so the numbers themselves cannot be compared. A side maps each of its
//! numbers to the task or command that has it, checks that they rise, and takes them out of answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, GroupOutcome, RecordKey, SubmitOutcome};
use tasklane_core::id::{CommitNo, Epoch, LaneId, QueueKey, Seq, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::{Arrival, LaneRead};
use tasklane_core::task::{AttemptRecord, NewTask, TaskRow};

use crate::conformance::pages;
use crate::{
    ClaimLane, ExpiredQuery, LaneHead, PutPolicy, QueueCounts, Store, StoreError, Submit, TaskFilter,
    TaskView,
};

/// A store's answer, without the parts that may differ.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StoreAnswer {
    Submitted(Vec<SubmitOutcome>),
    Claimed(Result<Epoch, Refusal>),
    Committed(Result<Vec<GroupOutcome>, Refusal>),
    Posted(usize),
    Head(LaneHead),
    Rows(Vec<TaskRow>),
    Inbox(Vec<(usize, Command)>),
    Records(Vec<(RecordKey, Vec<u8>)>),
    /// Nothing where the store answers that it does not reach back so far.
    Arrivals(Option<Vec<ArrivalSummary>>),
    Views(Vec<Option<TaskView>>),
    Attempts(Vec<AttemptRecord>),
    Counts(Vec<QueueCounts>),
    /// To strip, and to forget.
    Expired(Vec<TaskId>, Vec<TaskId>),
    Version(Result<u64, Refusal>),
    Policy(VersionedPolicy),
    Binding(QueueBinding),
    Policies(Vec<(QueueKey, VersionedPolicy)>),
}

/// A refusal that both stores must agree on. Any other error ends the comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refusal {
    Fenced { held: Epoch, current: Epoch },
    OutOfOrder { number: CommitNo, last: CommitNo },
    ClaimLost { current: Epoch },
    PolicyConflict { expected: u64, current: u64 },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ArrivalSummary {
    Task(Box<TaskRow>),
    Command(usize, Command),
}

/// A store under comparison.
pub(super) struct ComparedStore {
    handles: Vec<Arc<dyn Store>>,
    turn: usize,
    tasks: BTreeMap<TaskId, Seq>,
    /// By lane: each command that was ever posted, in order.
    commands: BTreeMap<LaneId, Vec<Seq>>,
    /// By lane: tasks and commands in the order in which they came.
    arrived: BTreeMap<LaneId, Vec<Seq>>,
}

impl ComparedStore {
    pub(super) fn new(handles: Vec<Arc<dyn Store>>) -> Self {
        Self { handles, turn: 0, tasks: [].into(), commands: [].into(), arrived: [].into() }
    }

    /// Another handle for each operation.
    fn store(&mut self) -> Arc<dyn Store> {
        self.turn += 1;
        Arc::clone(&self.handles[self.turn % self.handles.len()])
    }

    /// The number of a command, by its place among all that were posted.
    pub(super) fn command(&self, lane: LaneId, place: usize) -> Option<Seq> {
        self.commands.get(&lane)?.get(place).copied()
    }

    /// How many arrivals there were when a task arrived.
    pub(super) fn arrived_with(&self, task: TaskId) -> Option<usize> {
        let seq = self.tasks.get(&task)?;
        self.arrived.get(&task.lane())?.iter().position(|arrived| arrived == seq).map(|place| place + 1)
    }

    /// How many tasks and commands have arrived.
    pub(super) fn arrivals_len(&self, lane: LaneId) -> usize {
        self.arrived.get(&lane).map_or(0, Vec::len)
    }

    /// The number of the last of so many arrivals.
    pub(super) fn cursor(&self, lane: LaneId, arrivals: usize) -> Seq {
        arrivals.checked_sub(1).map_or(Seq(0), |last| self.arrived[&lane][last])
    }

    fn highest(&self, lane: LaneId) -> Seq {
        self.cursor(lane, self.arrivals_len(lane))
    }

    pub(super) async fn submit(&mut self, lane: LaneId, tasks: &[NewTask]) -> StoreAnswer {
        let submit = Submit { lane, tasks: tasks.into() };
        let mut outcomes = self.store().submit(submit).await.unwrap();
        for (outcome, task) in outcomes.iter_mut().zip(tasks) {
            if let SubmitOutcome::Created { seq } = outcome {
                self.learn(task.id, *seq);
                *seq = Seq(0);
            }
        }
        StoreAnswer::Submitted(outcomes)
    }

    pub(super) async fn claim(&mut self, claim: ClaimLane) -> StoreAnswer {
        StoreAnswer::Claimed(self.store().claim_lane(claim).await.map_err(|error| refusal(&error)))
    }

    pub(super) async fn commit(&mut self, commit: &Commit, repeated: bool) -> StoreAnswer {
        let mut answer = self.store().commit(commit).await.map_err(|error| refusal(&error));
        if let Ok(outcomes) = &mut answer {
            for (outcome, group) in outcomes.iter_mut().zip(commit.groups.iter()) {
                if let GroupOutcome::Applied { seq: Some(seq) } = outcome {
                    let task = group.insert.as_ref().expect("only an insert is numbered").id;
                    // The task may be forgotten since, or exist a second time; the number is still known.
                    let known = self.arrived.get(&task.lane()).is_some_and(|known| known.contains(seq));
                    if !(repeated && known) {
                        self.learn(task, *seq);
                    }
                    *seq = Seq(0);
                }
            }
        }
        StoreAnswer::Committed(answer)
    }

    pub(super) async fn post(&mut self, lane: LaneId, commands: &[Command]) -> StoreAnswer {
        let store = self.store();
        store.post(lane, commands).await.unwrap();
        let highest = self.highest(lane);
        let known = self.commands.entry(lane).or_default();
        let rows = pages::all_inbox(&*store, lane, 1_000).await;
        let new: Vec<_> = rows.iter().map(|row| row.seq).filter(|seq| !known.contains(seq)).collect();
        assert!(new.iter().all(|seq| *seq > highest), "commands {new:?} appear below {highest}");
        known.extend(&new);
        self.arrived.entry(lane).or_default().extend(&new);
        StoreAnswer::Posted(new.len())
    }

    pub(super) async fn head(&mut self, lane: LaneId) -> StoreAnswer {
        StoreAnswer::Head(self.store().lane_head(lane).await.unwrap())
    }

    pub(super) async fn rows(&mut self, lane: LaneId, read: LaneRead, limit: usize) -> StoreAnswer {
        let rows = pages::all_tasks(&*self.store(), lane, read, limit).await;
        StoreAnswer::Rows(rows.into_iter().map(|row| self.unnumbered(row)).collect())
    }

    pub(super) async fn inbox(&mut self, lane: LaneId, limit: usize) -> StoreAnswer {
        let rows = pages::all_inbox(&*self.store(), lane, limit).await;
        StoreAnswer::Inbox(rows.into_iter().map(|row| (self.place(lane, row.seq), row.command)).collect())
    }

    pub(super) async fn records(&mut self, lane: LaneId, limit: usize) -> StoreAnswer {
        StoreAnswer::Records(pages::all_records(&*self.store(), lane, limit).await)
    }

    /// The arrivals after so many, of which the store may have trimmed `trimmed`.
    pub(super) async fn arrivals(
        &mut self,
        lane: LaneId,
        after: usize,
        trimmed: usize,
        limit: usize,
    ) -> StoreAnswer {
        let store = self.store();
        let (highest, after_seq) = (self.highest(lane), self.cursor(lane, after));
        assert!(pages::cursor(&*store, lane).await >= highest);
        let Some((rows, next)) = pages::all_arrivals(&*store, lane, after_seq, limit).await else {
            assert!(after < trimmed, "a gap after {after_seq}, where nothing was trimmed");
            return StoreAnswer::Arrivals(None);
        };
        assert!(next >= highest, "arrivals end at {next}, before {highest}");
        let arrived = |row| match row {
            Arrival::Task(row) => ArrivalSummary::Task(Box::new(self.unnumbered(row))),
            Arrival::Command(row) => ArrivalSummary::Command(self.place(lane, row.seq), row.command),
        };
        let rows: Vec<_> = rows.into_iter().map(arrived).collect();
        let came = self.tasks.iter().filter(|(id, seq)| id.lane() == lane && **seq > after_seq).count();
        let shown = rows.iter().filter(|row| matches!(row, ArrivalSummary::Task(_))).count();
        assert_eq!(shown, came, "tasks after {after_seq}");
        StoreAnswer::Arrivals(Some(rows))
    }

    pub(super) async fn views(&mut self, ids: &[TaskId]) -> StoreAnswer {
        let mut views = self.store().tasks(ids).await.unwrap();
        for view in views.iter_mut().flatten() {
            view.row = self.unnumbered(view.row.clone());
        }
        StoreAnswer::Views(views)
    }

    pub(super) async fn attempts(&mut self, task: TaskId, limit: usize) -> StoreAnswer {
        StoreAnswer::Attempts(pages::all_attempts(&*self.store(), task, limit).await)
    }

    pub(super) async fn list(&mut self, filter: TaskFilter, limit: usize) -> StoreAnswer {
        let rows = pages::all_listed(&*self.store(), filter, limit).await;
        StoreAnswer::Rows(rows.into_iter().map(|row| self.unnumbered(row)).collect())
    }

    /// Counts of the queues of a namespace; other sequences have theirs in the same store.
    pub(super) async fn counts(&mut self, before_first: &QueueKey, limit: usize) -> StoreAnswer {
        let of_namespace = |queue: &QueueKey| queue.namespace == before_first.namespace;
        let after = Some(before_first.clone());
        StoreAnswer::Counts(pages::counts_while(&*self.store(), after, limit, of_namespace).await)
    }

    pub(super) async fn expired(&mut self, retire: ExpiredQuery) -> StoreAnswer {
        let (strip, forget) = pages::all_expired(&*self.store(), retire).await;
        StoreAnswer::Expired(strip, forget)
    }

    /// Retires tasks, and answers what remains of them.
    pub(super) async fn retire(&mut self, strip: &[TaskId], forget: &[TaskId]) -> StoreAnswer {
        self.store().retire(strip, forget).await.unwrap();
        let left = self.store().tasks(forget).await.unwrap();
        for (id, left) in forget.iter().zip(left) {
            if left.is_none() {
                self.tasks.remove(id);
            }
        }
        self.views(&[strip, forget].concat()).await
    }

    pub(super) async fn put_policy(&mut self, put: PutPolicy) -> StoreAnswer {
        StoreAnswer::Version(self.store().put_policy(put).await.map_err(|error| refusal(&error)))
    }

    pub(super) async fn policy(&mut self, queue: &QueueKey) -> StoreAnswer {
        StoreAnswer::Policy(self.store().policy(queue).await.unwrap())
    }

    pub(super) async fn bind(&mut self, queue: &QueueKey, binding: &QueueBinding) -> StoreAnswer {
        StoreAnswer::Binding(self.store().bind_queue(queue, binding).await.unwrap())
    }

    /// Policies of some queues, and the revision up to which all were read.
    pub(super) async fn policies(
        &mut self,
        lane: LaneId,
        since: u64,
        queues: &[QueueKey],
    ) -> (StoreAnswer, u64) {
        let (mut rows, revision) = pages::all_policies(&*self.store(), lane, since, 1_000).await;
        rows.retain(|(queue, _)| queues.contains(queue));
        (StoreAnswer::Policies(rows), revision)
    }

    fn learn(&mut self, task: TaskId, seq: Seq) {
        let highest = self.highest(task.lane());
        assert!(seq > highest, "task {task} is numbered {seq}, after {highest}");
        self.arrived.entry(task.lane()).or_default().push(seq);
        let before = self.tasks.insert(task, seq);
        assert_eq!(before, None, "task {task} was created twice");
    }

    fn unnumbered(&self, row: TaskRow) -> TaskRow {
        assert_eq!(Some(&row.seq), self.tasks.get(&row.id), "number of task {}", row.id);
        TaskRow { seq: Seq(0), ..row }
    }

    fn place(&self, lane: LaneId, seq: Seq) -> usize {
        let place = self.commands.get(&lane).and_then(|known| known.iter().position(|known| *known == seq));
        place.unwrap_or_else(|| panic!("command {seq} was never posted"))
    }
}

fn refusal(error: &StoreError) -> Refusal {
    match *error {
        StoreError::Fenced { held, current, .. } => Refusal::Fenced { held, current },
        StoreError::OutOfOrder { number, last, .. } => Refusal::OutOfOrder { number, last },
        StoreError::ClaimLost { current, .. } => Refusal::ClaimLost { current },
        StoreError::PolicyConflict { expected, current, .. } => Refusal::PolicyConflict { expected, current },
        StoreError::TooLarge { .. }
        | StoreError::Full { .. }
        | StoreError::Unavailable { .. }
        | StoreError::Lost { .. }
        | StoreError::Refused { .. }
        | StoreError::Corrupt { .. } => panic!("{error}"),
    }
}

//! The small world of one sequence: turns abstract operations into calls, makes them on both sides, and compares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::commit::{Commit, Group, RecordChange, RecordKind, TaskChange};
use tasklane_core::id::{AttemptNo, CommitNo, Epoch, LaneId, OwnerId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, QueuePolicy};
use tasklane_core::read::LaneRead;
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{AttemptOutcome, NewTask, TaskState};
use tasklane_core::time::Timestamp;

use super::compared_store::{ComparedStore, StoreAnswer};
use super::op::{
    ACTORS, ChangeOp, ClaimHow, CommitOp, CursorHow, ExpectedHow, FenceHow, FilterOp, GroupOp, LANES, NewOp,
    NumberHow, Op, Pick, QUEUES, REQUESTS, ReadOp, TaskRef, UNIQUES, UniqueOp, VersionHow, Way,
};
use crate::conformance::fixture::{
    TaskBuilder, advance, at, cancel, ended, name, owner_id, record_key, result,
};
use crate::conformance::pages;
use crate::{ClaimLane, ExpiredQuery, PutPolicy, Store, TaskCursor, TaskFilter};

/// The time that each sequence has for itself.
const SPAN_MILLIS: i64 = 1_000_000;

/// The tasks, owners and queues of one sequence.
pub(super) struct SequenceRun {
    number: u16,
    base: Timestamp,
    lanes: [LaneId; LANES],
    /// A queue that is spread over both lanes, and one of each lane alone.
    queues: Vec<QueueKey>,
    reference: ComparedStore,
    subject: ComparedStore,
    /// To look at the state without moving the reference's turn.
    truth: Arc<dyn Store>,
    actors: Vec<[Actor; ACTORS]>,
    /// By lane: the actor that claimed it last.
    holders: [usize; LANES],
    /// By lane: how many arrivals the furthest cursor of a commit covers.
    trimmed: BTreeMap<LaneId, usize>,
    owners: u128,
    policies_since: u64,
}

/// An owner that claims a lane and commits.
#[derive(Clone, Debug)]
struct Actor {
    owner: OwnerId,
    seen: Epoch,
    number: u64,
    /// Its last commit, for its repetition.
    last: SentCommit,
}

/// The content of a commit without its number.
#[derive(Clone, Debug, Default)]
struct SentCommit {
    groups: Vec<DrawnGroup>,
    /// How many arrivals its cursor covers.
    cursor: usize,
}

/// A group as it goes to both sides, but for the numbers of commands, which each side has of its own.
#[derive(Clone, Debug)]
struct DrawnGroup {
    group: Group,
    done: Vec<usize>,
}

/// Makes the same call on both sides and compares the answers.
macro_rules! both {
    ($run:ident, |$side:ident| $call:expr) => {{
        let expected = {
            let $side = &mut $run.reference;
            $call.await
        };
        let found = {
            let $side = &mut $run.subject;
            $call.await
        };
        compare(expected, &found)
    }};
}

fn compare(expected: StoreAnswer, found: &StoreAnswer) -> Result<StoreAnswer, String> {
    if expected == *found {
        return Ok(expected);
    }
    Err(format!("answered\n  {found:?}\nwhere the reference answers\n  {expected:?}"))
}

impl SequenceRun {
    /// More would share lanes.
    pub(super) const NUMBER_MAX: u16 = u16::MAX / 2 - 1;

    pub(super) fn new(
        number: u16,
        reference: Arc<dyn Store>,
        subject: Vec<Arc<dyn Store>>,
        policies_since: u64,
    ) -> Self {
        let first = number * 2;
        let namespace = name(&format!("model-{number}"));
        let queues = ["q", "q-0", "q-1"].map(|text| QueueKey::new(namespace.clone(), name(text))).into();
        let nobody = Actor {
            owner: owner_id(u128::MAX >> 64),
            seen: Epoch(0),
            number: 0,
            last: SentCommit::default(),
        };
        let nobodies: [Actor; ACTORS] = std::array::from_fn(|_| nobody.clone());
        Self {
            number,
            base: at(i64::from(number) * SPAN_MILLIS),
            lanes: [LaneId(first), LaneId(first + 1)],
            queues,
            reference: ComparedStore::new(vec![Arc::clone(&reference)]),
            subject: ComparedStore::new(subject),
            truth: reference,
            actors: vec![nobodies.clone(), nobodies],
            holders: [0; LANES],
            trimmed: BTreeMap::new(),
            owners: 0,
            policies_since,
        }
    }

    /// Does one operation on both sides.
    pub(super) async fn apply(&mut self, index: usize, op: &Op) -> Result<(), String> {
        // Several operations share a moment, so that times alone do not order tasks.
        let now = self.base + Duration::from_millis(index as u64 / 4 * 10);
        match op {
            Op::Submit { lane, tasks } => {
                let lane = self.lanes[*lane];
                let tasks: Vec<_> = tasks.iter().map(|new| self.new_task(lane, new, now)).collect();
                both!(self, |side| side.submit(lane, &tasks))?;
            }
            Op::Claim { lane, actor, how } => self.claim(*lane, *actor, *how).await?,
            Op::Commit(commit) => self.commit(commit, now).await?,
            Op::Post { lane, tasks } => {
                let lane = self.lanes[*lane];
                let commands: Vec<_> = tasks.iter().map(|task| cancel(self.id(lane, *task))).collect();
                both!(self, |side| side.post(lane, &commands))?;
            }
            Op::Read { lane, read, limit } => self.read(self.lanes[*lane], *read, *limit).await?,
            Op::Tasks { lane, tasks } => {
                let lane = self.lanes[*lane];
                let ids: Vec<_> = tasks.iter().map(|task| self.id(lane, *task)).collect();
                both!(self, |side| side.views(&ids))?;
                both!(self, |side| side.rows(lane, LaneRead::Tasks { ids: ids.clone() }, 100))?;
            }
            Op::List { filter, limit } => {
                let filter = self.filter(*filter);
                both!(self, |side| side.list(filter.clone(), *limit))?;
            }
            Op::Counts { limit } => {
                let first = self.before_queues();
                both!(self, |side| side.counts(&first, *limit))?;
            }
            Op::Expired { finished, forget, limit } => {
                let retire = self.retirement(*finished, *forget, *limit);
                both!(self, |side| side.expired(retire))?;
            }
            Op::Retire { lane, strip, forget } => {
                let lane = self.lanes[*lane];
                let ids = |tasks: &[TaskRef]| tasks.iter().map(|task| self.id(lane, *task)).collect();
                let (strip, forget): (Vec<_>, Vec<_>) = (ids(strip), ids(forget));
                both!(self, |side| side.retire(&strip, &forget))?;
            }
            Op::PutPolicy { queue, expected, weight } => {
                let queue = self.queues[*queue].clone();
                let stored = self.truth.policy(&queue).await.unwrap().version;
                let expected = match expected {
                    VersionHow::Stored => stored,
                    VersionHow::Off { ahead: true } => stored + 1,
                    VersionHow::Off { ahead: false } => stored.saturating_sub(1),
                };
                let policy = QueuePolicy { weight: *weight, ..QueuePolicy::default() };
                let put = PutPolicy { queue, expected, policy };
                both!(self, |side| side.put_policy(put.clone()))?;
            }
            Op::Policy { queue } => {
                let queue = self.queues[*queue].clone();
                both!(self, |side| side.policy(&queue))?;
            }
            Op::Bind { queue, lane } => {
                let queue = self.queues[*queue].clone();
                both!(self, |side| side.bind(&queue, &QueueBinding::Lane(LaneId(*lane))))?;
            }
        }
        Ok(())
    }

    /// Reads everything on both sides. Answers the subject's revision of policies.
    pub(super) async fn compare_all(&mut self) -> Result<u64, String> {
        let whole = [
            ReadOp::Head,
            ReadOp::Lines,
            ReadOp::Delayed,
            ReadOp::InFlight,
            ReadOp::Expiring { until: 2_000_000 },
            ReadOp::Inbox,
            ReadOp::Records,
            ReadOp::Arrivals,
            ReadOp::ArrivalsAfterCommitted,
        ];
        for lane in self.lanes {
            for read in whole {
                self.read(lane, read, 7).await?;
            }
            for (queue, kind) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                self.read(lane, ReadOp::Line { queue, kind }, 7).await?;
            }
            let ids = self.all_ids(lane);
            both!(self, |side| side.views(&ids))?;
            for id in ids {
                both!(self, |side| side.attempts(id, 2))?;
            }
        }
        let (queues, all) = (self.queues.clone(), self.filter(FilterOp::All));
        both!(self, |side| side.list(all.clone(), 7))?;
        let first = self.before_queues();
        both!(self, |side| side.counts(&first, 2))?;
        let retire = self.retirement(SPAN_MILLIS.unsigned_abs(), 100, 7);
        both!(self, |side| side.expired(retire))?;
        for queue in &queues {
            both!(self, |side| side.policy(queue))?;
        }
        self.try_unique_keys().await?;
        let (expected, _) = self.reference.policies(self.lanes[0], 0, &queues).await;
        let (found, revision) = self.subject.policies(self.lanes[0], self.policies_since, &queues).await;
        compare(expected, &found)?;
        Ok(revision)
    }

    /// The holder of a unique key shows only when another task wants the key.
    async fn try_unique_keys(&mut self) -> Result<(), String> {
        for lane in self.lanes {
            let wanted = (0..QUEUES).flat_map(|queue| (0..UNIQUES).map(move |key| (queue, key)));
            let tasks: Vec<_> = wanted
                .map(|(queue, key)| {
                    let request = REQUESTS + key as u64;
                    let task = TaskBuilder::new(lane, request).in_queue(self.queue(lane, queue));
                    task.created_at(self.base).unique(UNIQUE_KEYS[key]).build()
                })
                .collect();
            both!(self, |side| side.submit(lane, &tasks))?;
        }
        Ok(())
    }

    async fn claim(&mut self, lane_index: usize, actor: usize, how: ClaimHow) -> Result<(), String> {
        let lane = self.lanes[lane_index];
        let stored = self.truth.lane_head(lane).await.unwrap().epoch;
        self.owners += 1;
        let fresh = owner_id((u128::from(self.number) << 64) | self.owners);
        let (owner, seen) = match how {
            ClaimHow::Fresh => (fresh, stored),
            ClaimHow::Again => (self.actors[lane_index][actor].owner, self.actors[lane_index][actor].seen),
            ClaimHow::Steal => (fresh, Epoch(stored.0.saturating_sub(1))),
            ClaimHow::Wrong { ahead: true } => (fresh, stored.next()),
            ClaimHow::Wrong { ahead: false } => (fresh, Epoch(stored.0.saturating_sub(2))),
        };
        let failures = u32::try_from(seen.0 % 3).unwrap();
        let answer = both!(self, |side| side.claim(ClaimLane { lane, owner, seen, failures }))?;
        if let StoreAnswer::Claimed(Ok(_)) = answer {
            self.actors[lane_index][actor] = Actor { owner, seen, number: 0, last: SentCommit::default() };
            self.holders[lane_index] = actor;
        }
        Ok(())
    }

    async fn commit(&mut self, op: &CommitOp, now: Timestamp) -> Result<(), String> {
        let lane = self.lanes[op.lane];
        let actor_index = op.actor.unwrap_or(self.holders[op.lane]);
        let actor = self.actors[op.lane][actor_index].clone();
        let repeated = matches!(op.number, NumberHow::Again);
        let sent = if repeated {
            actor.last
        } else {
            let mut states = self.states(lane).await;
            let groups = op.groups.iter().map(|group| self.draw(lane, group, &mut states, now)).collect();
            let cursor = match op.cursor {
                CursorHow::Start => 0,
                CursorHow::Behind(behind) => self.reference.arrivals_len(lane).saturating_sub(behind),
            };
            SentCommit { groups, cursor }
        };
        let number = match op.number {
            NumberHow::Next => actor.number + 1,
            NumberHow::Again => actor.number,
            NumberHow::Stale => actor.number.saturating_sub(1),
            NumberHow::Skipping => actor.number + 2,
        };
        let (epoch, owner) = match op.fence {
            FenceHow::Own => (actor.seen.next(), actor.owner),
            FenceHow::OtherEpoch => (actor.seen.next().next(), actor.owner),
            FenceHow::OtherOwner => (actor.seen.next(), owner_id(u128::from(u64::MAX) << 32)),
        };
        let for_side = |side: &ComparedStore| {
            let groups = sent.groups.iter().map(|drawn| drawn.for_side(lane, side)).collect();
            let cursor = side.cursor(lane, sent.cursor);
            Commit { lane, epoch, owner, number: CommitNo(number), groups, cursor }
        };
        let (to_reference, to_subject) = (for_side(&self.reference), for_side(&self.subject));
        let expected = self.reference.commit(&to_reference, repeated).await;
        let found = self.subject.commit(&to_subject, repeated).await;
        if let StoreAnswer::Committed(Ok(_)) = compare(expected, &found)? {
            let trimmed = self.trimmed.entry(lane).or_default();
            *trimmed = sent.cursor.max(*trimmed);
            let actor = &mut self.actors[op.lane][actor_index];
            (actor.number, actor.last) = (number, sent);
        }
        Ok(())
    }

    /// Compares the arrivals after so many, unless one of the stores may have trimmed them and did.
    async fn arrivals(&mut self, lane: LaneId, after: usize, limit: usize) -> Result<StoreAnswer, String> {
        let trimmed = self.trimmed.get(&lane).copied().unwrap_or_default();
        let expected = self.reference.arrivals(lane, after, trimmed, limit).await;
        let found = self.subject.arrivals(lane, after, trimmed, limit).await;
        match (&expected, &found) {
            (StoreAnswer::Arrivals(None), _) | (_, StoreAnswer::Arrivals(None)) => Ok(found),
            _ => compare(expected, &found),
        }
    }

    async fn read(&mut self, lane: LaneId, read: ReadOp, limit: usize) -> Result<(), String> {
        match read {
            ReadOp::Head => both!(self, |side| side.head(lane)),
            ReadOp::Lines => both!(self, |side| side.rows(lane, pages::LINES, limit)),
            ReadOp::Line { queue, kind } => {
                let task = TaskBuilder::new(lane, 0).in_queue(self.queue(lane, queue)).kind(KINDS[kind]);
                let read = pages::line(task.build().spec.head.line());
                both!(self, |side| side.rows(lane, read.clone(), limit))
            }
            ReadOp::Delayed => both!(self, |side| side.rows(lane, pages::DELAYED, limit)),
            ReadOp::InFlight => both!(self, |side| side.rows(lane, pages::IN_FLIGHT, limit)),
            ReadOp::Expiring { until } => {
                let read = pages::expiring(self.base + Duration::from_millis(until));
                both!(self, |side| side.rows(lane, read.clone(), limit))
            }
            ReadOp::Inbox => both!(self, |side| side.inbox(lane, limit)),
            ReadOp::Records => both!(self, |side| side.records(lane, limit)),
            ReadOp::Arrivals => self.arrivals(lane, 0, limit).await,
            ReadOp::ArrivalsAfterCommitted => {
                let after = self.trimmed.get(&lane).copied().unwrap_or_default();
                self.arrivals(lane, after, limit).await
            }
            ReadOp::ArrivalsAfter { task } => {
                let after = self.reference.arrived_with(self.id(lane, task)).unwrap_or_default();
                self.arrivals(lane, after, limit).await
            }
        }?;
        Ok(())
    }

    fn id(&self, lane: LaneId, task: TaskRef) -> TaskId {
        TaskBuilder::new(lane, task.request).in_queue(self.queue(lane, task.queue)).id()
    }

    /// The queue that a task of a lane is in.
    fn queue(&self, lane: LaneId, queue: usize) -> QueueKey {
        let of_lane = if lane == self.lanes[0] { 1 } else { 2 };
        self.queues[if queue == SPREAD { SPREAD } else { of_lane }].clone()
    }

    /// Sorts before the queues of this world, and behind those of others.
    fn before_queues(&self) -> QueueKey {
        QueueKey::new(self.queues[SPREAD].namespace.clone(), name("a"))
    }

    fn all_ids(&self, lane: LaneId) -> Vec<TaskId> {
        let tasks =
            (0..QUEUES).flat_map(|queue| (0..REQUESTS).map(move |request| TaskRef { request, queue }));
        tasks.map(|task| self.id(lane, task)).collect()
    }

    /// The state of every task of a lane that exists.
    async fn states(&self, lane: LaneId) -> BTreeMap<TaskId, TaskState> {
        let views = self.truth.tasks(&self.all_ids(lane)).await.unwrap();
        views.into_iter().flatten().map(|view| (view.row.id, view.row.state)).collect()
    }

    fn new_task(&self, lane: LaneId, new: &NewOp, now: Timestamp) -> NewTask {
        let mut task = TaskBuilder::new(lane, new.task.request)
            .in_queue(self.queue(lane, new.task.queue))
            .fingerprint(1, new.fingerprint)
            .kind(KINDS[new.kind])
            .priority(new.priority)
            .created_at(now)
            .delay(new.delay)
            .payload_bytes(new.payload_bytes);
        if let Some(millis) = new.start_timeout {
            task = task.start_timeout(millis);
        }
        // A queue that is spread over lanes has no limit as a whole.
        if let Some(len_max) = new.len_max.filter(|_| new.task.queue != SPREAD) {
            task = task.len_max(len_max);
        }
        task = match new.unique {
            Some(UniqueOp { key, millis: None }) => task.unique(UNIQUE_KEYS[key]),
            Some(UniqueOp { key, millis: Some(millis) }) => {
                task.unique_until(UNIQUE_KEYS[key], now + Duration::from_millis(millis))
            }
            None => task,
        };
        task.build()
    }

    /// Makes a group of what is stored, and keeps `states` as the groups before it will have left them.
    fn draw(
        &self,
        lane: LaneId,
        op: &GroupOp,
        states: &mut BTreeMap<TaskId, TaskState>,
        now: Timestamp,
    ) -> DrawnGroup {
        let insert = op.insert.as_ref().map(|new| Box::new(self.new_task(lane, new, now)));
        let change = op.change.as_ref().map(|change| {
            let id = self.id(lane, change.task);
            let inserted = insert.as_ref().filter(|new| new.id == id).map(|new| new.state());
            let stored = inserted.or_else(|| states.get(&id).cloned()).unwrap_or_else(|| unknown_state(now));
            self.draw_change(id, change, &stored, now)
        });
        if let Some(new) = &insert
            && !states.contains_key(&new.id)
        {
            let after = change.as_ref().filter(|change| change.fits(Version::NEW));
            states.insert(new.id, after.map_or_else(|| new.state(), |change| change.state.clone()));
        } else if let Some(change) = &change
            && insert.is_none()
            && states.get(&change.task).is_some_and(|stored| change.fits(stored.version()))
        {
            states.insert(change.task, change.state.clone());
        }
        let mut records: Vec<RecordChange> = Vec::new();
        for (key, value) in &op.records {
            let (kind, text) = RECORDS[*key];
            let change = RecordChange {
                key: record_key(kind, text),
                value: value.map(|v| vec![v; usize::from(v % 5)]),
            };
            // A group names a record once.
            if records.iter().all(|other| other.key != change.key) {
                records.push(change);
            }
        }
        // Only commands that exist: a repeated commit must not name commands that came since.
        let posted = |place: &usize| self.reference.command(lane, *place).is_some();
        let done = op.done.iter().copied().filter(posted).collect();
        DrawnGroup { group: Group { insert, change, inbox_done: Vec::new(), records }, done }
    }

    fn draw_change(&self, task: TaskId, op: &ChangeOp, stored: &TaskState, now: Timestamp) -> TaskChange {
        let later = |millis: u64| self.base + Duration::from_millis(millis);
        let (mut path, mut state) = advance(stored, &[], now);
        match &op.way {
            Way::Walk(picks) => {
                let mut steps = Vec::new();
                let mut status = stored.status;
                for pick in picks {
                    let Some(picked) = pick_step(status, *pick) else { break };
                    steps.push(picked);
                    status = picked;
                }
                (path, state) = advance(stored, &steps, now);
            }
            Way::Leap(status) => (path, state) = advance(stored, &[*status], now),
            Way::Ready => state.delayed = false,
            Way::Due(millis) => state.due = later(*millis),
            Way::StartBy(millis) => state.start_by = millis.map(later),
            Way::CancelRequested => state.cancel_requested = true,
            Way::Astray => {
                (path, state) = advance(stored, &[Status::Scheduled], now);
                state.attempt = state.attempt.next();
            }
        }
        let version = stored.version();
        let expected = match op.expected {
            ExpectedHow::Stored => version,
            ExpectedHow::OtherAttempt => Version { attempt: version.attempt.next(), ..version },
            ExpectedHow::Status(status) => Version { status, ..version },
        };
        let ended_attempt = op.ended.then(|| ended(state.attempt.0.max(1), AttemptOutcome::Lost));
        TaskChange {
            task,
            expected,
            path,
            state,
            ended: ended_attempt.into_iter().collect(),
            result: op.result_bytes.map(|bytes| result(1, bytes)),
        }
    }

    /// Within the time of this world: other sequences have tasks of theirs in the same store.
    fn retirement(&self, finished: u64, forget: u64, limit: usize) -> ExpiredQuery {
        let later = |millis: u64| self.base + Duration::from_millis(millis);
        let after = Some(TaskCursor { created_at: self.base, id: TaskId::from_random(0) });
        ExpiredQuery { finished_before: later(finished), forget_before: later(forget), after, limit }
    }

    fn filter(&self, op: FilterOp) -> TaskFilter {
        let all = TaskFilter {
            namespace: Some(self.queues[0].namespace.clone()),
            created_from: Some(self.base),
            created_before: Some(self.base + Duration::from_millis(SPAN_MILLIS.unsigned_abs())),
            ..TaskFilter::default()
        };
        match op {
            FilterOp::All => all,
            FilterOp::Queue(queue) => TaskFilter { queue: Some(self.queues[queue].queue.clone()), ..all },
            FilterOp::Status(status) => TaskFilter { statuses: vec![status], ..all },
            FilterOp::QueueStatus(queue, status) => TaskFilter {
                queue: Some(self.queues[queue].queue.clone()),
                statuses: vec![status, Status::Pending],
                ..all
            },
            FilterOp::Kind(kind) => TaskFilter { task_type: Some(name(KINDS[kind])), ..all },
            FilterOp::Name(request) => TaskFilter { name: Some(format!("task {request}")), ..all },
            FilterOp::Worker => TaskFilter { worker: Some(name("worker-1")), ..all },
        }
    }
}

/// The queue that is spread over the lanes.
const SPREAD: usize = 0;

/// Task types, each with lines of its own.
const KINDS: [&str; 2] = ["SHELL", "HTTP"];

const UNIQUE_KEYS: [&str; UNIQUES] = ["a", "", "a/é"];

const RECORDS: [(RecordKind, &str); 4] = [
    (RecordKind::Rate, "a"),
    (RecordKind::Rate, "a/é"),
    (RecordKind::AppliedPolicy, "a"),
    (RecordKind::AppliedPolicy, ""),
];

fn pick_step(from: Status, pick: Pick) -> Option<Status> {
    let (which, any) = match pick {
        Pick::On(which) => (which, false),
        Pick::Any(which) => (which, true),
    };
    let next: Vec<_> = from.successors().iter().filter(|status| any || !status.is_final()).collect();
    next.get(which.checked_rem(next.len())?).copied().copied()
}

/// For a change of a task that does not exist.
fn unknown_state(now: Timestamp) -> TaskState {
    TaskState { attempt: AttemptNo(0), ..TaskBuilder::new(LaneId(0), 0).created_at(now).build().state() }
}

impl DrawnGroup {
    fn for_side(&self, lane: LaneId, side: &ComparedStore) -> Group {
        let inbox_done = self.done.iter().filter_map(|place| side.command(lane, *place)).collect();
        Group { inbox_done, ..self.group.clone() }
    }
}

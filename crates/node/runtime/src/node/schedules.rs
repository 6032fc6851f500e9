//! Schedules: their operations in the API, and the loop that fires them.
//!
//! A schedule is a document, changed by compare-and-set. So the loop and a user's change need no
//! coordination, and two servers that read it together do no harm: the plan of one of them is not written.
//! `tasklane_schedule` describes how a fire goes through plan, submit and settle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tasklane_core::clock_watch::{Clock, Trust};
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, Name, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::status::Status;
use tasklane_core::task::NewTask;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DocumentList, DueList, PutDocument, PutOutcome, StoreError,
    codec,
};
use tasklane_schedule::{DecisionInput, Fire, FireSubmission, Rule, Schedule, TaskOutcome, Times, When};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock;
use crate::request::{FieldError, RequestLimits, SYSTEM_PREFIX, ScheduleRequest, Target, merge, times_of};

use super::submit::Submitted;
use super::{Node, SubmitError, WorkflowError};

/// Why an operation on a schedule failed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The request is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// There is no such schedule.
    #[error("there is no such schedule")]
    NotFound,
    /// The state of the schedule does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// Its task was refused.
    #[error(transparent)]
    Refused(SubmitError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A schedule with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSchedule {
    /// Its name.
    pub id: Name,
    /// Its definition and state.
    pub schedule: Schedule,
}

/// The state of the task of a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FireEnd {
    /// Its status.
    pub status: Status,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
}

/// The outcome of a backfill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillPlan {
    /// Its number; `None` for a dry run.
    pub number: Option<u32>,
    /// Number of fires.
    pub count: usize,
    /// The first of them.
    pub first: Option<Timestamp>,
    /// The last of them.
    pub last: Option<Timestamp>,
}

/// Wakes the loop that fires schedules.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    changed: Notify,
    /// Schedules to read before they are due.
    early: Mutex<BTreeSet<DocumentKey>>,
}

impl Alarm {
    fn look_at(&self, key: DocumentKey) {
        self.early.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.changed.notify_one();
    }

    fn take_early(&self) -> Vec<DocumentKey> {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *early).into_iter().collect()
    }
}

/// How often the loop looks for due schedules without a signal.
const SWEEP: Duration = Duration::from_secs(15);
/// Wait after the store has failed, or another server was first.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Schedules read together.
const PAGE: usize = 500;
/// How often a change is tried when other changes come first.
const TRIES: usize = 10;
/// Times in one backfill.
pub const BACKFILL_MAX: usize = 10_000;

/// The request id of a trigger: each schedule has keys of its own. Where the two are too long for a request id, their hash stands
/// for them.
fn trigger_request_id(id: &Name, key: &str) -> String {
    let whole = format!("{SYSTEM_PREFIX}trigger:{id}:{key}");
    if whole.chars().count() <= RequestLimits::KEY_LEN_MAX {
        return whole;
    }
    format!("{SYSTEM_PREFIX}trigger:{:032x}", xxh3_128(whole.as_bytes()))
}

fn key_of(namespace: &Name, id: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Schedule, namespace: namespace.clone(), id: id.clone() }
}

/// The key of the schedule that a task names.
pub(super) fn key_of_text(namespace: &Name, id: &str) -> Option<DocumentKey> {
    Name::new(id).ok().map(|id| key_of(namespace, &id))
}

/// A schedule that was read, to be written back.
struct Work {
    key: DocumentKey,
    version: u64,
    schedule: Schedule,
}

impl Work {
    fn of(document: Document) -> Result<Self, StoreError> {
        let schedule = codec::decode(&document.value)?;
        Ok(Self { key: document.key, version: document.version, schedule })
    }

    fn put(&self, now: Timestamp) -> PutDocument {
        let due = self.schedule.due(self.key.id.as_str(), now);
        let content = Some(Content { due, value: codec::encode(&self.schedule) });
        PutDocument { key: self.key.clone(), expected: self.version, content }
    }
}

impl Node {
    /// Puts a schedule. Returns it, and whether it is new.
    pub async fn put_schedule(
        &self,
        namespace: &Name,
        id: &Name,
        request: &ScheduleRequest,
    ) -> Result<(NamedSchedule, bool), ScheduleError> {
        self.check_target(namespace, &request.target).await?;
        // Whether its task could be accepted now is the best guess at whether it can be later.
        self.placed(namespace, request.target.clone(), None).await?;
        let key = key_of(namespace, id);
        for _ in 0..TRIES {
            let now = clock::wall();
            let stored = self.read_schedule(&key).await?;
            let is_new = stored.is_none();
            let rule = request.rule(stored.as_ref().map(|work| &work.schedule.rule), now);
            let times = times_of(&rule)?;
            let mut work = match stored {
                None => Work { key: key.clone(), version: 0, schedule: Schedule::new(rule, &times, now) },
                Some(mut work) => {
                    let paused = work.schedule.state.paused.is_some();
                    if work.schedule.rule == rule && request.enabled.is_none_or(|enabled| enabled != paused) {
                        return Ok((NamedSchedule { id: id.clone(), schedule: work.schedule }, false));
                    }
                    if work.schedule.rule != rule {
                        work.schedule.change(rule, &times, now);
                    }
                    work
                }
            };
            if work.schedule.state.next.is_none() {
                return Err(never(&work.schedule.rule).into());
            }
            enable(&mut work.schedule, request.enabled, &times, now);
            if let Some(schedule) = self.write_schedule(work, now).await? {
                return Ok((NamedSchedule { id: id.clone(), schedule }, is_new));
            }
        }
        Err(crowded())
    }

    /// Changes an existing schedule.
    async fn change_schedule<T>(
        &self,
        namespace: &Name,
        id: &Name,
        mut change: impl FnMut(&mut Schedule, &Times, Timestamp) -> Result<T, ScheduleError>,
    ) -> Result<(NamedSchedule, T), ScheduleError> {
        let key = key_of(namespace, id);
        for _ in 0..TRIES {
            let now = clock::wall();
            let Some(mut work) = self.read_schedule(&key).await? else { return Err(ScheduleError::NotFound) };
            let times = times_of(&work.schedule.rule)?;
            let answer = change(&mut work.schedule, &times, now)?;
            if let Some(schedule) = self.write_schedule(work, now).await? {
                return Ok((NamedSchedule { id: id.clone(), schedule }, answer));
            }
        }
        Err(crowded())
    }

    /// Enables or disables a schedule.
    pub async fn enable_schedule(
        &self,
        namespace: &Name,
        id: &Name,
        enabled: bool,
    ) -> Result<NamedSchedule, ScheduleError> {
        let changed = self
            .change_schedule(namespace, id, |schedule, times, now| {
                enable(schedule, Some(enabled), times, now);
                Ok(())
            })
            .await?;
        Ok(changed.0)
    }

    /// Fires a schedule now, independent of its rule, and returns the task. The same request id twice is one
    /// fire.
    pub async fn trigger_schedule(
        &self,
        namespace: &Name,
        id: &Name,
        request_id: Option<&str>,
    ) -> Result<Submitted, ScheduleError> {
        let Some(work) = self.read_schedule(&key_of(namespace, id)).await? else {
            return Err(ScheduleError::NotFound);
        };
        let fire = Fire { nominal: clock::wall(), backfill: 0 };
        let request_id = request_id.map(|key| trigger_request_id(id, key));
        let is_named = request_id.is_some();
        let task = self.task_of(namespace, id, &work.schedule.rule, fire, request_id).await?;
        let task_id = task.id;
        let is_there = is_named && self.0.parts.store.tasks(&[task_id]).await?.iter().any(Option::is_some);
        if !is_there {
            self.change_schedule(namespace, id, |schedule, _, now| {
                schedule.plan(fire, Ok(task.clone()), now);
                Ok(())
            })
            .await?;
        }
        // The fire is planned: from here on its task is submitted even if this call fails.
        let mut answers = self.submit_to(task_id.lane(), vec![task]).await;
        self.0.alarm.look_at(key_of(namespace, id));
        match answers.pop() {
            Some(Ok(taken)) => Ok(taken),
            None | Some(Err(SubmitError::Store(_))) => Ok(Submitted { id: task_id, duplicate: is_there }),
            Some(Err(error)) => Err(ScheduleError::Refused(error)),
        }
    }

    /// Fires all times of a span again, or counts them in a dry run.
    pub async fn backfill_schedule(
        &self,
        namespace: &Name,
        id: &Name,
        (from, until): (Timestamp, Timestamp),
        dry_run: bool,
    ) -> Result<BackfillPlan, ScheduleError> {
        let Some(work) = self.read_schedule(&key_of(namespace, id)).await? else {
            return Err(ScheduleError::NotFound);
        };
        let rule = work.schedule.rule;
        let times = times_of(&rule)?;
        let after = from - Duration::from_micros(1);
        let next = |last: &Timestamp| rule.after(&times, *last).filter(|at| *at <= until);
        let all: Vec<Timestamp> = std::iter::successors(next(&after), next).take(BACKFILL_MAX + 1).collect();
        if all.len() > BACKFILL_MAX {
            let message = format!("must be so early that there are at most {BACKFILL_MAX} times");
            return Err(FieldError::invalid("until", message).into());
        }
        let (count, first, last) = (all.len(), all.first().copied(), all.last().copied());
        if dry_run {
            return Ok(BackfillPlan { number: None, count, first, last });
        }
        let begun = self.change_schedule(namespace, id, |schedule, _, _| {
            let busy =
                || ScheduleError::Conflict("another backfill of this schedule is under way".to_owned());
            schedule.backfill(from, until).ok_or_else(busy)
        });
        let (_, number) = begun.await?;
        Ok(BackfillPlan { number: Some(number), count, first, last })
    }

    /// Removes a schedule; its tasks stay. Returns whether there was one.
    pub async fn delete_schedule(&self, namespace: &Name, id: &Name) -> Result<bool, ScheduleError> {
        let key = key_of(namespace, id);
        for _ in 0..TRIES {
            let Some(work) = self.read_schedule(&key).await? else { return Ok(false) };
            let put = PutDocument { key: key.clone(), expected: work.version, content: None };
            if let [PutOutcome::Stored { .. }] = self.0.parts.documents.put(&[put]).await?[..] {
                return Ok(true);
            }
        }
        Err(crowded())
    }

    /// A schedule.
    pub async fn schedule(&self, namespace: &Name, id: &Name) -> Result<Option<NamedSchedule>, StoreError> {
        let work = self.read_schedule(&key_of(namespace, id)).await?;
        Ok(work.map(|work| NamedSchedule { id: work.key.id, schedule: work.schedule }))
    }

    /// Schedules by name.
    pub async fn schedules(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<NamedSchedule>, StoreError> {
        let list = DocumentList { kind: DocumentKind::Schedule, namespace: namespace.clone(), after, limit };
        let documents = self.0.parts.documents.by_name(list).await?;
        let named = documents.into_iter().map(Work::of).map(|work| {
            let Work { key, schedule, .. } = work?;
            Ok(NamedSchedule { id: key.id, schedule })
        });
        named.collect()
    }

    /// The states of the tasks of fires, as far as they are still stored.
    pub async fn fire_ends(&self, tasks: &[TaskId]) -> Result<BTreeMap<TaskId, FireEnd>, StoreError> {
        let mut ends = BTreeMap::new();
        for ids in tasks.chunks(PAGE) {
            for view in self.0.parts.store.tasks(ids).await?.into_iter().flatten() {
                let state = &view.row.state;
                ends.insert(view.row.id, FireEnd { status: state.status, ended_at: state.finished_at });
            }
        }
        Ok(ends)
    }

    async fn read_schedule(&self, key: &DocumentKey) -> Result<Option<Work>, StoreError> {
        let found = self.0.parts.documents.get(std::slice::from_ref(key)).await?.pop().flatten();
        found.map(Work::of).transpose()
    }

    /// Writes a schedule back. `None` if another writer was first.
    async fn write_schedule(&self, work: Work, now: Timestamp) -> Result<Option<Schedule>, StoreError> {
        match self.0.parts.documents.put(&[work.put(now)]).await?[..] {
            [PutOutcome::Stored { .. }] => {
                self.0.alarm.changed.notify_one();
                Ok(Some(work.schedule))
            }
            _ => Ok(None),
        }
    }

    /// The task of a fire.
    async fn task_of(
        &self,
        namespace: &Name,
        id: &Name,
        rule: &Rule,
        fire: Fire,
        request_id: Option<String>,
    ) -> Result<NewTask, ScheduleError> {
        let mut task = self.placed(namespace, Target::from_json(&rule.task)?, request_id).await?;
        let body = Arc::make_mut(&mut task.spec.body);
        merge(&mut body.webhooks, &rule.webhooks);
        body.watched = rule.watches() && fire.backfill == 0;
        body.schedule = Some(id.to_string());
        body.nominal_time = Some(fire.nominal);
        Ok(task)
    }

    /// The task of a target; errors name fields below `task` or `workflow`.
    async fn placed(
        &self,
        namespace: &Name,
        target: Target,
        request_id: Option<String>,
    ) -> Result<NewTask, ScheduleError> {
        let (mut request, outer) = match target {
            Target::Task(task) => (*task, "task"),
            Target::Run(run) => {
                let request = self.run_request(namespace, run).await.map_err(|error| match error {
                    WorkflowError::Invalid(error) => ScheduleError::Invalid(error.below("workflow")),
                    WorkflowError::Store(error) => ScheduleError::Store(error),
                    WorkflowError::Refused(error) => ScheduleError::Refused(error),
                    WorkflowError::NotFound | WorkflowError::Crowded => {
                        ScheduleError::Conflict(error.to_string())
                    }
                });
                (request?, "workflow")
            }
        };
        request.request_id = request_id.or(request.request_id);
        self.place(namespace, request).await.map_err(|error| match error {
            SubmitError::Invalid(error) => ScheduleError::Invalid(error.below(outer)),
            error => ScheduleError::Refused(error),
        })
    }

    /// Fires schedules. Never returns.
    pub(super) async fn fire_schedules(&self) {
        // A server compares its clock with the clock of the coordinator before its first session. By a wrong clock it would fire times
        // that have not come.
        let _ = self.0.parts.scheduler.session().wait_for(Option::is_some).await;
        let mut steps = clock::steps();
        let mut planned_by = None;
        loop {
            let clock = clock::now();
            let fired = async {
                // A step of the clock, or its settling, can change plans of schedules that are not due.
                if planned_by != Some((clock.shift, clock.is_settled())) {
                    self.fire_stirred(&clock).await?;
                    planned_by = Some((clock.shift, clock.is_settled()));
                }
                self.fire_due().await
            };
            let wait = match fired.await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "schedules were not fired, retrying");
                    AGAIN_AFTER
                }
            };
            let settles = match clock.trust {
                Trust::Settled => Duration::MAX,
                Trust::Unsettled { left, .. } => left,
            };
            tokio::select! {
                () = tokio::time::sleep(wait.min(settles)) => {}
                () = self.0.alarm.changed.notified() => {}
                _ = steps.changed() => {}
            }
        }
    }

    /// Reads all schedules and fires each schedule that a step of the clock, or its settling, changes.
    async fn fire_stirred(&self, clock: &Clock) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let list = DueList { kind: DocumentKind::Schedule, until: Timestamp::MAX, after, limit: PAGE };
            let page = self.0.parts.documents.by_time(list).await?;
            let more = page.len() == PAGE;
            after = behind(&page);
            let is_stirred = |document: &Document| {
                // A schedule that cannot be read is reported when it is due.
                let Ok(Work { schedule, .. }) = Work::of(document.clone()) else { return false };
                times_of(&schedule.rule).is_ok_and(|times| schedule.is_stirred(&times, clock.wall))
            };
            let stirred: Vec<Document> = page.into_iter().filter(is_stirred).collect();
            if !stirred.is_empty() {
                self.fire(stirred).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Fires due schedules. Returns the time until the next is due.
    pub async fn fire_due(&self) -> Result<Duration, StoreError> {
        let documents = &self.0.parts.documents;
        let early = self.0.alarm.take_early();
        let early = documents.get(&early).await?;
        self.fire(early.into_iter().flatten().collect()).await?;
        let until = clock::wall();
        let mut after = None;
        let (mut looked, mut written) = (0, 0);
        loop {
            let list = DueList { kind: DocumentKind::Schedule, until, after, limit: PAGE };
            let page = documents.by_time(list).await?;
            let more = page.len() == PAGE;
            after = behind(&page);
            looked += page.len();
            written += self.fire(page).await?;
            if !more {
                break;
            }
        }
        if written < looked {
            return Ok(AGAIN_AFTER);
        }
        let now = clock::wall();
        let next = DueList { kind: DocumentKind::Schedule, until: now + SWEEP, after: None, limit: 1 };
        let next = documents.by_time(next).await?.pop().and_then(|next| next.due);
        Ok(next.map_or(SWEEP, |next| next.since(now)))
    }

    /// Takes schedules one step further: decides and plans, submits planned fires, settles. Returns how many
    /// were written.
    async fn fire(&self, documents: Vec<Document>) -> Result<usize, StoreError> {
        let mut works = Vec::with_capacity(documents.len());
        for document in documents {
            let key = document.key.clone();
            match Work::of(document) {
                Ok(work) => works.push(work),
                Err(error) => {
                    tracing::error!(namespace = %key.namespace, schedule = %key.id, %error, "a schedule cannot be read");
                }
            }
        }
        let outcomes = self.outcomes_of(&works).await?;
        let clock = clock::now();
        let now = clock.wall;
        for work in &mut works {
            self.plan(work, &clock, &outcomes).await?;
        }
        let mut works = self.write_all(works, now).await?;
        let written = works.len();
        works.retain(|work| {
            let state = &work.schedule.state;
            !state.planned.is_empty() || !state.cancels.is_empty() || !state.alerts.is_empty()
        });
        let mut deliveries = Vec::new();
        for work in &works {
            deliveries.extend(self.deliveries_of_alerts(&work.key, &work.schedule).await?);
        }
        self.deliver(deliveries).await?;
        for work in &mut works {
            work.schedule.state.alerts.clear();
        }
        for work in &mut works {
            for task in std::mem::take(&mut work.schedule.state.cancels) {
                self.cancel(&work.key.namespace, task).await?;
            }
        }
        let submitted = self.submit_planned(&works).await?;
        let now = clock::wall();
        for work in &mut works {
            let planned: Vec<TaskId> = work.schedule.state.planned.iter().map(|plan| plan.task.id).collect();
            for task in planned {
                if let Some(outcome) = submitted.get(&task) {
                    work.schedule.settle(task, outcome.clone(), now);
                }
            }
        }
        self.write_all(works, now).await?;
        Ok(written)
    }

    async fn plan(
        &self,
        work: &mut Work,
        clock: &Clock,
        outcomes: &BTreeMap<TaskId, TaskOutcome>,
    ) -> Result<(), StoreError> {
        let DocumentKey { namespace, id, .. } = &work.key;
        let now = clock.wall;
        let times = match times_of(&work.schedule.rule) {
            Ok(times) => times,
            Err(error) => {
                work.schedule.pause(&format!("{}: {}", error.field, error.message), now);
                return Ok(());
            }
        };
        let look =
            DecisionInput { now, settled: clock.is_settled(), outcomes, invariants: Invariants::ALL_ON };
        for fire in work.schedule.decide(id.as_str(), &times, &look) {
            let task = match self.task_of(namespace, id, &work.schedule.rule, fire, None).await {
                Ok(task) => Ok(task),
                // It may be the store's fault: the fire stays planned.
                Err(ScheduleError::Refused(SubmitError::Store(error))) => {
                    return Err(StoreError::unavailable(error));
                }
                Err(ScheduleError::Store(error)) => return Err(error),
                Err(error) => Err(error.to_string()),
            };
            work.schedule.plan(fire, task, now);
        }
        Ok(())
    }

    /// Writes schedules back and returns the ones without another writer.
    async fn write_all(&self, works: Vec<Work>, now: Timestamp) -> Result<Vec<Work>, StoreError> {
        let puts: Vec<PutDocument> = works.iter().map(|work| work.put(now)).collect();
        let outcomes = self.0.parts.documents.put(&puts).await?;
        let written = works.into_iter().zip(outcomes).filter_map(|(mut work, outcome)| match outcome {
            PutOutcome::Stored { version } => {
                work.version = version;
                Some(work)
            }
            PutOutcome::Conflict { .. } => None,
        });
        Ok(written.collect())
    }

    /// The outcomes of the open tasks of schedules that have ended.
    async fn outcomes_of(&self, works: &[Work]) -> Result<BTreeMap<TaskId, TaskOutcome>, StoreError> {
        let open: Vec<TaskId> =
            works.iter().flat_map(|work| work.schedule.state.open.iter().copied()).collect();
        let mut outcomes = BTreeMap::new();
        for ids in open.chunks(PAGE) {
            let views = self.0.parts.store.tasks(ids).await?;
            for (id, view) in ids.iter().zip(views) {
                let stand = match view.map(|view| view.row.state) {
                    Some(state) => match state.status {
                        Status::Success => TaskOutcome::Success,
                        Status::Failed if state.started_at.is_none() && state.retries == 0 => {
                            TaskOutcome::NeverBegan
                        }
                        Status::Failed => TaskOutcome::Failure,
                        Status::Cancelled => TaskOutcome::Neither,
                        _ if state.started_at.is_some() || state.retries > 0 => TaskOutcome::Begun,
                        _ => continue,
                    },
                    None => TaskOutcome::Neither,
                };
                outcomes.insert(*id, stand);
            }
        }
        Ok(outcomes)
    }

    /// Submits all planned tasks; a repeated submit does nothing.
    async fn submit_planned(&self, works: &[Work]) -> Result<BTreeMap<TaskId, FireSubmission>, StoreError> {
        let mut lanes: BTreeMap<LaneId, Vec<NewTask>> = BTreeMap::new();
        for planned in works.iter().flat_map(|work| &work.schedule.state.planned) {
            lanes.entry(planned.task.id.lane()).or_default().push(NewTask::clone(&planned.task));
        }
        let mut submitted = BTreeMap::new();
        for (lane, tasks) in lanes {
            let outcomes = self.outcomes(lane, &tasks).await?;
            for (task, outcome) in tasks.iter().zip(outcomes) {
                let outcome = match outcome {
                    SubmitOutcome::Created { .. } | SubmitOutcome::Duplicate => FireSubmission::Yes,
                    SubmitOutcome::Exists { task } => {
                        FireSubmission::No(format!("task {task} holds its unique key"))
                    }
                    SubmitOutcome::QueueFull => FireSubmission::No("its queue is full".to_owned()),
                    SubmitOutcome::RequestIdReused => FireSubmission::No("its id is taken".to_owned()),
                };
                submitted.insert(task.id, outcome);
            }
        }
        Ok(submitted)
    }

    /// Tasks of a schedule have ended: decides the next step, durably.
    pub(super) async fn look_at_schedule(
        &self,
        key: &DocumentKey,
        ended: &[TaskId],
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let found = self.0.parts.documents.get(std::slice::from_ref(key)).await?.pop().flatten();
            let Some(document) = found else { return Ok(()) };
            let Schedule { state, .. } = &Work::of(document.clone())?.schedule;
            let is_planned = state.planned.iter().any(|planned| ended.contains(&planned.task.id));
            let is_open = state.open.iter().any(|task| ended.contains(task));
            if !is_planned && !is_open {
                return Ok(());
            }
            // A fire that is still planned is settled first, and handled in the next round.
            self.fire(vec![document]).await?;
            self.0.alarm.changed.notify_one();
        }
        Err(StoreError::unavailable("other changes of the schedule came first"))
    }
}

fn enable(schedule: &mut Schedule, enabled: Option<bool>, times: &Times, now: Timestamp) {
    match (enabled, schedule.state.paused.is_some()) {
        (Some(true), true) => schedule.resume(times, now),
        (Some(false), false) => schedule.pause("disabled", now),
        _ => {}
    }
}

/// The position after this page.
fn behind(page: &[Document]) -> Option<(Timestamp, Name, Name)> {
    page.last().and_then(|last| Some((last.due?, last.key.namespace.clone(), last.key.id.clone())))
}

/// The error of a rule without a future time.
fn never(rule: &Rule) -> FieldError {
    match rule.when {
        When::At(_) => FieldError::invalid("at", "must be in the future, and between from and until"),
        When::Quartz(_) if rule.until.is_none() => {
            FieldError::invalid("cron", "has no time to come: its years have passed; write later ones, or *")
        }
        _ => FieldError::invalid("until", "must be so late that there is a time before it"),
    }
}

fn crowded() -> ScheduleError {
    ScheduleError::Conflict("other changes of the schedule came first; try again".to_owned())
}

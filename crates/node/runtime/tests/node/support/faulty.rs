//! A store in front of another store, which fails by the plan of a test.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tasklane_core::command::Command;
use tasklane_core::commit::{ClaimLane, Commit, GroupOutcome, LaneHead, SubmitOutcome};
use tasklane_core::id::{Epoch, LaneId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::LanePage;
use tasklane_core::task::{AttemptRecord, NewTask};
use tasklane_ports::{
    AttemptList, CountList, ExpiredQuery, ExpiredTasks, LoadQuery, PutPolicy, QueueCounts, Store,
    StoreCapabilities, StoreError, Submit, TaskList, TaskPage, TaskView,
};

/// The fault of a call.
pub(crate) enum Fault {
    /// It fails, and nothing was done.
    Error(StoreError),
    /// It is never answered.
    Hang,
    /// It holds up the thread that makes it until the other end is dropped.
    HoldUp(Receiver<()>),
}

type Plan = Box<dyn FnMut(&'static str) -> Option<Fault> + Send>;

/// A store that fails by the plan of a test: the plan gets the name of each verb.
pub(crate) struct Faulty {
    store: Arc<dyn Store>,
    plan: Mutex<Plan>,
    /// Every task of a create call.
    submitted: Mutex<Vec<NewTask>>,
}

impl Faulty {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, plan: Mutex::new(Box::new(|_| None)), submitted: Mutex::default() }
    }

    /// Every task of a create call so far.
    pub(crate) fn submitted(&self) -> Vec<NewTask> {
        self.submitted.lock().unwrap().clone()
    }

    /// From now on, calls follow the plan.
    pub(crate) fn plan(&self, plan: impl FnMut(&'static str) -> Option<Fault> + Send + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    async fn pass(&self, verb: &'static str) -> Result<(), StoreError> {
        let fault = (self.plan.lock().unwrap())(verb);
        match fault {
            None => Ok(()),
            Some(Fault::Error(error)) => Err(error),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::HoldUp(released)) => {
                let _ = released.recv();
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl Store for Faulty {
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        self.pass("submit").await?;
        self.submitted.lock().unwrap().extend_from_slice(&submit.tasks);
        self.store.submit(submit).await
    }

    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError> {
        self.pass("lane_head").await?;
        self.store.lane_head(lane).await
    }

    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        self.pass("claim_lane").await?;
        self.store.claim_lane(claim).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        self.pass("commit").await?;
        let inserts = commit.groups.iter().filter_map(|group| group.insert.as_deref());
        self.submitted.lock().unwrap().extend(inserts.cloned());
        self.store.commit(commit).await
    }

    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError> {
        self.pass("post").await?;
        self.store.post(lane, commands).await
    }

    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        self.pass("load").await?;
        self.store.load(load).await
    }

    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError> {
        self.pass("bind_queue").await?;
        self.store.bind_queue(queue, binding).await
    }

    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError> {
        self.pass("put_policy").await?;
        self.store.put_policy(put).await
    }

    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        self.pass("policy").await?;
        self.store.policy(queue).await
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        self.pass("tasks").await?;
        self.store.tasks(ids).await
    }

    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        self.pass("attempts").await?;
        self.store.attempts(list).await
    }

    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        self.pass("list").await?;
        self.store.list(list).await
    }

    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError> {
        self.pass("counts").await?;
        self.store.counts(list).await
    }

    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        self.pass("expired").await?;
        self.store.expired(retire).await
    }

    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        self.pass("retire").await?;
        self.store.retire(strip, forget).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}

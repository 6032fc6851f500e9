//! The memory store as a port: a lock around its state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{Epoch, LaneId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::LanePage;
use tasklane_core::task::AttemptRecord;
use tasklane_ports::{
    AttemptList, ClaimLane, CountList, ExpiredQuery, ExpiredTasks, LaneHead, LoadQuery, LogChunk,
    LogPosition, Logs, PutPolicy, QueueCounts, Store, StoreCapabilities, StoreError, Submit, TaskList,
    TaskPage, TaskView,
};

use super::state::{MemoryOptions, MemoryState};

/// A store that lives as long as its process. Clones are the same handle; [`open`](Self::open) gives another one.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    state: Arc<Mutex<MemoryState>>,
    closed: Arc<AtomicBool>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(options: MemoryOptions) -> Self {
        Self::open(Arc::new(Mutex::new(MemoryState::new(options))))
    }

    /// A new handle on a state, as if the process had started again over the same data.
    pub fn open(state: Arc<Mutex<MemoryState>>) -> Self {
        Self { state, closed: Arc::default() }
    }

    /// The shared contents, for other handles and for tests.
    pub fn state(&self) -> Arc<Mutex<MemoryState>> {
        Arc::clone(&self.state)
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, MemoryState>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::unavailable("the store was closed"));
        }
        // A panic under the lock is a broken rule of a caller, found before anything was written.
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).capabilities()
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        self.lock()?.submit(&submit)
    }

    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError> {
        Ok(self.lock()?.lane_head(lane))
    }

    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        self.lock()?.claim_lane(claim)
    }

    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        self.lock()?.commit(commit)
    }

    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError> {
        self.lock()?.post(lane, commands);
        Ok(())
    }

    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        Ok(self.lock()?.load(&load))
    }

    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError> {
        Ok(self.lock()?.bind_queue(queue, binding))
    }

    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError> {
        self.lock()?.put_policy(put)
    }

    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        Ok(self.lock()?.policy(queue))
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        Ok(self.lock()?.tasks(ids))
    }

    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        Ok(self.lock()?.attempts(list))
    }

    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        Ok(self.lock()?.list(&list))
    }

    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError> {
        Ok(self.lock()?.counts(&list))
    }

    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        Ok(self.lock()?.expired(&retire))
    }

    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        self.lock()?.retire(strip, forget);
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

#[async_trait]
impl Logs for MemoryStore {
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        self.lock()?.append_logs(chunks);
        Ok(())
    }

    async fn read(
        &self,
        task: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        Ok(self.lock()?.read_logs(task, after, limit))
    }

    async fn tail(&self, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError> {
        Ok(self.lock()?.tail_logs(task, limit))
    }

    async fn remove(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        self.lock()?.remove_logs(tasks);
        Ok(())
    }
}

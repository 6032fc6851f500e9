//! The queues of tasks that are likely to change soon.
//!
//! A change does not name its queue, and the counts of the queue change with it. The queue of a task never
//! changes, so an entry is never stale. A missing entry is read before the write.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use tasklane_core::commit::GroupOutcome;
use tasklane_core::id::TaskId;

use crate::resolve::{Part, Queues};
use crate::write_lane::QueueNo;

/// At most twice this many tasks are remembered: some megabytes.
const GENERATION_MAX: usize = 64 << 10;

/// Tasks and their queues.
#[derive(Debug, Default)]
pub(crate) struct QueueCache(Mutex<Generations>);

/// When the young generation is full it becomes the old one, and the former old one is dropped.
#[derive(Debug, Default)]
struct Generations {
    young: FxHashMap<TaskId, QueueNo>,
    old: FxHashMap<TaskId, QueueNo>,
}

impl QueueCache {
    /// Notes new tasks and fills in the queues of changed ones. Answers the changed tasks without an entry.
    ///
    /// A new task is noted before its creation is certain: no commit asks for a task that was not created,
    /// and the next commit may ask before this one is answered.
    pub(crate) fn find(&self, parts: &mut [Part<'_>], queues: &Queues) -> Vec<TaskId> {
        let mut unknown = Vec::new();
        let mut cache = self.lock();
        for part in parts {
            if let Some((id, queue)) = part.inserted() {
                cache.insert(id, queues[queue]);
            }
            if let Some(id) = part.changed() {
                part.changed_in = cache.get(id);
                if part.changed_in.is_none() {
                    unknown.push(id);
                }
            }
        }
        unknown
    }

    /// Drops the entries of finished tasks.
    pub(crate) fn forget_finished(&self, parts: &[Part<'_>], outcomes: &[GroupOutcome]) {
        let mut cache = self.lock();
        for (part, outcome) in parts.iter().zip(outcomes) {
            if let (Some(id), GroupOutcome::Applied { .. }) = (part.finished(), outcome) {
                cache.remove(id);
            }
        }
    }

    /// Notes tasks that were read.
    pub(crate) fn note(&self, tasks: impl Iterator<Item = (TaskId, QueueNo)>) {
        let mut cache = self.lock();
        tasks.for_each(|(id, queue)| cache.insert(id, queue));
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&self, id: TaskId) -> Option<QueueNo> {
        self.young.get(&id).or_else(|| self.old.get(&id)).copied()
    }

    fn insert(&mut self, id: TaskId, queue: QueueNo) {
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, queue);
    }

    fn remove(&mut self, id: TaskId) {
        self.young.remove(&id);
        self.old.remove(&id);
    }
}

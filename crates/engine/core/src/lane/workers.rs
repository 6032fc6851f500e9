//! Workers as a lane sees them: what they offer, how much room they have for this lane, what they hold of it.

use std::collections::{BTreeSet, VecDeque};

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::{DispatchNo, SessionId};
use crate::member::WorkerDescriptor;
use crate::message::ToWorker;
use crate::policy::{Strategy, WhenFull};

use super::entry::Handle;
use super::lines::ClassKey;
use super::machine::Lane;

/// What choosing a worker looks at, in one number, because every assignment compares many: the share of its capacity in
/// use, and below that the order of last use, so that equals take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load(u64);

impl Load {
    const USED_BITS: u32 = 40;
    const USED: u64 = (1 << Self::USED_BITS) - 1;

    fn with_share(self, share: u64) -> Self {
        let share = share.min((1 << (64 - Self::USED_BITS)) - 1);
        Self((share << Self::USED_BITS) | (self.0 & Self::USED))
    }

    fn with_used(self, used: u64) -> Self {
        Self((self.0 & !Self::USED) | (used & Self::USED))
    }

    fn used(self) -> u64 {
        self.0 & Self::USED
    }
}

/// A worker session.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Worker {
    pub(super) session: SessionId,
    /// `None` while it is known only from an attempt in the store.
    pub(super) descriptor: Option<WorkerDescriptor>,
    /// It has answered under this owner's epoch, so that its credit counts.
    pub(super) confirmed: bool,
    /// The last dispatch number used.
    pub(super) last_k: DispatchNo,
    /// The highest one that may be used.
    pub(super) credit: DispatchNo,
    /// Numbers that were skipped, and that the worker has not said it knows of.
    pub(super) skipped: Vec<(DispatchNo, DispatchNo)>,
    /// Attempts it holds for all lanes, as it said last.
    pub(super) load: u32,
    /// Attempts of this lane that it has, or will be sent.
    pub(super) holds: IndexSet<Handle, FxBuildHasher>,
    /// Classes it serves.
    pub(super) classes: BTreeSet<Handle>,
    /// It is in the free lists of its classes.
    pub(super) free: bool,
    /// It gave something back: nothing new before its next heartbeat.
    pub(super) cooling: bool,
    /// Heartbeats in a row by which it has heard nothing from this owner.
    pub(super) unheard: u8,
    /// It speaks and does not hear: nothing new until it does.
    pub(super) deaf: bool,
    /// It does not do what it is asked to, and is to end.
    pub(super) revoked: bool,
    /// It was told that the lane has work for it.
    pub(super) demanded: bool,
    /// Number of its last heartbeat.
    pub(super) beat: u64,
    /// Attempts taken over that it must be sent again when it has room.
    pub(super) unsent: VecDeque<Handle>,
    /// Messages of this step.
    pub(super) outbox: Vec<ToWorker>,
}

impl Worker {
    pub(super) fn new(session: SessionId) -> Self {
        Self {
            session,
            descriptor: None,
            confirmed: false,
            last_k: DispatchNo(0),
            credit: DispatchNo(0),
            skipped: Vec::new(),
            load: 0,
            holds: IndexSet::default(),
            classes: BTreeSet::new(),
            free: false,
            cooling: false,
            unheard: 0,
            deaf: false,
            revoked: false,
            demanded: false,
            beat: 0,
            unsent: VecDeque::new(),
            outbox: Vec::new(),
        }
    }

    /// Dispatches that it still has room for.
    pub(super) fn room(&self) -> u64 {
        self.credit.0 - self.last_k.0
    }

    /// May be given tasks at all.
    pub(super) fn takes_work(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|d| !d.draining) && !self.revoked && !self.deaf
    }

    fn has_room(&self) -> bool {
        self.takes_work() && self.confirmed && !self.cooling && self.room() > 0 && self.unsent.is_empty()
    }

    /// Share of its capacity in use, in a form that compares well.
    fn load_share(&self) -> u64 {
        let capacity = self.descriptor.as_ref().map_or(1, |d| d.capacity.max(1));
        let mine = self.holds.len() as u64;
        u64::from(self.load).max(mine) * 10_000 / u64::from(capacity)
    }

    fn weight(&self) -> u64 {
        self.descriptor.as_ref().map_or(0, |d| u64::from(d.weight))
    }

    /// Rank for a hash bucket: by name, so that a worker keeps its buckets over a restart.
    fn rendezvous(&self, bucket: u16) -> u64 {
        let name = self.descriptor.as_ref().map_or("", |d| d.name.as_str());
        xxh3_64_with_seed(name.as_bytes(), u64::from(bucket))
    }
}

impl Lane {
    /// The worker of a session, made if it is new.
    pub(super) fn intern_worker(&mut self, session: SessionId) -> Handle {
        if let Some(&handle) = self.worker_by_session.get(&session) {
            return handle;
        }
        let handle = self.workers.insert(Worker::new(session));
        if self.loads.len() <= handle {
            self.loads.resize(handle + 1, Load::default());
        }
        self.loads[handle] = Load::default();
        self.worker_by_session.insert(session, handle);
        handle
    }

    /// Brings the load of a worker into step with what it holds.
    pub(super) fn refresh_load(&mut self, handle: Handle) {
        self.loads[handle] = self.loads[handle].with_share(self.workers[handle].load_share());
    }

    /// Puts a message into the batch that a worker gets at the end of the step.
    pub(super) fn tell(&mut self, worker: Handle, message: ToWorker) {
        if self.workers[worker].outbox.is_empty() {
            self.talkative.push(worker);
        }
        self.workers[worker].outbox.push(message);
    }

    /// Gives dispatch numbers back unused; said again until the worker knows.
    pub(super) fn skip(&mut self, worker: Handle, first: DispatchNo, last: DispatchNo) {
        self.workers[worker].skipped.push((first, last));
        self.tell(worker, ToWorker::Skip { first, last });
    }

    /// Brings the free lists of a worker's classes into step with the room it has.
    pub(super) fn refresh_worker(&mut self, handle: Handle) {
        let has_room = self.workers[handle].has_room();
        if has_room == self.workers[handle].free {
            return;
        }
        self.workers[handle].free = has_room;
        let classes = std::mem::take(&mut self.workers[handle].classes);
        for &class in &classes {
            self.set_free(class, handle, has_room);
        }
        self.workers[handle].classes = classes;
    }

    fn set_free(&mut self, class: Handle, worker: Handle, free: bool) {
        let list = &mut self.classes[class].free;
        let was_empty = list.is_empty();
        if free {
            list.push(worker);
        } else if let Some(at) = list.iter().position(|&w| w == worker) {
            list.swap_remove(at);
        }
        if was_empty != list.is_empty() {
            let queues: Vec<Handle> = self.classes[class].queues.iter().copied().collect();
            for queue in queues {
                self.refresh_open(queue, class);
            }
        }
    }

    /// The workers that may be given tasks of a class.
    pub(super) fn serving(&self, key: &ClassKey) -> Vec<Handle> {
        let able = |(_, w): &(usize, &Worker)| {
            w.takes_work() && w.descriptor.as_ref().is_some_and(|d| d.serves(&key.task_type, &key.labels))
        };
        let able: Vec<Handle> = self.workers.iter().filter(able).map(|(handle, _)| handle).collect();
        match key.pinned {
            // Ties are broken by session, so that every owner decides alike.
            Some(bucket) => {
                let rank = |&w: &Handle| (self.workers[w].rendezvous(bucket), self.workers[w].session);
                able.into_iter().max_by_key(rank).into_iter().collect()
            }
            None => able,
        }
    }

    /// Finds out who serves a class: at its birth, and when workers come, go or change.
    pub(super) fn serve_class(&mut self, class: Handle) {
        let serving = self.serving(&self.classes[class].key);
        let before = std::mem::replace(&mut self.classes[class].serving, serving.clone());
        for worker in before {
            if !serving.contains(&worker) {
                if let Some(w) = self.workers.get_mut(worker) {
                    w.classes.remove(&class);
                }
                self.set_free(class, worker, false);
            }
        }
        for worker in serving {
            if self.workers[worker].classes.insert(class) && self.workers[worker].free {
                self.set_free(class, worker, true);
            }
        }
    }

    /// Chooses among the workers of a class that have room.
    pub(super) fn choose(&mut self, class: Handle, strategy: Strategy, bucket: Option<u16>) -> Handle {
        let free = &self.classes[class].free;
        let workers = &self.workers;
        let chosen = match (strategy, bucket) {
            (Strategy::Random, _) => free.get(self.rng.index(free.len())).copied(),
            (Strategy::RoundRobin, _) => free.iter().copied().min_by_key(|&w| self.loads[w].used()),
            (Strategy::Weighted, _) => {
                let total: u64 = free.iter().map(|&w| workers[w].weight()).sum();
                let mut at = self.rng.below(total);
                free.iter().copied().find(|&w| {
                    let weight = workers[w].weight();
                    let found = at < weight;
                    at = at.saturating_sub(weight);
                    found
                })
            }
            (Strategy::ConsistentHash { when_full: WhenFull::Wait | WhenFull::Next }, Some(bucket)) => {
                free.iter().copied().max_by_key(|&w| (workers[w].rendezvous(bucket), workers[w].session))
            }
            (Strategy::LeastLoad | Strategy::ConsistentHash { .. }, _) => None,
        };
        let least = || free.iter().copied().min_by_key(|&w| self.loads[w]);
        let chosen = chosen.or_else(least).expect("a class is open only while a worker has room");
        self.uses += 1;
        self.loads[chosen] = self.loads[chosen].with_used(self.uses);
        chosen
    }
}

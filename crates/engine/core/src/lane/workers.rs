//! Workers as a lane sees them: their offers, their room for this lane, and the attempts of it that they
//! hold.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::{DispatchNo, SessionId};
use crate::invariant::Invariant;
use crate::member::WorkerDescriptor;
use crate::message::ToWorker;
use crate::policy::{Strategy, WhenFull};
use crate::time::{Shift, Timestamp};

use super::entry::Handle;
use super::lines::ClassKey;
use super::machine::{Lane, Timer};

/// The rank of a worker's load, in one number, because every assignment compares many: the share of its
/// capacity in use, and below that the order of last use, so that equals take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoadRank(u64);

impl LoadRank {
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

    fn share(self) -> u64 {
        self.0 >> Self::USED_BITS
    }
}

/// The state of a worker for a lane that has a task for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It can take nothing: it is leaving, has not answered this owner, or has just handed an attempt back.
    Unable,
    /// It has room.
    Free,
    /// It was asked for room; its answer is on its way.
    Asked,
    /// It may have room; the lane has not asked.
    Unasked,
    /// It was asked and has none. It raises the credit by itself when it has room.
    Full,
}

/// Workers asked at once for a single task; for more tasks, as many workers as tasks.
const ASKED_MIN: usize = 4;
/// The owner repeats an unanswered greeting after this long, then after twice as long, …
const GREET_AFTER: Duration = Duration::from_millis(20);
/// … up to here; after that a heartbeat of the worker does as well.
const GREET_AFTER_MAX: Duration = Duration::from_secs(1);
/// The highest demand for one worker.
const WANTED_MAX: usize = 1 << 14;
/// Queues that the demand counts, …
const QUEUES_COUNTED_MAX: usize = 256;
/// … and lines of each.
const LINES_COUNTED_MAX: usize = 256;

/// A worker session.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Worker {
    pub(super) session: SessionId,
    /// `None` while the worker is known only from an attempt in the store.
    pub(super) descriptor: Option<WorkerDescriptor>,
    /// Whether it has answered under this owner's epoch, so that its credit counts.
    pub(super) confirmed: bool,
    /// When it is greeted again if it has not answered until then, and how long that is after the last time.
    greet_again: Option<(Timestamp, Duration)>,
    /// The last dispatch number used.
    pub(super) last_k: DispatchNo,
    /// The highest dispatch number that may be used.
    pub(super) credit: DispatchNo,
    /// Skipped numbers that the worker has not confirmed.
    pub(super) skipped: Vec<(DispatchNo, DispatchNo)>,
    /// Attempts that it holds for other lanes, by its last message. Set to 0 when the lane asks the worker
    /// for room, so that an old figure sends no task elsewhere.
    pub(super) load: u32,
    /// Attempts of this lane that it holds, or will be sent.
    pub(super) holds: IndexSet<Handle, FxBuildHasher>,
    /// Classes it serves.
    pub(super) classes: BTreeSet<Handle>,
    /// Which list of its classes it is in.
    pub(super) readiness: Readiness,
    /// The highest dispatch number of the lane's demand; 0 if the lane has no demand there.
    pub(super) asked_for: DispatchNo,
    /// The time by which it must answer a demand for room. Until then, tasks wait for which it may be the
    /// best choice.
    pub(super) answer_by: Option<Timestamp>,
    /// It did not answer in time: no task waits for it before its next heartbeat.
    pub(super) slow: bool,
    /// It handed an attempt back: it gets no new task before its next heartbeat.
    pub(super) cooling: bool,
    /// Heartbeats in a row that name an earlier owner's epoch.
    pub(super) beats_of_old_epoch: u8,
    /// It sends and does not receive: it gets no new task until it does.
    pub(super) not_receiving: bool,
    /// It ignores its recalls or stops, and its session must end.
    pub(super) revoked: bool,
    /// Number of its last heartbeat.
    pub(super) beat: u64,
    /// Attempts taken over that the owner must send again when the worker has room.
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
            greet_again: None,
            last_k: DispatchNo(0),
            credit: DispatchNo(0),
            skipped: Vec::new(),
            load: 0,
            holds: IndexSet::default(),
            classes: BTreeSet::new(),
            readiness: Readiness::Unable,
            asked_for: DispatchNo(0),
            answer_by: None,
            slow: false,
            cooling: false,
            beats_of_old_epoch: 0,
            not_receiving: false,
            revoked: false,
            beat: 0,
            unsent: VecDeque::new(),
            outbox: Vec::new(),
        }
    }

    /// The clock has stepped.
    pub(super) fn move_by(&mut self, by: Shift) {
        self.answer_by = self.answer_by.map(|at| at + by);
        self.greet_again = self.greet_again.map(|(at, pause)| (at + by, pause));
    }

    /// Dispatches that it still has room for.
    pub(super) fn credit_left(&self) -> u64 {
        self.credit.0 - self.last_k.0
    }

    /// Whether it may get tasks at all.
    pub(super) fn takes_work(&self) -> bool {
        let offers = |d: &WorkerDescriptor| !d.draining && d.pause_reason.is_none();
        self.descriptor.as_ref().is_some_and(offers) && !self.revoked && !self.not_receiving
    }

    /// Whether it can get a task as soon as it has room.
    fn is_able(&self) -> bool {
        self.takes_work() && self.confirmed && !self.cooling && self.unsent.is_empty()
    }

    fn find_readiness(&self) -> Readiness {
        if !self.is_able() {
            Readiness::Unable
        } else if self.credit_left() > 0 {
            Readiness::Free
        } else if self.answer_by.is_some() {
            Readiness::Asked
        } else if self.asked_for > self.credit {
            Readiness::Full
        } else {
            Readiness::Unasked
        }
    }

    /// Share of its capacity in use, in a form that compares well.
    fn load_share(&self) -> u64 {
        let capacity = self.descriptor.as_ref().map_or(1, |d| d.capacity.max(1));
        let mine = self.holds.len() as u64;
        (u64::from(self.load) + mine) * 10_000 / u64::from(capacity)
    }

    /// Its gain with each choice, under strategies by which workers take turns.
    fn turn_weight(&self, strategy: Strategy) -> i64 {
        let weight = self.descriptor.as_ref().map_or(0, |d| i64::from(d.weight));
        if strategy == Strategy::Weighted { weight } else { 1 }
    }

    /// Rank for a hash bucket: by name, so that a worker keeps its buckets over a restart.
    fn rendezvous(&self, bucket: u16) -> u64 {
        let name = self.descriptor.as_ref().map_or("", |d| d.name.as_str());
        xxh3_64_with_seed(name.as_bytes(), u64::from(bucket))
    }
}

impl Lane {
    /// The worker of a session; created if it is new.
    pub(super) fn intern_worker(&mut self, session: SessionId) -> Handle {
        if let Some(&handle) = self.worker_by_session.get(&session) {
            return handle;
        }
        let handle = self.workers.insert(Worker::new(session));
        if self.loads.len() <= handle {
            self.loads.resize(handle + 1, LoadRank::default());
        }
        self.loads[handle] = LoadRank::default();
        self.worker_by_session.insert(session, handle);
        handle
    }

    /// Updates the load of a worker after a change of its attempts.
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

    /// Returns dispatch numbers unused; repeated until the worker confirms.
    pub(super) fn skip(&mut self, worker: Handle, first: DispatchNo, last: DispatchNo) {
        self.workers[worker].skipped.push((first, last));
        self.send_skip(worker, first, last);
    }

    /// A worker that receives a skip drops the demand of the lane, so the lane asks again when it needs to.
    pub(super) fn send_skip(&mut self, worker: Handle, first: DispatchNo, last: DispatchNo) {
        self.tell(worker, ToWorker::Skip { first, last });
        self.forget_demand(worker);
    }

    /// Updates the lists of a worker's classes after a change of the worker.
    pub(super) fn refresh_worker(&mut self, handle: Handle) {
        let readiness = self.workers[handle].find_readiness();
        let before = std::mem::replace(&mut self.workers[handle].readiness, readiness);
        if readiness == before {
            return;
        }
        let classes = std::mem::take(&mut self.workers[handle].classes);
        for &class in &classes {
            self.set_readiness(class, handle, before, readiness);
        }
        self.workers[handle].classes = classes;
    }

    /// Moves a worker between the lists of a class.
    fn set_readiness(&mut self, class: Handle, worker: Handle, before: Readiness, readiness: Readiness) {
        let c = &mut self.classes[class];
        let was_free = !c.free.is_empty();
        if let Some(list) = c.list(before)
            && let Some(at) = list.iter().position(|&w| w == worker)
        {
            list.swap_remove(at);
        }
        if let Some(list) = c.list(readiness) {
            list.push(worker);
        }
        let is_free = !c.free.is_empty();
        if readiness == Readiness::Unasked && !is_free && !c.queues.is_empty() {
            self.starved.insert(class);
        }
        if before == Readiness::Asked || matches!(readiness, Readiness::Free | Readiness::Unable) {
            self.choose_again(class);
        }
        if was_free != is_free {
            let queues: Vec<Handle> = self.classes[class].queues.iter().copied().collect();
            for queue in queues {
                self.refresh_open(queue, class);
            }
        }
    }

    /// A queue waits: the best worker for its next task of a class has not answered a demand for room.
    pub(super) fn wait_for_answer(&mut self, queue: Handle, class: Handle) {
        self.counters.choice_waited += 1;
        self.classes[class].waiting.insert(queue);
        self.queues[queue].waits_since.get_or_insert(self.now);
        self.refresh_open(queue, class);
    }

    /// An answer may decide a choice: queues that wait for it choose again.
    fn choose_again(&mut self, class: Handle) {
        for queue in std::mem::take(&mut self.classes[class].waiting) {
            if self.queues.contains(queue) {
                self.refresh_open(queue, class);
            }
        }
    }

    /// The load of a worker has changed, which may decide choices.
    pub(super) fn choose_again_for(&mut self, worker: Handle) {
        let classes = std::mem::take(&mut self.workers[worker].classes);
        for &class in &classes {
            self.choose_again(class);
        }
        self.workers[worker].classes = classes;
    }

    /// The workers that may get tasks of a class.
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

    /// The number of workers that could run tasks of a class if they did not pause, and the reason of one.
    pub(super) fn pausing(&self, key: &ClassKey) -> Option<(usize, String)> {
        let offers = |d: &&WorkerDescriptor| !d.draining && d.serves(&key.task_type, &key.labels);
        let descriptors = self.workers.iter().filter_map(|(_, w)| w.descriptor.as_ref()).filter(offers);
        let mut reasons = descriptors.filter_map(|d| d.pause_reason.as_ref());
        let reason = reasons.next()?;
        Some((1 + reasons.count(), reason.clone()))
    }

    /// Finds the workers of a class: when it is created, and when workers come, go or change.
    pub(super) fn serve_class(&mut self, class: Handle) {
        let serving = self.serving(&self.classes[class].key);
        let before = std::mem::replace(&mut self.classes[class].serving, serving.clone());
        for worker in before {
            if !serving.contains(&worker)
                && let Some(w) = self.workers.get_mut(worker)
            {
                w.classes.remove(&class);
                let readiness = w.readiness;
                self.set_readiness(class, worker, readiness, Readiness::Unable);
            }
        }
        for worker in serving {
            if self.workers[worker].classes.insert(class) {
                let readiness = self.workers[worker].readiness;
                self.set_readiness(class, worker, Readiness::Unable, readiness);
            }
        }
    }

    /// Asks workers of a class for room: all workers not asked yet, or the least loaded where workers are
    /// many more than tasks.
    pub(super) fn ask_class(&mut self, class: Handle) {
        let wanted = self.wanted(class);
        if wanted == 0 {
            return;
        }
        self.ask_workers(self.classes[class].unasked.clone(), wanted);
    }

    fn ask_workers(&mut self, mut workers: Vec<Handle>, wanted: usize) {
        let most = wanted.max(ASKED_MIN);
        if workers.len() > most {
            workers.sort_unstable_by_key(|&worker| self.loads[worker]);
            workers.truncate(most);
        }
        for worker in workers {
            self.ask_worker(worker, wanted, true);
        }
    }

    /// Asks a worker for room. Tasks for which it is the best choice wait for its answer, unless it was slow
    /// the last time.
    pub(super) fn ask_worker(&mut self, worker: Handle, wanted: usize, waits: bool) {
        let wanted = u32::try_from(wanted.min(WANTED_MAX)).unwrap_or(u32::MAX);
        let at = self.now + self.options.answer_within;
        let w = &mut self.workers[worker];
        let up_to = DispatchNo(w.last_k.0 + u64::from(wanted));
        w.asked_for = up_to;
        if waits && !w.slow && w.answer_by.is_none() {
            w.answer_by = Some(at);
            if w.credit_left() == 0 {
                w.load = 0;
            }
            self.timers.insert((at, Timer::Answer(worker)));
            self.refresh_load(worker);
        }
        self.tell(worker, ToWorker::Demand { wanted, up_to });
        self.refresh_worker(worker);
    }

    /// Makes the epoch known to a worker, so that credit comes without waiting for its heartbeat. The worker has just joined, or
    /// the owner has just loaded the lane, and the two may not be connected yet: a message that is sent too early is lost.
    pub(super) fn greet(&mut self, worker: Handle) {
        self.end_greeting(worker);
        self.greet_after(worker, GREET_AFTER);
    }

    /// A greeting has had its time. The worker may have answered.
    pub(super) fn on_greeting_due(&mut self, worker: Handle) {
        let Some((_, pause)) = self.workers[worker].greet_again.take() else { return };
        if !self.workers[worker].confirmed && pause < GREET_AFTER_MAX {
            self.greet_after(worker, pause * 2);
        }
    }

    fn greet_after(&mut self, worker: Handle, pause: Duration) {
        self.withdraw_demand(worker);
        let at = self.now + pause;
        self.workers[worker].greet_again = Some((at, pause));
        self.timers.insert((at, Timer::Greeting(worker)));
    }

    /// The owner waits no longer for the answer to a greeting.
    pub(super) fn end_greeting(&mut self, worker: Handle) {
        if let Some((at, _)) = self.workers[worker].greet_again.take() {
            self.timers.remove(&(at, Timer::Greeting(worker)));
        }
    }

    /// The lane has no work for an asked worker. The message also announces the owner's epoch.
    pub(super) fn withdraw_demand(&mut self, worker: Handle) {
        self.tell(worker, ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) });
        self.forget_demand(worker);
    }

    /// The worker no longer has a demand of this lane.
    fn forget_demand(&mut self, worker: Handle) {
        self.workers[worker].asked_for = DispatchNo(0);
        self.end_asking(worker);
        self.refresh_worker(worker);
    }

    /// Queues wait no longer for the answer of a worker.
    pub(super) fn end_asking(&mut self, worker: Handle) {
        if let Some(at) = self.workers[worker].answer_by.take() {
            self.timers.remove(&(at, Timer::Answer(worker)));
        }
    }

    /// A worker has answered a demand.
    pub(super) fn on_answer(&mut self, worker: Handle, answered: DispatchNo) {
        let w = &self.workers[worker];
        if w.answer_by.is_some() && answered.0 > 0 && answered >= w.asked_for {
            self.end_asking(worker);
            self.choose_again_for(worker);
        }
    }

    /// A worker has not answered in time.
    pub(super) fn on_no_answer(&mut self, worker: Handle) {
        self.counters.answer_late += 1;
        let w = &mut self.workers[worker];
        (w.answer_by, w.slow) = (None, true);
        self.refresh_worker(worker);
        self.choose_again_for(worker);
    }

    /// The approximate number of tasks of a class that could be assigned now, if there was room for all.
    pub(super) fn wanted(&self, class: Handle) -> usize {
        let queues = &self.classes[class].queues;
        let mut wanted = 0;
        for &queue in queues.iter().take(QUEUES_COUNTED_MAX) {
            let q = &self.queues[queue];
            if let Some(lines) = q.ready.get(&class).filter(|_| q.may_assign()) {
                let lines = lines.iter().take(LINES_COUNTED_MAX);
                let of_queue: usize = lines.map(|&(_, _, _, _, line)| self.assignable(line)).sum();
                // A line beyond the bound may have a task.
                wanted += of_queue.max(1).min(self.queue_slots(queue));
            }
            if wanted >= WANTED_MAX {
                break;
            }
        }
        wanted.max(usize::from(queues.len() > QUEUES_COUNTED_MAX))
    }

    /// Chooses a worker for the next task of a line, among all workers that have room or may have some.
    /// `None` while the best one has not answered a demand for room.
    pub(super) fn choose(&mut self, class: Handle, line: Handle) -> Option<Handle> {
        let queue = self.lines[line].queue;
        if self.asks_first(queue, class) {
            return None;
        }
        loop {
            let best = self.best(queue, class, line);
            match self.workers[best].readiness {
                Readiness::Asked => return None,
                Readiness::Unasked => {
                    self.ask_worker(best, self.wanted(class).max(1), true);
                    self.ask_class(class);
                }
                Readiness::Unable | Readiness::Free | Readiness::Full => {
                    self.take_turn(queue, class, best);
                    self.queues[queue].waits_since = None;
                    self.uses += 1;
                    self.loads[best] = self.loads[best].with_used(self.uses);
                    return Some(best);
                }
            }
        }
    }

    /// A burst onto idle workers that is larger than the credit at hand asks all of them before its first
    /// task is assigned. Otherwise the demand would reach workers that are busy starting the first tasks, and
    /// their answers would be late. True while a worker has not answered.
    fn asks_first(&mut self, queue: Handle, class: Handle) -> bool {
        let serving = &self.classes[class].serving;
        let holds = |&worker: &Handle| !self.workers[worker].holds.is_empty();
        if serving.len() < 2 || serving.iter().any(holds) || !self.may_wait(queue) {
            return false;
        }
        let wanted = self.wanted(class);
        let room: u64 =
            self.classes[class].free.iter().map(|&worker| self.workers[worker].credit_left()).sum();
        if wanted as u64 <= room {
            return false;
        }
        let is_unasked = |&worker: &Handle| {
            let w = &self.workers[worker];
            w.is_able() && w.asked_for <= w.credit && w.credit_left() < wanted as u64
        };
        let unasked = serving.iter().copied().filter(is_unasked).collect();
        self.ask_workers(unasked, wanted);
        let awaited =
            |&worker: &Handle| self.workers[worker].is_able() && self.workers[worker].answer_by.is_some();
        self.classes[class].serving.iter().any(awaited)
    }

    /// Whether a queue may wait for answers: not after it has waited for long enough.
    fn may_wait(&self, queue: Handle) -> bool {
        let since = self.queues[queue].waits_since;
        since.is_none_or(|since| self.now < since + self.options.answer_within)
            && self.options.invariants.on(Invariant::ChoiceWaitsForAnswers)
    }

    /// Workers to choose among. A queue that may not wait takes any worker with room.
    fn candidates(&self, queue: Handle, class: Handle) -> impl Iterator<Item = Handle> {
        let others = self.may_wait(queue).then(|| {
            let class = &self.classes[class];
            class.asked.iter().chain(&class.unasked)
        });
        self.classes[class].free.iter().chain(others.into_iter().flatten()).copied()
    }

    /// The best worker by the strategy of a queue.
    fn best(&mut self, queue: Handle, class: Handle, line: Handle) -> Handle {
        let strategy = self.queues[queue].policy.policy.strategy;
        let bucket = self.lines[line].head.hash_bucket;
        let chosen = match (strategy, bucket) {
            (Strategy::Random, _) => {
                let count = self.candidates(queue, class).count();
                let at = self.rng.index(count);
                self.candidates(queue, class).nth(at)
            }
            (Strategy::RoundRobin | Strategy::Weighted, _) => {
                let turns = &self.queues[queue].turns;
                let turn = |&w: &Handle| {
                    let owed = turns.get(w).copied().unwrap_or(0);
                    (owed + self.workers[w].turn_weight(strategy), Reverse(self.loads[w].used()))
                };
                let has_weight = |&w: &Handle| self.workers[w].turn_weight(strategy) > 0;
                self.candidates(queue, class).filter(has_weight).max_by_key(turn)
            }
            (Strategy::ConsistentHash { when_full: WhenFull::Wait | WhenFull::Next }, Some(bucket)) => {
                let rank = |&w: &Handle| (self.workers[w].rendezvous(bucket), self.workers[w].session);
                self.candidates(queue, class).max_by_key(rank)
            }
            (Strategy::LeastLoad | Strategy::ConsistentHash { .. }, _) => None,
        };
        chosen.unwrap_or_else(|| self.least_loaded(queue, class))
    }

    fn least_loaded(&self, queue: Handle, class: Handle) -> Handle {
        let free = &self.classes[class].free;
        let best = free.iter().copied().min_by_key(|&w| self.loads[w]);
        let best = best.expect("a class is open only while a worker has room");
        // A task waits only for a worker with less to do.
        let is_better = |&w: &Handle| self.loads[w].share() < self.loads[best].share();
        let others = self.candidates(queue, class).skip(free.len());
        others.filter(is_better).min_by_key(|&w| self.loads[w]).unwrap_or(best)
    }

    /// Smooth weighted round robin: each worker gains its weight with each choice, and the chosen one pays
    /// for all of them. So no worker is ever ahead of its share by a whole task.
    fn take_turn(&mut self, queue: Handle, class: Handle, chosen: Handle) {
        let strategy = self.queues[queue].policy.policy.strategy;
        if !matches!(strategy, Strategy::RoundRobin | Strategy::Weighted) {
            return;
        }
        let mut turns = std::mem::take(&mut self.queues[queue].turns);
        if turns.len() < self.loads.len() {
            turns.resize(self.loads.len(), 0);
        }
        let mut all = 0;
        for worker in self.candidates(queue, class) {
            let weight = self.workers[worker].turn_weight(strategy);
            turns[worker] += weight;
            all += weight;
        }
        turns[chosen] -= all;
        self.queues[queue].turns = turns;
    }
}

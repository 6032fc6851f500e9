//! Queues, lines and classes: the waiting tasks, and the lines that can be assigned.
//!
//! ```text
//! queue ── ready: class ─► lines that may run, best first
//!       └─ open:  the best line of each class that has a worker with room, best first
//! active: queues with an open class, by their turn (stride scheduling by weight)
//! ```
//! The next task is the first of each of these sets; lines that cannot run are in none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::id::{LimitId, LineKey, Name, QueueKey, Seq};
use crate::policy::{Strategy, VersionedPolicy, WhenFull};
use crate::task::{OrderKey, OwnLimit, TaskHead};
use crate::time::Timestamp;

use super::entry::{Handle, Spot};
use super::limits::{LimitKey, Rules};
use super::machine::{Lane, Timer};
use super::turn_length::TurnLength;
use super::window::Window;
use super::workers::Readiness;

/// Order of a queue's lines: priority, then the turn, then due time and arrival.
pub(super) type ReadyKey = (u8, Turn, Timestamp, Seq, Handle);

/// A round, and within it the order in which lines had their last turn.
pub(super) type Turn = (u64, u64);

/// A queue, as far as it has tasks in memory.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) key: QueueKey,
    pub(super) policy: VersionedPolicy,
    pub(super) ready: BTreeMap<Handle, BTreeSet<ReadyKey>>,
    pub(super) open: BTreeSet<(ReadyKey, Handle)>,
    /// The key in `open` for each class.
    pub(super) open_key: BTreeMap<Handle, ReadyKey>,
    /// Virtual time of the stride scheduler.
    pub(super) pass: u64,
    pub(super) active: bool,
    /// The limits of its policy.
    pub(super) rules: Rules,
    /// State of the limit over the whole queue, if there is one.
    pub(super) whole: Option<Handle>,
    /// Tasks in the windows of its lines.
    pub(super) waiting: usize,
    /// No assignment before this time: a rate over the whole queue.
    pub(super) rate_until: Option<Timestamp>,
    /// A limit over the whole queue is reached.
    pub(super) full: bool,
    /// How fast its attempts end, which decides how long a turn is.
    pub(super) turn_length: TurnLength,
    /// The last turn that a line had: its round, and how many there were.
    pub(super) turn: Turn,
    /// Lines take turns: some of them have flow keys.
    pub(super) fair: bool,
    /// The balance of each worker, by its handle, under strategies by which workers take turns.
    pub(super) turns: Vec<i64>,
    /// The time since which its next task waits for answers of workers.
    pub(super) waits_since: Option<Timestamp>,
}

/// Tasks that are blocked together or not at all.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) key: LineKey,
    pub(super) queue: Handle,
    pub(super) class: Handle,
    /// Of one of its tasks; the parts that make up the line are the same in all.
    pub(super) head: Arc<TaskHead>,
    pub(super) window: Window,
    /// Everything ready up to here is in the window.
    pub(super) bound: Option<OrderKey>,
    /// The store may hold more, after the bound.
    pub(super) more: bool,
    /// The first position behind the bound that was left to the store, or dropped, while a page was under
    /// way: the page may lack it.
    pub(super) missed: Option<Box<OrderKey>>,
    pub(super) reading: bool,
    pub(super) turn: Turn,
    /// Tasks taken in this turn.
    pub(super) taken: u32,
    pub(super) limits: SmallVec<[Handle; 2]>,
    /// A limit by key is reached.
    pub(super) parked: bool,
    /// A rate by key allows nothing before this time.
    pub(super) rate_until: Option<Timestamp>,
    /// Where it is in its queue's ready set.
    pub(super) ready: Option<ReadyKey>,
    /// Entries in memory that belong to it.
    pub(super) entries: u32,
}

impl Queue {
    /// Neither paused nor at a limit or rate of the whole queue.
    pub(super) fn may_assign(&self) -> bool {
        !self.policy.policy.paused && !self.full && self.rate_until.is_none()
    }
}

impl Line {
    /// A task is left to the store, and a page under way may lack it.
    pub(super) fn miss(&mut self, order: OrderKey) {
        if self.reading {
            let order = settled(order);
            let missed = self.missed.as_deref().map_or(order, |missed| order.min(*missed));
            self.missed = Some(Box::new(missed));
        }
    }

    /// The next page is due: the window is short, or its first task lies behind the bound.
    pub(super) fn needs_refill(&self, window: usize) -> bool {
        let first = self.window.first().map(|(order, _)| order);
        let behind = first.is_some_and(|first| self.bound.is_none_or(|bound| first > bound));
        self.more && !self.reading && (self.window.len() <= window / 4 || behind)
    }
}

/// The offer that a worker needs. Lines of one class are blocked together while no such worker has room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassKey {
    pub(super) task_type: Name,
    pub(super) labels: BTreeMap<String, String>,
    /// Tasks of this hash bucket wait for their one worker.
    pub(super) pinned: Option<u16>,
}

impl ClassKey {
    /// The class of a task under its queue's strategy.
    fn of(head: &TaskHead, strategy: Strategy) -> Self {
        let waits = Strategy::ConsistentHash { when_full: WhenFull::Wait };
        let pinned = if strategy == waits { head.hash_bucket } else { None };
        Self { task_type: head.executor().clone(), labels: head.labels.clone(), pinned }
    }
}

/// The state of one class.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) key: ClassKey,
    /// Workers that could be given such tasks.
    pub(super) serving: Vec<Handle>,
    /// Workers of `serving` with room, …
    pub(super) free: Vec<Handle>,
    /// … workers that were asked for room and have not answered, …
    pub(super) asked: Vec<Handle>,
    /// … and workers that may have room and were not asked.
    pub(super) unasked: Vec<Handle>,
    /// Queues whose next task waits for the answer of a worker.
    pub(super) waiting: BTreeSet<Handle>,
    /// Queues with ready lines of it.
    pub(super) queues: BTreeSet<Handle>,
    /// Lines that need it.
    pub(super) lines: usize,
}

impl Class {
    /// The list of workers with this readiness.
    pub(super) fn list(&mut self, readiness: Readiness) -> Option<&mut Vec<Handle>> {
        match readiness {
            Readiness::Free => Some(&mut self.free),
            Readiness::Asked => Some(&mut self.asked),
            Readiness::Unasked => Some(&mut self.unasked),
            Readiness::Unable | Readiness::Full => None,
        }
    }
}

/// A task that is not committed has a provisional arrival number, above all real ones. A bound made from it
/// would cover too much; a bound before all tasks with the same due time does not.
pub(super) fn settled(order: OrderKey) -> OrderKey {
    if order.seq.0 >= PROVISIONAL_SEQ { OrderKey { seq: Seq(0), ..order } } else { order }
}

/// The last position before this one.
pub(super) fn before(order: OrderKey) -> OrderKey {
    match order.seq.0 {
        0 => OrderKey { due: order.due - Duration::from_micros(1), seq: Seq(u64::MAX), ..order },
        seq => OrderKey { seq: Seq(seq - 1), ..order },
    }
}

/// Provisional arrival numbers begin here.
pub(super) const PROVISIONAL_SEQ: u64 = 1 << 62;

/// Steps of the stride scheduler for weight 1.
const STRIDE: u64 = 1 << 20;

impl Lane {
    /// The queue with this key; created if it is new.
    pub(super) fn intern_queue(&mut self, key: &QueueKey) -> Handle {
        if let Some(&handle) = self.queue_by_key.get(key) {
            return handle;
        }
        let policy = self.policies.get(key).cloned().unwrap_or_default();
        let handle = self.queues.insert(Queue {
            key: key.clone(),
            rules: Rules::of(&policy.policy),
            policy,
            ready: BTreeMap::new(),
            open: BTreeSet::new(),
            open_key: BTreeMap::new(),
            pass: self.pass,
            active: false,
            whole: None,
            waiting: 0,
            rate_until: None,
            full: false,
            turn_length: TurnLength::new(self.now),
            turn: (0, 0),
            fair: false,
            turns: Vec::new(),
            waits_since: None,
        });
        self.queue_by_key.insert(key.clone(), handle);
        self.bind_whole(handle);
        handle
    }

    /// Looks up the state of the limit over the whole queue.
    pub(super) fn bind_whole(&mut self, queue: Handle) {
        let limited = self.queues[queue].rules.find(LimitId::QUEUE).is_some();
        let state = limited.then(|| self.limits.intern(LimitKey::whole(queue)));
        let before = std::mem::replace(&mut self.queues[queue].whole, state);
        if let Some(state) = state {
            self.limits.get_mut(state).bound = true;
        } else if let Some(before) = before {
            self.limits.get_mut(before).bound = false;
            self.limits.drop_if_idle(before);
        }
    }

    /// The line of such a task; created if it is new. `None` when there are too many lines in memory and
    /// `must` is false: the task is left in the store.
    pub(super) fn intern_line(&mut self, head: &Arc<TaskHead>, must: bool) -> Option<Handle> {
        let key = head.line();
        if let Some(&handle) = self.line_by_key.get(&key) {
            return Some(handle);
        }
        if !must && self.lines_are_full() {
            self.counters.line_left_in_store += 1;
            self.lines_more = true;
            self.lines_missed = true;
            return None;
        }
        let queue = self.intern_queue(&head.queue);
        let class = self.intern_class(self.class_key(queue, head));
        self.classes[class].lines += 1;
        let keys = head.flow.iter().map(|flow| LimitKey::of(queue, flow));
        let limits: SmallVec<[Handle; 2]> = keys.map(|key| self.limits.intern(key)).collect();
        self.settle_own_rates(head, &limits);
        let head = self.share_names(head, queue, class);
        let (round, count) = self.queues[queue].turn;
        let turn = (self.limits.next_round(limits.first().copied(), round), count);
        self.queues[queue].fair |= !head.flow.is_empty();
        let handle = self.lines.insert(Line {
            key,
            queue,
            class,
            head,
            window: Window::Empty,
            bound: None,
            more: false,
            missed: None,
            reading: false,
            turn,
            taken: 0,
            limits: limits.clone(),
            parked: false,
            rate_until: None,
            ready: None,
            entries: 0,
        });
        for limit in limits {
            self.limits.add_line(limit, handle);
        }
        // Tasks of an unknown line may have been left in the store before.
        self.lines[handle].more = self.lines_more || !self.lines_loaded;
        self.line_by_key.insert(key, handle);
        self.share_window();
        self.want_refill(handle);
        Some(handle)
    }

    /// The same head, sharing the names and keys that memory has already.
    fn share_names(&self, head: &TaskHead, queue: Handle, class: Handle) -> Arc<TaskHead> {
        let class = &self.classes[class].key;
        let mut head = TaskHead { queue: self.queues[queue].key.clone(), ..head.clone() };
        match &mut head.runs_as {
            Some(runs_as) => runs_as.clone_from(&class.task_type),
            None => head.task_type.clone_from(&class.task_type),
        }
        Arc::new(head)
    }

    /// Cuts stored times that are impossible under the rates that tasks bring along, as for the rates of
    /// policies.
    fn settle_own_rates(&mut self, head: &TaskHead, limits: &[Handle]) {
        for (flow, &limit) in head.flow.iter().zip(limits) {
            if let Some(OwnLimit::Rate(rate)) = flow.own {
                let state = self.limits.get_mut(limit);
                state.rate = state.rate.map(|stored| rate.settle(stored, self.now));
            }
        }
    }

    /// Forgets a line that has nothing in memory and nothing in the store.
    pub(super) fn drop_line_if_empty(&mut self, handle: Handle) {
        let line = &self.lines[handle];
        if line.entries > 0 || line.more || line.reading {
            return;
        }
        self.forget_line(handle);
    }

    /// Forgets a line without entries.
    pub(super) fn forget_line(&mut self, handle: Handle) {
        self.unready(handle);
        let line = self.lines.remove(handle);
        assert!(line.entries == 0 && !line.reading, "a line is forgotten only when nothing refers to it");
        self.line_by_key.swap_remove(&line.key);
        self.share_window();
        if let Some(at) = line.rate_until {
            self.timers.remove(&(at, Timer::LineRate(handle)));
        }
        for limit in line.limits {
            self.limits.remove_line(limit, handle);
        }
        self.classes[line.class].lines -= 1;
        if self.classes[line.class].lines == 0 {
            self.forget_class(line.class);
        }
    }

    fn class_key(&self, queue: Handle, head: &TaskHead) -> ClassKey {
        ClassKey::of(head, self.queues[queue].policy.policy.strategy)
    }

    /// The class of a task. Its queue need not be in memory.
    pub(super) fn class_of(&self, head: &TaskHead) -> ClassKey {
        let policy = self.policies.get(&head.queue).map(|versioned| &versioned.policy);
        ClassKey::of(head, policy.map_or_else(Strategy::default, |policy| policy.strategy))
    }

    fn intern_class(&mut self, key: ClassKey) -> Handle {
        if let Some(&handle) = self.class_by_key.get(&key) {
            return handle;
        }
        let class = Class {
            key: key.clone(),
            serving: Vec::new(),
            free: Vec::new(),
            asked: Vec::new(),
            unasked: Vec::new(),
            waiting: BTreeSet::new(),
            queues: BTreeSet::new(),
            lines: 0,
        };
        let handle = self.classes.insert(class);
        self.class_by_key.insert(key, handle);
        self.serve_class(handle);
        handle
    }

    fn forget_class(&mut self, handle: Handle) {
        let class = self.classes.remove(handle);
        self.class_by_key.remove(&class.key);
        for worker in class.serving {
            self.workers[worker].classes.remove(&handle);
        }
    }

    /// Moves the lines of a queue to the classes of its strategy.
    pub(super) fn reclass_queue(&mut self, queue: Handle) {
        let lines: Vec<Handle> =
            self.lines.iter().filter(|(_, l)| l.queue == queue).map(|(h, _)| h).collect();
        for line in lines {
            let head = self.lines[line].head.clone();
            let class = self.intern_class(self.class_key(queue, &head));
            let old = self.lines[line].class;
            if old != class {
                self.unready(line);
                self.lines[line].class = class;
                self.classes[class].lines += 1;
                self.classes[old].lines -= 1;
                if self.classes[old].lines == 0 {
                    self.forget_class(old);
                }
                self.refresh_line(line);
            }
        }
    }

    /// Puts a waiting entry into the window of its line.
    pub(super) fn place_in_line(&mut self, entry: Handle) {
        let order = self.entries[entry].order();
        let line = self.entries[entry].line;
        self.entries[entry].spot = Spot::Window;
        self.lines[line].window.insert(order, entry);
        self.count_waiting(line, 1);
        self.arm_start_by(entry);
        self.evict(line);
        self.refresh_line(line);
        self.want_refill(line);
        self.cancel_newest(line, Some(entry).filter(|&entry| self.entries.contains(entry)));
    }

    /// Counts tasks put into windows, or taken out of them.
    pub(super) fn count_waiting(&mut self, line: Handle, change: isize) {
        self.waiting = self.waiting.strict_add_signed(change);
        let queue = &mut self.queues[self.lines[line].queue];
        queue.waiting = queue.waiting.strict_add_signed(change);
    }

    /// Drops the end of a window that is too long; unwritten entries stay until they are written.
    pub(super) fn evict(&mut self, line: Handle) {
        if self.lines[line].window.len() > 2 * self.window && !self.cancels_newest(line) {
            self.cut_window(line);
        }
    }

    /// Cuts a window to its share.
    pub(super) fn cut_window(&mut self, line: Handle) {
        while self.lines[line].window.len() > self.window {
            let (order, entry) = self.lines[line].window.last().expect("the window is not empty");
            if !self.entries[entry].is_clean() || self.entries[entry].state.delayed {
                break;
            }
            self.lines[line].window.remove(&order);
            self.count_waiting(line, -1);
            self.entries[entry].spot = Spot::Nowhere;
            self.counters.window_evicted += 1;
            self.lines[line].more = true;
            self.lines[line].miss(order);
            self.forget_entry(entry);
            let last = self.lines[line].window.last().map(|(order, _)| settled(order));
            let bound = self.lines[line].bound;
            self.lines[line].bound = match (bound, last) {
                (Some(bound), Some(last)) => Some(bound.min(last)),
                (_, last) => last,
            };
        }
        self.refresh_line(line);
        self.want_refill(line);
    }

    /// Takes an entry out of the window of its line.
    pub(super) fn take_from_line(&mut self, entry: Handle) {
        let order = self.entries[entry].order();
        let line = self.entries[entry].line;
        self.lines[line].window.remove(&order);
        self.count_waiting(line, -1);
        self.entries[entry].spot = Spot::Nowhere;
        self.refresh_line(line);
        self.want_refill(line);
    }

    /// Notes that a line's window is getting short.
    pub(super) fn want_refill(&mut self, handle: Handle) {
        if self.wants_refill(handle) {
            self.refill.insert(handle);
        }
    }

    /// Whether the next page of a line is due. Where a limit cancels, the owner reads the whole line to judge
    /// it.
    pub(super) fn wants_refill(&self, handle: Handle) -> bool {
        let line = &self.lines[handle];
        line.needs_refill(self.window) || (line.more && !line.reading && self.cancels_newest(handle))
    }

    /// Brings the ready set of a line's queue into step with the line.
    pub(super) fn refresh_line(&mut self, handle: Handle) {
        let line = &self.lines[handle];
        let first = line.window.first().map(|(order, _)| order);
        let may_run = !line.parked && line.rate_until.is_none();
        let wanted = first
            .filter(|&order| may_run && (!line.more || line.bound.is_some_and(|bound| order <= bound)))
            .map(|order| {
                let turn = if self.queues[line.queue].fair { line.turn } else { (0, 0) };
                (order.rank, turn, order.due, order.seq, handle)
            });
        if wanted == line.ready {
            return;
        }
        let Some(key) = wanted else { return self.unready(handle) };
        let (queue, class) = (line.queue, line.class);
        // Most lines go on with their next task: the sets around them stay as they are.
        let before = self.lines[handle].ready.replace(key);
        let lines = self.queues[queue].ready.entry(class).or_default();
        lines.insert(key);
        match before {
            Some(before) => {
                lines.remove(&before);
            }
            None => {
                self.classes[class].queues.insert(queue);
            }
        }
        self.refresh_open(queue, class);
    }

    fn unready(&mut self, handle: Handle) {
        let Some(key) = self.lines[handle].ready.take() else { return };
        let (queue, class) = (self.lines[handle].queue, self.lines[handle].class);
        let lines = self.queues[queue].ready.get_mut(&class).expect("a ready line is in its queue's set");
        lines.remove(&key);
        if lines.is_empty() {
            self.queues[queue].ready.remove(&class);
            self.classes[class].queues.remove(&queue);
        }
        self.refresh_open(queue, class);
    }

    /// Brings the open set of a queue into step with one class.
    pub(super) fn refresh_open(&mut self, queue: Handle, class: Handle) {
        let c = &self.classes[class];
        let has_room = !c.free.is_empty() && !c.waiting.contains(&queue);
        let q = &mut self.queues[queue];
        if !has_room && q.ready.contains_key(&class) {
            self.starved.insert(class);
        }
        let wanted =
            if has_room { q.ready.get(&class).and_then(|lines| lines.first().copied()) } else { None };
        let found = q.open_key.get(&class).copied();
        if wanted == found {
            return;
        }
        if let Some(key) = found {
            q.open.remove(&(key, class));
            q.open_key.remove(&class);
        }
        if let Some(key) = wanted {
            q.open.insert((key, class));
            q.open_key.insert(class, key);
        }
        self.refresh_active(queue);
    }

    /// Brings the set of active queues into step with one queue.
    pub(super) fn refresh_active(&mut self, handle: Handle) {
        let q = &mut self.queues[handle];
        let wanted = !q.open.is_empty() && q.may_assign();
        if wanted == q.active {
            return;
        }
        q.active = wanted;
        if wanted {
            // A queue that was inactive does not get its missed turns.
            q.pass = q.pass.max(self.pass);
            self.active.insert((q.pass, handle));
        } else {
            self.active.remove(&(q.pass, handle));
        }
    }

    /// The queue had its turn.
    pub(super) fn advance_pass(&mut self, handle: Handle) {
        let q = &mut self.queues[handle];
        self.pass = q.pass;
        // Also for a queue that has just become inactive: it may have taken the last room there was.
        let before = q.pass;
        q.pass += STRIDE / u64::from(q.policy.policy.weight.max(1));
        if q.active {
            self.active.remove(&(before, handle));
            self.active.insert((q.pass, handle));
        }
    }

    /// Wakes the lines parked at a limit.
    pub(super) fn wake_parked(&mut self, limit: Handle) {
        if !std::mem::take(&mut self.limits.get_mut(limit).parked) {
            return;
        }
        let lines = self.limits.get(limit).lines.clone();
        for line in lines {
            if std::mem::take(&mut self.lines[line].parked) {
                self.refresh_line(line);
            }
        }
    }
}

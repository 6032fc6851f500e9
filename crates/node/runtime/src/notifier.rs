//! The in-process notifications of a server: a task changed, output arrived, an event for the stream.
//!
//! They save time and guarantee nothing: every waiting caller also reads the store periodically.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tasklane_core::id::{LaneId, SessionId, TaskId};
use tasklane_core::message::{EventBatch, EventPlace, TaskEvent};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// See the [module](self).
#[derive(Debug)]
pub struct Notifier {
    /// Marks the events of this process, so that it can drop its own when they return.
    origin: SessionId,
    state: Mutex<NotifierState>,
    /// Number of the last event.
    last: watch::Sender<u64>,
    /// Whether a client of this process wants the events of other servers.
    wanted: watch::Sender<bool>,
    /// Completions of watched tasks, for the loop that handles them.
    completions: Mutex<Vec<TaskId>>,
    has_completions: Notify,
}

#[derive(Debug, Default)]
struct NotifierState {
    /// Followed tasks.
    followed: HashMap<TaskId, FollowedTask>,
    /// The last events; the first one has number `last - len + 1`.
    ring: VecDeque<RingItem>,
    /// The last place of each lane.
    places: BTreeMap<LaneId, EventPlace>,
}

#[derive(Clone, Debug)]
enum RingItem {
    Event(TaskEvent),
    /// Events may be missing here.
    Gap,
}

#[derive(Debug, Default)]
struct FollowedTask {
    signals: Arc<TaskSignals>,
    followers: usize,
}

/// The signals for followers of a task.
#[derive(Debug, Default)]
struct TaskSignals {
    changed: Notify,
    finished: AtomicBool,
    /// An event may have been missed: read the store now.
    missed: AtomicBool,
    /// Wakes the driver of its children.
    driver: Notify,
    /// Children that have ended, for the driver.
    ended: Mutex<Option<Vec<TaskId>>>,
}

/// Events that are kept for streams that resume.
const RING_LEN_MAX: usize = 16_384;
/// Events returned together.
const BATCH: usize = 256;

/// Place of an event in the stream of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    origin: SessionId,
    number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.origin.0.simple(), self.number)
    }
}

impl FromStr for EventId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "is not an event id of this API";
        let (origin, number) = text.split_once('.').ok_or(wrong)?;
        Ok(Self { origin: origin.parse().map_err(|_| wrong)?, number: number.parse().map_err(|_| wrong)? })
    }
}

/// An item in the stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// A task changed.
    Event(EventId, TaskEvent),
    /// Some events are missing here: read the state that you need again.
    Gap(EventId),
}

impl Default for Notifier {
    fn default() -> Self {
        Self {
            origin: SessionId::from_random(rand::random()),
            state: Mutex::default(),
            last: watch::Sender::new(0),
            wanted: watch::Sender::new(false),
            completions: Mutex::default(),
            has_completions: Notify::new(),
        }
    }
}

impl Notifier {
    /// Notifies about durable changes of tasks.
    pub fn changed(&self, events: &[TaskEvent]) {
        let mut state = self.lock();
        if !state.followed.is_empty() {
            for event in events {
                state.wake(event.task, event.status.is_final());
                if let Some(composite) = event.composite.filter(|_| event.status.is_final()) {
                    state.wake_composite(composite, event.task);
                }
            }
        }
        state.ring.extend(events.iter().map(|event| RingItem::Event(event.clone())));
        self.published(state, events.len());
    }

    /// Publishes events of this process here. Returns the batch in which they are forwarded to other servers.
    pub(crate) fn publish(&self, place: Option<EventPlace>, events: Vec<TaskEvent>) -> EventBatch {
        let batch = EventBatch { origin: self.origin, place, events };
        self.take(&batch);
        batch
    }

    /// Receives events of another server. The process also receives its own batches and drops them.
    pub(crate) fn receive(&self, batch: &EventBatch) {
        if batch.origin != self.origin {
            self.take(batch);
        }
    }

    fn take(&self, batch: &EventBatch) {
        let is_late = batch.place.is_some_and(|place| self.lock().is_late(place));
        if !is_late {
            return self.changed(&batch.events);
        }
        // A final status is never outdated; any other one is superseded by the later event.
        let is_final = |event: &&TaskEvent| event.status.is_final();
        let events: Vec<TaskEvent> = batch.events.iter().filter(is_final).cloned().collect();
        self.changed(&events);
        if events.len() < batch.events.len() {
            self.gap();
        }
    }

    /// Adds completions of watched tasks. If this process dies before they are handled, the lane's next owner
    /// reports them again.
    pub(crate) fn add_completions(&self, tasks: Vec<TaskId>) {
        self.completions.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
        self.has_completions.notify_one();
    }

    /// Waits for completions of watched tasks and takes some of them, each only once.
    pub(crate) async fn next_completions(&self, limit: usize) -> Vec<TaskId> {
        loop {
            let notified = self.has_completions.notified();
            {
                let mut ended = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
                let count = limit.min(ended.len());
                let rest = ended.split_off(count);
                let taken = std::mem::replace(&mut *ended, rest);
                if !taken.is_empty() {
                    return taken;
                }
            }
            notified.await;
        }
    }

    /// Events may have been missed: the owner of a lane changed without a clean handover.
    pub fn gap(&self) {
        let mut state = self.lock();
        state.ring.push_back(RingItem::Gap);
        self.published(state, 1);
    }

    fn published(&self, mut state: MutexGuard<'_, NotifierState>, count: usize) {
        let surplus = state.ring.len().saturating_sub(RING_LEN_MAX);
        state.ring.drain(..surplus);
        self.last.send_modify(|last| *last += count as u64);
    }

    /// Returns when a client here wants changes (`true`), or none does any more.
    pub(crate) async fn until_wanted(&self, wanted: bool) {
        let mut wants = self.wanted.subscribe();
        // The sender belongs to this notifier.
        let _ = wants.wait_for(|now| *now == wanted).await;
    }

    /// From now on events of other servers are received; earlier ones were missed.
    pub(crate) fn resume(&self) {
        let state = self.lock();
        for FollowedTask { signals, .. } in state.followed.values() {
            signals.missed.store(true, Ordering::Release);
            signals.changed.notify_waiters();
            signals.changed.notify_one();
            signals.driver.notify_one();
        }
        drop(state);
        self.gap();
    }

    fn update_wanted(&self, state: &NotifierState) {
        let wanted = !state.followed.is_empty() || self.last.receiver_count() > 0;
        self.wanted.send_if_modified(|was| std::mem::replace(was, wanted) != wanted);
    }

    /// There may be more output of these tasks.
    pub fn output(&self, tasks: impl Iterator<Item = TaskId>) {
        let state = self.lock();
        if !state.followed.is_empty() {
            tasks.for_each(|task| state.wake(task, false));
        }
    }

    /// Waits for changes of a task, from now on.
    pub fn follow(self: &Arc<Self>, task: TaskId) -> TaskFollower {
        let mut state = self.lock();
        let followed = state.followed.entry(task).or_default();
        followed.followers += 1;
        let signals = Arc::clone(&followed.signals);
        self.update_wanted(&state);
        drop(state);
        TaskFollower { notifier: Arc::clone(self), task, signals }
    }

    /// Follows all events after one, or from now on.
    pub fn events(self: &Arc<Self>, after: Option<EventId>) -> EventStream {
        let last = self.last.subscribe();
        self.update_wanted(&self.lock());
        let now = *last.borrow();
        let (next, gap) = match after {
            None => (now + 1, false),
            Some(after) if after.origin == self.origin && after.number <= now => (after.number + 1, false),
            Some(_) => (now + 1, true),
        };
        EventStream { notifier: Arc::clone(self), last: Some(last), next, gap, ready: VecDeque::new() }
    }

    fn lock(&self) -> MutexGuard<'_, NotifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NotifierState {
    /// Whether a later event of the lane was published before; if not, this is the last now.
    fn is_late(&mut self, place: EventPlace) -> bool {
        let last = self.places.entry(place.lane).or_insert(place);
        let is_late = place < *last;
        *last = place.max(*last);
        is_late
    }

    fn wake(&self, task: TaskId, finished: bool) {
        if let Some(FollowedTask { signals, .. }) = self.followed.get(&task) {
            signals.finished.fetch_or(finished, Ordering::Release);
            // Kept for a driver that is not waiting at this moment.
            signals.changed.notify_waiters();
            signals.changed.notify_one();
            signals.driver.notify_one();
        }
    }

    fn wake_composite(&self, composite: TaskId, child: TaskId) {
        let Some(FollowedTask { signals, .. }) = self.followed.get(&composite) else { return };
        if let Some(ended) = signals.ended().as_mut() {
            ended.push(child);
            signals.driver.notify_one();
        }
    }
}

impl TaskSignals {
    fn ended(&self) -> MutexGuard<'_, Option<Vec<TaskId>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for changes of one task.
#[derive(Debug)]
pub struct TaskFollower {
    notifier: Arc<Notifier>,
    task: TaskId,
    signals: Arc<TaskSignals>,
}

impl TaskFollower {
    /// Returns when there may be news since the last call; sometimes without any.
    pub async fn changed(&mut self) {
        // The fallback, in case the notification comes from another process and is lost on the way.
        let _ = tokio::time::timeout(LOOK_AGAIN, self.signals.changed.notified()).await;
    }

    /// From now on, ended children of the task are kept for [`take_ended`](Self::take_ended).
    pub(crate) fn follow_children(&self) {
        self.signals.ended().get_or_insert_default();
    }

    /// Children that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<TaskId> {
        self.signals.ended().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns when there may be news since the last call, for the driver of the children.
    pub(crate) async fn children_changed(&self) {
        self.signals.driver.notified().await;
    }

    /// Returns when the task is reported as final; sometimes without that.
    pub async fn finished(&mut self) {
        let look_again = Instant::now() + LOOK_AGAIN;
        while !self.signals.finished.load(Ordering::Acquire) {
            if self.signals.missed.swap(false, Ordering::AcqRel) {
                return;
            }
            if tokio::time::timeout_at(look_again, self.signals.changed.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// How often a follower reads the store by itself.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

impl Drop for TaskFollower {
    fn drop(&mut self) {
        let mut state = self.notifier.lock();
        if let Some(followed) = state.followed.get_mut(&self.task) {
            followed.followers -= 1;
            if followed.followers == 0 {
                state.followed.remove(&self.task);
            }
        }
        self.notifier.update_wanted(&state);
    }
}

/// Follows all events.
#[derive(Debug)]
pub struct EventStream {
    notifier: Arc<Notifier>,
    /// `None` when it is dropped.
    last: Option<watch::Receiver<u64>>,
    /// Number of the next event to return.
    next: u64,
    gap: bool,
    ready: VecDeque<StreamItem>,
}

impl EventStream {
    /// The next event; `None` when the notifier is dropped. Safe to cancel.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            let last = *self.last.as_mut()?.borrow_and_update();
            if self.next <= last || self.gap {
                self.refill();
                continue;
            }
            self.last.as_mut()?.changed().await.ok()?;
        }
    }

    fn refill(&mut self) {
        let state = self.notifier.lock();
        let last = *self.notifier.last.borrow();
        let first = last + 1 - state.ring.len() as u64;
        let id = |number| EventId { origin: self.notifier.origin, number };
        if std::mem::take(&mut self.gap) || self.next < first {
            self.next = self.next.max(first);
            self.ready.push_back(StreamItem::Gap(id(self.next - 1)));
        }
        let from = usize::try_from(self.next - first).unwrap_or(usize::MAX);
        for item in state.ring.iter().skip(from).take(BATCH) {
            self.ready.push_back(match item {
                RingItem::Event(event) => StreamItem::Event(id(self.next), event.clone()),
                RingItem::Gap => StreamItem::Gap(id(self.next)),
            });
            self.next += 1;
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.last = None;
        self.notifier.update_wanted(&self.notifier.lock());
    }
}

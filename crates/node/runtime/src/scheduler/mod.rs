//! The scheduler: one driver for each lane, and one for the session that they share.
//!
//! ```text
//!   coordinator ──views──► session ──views, token──► lane drivers ──commits──► store
//!                                                     ▲      │
//!                                  API ──submits──────┘      └──dispatches──► bus ──► workers
//! ```
//! The drivers are simple on purpose: the ownership and lane machines of `core` make all decisions.

mod lane;
mod outbox;
mod pulse;
mod refusals;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{Epoch, LaneId, QueueKey, SessionId, TaskId};
use tasklane_core::lane::{Counters, Explanation, KeyInfo, KeyPosition};
use tasklane_core::message::Message;
use tasklane_core::ownership::{OwnershipOptions, PackLimits};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::task::{NewTask, TaskRow};
use tasklane_ports::{Address, Bus, Coordinator, Store, View};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::held_sessions::HeldSessions;
use crate::keeper;
use crate::notifier::Notifier;

use self::lane::{LaneDriver, ToDriver};
pub(crate) use self::outbox::Outbox;
pub use self::pulse::HeldUp;

/// Options of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// How many lanes the deployment has.
    pub lanes: u16,
    /// How long the server's session lives without renewal. Default: 5 s.
    pub ttl: Duration,
    /// Time between renewals: at least three in a TTL. Default: 1 s.
    pub renew_every: Duration,
    /// The API address of this server.
    pub address: String,
    /// The bus address of this server; empty where messages go another way.
    pub bus_address: String,
    /// Options of the machines.
    pub ownership: OwnershipOptions,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            lanes: 1,
            ttl: Duration::from_secs(5),
            renew_every: Duration::from_secs(1),
            address: String::new(),
            bus_address: String::new(),
            ownership: OwnershipOptions::default(),
        }
    }
}

/// The parts of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerParts {
    /// The store: the truth.
    pub store: Arc<dyn Store>,
    /// Carries messages to workers and back.
    pub bus: Arc<dyn Bus>,
    /// Keeps the sessions of live members.
    pub coordinator: Arc<dyn Coordinator>,
    /// Receives changes of tasks, and completions.
    pub notifier: Arc<Notifier>,
    /// Receives the session of this server.
    pub held_sessions: HeldSessions,
}

/// Owns lanes. See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    parts: SchedulerParts,
    inputs: Vec<mpsc::Receiver<ToDriver>>,
    lanes: Arc<[LaneEnd]>,
    view: watch::Sender<Arc<View>>,
    session: watch::Sender<Option<SessionId>>,
    held_up: watch::Sender<Option<HeldUp>>,
    outbox: Arc<Outbox>,
}

/// Sends requests to a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    lanes: Arc<[LaneEnd]>,
    view: watch::Receiver<Arc<View>>,
    session: watch::Receiver<Option<SessionId>>,
    held_up: watch::Receiver<Option<HeldUp>>,
    outbox: Arc<Outbox>,
}

/// The inputs of a lane's driver.
#[derive(Debug)]
struct LaneEnd {
    inputs: mpsc::Sender<ToDriver>,
    /// Whether the lane is owned here. It may have ended when the caller reads it.
    owned: Arc<AtomicBool>,
    /// Turns that the driver has taken.
    turns: Arc<AtomicU64>,
}

/// Inputs that wait for one lane.
const INPUTS_MAX: usize = 1024;
/// How often the watchdog asks drivers for a turn, at least.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long a driver may take to answer. A caller waits no longer for a driver that is held up.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

impl Scheduler {
    /// A scheduler that does not run yet.
    pub fn new(mut options: SchedulerOptions, parts: SchedulerParts) -> Self {
        let capabilities = parts.store.capabilities();
        options.ownership.lane.insert_and_assign = capabilities.insert_and_assign;
        let (high, low) = clock::boot_id().as_u64_pair();
        options.ownership.boot = high ^ low;
        options.ownership.pack =
            PackLimits { ops_max: capabilities.ops_max, bytes_max: capabilities.bytes_max };
        let end = || {
            let (inputs, taken) = mpsc::channel(INPUTS_MAX);
            (LaneEnd { inputs, owned: Arc::default(), turns: Arc::default() }, taken)
        };
        let (lanes, inputs): (Vec<_>, Vec<_>) = (0..options.lanes).map(|_| end()).unzip();
        let (view, session) = (watch::Sender::new(Arc::default()), watch::Sender::new(None));
        let held_up = watch::Sender::new(None);
        let outbox = Arc::new(Outbox::start(Arc::clone(&parts.bus)));
        Self { options, parts, inputs, lanes: lanes.into(), view, session, held_up, outbox }
    }

    /// A handle, cheap to clone.
    pub fn handle(&self) -> SchedulerHandle {
        SchedulerHandle {
            lanes: Arc::clone(&self.lanes),
            view: self.view.subscribe(),
            session: self.session.subscribe(),
            held_up: self.held_up.subscribe(),
            outbox: Arc::clone(&self.outbox),
        }
    }

    /// Runs until the shutdown; then lets its lanes finish their commits and gives them back.
    pub async fn run(self, shutdown: CancellationToken) {
        let drivers = tokio_util::task::TaskTracker::new();
        for (lane, inputs) in (0..self.options.lanes).map(LaneId).zip(self.inputs) {
            let driver = LaneDriver::new(lane, &self.options, &self.parts, &self.lanes[usize::from(lane.0)]);
            drivers.spawn(driver.run(inputs));
        }
        drivers.close();
        let (lanes, every) = (Arc::clone(&self.lanes), self.options.renew_every.min(PING_EVERY));
        let held_up = self.held_up.subscribe();
        let _watched = keeper::spawn(pulse::watch(lanes, every, self.held_up, shutdown.clone()));
        let observers = session::SessionObservers {
            lanes: &self.lanes,
            views: &self.view,
            session: &self.session,
            held_up: &held_up,
        };
        let watching = tokio::spawn(clock::keep_watching(Arc::clone(&self.parts.coordinator)));
        session::run(&self.options, &self.parts, observers, shutdown).await;
        watching.abort();
        // Drivers that were stopped already have ended; without a session no driver was stopped.
        let (done, _) = mpsc::channel(1);
        for lane in self.lanes.iter() {
            let _ = lane.inputs.send(ToDriver::Stop { done: done.clone() }).await;
        }
        drivers.wait().await;
    }
}

/// The state of a lane of this server.
#[derive(Clone, Debug)]
pub struct LaneInfo {
    /// Which lane.
    pub lane: LaneId,
    /// The phase of the ownership machine.
    pub phase: &'static str,
    /// The epoch under which it is owned here.
    pub epoch: Option<Epoch>,
    /// Counters of rare paths.
    pub counters: Counters,
    /// Commits that this server has requested.
    pub commits: u64,
    /// Groups of these commits: each writes one task.
    pub groups: u64,
}

impl SchedulerHandle {
    /// The last view of the coordinator.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Follows the session that this server has with the coordinator.
    pub fn session(&self) -> watch::Receiver<Option<SessionId>> {
        self.session.clone()
    }

    /// Follows the views of the coordinator.
    pub fn views(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// Submits new tasks to their lane, if it is owned here; `None` if it is not, or no longer: then the
    /// store takes the same tasks.
    pub async fn submit(&self, lane: LaneId, tasks: Vec<NewTask>) -> Option<Vec<SubmitOutcome>> {
        let (reply, answer) = oneshot::channel();
        self.owned(lane)?.send(ToDriver::Submit { tasks, reply }).await.ok()?;
        answer.await.ok()?
    }

    /// Sends the owner of a lane, on any server, a hint to read the store.
    pub fn hint(&self, lane: LaneId) {
        match self.owned(lane) {
            // If the queue of inputs is full, the driver reads soon anyway; and there is the sweep.
            Some(driver) => _ = driver.try_send(ToDriver::Hint),
            None => self.outbox.send(Address::Lane(lane), Message::Hint { lane }),
        }
    }

    /// Passes on that completions of a lane's tasks were handled. If the lane is not owned here any more, its
    /// next owner reports them once more.
    pub async fn completion_handled(&self, lane: LaneId, tasks: Vec<TaskId>) {
        if let Some(driver) = self.lane(lane) {
            let _ = driver.send(ToDriver::CompletionHandled { tasks }).await;
        }
    }

    /// Notifies the owners of all lanes of a changed policy. An owner that misses the message finds the
    /// policy at its next sweep.
    pub async fn policy_changed(&self, queue: &QueueKey, policy: &VersionedPolicy) {
        for (lane, end) in (0..).map(LaneId).zip(self.lanes.iter()) {
            let (queue, policy) = (queue.clone(), policy.clone());
            if self.owns(lane) {
                let _ = end.inputs.send(ToDriver::Policy { queue, policy }).await;
            } else {
                let policy = Box::new(policy);
                self.outbox.send(Address::Lane(lane), Message::Policy { lane, queue, policy });
            }
        }
    }

    /// Why a task is not running, if its lane is owned here.
    pub async fn explain(&self, row: TaskRow) -> Option<Explanation> {
        let (reply, answer) = oneshot::channel();
        self.lane(row.id.lane())?.send(ToDriver::Explain { row: Box::new(row), reply }).await.ok()?;
        answer.await.ok()?
    }

    /// The keys that the limits of a queue count, behind a position, in the lanes that are owned here.
    pub async fn keys(&self, queue: &QueueKey, after: Option<&KeyPosition>, limit: usize) -> Vec<KeyInfo> {
        let mut keys = Vec::new();
        for end in self.lanes.iter() {
            let (reply, answer) = oneshot::channel();
            let (queue, after) = (queue.clone(), after.cloned());
            if end.inputs.send(ToDriver::Keys { queue, after, limit, reply }).await.is_ok() {
                keys.extend(answer.await.unwrap_or_default());
            }
        }
        // Each lane has some keys of a spread queue.
        keys.sort_by(|a: &KeyInfo, b| a.position.cmp(&b.position));
        keys.truncate(limit);
        keys
    }

    /// Lanes of this server whose drivers are held up.
    pub fn held_up(&self) -> watch::Receiver<Option<HeldUp>> {
        self.held_up.clone()
    }

    /// The states of the lanes of this server. A lane that does not answer is left out.
    pub async fn lanes(&self) -> Vec<LaneInfo> {
        let infos = self.lanes.iter().map(|end| async {
            let asked = async {
                let (reply, answer) = oneshot::channel();
                end.inputs.send(ToDriver::Info { reply }).await.ok()?;
                answer.await.ok()
            };
            tokio::time::timeout(ANSWER_WITHIN, asked).await.ok().flatten()
        });
        join_all(infos).await.into_iter().flatten().collect()
    }

    /// Waits until every lane that this server should own is loaded, so that it decides without delay. Lanes
    /// of other servers do not count.
    pub async fn loaded(&self) {
        for end in self.lanes.iter() {
            let (reply, answer) = oneshot::channel();
            if end.inputs.send(ToDriver::Loaded { reply }).await.is_ok() {
                let _ = answer.await;
            }
        }
    }

    fn lane(&self, lane: LaneId) -> Option<&mpsc::Sender<ToDriver>> {
        self.lanes.get(usize::from(lane.0)).map(|end| &end.inputs)
    }

    /// Whether a lane is owned here. It may have ended when the caller reads it.
    pub fn owns(&self, lane: LaneId) -> bool {
        self.owned(lane).is_some()
    }

    /// The driver of a lane that is owned here.
    fn owned(&self, lane: LaneId) -> Option<&mpsc::Sender<ToDriver>> {
        let end = self.lanes.get(usize::from(lane.0))?;
        end.owned.load(Ordering::Relaxed).then_some(&end.inputs)
    }
}

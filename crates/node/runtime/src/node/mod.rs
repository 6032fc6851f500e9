//! A node: what the API, the embedding program and the command line ask for, over the ports and the scheduler.
//!
//! Every question is answered from the store, which is the truth; the scheduler of this process is asked only for what
//! it alone knows (why a task waits) or does faster (taking new tasks into a lane it owns).

mod archive;
mod bulk;
mod completions;
mod composite;
mod custom_types;
mod intake;
mod known_time;
mod locks;
mod queues;
mod retention;
mod retry;
mod schedules;
mod sent;
mod submit;
mod system_workers;
mod tasks;
mod webhooks;
mod workers;
mod workflows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tasklane_core::clock_watch::{AGREES_WITHIN, Trust};
use tasklane_core::id::{LaneId, QueueKey, SessionId};
use tasklane_core::member::Role;
use tasklane_core::message::{Message, WorkerStats};
use tasklane_core::policy::QueueBinding;
use tasklane_core::time::Timestamp;
use tasklane_ports::{Address, Archive, Bus, Documents, Logs, QueueCounts, Store, StoreError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::archive::ArchiveStats;
pub use self::bulk::{BULK_TYPE, BulkAction, BulkExecutor, BulkStatus};
pub use self::composite::job::{JOB_TYPE, JobCounts, JobView, TornDown};
pub use self::composite::map::MAP_TYPE;
pub use self::known_time::compare_with_store;
pub use self::locks::{Lock, LockOutcome};
pub use self::queues::{PolicyError, QueueInfo};
pub use self::system_workers::SystemWorker;

pub use self::composite::workflow_run::WORKFLOW_TYPE;
pub use self::custom_types::{NamedDocument, NamedDocumentError};
pub use self::retention::RetentionOptions;
pub use self::retry::{Definition, Retried, Retry};
pub use self::schedules::{BACKFILL_MAX, BackfillPlan, FireEnd, NamedSchedule, ScheduleError};
pub use self::submit::{SubmitError, Submitted};
pub use self::tasks::{Cancel, ChildCursor};
pub use self::webhooks::{DeliveryView, Endpoint, Secrets, WEBHOOK_TYPE};
pub use self::workers::{WorkerChange, WorkerError, WorkerInfo};
pub use self::workflows::{NodeView, RunView, WorkflowError};
pub use crate::notifier::{EventId, EventStream, StreamItem, TaskFollower};
pub use crate::process::ProcessUsage;
pub use crate::scheduler::LaneInfo;

use crate::clock::{self, ClockState};
use crate::notifier::Notifier;
use crate::request::RequestLimits;
use crate::scheduler::{HeldUp, SchedulerHandle};

/// Numbers of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// How many lanes the deployment has.
    pub lanes: u16,
    /// Other servers may work on the same store.
    pub is_cluster: bool,
    /// What a task may hold.
    pub limits: RequestLimits,
    /// How long finished tasks are kept.
    pub retention: RetentionOptions,
    /// What is not as safe as it could be, for whoever asks whether this server is ready.
    pub warnings: Vec<String>,
}

/// What a node works with.
#[derive(Clone, Debug)]
pub struct NodeParts {
    /// The truth.
    pub store: Arc<dyn Store>,
    /// Output of attempts.
    pub logs: Arc<dyn Logs>,
    /// Schedules, locks, workflows.
    pub documents: Arc<dyn Documents>,
    /// Carries messages to workers.
    pub bus: Arc<dyn Bus>,
    /// The scheduler of this process.
    pub scheduler: SchedulerHandle,
    /// Tells who waits here.
    pub notifier: Arc<Notifier>,
    /// Where finished tasks are kept for good.
    pub archive: Option<Arc<dyn Archive>>,
}

/// Answers for a Tasklane server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: NodeOptions,
    parts: NodeParts,
    started_at: Timestamp,
    queues: submit::QueueCache,
    alarm: schedules::Alarm,
    types: custom_types::TypeCache,
    /// Costly checks take turns.
    heavy: Arc<Semaphore>,
    stats: Mutex<BTreeMap<SessionId, WorkerStats>>,
    /// Workers that do not receive, and when that was reported last.
    not_receiving: Mutex<BTreeMap<SessionId, Instant>>,
    /// When the time was last noted in the store, by the steady clock.
    noted_at: Mutex<Option<Timestamp>>,
    archiving: archive::Archiving,
}

/// What a node counts.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// Tasks by `Status::code`.
    pub counts: [u64; 8],
    /// Lanes of this server.
    pub lanes: Vec<LaneInfo>,
    /// Workers alive.
    pub workers: usize,
    /// Attempts that execute.
    pub running: u64,
    /// Attempts that could execute at once.
    pub capacity: u64,
    /// How often rare things happened in this server's lanes.
    pub counters: Vec<(&'static str, u64)>,
    /// When this server was started.
    pub started_at: Timestamp,
    /// What this server's process uses.
    pub process: ProcessUsage,
    /// How the clock of this machine is.
    pub clock: ClockState,
}

/// Something that must be well before work can be done.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// What.
    pub name: &'static str,
    /// Whether it is.
    pub ok: bool,
    /// For people.
    pub detail: String,
}

impl Node {
    /// A node over these parts.
    pub fn new(options: NodeOptions, parts: NodeParts) -> Self {
        Self(Arc::new(Inner {
            options,
            parts,
            started_at: clock::wall(),
            queues: submit::QueueCache::default(),
            alarm: schedules::Alarm::default(),
            types: custom_types::TypeCache::default(),
            heavy: Arc::new(Semaphore::new(1)),
            stats: Mutex::default(),
            not_receiving: Mutex::default(),
            noted_at: Mutex::default(),
            archiving: archive::Archiving::default(),
        }))
    }

    /// Listens to what workers tell of themselves, fires schedules, looks at what has ended, archives it and removes what is
    /// too old, until it is told to stop.
    pub async fn run(&self, shutdown: CancellationToken) {
        let listening = Box::pin(self.listen());
        let following = Box::pin(self.follow_others());
        let sweeping = Box::pin(self.retain());
        let firing = Box::pin(self.fire_schedules());
        let looking = Box::pin(self.handle_completions());
        let archiving = Box::pin(self.keep_archiving());
        tokio::select! {
            () = listening => {}
            () = following => {}
            () = firing => {}
            () = looking => {}
            () = archiving => {}
            () = sweeping => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Hears how workers are doing, for ever.
    async fn listen(&self) {
        loop {
            if let Ok(mut subscription) = self.0.parts.bus.subscribe(Address::Stats).await {
                while let Some(messages) = subscription.receive().await {
                    for message in messages {
                        match message {
                            Message::Stats(stats) => self.keep_stats(stats),
                            Message::NotReceiving { session } => self.keep_not_receiving(session),
                            _ => {}
                        }
                    }
                }
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    /// Hears what other servers do with tasks, for ever, but only while somebody here wants to know.
    async fn follow_others(&self) {
        let notifier = &self.0.parts.notifier;
        loop {
            notifier.until_wanted(true).await;
            if let Ok(mut subscription) = self.0.parts.bus.subscribe(Address::Events).await {
                // Alone, a server hears its own lanes anyway.
                if self.has_company() {
                    notifier.resume();
                }
                let unwanted = async {
                    loop {
                        notifier.until_wanted(false).await;
                        // Whoever has asked once may soon ask again.
                        if tokio::time::timeout(LISTEN_ON, notifier.until_wanted(true)).await.is_err() {
                            break;
                        }
                    }
                };
                let hearing = async {
                    while let Some(messages) = subscription.receive().await {
                        for message in messages {
                            if let Message::Changed(batch) = message {
                                notifier.receive(&batch);
                            }
                        }
                    }
                    tokio::time::sleep(LISTEN_AGAIN).await;
                };
                tokio::select! {
                    () = unwanted => {}
                    () = hearing => {}
                }
            } else {
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        }
    }

    /// Waits until every lane that this server should own is loaded.
    pub async fn loaded(&self) {
        self.0.parts.scheduler.loaded().await;
    }

    /// There are other servers.
    fn has_company(&self) -> bool {
        let view = self.0.parts.scheduler.view();
        view.members.values().filter(|member| matches!(member.role, Role::Server { .. })).nth(1).is_some()
    }

    /// Where the API of another server is that owns a lane; `None` if it is this one, or nobody, or has no API.
    pub fn owner_elsewhere(&self, lane: LaneId) -> Option<String> {
        let scheduler = &self.0.parts.scheduler;
        if scheduler.owns(lane) {
            return None;
        }
        let view = scheduler.view();
        match &view.members.get(view.grants.get(&lane)?)?.role {
            Role::Server { address, .. } if !address.is_empty() => Some(address.clone()),
            Role::Server { .. } | Role::Worker(_) => None,
        }
    }

    /// Which lanes a queue uses.
    pub async fn binding(&self, queue: &QueueKey) -> Result<QueueBinding, StoreError> {
        Ok(self.known(queue).await?.binding)
    }

    /// Follows all events after one, or from now on.
    pub fn events(&self, after: Option<EventId>) -> EventStream {
        self.0.parts.notifier.events(after)
    }

    /// What is going on.
    pub async fn stats(&self) -> Result<NodeStats, StoreError> {
        let queues = self.all_counts().await?;
        Ok(self.stats_with(&queues).await)
    }

    /// The same, where tasks were counted before, or could not be.
    pub async fn stats_with(&self, queues: &[QueueCounts]) -> NodeStats {
        let mut counts = [0; 8];
        for queue in queues {
            for (sum, count) in counts.iter_mut().zip(queue.by_status) {
                *sum += count;
            }
        }
        let lanes = self.0.parts.scheduler.lanes().await;
        let mut counters = BTreeMap::<&'static str, u64>::new();
        for lane in &lanes {
            for (name, count) in lane.counters.iter() {
                *counters.entry(name).or_default() += count;
            }
        }
        let workers = self.workers();
        NodeStats {
            counts,
            lanes,
            workers: workers.len(),
            running: workers.iter().filter_map(|w| w.stats.as_ref()).map(|s| u64::from(s.running)).sum(),
            capacity: workers.iter().map(|w| u64::from(w.descriptor.capacity)).sum(),
            counters: counters.into_iter().collect(),
            started_at: self.0.started_at,
            process: ProcessUsage::now(),
            clock: clock::state(),
        }
    }

    /// Whether the process lives: the error says what holds it up.
    pub fn health(&self) -> Result<(), HeldUp> {
        self.0.parts.scheduler.held_up().borrow().clone().map_or(Ok(()), Err)
    }

    /// Returns when the drivers of lanes are held up.
    pub async fn held_up(&self) {
        // Without a scheduler there is nobody to say so.
        if self.0.parts.scheduler.held_up().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether this server can do its work.
    pub async fn ready(&self) -> Vec<Readiness> {
        let store = match (self.0.parts.store.write_trouble(), self.0.parts.store.lane_head(LaneId(0)).await)
        {
            (None, Ok(_)) => Readiness { name: "store", ok: true, detail: "answers".to_owned() },
            (Some(error), _) | (None, Err(error)) => {
                Readiness { name: "store", ok: false, detail: error.to_string() }
            }
        };
        let lanes = self.0.parts.scheduler.lanes().await;
        let owned = lanes.iter().filter(|lane| lane.phase == "owning").count();
        let all = usize::from(self.0.options.lanes);
        let view = self.0.parts.scheduler.view();
        // Lanes that other servers own are well too. One that nobody owns is not, nor one that is not loaded here yet.
        let is_well = |lane: &LaneInfo| match lane.phase {
            "owning" => true,
            "idle" | "acquiring" => view.grants.contains_key(&lane.lane),
            _ => false,
        };
        let well = lanes.iter().filter(|lane| is_well(lane)).count();
        let detail = format!("{well} of {all} lanes have a server, {owned} of them this one");
        let lanes = Readiness { name: "lanes", ok: well == all, detail };
        let archive = self.archive_stats().map(|ArchiveStats { tasks, waiting, lag }| {
            let seconds = lag.as_secs();
            let detail = format!(
                "{tasks} tasks archived by this server, {waiting} wait, the first of them for {seconds} s"
            );
            Readiness { name: "archive", ok: true, detail }
        });
        let warned = |detail: &String| Readiness { name: "warning", ok: true, detail: detail.clone() };
        let warnings = self.0.options.warnings.iter().map(warned);
        [store, lanes, clock_check(&clock::state())].into_iter().chain(archive).chain(warnings).collect()
    }
}

/// A wrong clock is corrected, so it keeps nothing from being done; but it has to be said.
fn clock_check(state: &ClockState) -> Readiness {
    let offset = match state.offset {
        None => "there is no other clock to compare it with".to_owned(),
        Some(offset) if offset.abs() <= AGREES_WITHIN => format!("the coordinator's differs by {offset}"),
        Some(offset) => format!(
            "the clock of this machine is wrong by more than {} s: the coordinator's differs by {offset}, and due times \
             follow that; set this machine's clock right (`chronyc tracking` or `timedatectl` shows how it is kept), or the \
             coordinator's",
            AGREES_WITHIN.as_secs()
        ),
    };
    let waiting = match state.clock.trust {
        Trust::Settled => String::new(),
        Trust::Unsettled { left, why } => {
            let left = left.as_secs() + 1;
            format!(
                "; {why}: retention, the expiry of locks and catching up with missed times wait for {left} s more"
            )
        }
    };
    Readiness { name: "clock", ok: true, detail: format!("{offset}{waiting}") }
}

/// Wait before the bus is listened to again.
const LISTEN_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);
/// How long others are listened to when nobody wants to know any more.
const LISTEN_ON: std::time::Duration = std::time::Duration::from_mins(1);

//! A node: the operations of the API, the embedding program and the command line, over the ports and the
//! scheduler.
//!
//! The store is the truth and answers every question. The scheduler of this process serves only what it alone
//! knows (why a task waits) or does faster (accepting new tasks into a lane that it owns).

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
    /// The limits of a task.
    pub limits: RequestLimits,
    /// How long finished tasks are kept.
    pub retention: RetentionOptions,
    /// Weak points of this deployment, shown with the readiness of this server.
    pub warnings: Vec<String>,
}

/// The parts of a node.
#[derive(Clone, Debug)]
pub struct NodeParts {
    /// The store: the truth.
    pub store: Arc<dyn Store>,
    /// Output of attempts.
    pub logs: Arc<dyn Logs>,
    /// Schedules, locks, workflows.
    pub documents: Arc<dyn Documents>,
    /// Carries messages to workers.
    pub bus: Arc<dyn Bus>,
    /// The scheduler of this process.
    pub scheduler: SchedulerHandle,
    /// Notifies the waiting parts of this process.
    pub notifier: Arc<Notifier>,
    /// The archive of finished tasks.
    pub archive: Option<Arc<dyn Archive>>,
}

/// The operations of a Tasklane server. Cheap to clone.
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
    /// Turns for costly checks.
    heavy: Arc<Semaphore>,
    stats: Mutex<BTreeMap<SessionId, WorkerStats>>,
    /// Workers that do not receive, each with the time of its last report.
    not_receiving: Mutex<BTreeMap<SessionId, Instant>>,
    /// When the last known time was written to the store, by the steady clock.
    noted_at: Mutex<Option<Timestamp>>,
    archiving: archive::Archiving,
}

/// Statistics of a node.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// Tasks by `Status::code`.
    pub counts: [u64; 8],
    /// Lanes of this server.
    pub lanes: Vec<LaneInfo>,
    /// Number of live workers.
    pub workers: usize,
    /// Attempts that execute.
    pub running: u64,
    /// Attempts that the workers can execute together.
    pub capacity: u64,
    /// Counters of rare paths in this server's lanes.
    pub counters: Vec<(&'static str, u64)>,
    /// When this server was started.
    pub started_at: Timestamp,
    /// Resource use of this server's process.
    pub process: ProcessUsage,
    /// The state of the clock of this machine.
    pub clock: ClockState,
}

/// A condition for work of this server.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Its name.
    pub name: &'static str,
    /// Whether it holds.
    pub ok: bool,
    /// An explanation for people.
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

    /// Receives statistics of workers, fires schedules, handles completions, archives tasks and removes old
    /// ones, until the shutdown.
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

    /// Receives statistics of workers. Never returns.
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

    /// Receives events of other servers while a client of this process waits for changes. Never returns.
    async fn follow_others(&self) {
        let notifier = &self.0.parts.notifier;
        loop {
            notifier.until_wanted(true).await;
            if let Ok(mut subscription) = self.0.parts.bus.subscribe(Address::Events).await {
                // A server without others gets the events of its lanes anyway.
                if self.has_company() {
                    notifier.resume();
                }
                let unwanted = async {
                    loop {
                        notifier.until_wanted(false).await;
                        // A client that has asked once may soon ask again.
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

    /// Whether there are other servers.
    fn has_company(&self) -> bool {
        let view = self.0.parts.scheduler.view();
        view.members.values().filter(|member| matches!(member.role, Role::Server { .. })).nth(1).is_some()
    }

    /// The API address of the server that owns a lane; `None` if it is this one, if the lane has no owner, or
    /// if the owner has no API.
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

    /// The lanes that a queue uses.
    pub async fn binding(&self, queue: &QueueKey) -> Result<QueueBinding, StoreError> {
        Ok(self.known(queue).await?.binding)
    }

    /// Follows all events after one, or from now on.
    pub fn events(&self, after: Option<EventId>) -> EventStream {
        self.0.parts.notifier.events(after)
    }

    /// Statistics, with fresh counts of tasks.
    pub async fn stats(&self) -> Result<NodeStats, StoreError> {
        let queues = self.all_counts().await?;
        Ok(self.stats_with(&queues).await)
    }

    /// The same, with counts of tasks that the caller has, or without counts.
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

    /// Whether the process lives: the error names the part that holds it up.
    pub fn health(&self) -> Result<(), HeldUp> {
        self.0.parts.scheduler.held_up().borrow().clone().map_or(Ok(()), Err)
    }

    /// Returns when the drivers of lanes are held up.
    pub async fn held_up(&self) {
        // Without a scheduler there is no signal to wait for.
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
        // Lanes of other servers are ready too. A lane without an owner is not, nor a lane that is not loaded
        // here yet.
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

/// A wrong clock is corrected, so it does not stop work; but it is reported.
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

/// Wait before the subscription is opened again.
const LISTEN_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);
/// How long events of other servers are received after the last client has left.
const LISTEN_ON: std::time::Duration = std::time::Duration::from_mins(1);

//! Puts a Tasklane together in this process: store, scheduler, worker, API, or as much of it as its roles ask
//! for.
//!
//! The order matters. A start first takes the store, which refuses a second process at once. Then it waits
//! until the guard of an earlier process has ended the last of its attempts, because only then can their
//! tasks be assigned again. A stop goes the other way: the process takes nothing new, the worker finishes,
//! the scheduler releases its lanes, the store closes.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::FutureExt;
use tasklane_api::{ApiOptions, Router, ServeOptions};
use tasklane_core::id::Name;
use tasklane_core::ownership::OwnershipOptions;
use tasklane_core::time::Timestamp;
use tasklane_core::worker as session;
use tasklane_direct::DirectBus;
use tasklane_ports::{BusError, CoordinatorError, StoreError};
use tasklane_runtime::clock;
use tasklane_runtime::descriptors;
use tasklane_runtime::executors::{ExecutorOptions, Registry};
use tasklane_runtime::guard::{Guard, GuardOptions, HeldFile, remove_tree};
use tasklane_runtime::held_sessions::HeldSessions;
use tasklane_runtime::keeper;
use tasklane_runtime::node::{
    Node, NodeOptions, NodeParts, RetentionOptions, SystemWorker, compare_with_store,
};
use tasklane_runtime::notifier::Notifier;
use tasklane_runtime::request::RequestLimits;
use tasklane_runtime::scheduler::{Scheduler, SchedulerOptions, SchedulerParts};
use tasklane_runtime::worker::{OutputOptions, Worker, WorkerOptions, WorkerParts, WorkerState};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adapters::{self, Adapters};
use crate::config::Config;
use crate::data_dir::{self, GUARD_LOCK, WORK};
use crate::descriptor_shares::connections_max;
use crate::embed::Registrations;
use crate::{discovery, disk_full, exposure, intake, lane_count, lost_store, session_cleanup};

/// The roles of this process in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Serves the API and owns lanes.
    pub server: bool,
    /// Executes tasks.
    pub worker: bool,
}

impl Roles {
    /// Everything in one process.
    pub const ALL: Self = Self { server: true, worker: true };
    /// API and scheduler.
    pub const SERVER: Self = Self { server: true, worker: false };
    /// Executes tasks and nothing else.
    pub const WORKER: Self = Self { server: false, worker: true };
}

/// A Tasklane that runs in this process, or a part of one.
#[derive(Debug)]
pub struct RunningTasklane {
    /// Where the API listens, or the health checks of a worker, if they do.
    pub address: Option<SocketAddr>,
    /// Where a server answers health checks besides, if it does.
    pub health_address: Option<SocketAddr>,
    node: Option<Node>,
    adapters: Adapters,
    guard: Option<Guard>,
    api: Part,
    worker: Part,
    server: Part,
    background: Part,
    ended: CancellationToken,
    failed: CancellationToken,
}

/// Tasks that are stopped together.
#[derive(Debug, Default)]
struct Part {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Part {
    /// Stops it and waits until it has ended.
    async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Runs something that has no end of its own.
    fn keep(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// How long the attempts of an earlier process may take to end.
const GUARD_WITHIN: Duration = Duration::from_secs(10);
/// Connections to a listener that answers nothing but health checks.
const HEALTH_CONNECTIONS_MAX: usize = 64;
/// Short attempts that may wait at the worker.
const PREFETCH_MAX: u32 = 8192;
/// How often lanes of a cluster sweep for arrivals whose hints were lost: the lanes are many.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// How often the system workers send heartbeats to all lanes: they are several, and seldom have work.
const OWN_BEAT_EVERY: Duration = Duration::from_secs(20);
/// How long the systems of a cluster are waited for.
const OPEN_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait before it is tried again.
const OPEN_AGAIN: Duration = Duration::from_millis(200);
/// How long lanes that are held up may take to go on when the process is to end.
const STUCK_AFTER: Duration = Duration::from_secs(3);
/// How long an address that is in use is waited for.
const BIND_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait before it is tried again.
const BIND_AGAIN: Duration = Duration::from_millis(100);

/// Starts everything that a config asks for, as far as the roles of this process go.
pub async fn start(config: &Config, roles: Roles, functions: Registrations) -> Result<RunningTasklane> {
    let listen = if roles.server { config.listen } else { config.worker.listen };
    let listener = match listen {
        Some(listen) => Some(bind(listen).await?),
        None => None,
    };
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let health_listener = match config.health_listen.filter(|_| roles.server) {
        Some(listen) => Some(bind(listen).await?),
        None => None,
    };
    let health_address = health_listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let reached_at =
        roles.server.then(|| address.map_or_else(|| Ipv4Addr::LOCALHOST.into(), |address| address.ip()));
    let opening = || async {
        data_dir::prepare(&config.data_dir)?;
        let (adapters, lanes) = open_adapters(config, reached_at).await?;
        let mut locks: Vec<HeldFile> = adapters.lock.iter().cloned().collect();
        if !config.is_cluster() {
            locks.push(Arc::new(await_guard(&config.data_dir).await?));
        }
        let guard = start_guard(config, roles, locks).await?;
        anyhow::Ok((adapters, lanes, guard))
    };
    let (adapters, lanes, guard) = disk_full::await_disk_space(opening, listener.as_ref()).await?;
    for warning in &adapters.warnings {
        tracing::warn!("{warning}");
    }
    for warning in exposure::warnings(config, roles, rustix::process::geteuid().is_root()) {
        tracing::warn!("{warning}");
    }

    let (notifier, held_sessions) = (Arc::new(Notifier::default()), HeldSessions::default());
    let mut running = RunningTasklane {
        address,
        health_address,
        node: None,
        adapters,
        guard: guard.clone(),
        api: Part::default(),
        worker: Part::default(),
        server: Part::default(),
        background: Part::default(),
        ended: CancellationToken::new(),
        failed: CancellationToken::new(),
    };
    if let Some(guard) = guard.clone().filter(|_| config.is_cluster()) {
        running.background.keep(session_cleanup::keep(config.clone(), held_sessions.clone(), guard));
    }
    let parts = |executors| WorkerParts {
        bus: Arc::clone(&running.adapters.bus),
        coordinator: Arc::clone(&running.adapters.coordinator),
        logs: Arc::clone(&running.adapters.logs),
        executors,
        notifier: Arc::clone(&notifier),
        held_sessions: held_sessions.clone(),
        on_lease: on_lease(config, guard.as_ref()),
    };

    let (mut node, mut health) = (None, None);
    if roles.server {
        clock::settle_within(config.clock.settle_time);
        compare_with_store(&*running.adapters.documents).await?;
        let started = start_server(config, &running, lanes, &notifier, &held_sessions)?;
        // Workers end before the scheduler, which has to receive their last reports.
        for SystemWorker { name, capacity, executors } in SystemWorker::all(&started) {
            let options = system_worker(config, lanes, name, capacity);
            let worker = Worker::new(options, WorkerParts { on_lease: Arc::new(|_| {}), ..parts(executors) });
            running.worker.tasks.spawn(worker.run(running.worker.stop.clone()));
        }
        node = Some(started);
    } else if let Some(direct) = running.adapters.direct.clone() {
        let coordinator = Arc::clone(&running.adapters.coordinator);
        running.background.keep(discovery::keep_worker(direct, coordinator));
    }
    if roles.worker {
        let executors = executors(config, guard.clone(), functions);
        let options =
            WorkerOptions { address: worker_address(config, roles, address), ..worker(config, lanes) };
        let worker = Worker::new(options, parts(executors));
        health = Some(worker.state());
        let (stop, ended) = (running.worker.stop.clone(), running.ended.clone());
        running.worker.tasks.spawn(async move {
            worker.run(stop).await;
            ended.cancel();
        });
    }
    if let Some(node) = &node {
        disk_full::loaded_or_refused(node, &*running.adapters.store).await;
        if !config.is_cluster() {
            let Adapters { store, coordinator, .. } = &running.adapters;
            running.background.keep(lost_store::end_attempts(Arc::clone(store), Arc::clone(coordinator)));
        }
        let options = api_options(config, health);
        if let Some(listener) = health_listener {
            let router = tasklane_api::health_router(node.clone(), options.clone());
            serve_router(&running, router, listener, health_connections(config));
        }
        if let Some(listener) = listener {
            let router = tasklane_api::router(node.clone(), options);
            serve_router(&running, router, listener, api_connections(config, roles));
        }
    } else if let (Some(listener), Some(state)) = (listener, health) {
        let router = tasklane_api::worker_router(state);
        serve_router(&running, router, listener, health_connections(config));
    }
    running.node = node;
    Ok(running)
}

/// Starts API node and scheduler.
fn start_server(
    config: &Config,
    running: &RunningTasklane,
    lanes: u16,
    notifier: &Arc<Notifier>,
    held_sessions: &HeldSessions,
) -> Result<Node> {
    let Adapters { store, logs, documents, coordinator, bus, direct, archive, .. } = &running.adapters;
    let api = api_address(config, running.address)?;
    let mut ownership = OwnershipOptions::default();
    if config.is_cluster() {
        ownership.lane.sweep_every = SWEEP_EVERY;
    }
    let scheduler = Scheduler::new(
        SchedulerOptions {
            lanes,
            ownership,
            ttl: config.session.server_ttl,
            renew_every: config.session.server_renew_every,
            address: api,
            bus_address: direct.as_ref().and_then(DirectBus::endpoint).unwrap_or_default(),
        },
        SchedulerParts {
            store: Arc::clone(store),
            bus: Arc::clone(bus),
            coordinator: Arc::clone(coordinator),
            notifier: Arc::clone(notifier),
            held_sessions: held_sessions.clone(),
        },
    );
    let limits = RequestLimits {
        payload_bytes_max: bytes(config.limits.payload_bytes_max),
        unique_for_max: config.retention.request_ids.max(config.retention.tasks),
        ..RequestLimits::default()
    };
    let node = Node::new(
        NodeOptions {
            lanes,
            is_cluster: config.is_cluster(),
            limits,
            retention: retention(config),
            warnings: running.adapters.warnings.clone(),
        },
        NodeParts {
            store: Arc::clone(store),
            logs: Arc::clone(logs),
            documents: Arc::clone(documents),
            bus: Arc::clone(bus),
            scheduler: scheduler.handle(),
            notifier: Arc::clone(notifier),
            archive: archive.clone(),
        },
    );
    if let Some(direct) = direct.clone() {
        running.background.keep(discovery::keep_server(direct, scheduler.handle()));
    }
    running.background.keep(intake::keep(config.clone(), node.clone(), scheduler.handle()));
    let server = &running.server;
    server.tasks.spawn(scheduler.run(server.stop.clone()));
    let (background, stop) = (node.clone(), server.stop.clone());
    server.tasks.spawn(async move { background.run(stop).await });
    Ok(node)
}

/// Where other processes reach the API of this one; empty if it has none.
fn api_address(config: &Config, listens: Option<SocketAddr>) -> Result<String> {
    let host = adapters::reachable_host(config)?;
    Ok(match (&config.advertise, listens) {
        (Some(advertise), Some(_)) => advertise.clone(),
        (None, Some(address)) => format!("{host}:{}", address.port()),
        (_, None) => String::new(),
    })
}

/// Where the worker of this process is reached: at the API or the health checks of the process, else at its machine.
fn worker_address(config: &Config, roles: Roles, listens: Option<SocketAddr>) -> String {
    if roles.server {
        return api_address(config, listens).unwrap_or_default();
    }
    let bound = listens.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    let ip = bound.or_else(|| adapters::own_address(&config.store_url()));
    match (ip, listens) {
        (Some(ip), Some(address)) => SocketAddr::new(ip, address.port()).to_string(),
        (Some(ip), None) => ip.to_string(),
        (None, _) => String::new(),
    }
}

fn api_options(config: &Config, worker: Option<watch::Receiver<WorkerState>>) -> ApiOptions {
    ApiOptions {
        token: config.token.as_ref().map(|token| token.reveal().to_owned()),
        hosts: config.hosts.iter().cloned().collect(),
        cors_origins: config.cors_origins.iter().cloned().collect(),
        body_bytes_max: ApiOptions::default().body_bytes_max.min(bytes(config.limits.body_bytes_max)),
        batch_bytes_max: bytes(config.limits.body_bytes_max),
        request_timeout: config.limits.request_timeout,
        worker,
        ..ApiOptions::default()
    }
}

fn api_connections(config: &Config, roles: Roles) -> ServeOptions {
    let capacity = if roles.worker { config.worker.capacity().get() } else { 0 };
    let limits = &config.limits;
    let per_address = limits.connections_per_address_max;
    ServeOptions {
        connections_max: connections_max(descriptors::limit(), capacity, limits.connections_max),
        connections_per_address_max: per_address.and_then(|max| usize::try_from(max.get()).ok()),
        write_timeout: limits.write_timeout,
        check_users: config.token.is_none(),
        ..ServeOptions::default()
    }
}

/// Health checks come from few clients and are answered at once, with or without a token.
fn health_connections(config: &Config) -> ServeOptions {
    ServeOptions {
        connections_max: HEALTH_CONNECTIONS_MAX,
        write_timeout: config.limits.write_timeout,
        check_users: false,
        ..ServeOptions::default()
    }
}

fn serve_router(running: &RunningTasklane, router: Router, listener: TcpListener, connections: ServeOptions) {
    let stop = running.api.stop.clone();
    let failed = running.failed.clone();
    running.api.tasks.spawn(async move {
        tasklane_api::serve(listener, router, connections, stop.clone().cancelled_owned()).await;
        if !stop.is_cancelled() {
            tracing::error!("the API has stopped unexpectedly: the server ends");
            failed.cancel();
        }
    });
}

impl RunningTasklane {
    /// The server of its API.
    ///
    /// # Panics
    /// In a process that is a worker and nothing else: there is none.
    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("only servers have a node")
    }

    /// Returns when a part has ended by itself.
    pub async fn stopped(&self) {
        self.failed.cancelled().await;
    }

    /// Returns when the worker has left, because people asked it to.
    pub async fn worker_left(&self) {
        self.ended.cancelled().await;
    }

    /// Returns when an orderly end would not come, because lanes are held up and stay so. Counts on the keeper.
    pub fn stuck(&self) -> impl Future<Output = ()> + Send + use<> {
        let node = self.node.clone();
        keeper::spawn(async move {
            match node {
                Some(node) => loop {
                    node.held_up().await;
                    tokio::time::sleep(STUCK_AFTER).await;
                    if node.health().is_err() {
                        break;
                    }
                },
                None => std::future::pending().await,
            }
        })
        .map(drop)
    }

    /// Stops in an orderly way: running attempts get time to finish.
    pub async fn close(self) -> Result<(), StoreError> {
        // Waiting requests and streams would keep the API open until their timeout: they end with it.
        self.api.close().await;
        self.worker.close().await;
        self.server.close().await;
        self.background.close().await;
        if let Some(guard) = &self.guard {
            guard.close().await;
        }
        if let Some(direct) = &self.adapters.direct {
            direct.close().await;
        }
        self.adapters.store.close().await
    }
}

/// Opens the systems that the config names, and reads the number of lanes. An unreachable system may be about
/// to start, or to come back: in a cluster the start waits for it.
async fn open_adapters(config: &Config, reached_at: Option<IpAddr>) -> Result<(Adapters, u16)> {
    let deadline = Instant::now() + OPEN_WITHIN;
    let mut told = false;
    loop {
        let opened = async {
            let adapters = Adapters::open(config, reached_at).await?;
            let lanes = lane_count::agree(config, &*adapters.documents).await?;
            anyhow::Ok((adapters, lanes))
        };
        match opened.await {
            Err(error) if config.is_cluster() && is_passing(&error) && Instant::now() < deadline => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("{error:#}; retrying for up to {OPEN_WITHIN:?}");
                }
                tokio::time::sleep(OPEN_AGAIN).await;
            }
            opened => return opened,
        }
    }
}

/// What failed may succeed later.
fn is_passing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(StoreError::is_retryable)
        || error.downcast_ref::<CoordinatorError>().is_some_and(CoordinatorError::is_retryable)
        || error.downcast_ref::<BusError>().is_some_and(BusError::is_retryable)
}

/// Listens at an address. A process that was killed may hold it for a moment longer, so it is waited for.
async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    let deadline = Instant::now() + BIND_WITHIN;
    let mut told = false;
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%listen, "the address is in use; waiting up to {BIND_WITHIN:?} for it");
                }
                tokio::time::sleep(BIND_AGAIN).await;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                "cannot listen at {listen}: another program has listened there for {BIND_WITHIN:?}; end it (`ss -ltnp` \
                 shows it), or choose another address with --listen or TASKLANE_LISTEN"
            ),
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot listen at {listen}; choose another address with --listen")
                });
            }
        }
    }
}

/// Waits until nothing that an earlier process started is alive. The lock is shared with the guard and everything it
/// starts, so it is free when the last of them is gone.
async fn await_guard(data_dir: &Path) -> Result<File> {
    let path = data_dir.join(GUARD_LOCK);
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let locked = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    match tokio::time::timeout(GUARD_WITHIN, locked).await {
        Ok(file) => Ok(file.context("the thread that waits for the lock has failed")??),
        Err(_) => bail!(
            "attempts of an earlier process are still running after {GUARD_WITHIN:?}; \
             end the processes that hold {} and start again",
            path.display()
        ),
    }
}

/// Starts the guard, where this process may start others, or holds sessions that must be closed if it is
/// killed.
async fn start_guard(config: &Config, roles: Roles, locks: Vec<HeldFile>) -> Result<Option<Guard>> {
    let needed = ["SHELL", "PYTHON_SCRIPT"];
    let starts_others =
        roles.worker && config.worker.task_types.iter().any(|task_type| needed.contains(&task_type.as_str()));
    if !starts_others && !config.is_cluster() {
        return Ok(None);
    }
    let dir = config.data_dir.join(WORK);
    if !locks.is_empty() {
        remove_stale(&dir);
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("cannot create {}", dir.display()))?;
    let options = GuardOptions { locks, dir: Some(dir), ..GuardOptions::default() };
    Guard::start(options).await.map(Some).context("cannot start the guard process")
}

/// Removes the folders of attempts that no guard was left to remove. Their processes are gone: the lock shows
/// it.
fn remove_stale(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let stale: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_guard_dir(path)).collect();
    if stale.is_empty() {
        return;
    }
    std::thread::spawn(move || {
        for folder in stale {
            if let Err(error) = remove_tree(&folder) {
                tracing::warn!(path = %folder.display(), %error, "cannot remove the folder of an earlier attempt");
            }
        }
    });
}

/// Whether a guard has made a folder: another may have been put in its place, or in place of the folder above it.
fn is_guard_dir(path: &Path) -> bool {
    let name =
        path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("tasklane-"));
    name.is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Sends the guard each new deadline: the end of the session's TTL, counted from before the renewal was sent.
/// The worker stops its attempts before that; if it cannot, because it is stopped itself, the guard ends them
/// in time.
fn on_lease(config: &Config, guard: Option<&Guard>) -> Arc<dyn Fn(Timestamp) + Send + Sync> {
    let Some(guard) = guard.cloned() else { return Arc::new(|_| {}) };
    let left = fence_margin(config);
    Arc::new(move |fence_at| guard.set_deadline(Some((fence_at + left).since(Timestamp::ZERO))))
}

fn executors(config: &Config, guard: Option<Guard>, functions: Registrations) -> Registry {
    let (mut options, settings) = (ExecutorOptions::new(guard), &config.worker);
    options.command.shell.clone_from(&settings.shell);
    options.command.python.clone_from(&settings.python);
    options.command.cwd.clone_from(&settings.cwd);
    options.command.env_inherit = settings.env.iter().cloned().collect();
    options.command.result_bytes_max = bytes(config.limits.result_bytes_max);
    let later = settings.retry_later_exit_codes.iter();
    options.command.retry_later_exit_codes =
        later.map(|code| (i32::from(*code), settings.retry_later_delay)).collect();
    options.command.never_retry_exit_codes =
        settings.never_retry_exit_codes.iter().copied().map(i32::from).collect();
    let mut executors = Registry::builtin(options);
    executors.retain(|task_type| config.worker.task_types.contains(task_type));
    for (task_type, function) in functions.0 {
        executors
            .register(task_type, Arc::new(function.result_bytes_max(bytes(config.limits.result_bytes_max))));
    }
    executors
}

fn worker(config: &Config, lanes: u16) -> WorkerOptions {
    let capacity = config.worker.capacity().get();
    WorkerOptions {
        name: config.worker.name(),
        weight: config.worker.weight.get(),
        labels: config.worker.labels.clone(),
        address: String::new(),
        stop_grace: config.worker.stop_grace,
        drain_grace: config.worker.drain_grace,
        machine: session::WorkerOptions {
            capacity,
            // Where there are other workers, no task waits long at a busy one.
            prefetch: if config.is_cluster() { 0 } else { capacity },
            prefetch_max: PREFETCH_MAX,
            unacked_max: 2 * PREFETCH_MAX,
            lanes,
            ttl: config.session.worker_ttl,
            renew_every: config.session.worker_renew_every,
            fence_margin: fence_margin(config),
            heartbeat_every: beat_every(config),
            ..session::WorkerOptions::default()
        },
        output: OutputOptions {
            attempt_bytes_max: bytes(config.worker.log_bytes_max),
            ..OutputOptions::default()
        },
    }
}

/// How often a worker sends its heartbeat to all lanes: seldom enough not to load a broker that serves many
/// workers.
fn beat_every(config: &Config) -> Duration {
    let is_direct = matches!(config.bus_url().scheme(), "local" | "direct");
    Duration::from_secs(if is_direct { 2 } else { 3 })
}

/// The rest of the session's TTL when the worker stops by itself: time to end every attempt.
fn fence_margin(config: &Config) -> Duration {
    config.session.worker_ttl / 4
}

/// A worker that the server keeps for itself.
fn system_worker(config: &Config, lanes: u16, name: Name, capacity: u32) -> WorkerOptions {
    let options = worker(config, lanes);
    let machine = session::WorkerOptions {
        capacity,
        prefetch: capacity,
        prefetch_max: capacity,
        unacked_max: 2 * capacity,
        // There are several in each server, and its guard ends their sessions should it be killed.
        ttl: system_ttl(config),
        fence_margin: fence_margin(config),
        renew_every: system_ttl(config) / 3,
        heartbeat_every: if config.is_cluster() { OWN_BEAT_EVERY } else { options.machine.heartbeat_every },
        ..options.machine
    };
    WorkerOptions { name, machine, drain_grace: Duration::ZERO, ..options }
}

/// How long the session of such a worker lasts without renewal: the longest of a server's.
pub(crate) fn system_ttl(config: &Config) -> Duration {
    config.session.worker_ttl * if config.is_cluster() { 2 } else { 1 }
}

fn retention(config: &Config) -> RetentionOptions {
    RetentionOptions {
        tasks: config.retention.tasks,
        request_ids: config.retention.request_ids,
        every: config.retention.every,
        batch: usize::try_from(config.retention.batch.get()).unwrap_or(usize::MAX),
    }
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

//! The tree of structs. Defaults live in the `Default` impls here, and for how commands are run in that of
//! `CommandOptions`; `docs/config.yaml` states them all with the purpose of each key, and a test compares the
//! two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::clock_watch::SETTLE_TIME;
use tasklane_core::id::Name;
use tasklane_runtime::executors::CommandOptions;

use super::units::{duration, size};
use super::url::AdapterUrl;

/// Everything that can be set. See `docs/configuration.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the API listens; `None` for no API. A public address needs a token.
    pub listen: Option<SocketAddr>,
    /// Where a server answers health checks besides; `None` for nowhere else.
    pub health_listen: Option<SocketAddr>,
    /// Where data, locks and working folders of tasks are kept.
    pub data_dir: PathBuf,
    /// Where tasks are stored; `None` for `SQLite` in the data folder.
    pub store: Option<AdapterUrl>,
    /// The system that knows the live processes; `None` for the store's own.
    pub coordinator: Option<AdapterUrl>,
    /// The bus between processes; `None` for the store's companion.
    pub bus: Option<AdapterUrl>,
    /// Where finished tasks are kept for good; `None` for nowhere.
    pub archive: Option<AdapterUrl>,
    /// The common beginning of the names of all keys, tables and channels.
    pub prefix: Name,
    /// Most connections of a server to `PostgreSQL`, for store, coordinator and archive together.
    pub postgres_connections: usize,
    /// Where other processes reach this server, as `host:port`; `None` for where it listens.
    pub advertise: Option<String>,
    /// The writes that a loss of power may undo.
    pub durability: Durability,
    /// How many lanes queues are spread over; `None` for what is stored, at first 1 on `SQLite` and 16 in a cluster.
    pub lanes: Option<NonZeroU16>,
    /// The token that clients of the API must send; `None` for no check, on loopback only.
    pub token: Option<Secret>,
    /// Host names, besides IP addresses and `localhost`, under which a server without a token answers.
    pub hosts: BTreeSet<String>,
    /// Origins whose pages may call the API from a browser (CORS), as `https://app.example.com`; `*` for every origin.
    pub cors_origins: BTreeSet<String>,
    /// The namespace that an embedding program submits to.
    pub namespace: Name,
    /// The worker in this process.
    pub worker: WorkerConfig,
    /// How the liveness of processes is judged.
    pub session: SessionConfig,
    /// How long finished tasks are kept.
    pub retention: RetentionConfig,
    /// How far the wall clock is trusted.
    pub clock: ClockConfig,
    /// How large things may be, and how long requests may take.
    pub limits: LimitsConfig,
    /// The log's levels and format.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7070))),
            health_listen: None,
            data_dir: PathBuf::from("./tasklane-data"),
            store: None,
            coordinator: None,
            bus: None,
            archive: None,
            prefix: Name::new("tasklane").expect("a valid name"),
            postgres_connections: 16,
            advertise: None,
            durability: Durability::Full,
            lanes: None,
            token: None,
            hosts: BTreeSet::new(),
            cors_origins: BTreeSet::new(),
            namespace: Name::new("default").expect("a valid name"),
            worker: WorkerConfig::default(),
            session: SessionConfig::default(),
            retention: RetentionConfig::default(),
            clock: ClockConfig::default(),
            limits: LimitsConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Config {
    /// The URL of the store: the one given, or `SQLite` in the data folder.
    pub fn store_url(&self) -> AdapterUrl {
        let derived = || AdapterUrl::new(format!("sqlite://{}", self.data_dir.join("tasklane.db").display()));
        self.store.clone().unwrap_or_else(derived)
    }

    /// The URL of the coordinator: the one given, or the store, or this process.
    pub fn coordinator_url(&self) -> AdapterUrl {
        let store = || match self.store_url() {
            store if store.scheme() == "sqlite" => AdapterUrl::new("local://"),
            store => store,
        };
        self.coordinator.clone().unwrap_or_else(store)
    }

    /// The URL of the bus: the configured one, or the store's companion.
    pub fn bus_url(&self) -> AdapterUrl {
        let derived = || match self.store_url() {
            store if store.scheme() == "redis" => store,
            store if store.scheme() == "postgres" => AdapterUrl::new("direct://"),
            _ => AdapterUrl::new("local://"),
        };
        self.bus.clone().unwrap_or_else(derived)
    }

    /// Whether more than one process works on the same tasks.
    pub fn is_cluster(&self) -> bool {
        self.coordinator_url().scheme() != "local"
    }
}

/// The writes that a loss of power may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing that was acknowledged.
    Full,
    /// The last moments. A crash of the process alone still loses nothing.
    Relaxed,
}

/// The worker in this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// The worker's name; `None` for the name of the machine.
    pub name: Option<Name>,
    /// Where a process that is a worker and nothing else answers health checks; `None` for nowhere.
    pub listen: Option<SocketAddr>,
    /// How many attempts it runs at once; `None` for four times the number of cores.
    pub capacity: Option<NonZeroU32>,
    /// Its share under the weighted strategy.
    pub weight: NonZeroU32,
    /// The labels that selectors of tasks match against.
    pub labels: BTreeMap<String, String>,
    /// The built-in task types it executes. Functions registered by an embedding program are always on.
    pub task_types: BTreeSet<Name>,
    /// The time between SIGTERM and SIGKILL when an attempt is stopped.
    #[serde(with = "duration")]
    pub stop_grace: Duration,
    /// How long attempts may go on when the process is asked to end.
    #[serde(with = "duration")]
    pub drain_grace: Duration,
    /// Output kept of one attempt; the rest is counted.
    #[serde(with = "size")]
    pub log_bytes_max: u64,
    /// Variables of the worker's own environment that tasks see. `LC_*` stands for all that begin with `LC_`.
    pub env: BTreeSet<String>,
    /// The shell that runs the scripts of `SHELL` tasks.
    pub shell: String,
    /// The interpreter of `PYTHON_SCRIPT` tasks.
    pub python: String,
    /// Where commands start unless the task says otherwise; `None` for where the worker was started.
    pub cwd: Option<PathBuf>,
    /// Exit codes by which a command asks to be tried again later.
    pub retry_later_exit_codes: BTreeSet<u8>,
    /// How much later at least.
    #[serde(with = "duration")]
    pub retry_later_delay: Duration,
    /// Exit codes by which a command says that it would fail again.
    pub never_retry_exit_codes: BTreeSet<u8>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        let types = ["SHELL", "PYTHON_SCRIPT", "HTTP", "NOOP"];
        let command = CommandOptions::default();
        Self {
            name: None,
            listen: None,
            capacity: None,
            weight: NonZeroU32::MIN,
            labels: BTreeMap::new(),
            task_types: types.iter().map(|name| Name::new(name).expect("a valid name")).collect(),
            stop_grace: Duration::from_secs(5),
            drain_grace: Duration::from_secs(30),
            log_bytes_max: 16 << 20,
            env: command.env_inherit.into_iter().collect(),
            shell: command.shell,
            python: command.python,
            cwd: command.cwd,
            // EX_TEMPFAIL of sysexits.h.
            retry_later_exit_codes: BTreeSet::from([75]),
            retry_later_delay: Duration::from_mins(1),
            never_retry_exit_codes: BTreeSet::new(),
        }
    }
}

impl WorkerConfig {
    /// The capacity: the one given, or four times the number of cores, since most tasks wait more than they compute.
    pub fn capacity(&self) -> NonZeroU32 {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let derived = || NonZeroU32::new(u32::try_from(cores()).unwrap_or(1).saturating_mul(4));
        self.capacity.or_else(derived).unwrap_or(NonZeroU32::MIN)
    }
}

impl WorkerConfig {
    /// The name: the one given, or that of the machine, with whatever names may not contain left out.
    pub fn name(&self) -> Name {
        let machine = || {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
            let name: String =
                name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
            Name::new(&name).ok()
        };
        self.name.clone().or_else(machine).unwrap_or_else(|| Name::new("worker").expect("a valid name"))
    }
}

/// How the liveness of processes is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// A server that has not renewed its session for this long is gone.
    #[serde(with = "duration")]
    pub server_ttl: Duration,
    /// How often a server renews its session.
    #[serde(with = "duration")]
    pub server_renew_every: Duration,
    /// A worker that has not renewed its session for this long is gone; its tasks go to others.
    #[serde(with = "duration")]
    pub worker_ttl: Duration,
    /// How often a worker renews its session.
    #[serde(with = "duration")]
    pub worker_renew_every: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            server_ttl: Duration::from_secs(5),
            server_renew_every: Duration::from_millis(1250),
            worker_ttl: Duration::from_secs(15),
            worker_renew_every: Duration::from_secs(4),
        }
    }
}

/// How long finished tasks are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Payload, result and output of a finished task are removed after this time.
    #[serde(with = "duration")]
    pub tasks: Duration,
    /// Request ids are remembered for this long; at least as long as the tasks.
    #[serde(with = "duration")]
    pub request_ids: Duration,
    /// How often to look for what is old enough.
    #[serde(with = "duration")]
    pub every: Duration,
    /// How many tasks are removed in one step.
    pub batch: NonZeroU32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let week = Duration::from_hours(7 * 24);
        let batch = NonZeroU32::new(200).expect("not zero");
        Self { tasks: week, request_ids: week, every: Duration::from_mins(1), batch }
    }
}

/// How far the wall clock is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClockConfig {
    /// How long after a step of the clock nothing is done that cannot be undone.
    #[serde(with = "duration")]
    pub settle_time: Duration,
}

impl Default for ClockConfig {
    fn default() -> Self {
        Self { settle_time: SETTLE_TIME }
    }
}

/// How large things may be, and how long requests may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// The largest payload of a task.
    #[serde(with = "size")]
    pub payload_bytes_max: u64,
    /// The largest result of a task.
    #[serde(with = "size")]
    pub result_bytes_max: u64,
    /// The largest request body.
    #[serde(with = "size")]
    pub body_bytes_max: u64,
    /// A request is given up when it is not answered within this time; waits and streams have their own.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    /// A connection that takes nothing of what it is sent for this long is dropped.
    #[serde(with = "duration")]
    pub write_timeout: Duration,
    /// Connections to the API at the same time; `None` for as many as there are file descriptors for.
    pub connections_max: Option<NonZeroU32>,
    /// Connections of one address at the same time; `None` for no bound.
    pub connections_per_address_max: Option<NonZeroU32>,
}

impl LimitsConfig {
    /// The largest size that every store and bus can carry in one piece.
    pub const PIECE_BYTES_MAX: u64 = 1 << 20;
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            payload_bytes_max: 256 << 10,
            result_bytes_max: 256 << 10,
            body_bytes_max: 32 << 20,
            request_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            connections_max: None,
            connections_per_address_max: None,
        }
    }
}

/// The log's levels and format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Lines for people, or JSON for programs.
    pub format: LogFormat,
    /// The least level that is logged, or filters such as `info,tasklane_runtime=debug`.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text shown instead.
    pub const HIDDEN: &str = "(hidden)";

    /// Takes a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The text itself, for comparisons.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::HIDDEN)
    }
}

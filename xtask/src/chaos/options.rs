//! The options of a run, and the scenario that follows from them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long CI plays with each of its topologies, in minutes; starting, and ending what was begun, take another one.
pub(super) const CI_MINUTES: f64 = 3.0;
/// Tasks a second in CI: enough to have many attempts at every fault, few enough for a small machine.
pub(super) const CI_RATE: f64 = 30.0;
/// The same orders of faults in each run of CI.
pub(super) const CI_SEED: u64 = 7;
/// How long an upgrade takes, in minutes.
const UPGRADE_MINUTES: f64 = 0.7;
/// The topologies of CI.
pub(super) const CI_TOPOLOGIES: [Topology; 2] = [Topology::Postgres, Topology::Redis];

/// What to play.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The parts of the cluster
    #[arg(long, value_enum, required_unless_present = "ci")]
    pub(super) topology: Option<Topology>,
    /// How long things go wrong
    #[arg(long, default_value_t = 10.0)]
    pub(super) minutes: f64,
    /// What goes wrong, and in which order [default: another one each time]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// How many servers
    #[arg(long, default_value_t = 3)]
    pub(super) servers: usize,
    /// How many workers
    #[arg(long, default_value_t = 4)]
    pub(super) workers: usize,
    /// Tasks submitted in a second [default: enough for 50,000 in 10 minutes]
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// Attempts that a worker runs at once [default: enough for what is submitted, twice over]
    #[arg(long)]
    pub(super) capacity: Option<u32>,
    /// Only faults whose name contains this; then the run is allowed to prove little
    #[arg(long)]
    pub(super) only: Option<String>,
    /// One fault at a time, of the kinds that have a bar, each with time to recover: how long does that take?
    /// (2 minutes at least)
    #[arg(long, conflicts_with_all = ["only", "ci"])]
    pub(super) calm: bool,
    /// A new folder for everything that is written, which is kept whatever comes of it
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    /// What CI runs: a short form of it, on PostgreSQL and on Redis
    #[arg(long, conflicts_with_all = ["topology", "keep"])]
    pub(super) ci: bool,
    /// The program to play with [default: it is built]
    #[arg(long, value_name = "FILE")]
    pub(super) program: Option<PathBuf>,
    /// A program of an earlier version: all processes begin with it and are replaced in order, one after the other, and
    /// nothing else goes wrong
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ci", "only", "calm"])]
    pub(super) upgrade_from: Option<PathBuf>,
    /// Set by this program when it calls itself in a network namespace of its own
    #[arg(long, hide = true)]
    pub(super) isolated: bool,
}

/// The parts of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    /// PostgreSQL alone, the bus directly between processes.
    Postgres,
    /// Redis alone.
    Redis,
    /// One process.
    Sqlite,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
        })
    }
}

/// A run's cluster, load and faults.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) topology: Topology,
    pub(super) length: Duration,
    pub(super) seed: u64,
    pub(super) servers: usize,
    pub(super) workers: usize,
    /// Tasks a second.
    pub(super) rate: f64,
    pub(super) capacity: u32,
    pub(super) only: Option<String>,
    /// Faults come one at a time.
    pub(super) is_calm: bool,
    /// All processes begin with an earlier program and are replaced one after the other; nothing else goes wrong.
    pub(super) is_upgrade: bool,
    /// There is a network namespace of our own, in which routes can be taken away.
    pub(super) isolated: bool,
}

/// The default of tasks a second: 50,000 in ten minutes and some to spare.
const RATE: f64 = 90.0;

/// A server that does not renew its session for this long is gone.
pub(crate) const SERVER_TTL: Duration = Duration::from_secs(5);
/// A worker that does not renew its session for this long is gone.
pub(crate) const WORKER_TTL: Duration = Duration::from_secs(10);

impl Options {
    /// The options of CI for one topology.
    pub(super) fn of_ci(topology: Topology) -> Self {
        Self::small(topology, CI_MINUTES)
    }

    /// An upgrade from an earlier program, for one topology.
    pub(super) fn of_upgrade(topology: Topology, from: &Path) -> Self {
        Self { upgrade_from: Some(from.to_owned()), ..Self::small(topology, UPGRADE_MINUTES) }
    }

    /// The load that a small machine can bear.
    fn small(topology: Topology, minutes: f64) -> Self {
        Self {
            topology: Some(topology),
            minutes,
            seed: Some(CI_SEED),
            servers: 3,
            workers: 4,
            rate: Some(CI_RATE),
            capacity: None,
            only: None,
            calm: false,
            keep: None,
            ci: false,
            program: None,
            upgrade_from: None,
            isolated: false,
        }
    }

    pub(super) fn scenario(&self) -> Scenario {
        let random = || {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::from(time.subsec_micros())
        };
        let topology = self.topology.unwrap_or(Topology::Sqlite);
        let (servers, workers) = match topology {
            // All in one process.
            Topology::Sqlite => (1, 0),
            Topology::Postgres | Topology::Redis => (self.servers.max(1), self.workers.max(1)),
        };
        Scenario {
            topology,
            length: Duration::from_secs_f64(self.minutes.max(0.1) * 60.0),
            seed: self.seed.unwrap_or_else(random),
            servers,
            workers,
            rate: self.rate.unwrap_or(RATE),
            capacity: self.capacity.unwrap_or(if workers == 0 { 240 } else { 80 }),
            only: self.only.clone(),
            is_calm: self.calm,
            is_upgrade: self.upgrade_from.is_some(),
            isolated: self.isolated,
        }
    }

    /// How to play the same again.
    pub(super) fn command(&self, scenario: &Scenario) -> String {
        let Scenario { topology, seed, servers, workers, rate, capacity, .. } = scenario;
        let minutes = self.minutes;
        let only = self.only.as_ref().map(|only| format!(" --only {only}")).unwrap_or_default();
        let calm = if self.calm { " --calm" } else { "" };
        let from = self.upgrade_from.as_ref();
        let from = from.map(|from| format!(" --upgrade-from {}", from.display())).unwrap_or_default();
        format!(
            "cargo xtask chaos --topology {topology} --minutes {minutes} --seed {seed} --servers {servers} \
             --workers {workers} --rate {rate} --capacity {capacity}{only}{calm}{from}"
        )
    }
}

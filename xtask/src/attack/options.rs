//! The options of an attack.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::plan::Class;
use crate::chaos::Topology;

/// How long CI attacks, in minutes; starting and settling take as long again.
pub(super) const CI_MINUTES: f64 = 0.4;
/// Honest tasks a second, unless said otherwise: few, since each of them starts processes of its own.
const RATE: f64 = 4.0;

/// `cargo xtask attack`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// How long the attack lasts
    #[arg(long, default_value_t = 30.0)]
    pub(super) minutes: f64,
    /// The moves and their order follow from it [default: another one each time]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// The store; PostgreSQL and Redis make a cluster of two servers and two workers
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(super) store: Topology,
    /// Honest tasks a second
    #[arg(long, default_value_t = RATE)]
    pub(super) rate: f64,
    /// Only these classes of moves; the floors of the others are not asserted
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) only: Vec<Class>,
    /// What CI runs: a short attack with every kind of move, with another seed for each commit
    #[arg(long, conflicts_with_all = ["minutes", "only", "keep"])]
    pub(super) ci: bool,
    /// A new folder for everything that is written, which is kept
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    /// The program to attack [default: it is built]
    #[arg(long, value_name = "FILE")]
    pub(super) program: Option<PathBuf>,
}

/// The systems and classes of an attack.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) store: Topology,
    pub(super) length: Duration,
    pub(super) seed: u64,
    pub(super) rate: f64,
    pub(super) only: Vec<Class>,
}

impl Options {
    /// The options of CI.
    pub(super) fn of_ci(seed: u64) -> Self {
        Self {
            minutes: CI_MINUTES,
            seed: Some(seed),
            store: Topology::Sqlite,
            rate: RATE,
            only: Vec::new(),
            ci: false,
            keep: None,
            program: None,
        }
    }

    pub(super) fn scenario(&self) -> Scenario {
        let random = || {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::from(time.subsec_micros())
        };
        Scenario {
            store: self.store,
            length: Duration::from_secs_f64(self.minutes.max(0.2) * 60.0),
            seed: self.seed.unwrap_or_else(random),
            rate: self.rate,
            only: self.only.clone(),
        }
    }

    /// The command that plays the same moves again.
    pub(super) fn command(&self, scenario: &Scenario) -> String {
        let Scenario { store, seed, rate, only, .. } = scenario;
        let minutes = self.minutes;
        let only: Vec<&str> = only.iter().map(|class| class.as_str()).collect();
        let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
        format!("cargo xtask attack --store {store} --minutes {minutes} --seed {seed} --rate {rate}{only}")
    }
}

impl Scenario {
    /// Whether moves of a class are played. In a cluster the clock of the store stands above those of servers.
    pub(super) fn plays(&self, class: Class) -> bool {
        let is_possible = class != Class::Steps || self.store == Topology::Sqlite;
        is_possible && (self.only.is_empty() || self.only.contains(&class))
    }
}

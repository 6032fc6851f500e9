//! The faults: their kinds, how often each happens, and a plan that follows from the seed.
//!
//! The plan gives the kind, the target and the order. Faults overlap, but by the plan each process has one
//! fault at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tasklane_core::rng::Rng;

use super::options::{SERVER_TTL, Scenario, Topology, WORKER_TTL};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    WorkerKilled,
    WorkerAndGuardKilled,
    WorkerPaused,
    GuardPaused,
    WorkerAndGuardPaused,
    WorkerStopped,
    WorkerCut,
    WorkerRequestsHeld,
    WorkerAnswersHeld,
    ServerKilled,
    ServerAndGuardKilled,
    ServerPaused,
    ServerStopped,
    ServerCut,
    ServerRequestsHeld,
    ServerAnswersHeld,
    ServerUnreachable,
    DatabaseKilled,
    DatabasePaused,
    BusLost,
}

/// To whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Worker,
    Server,
    Database,
    Bus,
}

impl Kind {
    pub(super) const ALL: [Self; 20] = [
        Self::WorkerKilled,
        Self::WorkerAndGuardKilled,
        Self::WorkerPaused,
        Self::GuardPaused,
        Self::WorkerAndGuardPaused,
        Self::WorkerStopped,
        Self::WorkerCut,
        Self::WorkerRequestsHeld,
        Self::WorkerAnswersHeld,
        Self::ServerKilled,
        Self::ServerAndGuardKilled,
        Self::ServerPaused,
        Self::ServerStopped,
        Self::ServerCut,
        Self::ServerRequestsHeld,
        Self::ServerAnswersHeld,
        Self::ServerUnreachable,
        Self::DatabaseKilled,
        Self::DatabasePaused,
        Self::BusLost,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::WorkerKilled => "worker killed",
            Self::WorkerAndGuardKilled => "worker and guard killed",
            Self::WorkerPaused => "worker paused past its TTL",
            Self::GuardPaused => "guard paused past its worker's TTL",
            Self::WorkerAndGuardPaused => "worker and guard paused past their TTL",
            Self::WorkerStopped => "worker stopped in order",
            Self::WorkerCut => "worker cut off from the database",
            Self::WorkerRequestsHeld => "worker's requests to the database held",
            Self::WorkerAnswersHeld => "database's answers to a worker held",
            Self::ServerKilled => "server killed",
            Self::ServerAndGuardKilled => "server and guard killed",
            Self::ServerPaused => "server paused past its TTL",
            Self::ServerStopped => "server stopped in order",
            Self::ServerCut => "server cut off from the database",
            Self::ServerRequestsHeld => "server's requests to the database held",
            Self::ServerAnswersHeld => "database's answers to a server held",
            Self::ServerUnreachable => "server behind a blackhole route",
            Self::DatabaseKilled => "database killed",
            Self::DatabasePaused => "database paused",
            Self::BusLost => "bus loses everything",
        }
    }

    pub(super) const fn victim(self) -> Victim {
        match self {
            Self::WorkerKilled
            | Self::WorkerAndGuardKilled
            | Self::WorkerPaused
            | Self::GuardPaused
            | Self::WorkerAndGuardPaused
            | Self::WorkerStopped
            | Self::WorkerCut
            | Self::WorkerRequestsHeld
            | Self::WorkerAnswersHeld => Victim::Worker,
            Self::ServerKilled
            | Self::ServerAndGuardKilled
            | Self::ServerPaused
            | Self::ServerStopped
            | Self::ServerCut
            | Self::ServerRequestsHeld
            | Self::ServerAnswersHeld
            | Self::ServerUnreachable => Victim::Server,
            Self::DatabaseKilled | Self::DatabasePaused => Victim::Database,
            Self::BusLost => Victim::Bus,
        }
    }

    /// The longest recovery that is promised, if one is.
    pub(super) fn bar(self) -> Option<Duration> {
        match self {
            Self::WorkerKilled => Some(Duration::from_secs(2)),
            Self::WorkerAndGuardKilled => Some(WORKER_TTL * 3 / 2),
            Self::ServerKilled | Self::ServerAndGuardKilled => Some(SERVER_TTL * 3 / 2),
            Self::WorkerStopped | Self::ServerStopped => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// How often it happens in ten minutes.
    const fn in_ten_minutes(self, topology: Topology) -> usize {
        if matches!(topology, Topology::Sqlite) {
            return match self {
                Self::ServerKilled => 40,
                Self::ServerAndGuardKilled => 25,
                Self::ServerPaused => 10,
                Self::ServerStopped => 15,
                _ => 0,
            };
        }
        match self {
            Self::WorkerKilled => 85,
            Self::WorkerAndGuardKilled => 25,
            Self::ServerKilled => 24,
            Self::ServerAndGuardKilled | Self::ServerPaused => 11,
            Self::WorkerStopped => 10,
            Self::ServerStopped | Self::WorkerCut | Self::ServerCut => 8,
            Self::WorkerPaused => 7,
            Self::DatabaseKilled => 6,
            Self::WorkerAndGuardPaused | Self::DatabasePaused | Self::ServerUnreachable => 5,
            Self::GuardPaused
            | Self::WorkerRequestsHeld
            | Self::WorkerAnswersHeld
            | Self::ServerRequestsHeld
            | Self::ServerAnswersHeld => 4,
            // Where processes talk to each other directly, the blackhole is what loses messages.
            Self::BusLost => match topology {
                Topology::Redis => 5,
                Topology::Postgres | Topology::Sqlite => 0,
            },
        }
    }

    /// How often it happens in a run.
    pub(super) fn wanted(self, scenario: &Scenario) -> usize {
        let is_possible = self != Self::ServerUnreachable || scenario.isolated;
        let is_asked_for = scenario.only.as_ref().is_none_or(|only| self.as_str().contains(only.as_str()));
        let times = self.in_ten_minutes(scenario.topology);
        if scenario.is_upgrade {
            return match self {
                Self::ServerStopped => scenario.servers,
                Self::WorkerStopped => scenario.workers,
                _ => 0,
            };
        }
        if scenario.is_calm && times > 0 {
            return self.bar().map_or(0, |_| calm_rounds(scenario));
        }
        if times == 0 || !is_possible || !is_asked_for {
            return 0;
        }
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let times = times as f64 * scenario.length.as_secs_f64() / 600.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "few, and more than none"
        )]
        let times = times.round() as usize;
        times.max(1)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that will go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    /// When, at the earliest.
    pub(super) at: Duration,
    /// Which of the possible victims.
    pub(super) victim: usize,
    /// How long it lasts, where that is a matter of choice.
    pub(super) hold: Duration,
    /// How long the ended process stays away.
    pub(super) back_after: Duration,
}

/// How long a hit process has no further fault afterwards.
pub(super) const SETTLE: Duration = Duration::from_millis(1_500);
/// How long no further fault comes after a recovery, where faults come one at a time: a process that was
/// stopped in order lets its attempts go on for some of it.
const CALM: Duration = Duration::from_secs(10);
/// The share of a run that passes before the first fault, and after the last.
const QUIET_PERCENT: u32 = 3;

/// The faults of a run.
pub(super) fn plan(scenario: &Scenario) -> Vec<Planned> {
    if scenario.is_upgrade {
        return replacements(scenario);
    }
    if scenario.is_calm {
        return one_at_a_time(scenario);
    }
    let mut rng = Rng::new(scenario.seed);
    let mut kinds: Vec<Kind> =
        Kind::ALL.into_iter().flat_map(|kind| std::iter::repeat_n(kind, kind.wanted(scenario))).collect();
    for at in (1..kinds.len()).rev() {
        kinds.swap(at, rng.index(at + 1));
    }
    let quiet = scenario.length * QUIET_PERCENT / 100;
    let each =
        scenario.length.saturating_sub(2 * quiet) / u32::try_from(kinds.len().max(1)).unwrap_or(u32::MAX);
    let mut free_at: BTreeMap<(u8, usize), Duration> = BTreeMap::new();
    let mut planned = Vec::new();
    for (n, kind) in (0..).zip(kinds) {
        let at = quiet + each * n + each * u32::try_from(rng.below(100)).unwrap_or(0) / 200;
        let (class, victims) = match kind.victim() {
            Victim::Worker => (0, scenario.workers),
            Victim::Server => (1, scenario.servers),
            Victim::Database => (2, 1),
            Victim::Bus => (3, 1),
        };
        let hold = hold(kind, scenario, &mut rng);
        let back_after = Duration::from_millis(300 + rng.below(1_700));
        // A process without another fault at that time, by the plan; else the process that is free first.
        let first = rng.index(victims);
        let order = (0..victims).map(|next| (first + next) % victims);
        let is_free_at = |victim: &usize| free_at.get(&(class, *victim)).copied().unwrap_or_default();
        let victim = order.min_by_key(|victim| is_free_at(victim).max(at)).unwrap_or(0);
        free_at.insert((class, victim), at + hold + back_after + SETTLE);
        planned.push(Planned { kind, at, victim, hold, back_after });
    }
    planned
}

/// Each process is ended and started once, in order.
fn replacements(scenario: &Scenario) -> Vec<Planned> {
    let servers = (0..scenario.servers).map(|victim| (Kind::ServerStopped, victim));
    let all: Vec<_> =
        servers.chain((0..scenario.workers).map(|victim| (Kind::WorkerStopped, victim))).collect();
    // The first and the last part of the run belong to one version.
    let each = scenario.length / u32::try_from(all.len() + 1).unwrap_or(u32::MAX);
    let planned = |(n, (kind, victim))| Planned {
        kind,
        at: each * n,
        victim,
        hold: Duration::ZERO,
        back_after: Duration::from_millis(300),
    };
    (1..).zip(all).map(planned).collect()
}

/// How long nothing else goes wrong after a fault of this kind.
fn calm_after(kind: Kind) -> Duration {
    kind.bar().map_or(Duration::ZERO, |bar| bar + CALM)
}

/// How often each kind happens where they come one at a time.
fn calm_rounds(scenario: &Scenario) -> usize {
    let round: Duration = Kind::ALL.into_iter().map(calm_after).sum();
    usize::try_from(scenario.length.as_secs() / round.as_secs()).unwrap_or(usize::MAX).max(1)
}

/// The kinds that have a bar, in turns, each with time to recover.
fn one_at_a_time(scenario: &Scenario) -> Vec<Planned> {
    let mut rng = Rng::new(scenario.seed);
    let mut at = Duration::ZERO;
    let mut planned = Vec::new();
    for _ in 0..calm_rounds(scenario) {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.wanted(scenario) > 0) {
            let victims = if kind.victim() == Victim::Worker { scenario.workers } else { scenario.servers };
            let back_after = Duration::from_millis(300 + rng.below(1_700));
            planned.push(Planned { kind, at, victim: rng.index(victims), hold: Duration::ZERO, back_after });
            at += calm_after(kind);
        }
    }
    planned
}

/// How long a fault lasts.
fn hold(kind: Kind, scenario: &Scenario, rng: &mut Rng) -> Duration {
    let past = |ttl: Duration| (ttl + Duration::from_millis(1_500), ttl + Duration::from_secs(4));
    let short = (Duration::ZERO, Duration::from_secs(4));
    let is_long = |rng: &mut Rng| rng.chance(30);
    let (from, to) = match kind {
        Kind::WorkerPaused | Kind::GuardPaused | Kind::WorkerAndGuardPaused => past(WORKER_TTL),
        // One process is a worker as well.
        Kind::ServerPaused if scenario.topology == Topology::Sqlite => past(WORKER_TTL),
        Kind::ServerPaused => past(SERVER_TTL),
        Kind::WorkerCut | Kind::WorkerRequestsHeld | Kind::WorkerAnswersHeld => {
            if is_long(rng) {
                past(WORKER_TTL)
            } else {
                short
            }
        }
        Kind::ServerCut | Kind::ServerRequestsHeld | Kind::ServerAnswersHeld => {
            if is_long(rng) {
                past(SERVER_TTL)
            } else {
                short
            }
        }
        Kind::ServerUnreachable => (Duration::from_secs(2), Duration::from_secs(9)),
        Kind::DatabasePaused => (Duration::from_secs(1), Duration::from_secs(7)),
        Kind::BusLost => (Duration::from_secs(2), Duration::from_secs(8)),
        Kind::WorkerKilled
        | Kind::WorkerAndGuardKilled
        | Kind::WorkerStopped
        | Kind::ServerKilled
        | Kind::ServerAndGuardKilled
        | Kind::ServerStopped
        | Kind::DatabaseKilled => return Duration::ZERO,
    };
    let span = u64::try_from(to.saturating_sub(from).as_millis()).unwrap_or(0);
    from + Duration::from_millis(rng.below(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(topology: Topology, minutes: u64) -> Scenario {
        Scenario {
            topology,
            length: Duration::from_secs(60 * minutes),
            seed: 3,
            servers: 3,
            workers: 4,
            rate: 1.0,
            capacity: 1,
            only: None,
            is_calm: false,
            is_upgrade: false,
            isolated: true,
        }
    }

    fn count(plan: &[Planned], kinds: &[Kind]) -> usize {
        plan.iter().filter(|planned| kinds.contains(&planned.kind)).count()
    }

    #[test]
    fn a_full_run_has_what_was_promised() {
        for topology in [Topology::Postgres, Topology::Redis] {
            let plan = plan(&scenario(topology, 10));
            assert!(count(&plan, &[Kind::WorkerKilled, Kind::WorkerAndGuardKilled]) >= 100);
            assert!(count(&plan, &[Kind::ServerKilled, Kind::ServerAndGuardKilled]) >= 30);
            assert!(count(&plan, &[Kind::ServerPaused]) >= 10);
            assert!(count(&plan, &[Kind::WorkerPaused, Kind::WorkerAndGuardPaused]) >= 10);
            assert!(count(&plan, &[Kind::DatabaseKilled]) >= 5);
        }
    }

    #[test]
    fn an_upgrade_replaces_each_process_once() {
        let upgrade = Scenario { is_upgrade: true, ..scenario(Topology::Redis, 1) };
        let planned = plan(&upgrade);
        let mut replaced: Vec<_> = planned.iter().map(|planned| (planned.kind, planned.victim)).collect();
        replaced.sort_unstable();
        replaced.dedup();
        assert_eq!(replaced.len(), upgrade.servers + upgrade.workers);
        for kind in Kind::ALL {
            assert_eq!(count(&planned, &[kind]), kind.wanted(&upgrade), "{kind}");
        }
    }

    #[test]
    fn calm_faults_come_one_at_a_time() {
        let calm = Scenario { is_calm: true, ..scenario(Topology::Postgres, 5) };
        let planned = plan(&calm);
        for pair in planned.windows(2) {
            assert!(pair[1].at > pair[0].at + pair[0].kind.bar().unwrap(), "{pair:?}");
        }
        for kind in Kind::ALL {
            assert_eq!(count(&planned, &[kind]), kind.wanted(&calm), "{kind}");
            assert_eq!(kind.wanted(&calm) >= 3, kind.bar().is_some(), "{kind}");
        }
        assert!(planned.last().unwrap().at < calm.length);
    }

    #[test]
    fn the_same_seed_is_the_same_plan_and_short_runs_have_every_kind() {
        let short = scenario(Topology::Redis, 1);
        let planned = plan(&short);
        assert_eq!(planned, plan(&short));
        for kind in Kind::ALL {
            assert!(count(&planned, &[kind]) >= 1, "{kind}");
        }
        assert!(planned.is_sorted_by_key(|planned| planned.at));
        assert_ne!(planned, plan(&Scenario { seed: 4, ..short }));
    }
}

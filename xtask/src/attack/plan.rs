//! The moves of an attack: a pure function of the seed, the length and the classes that are played.

use std::time::Duration;

use tasklane_core::rng::Rng;

use super::costly::COSTLY;
use super::files::Damage;
use super::options::Scenario;
use super::sockets::Crowd;
use super::tasks::TASKS;

/// A class of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Class {
    /// Killed processes.
    Kills,
    /// Steps of the clock.
    Steps,
    /// Hostile requests.
    Requests,
    /// Exhausted connections and descriptors.
    Sockets,
    /// Schemas, templates and the like that cost much.
    Costly,
    /// Hostile tasks.
    Tasks,
    /// Deleted and damaged files.
    Files,
}

impl Class {
    pub(super) const ALL: [Self; 7] =
        [Self::Kills, Self::Steps, Self::Requests, Self::Sockets, Self::Costly, Self::Tasks, Self::Files];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kills => "kills",
            Self::Steps => "steps",
            Self::Requests => "requests",
            Self::Sockets => "sockets",
            Self::Costly => "costly",
            Self::Tasks => "tasks",
            Self::Files => "files",
        }
    }

    /// Moves in thirty minutes: a little more than the run must show.
    const fn planned(self) -> usize {
        match self {
            Self::Kills => 330,
            Self::Steps => 24,
            Self::Requests => 52_000,
            Self::Sockets => 30,
            Self::Costly => 60,
            Self::Tasks => 160,
            Self::Files => 40,
        }
    }

    /// Moves that a run of thirty minutes must show.
    const fn wanted(self) -> usize {
        match self {
            Self::Kills => 300,
            Self::Steps => 20,
            Self::Requests => 50_000,
            Self::Sockets => 24,
            Self::Costly => 50,
            Self::Tasks => 140,
            Self::Files => 32,
        }
    }

    /// The kinds of this class: each is played at least once.
    const fn kinds(self) -> usize {
        match self {
            Self::Kills => Victim::ALL.len(),
            Self::Steps => 2,
            Self::Requests => 400,
            Self::Sockets => Crowd::ALL.len(),
            Self::Costly => COSTLY.len(),
            Self::Tasks => TASKS.len(),
            Self::Files => Damage::ALL.len(),
        }
    }

    /// Moves of this class in a run.
    pub(super) fn count(self, scenario: &Scenario) -> usize {
        if scenario.plays(self) { scaled(self.planned(), scenario).max(self.kinds()) } else { 0 }
    }

    /// Moves that a run must show.
    pub(super) fn floor(self, scenario: &Scenario) -> usize {
        let least = self.count(scenario).min(self.kinds());
        if scenario.plays(self) { scaled(self.wanted(), scenario).max(least) } else { 0 }
    }
}

/// A share of what happens in thirty minutes.
fn scaled(in_thirty_minutes: usize, scenario: &Scenario) -> usize {
    let share = scenario.length.as_millis() * in_thirty_minutes as u128 / THIRTY_MINUTES.as_millis();
    usize::try_from(share).unwrap_or(usize::MAX)
}

const THIRTY_MINUTES: Duration = Duration::from_mins(30);

/// The victim of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Server,
    Guard,
    Shim,
    ServerAndGuard,
    /// In a cluster; the embedded worker dies with its server.
    Worker,
}

impl Victim {
    pub(super) const ALL: [Self; 5] =
        [Self::Server, Self::Guard, Self::Shim, Self::ServerAndGuard, Self::Worker];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Guard => "guard",
            Self::Shim => "shim",
            Self::ServerAndGuard => "server and guard",
            Self::Worker => "worker",
        }
    }
}

/// A step of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// By how much, in milliseconds.
    pub(super) by: i64,
    /// When the clock goes back to where it was; else the step is for good.
    pub(super) back_after: Option<Duration>,
}

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Kill {
        victim: Victim,
        back_after: Duration,
    },
    Step(Step),
    Crowd(Crowd),
    /// By its place in [`COSTLY`].
    Costly(usize),
    /// By its place in [`TASKS`].
    Task(usize),
    Damage(Damage),
}

/// A move, and when it is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) at: Duration,
    pub(super) play: Move,
}

/// The share of a run that passes before the first move.
const QUIET_PERCENT: u32 = 3;
/// The smallest and the largest steps of the clock, in milliseconds.
const STEP_MIN: i64 = 2_500;
const STEP_MAX: i64 = 12 * 86_400_000;
/// The clock stays within this distance of the true time.
const AWAY_MAX: i64 = 25 * 86_400_000;

/// The moves of a run, by time. Hostile requests are not among them: they are sent at a steady pace.
pub(super) fn plan(scenario: &Scenario) -> Vec<Planned> {
    let mut planned = Vec::new();
    for (salt, class) in (1..).zip(Class::ALL) {
        let mut rng = Rng::new(scenario.seed ^ (salt << 32));
        let count = if class == Class::Requests { 0 } else { class.count(scenario) };
        let quiet = scenario.length * QUIET_PERCENT / 100;
        let each = scenario.length.saturating_sub(quiet) / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let mut away = 0;
        for (n, at) in (0..).zip(0..count) {
            let jitter = each * u32::try_from(rng.below(80)).unwrap_or(0) / 100;
            let play = play(class, at, &mut away, &mut rng);
            planned.push(Planned { at: quiet + each * n + jitter, play });
        }
    }
    planned.sort_by_key(|planned| planned.at);
    planned
}

fn play(class: Class, at: usize, away: &mut i64, rng: &mut Rng) -> Move {
    // The first moves are one of each kind.
    let nth = |kinds: usize, rng: &mut Rng| if at < kinds { at } else { rng.index(kinds) };
    match class {
        Class::Steps => Move::Step(step(at, away, rng)),
        Class::Sockets => Move::Crowd(Crowd::ALL[nth(Crowd::ALL.len(), rng)]),
        Class::Costly => Move::Costly(nth(COSTLY.len(), rng)),
        Class::Tasks => Move::Task(nth(TASKS.len(), rng)),
        Class::Files => Move::Damage(Damage::ALL[nth(Damage::ALL.len(), rng)]),
        Class::Kills | Class::Requests => {
            let victim = if at < Victim::ALL.len() {
                Victim::ALL[at]
            } else {
                match rng.below(10) {
                    ..3 => Victim::Server,
                    3..5 => Victim::Guard,
                    5..8 => Victim::Shim,
                    8..9 => Victim::ServerAndGuard,
                    _ => Victim::Worker,
                }
            };
            Move::Kill { victim, back_after: Duration::from_millis(rng.below(600)) }
        }
    }
}

/// Seconds to days, each magnitude as often as the next. The first two steps go both ways.
fn step(at: usize, away: &mut i64, rng: &mut Rng) -> Step {
    let mut size = STEP_MIN;
    for _ in 0..rng.below(18) {
        size = size * 9 / 4;
    }
    let size = size.min(STEP_MAX) + i64::try_from(rng.below(1000)).unwrap_or(0);
    let ahead = if at < 2 { at == 0 } else { rng.chance(50) };
    let mut by = if ahead { size } else { -size };
    if (*away + by).abs() > AWAY_MAX {
        by = -by;
    }
    let back_after = rng.chance(50).then(|| Duration::from_millis(3_000 + rng.below(22_000)));
    if back_after.is_none() {
        *away += by;
    }
    Step { by, back_after }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::Topology;

    fn scenario(seed: u64, minutes: u64) -> Scenario {
        let length = Duration::from_secs(60 * minutes);
        Scenario { store: Topology::Sqlite, length, seed, rate: 1.0, only: Vec::new() }
    }

    #[test]
    fn a_full_run_has_the_moves_of_the_bar() {
        let full = scenario(3, 30);
        let planned = plan(&full);
        let count = |is: fn(&Move) -> bool| planned.iter().filter(|planned| is(&planned.play)).count();
        assert!(count(|play| matches!(play, Move::Kill { .. })) >= Class::Kills.floor(&full));
        assert!(count(|play| matches!(play, Move::Step(_))) >= Class::Steps.floor(&full));
        assert_eq!((Class::Kills.floor(&full), Class::Steps.floor(&full)), (300, 20));
        assert_eq!(Class::Requests.floor(&full), 50_000);
        let bound = full.length;
        assert!(planned.iter().all(|planned| planned.at <= bound));
    }

    #[test]
    fn the_same_seed_is_the_same_plan_and_short_runs_have_every_kind() {
        let short = scenario(5, 1);
        let planned = plan(&short);
        assert_eq!(planned, plan(&short));
        assert_ne!(planned, plan(&scenario(6, 1)));
        let has = |play: Move| planned.iter().any(|planned| planned.play == play);
        assert!((0..TASKS.len()).all(|at| has(Move::Task(at))));
        assert!((0..COSTLY.len()).all(|at| has(Move::Costly(at))));
        assert!(Damage::ALL.into_iter().all(|damage| has(Move::Damage(damage))));
        assert!(Crowd::ALL.into_iter().all(|crowd| has(Move::Crowd(crowd))));
        let steps: Vec<i64> = planned
            .iter()
            .filter_map(|planned| if let Move::Step(step) = planned.play { Some(step.by) } else { None })
            .collect();
        assert!(steps.iter().any(|by| *by > 0) && steps.iter().any(|by| *by < 0), "{steps:?}");
    }

    #[test]
    fn the_clock_stays_near_the_true_time() {
        let mut away: i64 = 0;
        for planned in plan(&scenario(9, 300)) {
            if let Move::Step(Step { by, back_after }) = planned.play {
                assert!((away + by).abs() <= AWAY_MAX + STEP_MAX);
                if back_after.is_none() {
                    away += by;
                }
            }
        }
        assert!(away.abs() <= AWAY_MAX);
    }
}

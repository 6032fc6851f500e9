//! The reports of one run and of many.

use std::collections::{BTreeMap, BTreeSet};

use tasklane_core::status::Status;

use crate::checker::Violation;

/// The least that every run has.
pub const FULL: &str =
    "100 tasks, 2 schedulers, 3 workers, 2 takeovers, 2 worker losses and an unknown commit";

/// Paths that no run needs to reach while the first line of defence holds. Stories in `tests/lane` cover
/// them.
const SECOND_LINES: [&str; 2] = ["attempt_overrun", "group_mismatch"];

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Schedulers that took part.
    pub servers: usize,
    /// Workers that did.
    pub workers: usize,
    /// Tasks created.
    pub tasks: u64,
    /// Lanes taken over by another process.
    pub takeovers: u64,
    /// Worker sessions that ended with attempts.
    pub worker_losses: u64,
    /// Commits whose outcome the owner did not learn at first.
    pub unknown_commits: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Events handled.
    pub steps: u64,
    /// The violations.
    pub violations: Vec<Violation>,
    /// Status transitions that were written.
    pub transitions: BTreeSet<(Status, Status)>,
    /// Rare paths.
    pub counters: BTreeMap<&'static str, u64>,
    /// The story of the traced task.
    pub trace: Vec<String>,
    /// A hash of everything that happened.
    pub digest: u64,
}

impl Report {
    /// Whether the run had the faults that [`FULL`] asks for.
    pub fn is_full(&self) -> bool {
        self.tasks >= 100
            && self.servers >= 2
            && self.workers >= 3
            && self.takeovers >= 2
            && self.worker_losses >= 2
            && self.unknown_commits >= 1
    }

    /// Counts a rare path.
    pub(crate) fn path(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    /// Counts a fault.
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }
}

/// Many runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// How many.
    pub runs: u64,
    /// Seeds with fewer faults than [`FULL`] asks for.
    pub thin: Vec<u64>,
    /// Over all runs.
    pub sum: Report,
    /// Seeds with violations, and the first of them.
    pub failures: Vec<(u64, String)>,
}

impl Totals {
    /// Adds a run.
    pub fn add(&mut self, seed: u64, report: &Report) {
        self.runs += 1;
        if !report.is_full() {
            self.thin.push(seed);
        }
        self.sum.tasks += report.tasks;
        self.sum.takeovers += report.takeovers;
        self.sum.worker_losses += report.worker_losses;
        self.sum.unknown_commits += report.unknown_commits;
        self.sum.steps += report.steps;
        for (kind, count) in &report.faults {
            *self.sum.faults.entry(kind).or_default() += count;
        }
        for (name, count) in &report.counters {
            *self.sum.counters.entry(name).or_default() += count;
        }
        self.sum.transitions.extend(report.transitions.iter().copied());
        if let Some(first) = report.violations.first() {
            self.failures.push((seed, format!("{}: {}", first.at, first.what)));
        }
    }

    /// Adds another thread's runs.
    pub fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.thin.extend(other.thin);
        self.sum.tasks += other.sum.tasks;
        self.sum.takeovers += other.sum.takeovers;
        self.sum.worker_losses += other.sum.worker_losses;
        self.sum.unknown_commits += other.sum.unknown_commits;
        self.sum.steps += other.sum.steps;
        for (kind, count) in other.sum.faults {
            *self.sum.faults.entry(kind).or_default() += count;
        }
        for (name, count) in other.sum.counters {
            *self.sum.counters.entry(name).or_default() += count;
        }
        self.sum.transitions.extend(other.sum.transitions);
        self.failures.extend(other.failures);
    }

    /// Transitions of the status table that no run took.
    pub fn unreached_transitions(&self) -> Vec<(Status, Status)> {
        let all = Status::ALL.iter().flat_map(|&from| from.successors().iter().map(move |&to| (from, to)));
        all.filter(|step| !self.sum.transitions.contains(step)).collect()
    }

    /// The rarest of the paths that some run took, and how often.
    pub fn rarest_paths(&self, most: usize) -> Vec<(&'static str, u64)> {
        let mut paths: Vec<_> =
            self.sum.counters.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (*name, *n)).collect();
        paths.sort_by_key(|(name, n)| (*n, *name));
        paths.truncate(most);
        paths
    }

    /// Rare paths that no run took.
    pub fn unreached_paths(&self) -> Vec<&'static str> {
        let unreached = self.sum.counters.iter().filter(|(name, n)| **n == 0 && !SECOND_LINES.contains(name));
        unreached.map(|(name, _)| *name).collect()
    }
}

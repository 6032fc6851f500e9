//! Seeds that notice when an invariant is off. They are kept in a file, because every change of the machines
//! may lead some of them another way; `cargo xtask sim --invariants --write` looks for new ones and rewrites
//! the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use tasklane_core::invariant::{Invariant, Invariants};

use crate::scenario::Scenario;
use crate::world::run;

/// The file, from the root of the workspace.
pub const FILE: &str = "crates/engine/sim/tests/invariants.seeds";
/// Seeds within which a missing invariant must be noticed.
pub const SEEDS_MAX: u64 = 10_000;

const HEADER: &str = "\
# For each invariant a seed that notices when it is off.
# Written by `cargo xtask sim --invariants --write`.
";

/// Reads the file: an invariant and its seed in each line. Names that are no invariant, or no longer one, are
/// left out.
pub fn parse(text: &str) -> BTreeMap<Invariant, u64> {
    let line = |line: &str| {
        let (name, seed) = line.split_once(char::is_whitespace)?;
        let invariant = Invariant::ALL.iter().find(|invariant| invariant.as_str() == name)?;
        Some((*invariant, seed.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The text of the file.
pub fn print(seeds: &BTreeMap<Invariant, u64>) -> String {
    let mut text = HEADER.to_owned();
    for (invariant, seed) in seeds {
        let _ = writeln!(text, "{} {seed}", invariant.as_str());
    }
    text
}

/// The violation that a seed finds when the invariant is off.
pub fn violation(invariant: Invariant, seed: u64) -> Option<String> {
    let report = run(&Scenario::new(seed, Invariants::without(invariant)));
    report.violations.first().map(|violation| violation.what.clone())
}

/// The first seed that notices, looked for on all cores.
pub fn look_for(invariant: Invariant) -> Option<u64> {
    let next = AtomicU64::new(1);
    let found = AtomicU64::new(u64::MAX);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while found.load(Ordering::Relaxed) == u64::MAX {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS_MAX {
                        break;
                    }
                    if violation(invariant, seed).is_some() {
                        found.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Some(found.into_inner()).filter(|seed| *seed <= SEEDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let seeds: BTreeMap<Invariant, u64> = Invariant::ALL.iter().copied().zip(7..).collect();
        assert_eq!(parse(&print(&seeds)), seeds);
        assert_eq!(parse("# a comment\nNoInvariant 3\n"), BTreeMap::new());
    }
}

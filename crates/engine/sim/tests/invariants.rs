//! Proof that the checker bites: with any one invariant off, some seed is reported.

use std::collections::{BTreeMap, BTreeSet};

use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_sim::{Scenario, invariants, run};

fn kept() -> BTreeMap<Invariant, u64> {
    invariants::parse(include_str!("invariants.seeds"))
}

#[test]
fn every_invariant_is_missed_when_it_is_off() {
    let kept = kept();
    let mut moved = Vec::new();
    for &invariant in Invariant::ALL {
        if kept.get(&invariant).is_some_and(|&seed| invariants::violation(invariant, seed).is_some()) {
            continue;
        }
        let name = invariant.as_str();
        moved.push(match invariants::look_for(invariant) {
            Some(seed) => format!("{name} {seed}"),
            None => format!("# {name} is missed by none of {} seeds", invariants::SEEDS_MAX),
        });
    }
    assert!(
        moved.is_empty(),
        "some seeds of {} no longer notice. These do; `cargo xtask sim --invariants --write` writes them there:\n{}",
        invariants::FILE,
        moved.join("\n")
    );
}

#[test]
fn with_every_invariant_on_the_same_seeds_are_fine() {
    let seeds: BTreeSet<u64> = kept().into_values().collect();
    for seed in seeds {
        let report = run(&Scenario::new(seed, Invariants::ALL_ON));
        assert_eq!(report.violations, [], "seed {seed}");
    }
}

#[test]
fn the_same_seed_goes_the_same_way() {
    for seed in 1..=5 {
        let [first, second] = [(); 2].map(|()| run(&Scenario::new(seed, Invariants::ALL_ON)));
        assert_eq!((first.digest, first.steps), (second.digest, second.steps));
        assert!(first.is_full(), "seed {seed} had its share of trouble");
    }
}

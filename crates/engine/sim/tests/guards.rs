//! Proof that the checker bites: with any one guard off, some seed violates an invariant.

use std::collections::{BTreeMap, BTreeSet};

use tasklane_core::guard::{Guard, Guards};
use tasklane_sim::{Scenario, guards, run};

fn kept() -> BTreeMap<Guard, u64> {
    guards::parse(include_str!("guards.seeds"))
}

#[test]
fn every_guard_is_missed_when_it_is_off() {
    let kept = kept();
    let mut moved = Vec::new();
    for &guard in Guard::ALL {
        if kept.get(&guard).is_some_and(|&seed| guards::violation(guard, seed).is_some()) {
            continue;
        }
        let name = guard.as_str();
        moved.push(match guards::look_for(guard) {
            Some(seed) => format!("{name} {seed}"),
            None => format!("# {name} is missed by none of {} seeds", guards::SEEDS_MAX),
        });
    }
    assert!(
        moved.is_empty(),
        "some seeds of {} no longer notice. These do; `cargo xtask sim --guards --write` writes them there:\n{}",
        guards::FILE,
        moved.join("\n")
    );
}

#[test]
fn with_every_guard_on_the_same_seeds_are_fine() {
    let seeds: BTreeSet<u64> = kept().into_values().collect();
    for seed in seeds {
        let report = run(&Scenario::new(seed, Guards::ALL_ON));
        assert_eq!(report.violations, [], "seed {seed}");
    }
}

#[test]
fn the_same_seed_goes_the_same_way() {
    for seed in 1..=5 {
        let [first, second] = [(); 2].map(|()| run(&Scenario::new(seed, Guards::ALL_ON)));
        assert_eq!((first.digest, first.steps), (second.digest, second.steps));
        assert!(first.is_full(), "seed {seed} had its share of trouble");
    }
}

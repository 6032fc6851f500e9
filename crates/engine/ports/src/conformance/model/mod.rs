//! Random operations on a store and on the reference, whose answers must be the same.
//!
//! Operations are drawn so that they often meet: few tasks, few owners, stale versions and numbers, duplicates within a
//! batch. They are abstract ("the next commit of the second owner"), so that any part of a sequence is a sequence too;
//! one that shows a difference is cut down to the operations that it takes.
//!
//! All sequences of a run share one store. Each has lanes, a namespace and a span of time of its own, so that many go
//! on at once, and a slow store is kept busy.

mod difference;
mod op;
mod side;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use futures::stream::{self, StreamExt};
use tasklane_core::rng::Rng;

use self::difference::{Difference, caught};
use self::op::Op;
use self::world::World;
use crate::Store;
use crate::conformance::StoreEnv;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many sequences.
    pub sequences: usize,
    /// Operations in each.
    pub ops: usize,
    /// The same seed draws the same sequences.
    pub seed: u64,
    /// How many sequences go on at once.
    pub parallel: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { sequences: 100, ops: 100, seed: 1, parallel: 16 }
    }
}

impl Plan {
    /// The default one, changed by `TASKLANE_MODEL_SEQUENCES`, `TASKLANE_MODEL_OPS` and `TASKLANE_MODEL_SEED`.
    pub fn from_environment() -> Self {
        fn var<T: std::str::FromStr>(name: &str, default: T) -> T {
            let Ok(text) = std::env::var(name) else { return default };
            text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}"))
        }
        let default = Self::default();
        Self {
            sequences: var("TASKLANE_MODEL_SEQUENCES", default.sequences),
            ops: var("TASKLANE_MODEL_OPS", default.ops),
            seed: var("TASKLANE_MODEL_SEED", default.seed),
            ..default
        }
    }
}

/// Gives a fresh, empty reference store.
pub type Reference<'a> = &'a (dyn Fn() -> Arc<dyn Store> + Sync);

/// One test that compares a store with the reference. Takes the factory of
/// [`store_conformance`](crate::store_conformance) and a closure that gives an empty reference store.
#[macro_export]
macro_rules! store_model {
    ($factory:expr, $reference:expr) => {
        #[test]
        fn behaves_like_the_reference() {
            $crate::conformance::run_long("behaves_like_the_reference", async {
                let env = ($factory)().await?;
                let plan = $crate::conformance::model::Plan::from_environment();
                $crate::conformance::model::run(&env, &|| $reference(), plan).await;
                Some(())
            });
        }
    };
}

/// Compares a store with the reference and panics with the shortest sequence that shows a difference.
pub async fn run(env: &dyn StoreEnv, reference: Reference<'_>, plan: Plan) {
    if let Some(difference) = find_difference(env, reference, plan).await {
        panic!("{difference}");
    }
}

/// Compares a store with the reference and describes the first difference.
pub async fn find_difference(env: &dyn StoreEnv, reference: Reference<'_>, plan: Plan) -> Option<String> {
    let arena = Arena {
        handles: vec![env.store(), env.second().await],
        reference,
        next_world: AtomicU16::new(0),
        policies_seen: AtomicU64::new(0),
    };
    let sequences = stream::iter(0..plan.sequences as u64).map(|number| {
        let ops =
            op::sequence(&mut Rng::new(plan.seed.wrapping_mul(1_000_003).wrapping_add(number)), plan.ops);
        let arena = &arena;
        async move {
            let difference = arena.try_out(&ops).await.err()?;
            let (ops, difference) = arena.cut_down(ops, difference).await;
            Some(describe(plan.seed, number, &ops, &difference))
        }
    });
    let mut differences =
        sequences.buffer_unordered(plan.parallel).filter_map(std::future::ready).boxed_local();
    differences.next().await
}

fn describe(seed: u64, number: u64, ops: &[Op], difference: &Difference) -> String {
    use std::fmt::Write;
    let mut text = format!("sequence {number} of seed {seed}, cut down to {} operations:\n", ops.len());
    for (index, op) in ops.iter().enumerate() {
        let _ = writeln!(text, "  {index:3}. {op:?}");
    }
    let _ = write!(text, "{difference}");
    text
}

/// Where sequences are tried out.
struct Arena<'a> {
    handles: Vec<Arc<dyn Store>>,
    reference: Reference<'a>,
    next_world: AtomicU16,
    /// Policies up to this revision belong to sequences that are over.
    policies_seen: AtomicU64,
}

/// Tries to cut a sequence down by this many runs, then it is short enough.
const CUTS_MAX: usize = 400;

impl Arena<'_> {
    async fn try_out(&self, ops: &[Op]) -> Result<(), Difference> {
        let number = self.next_world.fetch_add(1, Ordering::Relaxed);
        assert!(number < u16::MAX / World::LANES, "too many sequences for one store");
        let since = self.policies_seen.load(Ordering::Relaxed);
        let mut world = World::new(number, (self.reference)(), self.handles.clone(), since);
        for (index, op) in ops.iter().enumerate() {
            caught(world.apply(index, op)).await.map_err(|what| Difference::at(index, what))?;
        }
        let seen = caught(world.compare_all()).await.map_err(Difference::at_end)?;
        self.policies_seen.fetch_max(seen, Ordering::Relaxed);
        Ok(())
    }

    /// Leaves out what the difference does not need: ever smaller parts of the sequence, then parts of operations.
    async fn cut_down(&self, mut ops: Vec<Op>, mut difference: Difference) -> (Vec<Op>, Difference) {
        difference.truncate(&mut ops);
        let mut cuts = 0;
        let mut part = ops.len().div_ceil(2);
        while part > 0 && cuts < CUTS_MAX {
            let mut start = 0;
            while start < ops.len() && cuts < CUTS_MAX {
                let mut fewer = ops.clone();
                fewer.drain(start..(start + part).min(ops.len()));
                cuts += 1;
                match self.try_out(&fewer).await {
                    Err(found) => {
                        (ops, difference) = (fewer, found);
                        difference.truncate(&mut ops);
                    }
                    Ok(()) => start += part,
                }
            }
            part /= 2;
        }
        for index in 0..ops.len() {
            let mut smaller = ops[index].smaller();
            while let Some(op) = smaller.pop() {
                if cuts >= CUTS_MAX {
                    break;
                }
                cuts += 1;
                let mut changed = ops.clone();
                changed[index] = op;
                if let Err(found) = self.try_out(&changed).await {
                    (ops, difference) = (changed, found);
                    smaller = ops[index].smaller();
                }
            }
        }
        (ops, difference)
    }
}

//! Runs random operations on a store and on the reference, whose answers must be the same.
//!
//! Operations are drawn so that they often meet: few tasks, few owners, stale versions and numbers,
//! duplicates within a batch. They are abstract ("the next commit of the second owner"), so that any part of
//! a sequence is a sequence too; a sequence that shows a difference is cut down to the operations that it
//! takes.
//!
//! All sequences of a run share one store. Each has lanes, a namespace and a span of time of its own, so that
//! many run at once, each in a thread, and a slow store is kept busy.

mod compared_store;
mod op;
mod sequence_run;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use futures::future::join_all;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::Handle;

use self::op::{Op, SequenceState, Sequences};
use self::sequence_run::SequenceRun;
use crate::Store;
use crate::conformance::StoreEnv;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many sequences.
    pub sequences: usize,
    /// Operations in each.
    pub ops: usize,
    /// The same seed draws the same sequences.
    pub seed: u64,
    /// How many sequences run at once.
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
pub type Reference = fn() -> Arc<dyn Store>;

/// One test that compares a store with the reference. Takes the factory of
/// [`store_conformance`](crate::store_conformance) and a function that gives an empty reference store.
#[macro_export]
macro_rules! store_model {
    ($factory:expr, $reference:expr) => {
        #[test]
        fn behaves_like_the_reference() {
            $crate::conformance::run_long("behaves_like_the_reference", async {
                let env = ($factory)().await?;
                let plan = $crate::conformance::model::Plan::from_environment();
                $crate::conformance::model::run(&env, $reference, plan).await;
                Some(())
            });
        }
    };
}

/// Compares a store with the reference and panics with the shortest sequence that shows a difference.
pub async fn run(env: &dyn StoreEnv, reference: Reference, plan: Plan) {
    if let Some(difference) = find_difference(env, reference, plan).await {
        panic!("{difference}");
    }
}

/// Compares a store with the reference and describes a difference. Must be called within a runtime of several threads.
pub async fn find_difference(env: &dyn StoreEnv, reference: Reference, plan: Plan) -> Option<String> {
    let arena = Arc::new(Arena {
        runtime: Handle::current(),
        handles: vec![env.store(), env.second().await],
        reference,
        next_sequence: AtomicU64::new(0),
        next_run: AtomicU16::new(0),
        policies_seen: AtomicU64::new(0),
        failed: OnceLock::new(),
    });
    let threads = (0..plan.parallel.clamp(1, plan.sequences.max(1))).map(|_| {
        let arena = Arc::clone(&arena);
        tokio::task::spawn_blocking(move || try_sequences(&arena, plan))
    });
    let differences = join_all(threads).await;
    differences.into_iter().find_map(|difference| difference.expect("a sequence's panics are caught"))
}

/// Tries sequences until all were taken or one has failed.
fn try_sequences(arena: &Arc<Arena>, plan: Plan) -> Option<String> {
    ARENA.set(Some(Arc::clone(arena)));
    let config =
        Config { cases: 1, failure_persistence: None, max_shrink_iters: SHRINKS_MAX, ..Config::default() };
    let difference = loop {
        let number = arena.next_sequence.fetch_add(1, Ordering::Relaxed);
        if number >= plan.sequences as u64 {
            break None;
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&plan.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&number.to_le_bytes());
        // A runner for each, so that a sequence depends on nothing but the seed and its number.
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(config.clone(), rng);
        let tried = runner.run(&Sequences::sequential_strategy(plan.ops), |(told, ops, seen)| {
            if arena.failed.get().is_none_or(|failed| *failed == number) {
                let _noted = NoteFailure { arena, number };
                Comparison::test_sequential(config.clone(), told, ops, seen);
            }
            Ok(())
        });
        match tried {
            Ok(()) => {}
            Err(TestError::Abort(reason)) => break Some(reason.to_string()),
            Err(TestError::Fail(reason, (_, ops, _))) => {
                break (arena.failed.get() == Some(&number))
                    .then(|| describe(plan.seed, number, &ops, &reason.to_string()));
            }
        }
    };
    ARENA.set(None);
    difference
}

/// Tries to cut a sequence down by this many runs, then it is short enough.
const SHRINKS_MAX: u32 = 2_000;

fn describe(seed: u64, number: u64, ops: &[Op], difference: &str) -> String {
    use std::fmt::Write;
    let mut text = format!("sequence {number} of seed {seed}, cut down to {} operations:\n", ops.len());
    for (index, op) in ops.iter().enumerate() {
        let _ = writeln!(text, "  {index:3}. {op:?}");
    }
    let _ = write!(text, "{difference}");
    text
}

/// The stores and counters that all sequences of a run share.
struct Arena {
    runtime: Handle,
    handles: Vec<Arc<dyn Store>>,
    reference: Reference,
    next_sequence: AtomicU64,
    next_run: AtomicU16,
    /// Policies up to this revision belong to sequences that are over.
    policies_seen: AtomicU64,
    /// The sequence that is cut down. The others stop.
    failed: OnceLock<u64>,
}

thread_local! {
    /// A state machine test makes its system under test out of nothing, so it finds the arena here.
    static ARENA: RefCell<Option<Arc<Arena>>> = const { RefCell::new(None) };
}

/// Notes the first sequence that fails.
struct NoteFailure<'a> {
    arena: &'a Arena,
    number: u64,
}

impl Drop for NoteFailure<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.arena.failed.set(self.number);
        }
    }
}

/// The store and the reference, side by side.
struct Comparison {
    arena: Arc<Arena>,
    run: SequenceRun,
    /// Operations so far.
    done: usize,
}

impl StateMachineTest for Comparison {
    type SystemUnderTest = Self;
    type Reference = Sequences;

    fn init_test(_: &SequenceState) -> Self {
        let arena = ARENA.with_borrow(|arena| arena.clone().expect("set before sequences are tried"));
        let number = arena.next_run.fetch_add(1, Ordering::Relaxed);
        assert!(number < SequenceRun::NUMBER_MAX, "too many sequences for one store");
        let since = arena.policies_seen.load(Ordering::Relaxed);
        let run = SequenceRun::new(number, (arena.reference)(), arena.handles.clone(), since);
        Self { arena, run, done: 0 }
    }

    fn apply(mut this: Self, _: &SequenceState, op: Op) -> Self {
        let applied = this.arena.runtime.block_on(this.run.apply(this.done, &op));
        if let Err(what) = applied {
            panic!("at operation {}: {what}", this.done);
        }
        this.done += 1;
        this
    }

    fn teardown(mut this: Self, _: SequenceState) {
        match this.arena.runtime.block_on(this.run.compare_all()) {
            Ok(seen) => this.arena.policies_seen.fetch_max(seen, Ordering::Relaxed),
            Err(what) => panic!("at the end: {what}"),
        };
    }
}

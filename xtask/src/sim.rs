//! `cargo xtask sim`: runs the simulator over many seeds and prints its findings.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_core::time::Timestamp;
use tasklane_sim::{FULL, Report, Scenario, Totals, invariants, run};

use crate::cargo::root;

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long to try new seeds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Replays one seed instead
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many seeds at most
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// With --seed: prints the story of this task
    #[arg(long)]
    trace: Option<String>,
    /// Switches an invariant off, to see that it is missed
    #[arg(long)]
    without: Option<String>,
    /// Switches off every invariant in turn and prints a seed that notices: the kept one, or else a new one
    #[arg(long)]
    invariants: bool,
    /// With --invariants: keeps these seeds in the file that the tests read
    #[arg(long, requires = "invariants")]
    write: bool,
}

/// How many of the rarest paths are printed.
const RAREST: usize = 8;
/// One in so many seeds is run twice and compared.
const COMPARE_EVERY: u64 = 20;

/// How long CI plays.
const CHECK_FOR: Duration = Duration::from_secs(30);
/// … and for how long at most, while some transition or path is not reached: on a slow machine, or with bad luck.
const CHECK_FOR_MAX: Duration = Duration::from_secs(150);
/// Schedules that CI must have played. Far fewer than any machine does in that time: it is there to notice a simulator
/// that plays nothing, not a slow machine.
const SCHEDULES_MIN: u64 = 300;

/// What CI runs: new seeds every time would make failures hard to meet again, so it begins where it always does. Fails
/// also if what was played proves too little.
pub(crate) fn check() -> anyhow::Result<()> {
    let started = Instant::now();
    let mut totals = Totals::default();
    while totals.failures.is_empty() && started.elapsed() < CHECK_FOR_MAX {
        let until = Instant::now() + CHECK_FOR;
        totals.merge(run_seeds(
            1 + totals.runs,
            u64::MAX,
            Invariants::ALL_ON,
            || Instant::now() < until,
            true,
        ));
        if is_everything_reached(&totals) {
            break;
        }
    }
    print_totals(&totals, started.elapsed());
    fail_first(&totals)?;
    ensure!(totals.runs >= SCHEDULES_MIN, "only {} of {SCHEDULES_MIN} schedules were played", totals.runs);
    ensure!(totals.thin.is_empty(), "some seeds have less than {FULL}: {:?}", totals.thin);
    ensure!(
        is_everything_reached(&totals),
        "some transitions or rare paths are reached by no seed: see above"
    );
    Ok(())
}

fn is_everything_reached(totals: &Totals) -> bool {
    totals.unreached_transitions().is_empty() && totals.unreached_paths().is_empty()
}

fn fail_first(totals: &Totals) -> anyhow::Result<()> {
    match totals.failures.first() {
        Some((seed, what)) => bail!("seed {seed}: {what}\n  replay it with: cargo xtask sim --seed {seed}"),
        None => Ok(()),
    }
}

pub(crate) fn run_command(options: &Options) -> anyhow::Result<()> {
    if options.invariants {
        return try_invariants(options.write);
    }
    let invariants = match &options.without {
        Some(name) => Invariants::without(invariant(name)?),
        None => Invariants::ALL_ON,
    };
    if let Some(seed) = options.seed {
        let trace =
            options.trace.as_deref().map(str::parse).transpose().context("--trace takes a task id")?;
        return replay(&Scenario { trace, ..Scenario::new(seed, invariants) });
    }
    let started = Instant::now();
    let until = started + Duration::from_secs(options.seconds);
    let last = options.from.saturating_add(options.seeds);
    let totals =
        run_seeds(options.from, last, invariants, || Instant::now() < until, options.without.is_some());
    print_totals(&totals, started.elapsed());
    fail_first(&totals)
}

fn invariant(name: &str) -> anyhow::Result<Invariant> {
    let found = Invariant::ALL.iter().find(|invariant| invariant.as_str().eq_ignore_ascii_case(name));
    let names = || Invariant::ALL.iter().map(|invariant| invariant.as_str()).collect::<Vec<_>>().join(", ");
    found.copied().with_context(|| format!("there is no invariant {name}; there are {}", names()))
}

/// Runs seeds on all cores until stopped, or until the first failure.
fn run_seeds(
    from: u64,
    last: u64,
    invariants: Invariants,
    go_on: impl Fn() -> bool + Sync,
    stop_at_failure: bool,
) -> Totals {
    let next = AtomicU64::new(from);
    let failed = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let one_thread = || {
        let mut totals = Totals::default();
        while go_on() && !(stop_at_failure && failed.load(Ordering::Relaxed)) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last {
                break;
            }
            let report = run_once(seed, invariants);
            if !report.violations.is_empty() {
                failed.store(true, Ordering::Relaxed);
            }
            totals.add(seed, &report);
        }
        totals
    };
    let mut totals = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(one_thread)).collect();
        let mut totals = Totals::default();
        for handle in handles {
            totals.merge(handle.join().expect("a violation is not a panic of the thread"));
        }
        totals
    });
    totals.failures.sort();
    totals
}

fn run_once(seed: u64, invariants: Invariants) -> Report {
    let scenario = Scenario::new(seed, invariants);
    let mut report = run(&scenario);
    if seed.is_multiple_of(COMPARE_EVERY) && report.violations.is_empty() {
        let again = run(&scenario);
        if again != report {
            let what = "the same seed went another way the second time".to_owned();
            report.violations.push(tasklane_sim::checker::Violation { at: Timestamp::ZERO, what });
        }
    }
    report
}

fn replay(scenario: &Scenario) -> anyhow::Result<()> {
    let seed = scenario.seed;
    let report = run(scenario);
    println!("{scenario:#?}");
    for line in &report.trace {
        println!("{line}");
    }
    println!(
        "{} tasks, {} takeovers, {} worker losses, {} unknown commits, {} steps, digest {:016x}",
        report.tasks,
        report.takeovers,
        report.worker_losses,
        report.unknown_commits,
        report.steps,
        report.digest
    );
    println!("faults {:#?}", report.faults);
    for violation in &report.violations {
        println!("{} {}", violation.at, violation.what);
    }
    if report.violations.is_empty() { Ok(()) } else { bail!("seed {seed} violates an invariant") }
}

/// Finds, for every invariant, a seed that notices when it is off: the kept one, or else the first.
fn try_invariants(write: bool) -> anyhow::Result<()> {
    let file = root().join(invariants::FILE);
    let kept = invariants::parse(&std::fs::read_to_string(&file).unwrap_or_default());
    let mut seeds = BTreeMap::new();
    let mut missed = Vec::new();
    for &invariant in Invariant::ALL {
        let name = invariant.as_str();
        let still =
            kept.get(&invariant).copied().filter(|&seed| invariants::violation(invariant, seed).is_some());
        let Some(seed) = still.or_else(|| invariants::look_for(invariant)) else {
            println!("# {name} is missed by none of {} seeds", invariants::SEEDS_MAX);
            missed.push(name);
            continue;
        };
        let note = if still.is_some() { "" } else { "  # new" };
        println!("{name} {seed}{note}");
        seeds.insert(invariant, seed);
    }
    if write {
        std::fs::write(&file, invariants::print(&seeds))
            .with_context(|| format!("failed to write {}", invariants::FILE))?;
    }
    if missed.is_empty() {
        Ok(())
    } else {
        bail!("invariants whose absence no run noticed: {}", missed.join(", "))
    }
}

fn print_totals(totals: &Totals, time: Duration) {
    let sum = &totals.sum;
    let full = totals.runs - totals.thin.len() as u64;
    println!("{} schedules in {:.1} s ({full} with at least {FULL})", totals.runs, time.as_secs_f64());
    println!(
        "{} tasks, {} takeovers, {} worker losses, {} unknown commits, {} steps",
        sum.tasks, sum.takeovers, sum.worker_losses, sum.unknown_commits, sum.steps
    );
    println!("faults:");
    for (kind, count) in &sum.faults {
        println!("  {count:>9}  {kind}");
    }
    let steps: Vec<String> =
        totals.unreached_transitions().iter().map(|(from, to)| format!("{from} to {to}")).collect();
    println!("transitions that no seed took: {}", none_or(&steps));
    println!("rare paths that no seed took: {}", none_or(&totals.unreached_paths()));
    let rarest = totals.rarest_paths(RAREST);
    let rarest: Vec<String> = rarest.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("rarest paths that some took: {}", none_or(&rarest));
    println!("seeds with less than that: {:?}", totals.thin);
    println!("violations: {}", totals.failures.len());
}

fn none_or<T: AsRef<str>>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

//! `cargo xtask verify`: every check that CI runs, cheap ones first, each printed with its time. Stops at the
//! first failure, so that its output stands last.
//!
//! Everything that compiles uses the profile `ci` and all features, so that dependencies are built once for tests,
//! simulator and binaries; clippy and rustdoc share its build scripts and macros.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;

use crate::cargo::{cargo, run as run_program};
use crate::{api, chaos, clients, directions, generate, licences, paths, servers, sim, upgrade, words};

type Check = fn() -> Result<()>;

const STEPS: &[(&str, Check)] = &[
    ("fmt", fmt),
    ("paths", paths::check),
    ("words", words::check),
    ("directions", directions::check),
    ("licences", licences::check),
    ("gen", generate::check),
    ("clippy", clippy),
    ("docs", docs),
    ("servers", servers::ensure),
    ("tests", tests),
    ("api", api::check),
    ("clients", clients::check),
    ("sim", sim::check),
    ("chaos", chaos::check),
    ("upgrade", upgrade::check),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these steps; all of them if none is named
    #[arg(value_parser = PossibleValuesParser::new(STEPS.iter().map(|(name, _)| *name)))]
    steps: Vec<String>,
}

/// Crates without I/O: their lints and tests take seconds.
const PURE: &[&str] = &["tasklane-core", "tasklane-schedule", "tasklane-workflow"];

/// Format, lints and tests of the pure crates: what to run after each change.
pub(crate) fn quick() -> Result<()> {
    let started = Instant::now();
    fmt()?;
    let pure = PURE.iter().flat_map(|name| ["--package", name]);
    let with = |command: &'static str, rest: &[&'static str]| {
        let args: Vec<&str> = [command, "--all-features", "--profile=ci"]
            .into_iter()
            .chain(pure.clone())
            .chain(rest.iter().copied())
            .collect();
        run_program(&mut cargo(&args))
    };
    with("clippy", &["--all-targets", "--", "-Dwarnings"])?;
    with("test", &["--lib", "--tests", "--quiet"])?;
    println!("\nquick checks passed in {}; `cargo xtask verify` runs all", seconds(started.elapsed()));
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let started = Instant::now();
    let mut times = Vec::new();
    for (name, check) in STEPS {
        if !options.steps.is_empty() && !options.steps.iter().any(|wanted| wanted == name) {
            continue;
        }
        println!("\n==> {name}");
        let begun = Instant::now();
        let result = check().with_context(|| format!("step `{name}` failed"));
        let took = begun.elapsed();
        println!("<== {name}: {} after {}", if result.is_ok() { "passed" } else { "FAILED" }, seconds(took));
        result?;
        times.push((name, took));
    }
    println!();
    for (name, took) in times {
        println!("{name:<12}{:>9}", seconds(took));
    }
    println!("verified in {}", seconds(started.elapsed()));
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn fmt() -> Result<()> {
    run_program(&mut cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    run_program(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--profile=ci",
        "--",
        "-Dwarnings",
    ]))
}

fn docs() -> Result<()> {
    let args = ["doc", "--workspace", "--no-deps", "--all-features", "--profile=ci"];
    run_program(cargo(&args).env("RUSTDOCFLAGS", "-Dwarnings"))
}

fn tests() -> Result<()> {
    let args = ["test", "--workspace", "--all-features", "--profile=ci", "--no-fail-fast"];
    // A server that is missing is an error here, not a reason to skip.
    run_program(cargo(&args).env("TASKLANE_REQUIRE_SERVERS", "1").env("TASKLANE_MODEL_SEQUENCES", "1000"))
}

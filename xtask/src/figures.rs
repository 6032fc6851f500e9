//! The figures of benchmarks, round by round, and their bars.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo::output;

/// Something that was measured in every round.
#[derive(Debug)]
struct Figure {
    name: String,
    unit: &'static str,
    /// Its bar, if it has one.
    bar: Option<Bar>,
    values: Vec<f64>,
}

/// The bar of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    Below(f64),
}

/// All that was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    only: String,
    list: Vec<Figure>,
}

/// How many in a second.
#[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
pub(crate) fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

impl Figures {
    /// Those whose name contains a word, or all.
    pub(crate) fn new(only: &str) -> Self {
        Self { only: only.to_owned(), list: Vec::new() }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || name.contains(&self.only) || self.only.contains(name)
    }

    pub(crate) fn add(&mut self, name: &str, unit: &'static str, bar: Option<Bar>, value: f64) {
        match self.list.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.values.push(value),
            None => self.list.push(Figure { name: name.to_owned(), unit, bar, values: vec![value] }),
        }
    }

    pub(crate) fn tell(&mut self) {
        println!("\n{:<52} {:>12}  {:<12} each round", "", "median", "bar");
        for figure in &mut self.list {
            let rounds: Vec<String> = figure.values.iter().map(|value| shown(*value)).collect();
            figure.values.sort_by(f64::total_cmp);
            let median = figure.values[figure.values.len() / 2];
            let bar = match figure.bar {
                None => String::new(),
                Some(Bar::AtLeast(bar)) => format!("≥ {} {}", shown(bar), met(median >= bar)),
                Some(Bar::Below(bar)) => format!("< {} {}", shown(bar), met(median < bar)),
            };
            println!(
                "{:<52} {:>9} {:<2}  {bar:<12} {}",
                figure.name,
                shown(median),
                figure.unit,
                rounds.join(" ")
            );
        }
    }
}

fn met(met: bool) -> &'static str {
    if met { "✓" } else { "✗" }
}

fn shown(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Runs `tasklane bench`, against a server unless it brings its own, and answers what it reports.
pub(crate) fn bench(program: &Path, work: &Path, url: &str, args: &[&str]) -> Result<Value> {
    println!("  bench {}", args.join(" "));
    let mut command = Command::new(program);
    command.arg("bench").args(args).arg("--json").current_dir(work);
    if !url.is_empty() {
        command.env("TASKLANE_URL", url);
    }
    serde_json::from_str(&output(&mut command)?).context("the benchmark printed something else than JSON")
}

/// A number of a report.
pub(crate) fn number(report: &Value, pointer: &str) -> Result<f64> {
    report.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("the report has no {pointer}"))
}

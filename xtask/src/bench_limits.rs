//! `cargo xtask bench-limits`: the speed of Tasklane, beside that of SQLite alone in the same run with the
//! same durability.
//!
//! Machines differ, and this one differs from minute to minute, so each figure is a median of several rounds,
//! and every round measures the limit again.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use rusqlite::{Connection, params};

use crate::cargo::{cargo, run as run_program};
use crate::figures::{Bar, Figures, bench, number, rate};
use crate::server::{Server, target};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds; the report shows their medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Tasks in a burst
    #[arg(long, default_value_t = 100_000)]
    tasks: u64,
    /// Also measure a queue with this many tasks, and a restart with them
    #[arg(long, value_name = "TASKS")]
    backlog: Option<u64>,
    /// Only figures whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// Tasks of each kind of write in a transaction.
const BATCH: u64 = 1000;
/// As in `tasklane bench`.
const PAYLOAD: usize = 200;
/// About as large as ours.
const STATE: usize = 100;

pub(crate) fn run(options: &Options) -> Result<()> {
    run_program(&mut cargo(&["build", "--release", "--package", "tasklane"]))?;
    let program = target().join("release/tasklane");
    // On the disk that builds are on, not in memory.
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(target())?;
    let mut figures = Figures::new(&options.only);
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        let work = folder.path().join(format!("round-{round}"));
        std::fs::create_dir(&work)?;
        measure(options, &program, &work, &mut figures)?;
        std::fs::remove_dir_all(&work)?;
    }
    if let Some(tasks) = options.backlog {
        backlog(&program, folder.path(), tasks, &mut figures)?;
    }
    figures.tell();
    Ok(())
}

fn measure(options: &Options, program: &Path, work: &Path, figures: &mut Figures) -> Result<()> {
    let limit = three_writes(work, "indexed", options.tasks)?;
    figures.add("store alone, three writes", "/s", None, limit);
    let bare = three_writes(work, "bare", options.tasks)?;
    figures.add("store alone, three writes, nothing to recover by", "/s", None, bare);

    let tasks = options.tasks.to_string();
    if figures.wants("burst embedded") {
        let burst = bench(program, work, "", &["burst", "--embedded", "-n", &tasks])?;
        let done = number(&burst, "/completedPerSecond")?;
        figures.add("burst embedded", "/s", Some(Bar::AtLeast(50_000.0)), done);
        figures.add("burst embedded, part of the store's limit", "", Some(Bar::AtLeast(0.5)), done / limit);
        figures.add("burst embedded, part of the barest limit", "", None, done / bare);
    }
    if figures.wants("limits by key") {
        let keys = bench(program, work, "", &["keys", "--embedded", "-n", &tasks])?;
        let ratio = number(&keys, "/compared/ratio")?;
        figures.add("limits by key, part of the speed without them", "", Some(Bar::AtLeast(0.7)), ratio);
    }
    if figures.wants("beside a crowded key") {
        let others = (3 * options.tasks).to_string();
        let crowd = bench(program, work, "", &["crowd", "--embedded", "-n", &others])?;
        let ratio = number(&crowd, "/compared/ratio")?;
        figures.add(
            "keys beside a crowded key, part of their speed alone",
            "",
            Some(Bar::AtLeast(0.7)),
            ratio,
        );
    }
    let server = Server::start(program, &work.join("data"), &[])?;
    let rest = |args: &[&str]| bench(program, work, &server.url, args);
    if figures.wants("burst over REST") {
        let done = number(&rest(&["burst", "-n", &tasks])?, "/completedPerSecond")?;
        figures.add("burst over REST", "/s", Some(Bar::AtLeast(25_000.0)), done);
        figures.add("burst over REST, part of the store's limit", "", None, done / limit);
    }
    if figures.wants("single submits") {
        let acknowledged = number(&rest(&["single"])?, "/submittedPerSecond")?;
        figures.add(
            "single submits over REST, 64 connections",
            "/s",
            Some(Bar::AtLeast(12_000.0)),
            acknowledged,
        );
    }
    if figures.wants("steady") {
        let steady = rest(&["steady", "--rate", "1000", "--for", "5s"])?;
        figures.add(
            "steady 1000/s, submit → start p50",
            "ms",
            Some(Bar::Below(1.0)),
            number(&steady, "/start/p50Ms")?,
        );
        figures.add(
            "steady 1000/s, submit → start p99",
            "ms",
            Some(Bar::Below(5.0)),
            number(&steady, "/start/p99Ms")?,
        );
        figures.add("steady 1000/s, submit → done p99", "ms", None, number(&steady, "/done/p99Ms")?);
    }
    if figures.wants("sync") {
        let sync = number(&rest(&["sync"])?, "/answer/p50Ms")?;
        figures.add("sync, round trip p50", "ms", Some(Bar::Below(2.0)), sync);
    }
    if figures.wants("shell") {
        let shell = number(&rest(&["shell"])?, "/compared/ratio")?;
        figures.add("shell, part of a bare loop", "", Some(Bar::AtLeast(0.7)), shell);
    }
    Ok(())
}

/// A long queue: how fast it is worked off, how much memory it takes, and how soon a restart with it is of use.
fn backlog(program: &Path, folder: &Path, tasks: u64, figures: &mut Figures) -> Result<()> {
    println!("a backlog of {tasks}");
    let data = folder.join("backlog");
    let server = Server::start(program, &data, &[])?;
    let count = tasks.to_string();
    let report = bench(program, folder, &server.url, &["backlog", "-n", &count, "-c", "8", "--keep"])?;
    let ratio = number(&report, "/compared/ratio")?;
    figures.add("backlog, part of the speed of a fresh queue", "", Some(Bar::AtLeast(0.8)), ratio);
    let bar = if tasks <= 1_000_000 { 400.0 } else { 600.0 };
    let memory = number(&report, "/compared/queuedAnonBytes")? / f64::from(1 << 20);
    figures.add("backlog, memory with all queued", "MiB", Some(Bar::Below(bar)), memory);
    // kill -9, then as a user would go on.
    drop(server);
    let started = Instant::now();
    let server = Server::start(program, &data, &[])?;
    bench(program, folder, &server.url, &["sync", "-n", "1", "--queue", "after-restart"])?;
    let seconds = started.elapsed().as_secs_f64();
    figures.add("restart after kill -9, until a new task has run", "s", Some(Bar::Below(5.0)), seconds);
    Ok(())
}

/// Whole lives of tasks a second: inserted, assigned and finished, each written; the three of different tasks in one
/// transaction.
fn three_writes(work: &Path, table: &str, tasks: u64) -> Result<f64> {
    println!("  three writes, {table}");
    let path: PathBuf = work.join(format!("{table}.db"));
    let conn = Connection::open(&path)?;
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    ensure!(mode == "wal", "the log was asked for");
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", -(64 << 10))?;
    conn.execute_batch(include_str!("../limits.sql"))?;
    let mut insert = conn.prepare(&format!("INSERT INTO {table} VALUES (?1, 0, ?2, ?3)"))?;
    let mut change =
        conn.prepare(&format!("UPDATE {table} SET status = ?2, state = ?3 WHERE key = ?1 AND status = ?4"))?;
    let (state, spec) = (vec![1_u8; STATE], vec![2_u8; PAYLOAD + STATE]);
    let batches = tasks.div_ceil(BATCH);
    let keys = |batch: u64| (batch * BATCH..(batch + 1) * BATCH).map(u64::cast_signed);
    let started = Instant::now();
    for batch in 0..batches + 2 {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        if batch < batches {
            for key in keys(batch) {
                insert.execute(params![key, state, spec])?;
            }
        }
        for (behind, from, to) in [(1, 0, 1), (2, 1, 5)] {
            if let Some(earlier) = batch.checked_sub(behind).filter(|earlier| *earlier < batches) {
                for key in keys(earlier) {
                    let changed = change.execute(params![key, to, state, from])?;
                    ensure!(changed == 1, "task {key} is not in state {from}");
                }
            }
        }
        conn.execute_batch("COMMIT")?;
    }
    Ok(rate(batches * BATCH, started.elapsed()))
}

//! Steps of the clock of the product: it reads an offset from a file. The true time, which attempts and the checker
//! use, stays as it is.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tasklane_client::TaskRequest;

use super::plan::{Class, Step};
use super::system::{HOSTILE, System};
use super::tally::lock;
use crate::chaos::clock::{Boot, Wall};

/// How long the system has to notice a step before its processes are killed again: a step that no server sees is
/// documented as unseen.
const NOTICE: Duration = Duration::from_secs(3);
/// An offset may be in use for this long after it was replaced, in microseconds.
const SEEN_WITHIN: u64 = 2_000_000;
/// How far the time of a task that was just created may be from the clock: answers take their time.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// A run begins a day ahead, in milliseconds: that shows whether the program has a clock that can be set.
pub(super) const AHEAD_AT_FIRST: i64 = 86_400_000;

/// The clock of the product.
#[derive(Debug)]
pub(super) struct Clock {
    file: PathBuf,
    /// Offsets in milliseconds, and since when.
    offsets: Mutex<Vec<(Boot, i64)>>,
}

impl Clock {
    /// A clock that is away from the true time by some milliseconds from the start.
    pub(super) fn start(folder: &Path, offset: i64) -> Result<Self> {
        let clock = Self { file: folder.join("clock"), offsets: Mutex::default() };
        clock.set(offset)?;
        lock(&clock.offsets)[0].0 = Boot(0);
        Ok(clock)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The time of the product, in microseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        Wall::now().0 + self.offset() * 1000
    }

    pub(super) fn offset(&self) -> i64 {
        lock(&self.offsets).last().map_or(0, |(_, offset)| *offset)
    }

    /// The latest time of the product between two moments, in microseconds since 1970.
    pub(super) fn latest_between(&self, from: Boot, until: Boot) -> i64 {
        let true_at = |at: Boot| {
            let (now, wall) = (Boot::now(), Wall::now());
            wall.0 - i64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0)
        };
        let offsets = lock(&self.offsets);
        let ends = offsets.iter().skip(1).map(|(at, _)| *at).chain([until]);
        let times = offsets.iter().zip(ends).filter_map(|((begun, offset), end)| {
            // Servers read the file at intervals.
            let end = Boot(end.0 + SEEN_WITHIN).min(until);
            (*begun <= until && end >= from).then(|| true_at(end) + offset * 1000)
        });
        times.max().unwrap_or(i64::MIN)
    }

    fn set(&self, offset: i64) -> Result<()> {
        // Written whole, so that no server reads half a number.
        let whole = self.file.with_extension("new");
        std::fs::write(&whole, offset.to_string())?;
        lock(&self.offsets).push((Boot::now(), offset));
        std::fs::rename(whole, &self.file)?;
        Ok(())
    }
}

/// Steps the clock, and back again if that is planned.
pub(super) async fn step(system: &Arc<System>, step: Step) -> Result<()> {
    shift(system, step.by).await?;
    let way = if step.by > 0 { "ahead" } else { "back" };
    if let Some(after) = step.back_after {
        system.tally.count(Class::Steps, &format!("{way} for a while"));
        tokio::time::sleep(after).await;
        shift(system, -step.by).await?;
    } else {
        system.tally.count(Class::Steps, &format!("{way} for good"));
    }
    Ok(())
}

/// Moves the clock by some milliseconds while all servers run, and lets them notice.
pub(super) async fn shift(system: &System, by: i64) -> Result<()> {
    let _turn = system.turn.lock().await;
    system.clock.set(system.clock.offset() + by)?;
    tokio::time::sleep(NOTICE).await;
    // An attack on its connections may keep the answer away; then the next step is looked at.
    if let Ok(away) = away(system).await
        && away > AWAY_MAX
    {
        let what = format!("a task was created {away:?} away from it");
        system.tally.violation("a step of the clock was not seen", &what);
    }
    Ok(())
}

/// A clock that does not move proves nothing.
pub(super) async fn ensure_moved(system: &System) -> Result<()> {
    let away = away(system).await?;
    ensure!(away < AWAY_MAX, "this program has no clock for tests: build it with all features");
    Ok(())
}

/// How far the time of a task that is created now is from the clock.
async fn away(system: &System) -> Result<Duration> {
    let clients = system.clients(HOSTILE)?;
    let client = clients.first().context("there is a server")?;
    let submitted = client.submit(&TaskRequest::new("clock", "NOOP", Value::Null)).await?;
    let created = client.task(&submitted.task_id).await?.created_at;
    let created = created.map_or(0, jiff::Timestamp::as_microsecond);
    Ok(Duration::from_micros(created.abs_diff(system.clock.now())))
}

//! Steps of the clock of the product: it reads an offset from a file. The true time, which attempts and the checker
//! use, stays as it is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tasklane_client::TaskRequest;

use super::plan::{Class, Step};
use super::system::{HOSTILE, System, clock_file};
use super::tally::lock;
use crate::chaos::clock::{Boot, Wall};
use crate::chaos::process::Role;

/// How long the system has to notice a step before its processes are killed again: a step that no server sees is
/// documented as unseen.
const NOTICE: Duration = Duration::from_secs(3);
/// An offset may be in use for this long after it was replaced, in microseconds.
const SEEN_WITHIN: u64 = 2_000_000;
/// How far the time of a task that was just created may be from the clock, in microseconds: answers take their time.
const SEEN_AWAY_MAX: u64 = 30_000_000;

/// The clock of the product.
#[derive(Debug)]
pub(super) struct Clock {
    file: PathBuf,
    /// Offsets in milliseconds, and since when.
    offsets: Mutex<Vec<(Boot, i64)>>,
}

impl Clock {
    pub(super) fn new(system: &System) -> Self {
        Self { file: clock_file(&system.folder), offsets: Mutex::new(vec![(Boot(0), 0)]) }
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
            // Servers look at the file now and then.
            let end = Boot(end.0 + SEEN_WITHIN).min(until);
            (*begun <= until && end >= from).then(|| true_at(end) + offset * 1000)
        });
        times.max().unwrap_or(i64::MIN)
    }

    fn set(&self, offset: i64) -> Result<()> {
        // Whole, so that nobody reads half a number.
        let whole = self.file.with_extension("new");
        std::fs::write(&whole, offset.to_string())?;
        lock(&self.offsets).push((Boot::now(), offset));
        std::fs::rename(whole, &self.file)?;
        Ok(())
    }
}

/// Steps the clock, and back again if that is planned.
pub(super) async fn step(system: &Arc<System>, clock: &Clock, step: Step) -> Result<()> {
    if !system.has_clock {
        return Ok(());
    }
    shift(system, clock, step.by).await?;
    let way = if step.by > 0 { "ahead" } else { "back" };
    if let Some(after) = step.back_after {
        system.tally.count(Class::Steps, &format!("{way} for a while"));
        tokio::time::sleep(after).await;
        shift(system, clock, -step.by).await?;
    } else {
        system.tally.count(Class::Steps, &format!("{way} for good"));
    }
    Ok(())
}

/// Moves the clock by some milliseconds while all servers run, and lets them notice.
pub(super) async fn shift(system: &System, clock: &Clock, by: i64) -> Result<()> {
    let _turn = system.turn.lock().await;
    clock.set(clock.offset() + by)?;
    tokio::time::sleep(NOTICE).await;
    if system.workers().iter().all(|worker| worker.role == Role::Dev) {
        see(system, clock).await?;
    }
    Ok(())
}

/// A step that the product does not see proves nothing. In a cluster the clock of the store stands above it.
async fn see(system: &System, clock: &Clock) -> Result<()> {
    let clients = system.clients(HOSTILE)?;
    let client = clients.first().context("there is a server")?;
    // An attack on its connections may keep the answer away; then the next step is looked at.
    let Ok(submitted) = client.submit(&TaskRequest::new("clock", "NOOP", Value::Null)).await else {
        return Ok(());
    };
    let Ok(task) = client.task(&submitted.task_id).await else { return Ok(()) };
    let created = task.created_at.map_or(0, jiff::Timestamp::as_microsecond);
    let away = created.abs_diff(clock.now());
    if away > SEEN_AWAY_MAX {
        let what = format!("a task was created {:?} away from it", Duration::from_micros(away));
        system.tally.violation("a step of the clock was not seen", &what);
    }
    Ok(())
}

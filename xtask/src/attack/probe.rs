//! An honest client that must always be served, and a look at the size of the server and of the attack itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::Instant;

use super::system::System;
use super::tally::Reason;
use super::wire::ask;
use crate::chaos::clock::Boot;

/// How often the honest client asks.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// An honest client has its answer within this time, whatever others do.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// How often sizes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The memory that a server may take at any moment.
const RESIDENT_MAX_KIB: u64 = 900 << 10;

/// The probe's findings.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub(super) asked: AtomicU64,
    pub(super) slowest_micros: AtomicU64,
    pub(super) resident_max_kib: AtomicU64,
    pub(super) descriptors_max: AtomicU64,
}

impl Probe {
    /// Sends requests and reads sizes until its task is dropped.
    pub(super) async fn run(self: Arc<Self>, system: Arc<System>) {
        tokio::join!(self.ask(&system), self.look(&system));
    }

    async fn ask(&self, system: &System) {
        loop {
            for server in system.servers() {
                for target in ["/api/v1/stats", "/healthz"] {
                    tokio::time::sleep(ASK_EVERY).await;
                    let (begun, from) = (Instant::now(), Boot::now());
                    let answer = ask(server.api, target, SERVED_WITHIN).await;
                    let status = answer.as_ref().map_or(0, |answer| answer.status);
                    let is_excused = system.tally.is_excused(from, Boot::now(), &[Reason::Down]);
                    if is_excused {
                        continue;
                    }
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.slowest_micros.fetch_max(took, Ordering::Relaxed);
                    if status != 200 {
                        let what = format!("{} {target}: status {status} after {took} µs", server.name);
                        system.tally.violation("an honest client was not served", &what);
                    }
                }
            }
        }
    }

    async fn look(&self, system: &System) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for server in system.servers() {
                let Some(size) = server.pid().and_then(Size::of) else { continue };
                self.resident_max_kib.fetch_max(size.resident_kib, Ordering::Relaxed);
                self.descriptors_max.fetch_max(size.descriptors, Ordering::Relaxed);
                if size.resident_kib > RESIDENT_MAX_KIB {
                    let what = format!("{} takes {} MiB", server.name, size.resident_kib >> 10);
                    system.tally.violation("a server grew", &what);
                }
            }
        }
    }
}

/// The size of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) resident_kib: u64,
    pub(super) descriptors: u64,
}

impl Size {
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        let status = std::fs::read_to_string(format!("{folder}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let resident_kib = line.trim().split(' ').next()?.parse().ok()?;
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).ok()?.count() as u64;
        Some(Self { resident_kib, descriptors })
    }
}

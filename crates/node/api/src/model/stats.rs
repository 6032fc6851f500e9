//! Numbers about the whole.

use std::collections::BTreeMap;

use serde::Serialize;
use tasklane_core::status::Status;
use tasklane_runtime::node::{NodeStats, Readiness};
use utoipa::ToSchema;

use super::Time;

/// The number of tasks in each state.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) struct CountsByStatus {
    pending: u64,
    scheduled: u64,
    dispatched: u64,
    running: u64,
    retrying: u64,
    success: u64,
    failed: u64,
    cancelled: u64,
}

impl From<[u64; 8]> for CountsByStatus {
    fn from(counts: [u64; 8]) -> Self {
        let of = |status: Status| counts[usize::from(status.code())];
        Self {
            pending: of(Status::Pending),
            scheduled: of(Status::Scheduled),
            dispatched: of(Status::Dispatched),
            running: of(Status::Running),
            retrying: of(Status::Retrying),
            success: of(Status::Success),
            failed: of(Status::Failed),
            cancelled: of(Status::Cancelled),
        }
    }
}

/// Numbers about this server and all tasks.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stats {
    version: &'static str,
    started_at: Time,
    /// Over all namespaces.
    tasks: CountsByStatus,
    /// Live workers.
    workers: u64,
    /// Attempts that workers run.
    running: u64,
    /// The attempts that workers can run at once.
    capacity: u64,
    lanes: Vec<LaneJson>,
    process: ProcessJson,
    /// Counters of this process since its start.
    counters: BTreeMap<&'static str, u64>,
}

/// A lane, as this server sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lane)]
struct LaneJson {
    lane: u16,
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    epoch: Option<u64>,
    /// Commits that this server has sent to the store since its start.
    commits: u64,
    /// Tasks that these commits wrote.
    written: u64,
}

/// The resource use of the server's process.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Process)]
struct ProcessJson {
    /// Time on all cores together since its start.
    cpu_seconds: f64,
    /// Its private memory now.
    anon_bytes: u64,
    /// The most memory of any kind so far.
    peak_bytes: u64,
}

impl From<NodeStats> for Stats {
    fn from(stats: NodeStats) -> Self {
        let lanes = stats.lanes.iter().map(|info| LaneJson {
            lane: info.lane.0,
            phase: info.phase,
            epoch: info.epoch.map(|epoch| epoch.0),
            commits: info.commits,
            written: info.groups,
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            started_at: Time(stats.started_at),
            tasks: CountsByStatus::from(stats.counts),
            workers: stats.workers as u64,
            running: stats.running,
            capacity: stats.capacity,
            lanes: lanes.collect(),
            process: ProcessJson {
                cpu_seconds: stats.process.cpu.as_secs_f64(),
                anon_bytes: stats.process.anon_bytes,
                peak_bytes: stats.process.peak_bytes,
            },
            counters: stats.counters.into_iter().collect(),
        }
    }
}

/// Whether this server can do its work.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ready {
    pub(crate) ready: bool,
    checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ReadyCheck)]
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
}

impl From<Vec<Readiness>> for Ready {
    fn from(checks: Vec<Readiness>) -> Self {
        Self {
            ready: checks.iter().all(|check| check.ok),
            checks: checks
                .into_iter()
                .map(|check| Check { name: check.name, ok: check.ok, detail: check.detail })
                .collect(),
        }
    }
}

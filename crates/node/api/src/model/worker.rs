//! Workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tasklane_core::id::Name;
use tasklane_core::message::WorkerStats;
use tasklane_runtime::node::{WorkerChange, WorkerInfo};
use tasklane_runtime::request::{FieldError, Ranged, check_labels};
use utoipa::ToSchema;

use super::Time;

/// A live worker.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Worker {
    /// A name for people. Stays the same over restarts.
    name: String,
    /// New with each start.
    #[schema(format = "uuid")]
    session: String,
    status: WorkerStatus,
    /// The resource that its machine lacks, while the worker takes no new work for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "the machine is out of file descriptors")]
    pause_reason: Option<String>,
    /// The number of attempts that it runs at once.
    capacity: u32,
    weight: u32,
    labels: BTreeMap<String, String>,
    task_types: Vec<String>,
    /// Its address: its host, with the port of its API or health checks if it listens. Workers of earlier versions have
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "10.0.0.7:7072")]
    address: Option<String>,
    /// The load of its last heartbeat; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    load: Option<WorkerLoad>,
}

/// Whether a worker has free capacity.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum WorkerStatus {
    /// Nothing runs.
    Idle,
    /// Something runs, and there is room.
    Active,
    /// As much runs as it can take.
    Busy,
    /// It takes no new work.
    Draining,
    /// It takes no new work for a while, because its machine lacks something: see `pauseReason`.
    Pausing,
    /// Its heartbeats arrive, but messages to it do not: it gets no work.
    NotReceiving,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkerLoad {
    /// Processor time that all processes of the worker's machine use together; 100 is one core.
    cpu_percent: u32,
    /// Memory that all processes of the worker's machine use together.
    memory_bytes: u64,
    running: u32,
    /// Tasks in its local queue.
    queued: u32,
    at: Time,
}

impl From<&WorkerStats> for WorkerLoad {
    fn from(stats: &WorkerStats) -> Self {
        Self {
            cpu_percent: stats.cpu_percent,
            memory_bytes: stats.memory_bytes,
            running: stats.running,
            queued: stats.queued,
            at: Time(stats.at),
        }
    }
}

impl From<&WorkerInfo> for Worker {
    fn from(info: &WorkerInfo) -> Self {
        let worker = &info.descriptor;
        let running = info.stats.as_ref().map_or(0, |stats| stats.running);
        let status = match running {
            _ if worker.draining => WorkerStatus::Draining,
            _ if info.not_receiving => WorkerStatus::NotReceiving,
            _ if worker.pause_reason.is_some() => WorkerStatus::Pausing,
            0 => WorkerStatus::Idle,
            n if n >= worker.capacity => WorkerStatus::Busy,
            _ => WorkerStatus::Active,
        };
        Self {
            name: worker.name.to_string(),
            session: info.session.to_string(),
            status,
            pause_reason: worker.pause_reason.clone(),
            capacity: worker.capacity,
            weight: worker.weight,
            labels: worker.labels.clone(),
            task_types: worker.task_types.iter().map(Name::to_string).collect(),
            address: Some(worker.address.clone()).filter(|address| !address.is_empty()),
            load: info.stats.as_ref().map(WorkerLoad::from),
        }
    }
}

/// The live workers, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WorkerList {
    pub(crate) workers: Vec<Worker>,
}

/// A change of a worker: a missing field stays as it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchWorker {
    capacity: Option<Ranged<1, { CAPACITY_MAX }>>,
    weight: Option<Ranged<1, { WEIGHT_MAX }>>,
    labels: Option<BTreeMap<String, String>>,
}

impl TryFrom<PatchWorker> for WorkerChange {
    type Error = FieldError;

    fn try_from(patch: PatchWorker) -> Result<Self, FieldError> {
        patch.labels.as_ref().map_or(Ok(()), check_labels)?;
        Ok(Self {
            capacity: patch.capacity.map(|capacity| capacity.0),
            weight: patch.weight.map(|weight| weight.0),
            labels: patch.labels,
        })
    }
}

/// The largest capacity.
const CAPACITY_MAX: u32 = 100_000;
/// The largest weight.
const WEIGHT_MAX: u32 = 1_000_000;

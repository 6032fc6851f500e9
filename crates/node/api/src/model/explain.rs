//! Why a task is not running, for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;
use tasklane_core::id::SessionId;
use tasklane_core::lane::{Explanation, Holder, Reason};
use tasklane_core::status::Status;
use tasklane_core::time::Timestamp;
use tasklane_ports::TaskView;
use tasklane_runtime::node::WorkerInfo;
use utoipa::ToSchema;

use super::{StatusName, Time};

/// Why a task is not running.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Explanation)]
pub(crate) struct ExplainedTask {
    #[schema(format = "uuid")]
    task_id: String,
    status: StatusName,
    /// A summary in one or two sentences.
    summary: String,
    /// All reasons, the most important first. Empty if the task runs or has finished.
    reasons: Vec<ReasonJson>,
}

/// A reason why a task is not running.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Reason)]
pub(crate) struct ReasonJson {
    /// The kind of reason, for programs.
    #[schema(example = "no_capable_worker")]
    code: &'static str,
    /// The text for people.
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task_type: Option<String>,
    /// The number of live workers, or of workers that could run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    workers: Option<usize>,
    /// Template of the limit's key in the queue's policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    template: Option<String>,
    /// Key that the limit counts by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    running: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max: Option<u32>,
    /// Some of the tasks that hold the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    held_by: Option<Vec<HolderJson>>,
    /// The end of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until: Option<Time>,
    /// The number of tasks before it in its line (at least).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    position: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    session: Option<String>,
}

/// A task that holds a limit.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Holder)]
struct HolderJson {
    #[schema(format = "uuid")]
    task_id: String,
    #[schema(minimum = 1)]
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    since: Option<Time>,
}

impl From<&Holder> for HolderJson {
    fn from(holder: &Holder) -> Self {
        Self { task_id: holder.task.to_string(), attempt: holder.attempt.0, since: holder.since.map(Time) }
    }
}

/// The names of workers, by session.
#[derive(Debug, Default)]
pub(crate) struct WorkerNames(BTreeMap<SessionId, String>);

impl WorkerNames {
    pub(crate) fn of(workers: &[WorkerInfo]) -> Self {
        Self(workers.iter().map(|w| (w.session, w.descriptor.name.to_string())).collect())
    }

    /// Its name, or at least its session.
    fn shown(&self, session: SessionId) -> String {
        self.0.get(&session).cloned().unwrap_or_else(|| session.to_string())
    }
}

impl ExplainedTask {
    pub(crate) fn new(view: &TaskView, explanation: &Explanation, names: &WorkerNames) -> Self {
        let pairs = view.row.head.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels = pairs.collect::<Vec<_>>().join(", ");
        let reasons: Vec<ReasonJson> =
            explanation.reasons.iter().map(|reason| ReasonJson::new(reason, names, &labels)).collect();
        let state = &view.row.state;
        let worker = state.worker.as_ref().map_or_else(|| "a worker".to_owned(), |w| format!("worker {w}"));
        let first = match explanation.status {
            Status::Success => "It has finished: it succeeded.".to_owned(),
            Status::Cancelled => "It has finished: it was cancelled.".to_owned(),
            Status::Failed => {
                let error = state.error.as_ref().map_or("without a reason", |error| &error.message);
                format!("It has finished: it failed ({error}).")
            }
            Status::Running => format!("It runs at {worker}, attempt {}.", state.attempt),
            Status::Scheduled | Status::Dispatched => {
                format!("It is assigned to {worker} and has not started.")
            }
            Status::Pending | Status::Retrying if reasons.is_empty() => {
                "It is about to be assigned.".to_owned()
            }
            Status::Pending | Status::Retrying => "It waits.".to_owned(),
        };
        let rest = reasons.iter().map(|reason| reason.message.as_str());
        let summary = std::iter::once(first.as_str()).chain(rest).collect::<Vec<_>>().join(" ");
        Self { task_id: view.row.id.to_string(), status: StatusName(explanation.status), summary, reasons }
    }
}

impl ReasonJson {
    /// `labels` are those of the task.
    fn new(reason: &Reason, names: &WorkerNames, labels: &str) -> Self {
        let of = |code, message: String| Self { code, message, ..Self::default() };
        match reason {
            Reason::Loading => {
                of("loading", "Its lane is loading after a change of owner; this takes moments.".into())
            }
            Reason::StoreFull => {
                of("store_full", "The store is full, so no task is assigned: free space on its disk.".into())
            }
            Reason::StoreLost => of(
                "store_lost",
                "The files of the store are lost or another process writes to them, so no task is assigned; \
                 the server's log has the remedy."
                    .into(),
            ),
            Reason::NoCapableWorker { task_type, workers } => Self {
                task_type: Some(task_type.to_string()),
                workers: Some(*workers),
                ..of(
                    "no_capable_worker",
                    format!(
                        "No worker offers the type {task_type}{} ({}).",
                        if labels.is_empty() { String::new() } else { format!(" with the labels {labels}") },
                        count(*workers, "worker lives", "workers live")
                    ),
                )
            },
            Reason::WorkersPause { workers, reason } => Self {
                workers: Some(*workers),
                ..of(
                    "workers_pause",
                    match workers {
                        1 => format!("A worker that could run it takes no work for a while: {reason}."),
                        n => format!("{n} workers that could run it take no work for a while: {reason}."),
                    },
                )
            },
            Reason::AllFull { workers } => Self {
                workers: Some(*workers),
                ..of(
                    "all_full",
                    match workers {
                        1 => "The only worker that could run it is full.".into(),
                        n => format!("All {n} workers that could run it are full."),
                    },
                )
            },
            Reason::Limit { template, key, running, max, held_by } => Self {
                template: template.clone(),
                key: key.clone(),
                running: Some(*running),
                max: Some(*max),
                held_by: Some(held_by.iter().map(HolderJson::from).collect()),
                ..of(
                    "limit",
                    format!(
                        "The limit {} is reached: {running} of {max} run{}.",
                        of_key(key.as_deref()),
                        since(held_by)
                    ),
                )
            },
            Reason::Rate { template, key, until } => Self {
                template: template.clone(),
                key: key.clone(),
                until: Some(Time(*until)),
                ..of(
                    "rate",
                    format!("The rate {} allows the next task at {}.", of_key(key.as_deref()), shown(*until)),
                )
            },
            Reason::Paused => of("paused", "Its queue is paused.".into()),
            Reason::DelayedUntil(until) => Self {
                until: Some(Time(*until)),
                ..of("delayed", format!("It is not due before {}.", shown(*until)))
            },
            Reason::RetryingAt(until) => Self {
                until: Some(Time(*until)),
                ..of(
                    "retrying",
                    format!("Its last attempt failed; the next one is due at {}.", shown(*until)),
                )
            },
            Reason::Position(position) => Self {
                position: Some(*position),
                ..of(
                    "position",
                    match position {
                        0 => "It is the next of its line.".into(),
                        n => format!("Before it in its line: {}.", count(*n, "task", "tasks")),
                    },
                )
            },
            Reason::MoreThan(position) => Self {
                position: Some(*position),
                ..of(
                    "position_more_than",
                    format!("More than {} are before it in its line.", count(*position, "task", "tasks")),
                )
            },
            Reason::Sent { session } => Self {
                worker: names.0.get(session).cloned(),
                session: Some(session.to_string()),
                ..of("sent", format!("Worker {} has not acknowledged it yet.", names.shown(*session)))
            },
            Reason::QueuedAtWorker { session } => Self {
                worker: names.0.get(session).cloned(),
                session: Some(session.to_string()),
                ..of(
                    "queued_at_worker",
                    format!("It is in the local queue of worker {}.", names.shown(*session)),
                )
            },
            Reason::CancelRequested => of("cancel_requested", "It is being cancelled.".into()),
        }
    }
}

fn count(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

fn of_key(key: Option<&str>) -> String {
    key.map_or_else(|| "of the queue".to_owned(), |key| format!("of the key {key:?}"))
}

/// The task that holds a limit for longest, and since when.
fn since(holders: &[Holder]) -> String {
    let held = holders.iter().filter_map(|holder| Some((holder.since?, holder.task)));
    held.min().map_or_else(String::new, |(since, task)| {
        format!(", the oldest of them task {task} since {}", shown(since))
    })
}

fn shown(time: Timestamp) -> String {
    let json = serde_json::to_string(&Time(time)).unwrap_or_default();
    json.trim_matches('"').to_owned()
}

//! Executors, analyzers and jobs.

use std::collections::BTreeMap;

use serde::Serialize;
use tasklane_runtime::node::{JobView, NamedDocument};
use utoipa::ToSchema;

use super::task::ErrorJson;
use super::{AnyJson, StatusName, Time};

/// The definition that is registered for a task type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TypeDefinition {
    #[schema(pattern = "^[A-Za-z0-9._:@-]{1,128}$")]
    task_type: String,
    /// Changes with every put that changes it.
    #[schema(minimum = 1)]
    version: u64,
    /// The definition as it was put.
    definition: AnyJson,
}

impl From<NamedDocument> for TypeDefinition {
    fn from(NamedDocument { id, version, json }: NamedDocument) -> Self {
        Self { task_type: id.to_string(), version, definition: AnyJson::from_json(&json) }
    }
}

/// A page of registered task types.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecutorPage {
    pub(crate) executors: Vec<TypeDefinition>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// A page of analyzers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnalyzerPage {
    pub(crate) analyzers: Vec<TypeDefinition>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// A job: a task and all tasks that follow from it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Job {
    #[schema(format = "uuid")]
    job_id: String,
    name: String,
    status: StatusName,
    /// All tasks of the job have ended and are analyzed.
    finished: bool,
    /// The tasks of the job, without the analyses.
    total: usize,
    /// The number of tasks by status.
    by_status: BTreeMap<String, usize>,
    /// The tasks that have not ended.
    open: usize,
    /// The ended tasks that are not analyzed yet.
    unanalyzed: usize,
    /// The share of ended and analyzed tasks, 0 to 100.
    #[schema(minimum = 0, maximum = 100)]
    percent: usize,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finished_at: Option<Time>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
}

impl From<JobView> for Job {
    fn from(JobView { view, counts }: JobView) -> Self {
        let state = view.row.state;
        Self {
            job_id: view.row.id.to_string(),
            name: view.row.body.as_ref().map(|body| body.name.clone()).unwrap_or_default(),
            status: StatusName(state.status),
            finished: state.status.is_final(),
            percent: counts.percent(),
            total: counts.total,
            by_status: counts.by_status,
            open: counts.open,
            unanalyzed: counts.unanalyzed,
            created_at: Time(state.created_at),
            finished_at: state.finished_at.map(Time),
            error: state.error.as_ref().map(ErrorJson::from),
        }
    }
}

/// A removed job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobRemoved {
    /// The number of removed tasks.
    pub(crate) removed: u64,
}

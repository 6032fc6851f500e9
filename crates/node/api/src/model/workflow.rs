//! Workflows and their runs.

use serde::Serialize;
use tasklane_core::task::TaskRow;
use tasklane_runtime::node::{NamedDocument, NodeView, RunView};
use tasklane_runtime::request::shown_request_id;
use utoipa::ToSchema;

use super::task::{ErrorJson, ProgressJson, ResultJson};
use super::{AnyJson, StatusName, Task, Time};

/// A named workflow.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Workflow {
    /// The name of the lock.
    #[schema(pattern = "^[A-Za-z0-9._:@-]{1,128}$")]
    id: String,
    /// Changes with every put that changes it.
    #[schema(minimum = 1)]
    version: u64,
    /// The definition as it was put.
    definition: AnyJson,
}

impl From<NamedDocument> for Workflow {
    fn from(NamedDocument { id, version, json }: NamedDocument) -> Self {
        Self { id: id.to_string(), version, definition: AnyJson::from_json(&json) }
    }
}

/// A page of workflows.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkflowPage {
    pub(crate) workflows: Vec<Workflow>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// A run that has begun.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunStarted {
    #[schema(format = "uuid")]
    pub(crate) run_id: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) duplicate: bool,
}

/// A run that takes over the successful nodes of another run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRetried {
    #[schema(format = "uuid")]
    pub(crate) run_id: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) duplicate: bool,
    /// The run uses the definition of the first one, and its workflow has a newer definition. `latest` uses the newer
    /// one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) newer_definition: bool,
    /// Successful nodes that are taken over.
    pub(crate) kept: Vec<String>,
    /// The other nodes: each runs, unless its condition or its dependencies skip it.
    pub(crate) runs_again: Vec<String>,
}

/// A run, without its nodes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunSummary {
    #[schema(format = "uuid")]
    run_id: String,
    /// The name of the workflow or of the run.
    name: String,
    status: StatusName,
    /// A cancel was accepted, and open nodes are being stopped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finished_at: Option<Time>,
    /// The progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    progress: Option<ProgressJson>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
}

impl From<Task> for RunSummary {
    fn from(task: Task) -> Self {
        Self {
            run_id: task.task_id,
            name: task.task_name,
            status: task.status,
            cancel_requested: task.cancel_requested,
            created_at: task.created_at,
            finished_at: task.finished_at,
            progress: task.progress,
            error: task.error,
        }
    }
}

/// A page of runs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunPage {
    pub(crate) runs: Vec<RunSummary>,
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// A run of a workflow.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkflowRun {
    #[schema(format = "uuid")]
    run_id: String,
    /// The name of the workflow or of the run.
    name: String,
    /// The workflow, if the run named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    workflow: Option<String>,
    status: StatusName,
    /// A cancel was accepted, and open nodes are being stopped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_requested: bool,
    /// The input of the run; `null` for none.
    input: AnyJson,
    metadata: std::collections::BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request_id: Option<String>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    progress: Option<ProgressJson>,
    /// The run whose results it has taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    takes_over: Option<String>,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finished_at: Option<Time>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
    counts: NodeCounts,
    /// In the order of the request.
    nodes: Vec<RunNode>,
}

/// The number of nodes by state.
#[derive(Debug, Serialize, ToSchema)]
struct NodeCounts {
    /// Nodes that have not begun and may still begin.
    waiting: usize,
    /// Nodes whose task has not ended.
    open: usize,
    succeeded: usize,
    failed: usize,
    cancelled: usize,
    /// Nodes that have no task and get none.
    skipped: usize,
}

/// A node of a run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RunNode {
    name: String,
    depends_on: Vec<String>,
    /// The status of its task; `WAITING` before it has one, `SKIPPED` if it gets none.
    #[schema(
        pattern = "^(WAITING|SKIPPED|PENDING|SCHEDULED|DISPATCHED|RUNNING|SUCCESS|FAILED|CANCELLED|RETRYING)$"
    )]
    status: &'static str,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// Its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    task_id: Option<String>,
    /// The task belongs to the run that was taken over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    taken_over: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    created_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    started_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finished_at: Option<Time>,
    /// The progress of its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    progress: Option<ProgressJson>,
    /// The result of its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    result: Option<ResultJson>,
    /// The node has a result; its task has it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_left_out: bool,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
}

impl From<NodeView> for RunNode {
    fn from(node: NodeView) -> Self {
        let state = node.task.as_ref().map(|TaskRow { state, .. }| state);
        Self {
            status: node.status,
            task_id: node.task.as_ref().map(|task| task.id.to_string()),
            created_at: state.map(|state| Time(state.created_at)),
            started_at: state.and_then(|state| state.started_at).map(Time),
            finished_at: state.and_then(|state| state.finished_at).map(Time),
            progress: state.and_then(|state| state.progress.as_deref()).map(ProgressJson::from),
            error: state.and_then(|state| state.error.as_ref()).map(ErrorJson::from),
            name: node.name,
            depends_on: node.depends_on,
            reason: node.reason,
            taken_over: node.taken_over,
            result: node.result.as_ref().map(ResultJson::from),
            result_left_out: node.result_left_out,
        }
    }
}

impl From<RunView> for WorkflowRun {
    fn from(run: RunView) -> Self {
        let row = run.view.row;
        let counts = run.counts;
        let (metadata, request_id) = row
            .body
            .as_ref()
            .map(|body| (body.metadata.clone(), shown_request_id(body.request_id.as_deref())))
            .unwrap_or_default();
        Self {
            run_id: row.id.to_string(),
            name: run.name,
            workflow: run.workflow,
            status: StatusName(row.state.status),
            cancel_requested: row.state.cancel_requested,
            input: AnyJson::from_json(&run.input),
            metadata,
            request_id: request_id.map(str::to_owned),
            progress: row.state.progress.as_deref().map(ProgressJson::from),
            takes_over: run.takes_over.map(|id| id.to_string()),
            created_at: Time(row.state.created_at),
            finished_at: row.state.finished_at.map(Time),
            error: row.state.error.as_ref().map(ErrorJson::from),
            counts: NodeCounts {
                waiting: counts.waiting,
                open: counts.open,
                succeeded: counts.succeeded,
                failed: counts.failed,
                cancelled: counts.cancelled,
                skipped: counts.skipped,
            },
            nodes: run.nodes.into_iter().map(RunNode::from).collect(),
        }
    }
}

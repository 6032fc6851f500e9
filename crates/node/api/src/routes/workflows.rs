//! Workflows and their runs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::value::RawValue;
use tasklane_core::id::{Name, TaskId};
use tasklane_ports::TaskFilter;
use tasklane_runtime::node::{Cancel, Definition, Retry, RunView, WORKFLOW_TYPE};
use tasklane_runtime::request::{FieldError, check_key, check_not_system, code};

use crate::extract::{
    Closing, IdInPath, IdempotencyKey, JsonBody, NameInPath, Namespace, NoBody, NoParams, OptionalJsonBody,
};
use crate::model::{RunPage, RunRetried, RunStarted, Workflow, WorkflowPage, WorkflowRun, parse_status};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::created::{CreatedResponse, named_path, run_path};
use crate::routes::submit::wait_time;
use crate::routes::tasks::{Accepted, cursor_text, fill, parse_cursor, wait_for_end};
use crate::state::{Api, RequestPermit};

/// List workflows
///
/// By name.
#[utoipa::path(
    get, path = "/api/v1/workflows", operation_id = "listWorkflows", tag = "workflows",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of workflows.", body = WorkflowPage))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<WorkflowPage>, Problem> {
    let limit = params.limit(100)?;
    let after = params.name("cursor")?;
    params.finish()?;
    let found = api.node.workflows(&namespace, after, limit).await?;
    let cursor = found.last().filter(|_| found.len() >= limit).map(|last| last.id.to_string());
    Ok(Json(WorkflowPage { workflows: found.into_iter().map(Workflow::from).collect(), cursor }))
}

/// Read a workflow
#[utoipa::path(
    get, path = "/api/v1/workflows/{id}", operation_id = "getWorkflow", tag = "workflows",
    params(("id" = String, Path, description = "The workflow.", pattern = r"^(?!runs$)[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The workflow.", body = Workflow))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
) -> Result<Json<Workflow>, Problem> {
    let found = api.node.workflow(&namespace, &id).await?;
    let missing =
        || Problem::new(&problem::WORKFLOW_NOT_FOUND, "no workflow of this namespace has this name");
    found.map(|workflow| Json(workflow.into())).ok_or_else(missing)
}

/// Put a workflow
///
/// Runs name it. An equal workflow changes nothing. Started runs keep the previous definition.
#[utoipa::path(
    put, path = "/api/v1/workflows/{id}", operation_id = "putWorkflow", tag = "workflows",
    params(("id" = String, Path, description = "The workflow; the caller chooses its name.", pattern = r"^(?!tasklane\.|runs$)[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 200, description = "The workflow, which existed.", body = Workflow),
        (status = 201, description = "The new workflow.", body = Workflow),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<CreatedResponse<Workflow>, Problem> {
    check_not_system("id", &id)?;
    let (workflow, is_new) = api.node.put_workflow(&namespace, &id, &body.0).await?;
    Ok(CreatedResponse::new(is_new, named_path("workflows", &id), workflow.into()))
}

/// Remove a workflow
///
/// Its runs go on. Removing a missing workflow is no error.
#[utoipa::path(
    delete, path = "/api/v1/workflows/{id}", operation_id = "deleteWorkflow", tag = "workflows",
    params(("id" = String, Path, description = "The workflow.", pattern = r"^(?!runs$)[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 204, description = "The workflow is removed."))
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    api.node.delete_workflow(&namespace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a run
///
/// Of the given nodes, or of a named workflow. The run is durable before the answer. A repeated `requestId` is answered
/// with the first run, and `duplicate` is true.
#[utoipa::path(
    post, path = "/api/v1/workflows/runs", operation_id = "startRun", tag = "workflows",
    responses(
        (status = 201, description = "The run was accepted.", body = RunStarted),
        (status = 200, description = "The same request was accepted before.", body = RunStarted),
    )
)]
pub(crate) async fn start(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    key: IdempotencyKey,
    body: JsonBody,
) -> Result<CreatedResponse<RunStarted>, Problem> {
    let mut request = api.node.read_run(&body.0).await?;
    request.request_id = key.request_id(request.request_id)?;
    let started = api.node.start_run(&namespace, request).await?;
    let body = RunStarted { run_id: started.id.to_string(), duplicate: started.duplicate };
    Ok(CreatedResponse::new(!started.duplicate, run_path(started.id), body))
}

/// List runs
///
/// Newest first, without their nodes.
#[utoipa::path(
    get, path = "/api/v1/workflows/runs", operation_id = "listRuns", tag = "workflows",
    params(
        ("status" = Option<Vec<crate::model::StatusName>>, Query, description = "One or several states.", explode = false, style = Form, min_items = 1),
        ("workflow" = Option<String>, Query, description = "Only runs with this name."),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 50.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[0-9a-f]{48}$"),
    ),
    responses((status = 200, description = "A page of runs.", body = RunPage))
)]
pub(crate) async fn runs(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<RunPage>, Problem> {
    let statuses = params.take_list("status");
    let statuses =
        statuses.iter().map(|text| parse_status(text).map_err(|rule| Problem::parameter("status", rule)));
    let filter = TaskFilter {
        namespace: Some(namespace.clone()),
        statuses: statuses.collect::<Result<_, _>>()?,
        queue: Some(Name::new(WORKFLOW_TYPE).expect("a valid name")),
        name: params.take("workflow")?,
        ..TaskFilter::default()
    };
    let limit = params.limit(50)?;
    let cursor = params.take("cursor")?;
    let wrong_cursor = || Problem::parameter("cursor", "must be a cursor of an earlier answer");
    let after = cursor.map(|text| parse_cursor(&text).ok_or_else(wrong_cursor)).transpose()?;
    params.finish()?;
    let (tasks, next) = fill(&api, &namespace, filter, after, limit).await?;
    let runs = tasks.into_iter().map(Into::into).collect();
    Ok(Json(RunPage { runs, cursor: next.map(cursor_text) }))
}

async fn found(api: &Api, namespace: &Name, id: TaskId) -> Result<RunView, Problem> {
    let missing = || Problem::new(&problem::RUN_NOT_FOUND, "no run of this namespace has this id");
    api.node.run_view(namespace, id).await?.ok_or_else(missing)
}

/// Read a run
///
/// With every node, also waiting and skipped nodes. Results are included up to 1 MiB in all; a node with
/// `resultLeftOut` has its result in its task. `wait` delays the answer until the end of the run, or of the wait.
#[utoipa::path(
    get, path = "/api/v1/workflows/runs/{id}", operation_id = "getRun", tag = "workflows",
    params(
        ("id" = String, Path, description = "The run.", format = "uuid"),
        ("wait" = Option<String>, Query, description = "How long to wait for the end of the run: at most five minutes, as in `30s` or `1m30s`; a bare number is seconds.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$"),
    ),
    responses((status = 200, description = "The run.", body = WorkflowRun))
)]
pub(crate) async fn get_run(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    Extension(permit): Extension<RequestPermit>,
    IdInPath(id): IdInPath,
    mut params: Params,
) -> Result<Json<WorkflowRun>, Problem> {
    let wait = wait_time(&mut params)?;
    params.finish()?;
    if let Some(wait) = wait {
        // One that is not there is not waited for.
        found(&api, &namespace, id).await?;
        wait_for_end(&api, &namespace, id, wait, &closing, &permit).await?;
    }
    Ok(Json(found(&api, &namespace, id).await?.into()))
}

/// Cancel a run
///
/// Cancels its open tasks and begins no more. When all of them have ended, the run is `CANCELLED`. The request is
/// durable once answered.
#[utoipa::path(
    delete, path = "/api/v1/workflows/runs/{id}", operation_id = "cancelRun", tag = "workflows",
    params(("id" = String, Path, description = "The run.", format = "uuid")),
    responses(
        (status = 202, description = "The task will be cancelled, or already was.", body = Accepted),
        (status = 409, description = "The task has succeeded or failed already.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel_run(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
    _: NoBody,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    found(&api, &namespace, id).await?;
    match api.node.cancel(&namespace, id).await? {
        Cancel::Finished(status) => {
            Err(Problem::new(&problem::TASK_FINISHED, format!("the run has ended as {status}"))
                .task_status(status))
        }
        Cancel::NotFound | Cancel::Accepted | Cancel::AlreadyCancelled => {
            Ok((StatusCode::ACCEPTED, Json(Accepted::word())))
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RunRetryRequest {
    request_id: Option<String>,
    latest: Option<bool>,
    definition: Option<Box<RawValue>>,
}

/// Repeat the unsuccessful nodes of a run
///
/// Starts a new run that takes over the successful nodes of this run, including nodes that this run had taken over.
/// With `latest` or `definition` it uses another definition: a successful node is kept if neither it nor any node
/// before it has changed. The body is optional.
#[utoipa::path(
    post, path = "/api/v1/workflows/runs/{id}/retry", operation_id = "retryRun", tag = "workflows",
    params(("id" = String, Path, description = "The run.", format = "uuid")),
    responses(
        (status = 201, description = "The new run was accepted.", body = RunRetried),
        (status = 200, description = "The same request was accepted before.", body = RunRetried),
    )
)]
pub(crate) async fn retry_run(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
    key: IdempotencyKey,
    body: OptionalJsonBody,
) -> Result<CreatedResponse<RunRetried>, Problem> {
    let RunRetryRequest { request_id, latest, definition } = body.read(&api).await?;
    let definition = match (definition, latest == Some(true)) {
        (Some(_), true) => {
            let message = "must not be given together with definition".to_owned();
            let error = FieldError { field: "latest".to_owned(), code: code::CONFLICTING_FIELDS, message };
            return Err(error.into());
        }
        (Some(json), false) => Definition::Given(json.get().to_owned()),
        (None, true) => Definition::Latest,
        (None, false) => Definition::Stored,
    };
    request_id.as_deref().map_or(Ok(()), |id| check_key("requestId", id))?;
    let request_id = key.request_id(request_id)?;
    found(&api, &namespace, id).await?;
    match api.node.retry_by(&namespace, id, request_id, &definition).await? {
        Retry::NotFound | Retry::Removed => Err(Problem::new(&problem::RUN_NOT_FOUND, "the run was removed")),
        Retry::Unfinished(status) => {
            Err(Problem::new(&problem::TASK_UNFINISHED, format!("the run is {status}")).task_status(status))
        }
        Retry::Created(new) => {
            let (kept, runs_again) = api.node.kept_nodes(new.id).await?;
            let retried = RunRetried {
                run_id: new.id.to_string(),
                duplicate: new.duplicate,
                newer_definition: new.newer_definition,
                kept,
                runs_again,
            };
            Ok(CreatedResponse::new(!new.duplicate, run_path(new.id), retried))
        }
    }
}

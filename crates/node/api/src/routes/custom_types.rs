//! Executors and analyzers: the definitions of task types; and the jobs that analyses drive.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use tasklane_core::id::Name;
use tasklane_runtime::node::JobView;
use tasklane_runtime::request::check_not_system;

use crate::extract::{Closing, IdInPath, JsonBody, NameInPath, Namespace, NoBody, NoParams};
use crate::model::{AnalyzerPage, ExecutorPage, Job, JobRemoved, TypeDefinition};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::created::{CreatedResponse, named_path};
use crate::routes::submit::wait_time;
use crate::state::{Api, RequestPermit};

/// How long a teardown waits for what is being cancelled.
const TEARDOWN_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

/// List registered task types
///
/// By name.
#[utoipa::path(
    get, path = "/api/v1/executors", operation_id = "listExecutors", tag = "executors",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of task types.", body = ExecutorPage))
)]
pub(crate) async fn executors(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<ExecutorPage>, Problem> {
    let (limit, after) = (params.limit(100)?, params.name("cursor")?);
    params.finish()?;
    let found = api.node.executors(&namespace, after, limit).await?;
    let cursor = found.last().filter(|_| found.len() >= limit).map(|last| last.id.to_string());
    Ok(Json(ExecutorPage { executors: found.into_iter().map(TypeDefinition::from).collect(), cursor }))
}

/// Read the executor of a task type
#[utoipa::path(
    get, path = "/api/v1/executors/{taskType}", operation_id = "getExecutor", tag = "executors",
    params(("taskType" = String, Path, description = "The task type.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The executor.", body = TypeDefinition))
)]
pub(crate) async fn get_executor(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    _: NoParams,
) -> Result<Json<TypeDefinition>, Problem> {
    let found = api.node.executor(&namespace, &task_type).await?;
    let missing =
        || Problem::new(&problem::EXECUTOR_NOT_FOUND, "this namespace has no executor for this task type");
    found.map(|named| Json(named.into())).ok_or_else(missing)
}

/// Put the executor of a task type
///
/// An equal executor changes nothing; a different one is refused without `replace`. Tasks that were submitted before
/// keep the previous executor.
#[utoipa::path(
    put, path = "/api/v1/executors/{taskType}", operation_id = "putExecutor", tag = "executors",
    params(
        ("taskType" = String, Path, description = "The task type.", pattern = r"^(?!tasklane\.|SHELL$|PYTHON_SCRIPT$|HTTP$|NOOP$)[A-Za-z0-9._:@-]{1,128}$"),
        ("replace" = Option<bool>, Query, description = "Whether to replace a different definition."),
    ),
    responses(
        (status = 200, description = "The definition existed, or was replaced.", body = TypeDefinition),
        (status = 201, description = "The definition is new.", body = TypeDefinition),
    )
)]
pub(crate) async fn put_executor(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    params: Params,
    body: JsonBody,
) -> Result<CreatedResponse<TypeDefinition>, Problem> {
    let replace = replaces(params)?;
    check_not_system("taskType", &task_type)?;
    let (named, is_new) = api.node.put_executor(&namespace, &task_type, &body.0, replace).await?;
    Ok(CreatedResponse::new(is_new, named_path("executors", &task_type), named.into()))
}

fn replaces(mut params: Params) -> Result<bool, Problem> {
    let replace = params.parse("replace", "must be true or false")?.unwrap_or(false);
    params.finish()?;
    Ok(replace)
}

/// Remove an executor
///
/// Existing tasks go on. Removing a missing executor is no error.
#[utoipa::path(
    delete, path = "/api/v1/executors/{taskType}", operation_id = "deleteExecutor", tag = "executors",
    params(("taskType" = String, Path, description = "The task type.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 204, description = "The executor is removed."))
)]
pub(crate) async fn delete_executor(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    api.node.delete_executor(&namespace, &task_type).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List analyzers
///
/// By task type.
#[utoipa::path(
    get, path = "/api/v1/analyzers", operation_id = "listAnalyzers", tag = "executors",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of analyzers.", body = AnalyzerPage))
)]
pub(crate) async fn analyzers(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<AnalyzerPage>, Problem> {
    let (limit, after) = (params.limit(100)?, params.name("cursor")?);
    params.finish()?;
    let found = api.node.analyzers(&namespace, after, limit).await?;
    let cursor = found.last().filter(|_| found.len() >= limit).map(|last| last.id.to_string());
    Ok(Json(AnalyzerPage { analyzers: found.into_iter().map(TypeDefinition::from).collect(), cursor }))
}

/// Read the analyzer of a task type
#[utoipa::path(
    get, path = "/api/v1/analyzers/{taskType}", operation_id = "getAnalyzer", tag = "executors",
    params(("taskType" = String, Path, description = "The task type.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The analyzer.", body = TypeDefinition))
)]
pub(crate) async fn get_analyzer(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    _: NoParams,
) -> Result<Json<TypeDefinition>, Problem> {
    let found = api.node.analyzer(&namespace, &task_type).await?;
    let missing =
        || Problem::new(&problem::ANALYZER_NOT_FOUND, "this namespace has no analyzer for this task type");
    found.map(|named| Json(named.into())).ok_or_else(missing)
}

/// Put the analyzer of a task type
///
/// From then on a task of this type becomes a job. An equal analyzer changes nothing; a different one is refused
/// without `replace`. Started jobs keep the previous analyzer.
#[utoipa::path(
    put, path = "/api/v1/analyzers/{taskType}", operation_id = "putAnalyzer", tag = "executors",
    params(
        ("taskType" = String, Path, description = "The task type.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$"),
        ("replace" = Option<bool>, Query, description = "Whether to replace a different definition."),
    ),
    responses(
        (status = 200, description = "The definition existed, or was replaced.", body = TypeDefinition),
        (status = 201, description = "The definition is new.", body = TypeDefinition),
    )
)]
pub(crate) async fn put_analyzer(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    params: Params,
    body: JsonBody,
) -> Result<CreatedResponse<TypeDefinition>, Problem> {
    let replace = replaces(params)?;
    let (named, is_new) = api.node.put_analyzer(&namespace, &task_type, &body.0, replace).await?;
    Ok(CreatedResponse::new(is_new, named_path("analyzers", &task_type), named.into()))
}

/// Remove an analyzer
///
/// Started jobs keep it. Removing a missing analyzer is no error.
#[utoipa::path(
    delete, path = "/api/v1/analyzers/{taskType}", operation_id = "deleteAnalyzer", tag = "executors",
    params(("taskType" = String, Path, description = "The task type.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 204, description = "The analyzer is removed."))
)]
pub(crate) async fn delete_analyzer(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(task_type): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    api.node.delete_analyzer(&namespace, &task_type).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn found(api: &Api, namespace: &Name, id: tasklane_core::id::TaskId) -> Result<JobView, Problem> {
    api.node.job(namespace, id).await?.ok_or_else(Problem::task_not_found)
}

/// Read a job
///
/// By its own id, or the id of any of its tasks. A job is finished when all of its tasks have ended and are analyzed.
/// `wait` delays the answer until the end of the job, or of the wait.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}", operation_id = "getJob", tag = "executors",
    params(
        ("id" = String, Path, description = "The job, or one of its tasks.", format = "uuid"),
        ("wait" = Option<String>, Query, description = "How long to wait for its end: at most five minutes, as in `30s` or `1m30s`; a bare number is seconds.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$"),
    ),
    responses((status = 200, description = "The job.", body = Job))
)]
pub(crate) async fn get_job(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    Extension(permit): Extension<RequestPermit>,
    IdInPath(id): IdInPath,
    mut params: Params,
) -> Result<Json<Job>, Problem> {
    let wait = wait_time(&mut params)?;
    params.finish()?;
    let job = found(&api, &namespace, id).await?;
    let Some(wait) = wait else { return Ok(Json(job.into())) };
    let _permit = api.stream_permit()?;
    permit.give_back();
    tokio::select! {
        waited = api.node.wait(&namespace, job.view.row.id, wait) => drop(waited?),
        () = closing.0.cancelled() => {}
    }
    Ok(Json(found(&api, &namespace, id).await?.into()))
}

/// Remove a job
///
/// Cancels open tasks, waits for their end (30 seconds, or `wait`), and removes all tasks of the job. If tasks are
/// left, the answer is a problem that names some; repeat the request then.
#[utoipa::path(
    delete, path = "/api/v1/jobs/{id}", operation_id = "tearDownJob", tag = "executors",
    params(
        ("id" = String, Path, description = "The job, or one of its tasks.", format = "uuid"),
        ("wait" = Option<String>, Query, description = "How long to wait for cancelled tasks, at most five minutes.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$"),
    ),
    responses((status = 200, description = "The job is removed.", body = JobRemoved))
)]
pub(crate) async fn tear_down(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    Extension(permit): Extension<RequestPermit>,
    IdInPath(id): IdInPath,
    mut params: Params,
    _: NoBody,
) -> Result<Json<JobRemoved>, Problem> {
    let wait = wait_time(&mut params)?.unwrap_or(TEARDOWN_WAIT);
    params.finish()?;
    let _permit = api.stream_permit()?;
    permit.give_back();
    let torn_down = api.node.tear_down(&namespace, id, wait).await?.ok_or_else(Problem::task_not_found)?;
    if torn_down.left.is_empty() {
        return Ok(Json(JobRemoved { removed: torn_down.removed }));
    }
    let left: Vec<String> = torn_down.left.iter().map(ToString::to_string).collect();
    let detail = format!("these tasks are still there: {}", left.join(", "));
    Err(Problem::new(&problem::JOB_NOT_REMOVED, detail))
}

//! Looking at tasks, stopping them, and running them again.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasklane_core::id::{AttemptNo, Name, TaskId};
use tasklane_core::status::Status;
use tasklane_core::task::AttemptRecord;
use tasklane_core::time::Timestamp;
use tasklane_ports::{TaskCursor, TaskFilter, TaskList, TaskView};
use tasklane_runtime::node::{Cancel, ChildCursor, Definition, Retry};
use tasklane_runtime::request::check_key;
use utoipa::ToSchema;

use crate::extract::{Closing, IdInPath, IdempotencyKey, Namespace, NoBody, NoParams, OptionalJsonBody};
use crate::forward::AtOwner;
use crate::model::{
    Attempt, AttemptPage, ChildPage, ExplainedTask, StatusName, Task, TaskPageJson, WorkerNames,
    parse_status, tail,
};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::created::{CreatedResponse, task_path};
use crate::routes::submit::wait_time;
use crate::state::{Api, RequestPermit};

/// Output shown with a task.
const LOGS_SHOWN: usize = 100;
const LOG_BYTES_SHOWN: usize = 64 << 10;

/// Attempts shown with a task.
const ATTEMPTS_SHOWN: u32 = 20;

/// Pages of a list that are read for one answer: a filter without an index gives short ones.
const LIST_ROUNDS: usize = 50;

/// How long an answer may take to fill up.
const LIST_TIME: Duration = Duration::from_millis(250);

/// The task with its last attempts and output.
pub(crate) async fn whole_task(api: &Api, view: TaskView) -> Result<Task, Problem> {
    let row = &view.row;
    let before = AttemptNo(row.state.attempt.0.saturating_sub(ATTEMPTS_SHOWN));
    let (attempts, logs) = tokio::join!(
        attempts_of(api, &view, before, ATTEMPTS_SHOWN as usize),
        api.node.log_tail(row.id, LOGS_SHOWN),
    );
    let (attempts, logs) = (attempts?, logs?);
    let mut task = Task::whole(row, view.result.as_ref());
    task.attempts = Some(attempts);
    task.logs = Some(tail(&logs, LOG_BYTES_SHOWN));
    Ok(task)
}

/// Attempts after a number, by number. The attempt that ended the task has no row: it is part of the task.
async fn attempts_of(
    api: &Api,
    view: &TaskView,
    after: AttemptNo,
    limit: usize,
) -> Result<Vec<Attempt>, Problem> {
    let state = &view.row.state;
    let mut records: Vec<AttemptRecord> = if state.has_attempt_rows() {
        api.node.attempts(view.row.id, after, limit).await?
    } else {
        Vec::new()
    };
    let last = state.last_attempt().filter(|last| last.number > after);
    if let Some(last) = last
        && records.len() < limit
        && records.iter().all(|record| record.number < last.number)
    {
        records.push(last);
    }
    Ok(records.iter().map(Attempt::from).collect())
}

async fn find(api: &Api, namespace: &Name, id: TaskId) -> Result<TaskView, Problem> {
    api.node.task(namespace, id).await?.ok_or_else(Problem::task_not_found)
}

/// Read a task
///
/// The whole task, with its last attempts and its last output. `wait` delays the answer until the end of the task, or
/// of the wait.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", operation_id = "getTask", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task.", format = "uuid"),
        ("wait" = Option<String>, Query, description = "How long to wait for the end of the task: at most five minutes, as in `30s` or `1m30s`; a bare number is seconds.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$"),
    ),
    responses((status = 200, description = "The task.", body = Task))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    Extension(permit): Extension<RequestPermit>,
    IdInPath(id): IdInPath,
    mut params: Params,
) -> Result<Json<Task>, Problem> {
    let wait = wait_time(&mut params)?;
    params.finish()?;
    let mut view = find(&api, &namespace, id).await?;
    if let Some(wait) = wait {
        wait_for_end(&api, &namespace, id, wait, &closing, &permit).await?;
        view = find(&api, &namespace, id).await?;
    }
    api.node.mark_cancelling(std::slice::from_mut(&mut view.row)).await?;
    whole_task(&api, view).await.map(Json)
}

/// Waits until a task has ended, the wait is over or the server stops.
pub(crate) async fn wait_for_end(
    api: &Api,
    namespace: &Name,
    id: TaskId,
    wait: Duration,
    closing: &Closing,
    permit: &RequestPermit,
) -> Result<(), Problem> {
    let _permit = api.stream_permit()?;
    permit.give_back();
    tokio::select! {
        waited = api.node.wait(namespace, id, wait) => drop(waited?),
        () = closing.0.cancelled() => {}
    }
    Ok(())
}

/// List the attempts of a task
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/attempts", operation_id = "listAttempts", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task.", format = "uuid"),
        ("after" = Option<u32>, Query, description = "Only attempts with a higher number.", minimum = 0, maximum = 4_294_967_295_i64),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "Its attempts, by number.", body = AttemptPage))
)]
pub(crate) async fn attempts(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    mut params: Params,
) -> Result<Json<AttemptPage>, Problem> {
    let after = params.parse("after", "must be the number of an attempt")?.unwrap_or(0);
    let limit = params.limit(100)?;
    params.finish()?;
    let view = find(&api, &namespace, id).await?;
    let attempts = attempts_of(&api, &view, AttemptNo(after), limit).await?;
    Ok(Json(AttemptPage { attempts }))
}

/// List the children of a task
///
/// The children of a map or a run, with their results.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/children", operation_id = "listChildren", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task.", format = "uuid"),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 50.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[0-9a-f]{32}([0-9a-f]{48})?$"),
    ),
    responses((status = 200, description = "A page of its children.", body = ChildPage))
)]
pub(crate) async fn children(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    mut params: Params,
) -> Result<Json<ChildPage>, Problem> {
    let limit = params.limit(50)?;
    let cursor = params.take("cursor")?;
    let wrong_cursor = || Problem::parameter("cursor", "must be a cursor of an earlier answer");
    let from = cursor.map(|text| parse_child_cursor(&text).ok_or_else(wrong_cursor)).transpose()?;
    params.finish()?;
    find(&api, &namespace, id).await?;
    let (children, next) = api.node.children(id, from, limit).await?;
    let children = children.iter().map(|view| Task::whole(&view.row, view.result.as_ref())).collect();
    Ok(Json(ChildPage { children, cursor: next.map(child_cursor_text) }))
}

fn child_cursor_text(cursor: ChildCursor) -> String {
    format!("{}{}", cursor.of.0.simple(), cursor.after.map(cursor_text).unwrap_or_default())
}

fn parse_child_cursor(text: &str) -> Option<ChildCursor> {
    let (of, after) = text.split_at_checked(32)?;
    let of = of.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| of.parse().ok())??;
    let after = if after.is_empty() { None } else { Some(parse_cursor(after)?) };
    Some(ChildCursor { of, after })
}

/// Explain why a task is not running
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/explain", operation_id = "explainTask", tag = "tasks",
    params(("id" = String, Path, description = "The task.", format = "uuid")),
    responses((status = 200, description = "The reasons.", body = ExplainedTask))
)]
pub(crate) async fn explain(
    State(api): State<Api>,
    _: AtOwner,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
) -> Result<Json<ExplainedTask>, Problem> {
    let explanation = api.node.explain(&namespace, id).await?.ok_or_else(Problem::task_not_found)?;
    // Read afterwards, so that it is not older than what explains it.
    let view = find(&api, &namespace, id).await?;
    let names = WorkerNames::of(&api.node.workers());
    Ok(Json(ExplainedTask::new(&view, &explanation, &names)))
}

/// List tasks
///
/// Newest first. All conditions must hold. `metadata.KEY=VALUE` is short for `metadata=KEY=VALUE`.
#[utoipa::path(
    get, path = "/api/v1/tasks", operation_id = "listTasks", tag = "tasks",
    params(
        ("status" = Option<Vec<StatusName>>, Query, description = "One or several states.", explode = false, style = Form, min_items = 1),
        ("type" = Option<String>, Query, description = "The task type.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("queue" = Option<String>, Query, description = "The queue.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("name" = Option<String>, Query, description = "The task name, exactly."),
        ("worker" = Option<String>, Query, description = "Name of the worker of the current or last attempt.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("parent" = Option<String>, Query, description = "Children, retries and deliveries of webhooks of this task.", format = "uuid"),
        ("schedule" = Option<String>, Query, description = "Created by this schedule."),
        ("createdAfter" = Option<String>, Query, description = "Created at this time or later.", format = DateTime),
        ("createdBefore" = Option<String>, Query, description = "Created before this time.", format = DateTime),
        ("metadata" = Option<Vec<String>>, Query, description = "Pairs of metadata, each as `KEY=VALUE`; all of them must hold. The parameter `metadata.KEY` with the value `VALUE` is the same pair.", explode = true, style = Form, min_items = 1, example = json!(["customer=c-17"])),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 50.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[0-9a-f]{48}$"),
    ),
    responses((status = 200, description = "A page of tasks.", body = TaskPageJson))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<TaskPageJson>, Problem> {
    let statuses: Result<Vec<Status>, Problem> = params
        .take_list("status")
        .iter()
        .map(|text| parse_status(text).map_err(|rule| Problem::parameter("status", rule)))
        .collect();
    let filter = TaskFilter {
        namespace: Some(namespace.clone()),
        queue: params.name("queue")?,
        statuses: statuses?,
        task_type: params.name("type")?,
        name: params.take("name")?,
        worker: params.name("worker")?,
        parent: params.id("parent")?,
        schedule: params.take("schedule")?,
        metadata: params.take_pairs("metadata")?,
        created_from: params.time("createdAfter")?,
        created_before: params.time("createdBefore")?,
    };
    let limit = params.limit(50)?;
    let cursor = params.take("cursor")?;
    let wrong_cursor = || Problem::parameter("cursor", "must be a cursor of an earlier answer");
    let after = cursor.map(|text| parse_cursor(&text).ok_or_else(wrong_cursor)).transpose()?;
    params.finish()?;

    let (tasks, next) = fill(&api, &namespace, filter, after, limit).await?;
    Ok(Json(TaskPageJson { tasks, cursor: next.map(cursor_text) }))
}

/// Reads pages until there is enough to show, or it takes too long.
pub(crate) async fn fill(
    api: &Api,
    namespace: &Name,
    filter: TaskFilter,
    mut after: Option<TaskCursor>,
    limit: usize,
) -> Result<(Vec<Task>, Option<TaskCursor>), Problem> {
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..LIST_ROUNDS {
        let list = TaskList { filter: filter.clone(), after, limit: limit - tasks.len() };
        let mut page = api.node.list(list).await?;
        api.node.mark_cancelling(&mut page.tasks).await?;
        for row in page.tasks {
            // A row with a large body comes without it; its name and metadata are in there.
            let row = match row.body {
                Some(_) => row,
                None => api.node.task(namespace, row.id).await?.map_or(row, |view| view.row),
            };
            tasks.push(Task::summary(&row));
        }
        after = page.next;
        if after.is_none() || tasks.len() >= limit || started.elapsed() > LIST_TIME {
            break;
        }
    }
    Ok((tasks, after))
}

/// A cursor is a creation time and an id, both in hexadecimal digits.
pub(crate) fn cursor_text(cursor: TaskCursor) -> String {
    format!("{:016x}{}", cursor.created_at.as_micros(), cursor.id.0.simple())
}

pub(crate) fn parse_cursor(text: &str) -> Option<TaskCursor> {
    let hex = text.len() == 48 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (micros, id) = hex.then(|| text.split_at(16))?;
    let micros = u64::from_str_radix(micros, 16).ok()?.cast_signed();
    Some(TaskCursor { created_at: Timestamp::from_micros(micros), id: id.parse().ok()? })
}

/// The confirmation of a cancel.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    #[schema(example = "Cancel request accepted.")]
    message: &'static str,
}

impl Accepted {
    pub(crate) fn word() -> Self {
        Self { message: "Cancel request accepted." }
    }
}

/// Cancel a task
///
/// The request is durable once answered. A running attempt is stopped with its child processes; a task that succeeds
/// meanwhile has succeeded.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", operation_id = "cancelTask", tag = "tasks",
    params(("id" = String, Path, description = "The task.", format = "uuid")),
    responses(
        (status = 202, description = "The task will be cancelled, or already was.", body = Accepted),
        (status = 409, description = "The task has succeeded or failed already.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
    _: NoBody,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    match api.node.cancel(&namespace, id).await? {
        Cancel::NotFound => Err(Problem::task_not_found()),
        Cancel::Finished(status) => {
            let detail = format!("the task has ended as {status}");
            Err(Problem::new(&problem::TASK_FINISHED, detail).task_status(status))
        }
        Cancel::Accepted | Cancel::AlreadyCancelled => Ok((StatusCode::ACCEPTED, Json(Accepted::word()))),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RetryRequest {
    pub(crate) request_id: Option<String>,
    pub(crate) latest: Option<bool>,
}

/// A new task that repeats a finished one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Retried {
    #[schema(format = "uuid")]
    new_task_id: String,
    status: StatusName,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
    /// The new task uses the definition of the first one, and a newer definition of its type or workflow is registered.
    /// `latest` uses the newer one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    newer_definition: bool,
    /// Of a run: successful nodes that are taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kept: Option<Vec<String>>,
    /// Of a run: the other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    runs_again: Option<Vec<String>>,
}

/// Run a finished task again
///
/// Creates a new task with the same spec, whose `parent` is this task. With `latest` it uses the current definition of
/// its type or workflow. The body is optional.
#[utoipa::path(
    post, path = "/api/v1/tasks/{id}/retry", operation_id = "retryTask", tag = "tasks",
    params(("id" = String, Path, description = "The task.", format = "uuid")),
    responses(
        (status = 201, description = "The new task was accepted.", body = Retried),
        (status = 200, description = "The same request was accepted before.", body = Retried),
    )
)]
pub(crate) async fn retry(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
    key: IdempotencyKey,
    body: OptionalJsonBody,
) -> Result<CreatedResponse<Retried>, Problem> {
    let RetryRequest { request_id, latest } = body.read(&api).await?;
    request_id.as_deref().map_or(Ok(()), |id| check_key("requestId", id))?;
    let request_id = key.request_id(request_id)?;
    let definition = if latest == Some(true) { Definition::Latest } else { Definition::Stored };
    match api.node.retry_by(&namespace, id, request_id, &definition).await? {
        Retry::NotFound => Err(Problem::task_not_found()),
        Retry::Unfinished(status) => {
            let detail = format!("the task is {status}");
            Err(Problem::new(&problem::TASK_UNFINISHED, detail).task_status(status))
        }
        Retry::Removed => Err(Problem::new(&problem::PAYLOAD_REMOVED, "retention has removed the payload")),
        Retry::Created(new) => {
            let (kept, runs_again) =
                if new.is_run { Some(api.node.kept_nodes(new.id).await?).unzip() } else { (None, None) };
            let retried = Retried {
                new_task_id: new.id.to_string(),
                status: StatusName(Status::Pending),
                duplicate: new.duplicate,
                newer_definition: new.newer_definition,
                kept,
                runs_again,
            };
            Ok(CreatedResponse::new(!new.duplicate, task_path(new.id), retried))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        for micros in [0, 1_800_000_000_000_000, -5, i64::MAX] {
            let cursor = TaskCursor {
                created_at: Timestamp::from_micros(micros),
                id: TaskId::from_random(0x1234_5678_9abc_def0_1234_5678_9abc_def0),
            };
            assert_eq!(parse_cursor(&cursor_text(cursor)), Some(cursor));
        }
        for bad in ["", "0", &"x".repeat(48), &"+".repeat(48), &"é".repeat(24)] {
            assert_eq!(parse_cursor(bad), None);
        }
    }
}

//! Taking tasks in.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tasklane_core::id::{Name, TaskId};
use tasklane_core::status::Status;
use tasklane_ports::StoreError;
use tasklane_runtime::node::Submitted;
use tasklane_runtime::request::{FieldError, TaskRequest};
use utoipa::ToSchema;

use crate::extract::{BatchBody, Closing, JsonBody, Namespace, NoParams};
use crate::model::{Created, StatusName, Task};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::tasks::whole_task;
use crate::state::{Api, Room};

/// The longest time that a request may wait for its task.
const WAIT_MAX: Duration = Duration::from_mins(5);

/// Tasks in one batch.
pub(crate) const BATCH_MAX: usize = 10_000;

/// Submit a task
///
/// The task is durable when this answers. With the same `requestId` again, the answer is the first one's task and
/// `duplicate` is true. With `wait` the answer is the finished task (200), or the task as it is when the time is up
/// (202). Once the task was taken in, the answer names it whatever happens while it is waited for.
#[utoipa::path(
    post, path = "/api/v1/tasks", operation_id = "submitTask", tag = "tasks",
    params(("wait" = Option<String>, Query, description = "How long to wait for the end of the task: at most five minutes, as in `30s` or `1m30s`; a bare number is seconds.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$")),
    responses(
        (status = 201, description = "The task was taken in.", body = Created),
        (status = 200, description = "The request was taken in before (`duplicate`), or, with `wait`, the task has finished.", body = inline(SubmitAnswer)),
        (status = 202, description = "With `wait`: the task was taken in, and time is up before it has finished, or it cannot be read at the moment. Then the answer has no more than its id and `PENDING`.", body = inline(SubmitAnswer)),
    )
)]
pub(crate) async fn submit(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    Extension(room): Extension<Room>,
    mut params: Params,
    body: JsonBody,
) -> Result<Response, Problem> {
    let wait = wait_time(&mut params)?;
    params.finish()?;
    // Before the task is taken in: refusing afterwards would leave the caller without its id.
    let permit = wait.map(|_| api.stream_permit()).transpose()?;
    let request = TaskRequest::from_json(&body.0)?;
    let mut answers = api.node.submit(&namespace, vec![request]).await;
    let submitted = answers.pop().expect("one answer for one request")?;
    let Some(wait) = wait else {
        let status = if submitted.duplicate { StatusCode::OK } else { StatusCode::CREATED };
        return Ok((status, Json(created(submitted))).into_response());
    };
    room.give_back();
    // From here on the caller learns the id, whatever happens.
    let waited = wait_for(&api, &namespace, submitted.id, wait, &closing);
    let waited = tokio::time::timeout(wait + api.options.request_timeout, waited).await;
    drop(permit);
    Ok(match waited {
        Ok(Some(task)) if task.is_final() => (StatusCode::OK, Json(task)).into_response(),
        Ok(Some(task)) => (StatusCode::ACCEPTED, Json(task)).into_response(),
        Ok(None) | Err(_) => (StatusCode::ACCEPTED, Json(created(submitted))).into_response(),
    })
}

/// How long a request may wait.
pub(crate) fn wait_time(params: &mut Params) -> Result<Option<Duration>, Problem> {
    let wait = params.span("wait")?;
    if wait.is_some_and(|wait| wait > WAIT_MAX) {
        let rule = format!("must be at most {} seconds", WAIT_MAX.as_secs());
        return Err(Problem::new(&problem::WAIT_TOO_LONG, rule).field("wait"));
    }
    Ok(wait)
}

/// The task when it has finished or time is up, as far as it can be read.
async fn wait_for(
    api: &Api,
    namespace: &Name,
    id: TaskId,
    wait: Duration,
    closing: &Closing,
) -> Option<Task> {
    let view = tokio::select! {
        view = api.node.wait(namespace, id, wait) => view,
        () = closing.0.cancelled() => api.node.task(namespace, id).await,
    };
    let unread = |error: StoreError| {
        tracing::warn!(task = %id, %error, "a task that is waited for could not be read");
    };
    let view = view.map_err(unread).ok()??;
    let known = Task::whole(&view.row, view.result.as_ref());
    Some(whole_task(api, view).await.unwrap_or(known))
}

/// Word of an earlier task, or a finished one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes the two shapes of an answer")]
enum SubmitAnswer {
    Created(Created),
    Task(Box<Task>),
}

fn created(submitted: Submitted) -> Created {
    Created {
        task_id: submitted.id.to_string(),
        status: StatusName(Status::Pending),
        duplicate: submitted.duplicate,
    }
}

/// Tasks to submit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRequest {
    /// Kept as text, so that one that is wrong does not hold back the others.
    tasks: Vec<Box<RawValue>>,
}

/// What became of the tasks of a batch, in the order given.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    results: Vec<BatchItem>,
}

/// What became of one task of a batch: `taskId` and `status`, or `error`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BatchItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    task_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    status: Option<StatusName>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<Problem>,
}

impl BatchItem {
    fn refused(error: impl Into<Problem>) -> Self {
        Self { task_id: None, status: None, duplicate: false, error: Some(error.into()) }
    }

    fn taken(submitted: Submitted) -> Self {
        let Created { task_id, status, duplicate } = created(submitted);
        Self { task_id: Some(task_id), status: Some(status), duplicate, error: None }
    }
}

/// Submit many tasks
///
/// Each task is taken in or refused for itself. The results come in the order given.
#[utoipa::path(
    post, path = "/api/v1/tasks/batch", operation_id = "submitBatch", tag = "tasks",
    responses((status = 200, description = "What became of each task.", body = BatchAnswer))
)]
pub(crate) async fn batch(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    BatchBody(body, permit): BatchBody,
) -> Result<Json<BatchAnswer>, Problem> {
    let batch: BatchRequest = body.read()?;
    let count = batch.tasks.len();
    if !(1..=BATCH_MAX).contains(&count) {
        let rule = format!("must have 1 to {BATCH_MAX} entries, not {count}");
        return Err(FieldError::invalid("tasks", rule).into());
    }
    let read = batch.tasks.iter().map(|item| TaskRequest::from_json(item.get().as_bytes()));
    let mut requests = Vec::with_capacity(count);
    // What is wrong keeps its place among the results.
    let refused: Vec<Option<FieldError>> =
        read.map(|request| request.map(|request| requests.push(request)).err()).collect();
    drop(batch);
    drop(body);
    let mut answers = api.node.submit(&namespace, requests).await.into_iter();
    drop(permit);
    let results = refused.into_iter().map(|refused| match refused {
        Some(error) => BatchItem::refused(error),
        None => match answers.next().expect("one answer for each request") {
            Ok(submitted) => BatchItem::taken(submitted),
            Err(error) => BatchItem::refused(error),
        },
    });
    Ok(Json(BatchAnswer { results: results.collect() }))
}

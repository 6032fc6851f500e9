//! Submits tasks.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasklane_core::id::{Name, TaskId};
use tasklane_core::status::Status;
use tasklane_ports::StoreError;
use tasklane_runtime::node::Submitted;
use tasklane_runtime::request::{Entries, FieldError, TaskRequest, read_json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::extract::{BatchBody, Closing, IdempotencyKey, JsonBody, Namespace, NoIdempotencyKey, NoParams};
use crate::model::{Created, StatusName, Task};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::created::{CreatedResponse, task_path};
use crate::routes::tasks::whole_task;
use crate::state::{Api, RequestPermit};

/// The longest time that a request may wait for its task.
const WAIT_MAX: Duration = Duration::from_mins(5);

/// Tasks in one batch.
pub(crate) const BATCH_MAX: usize = 10_000;

/// Submit a task
///
/// The task is durable before the answer. A repeated `requestId` is answered with the first task, and `duplicate` is
/// true. With `wait` the answer is the finished task (200), or its state at the end of the wait (202). Once the task is
/// stored, the answer always names it.
#[utoipa::path(
    post, path = "/api/v1/tasks", operation_id = "submitTask", tag = "tasks",
    params(("wait" = Option<String>, Query, description = "How long to wait for the end of the task: at most five minutes, as in `30s` or `1m30s`; a bare number is seconds.", example = "5s", pattern = "^([0-9]{1,2}|[0-9]{1,2}s|[1-4]m|[1-4]m[0-5]?[0-9]s|[0-9]{1,5}ms)$")),
    responses(
        (status = 201, description = "The task was accepted.", body = SubmittedTask),
        (status = 200, description = "The request was accepted before (`duplicate`), or, with `wait`, the task has finished.", body = SubmittedTask),
        (status = 202, description = "With `wait`: the task was accepted, and has not finished in time, or cannot be read at the moment. In the latter case the answer has only its id and `PENDING`.", body = SubmittedTask),
    )
)]
pub(crate) async fn submit(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    Extension(permit): Extension<RequestPermit>,
    mut params: Params,
    key: IdempotencyKey,
    body: JsonBody,
) -> Result<Response, Problem> {
    let wait = wait_time(&mut params)?;
    params.finish()?;
    // Before the task is taken in: refusing afterwards would leave the caller without its id.
    let stream_permit = wait.map(|_| api.stream_permit()).transpose()?;
    let mut request = body.read_by(&api, TaskRequest::from_json).await?;
    request.request_id = key.request_id(request.request_id)?;
    let mut answers = api.node.submit(&namespace, vec![request]).await;
    let submitted = answers.pop().expect("one answer for one request")?;
    let Submitted { id, duplicate } = submitted;
    let Some(wait) = wait else {
        let created = SubmittedTask::Created(created(submitted));
        return Ok(CreatedResponse::new(!duplicate, task_path(id), created).into_response());
    };
    permit.give_back();
    // From here on the caller learns the id, whatever happens.
    let waited = wait_for(&api, &namespace, id, wait, &closing);
    let waited = tokio::time::timeout(wait + api.options.request_timeout, waited).await;
    drop(stream_permit);
    let (status, answer) = match waited {
        Ok(Some(task)) if task.is_final() => (StatusCode::OK, SubmittedTask::Read { task, duplicate }),
        Ok(Some(task)) => (StatusCode::ACCEPTED, SubmittedTask::Read { task, duplicate }),
        Ok(None) | Err(_) => (StatusCode::ACCEPTED, SubmittedTask::Created(created(submitted))),
    };
    Ok((status, Json(answer)).into_response())
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

/// The task when it has finished or the wait is over, as far as it can be read.
async fn wait_for(
    api: &Api,
    namespace: &Name,
    id: TaskId,
    wait: Duration,
    closing: &Closing,
) -> Option<Box<Task>> {
    let view = tokio::select! {
        view = api.node.wait(namespace, id, wait) => view,
        () = closing.0.cancelled() => api.node.task(namespace, id).await,
    };
    let unread = |error: StoreError| {
        tracing::warn!(task = %id, %error, "cannot read the task that a request waits for");
    };
    let view = view.map_err(unread).ok()??;
    let known = Task::whole(&view.row, view.result.as_ref());
    Some(Box::new(whole_task(api, view).await.unwrap_or(known)))
}

/// A submitted task: its id and status; with `wait`, as much of it as can be read.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum SubmittedTask {
    Created(Created),
    Read {
        #[serde(flatten)]
        task: Box<Task>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        duplicate: bool,
    },
}

impl PartialSchema for SubmittedTask {
    /// The fields of a task, of which only two are always there: one schema for both variants, because
    /// generated clients cannot distinguish two schemas if one is part of the other.
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut schema)) = Task::schema() else {
            unreachable!("a task is an object")
        };
        schema.description = Some(
            "A submitted task: its `taskId` and `status`; with `wait` all readable fields of the task."
                .to_owned(),
        );
        schema.required = vec!["taskId".to_owned(), "status".to_owned()];
        let duplicate = ObjectBuilder::new().schema_type(Type::Boolean);
        let duplicate =
            duplicate.description(Some("The same request was accepted before; this is its task."));
        schema.properties.insert("duplicate".to_owned(), duplicate.into());
        schema.into()
    }
}

impl ToSchema for SubmittedTask {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Task::schemas(schemas);
    }
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
    /// Kept as text, so that an invalid task does not hold back the others.
    tasks: Entries<BATCH_MAX>,
}

/// The readable tasks of a batch, and for each task of the batch its fault.
type ReadBatch = (Vec<TaskRequest>, Vec<Option<FieldError>>);

fn read_batch(body: &[u8]) -> Result<ReadBatch, FieldError> {
    let BatchRequest { tasks: Entries(tasks) } = read_json(body)?;
    let mut requests = Vec::with_capacity(tasks.len());
    let read = tasks.iter().map(|task| TaskRequest::from_json(task.get().as_bytes()));
    // A refused task keeps its place among the results.
    let refused = read.map(|request| request.map(|request| requests.push(request)).err()).collect();
    Ok((requests, refused))
}

/// The results of the tasks of a batch, in the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    results: Vec<BatchItem>,
}

/// The result of one task of a batch: `taskId` and `status`, or `error`.
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
/// Each task is accepted or refused by itself. Results are in the order of the request. If a refused task may be
/// accepted later, as with a full queue, its error has `retryAfter`, and the header `Retry-After` has the longest of
/// these times.
#[utoipa::path(
    post, path = "/api/v1/tasks/batch", operation_id = "submitBatch", tag = "tasks",
    responses((status = 200, description = "The result of each task.", body = BatchAnswer))
)]
pub(crate) async fn batch(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    _: NoIdempotencyKey,
    BatchBody(body, permit): BatchBody,
) -> Result<Response, Problem> {
    let (requests, refused) = body.read_by(&api, read_batch).await?;
    let mut answers = api.node.submit(&namespace, requests).await.into_iter();
    drop(permit);
    let results = refused.into_iter().map(|refused| match refused {
        Some(error) => BatchItem::refused(error),
        None => match answers.next().expect("one answer for each request") {
            Ok(submitted) => BatchItem::taken(submitted),
            Err(error) => BatchItem::refused(error),
        },
    });
    let results: Vec<BatchItem> = results.collect();
    let errors = results.iter().filter_map(|item| item.error.as_ref());
    let later = errors.filter_map(Problem::retry_after_seconds).max();
    let later = AppendHeaders(later.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds))));
    Ok((later, Json(BatchAnswer { results })).into_response())
}

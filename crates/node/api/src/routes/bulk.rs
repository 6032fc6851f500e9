//! Actions on many tasks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use tasklane_runtime::node::BulkAction;
use tasklane_runtime::request::{FieldError, code};

use crate::extract::{IdInPath, JsonBody, Namespace, NoParams};
use crate::model::{BulkRequest, BulkStarted, Operation};
use crate::problem::{self, Problem};
use crate::state::Api;

/// Cancel or retry many tasks
///
/// With `dryRun` the answer is the number of matching tasks. Without it a durable operation begins, which resumes after
/// a crash and ignores later submissions. An empty filter means all tasks of the namespace. A child of a run or a map
/// runs again with its composite, as one new run or map that takes over the successful children.
#[utoipa::path(
    post, path = "/api/v1/tasks/bulk", operation_id = "bulk", tag = "tasks",
    responses(
        (status = 200, description = "With `dryRun`: the number of tasks.", body = BulkStarted),
        (status = 202, description = "The operation has begun.", body = BulkStarted),
    )
)]
pub(crate) async fn bulk(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    body: JsonBody,
) -> Result<(StatusCode, Json<BulkStarted>), Problem> {
    let request: BulkRequest = body.read(&api).await?;
    let action = request.action.into();
    let latest = request.latest.unwrap_or(false);
    if latest && action == BulkAction::Cancel {
        let message = "must not be given for a cancel".to_owned();
        return Err(FieldError { field: "latest".to_owned(), code: code::CONFLICTING_FIELDS, message }.into());
    }
    let filter = request.filter.0.into_filter(&namespace)?;
    if request.dry_run.unwrap_or(false) {
        let matched = api.node.bulk_count(action, &filter).await?;
        let answer = BulkStarted { dry_run: true, matched: Some(matched), operation_id: None };
        return Ok((StatusCode::OK, Json(answer)));
    }
    let id = api.node.bulk(&namespace, action, filter, latest).await?;
    let answer = BulkStarted { dry_run: false, matched: None, operation_id: Some(id.to_string()) };
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Read the progress of a bulk operation
#[utoipa::path(
    get, path = "/api/v1/operations/{id}", operation_id = "getOperation", tag = "tasks",
    params(("id" = String, Path, description = "The operation.", format = "uuid")),
    responses((status = 200, description = "The operation.", body = Operation))
)]
pub(crate) async fn operation(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    _: NoParams,
) -> Result<Json<Operation>, Problem> {
    let status = api.node.bulk_status(&namespace, id).await?;
    let missing =
        || Problem::new(&problem::OPERATION_NOT_FOUND, "no operation of this namespace has this id");
    Ok(Json(status.ok_or_else(missing)?.into()))
}

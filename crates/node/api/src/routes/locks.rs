//! Locks: one owner at a time.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use tasklane_runtime::node::{Lock, LockOutcome};
use tasklane_runtime::request::{FieldError, check_key};

use crate::extract::{JsonBody, NameInPath, Namespace, NoBody, NoParams};
use crate::model::{LockOut, LockPage, LockRequest};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::state::Api;

/// The longest time for which a lock can be taken.
const TTL_MAX: Duration = Duration::from_hours(24);

/// List the held locks
///
/// By name. A page may be short, even empty, and still have a cursor.
#[utoipa::path(
    get, path = "/api/v1/locks", operation_id = "listLocks", tag = "locks",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of locks.", body = LockPage))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<LockPage>, Problem> {
    let limit = params.limit(100)?;
    let after = params.name("cursor")?;
    params.finish()?;
    let (locks, next) = api.node.locks(&namespace, after, limit).await?;
    let cursor = next.map(|name| name.to_string());
    Ok(Json(LockPage { locks: locks.into_iter().map(LockOut::from).collect(), cursor }))
}

/// Read a lock
#[utoipa::path(
    get, path = "/api/v1/locks/{name}", operation_id = "getLock", tag = "locks",
    params(("name" = String, Path, description = "The lock.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The held lock.", body = LockOut))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    _: NoParams,
) -> Result<Json<LockOut>, Problem> {
    let lock = api.node.lock(&namespace, &name).await?;
    let free = || Problem::new(&problem::LOCK_NOT_HELD, "no owner holds this lock");
    Ok(Json(lock.ok_or_else(free)?.into()))
}

/// Take or renew a lock
///
/// For `ttl` from now, if no other owner holds it. A repeated request of the owner renews it and keeps the token; a new
/// owner gets a higher token.
#[utoipa::path(
    put, path = "/api/v1/locks/{name}", operation_id = "takeLock", tag = "locks",
    params(("name" = String, Path, description = "The lock.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The lock, held by the caller.", body = LockOut))
)]
pub(crate) async fn take(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<Json<LockOut>, Problem> {
    let request: LockRequest = body.read(&api).await?;
    check_key("owner", &request.owner)?;
    if request.ttl.0 > TTL_MAX {
        return Err(FieldError::invalid("ttl", "must be at most 24 hours").into());
    }
    match api.node.take_lock(&namespace, &name, &request.owner, request.ttl.0).await? {
        LockOutcome::Yes(lock) => Ok(Json(lock.into())),
        LockOutcome::HeldBy(lock) => Err(held(&lock)),
    }
}

/// Release a lock
///
/// Releasing a free lock is no error.
#[utoipa::path(
    delete, path = "/api/v1/locks/{name}", operation_id = "releaseLock", tag = "locks",
    params(
        ("name" = String, Path, description = "The lock.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("owner" = String, Query, description = "The owner.", min_length = 1),
    ),
    responses((status = 204, description = "This owner no longer holds it."))
)]
pub(crate) async fn release(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    mut params: Params,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let owner = params.take("owner")?;
    params.finish()?;
    let owner = owner.filter(|owner| !owner.is_empty());
    let owner = owner.ok_or_else(|| Problem::parameter("owner", "is required"))?;
    match api.node.release_lock(&namespace, &name, &owner).await? {
        None => Ok(StatusCode::NO_CONTENT),
        Some(lock) => Err(held(&lock)),
    }
}

fn held(lock: &Lock) -> Problem {
    Problem::new(&problem::LOCK_HELD, format!("{:?} holds this lock", lock.owner)).field("owner")
}

//! The health, readiness and statistics of the server.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use tasklane_runtime::descriptors;
use tasklane_runtime::node::Readiness;
use tasklane_runtime::worker::WorkerState;
use tokio::sync::watch::Receiver;

use crate::extract::NoParams;
use crate::metrics::{self, Format};
use crate::model::{Ready, Stats};
use crate::problem::{self, CODES, Problem};
use crate::state::Api;
use crate::worker;

/// Read statistics of the server
#[utoipa::path(
    get, path = "/api/v1/stats", operation_id = "getStats", tag = "system",
    responses((status = 200, description = "Numbers.", body = Stats))
)]
pub(crate) async fn stats(State(api): State<Api>, _: NoParams) -> Result<Json<Stats>, Problem> {
    Ok(Json(api.node.stats().await?.into()))
}

/// Check whether the process lives
///
/// Needs no token.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "system",
    responses(
        (status = 200, description = "The process makes progress.", body = String, content_type = "text/plain"),
        (status = 503, description = "The process is stalled; the answer names the stalled parts.", body = String, content_type = "text/plain"),
    )
)]
pub(crate) async fn healthz(State(api): State<Api>) -> Response {
    match api.node.health() {
        Ok(()) => alive().into_response(),
        Err(held_up) => (StatusCode::SERVICE_UNAVAILABLE, format!("{held_up}\n")).into_response(),
    }
}

/// The answer of a process that lives.
pub(crate) fn alive() -> &'static str {
    "ok\n"
}

/// Check whether the server can do its work
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "system",
    responses(
        (status = 200, description = "The server can do its work.", body = Ready),
        (status = 503, description = "The server cannot do its work: see the checks.", body = Ready),
    )
)]
pub(crate) async fn readyz(State(api): State<Api>) -> Response {
    let mut checks = api.node.ready().await;
    checks.push(descriptors());
    // That it drains, or has no session yet, is no fault of the server.
    let pauses = |state: &&Receiver<WorkerState>| matches!(&*state.borrow(), WorkerState::Pausing { .. });
    checks.extend(api.options.worker.as_ref().filter(pauses).map(worker::readiness));
    ready_response(Ready::from(checks))
}

/// Whether this process can open files and connections.
fn descriptors() -> Readiness {
    /// With fewer than this many, attempts cannot be started.
    const SPARE_MIN: u64 = 32;
    let (open, limit) = (descriptors::open(), descriptors::limit());
    let ok = limit.saturating_sub(open) >= SPARE_MIN.min(limit / 16);
    Readiness { name: "descriptors", ok, detail: format!("{open} of {limit} file descriptors are in use") }
}

/// The answer of a readiness check.
pub(crate) fn ready_response(ready: Ready) -> Response {
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ready)).into_response()
}

/// Read the metrics
///
/// In the text format of Prometheus, or as `OpenMetrics` where the header `Accept` requests it.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "system",
    responses((status = 200, description = "The metrics.", content(
        (String = "text/plain"), (String = "application/openmetrics-text"),
    )))
)]
pub(crate) async fn metrics(State(api): State<Api>, headers: HeaderMap) -> Result<Response, Problem> {
    let format = Format::accepted(headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()));
    let text = metrics::text(&api, format).await?;
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Read about a kind of problem
#[utoipa::path(
    get, path = "/docs/errors/{code}", operation_id = "getProblemPage", tag = "system",
    params(("code" = String, Path, description = "The code of the problem.", pattern = "^[a-z_]{1,64}$")),
    responses((status = 200, description = "The page, in Markdown.", body = String, content_type = "text/markdown"))
)]
pub(crate) async fn problem_page(
    code: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Response {
    let found = code.ok().and_then(|Path(code)| CODES.iter().find(|kind| kind.code == code));
    match found {
        Some(kind) => ([(CONTENT_TYPE, "text/markdown; charset=utf-8")], kind.page).into_response(),
        None => Problem::new(&problem::ROUTE_NOT_FOUND, "no problem has this code").into_response(),
    }
}

//! All paths together.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tasklane_runtime::node::Node;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ApiOptions;
use crate::problem::{self, Problem};
use crate::routes::{
    bulk, custom_types, events, health, locks, logs, queues, schedules, submit, tasks, webhooks, workers,
    workflows,
};
use crate::state::Api;
use crate::{admission, openapi, page};

/// The API of a node.
pub fn router(node: Node, options: ApiOptions) -> Router {
    let api = Api::new(node, options);
    let (paths, _) = paths().split_for_parts();
    paths
        .route("/api/openapi.json", get(description))
        .route("/api/openapi-strict.json", get(strict_description))
        .route("/api", get(readable))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(api.clone(), admission::admit))
        .with_state(api)
}

/// `/healthz` and `/readyz` of a node, for a listener of their own: they answer without a token, and when the API has no
/// room left.
pub fn health_router(node: Node, options: ApiOptions) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(no_health_route)
        .with_state(Api::new(node, options))
}

async fn no_health_route() -> Problem {
    Problem::new(
        &problem::ROUTE_NOT_FOUND,
        "this address serves only /healthz and /readyz; the API has its own address",
    )
}

/// The paths, with their descriptions.
pub(crate) fn paths() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, tasks::list))
        .routes(routes!(submit::batch))
        .routes(routes!(bulk::bulk))
        .routes(routes!(tasks::get, tasks::cancel))
        .routes(routes!(tasks::attempts))
        .routes(routes!(logs::logs))
        .routes(routes!(tasks::children))
        .routes(routes!(tasks::explain))
        .routes(routes!(tasks::retry))
        .routes(routes!(bulk::operation))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get, queues::put))
        .routes(routes!(queues::keys))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::get, schedules::put, schedules::delete))
        .routes(routes!(schedules::enable))
        .routes(routes!(schedules::disable))
        .routes(routes!(schedules::trigger))
        .routes(routes!(schedules::backfill))
        .routes(routes!(schedules::next))
        .routes(routes!(schedules::preview))
        .routes(routes!(schedules::history))
        .routes(routes!(workflows::list))
        .routes(routes!(workflows::start, workflows::runs))
        .routes(routes!(workflows::get_run, workflows::cancel_run))
        .routes(routes!(workflows::retry_run))
        .routes(routes!(workflows::get, workflows::put, workflows::delete))
        .routes(routes!(custom_types::executors))
        .routes(routes!(
            custom_types::get_executor,
            custom_types::put_executor,
            custom_types::delete_executor
        ))
        .routes(routes!(custom_types::analyzers))
        .routes(routes!(
            custom_types::get_analyzer,
            custom_types::put_analyzer,
            custom_types::delete_analyzer
        ))
        .routes(routes!(custom_types::get_job, custom_types::tear_down))
        .routes(routes!(locks::list))
        .routes(routes!(locks::get, locks::take, locks::release))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::secret))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::endpoints, webhooks::rotate_endpoint, webhooks::delete_endpoint))
        .routes(routes!(webhooks::test))
        .routes(routes!(workers::list))
        .routes(routes!(workers::get, workers::patch))
        .routes(routes!(workers::drain))
        .routes(routes!(health::stats))
        .routes(routes!(events::events))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(health::problem_page))
}

async fn description() -> Response {
    static TEXT: LazyLock<Arc<str>> = LazyLock::new(|| openapi::openapi_json().into());
    ([(CONTENT_TYPE, "application/json")], TEXT.to_string()).into_response()
}

async fn strict_description() -> Response {
    static TEXT: LazyLock<Arc<str>> = LazyLock::new(|| openapi::strict_json().into());
    ([(CONTENT_TYPE, "application/json")], TEXT.to_string()).into_response()
}

async fn readable() -> Response {
    static PAGE: LazyLock<Arc<str>> = LazyLock::new(|| page::page(&openapi::openapi()).into());
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
    ];
    (headers, PAGE.to_string()).into_response()
}

async fn no_route() -> Problem {
    Problem::new(&problem::ROUTE_NOT_FOUND, "the path does not exist; /api lists all paths")
}

async fn no_method() -> Problem {
    Problem::new(&problem::METHOD_NOT_ALLOWED, "this path does not take this method")
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a request made the server panic");
    Problem::new(&problem::INTERNAL, "the server failed on this request; its log has the details")
        .into_response()
}

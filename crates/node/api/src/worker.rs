//! The health checks of a process that is a worker and nothing else.
//!
//! They answer without a token: they give away no more than whether the worker can be given work.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use tasklane_runtime::node::Readiness;
use tasklane_runtime::worker::WorkerState;
use tokio::sync::watch;

use crate::model::Ready;
use crate::problem::{self, Problem};
use crate::routes::health::{alive, ready_response};

/// `/healthz` and `/readyz` of a worker.
pub fn worker_router(state: watch::Receiver<WorkerState>) -> Router {
    Router::new()
        .route("/healthz", get(async || alive()))
        .route("/readyz", get(readyz))
        .fallback(no_route)
        .with_state(state)
}

async fn no_route() -> Problem {
    Problem::new(&problem::ROUTE_NOT_FOUND, "a worker answers at /healthz and /readyz; servers have the API")
}

async fn readyz(State(state): State<watch::Receiver<WorkerState>>) -> axum::response::Response {
    let readiness = readiness(&state);
    ready_response(Ready::from(vec![readiness]))
}

/// Whether a worker can be given work.
pub(crate) fn readiness(state: &watch::Receiver<WorkerState>) -> Readiness {
    let (ok, detail) = match &*state.borrow() {
        WorkerState::Serving => (true, "has a session and takes work".to_owned()),
        WorkerState::Pausing { reason } => (false, format!("takes no new work for a while: {reason}")),
        WorkerState::Draining => (false, "drains: takes no new work".to_owned()),
        WorkerState::NoSession => (false, "has no session with the coordinator".to_owned()),
    };
    Readiness { name: "worker", ok, detail }
}

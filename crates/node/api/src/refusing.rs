//! The router of a server that cannot begin: one answer for every request.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tasklane_ports::StoreError;
use tasklane_runtime::node::Readiness;

use crate::model::Ready;
use crate::problem::Problem;
use crate::routes::health::{alive, ready_response};

/// Answers every request with the store's error; `/healthz` with the health of the process.
pub fn refusing_router(error: StoreError) -> Router {
    let error = Arc::new(error);
    let ready = Arc::clone(&error);
    let readyz = move || {
        let store = Readiness { name: "store", ok: false, detail: ready.to_string() };
        std::future::ready(ready_response(Ready::from(vec![store])))
    };
    Router::new()
        .route("/healthz", get(async || alive()))
        .route("/readyz", get(readyz))
        .fallback(move || std::future::ready(Problem::from(&*error)))
}

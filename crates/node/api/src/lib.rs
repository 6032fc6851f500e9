#![doc = include_str!("../README.md")]

mod admission;
mod authority;
mod client_user;
mod connections;
mod cors;
mod drain_body;
mod extract;
mod forward;
mod metrics;
mod model;
mod openapi;
mod options;
mod page;
mod params;
mod problem;
mod refusing;
mod router;
mod routes;
mod serve;
mod sse;
mod state;
mod tracked;
mod worker;
mod write_timeout;

pub use axum::Router;
pub use openapi::openapi_json;
pub use options::{ApiOptions, ServeOptions};
pub use refusing::refusing_router;
pub use router::{health_router, router};
pub use serve::serve;
pub use worker::worker_router;

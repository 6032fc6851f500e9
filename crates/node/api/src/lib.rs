#![doc = include_str!("../README.md")]

mod authority;
mod client_user;
mod connections;
mod cors;
mod extract;
mod forward;
mod gate;
mod linger;
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
mod stall;
mod state;
mod tracked;
mod worker;

pub use axum::Router;
pub use openapi::openapi_json;
pub use options::{ApiOptions, ServeOptions};
pub use refusing::refusing_router;
pub use router::{health_router, router};
pub use serve::serve;
pub use worker::worker_router;

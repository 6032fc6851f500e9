//! One suite for each port, which every adapter runs against the real system.
//!
//! A case is a plain function that takes an environment; a macro makes one named test of each. An adapter's test file
//! is a factory and a macro call for each port that it serves:
//! ```ignore
//! async fn env() -> Option<MyStoreEnv> { /* a fresh, empty place; `None` where no server is there */ }
//!
//! tasklane_ports::store_conformance!(env);
//! tasklane_ports::store_model!(env, || Arc::new(MemoryStore::new(MemoryOptions::default())));
//! tasklane_ports::logs_conformance!(env);
//! tasklane_ports::documents_conformance!(env);
//! ```
//! The test runs print each case that was skipped because the factory gave no environment.

#![expect(clippy::unwrap_used, reason = "cases are tests: they fail by panicking")]

pub mod bus;
pub mod coordinator;
pub mod documents;
mod env;
pub mod fixture;
pub mod intake;
pub mod logs;
mod macros;
pub mod model;
pub mod pages;
pub mod store;

pub use env::{BusEnv, CoordinatorEnv, DocumentsEnv, IntakeEnv, LogsEnv, StalledCommit, StoreEnv};
pub use macros::{run, run_alone, run_long, skipped};

//! A real server for tests, and a proxy that misbehaves on request.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "parts of tests fail by panicking")]
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]

mod proxy;

pub(crate) use proxy::{Mode, Proxy};
pub(crate) use tasklane_testkit::PostgresServer;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tasklane_postgres::{PostgresOptions, PostgresStore};

/// Options with a fresh schema.
pub(crate) fn fresh_options() -> PostgresOptions {
    static USED: AtomicU32 = AtomicU32::new(0);
    let schema = format!("test{}", USED.fetch_add(1, Ordering::Relaxed));
    // Many cases share one server and two cores.
    PostgresOptions {
        schema,
        response_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(10),
        claim_patience: Duration::from_secs(5),
        ..PostgresOptions::default()
    }
}

/// Opens a store, which must succeed.
pub(crate) async fn connect(url: &str, options: &PostgresOptions) -> PostgresStore {
    PostgresStore::connect(url, options).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

//! Real servers for tests, and a proxy that misbehaves on request.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "parts of tests fail by panicking")]
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]

mod proxy;
mod server;

pub(crate) use proxy::{Mode, Proxy};
pub(crate) use server::{Cluster, RedisServer};

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tasklane_redis::{RedisOptions, RedisStore};

/// Options with a fresh prefix.
pub(crate) fn fresh_options() -> RedisOptions {
    static USED: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("tasklane{}", USED.fetch_add(1, Ordering::Relaxed));
    // Many cases share one server and two cores.
    RedisOptions {
        prefix,
        response_timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(5),
    }
}

/// Opens a store, which must succeed.
pub(crate) async fn connect(url: &str, options: &RedisOptions) -> RedisStore {
    RedisStore::connect(url, options).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

#![doc = include_str!("../README.md")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests fail by panicking and skip aloud")]

pub mod authority;
pub mod daemon;
pub mod golden;
pub mod pgbouncer;
pub mod postgres;
pub mod programs;
pub mod proxy;
pub mod redis;
pub mod redis_cluster;
pub mod sentinel;

pub use authority::{Authority, Certificate};
pub use daemon::{Daemon, free_port, wait_until};
pub use pgbouncer::PgBouncer;
pub use postgres::PostgresServer;
pub use proxy::Proxy;
pub use redis::RedisServer;
pub use redis_cluster::RedisCluster;
pub use sentinel::RedisSentinel;

//! Ways to reach a server: encrypted, through a pooler, by several hosts, with so many connections.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod connections;
mod hosts;
mod pooler;
#[path = "../support/mod.rs"]
mod support;
mod tls;

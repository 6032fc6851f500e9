//! The API of a whole server, over a real socket. One program, because each would compile the server once more.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod access;
mod connections;
mod errors;
mod flow;
mod locks;
mod schedules;
mod streams;
mod support;
mod system;
mod tasks;
mod types;
mod webhooks;
mod workflows;

//! A whole node over the in-process systems, through its public calls. One program, because each would
//! compile the node once more.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod archive;
mod expressions;
mod golden;
mod intake;
mod jobs;
mod payload_schemas;
mod retries;
mod schedules;
mod support;
mod tasks;
mod values;
mod workflows;

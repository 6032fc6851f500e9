#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![allow(clippy::similar_names, reason = "lane and line, key and keys are the words of the design")]

mod checkpoint;
mod connect;
mod documents;
mod error;
#[cfg(test)]
mod golden;
mod keys;
mod load;
mod lock_file;
mod log_mark;
mod logs;
mod migrate;
mod outcomes;
mod presence;
mod query;
mod readers;
mod requests;
mod retire;
mod rows;
mod signals;
mod store;
mod write_state;
mod writer;

pub use connect::{Durability, Options};
pub use lock_file::LockedFile;
#[doc(hidden)]
pub use signals::{OnStatement, SignalFuture, Signals};
pub use store::Sqlite;

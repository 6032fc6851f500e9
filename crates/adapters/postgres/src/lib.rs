#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![allow(clippy::similar_names, reason = "lane and line, key and keys are the words of the design")]

mod archive;
mod columns;
mod connect;
mod connection;
mod coordinator;
mod documents;
mod error;
#[cfg(test)]
mod golden;
mod keys;
mod listen;
mod load;
mod logs;
mod migrate;
mod opener;
mod outcomes;
mod pooler;
mod query;
mod queue_cache;
mod resolve;
mod retire;
mod rows;
mod statements;
mod store;
mod target;
mod tls;
mod verify;
mod write_lane;

pub use archive::PostgresArchive;
pub use connect::PostgresOptions;
pub use coordinator::PostgresCoordinator;
#[doc(hidden)]
pub use store::HeldCommit;
pub use store::PostgresStore;

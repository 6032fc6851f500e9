#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![allow(clippy::similar_names, reason = "lane and line, key and keys are the words of the design")]

mod archive;
mod columns;
mod connect;
mod coordinator;
mod documents;
mod error;
#[cfg(test)]
mod golden;
mod judge;
mod keys;
mod known;
mod link;
mod listen;
mod load;
mod logs;
mod migrate;
mod opener;
mod outcomes;
mod plan;
mod pooler;
mod query;
mod retire;
mod rows;
mod statements;
mod store;
mod target;
mod tls;
mod verify;

pub use archive::PostgresArchive;
pub use connect::PostgresOptions;
pub use coordinator::PostgresCoordinator;
#[doc(hidden)]
pub use store::HeldCommit;
pub use store::PostgresStore;

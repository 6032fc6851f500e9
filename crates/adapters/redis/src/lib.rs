#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod cluster;
mod connect;
mod documents;
mod error;
mod keys;
mod layout;
mod link;
mod load;
mod logs;
mod query;
mod retire;
mod script;
mod store;

pub use connect::RedisOptions;
pub use store::RedisStore;

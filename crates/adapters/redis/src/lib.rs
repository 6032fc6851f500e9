#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod bus;
mod cluster;
mod connect;
mod connection;
mod coordinator;
mod documents;
mod error;
#[cfg(test)]
mod golden;
mod intake;
mod keys;
mod layout;
mod load;
mod logs;
mod payload;
mod publisher;
mod query;
mod retire;
mod script;
mod sentinel;
mod store;
mod subscriber;
mod target;
mod tls;

pub use bus::RedisBus;
pub use connect::RedisOptions;
pub use coordinator::RedisCoordinator;
pub use intake::RedisIntake;
pub use store::RedisStore;

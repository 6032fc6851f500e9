#![doc = include_str!("../README.md")]

mod burst;
pub mod checker;
mod client;
mod completions;
mod composites;
mod coordinator;
pub mod harness;
pub mod invariants;
mod keyed;
mod locks;
mod nemesis;
mod network;
mod report;
mod retention;
mod runs;
mod scenario;
mod schedules;
mod server;
mod store;
mod timing;
mod worker;
mod world;

pub use keyed::TaskKeys;
pub use report::{FULL, Report, Totals};
pub use scenario::Scenario;
pub use world::run;

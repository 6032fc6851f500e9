#![doc = include_str!("../README.md")]

pub mod clock;
pub mod descriptors;
pub mod executors;
pub mod guard;
pub mod held_sessions;
pub mod keeper;
pub mod node;
pub mod notifier;
pub mod process;
pub mod request;
pub mod scheduler;
pub mod suggest;
#[cfg(feature = "test-clock")]
mod test_clock;
pub mod worker;

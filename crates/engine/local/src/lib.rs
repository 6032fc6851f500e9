#![doc = include_str!("../README.md")]

mod bus;
mod clock;
mod coordinator;
pub mod memory;
mod sessions;

pub use bus::{LocalBus, LocalBusOptions};
pub use clock::{Clock, Sleep, SystemClock};
pub use coordinator::LocalCoordinator;
pub use memory::{MemoryOptions, MemoryState, MemoryStore};
pub use sessions::{Sessions, SessionsOptions};

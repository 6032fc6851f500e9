//! The memory store, the reference that every other store is compared with.
//!
//! [`MemoryState`] is all of it: plain data with one synchronous method for each verb, without clock, threads or
//! randomness, so that the simulator can use it as it is. [`MemoryStore`] puts a lock around it and is the port.
//!
//! ```text
//! MemoryState
//! ├── tasks      by id: spec, state, result, attempts
//! ├── lanes      by number: owner, counter of arrivals, inbox, records, and where each task of the lane is:
//! │              ready by (line, order) · delayed by due time · in flight by id · expiring by deadline
//! ├── queues     bindings, policies, counts
//! └── documents  by kind, namespace and id, and by time
//! ```
//! Invariants: every task that is not final is in exactly one place of its lane, which `TaskState::place` names; it is in `expiring` exactly while it waits with a deadline; counts agree with states.

mod commit;
mod documents;
mod history;
mod lane;
mod load;
mod query;
mod retire;
mod state;
mod store;

pub use history::{HistoryEvent, StateSummary};
pub use lane::StoredTask;
pub use state::{MemoryOptions, MemoryState};
pub use store::MemoryStore;

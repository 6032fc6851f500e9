//! The worker-session machine: accepts each dispatch once, reports until it is heard, and stops everything before its
//! session can have ended.
//!
//! A worker talks to the owners of all lanes. It cannot know who owns a lane; it only knows the highest epoch that has
//! spoken to it for each, and ignores lower ones. **Credit** is how it keeps its queue short: an owner may use dispatch
//! numbers up to its credit, which only rises; what a lane does not need it gives back by skipping numbers.
//!
//! What always holds: a dispatch number of an epoch is taken once; an attempt is started once; whatever ended is
//! reported until an owner says that it need not be; no attempt runs when the lease, counted from before it was asked
//! for, is over.

mod credit;
mod input;
mod machine;
mod on_owner;

pub use input::{Effect, Input, StopReason};
pub use machine::{Counters, WorkerOptions, WorkerSession};

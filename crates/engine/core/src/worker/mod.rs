//! The worker-session machine: accepts each dispatch once, resends each final report until it is
//! acknowledged, and stops everything before its session can have ended.
//!
//! A worker talks to the owners of all lanes. It cannot know who owns a lane; it only knows the highest epoch
//! that it has received for each lane, and ignores lower ones. **Credit** is how it keeps its queue short: an
//! owner may use dispatch numbers up to its credit, which only rises; a lane returns credit that it does not
//! need by skipping numbers.
//!
//! What always holds: a dispatch number of an epoch is taken once; an attempt is started once; the worker
//! reports an ended attempt until an owner acknowledges it; no attempt runs past the lease, which counts from
//! before the renewal was sent.

mod credit;
mod input;
mod machine;
mod on_owner;

pub use input::{Effect, Input, StopReason};
pub use machine::{Counters, WorkerOptions, WorkerSession};

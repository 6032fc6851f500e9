//! The ownership machine: takes a lane when it is granted, claims it in the store, loads it, keeps its commits in
//! order, and gives it up again.
//!
//! ```text
//!  idle ──wanted──► acquiring ──granted──► heading ──► claiming ──► viewing ──► owning ──► releasing ──► idle
//!                                             ▲           │                       │
//!                                             └── lost ◄──┴───── unsettled ◄──────┘        (owning ──► parked)
//! ```
//! The coordinator's grant only says who should try; what counts is the claim in the store. A commit whose answer was
//! lost is repeated with the same number and the same groups until the store says what became of it; where it cannot
//! be settled, the lane is dropped, claimed anew and loaded anew: memory is never repaired.

mod input;
mod machine;
mod pack;
mod share;

pub use input::{CallError, Effect, Input, Reply, Request};
pub use machine::{Ownership, OwnershipOptions};
pub use pack::PackLimits;
pub use share::fair_shares;

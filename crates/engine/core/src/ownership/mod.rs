//! The ownership machine: takes a lane when it is granted, claims it in the store, loads it, keeps its
//! commits in order, and gives it up again.
//!
//! ```text
//!  idle ──wanted──► acquiring ──granted──► heading ──► claiming ──► viewing ──► owning ──► releasing ──► idle
//!                                             ▲           │                       │
//!                                             └── lost ◄──┴───── unsettled ◄──────┘        (owning ──► parked)
//! ```
//! The coordinator's grant only says who should try; the claim in the store decides. The owner repeats a
//! commit whose answer was lost, with the same number and the same groups, until the store answers with its
//! outcome. If the outcome cannot be settled, the server drops the lane, claims it again and loads it again:
//! memory is never repaired.

mod input;
mod machine;
mod pack;
mod share;

pub use input::{CallError, Effect, Input, Reply, Request};
pub use machine::{Ownership, OwnershipOptions};
pub use pack::PackLimits;
pub use share::fair_shares;

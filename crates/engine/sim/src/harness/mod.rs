//! A stage for stories about one lane: the real lane machine over the memory store, simulated time, and
//! workers that the test moves by hand. Everything happens at once and in order, so a test reads like its
//! story:
//!
//! ```
//! use tasklane_core::status::Status;
//! use tasklane_sim::harness::{Story, task};
//!
//! let lane = Story::new();
//! let w1 = lane.worker("w1", 1);
//! let id = lane.submit(task());
//! assert_eq!(w1.takes(), [id]);
//! w1.starts(id);
//! w1.finishes(id);
//! assert_eq!(lane.status(id), Status::Success);
//! ```
//! The store answers at once unless a test holds its answers back ([`Story::hold_commits`],
//! [`Story::hold_reads`]); messages arrive at once unless they are lost ([`Story::lose_messages`],
//! [`Worker::not_receiving`]). Only the machine acts by itself: workers send no heartbeat, take nothing and
//! finish nothing until the story moves them.

mod story;
mod task;
mod worker;

pub use story::Story;
pub use task::{Make, name, queue, task};
pub use worker::Worker;

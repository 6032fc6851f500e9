//! The lane machine: decides, for the one owner of a lane, which task runs where and when.
//!
//! ## The problem
//! A lane may hold millions of waiting tasks; memory may hold thousands. Some of them cannot run (no worker
//! offers their type, their key is at its limit), and those must not hide the tasks that can. Every decision
//! must be written before a message reveals it, yet writing one task at a time is slow.
//!
//! ## The way taken
//! ```text
//!  submit / arrivals ──► line windows ──► assign ──► pending changes ──► commits, at most two ──► messages
//!                          ▲   (per line)                   ▲                                        │
//!     pages from the store ┘                                └────────── reports of workers ◄─────────┘
//! ```
//! - Tasks wait in **lines** (same queue, type, labels, flow keys, hash bucket). A line is blocked as a whole
//!   or not at all, so it can be parked without looking at its tasks. Memory holds a window of each line; the
//!   rest is paged in.
//! - Lines that need the same kind of worker share a **class**. While no worker of a class has room, none of
//!   its lines is looked at.
//! - Changes are made in memory at once and gather while commits are under way, at most two of them. A task
//!   that changed several times is written once, with the path it took. Messages that rest on a commit leave
//!   when it is durable.
//! - The store is the truth: a group that it skipped makes the machine drop the task and read it again.
//!
//! - Durations keep their length when the wall clock steps, times of day follow it: see `clock.rs`.
//!
//! What always holds: every task in flight is in memory once loading is complete; the owner sends workers
//! only committed assignments; counters of limits equal the attempts in flight; every ready task in the store
//! is in a window, or its line knows that the store has more.

mod assign;
mod cancel_newest;
mod clock;
mod completions;
mod counters;
mod entry;
mod explain;
#[cfg(test)]
mod golden;
mod input;
mod keys;
mod limits;
mod lines;
mod machine;
mod memory_budget;
mod on_command;
mod on_committed;
mod on_members;
mod on_page;
mod on_policy;
mod on_report;
mod on_submit;
mod on_tick;
mod turn_length;
mod window;
mod workers;
mod write;

pub use clock::{Anchor, recorded_clock};
pub use counters::Counters;
pub use explain::{Explanation, Holder, Reason};
pub use input::{Effect, Input, Item, SubmitToken};
pub use keys::{KeyInfo, KeyPosition};
pub use machine::{BODY_BYTES_MAX, Lane, LaneOptions};

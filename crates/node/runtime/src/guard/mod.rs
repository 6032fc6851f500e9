//! The guard: a small process beside the worker that starts and owns everything that attempts run.
//!
//! The problem: a worker can be killed or stopped at any moment, and what it had started must not run on, because the
//! task is soon given to somebody else. A process that was killed cannot clean up, so somebody else must. Killing a
//! process group is not enough either: a child that called `setsid`, or whose parent is gone, is in no group of ours.
//!
//! ```text
//! worker ──socket──► guard ──socket──► shim of attempt 1 ──► command ──► …whatever it starts
//!                      └─────socket──► shim of attempt 2 ──► …
//! ```
//! - The **guard** is this same program, started anew while it is small. It has one thread and does nothing but carry
//!   messages. When the worker is gone (its socket is closed, or its process is dead) it ends everything, then itself.
//! - A **shim** is a fork of the guard that runs one attempt at a time. It is the subreaper of all that the attempt
//!   starts: what loses its parent becomes the shim's child, so the tree is known whatever its processes do. The
//!   attempt has ended when the shim has no children left; then it waits a while for the next one. When the guard is
//!   gone, each shim ends its own tree and itself.
//! - Shims are watched too: what a killed one leaves behind comes to the guard, which ends it. One that is stopped is
//!   woken, and one that does not end its attempt when it must is killed.
//! - The **deadline** is the end of the worker's lease, in memory that the guard shares with all shims. A shim ends its
//!   tree in time by itself, so it needs nobody who may be stopped.
//! - The **lock** is a locked file that guard and shims hold and commands do not: it is free when the last of them is
//!   gone, and then no attempt runs any more. A shim that waits does not outlive the guard, even if it is stopped.
//!
//! - The **session cleanup** runs for a worker that was killed, when it is dead and nothing of it is left: the program
//!   is started once more and closes the worker's session, so that others need not wait until it has run out.
//!
//! What this cannot do is said in `docs/executors.md`.

mod child;
mod clock;
mod connection;
mod handle;
mod image;
mod oom;
mod process;
mod remove;
mod shim;
mod sys;
mod tree;
mod wire;

pub use child::{Child, CommandEnd, ProcessTreeEnd, Tree};
pub use clock::boottime;
pub use handle::{Guard, GuardError, GuardOptions, SpawnRequest, Stdin};
pub use process::{run_if_asked, session_cleanup_if_asked};
pub(crate) use remove::remove_later;
pub use remove::remove_tree;
pub use wire::{FailedStep, HeldFile, OpenFile};

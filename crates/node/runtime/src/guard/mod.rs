//! The guard: a small process beside the worker that starts and owns everything that attempts run.
//!
//! The problem: a worker can be killed or stopped at any moment, and its commands must not run on, because
//! the owner soon starts the task elsewhere. A killed process cannot clean up, so another process must.
//! Killing a process group is not enough either: a child that called `setsid`, or whose parent has ended, is
//! in no group of the worker.
//!
//! ```text
//! worker ──socket──► guard ──socket──► shim of attempt 1 ──► command ──► …whatever it starts
//!                      └─────socket──► shim of attempt 2 ──► …
//! ```
//! - The **guard** is this same program, started again while it is small. It has one thread and only carries
//!   messages. When the worker has ended (its socket is closed, or its process is dead), the guard ends
//!   everything, then itself.
//! - A **shim** is a fork of the guard that runs one attempt at a time. It is the subreaper of all processes
//!   of the attempt: a process that loses its parent becomes the shim's child, so the shim always knows the
//!   tree. The attempt has ended when the shim has no children left; then the shim waits a while for the next
//!   one. When the guard has ended, each shim ends its own tree and itself.
//! - The guard watches its shims: the processes of a killed shim become the guard's children, and the guard
//!   ends them. It wakes a stopped shim, and kills a shim that does not end its attempt in time.
//! - The **deadline** is the end of the worker's trust window, in memory that the guard shares with all
//!   shims. A shim ends its tree in time by itself, so it depends on no process that may be stopped.
//! - The **lock** is a locked file that guard and shims hold and commands do not: it is free when the last
//!   holder has ended, and then no attempt runs any more. A shim that waits does not outlive the guard, even
//!   if it is stopped.
//!
//! - The **session cleanup** runs for a killed worker, when the worker is dead and none of its processes is
//!   left: the program is started once more and closes the worker's session, so that servers need not wait
//!   for its TTL.
//!
//! `docs/executors.md` lists the limits of the guard.

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

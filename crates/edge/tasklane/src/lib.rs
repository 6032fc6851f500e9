#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod adapters;
pub mod assemble;
pub mod config;
mod data_dir;
mod descriptor_shares;
mod discovery;
mod disk_full;
pub mod embed;
mod exposure;
mod intake;
mod lane_count;
mod lost_store;
mod session_cleanup;

pub use embed::{Builder, StartError, Tasklane};
pub use tasklane_core::id::{Name, TaskId};
pub use tasklane_core::status::Status;
pub use tasklane_core::task::{Payload, Priority};
pub use tasklane_ports::TaskView;
pub use tasklane_runtime::executors::{Function, FunctionError, TaskContext};
pub use tasklane_runtime::node::{Cancel, SubmitError, Submitted};
pub use tasklane_runtime::request::TaskRequest;

/// Has to be the first thing in `main` of every program that starts a Tasklane: the guard, which owns the processes of
/// tasks, is the same program started again, and this is where it learns so. Returns at once in every other case.
pub fn init() {
    tasklane_runtime::guard::run_if_asked();
    if let Some(session_cleanup) = tasklane_runtime::guard::session_cleanup_if_asked() {
        // No caller is left to receive an error; a session that stays open ends with its TTL.
        let code = i32::from(session_cleanup::run(&session_cleanup).is_err());
        #[expect(clippy::exit, reason = "this process was started for nothing else")]
        std::process::exit(code);
    }
}

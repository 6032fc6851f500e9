//! Executors: how each task type is run. An executor is one small file here and one line in the [`Registry`].
//!
//! ```text
//! SHELL, PYTHON_SCRIPT ──► command ──► guard        (processes of their own)
//! HTTP, NOOP, functions                             (inside the worker)
//! ```
//! `docs/executors.md` is the page for authors of tasks.

mod command;
mod environment;
mod function;
pub(crate) mod http;
mod noop;
mod options;
mod output;
mod payload;
mod progress;
mod python;
mod redirects;
mod registry;
mod result;
mod shell;

pub(crate) use payload::check_builtin;

pub use function::{Function, FunctionError, TaskContext};
pub use http::Http;
pub use noop::Noop;
pub use options::{CommandOptions, ExecutorOptions, HttpOptions};
pub use python::Python;
pub use registry::Registry;
pub use shell::Shell;

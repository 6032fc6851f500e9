//! A guard as a program of its own, for programs that cannot call [`guard::run_if_asked`] at the start of
//! `main`.

use std::process::ExitCode;

use tasklane_runtime::guard;

fn main() -> ExitCode {
    guard::run_if_asked();
    // No worker started this process, so there is nothing to guard.
    ExitCode::FAILURE
}

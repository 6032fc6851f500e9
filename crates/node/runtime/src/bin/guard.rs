//! A guard as a program of its own, for those who cannot call [`guard::run_if_asked`] at the start of `main`.

use std::process::ExitCode;

use tasklane_runtime::guard;

fn main() -> ExitCode {
    guard::run_if_asked();
    // Not asked: somebody started it by hand, and there is nothing that it could guard.
    ExitCode::FAILURE
}

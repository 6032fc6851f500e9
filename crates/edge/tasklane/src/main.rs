//! The `tasklane` binary.

mod cli;
mod log;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The guard of a worker is this same program. It has to begin before there is any thread or memory to speak of.
    tasklane::init();
    cli::main()
}

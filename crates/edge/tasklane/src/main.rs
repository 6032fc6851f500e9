//! The `tasklane` binary.

mod cli;
mod log;

use std::process::ExitCode;

/// Tasks are made on one thread and dropped on another, by the thousand; this allocator is good at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The guard of a worker is this same program. It has to begin before there is any thread or memory to speak of.
    tasklane::init();
    cli::main()
}

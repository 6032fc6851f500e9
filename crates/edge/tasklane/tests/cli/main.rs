//! The command line as its users meet it: the real binary, its texts and its exit codes.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod exit_codes;
mod reference;
mod run;
mod server;
mod terminal;

use std::process::{Command, Output};

/// The binary, in an environment without settings.
fn tasklane(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasklane"));
    command.args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TASKLANE_") {
            command.env_remove(name);
        }
    }
    command
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

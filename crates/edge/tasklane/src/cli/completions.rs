//! `tasklane completions`: scripts by which a shell completes commands.

use clap::CommandFactory;
use clap_complete::Shell;

use super::exit::Exit;
use super::out::print_raw;

/// Print a completion script for your shell
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "tasklane", &mut script);
    print_raw(String::from_utf8(script)?.trim_end())?;
    Ok(Exit::OK)
}

//! The command line: one file for each command.

mod bench;
mod bulk;
mod cancel;
mod completions;
mod config;
mod connect;
mod custom_types;
mod events;
mod exit;
mod explain;
mod filter;
mod get;
mod job;
mod list;
mod lock;
mod logs;
mod out;
mod output;
mod process;
mod queue;
mod retry;
mod run;
mod schedule;
mod spec;
mod stats;
mod submit;
mod value;
mod wait;
mod webhook;
mod worker;
mod workflow;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tasklane::assemble::Roles;
use tasklane_client::DefinitionKind;

use connect::{Connect, TypedOptions};
use exit::{Exit, report};
use out::Out;

/// A task scheduler in one binary
#[derive(Debug, Parser)]
#[command(
    name = "tasklane",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = exit::CODES)]
pub(crate) struct Cli {
    /// Print JSON, for programs; lists and streams one object a line
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    connect: Connect,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run API, scheduler and a worker in one process, with the data in a folder
    Dev(process::Settings),
    /// Run API and scheduler; workers run elsewhere. Any number of servers share the work
    Server(process::ServerSettings),
    Run(run::Args),
    Submit(submit::Args),
    Get(get::Args),
    List(list::Args),
    Logs(logs::Args),
    Cancel(cancel::Args),
    Retry(retry::Args),
    Wait(wait::Args),
    Explain(explain::Args),
    #[command(subcommand)]
    Queue(queue::Command),
    #[command(subcommand)]
    Schedule(schedule::Command),
    #[command(subcommand)]
    Workflow(workflow::Command),
    /// Define how task types run
    #[command(subcommand)]
    Executor(custom_types::Command),
    /// Define the analysis of results of task types
    #[command(subcommand)]
    Analyzer(custom_types::Command),
    #[command(subcommand)]
    Job(job::Command),
    #[command(subcommand)]
    Lock(lock::Command),
    #[command(subcommand)]
    Webhook(webhook::Command),
    Worker(worker::Args),
    Stats(stats::Args),
    #[command(subcommand)]
    Bulk(bulk::Command),
    Events(events::Args),
    Bench(bench::Args),
    #[command(subcommand)]
    Config(config::Command),
    Completions(completions::Args),
}

/// Reads the command line and runs its command.
pub(crate) fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let typed = TypedOptions::of(&matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let out = Out::new(cli.json);
    let done = match cli.command {
        Command::Dev(settings) => {
            typed.started("dev", out).and_then(|token| process::run(settings, Roles::ALL, token, out))
        }
        Command::Server(settings) => {
            typed.started("server", out).and_then(|token| process::run(settings, Roles::SERVER, token, out))
        }
        Command::Worker(worker::Args { settings, command: None }) => {
            typed.started("worker", out).and_then(|token| process::run(settings, Roles::WORKER, token, out))
        }
        Command::Bench(args) => {
            typed.warn(out);
            bench::run(&args, &cli.connect, out)
        }
        Command::Config(command) => typed.server("config").and_then(|token| config::run(command, token, out)),
        Command::Completions(args) => typed.nothing("completions").and_then(|()| completions::run(&args)),
        command => {
            typed.warn(out);
            client(command, &cli.connect, out)
        }
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => report(&error, out).into(),
    }
}

/// Commands that talk to a server. One thread is enough for them, and starts faster than several.
fn client(command: Command, connect: &Connect, out: Out) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = connect.client()?;
    runtime.block_on(async {
        match command {
            Command::Run(args) => Box::pin(run::run(args, &client, out)).await,
            Command::Submit(args) => Box::pin(submit::run(args, &client, out)).await,
            Command::Get(args) => get::run(args, &client, out).await,
            Command::List(args) => Box::pin(list::run(args, &client, out)).await,
            Command::Logs(args) => logs::run(args, &client, out).await,
            Command::Cancel(args) => cancel::run(args, &client, out).await,
            Command::Retry(args) => retry::run(args, &client, out).await,
            Command::Wait(args) => wait::run(args, &client, out).await,
            Command::Explain(args) => explain::run(args, &client, out).await,
            Command::Queue(command) => Box::pin(queue::run(command, &client, out)).await,
            Command::Schedule(command) => Box::pin(schedule::run(command, &client, out)).await,
            Command::Workflow(command) => Box::pin(workflow::run(command, &client, out)).await,
            Command::Executor(command) => {
                Box::pin(custom_types::run(DefinitionKind::Executor, command, &client, out)).await
            }
            Command::Analyzer(command) => {
                Box::pin(custom_types::run(DefinitionKind::Analyzer, command, &client, out)).await
            }
            Command::Job(command) => Box::pin(job::run(command, &client, out)).await,
            Command::Webhook(command) => Box::pin(webhook::run(command, &client, out)).await,
            Command::Lock(command) => lock::run(command, &client, out).await,
            Command::Worker(worker::Args { command: Some(command), .. }) => {
                worker::run(command, &client, out).await
            }
            Command::Stats(args) => stats::run(args, &client, out).await,
            Command::Bulk(command) => Box::pin(bulk::run(command, &client, out)).await,
            Command::Events(args) => events::run(args, &client, out).await,
            Command::Dev(_)
            | Command::Server(_)
            | Command::Worker(worker::Args { command: None, .. })
            | Command::Bench(_)
            | Command::Config(_)
            | Command::Completions(_) => {
                unreachable!("dealt with before, without a client")
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}

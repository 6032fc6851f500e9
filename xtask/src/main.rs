//! `cargo xtask …`: the project's checks and helpers. CI runs `cargo xtask verify`.

#![expect(clippy::print_stdout, reason = "a command-line tool talks on standard output")]

mod api;
mod attack;
mod bench_cluster;
mod bench_connections;
mod bench_lane;
mod bench_limits;
mod bench_strategies;
mod cargo;
mod chaos;
mod clients;
mod cycles;
mod directions;
mod figures;
mod generate;
mod licences;
mod paths;
mod quota;
mod server;
mod servers;
mod sim;
mod upgrade;
mod verify;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks and helpers of the project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every check that CI runs, or only the steps named
    Verify(verify::Options),
    /// Checks format, lints and tests of the pure crates, within a minute
    Quick,
    /// Measures the lane machine alone
    BenchLane(bench_lane::Options),
    /// Measures Tasklane beside what the store alone and the machine alone can do
    BenchLimits(bench_limits::Options),
    /// Measures Tasklane on PostgreSQL and on Redis beside what these alone can do, and a second server
    BenchCluster(bench_cluster::Options),
    /// Measures how tasks start beside ten thousand open connections and clients that are slow
    BenchConnections(bench_connections::Options),
    /// Measures how bursts are spread over workers, and how soon their tasks start
    BenchStrategies(bench_strategies::Options),
    /// Counts words of comments and docs that hide the acting noun
    Words(words::Options),
    /// Runs the simulator
    Sim(sim::Options),
    /// Writes the Rust that is made of the `.proto` files
    Gen,
    /// Plays with a real cluster to which everything happens, and checks what it promised
    Chaos(chaos::Options),
    /// Attacks a real system under honest load with all that is hostile, and checks what it promised
    Attack(attack::Options),
    /// Upgrades a cluster from an earlier commit while tasks run
    Upgrade(upgrade::Options),
    /// Installs the servers that tests need, where they are missing
    Servers,
}

fn main() -> ExitCode {
    // Before anything else: it is started some hundred times a second.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((chaos::attempt::MODE, rest)) = args.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return chaos::attempt::run(rest);
    }
    let result = match Cli::parse().command {
        Command::Verify(options) => verify::run(&options),
        Command::Quick => verify::quick(),
        Command::BenchLane(options) => bench_lane::run(&options),
        Command::BenchLimits(options) => bench_limits::run(&options),
        Command::BenchCluster(options) => bench_cluster::run(&options),
        Command::BenchConnections(options) => bench_connections::run(&options),
        Command::BenchStrategies(options) => bench_strategies::run(&options),
        Command::Words(options) => words::run(&options),
        Command::Sim(options) => sim::run_command(&options),
        Command::Gen => generate::run(),
        Command::Chaos(options) => chaos::run_command(&options),
        Command::Attack(options) => attack::run_command(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Servers => servers::ensure(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

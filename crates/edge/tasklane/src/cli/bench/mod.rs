//! `tasklane bench`: how fast a server, or a Tasklane in this process, takes in and finishes tasks.

mod bare;
mod keys;
mod report;
mod scenarios;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tasklane_client::Client;

use self::report::shown;
use self::target::Target;

use super::connect::Connect;
use super::exit::Exit;
use super::out::Out;
use super::value::duration;

/// Measure how fast a server, or a Tasklane in this process, accepts and finishes tasks
///
/// Only committed completions count. All tasks are NOOPs, except in `shell`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_enum, default_value_t = Scenario::Burst)]
    scenario: Scenario,

    /// The number of tasks [default: burst, keys and crowd 100000, backlog 1000000, single 20000, sync 2000, shell 1000]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tasks: Option<u64>,

    /// Tasks in a batch
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,

    /// Requests under way at once [default: 4; single 64, sync 1]
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    connections: Option<u64>,

    /// steady: tasks a second
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,

    /// steady: the duration
    #[arg(long = "for", default_value = "10s", value_name = "TIME", value_parser = duration)]
    lasting: Duration,

    /// backlog: the number of finished tasks at which the clock stops [default: 100000]
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    drain: u64,

    /// backlog: leave the other tasks in the queue, instead of waiting until all are finished
    #[arg(long)]
    keep: bool,

    /// keys, crowd: the number of different keys
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// keys, crowd: the number of rounds that measure both in turns; the result is the median
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// keys: attempts of each key at once
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    key_limit: u32,

    /// Bytes of payload of each task
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(..=100_000))]
    payload_bytes: u64,

    /// The queue to use
    #[arg(long, default_value = "bench")]
    queue: String,

    /// Measure a Tasklane in this process, without a server and without REST
    #[arg(long)]
    embedded: bool,

    /// embedded: the data folder [default: a new folder here]
    #[arg(long, value_name = "DIR", requires = "embedded")]
    data_dir: Option<PathBuf>,

    /// embedded: attempts at once
    #[arg(long, value_name = "N", requires = "embedded", value_parser = clap::value_parser!(u32).range(1..))]
    capacity: Option<u32>,
}

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
enum Scenario {
    /// Submit tasks in batches as fast as the server accepts them, and wait until all are finished
    Burst,
    /// Submit at a fixed rate, independent of the answers, and measure latencies from the due time of each task
    Steady,
    /// One task for each request
    Single,
    /// Each request waits for the end of its task
    Sync,
    /// Fill a paused queue, then let it run: first with few tasks, then with many
    Backlog,
    /// Fill a paused queue with tasks of many keys, then let it run: first without limits, then with a limit for each key
    Keys,
    /// The same with nine of ten tasks under one key at its limit: the speed of the other tasks, beside that key and alone
    Crowd,
    /// Real processes, beside a bare loop that starts the same ones
    Shell,
}

impl Args {
    fn tasks(&self) -> u64 {
        self.tasks.unwrap_or_else(|| match self.scenario {
            Scenario::Burst | Scenario::Keys | Scenario::Crowd => 100_000,
            Scenario::Backlog => 1_000_000,
            Scenario::Steady => {
                let tasks = u128::from(self.rate) * self.lasting.as_millis() / 1000;
                u64::try_from(tasks).unwrap_or(u64::MAX).max(1)
            }
            Scenario::Single => 20_000,
            Scenario::Sync => 2_000,
            Scenario::Shell => 1_000,
        })
    }

    fn connections(&self) -> usize {
        let connections = self.connections.unwrap_or(match self.scenario {
            Scenario::Single => 64,
            Scenario::Sync => 1,
            Scenario::Burst
            | Scenario::Steady
            | Scenario::Backlog
            | Scenario::Keys
            | Scenario::Crowd
            | Scenario::Shell => 4,
        });
        usize::try_from(connections).unwrap_or(usize::MAX)
    }
}

pub(crate) fn run(args: &Args, connect: &Connect, out: Out) -> anyhow::Result<Exit> {
    // A client should take little from the server that it measures; one thread is enough for it.
    let mut runtime = if args.embedded {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let report = runtime.enable_all().build()?.block_on(async {
        let target = if args.embedded {
            Target::embedded(args).await?
        } else {
            let client: Client = connect.client()?;
            Target::Rest(client)
        };
        let report = scenarios::run(args, &target).await;
        target.close().await?;
        report
    })?;
    out.either(&report, shown).map(|()| Exit::OK)
}

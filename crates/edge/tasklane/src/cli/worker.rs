//! `tasklane worker`: who does the work.

use tasklane_client::{Client, Worker};

use super::exit::Exit;
use super::out::{Out, pairs, remark};
use super::process::Settings;

/// Run a worker; or look at workers, change their capacity, drain them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) settings: Settings,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What is asked of workers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the live workers
    List,
    /// Show one worker
    Get {
        /// Its name or session
        worker: String,
    },
    /// Change how many attempts a worker runs at once
    Capacity {
        /// Its name or session
        worker: String,
        /// How many
        capacity: u32,
    },
    /// Give a worker no new work; what it runs may finish within its grace time
    Drain {
        /// Its name or session
        worker: String,
    },
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let worker = match command {
        Command::List => {
            let workers = client.workers().await?;
            out.rows(&workers, &HEAD, cells)?;
            if workers.is_empty() {
                remark("no worker is alive");
            }
            return Ok(Exit::OK);
        }
        Command::Get { worker } => client.worker(&worker).await?,
        Command::Capacity { worker, capacity } => client.set_capacity(&worker, capacity).await?,
        Command::Drain { worker } => client.drain(&worker).await?,
    };
    out.either(&worker, shown).map(|()| Exit::OK)
}

const HEAD: [&str; 7] = ["NAME", "STATUS", "RUNNING", "CAPACITY", "CPU", "MEMORY", "TYPES"];

fn cells(worker: &Worker) -> Vec<String> {
    let load = worker.load.clone().unwrap_or_default();
    vec![
        worker.name.clone(),
        worker.status.clone(),
        load.running.to_string(),
        worker.capacity.to_string(),
        format!("{:.0} %", load.cpu_percent),
        memory(load.memory_bytes),
        worker.task_types.join(" "),
    ]
}

fn shown(worker: &Worker) -> String {
    let load = worker.load.clone().unwrap_or_default();
    pairs(&[
        ("worker", worker.name.clone()),
        ("session", worker.session.clone()),
        ("status", worker.status.clone()),
        (
            "capacity",
            format!("{} of {} in use, {} waiting there", load.running, worker.capacity, load.queued),
        ),
        ("weight", worker.weight.to_string()),
        ("cpu", format!("{:.0} % of a core", load.cpu_percent)),
        ("memory", memory(load.memory_bytes)),
        ("labels", worker.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")),
        ("types", worker.task_types.join(" ")),
    ])
}

fn memory(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

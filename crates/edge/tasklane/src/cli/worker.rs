//! `tasklane worker`: shows and changes the workers, or runs one.

use tasklane_client::{Client, Worker, WorkerChange};

use super::exit::Exit;
use super::out::{Out, pairs, remark};
use super::process::WorkerSettings;

/// Run a worker; or show workers, change their settings, drain them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) settings: WorkerSettings,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The commands about workers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the live workers; processor and memory are figures of their machines
    List,
    /// Show a worker
    Get {
        /// The name or session of the worker
        worker: String,
    },
    /// Change the settings of a worker until its next start; running attempts go on
    Set {
        /// The name or session of the worker
        worker: String,
        #[command(flatten)]
        offer: Offer,
    },
    /// Give a worker no new work; running attempts may finish within its grace time
    Drain {
        /// The name or session of the worker
        worker: String,
    },
}

/// The new offer of a worker.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Offer {
    /// The number of attempts that it runs at once
    #[arg(long, value_name = "N")]
    capacity: Option<u32>,
    /// Its share under the weighted strategy
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// A label; the given labels replace all labels of the worker; may be repeated
    #[arg(long, short, value_parser = super::value::pair, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Remove all labels
    #[arg(long, conflicts_with = "label")]
    no_labels: bool,
}

impl From<Offer> for WorkerChange {
    fn from(offer: Offer) -> Self {
        let labels = !offer.label.is_empty() || offer.no_labels;
        Self {
            capacity: offer.capacity,
            weight: offer.weight,
            labels: labels.then(|| offer.label.into_iter().collect()),
        }
    }
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let worker = match command {
        Command::List => {
            let workers = client.workers().await?;
            out.rows(&workers, &HEAD, cells)?;
            if workers.is_empty() {
                remark("no worker is live");
            }
            return Ok(Exit::OK);
        }
        Command::Get { worker } => client.worker(&worker).await?,
        Command::Set { worker, offer } => client.change_worker(&worker, &offer.into()).await?,
        Command::Drain { worker } => client.drain(&worker).await?,
    };
    out.either(&worker, shown).map(|()| Exit::OK)
}

const HEAD: [&str; 8] =
    ["NAME", "STATUS", "RUNNING", "CAPACITY", "MACHINE CPU", "MACHINE MEMORY", "ADDRESS", "TYPES"];

fn cells(worker: &Worker) -> Vec<String> {
    let load = worker.load.clone().unwrap_or_default();
    vec![
        worker.name.clone(),
        worker.status.clone(),
        load.running.to_string(),
        worker.capacity.to_string(),
        format!("{:.0} %", load.cpu_percent),
        memory(load.memory_bytes),
        address(worker),
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
        ("address", address(worker)),
        ("machine cpu", format!("{:.0} % of a core, all processes together", load.cpu_percent)),
        ("machine memory", format!("{}, all processes together", memory(load.memory_bytes))),
        ("labels", worker.labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")),
        ("types", worker.task_types.join(" ")),
    ])
}

fn address(worker: &Worker) -> String {
    worker.address.clone().unwrap_or_else(|| "-".to_owned())
}

fn memory(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

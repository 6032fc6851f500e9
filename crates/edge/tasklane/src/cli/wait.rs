//! `tasklane wait`: until tasks are finished.

use std::time::{Duration, Instant};

use tasklane_client::Client;

use super::exit::Exit;
use super::out::Out;
use super::value;

/// Longer than any wait.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Wait until tasks are finished; the exit code is that of the first unsuccessful task
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,

    /// End after this time, with exit code 124
    #[arg(long, short, value_parser = value::duration, value_name = "DURATION")]
    timeout: Option<Duration>,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let timeout = args.timeout.unwrap_or(FOR_EVER);
    let mut exit = Exit::OK;
    for id in &args.ids {
        let task = client.wait(id, timeout.saturating_sub(started.elapsed())).await?;
        if exit == Exit::OK {
            exit = Exit::of_task(&task);
        }
        out.either(&task, |task| format!("{id}: {}", task.status))?;
    }
    Ok(exit)
}

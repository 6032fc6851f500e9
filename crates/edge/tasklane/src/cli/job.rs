//! `tasklane job`: a task, the analyses of its results and the tasks that they added.

use std::time::Duration;

use serde_json::json;
use tasklane_client::{Client, Job, Status};

use super::exit::Exit;
use super::out::{Out, pairs};
use super::value;

/// Show or remove a job: a task and all tasks that follow from it
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the progress of a job
    Get {
        /// The job, or one of its tasks
        id: String,

        /// Wait for the end of the job, at most this long
        #[arg(long, short, value_parser = value::duration, value_name = "DURATION")]
        wait: Option<Duration>,
    },
    /// Cancel the open tasks of a job and remove all of its tasks
    Delete {
        /// The job, or one of its tasks
        id: String,
    },
}

/// The server waits this long at a time.
const WAIT_STEP: Duration = Duration::from_mins(1);

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    match command {
        Command::Get { id, wait } => {
            let mut left = wait;
            let job = loop {
                let step = left.map(|left| left.min(WAIT_STEP));
                let job = client.job(&id, step).await?;
                left = left.zip(step).map(|(left, step)| left.saturating_sub(step));
                if job.finished || left.is_none_or(|left| left.is_zero()) {
                    break job;
                }
            };
            out.either(&job, shown)?;
            Ok(match (wait, job.status) {
                (None, _) | (_, Status::Success) => Exit::OK,
                (_, Status::Failed) => Exit::FAILED,
                (_, Status::Cancelled) => Exit::CANCELLED,
                _ => Exit::TIME_IS_UP,
            })
        }
        Command::Delete { id } => {
            let removed = client.tear_down(&id).await?;
            out.either(&json!({ "removed": removed }), |_| format!("{removed} tasks removed"))?;
            Ok(Exit::OK)
        }
    }
}

fn shown(job: &Job) -> String {
    let by_status: Vec<String> =
        job.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
    pairs(&[
        ("job", job.job_id.clone()),
        ("name", job.name.clone()),
        ("status", job.status.to_string()),
        ("tasks", format!("{} ({})", job.total, by_status.join(", "))),
        ("open", job.open.to_string()),
        ("unanalyzed", job.unanalyzed.to_string()),
        ("error", job.error.as_ref().map_or_else(String::new, |error| error.message.clone())),
    ])
}

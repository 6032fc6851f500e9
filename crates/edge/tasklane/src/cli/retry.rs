//! `tasklane retry`: run a finished task again.

use tasklane_client::{Client, RetryOptions};

use super::exit::Exit;
use super::out::{Out, remark};
use super::workflow::remark_kept;

/// Run a finished task again, as a new task, and print its id
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The finished task
    id: String,

    /// Your own name for this request: a repeated name creates one new task
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Use the current definition of the type or workflow instead of that at the submit of the first task
    #[arg(long)]
    latest: bool,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let options =
        RetryOptions { request_id: args.request_id, latest: args.latest, ..RetryOptions::default() };
    let retried = client.retry_with(&args.id, &options).await?;
    if retried.newer_definition {
        let id = &args.id;
        remark(format_args!("tasklane: a newer definition exists; `tasklane retry {id} --latest` uses it"));
    }
    if let (Some(kept), Some(runs_again)) = (&retried.kept, &retried.runs_again) {
        remark_kept(kept, runs_again);
    }
    out.either(&retried, |retried| retried.new_task_id.clone()).map(|()| Exit::OK)
}

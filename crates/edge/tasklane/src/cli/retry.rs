//! `tasklane retry`: run a finished task again.

use tasklane_client::Client;

use super::exit::Exit;
use super::out::Out;

/// Run a finished task again, as a new task, and print its id
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The finished task
    id: String,

    /// Your own name for this request: the same one twice is one new task
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let retried = client.retry(&args.id, args.request_id.as_deref()).await?;
    out.either(&retried, |retried| retried.new_task_id.clone()).map(|()| Exit::OK)
}

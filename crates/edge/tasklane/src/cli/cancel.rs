//! `tasklane cancel`: stop tasks.

use serde_json::json;
use tasklane_client::Client;

use super::exit::Exit;
use super::out::Out;

/// Cancel tasks: waiting tasks at once, running tasks with all their processes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tasks
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    for id in &args.ids {
        client.cancel(id).await?;
        let answer = json!({ "taskId": id, "message": "Cancel request accepted." });
        out.either(&answer, |_| format!("{id}: cancel request accepted"))?;
    }
    Ok(Exit::OK)
}

//! `tasklane logs`: the output of a task, in full or followed.

use tasklane_client::{Client, LogChunk, LogItem};

use super::exit::Exit;
use super::out::{Out, print_object};
use super::output::{Raw, TaskOutput};

/// Chunks read at once.
const PAGE: u32 = 500;

/// Print the output of a task: its stdout to stdout, other streams to stderr
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The task
    id: String,

    /// Follow the output until the task is finished
    #[arg(long, short)]
    follow: bool,

    /// Only this attempt
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,

    #[command(flatten)]
    raw: Raw,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let mut output = TaskOutput::new(args.raw);
    let mut show = |chunk: &LogChunk| {
        if args.attempt.is_some_and(|attempt| attempt != chunk.attempt) {
            return Ok(());
        }
        if out.is_json() { print_object(chunk) } else { output.print(chunk) }
    };
    if args.follow {
        let mut follow = client.follow_logs(&args.id, None);
        while let Some(item) = follow.next().await {
            if let LogItem::Chunk(chunk) = item? {
                show(&chunk)?;
            }
        }
        return Ok(Exit::OK);
    }
    let mut after = None;
    loop {
        let page = client.logs(&args.id, after.as_deref(), Some(PAGE)).await?;
        page.logs.iter().try_for_each(&mut show)?;
        // A page is bounded in bytes too, so a short one is not yet the end.
        if page.next.is_none() {
            return Ok(Exit::OK);
        }
        after = page.next;
    }
}

//! `tasklane bulk`: one action on all tasks that a filter finds.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use serde_json::json;
use tasklane_client::{BulkAction, Client, Operation, Status, TaskFilter};

use super::exit::{Exit, Usage};
use super::filter::Filter;
use super::out::{Out, bar, remark};

/// How often the progress is asked for.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Cancel or retry all tasks that match a filter, after showing their number
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Cancel the tasks
    Cancel(Box<Args>),
    /// Run the tasks again, as new tasks; children of a run or a map run again with it, and its successful children are kept
    Retry(Box<RetryArgs>),
    /// Show the progress of an operation
    Status {
        /// The operation
        id: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// Use the current definitions of types and workflows instead of those at the submit of the tasks
    #[arg(long)]
    latest: bool,

    #[command(flatten)]
    args: Args,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// All tasks of the namespace, if no filter is given
    #[arg(long)]
    all: bool,

    /// Only show their number
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    filter: Filter,
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let (action, args, latest) = match command {
        Command::Cancel(args) => (BulkAction::Cancel, *args, false),
        Command::Retry(retry) => (BulkAction::Retry, retry.args, retry.latest),
        Command::Status { id } => {
            let operation = client.operation(&id).await?;
            return out.either(&operation, shown).map(|()| Exit::OK);
        }
    };
    let filter = args.filter.into_filter();
    if filter == TaskFilter::default() && !args.all {
        return Err(Usage(
            "no filter is given: name the tasks, such as --status FAILED, or use --all".to_owned(),
        )
        .into());
    }
    let count = client.bulk_count(action, &filter).await?;
    if args.dry_run {
        let counted = json!({ "dryRun": true, "matched": count });
        return out.either(&counted, |_| format!("{count} tasks")).map(|()| Exit::OK);
    }
    if count == 0 {
        let nothing = json!({ "dryRun": false, "matched": 0 });
        return out.either(&nothing, |_| "no task matches".to_owned()).map(|()| Exit::OK);
    }
    if !args.yes && !confirmed(action, count)? {
        remark("cancelled: no task was changed");
        return Ok(Exit::FAILED);
    }
    let id =
        if latest { client.bulk_retry_latest(&filter).await? } else { client.bulk(action, &filter).await? };
    let operation = attend(&id, count, client).await?;
    out.either(&operation, shown)?;
    Ok(if operation.status == Status::Success { Exit::OK } else { Exit::FAILED })
}

/// Asks for a confirmation on a terminal.
fn confirmed(action: BulkAction, count: u64) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Usage(format!(
            "{count} tasks match, and standard input is not a terminal: confirm with --yes"
        ))
        .into());
    }
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{} {count} tasks? [y/N] ", verb(action))?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn verb(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Cancel => "cancel",
        BulkAction::Retry => "retry",
    }
}

/// Shows progress until the operation is final. It goes on without us, too.
async fn attend(id: &str, count: u64, client: &Client) -> anyhow::Result<Operation> {
    let progress = bar(count, "done");
    loop {
        let operation = client.operation(id).await?;
        progress.set_length(count.max(operation.matched));
        progress.set_position(operation.done + operation.failed);
        if operation.status.is_final() {
            progress.finish_and_clear();
            return Ok(operation);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn shown(operation: &Operation) -> String {
    let Operation { operation_id: id, status, matched, done, failed, message, .. } = operation;
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{} {status}, {matched} found, {done} done, {failed} not ({id}){message}", verb(operation.action))
}

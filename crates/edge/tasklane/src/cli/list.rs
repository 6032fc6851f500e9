//! `tasklane list`: tasks, newest first.

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use tasklane_client::{Client, Task};

use super::exit::Exit;
use super::filter::Filter;
use super::out::{Out, print_object, remark};
use super::value::{shown_span, shown_time};

/// Tasks read at once.
const PAGE: u32 = 500;

/// List tasks, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// At most this many
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N", conflicts_with = "all")]
    limit: u32,

    /// All of them
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filter: Filter,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let limit = if args.all { usize::MAX } else { args.limit as usize };
    let page = PAGE.min(if args.all { PAGE } else { args.limit.max(1) });
    let tasks = client.list_all(args.filter.into_query(page)).take(limit);
    if out.is_json() {
        // Line by line: there may be more than fits into memory.
        tasks.map_err(anyhow::Error::from).try_for_each(|task| async move { print_object(&task) }).await?;
        return Ok(Exit::OK);
    }
    let tasks: Vec<Task> = tasks.try_collect().await?;
    out.rows(&tasks, &HEAD, |task| cells(task, Timestamp::now()))?;
    if tasks.is_empty() {
        remark("no such task");
    } else if tasks.len() == limit {
        remark(format_args!("the newest {limit}; --limit or --all shows more"));
    }
    Ok(Exit::OK)
}

const HEAD: [&str; 8] = ["ID", "STATUS", "TYPE", "NAME", "QUEUE", "ATTEMPT", "CREATED", "TOOK"];

fn cells(task: &Task, now: Timestamp) -> Vec<String> {
    let end = task.finished_at.unwrap_or(now);
    vec![
        task.task_id.clone(),
        task.status.to_string(),
        task.task_type.clone(),
        task.task_name.clone(),
        task.queue.clone(),
        if task.attempt == 0 { String::new() } else { task.attempt.to_string() },
        shown_time(task.created_at),
        shown_span(task.started_at, Some(end)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_how_long_a_running_task_has_taken() {
        let told = json!({ "taskId": "t1", "status": "RUNNING", "taskType": "SHELL", "taskName": "a\nb", "queue": "q",
            "attempt": 2, "createdAt": "2030-01-31T12:00:00Z", "startedAt": "2030-01-31T12:00:01Z" });
        let task: Task = serde_json::from_value(told).unwrap();
        let now = "2030-01-31T12:01:02Z".parse().unwrap();
        let text = super::super::out::table(&HEAD, std::iter::once(cells(&task, now)));
        assert_eq!(
            text,
            "ID  STATUS   TYPE   NAME  QUEUE  ATTEMPT  CREATED                   TOOK\n\
             t1  RUNNING  SHELL  a b   q      2        2030-01-31 12:00:00.000Z  1m01s"
        );
    }
}

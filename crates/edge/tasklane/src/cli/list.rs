//! `tasklane list`: tasks, newest first.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use tasklane_client::{Client, Task, TaskQuery};

use super::exit::Exit;
use super::filter::Filter;
use super::out::{Out, print_object, redraw, remark, table};
use super::value::{shown_span, shown_time};

/// Tasks read at once.
const PAGE: u32 = 500;

/// A change is shown together with what follows within this time.
const REDRAW_AFTER: Duration = Duration::from_millis(200);

/// List tasks, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The maximum of tasks
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N", conflicts_with = "all")]
    limit: u32,

    /// All tasks
    #[arg(long)]
    all: bool,

    /// Refresh the list whenever a task changes, until Ctrl-C
    #[arg(long, conflicts_with_all = ["all", "json"])]
    watch: bool,

    #[command(flatten)]
    filter: Filter,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let limit = if args.all { usize::MAX } else { args.limit as usize };
    let page = PAGE.min(if args.all { PAGE } else { args.limit.max(1) });
    let query = args.filter.into_query(page);
    if args.watch {
        return watch(&query, limit, client).await;
    }
    let tasks = client.list_all(query).take(limit);
    if out.is_json() {
        // Line by line: there may be more than fits into memory.
        tasks.map_err(anyhow::Error::from).try_for_each(|task| async move { print_object(&task) }).await?;
        return Ok(Exit::OK);
    }
    let tasks: Vec<Task> = tasks.try_collect().await?;
    out.rows(&tasks, &HEAD, |task| cells(task, Timestamp::now()))?;
    if tasks.is_empty() {
        remark("no task matches");
    } else if tasks.len() == limit {
        remark(format_args!("the newest {limit}; --limit or --all shows more"));
    }
    Ok(Exit::OK)
}

/// Shows the tasks now and after every change. What changes in quick succession is shown together.
async fn watch(query: &TaskQuery, limit: usize, client: &Client) -> anyhow::Result<Exit> {
    let mut events = client.events(None);
    // Before the tasks are read, so that nothing falls between the two.
    events.connect().await?;
    loop {
        let tasks: Vec<Task> = client.list_all(query.clone()).take(limit).try_collect().await?;
        let now = Timestamp::now();
        redraw(table(&HEAD, tasks.iter().map(|task| cells(task, now))))?;
        let Some(item) = events.next().await else { return Ok(Exit::OK) };
        item?;
        let soon = tokio::time::sleep(REDRAW_AFTER);
        tokio::pin!(soon);
        loop {
            tokio::select! {
                () = &mut soon => break,
                item = events.next() => {
                    if item.transpose()?.is_none() {
                        break;
                    }
                }
            }
        }
    }
}

const HEAD: [&str; 8] = ["ID", "STATUS", "TYPE", "NAME", "QUEUE", "ATTEMPT", "CREATED", "TOOK"];

fn cells(task: &Task, now: Timestamp) -> Vec<String> {
    let end = task.finished_at.unwrap_or(now);
    vec![
        task.task_id.clone(),
        status(task),
        task.task_type.clone(),
        task.task_name.clone(),
        task.queue.clone(),
        if task.attempt == 0 { String::new() } else { task.attempt.to_string() },
        shown_time(task.created_at),
        shown_span(task.started_at, Some(end)),
    ]
}

fn status(task: &Task) -> String {
    let is_cancelling = task.cancel_requested && !task.status.is_final();
    if is_cancelling { format!("{}, cancelling", task.status) } else { task.status.to_string() }
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
             t1  RUNNING  SHELL  a\\nb  q      2        2030-01-31 12:00:00.000Z  1m01s"
        );
    }
}

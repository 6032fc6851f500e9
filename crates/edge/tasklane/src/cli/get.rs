//! `tasklane get`: everything about one task.

use std::fmt::Write;

use serde_json::Value;
use tasklane_client::{Client, Task};

use super::exit::Exit;
use super::out::{Out, pairs, print_object, print_raw, table};
use super::output::{Raw, TaskOutput};
use super::value::{shown_span, shown_time};

/// Show a task
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The task
    id: String,

    #[command(flatten)]
    raw: Raw,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let task = client.task(&args.id).await?;
    print(&task, args.raw, out).map(|()| Exit::OK)
}

/// Prints a task.
pub(crate) fn print(task: &Task, raw: Raw, out: Out) -> anyhow::Result<()> {
    if out.is_json() {
        return print_object(task);
    }
    print_raw(shown(task, &mut TaskOutput::new(raw)).trim_end())
}

/// A task for people.
fn shown(task: &Task, output: &mut TaskOutput) -> String {
    let mut text = pairs(&[
        ("task", task.task_id.clone()),
        ("name", task.task_name.clone()),
        ("type", task.task_type.clone()),
        ("status", status(task)),
        ("queue", format!("{} (priority {})", task.queue, task.priority)),
        ("worker", task.worker.clone().unwrap_or_default()),
        ("metadata", task.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")),
        ("created", shown_time(task.created_at)),
        ("due", if task.status.is_final() { String::new() } else { shown_time(task.due_at) }),
        ("started", shown_time(task.started_at)),
        ("finished", shown_time(task.finished_at)),
        ("took", shown_span(task.started_at, task.finished_at)),
        ("progress", task.progress.as_ref().map(progress).unwrap_or_default()),
        ("result", task.result.as_ref().map(result).unwrap_or_default()),
        (
            "error",
            task.error
                .as_ref()
                .map(|error| format!("{} ({})", error.message, error.code))
                .unwrap_or_default(),
        ),
    ]);
    // One attempt says nothing that is not said above.
    if let Some(attempts) = task.attempts.as_ref().filter(|attempts| attempts.len() > 1) {
        let rows = attempts.iter().map(|attempt| {
            vec![
                attempt.number.to_string(),
                attempt.outcome.clone().unwrap_or_default(),
                attempt.worker.clone().unwrap_or_default(),
                shown_time(attempt.started_at),
                shown_span(attempt.started_at, attempt.ended_at),
                attempt.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
            ]
        });
        text.push('\n');
        text.push_str(&table(&["ATTEMPT", "OUTCOME", "WORKER", "STARTED", "TOOK", "ERROR"], rows));
        text.push('\n');
    }
    if let Some(logs) = task.logs.as_ref().filter(|logs| !logs.is_empty()) {
        text.push_str("\nend of its output:\n");
        let printed: String = logs.iter().map(|chunk| chunk.text.as_str()).collect();
        text.push_str(&output.text(&printed));
    }
    text
}

fn status(task: &Task) -> String {
    let mut text = task.status.to_string();
    if task.attempt > 0 {
        let _ = write!(text, ", attempt {}", task.attempt);
    }
    if task.cancel_requested && !task.status.is_final() {
        text.push_str(", cancelling");
    }
    text
}

fn progress(progress: &tasklane_client::Progress) -> String {
    let percent = progress.percent.map(|percent| format!("{percent} % ")).unwrap_or_default();
    format!("{percent}{}", progress.message).trim_end().to_owned()
}

fn result(result: &tasklane_client::TaskResult) -> String {
    let data = match &result.data {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        data => data.to_string(),
    };
    let said = [result.message.clone(), data].into_iter().filter(|text| !text.is_empty());
    let mut words: Vec<String> = said.collect();
    if result.code != 0 || words.is_empty() {
        words.insert(0, format!("code {}", result.code));
    }
    words.join(": ")
}

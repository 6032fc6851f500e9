//! `tasklane workflow`: tasks that wait for each other.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tasklane_client::{Client, RetryOptions, RunNode, RunRetried, Status, Workflow, WorkflowRun};

use super::exit::{Exit, Usage};
use super::out::{Out, pairs, print_line, print_object, remark, table};
use super::run::Interrupts;
use super::{submit, value};

/// Run workflows: tasks with dependencies
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    /// Show a run and its nodes
    Get {
        /// The run
        #[arg(value_name = "RUN")]
        id: String,
    },
    /// List the last runs
    Runs {
        /// The number of runs
        #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
        limit: u32,
    },
    /// Cancel a run: its open tasks, then the run
    Cancel {
        /// The run
        #[arg(value_name = "RUN")]
        id: String,
    },
    Retry(RetryArgs),
    /// List the stored workflows
    List,
    /// Show a workflow, as YAML
    Show {
        /// The workflow
        name: String,
    },
    /// Store a workflow under a name
    Put {
        /// The workflow
        name: String,

        /// Its nodes, as YAML or JSON; - for standard input
        file: std::path::PathBuf,
    },
    /// Remove workflows; their runs go on
    Delete {
        /// The workflows
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Run a workflow and show the progress of its nodes; Ctrl-C cancels it
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// A file with its nodes, as YAML or JSON (- for standard input), or the name of a stored workflow
    #[arg(value_name = "FILE|NAME")]
    workflow: String,

    /// The value of `input` in expressions: JSON, or text
    #[arg(long, value_name = "JSON")]
    input: Option<String>,

    /// A field of the input
    #[arg(long = "set", value_parser = value::pair, value_name = "KEY=VALUE", conflicts_with = "input")]
    fields: Vec<(String, String)>,

    /// Your name for this request: a repeated name gives the same run
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print the id of the run and do not wait
    #[arg(long, short)]
    detach: bool,
}

/// Run a run again: a new run that keeps the successful nodes
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The run
    #[arg(value_name = "RUN")]
    id: String,

    /// Use the definition in this file, as YAML or JSON (- for standard input)
    #[arg(value_name = "FILE", conflicts_with = "latest")]
    file: Option<std::path::PathBuf>,

    /// Use the current definition of the workflow; successful nodes that it does not change are kept
    #[arg(long)]
    latest: bool,

    /// Your name for this request: a repeated name gives the same new run
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print the id of the new run and do not wait
    #[arg(long, short)]
    detach: bool,
}

/// How often a run is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    match command {
        Command::Run(args) => {
            let detach = args.detach;
            let started = client.start_run(&body(args)?).await?;
            if started.duplicate {
                remark(format_args!("tasklane: this request was accepted before, as run {}", started.run_id));
            }
            if detach {
                return out.either(&started, |started| started.run_id.clone()).map(|()| Exit::OK);
            }
            follow(&started.run_id, client, out).await
        }
        Command::Retry(RetryArgs { id, file, latest, request_id, detach }) => {
            let definition = file.as_deref().map(read).transpose()?;
            let retried = client.retry_run(&id, &RetryOptions { request_id, latest, definition }).await?;
            remark_retried(&id, &retried);
            if detach {
                return out.either(&retried, |retried| retried.run_id.clone()).map(|()| Exit::OK);
            }
            follow(&retried.run_id, client, out).await
        }
        Command::Get { id } => {
            let run = client.workflow_run(&id, None).await?;
            out.either(&run, shown).map(|()| Exit::OK)
        }
        Command::Runs { limit } => {
            let runs = client.workflow_runs(limit).await?;
            out.rows(&runs, &["RUN", "NAME", "STATUS", "BEGUN", "TOOK", "PROGRESS"], run_cells)?;
            if runs.is_empty() {
                remark("no run exists yet; start one: tasklane workflow run FILE");
            }
            Ok(Exit::OK)
        }
        Command::Cancel { id } => {
            client.cancel_run(&id).await?;
            remark(format_args!("tasklane: cancelling; `tasklane workflow get {id}` shows its progress"));
            Ok(Exit::OK)
        }
        Command::List => {
            let workflows = client.workflows().await?;
            out.rows(&workflows, &["NAME", "NODES"], |workflow: &Workflow| {
                let nodes = workflow.definition["nodes"].as_array().map_or(0, Vec::len);
                vec![workflow.id.clone(), nodes.to_string()]
            })?;
            if workflows.is_empty() {
                remark("no workflow is stored yet; store one: tasklane workflow put NAME FILE");
            }
            Ok(Exit::OK)
        }
        Command::Show { name } => {
            let workflow = client.workflow(&name).await?;
            let text = serde_saphyr::to_string(&workflow.definition).context("cannot write it as YAML")?;
            out.either(&workflow, |_| text).map(|()| Exit::OK)
        }
        Command::Put { name, file } => {
            let workflow = client.put_workflow(&name, &read(&file)?).await?;
            remark(format_args!("tasklane: `tasklane workflow run {name}` runs it"));
            out.either(&workflow, |workflow| workflow.id.clone()).map(|()| Exit::OK)
        }
        Command::Delete { names } => {
            for name in names {
                client.delete_workflow(&name).await?;
            }
            Ok(Exit::OK)
        }
    }
}

/// Shows the nodes that a retry keeps and the nodes that it runs again.
fn remark_retried(id: &str, retried: &RunRetried) {
    if retried.newer_definition {
        remark(format_args!(
            "tasklane: the workflow has a newer definition; `tasklane workflow retry {id} --latest` uses it"
        ));
    }
    remark_kept(&retried.kept, &retried.runs_again);
}

/// Shows which nodes of a run are kept and which run again.
pub(crate) fn remark_kept(kept: &[String], runs_again: &[String]) {
    let listed = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    remark(format_args!("tasklane: kept: {}; runs again: {}", listed(kept), listed(runs_again)));
}

/// A file with JSON in it, written as YAML: JSON is YAML too.
fn read(file: &Path) -> anyhow::Result<Value> {
    let text = submit::read_text(file)?;
    let value: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", file.display()))?;
    if value.is_object() {
        return Ok(value);
    }
    Err(Usage(format!("{} must be an object with `nodes`", file.display())).into())
}

/// Whether a text names a file, and not a workflow that is put: `v1.2` is a name, and so is a folder beside it.
fn names_file(text: &str) -> bool {
    let file = Path::new(text);
    let extension = file.extension().and_then(|extension| extension.to_str());
    let is_definition = extension.is_some_and(|extension| matches!(extension, "yaml" | "yml" | "json"));
    text == "-" || is_definition || text.contains(std::path::MAIN_SEPARATOR) || file.is_file()
}

/// The run that the flags describe, in the form of the API.
fn body(args: RunArgs) -> anyhow::Result<Value> {
    let file = Path::new(&args.workflow);
    let is_file = names_file(&args.workflow);
    let mut body = if is_file { read(file)? } else { json!({ "workflow": args.workflow }) };
    let Some(fields) = body.as_object_mut() else { return Ok(body) };
    if is_file && !fields.contains_key("name") && args.workflow != "-" {
        let name = file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        fields.insert("name".to_owned(), json!(name));
    }
    if let Some(input) = args.input {
        fields.insert("input".to_owned(), serde_json::from_str(&input).unwrap_or(Value::String(input)));
    } else if !args.fields.is_empty() {
        let input: Map<String, Value> =
            args.fields.into_iter().map(|(key, text)| (key, json!(text))).collect();
        fields.insert("input".to_owned(), Value::Object(input));
    }
    fields.extend(args.request_id.map(|id| ("requestId".to_owned(), json!(id))));
    Ok(body)
}

/// Shows the nodes of a run until it has ended.
async fn follow(id: &str, client: &Client, out: Out) -> anyhow::Result<Exit> {
    remark(format_args!("tasklane: run {id}"));
    let mut interrupts = Interrupts::new()?;
    let (mut told, mut cancelling) = (BTreeSet::new(), false);
    let run = loop {
        let run = tokio::select! {
            run = client.workflow_run(id, Some(LOOK_EVERY)) => run.context("cannot follow the run; it goes on")?,
            () = interrupts.next() => {
                if cancelling {
                    return Ok(Exit::CANCELLED);
                }
                cancelling = true;
                remark("tasklane: cancelling; press Ctrl-C again not to wait for it");
                client.cancel_run(id).await?;
                continue;
            }
        };
        if !out.is_json() {
            for node in run.nodes.iter().filter(|node| is_over(node)) {
                if told.insert(node.name.clone()) {
                    print_line(line(node))?;
                }
            }
        }
        if is_final(run.status) {
            break run;
        }
    };
    if out.is_json() {
        print_object(&run)?;
    } else if let Some(error) = &run.error {
        remark(format_args!("tasklane: {} ({}), run {id}", error.message, error.code));
        if run.status == Status::Failed {
            remark(format_args!("tasklane: `tasklane workflow retry {id}` repeats the unsuccessful nodes"));
        }
    }
    Ok(match run.status {
        Status::Success => Exit::OK,
        Status::Cancelled => Exit::CANCELLED,
        _ => Exit::FAILED,
    })
}

fn is_final(status: Status) -> bool {
    matches!(status, Status::Success | Status::Failed | Status::Cancelled)
}

fn status(run: &WorkflowRun) -> String {
    let is_cancelling = run.cancel_requested && !is_final(run.status);
    if is_cancelling { format!("{}, cancelling", run.status) } else { run.status.to_string() }
}

fn is_over(node: &RunNode) -> bool {
    matches!(node.status.as_str(), "SUCCESS" | "FAILED" | "CANCELLED" | "SKIPPED")
}

/// A remark on a node beside its status.
fn remark_on(node: &RunNode) -> String {
    let error = node.error.as_ref().filter(|_| node.status != "SUCCESS").map(|error| error.message.clone());
    let taken_over = node.more.get("takenOver").and_then(Value::as_bool) == Some(true);
    error
        .or_else(|| node.reason.clone())
        .unwrap_or_else(|| if taken_over { "taken over".to_owned() } else { String::new() })
}

fn line(node: &RunNode) -> String {
    let took = value::shown_span(node.started_at, node.finished_at);
    format!("{:<10} {:<24} {took:<8} {}", node.status, node.name, remark_on(node)).trim_end().to_owned()
}

fn shown(run: &WorkflowRun) -> String {
    let about = pairs(&[
        ("run", run.run_id.clone()),
        ("name", run.name.clone()),
        ("status", status(run)),
        ("begun", value::shown_time(Some(run.created_at))),
        ("took", value::shown_span(Some(run.created_at), run.finished_at)),
        ("progress", progress(run)),
        ("error", run.error.as_ref().map_or_else(String::new, |error| error.message.clone())),
    ]);
    let nodes = run.nodes.iter().map(|node| {
        vec![
            node.name.clone(),
            node.status.clone(),
            value::shown_span(node.started_at, node.finished_at),
            node.depends_on.join(", "),
            node.task_id.clone().unwrap_or_default(),
            remark_on(node),
        ]
    });
    format!("{about}\n{}", table(&["NODE", "STATUS", "TOOK", "WAITS FOR", "TASK", "REMARK"], nodes))
}

fn progress(run: &WorkflowRun) -> String {
    run.progress.as_ref().map_or_else(String::new, |progress| progress.message.clone())
}

fn run_cells(run: &WorkflowRun) -> Vec<String> {
    vec![
        run.run_id.clone(),
        run.name.clone(),
        status(run),
        value::shown_time(Some(run.created_at)),
        value::shown_span(Some(run.created_at), run.finished_at),
        progress(run),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_that_is_put_is_told_from_a_file() {
        for file in ["-", "etl.yaml", "etl.yml", "etl.json", "./etl", "Cargo.toml"] {
            assert!(names_file(file), "{file}");
        }
        // Also where a folder of that name stands beside it.
        for name in ["etl", "v1.2", "src"] {
            assert!(!names_file(name), "{name}");
        }
    }
}

//! `tasklane run`: a command as a task, as if it ran here.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tasklane_client::{Client, LogItem, LogStream, Submitted, TaskRequest};
use tasklane_core::printable::is_unprintable;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{Exit, Usage};
use super::out::{Out, print_object, remark};
use super::output::{Raw, TaskOutput};
use super::spec::Spec;

/// Run a command as a task: show its output live and end with its exit code
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ctrl-C cancels the task; a second Ctrl-C does not wait for the end. A failed command is
retried only with --retries.")]
pub(crate) struct Args {
    /// The command and its arguments, after --; no shell interprets them
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// Run this Python file instead; its arguments follow --
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Print the id of the task and do not wait for it
    #[arg(long, short)]
    detach: bool,

    /// A variable in the environment of the command; may be repeated
    #[arg(long, short, value_parser = super::value::pair, value_name = "KEY=VALUE")]
    env: Vec<(String, String)>,

    /// The working folder, on the worker's machine
    #[arg(long, value_name = "FOLDER", conflicts_with = "python")]
    cwd: Option<String>,

    #[command(flatten)]
    raw: Raw,

    #[command(flatten)]
    spec: Spec,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let (detach, raw) = (args.detach, args.raw);
    let request = request(args)?;
    // Before the task exists, so that no signal ends us while it does.
    let mut interrupts = Interrupts::new()?;
    let submitted = tokio::select! {
        submitted = client.submit(&request) => submitted?,
        () = interrupts.next() => {
            remark("tasklane: interrupted before the server answered; `tasklane list` shows whether it has the task");
            return Ok(Exit::CANCELLED);
        }
    };
    if detach {
        return out.either(&submitted, |submitted| submitted.task_id.clone()).map(|()| Exit::OK);
    }
    if submitted.duplicate {
        remark(format_args!(
            "tasklane: task {} exists already; Ctrl-C does not cancel it",
            submitted.task_id
        ));
    }
    attend(&submitted, TaskOutput::new(raw), &mut interrupts, client, out).await
}

fn request(args: Args) -> anyhow::Result<TaskRequest> {
    let env: Map<String, Value> = args.env.into_iter().map(|(key, value)| (key, value.into())).collect();
    let mut payload = Map::new();
    if !env.is_empty() {
        payload.insert("env".to_owned(), Value::Object(env));
    }
    let (task_type, name) = if let Some(file) = args.python {
        let script =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        payload.insert("script".to_owned(), script.into());
        if !args.command.is_empty() {
            payload.insert("args".to_owned(), json!(args.command));
        }
        ("PYTHON_SCRIPT", shortened(&file.file_name().unwrap_or_default().to_string_lossy()))
    } else if args.command.is_empty() {
        return Err(Usage("no command is given: use tasklane run -- echo hello".to_owned()).into());
    } else {
        let name = shortened(&args.command.join(" "));
        payload.insert("argv".to_owned(), json!(args.command));
        if let Some(cwd) = args.cwd {
            payload.insert("cwd".to_owned(), cwd.into());
        }
        ("SHELL", name)
    };
    Ok(args.spec.request(task_type, Value::Object(payload), &name, Some(0)))
}

/// Long enough to be recognised by, and in one line.
fn shortened(name: &str) -> String {
    const LEN_MAX: usize = 60;
    let mut chars = name.chars().map(|c| if is_unprintable(c) { ' ' } else { c });
    let mut short: String = chars.by_ref().take(LEN_MAX).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

/// Ctrl-C and SIGTERM, one after the other.
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Shows output until the task is final. Ctrl-C cancels it, unless another client submitted it.
async fn attend(
    submitted: &Submitted,
    mut output: TaskOutput,
    interrupts: &mut Interrupts,
    client: &Client,
    out: Out,
) -> anyhow::Result<Exit> {
    let id = submitted.task_id.as_str();
    let mut follow = client.follow_logs(id, None);
    let mut cancelling = false;
    let mut attempt = 1;
    loop {
        tokio::select! {
            item = follow.next() => match item.transpose().context("cannot follow the task; it goes on")? {
                Some(LogItem::Chunk(chunk)) => {
                    if chunk.attempt > attempt {
                        attempt = chunk.attempt;
                        remark(format_args!("tasklane: attempt {attempt}"));
                    }
                    if chunk.stream == LogStream::System || !out.is_json() {
                        output.print(&chunk)?;
                    }
                }
                Some(LogItem::End(_)) | None => break,
            },
            () = interrupts.next() => {
                if cancelling || submitted.duplicate {
                    return Ok(Exit::CANCELLED);
                }
                cancelling = true;
                remark("tasklane: cancelling; press Ctrl-C again not to wait for it");
                cancel(id, client).await?;
            }
        }
    }
    let task = client.task(id).await?;
    if out.is_json() {
        print_object(&task)?;
    } else if let Some(error) =
        task.error.as_ref().filter(|_| task.status != tasklane_client::Status::Success)
    {
        remark(format_args!("tasklane: {} ({}), task {id}", error.message, error.code));
    }
    Ok(Exit::of_task(&task))
}

/// A task that ended meanwhile needs no cancelling.
async fn cancel(id: &str, client: &Client) -> anyhow::Result<()> {
    match client.cancel(id).await {
        Err(error) if error.problem().is_none_or(|problem| problem.status != 409) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(command: &[&str]) -> Args {
        Args {
            command: command.iter().map(|&word| word.to_owned()).collect(),
            python: None,
            detach: false,
            env: Vec::new(),
            cwd: None,
            raw: Raw::default(),
            spec: Spec::default(),
        }
    }

    #[test]
    fn a_command_becomes_a_shell_task_that_is_not_repeated() {
        let request = request(Args { env: vec![("A".to_owned(), "1".to_owned())], ..args(&["echo", "a b"]) });
        assert_eq!(
            serde_json::to_value(request.unwrap()).unwrap(),
            json!({ "taskName": "echo a b", "taskType": "SHELL", "retryCount": 0,
                    "payload": { "argv": ["echo", "a b"], "env": { "A": "1" } } })
        );
    }

    #[test]
    fn nothing_to_run_is_a_mistake() {
        assert!(request(args(&[])).unwrap_err().is::<Usage>());
    }

    #[test]
    fn a_long_command_is_shortened_for_its_name() {
        assert_eq!(shortened(&"é".repeat(70)), format!("{}…", "é".repeat(60)));
        assert_eq!(shortened("x"), "x");
        assert_eq!(shortened("sh -c a\nb\tc"), "sh -c a b c");
    }
}

//! `tasklane submit`: submits tasks, from flags or from files.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tasklane_client::{BatchItem, Client};

use super::exit::{Exit, Usage, problem_hint};
use super::out::{Out, bar, print_object, remark};
use super::output::Raw;
use super::spec::Spec;
use super::value;

/// Tasks sent at once.
const BATCH: usize = 1000;

/// Bytes sent at once; the server's own bound is higher.
const BATCH_BYTES: usize = 8 << 20;

/// Submit tasks and print their ids
#[derive(Debug, clap::Args)]
#[command(after_help = "\
One task from flags:      tasklane submit --type SHELL --payload 'echo hi'
One from a JSON file:     tasklane submit task.json
Many, one JSON a line:    tasklane submit --batch tasks.ndjson
- as the file reads standard input. Tasks in files have the form of the API.")]
pub(crate) struct Args {
    /// A task as a JSON file
    #[arg(value_name = "FILE", conflicts_with_all = ["task_type", "batch"])]
    file: Option<PathBuf>,

    /// Many tasks, one JSON object a line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["task_type", "wait"])]
    batch: Option<PathBuf>,

    #[arg(
        long = "type",
        value_name = "TYPE",
        help = "The type: SHELL, PYTHON_SCRIPT, HTTP, NOOP, or a registered function"
    )]
    task_type: Option<String>,

    /// The input of its executor: JSON if it is an object or a list, else text
    #[arg(long, value_name = "TEXT", requires = "task_type", conflicts_with = "payload_file")]
    payload: Option<String>,

    /// The payload from a file
    #[arg(long, value_name = "FILE", requires = "task_type")]
    payload_file: Option<PathBuf>,

    /// Wait for the end of the task, up to this time, and show the task
    #[arg(long, short, value_parser = value::duration, value_name = "DURATION")]
    wait: Option<Duration>,

    #[command(flatten)]
    raw: Raw,

    #[command(flatten)]
    spec: Spec,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let task: Value = match (args.batch, args.file, args.task_type) {
        (Some(file), ..) => return batch(&file, client, out).await,
        (None, Some(file), _) => serde_json::from_str(&read_text(&file)?)
            .with_context(|| format!("{} is not a task in JSON", file.display()))?,
        (None, None, Some(task_type)) => {
            let payload = match args.payload_file {
                Some(file) => Some(read_text(&file)?),
                None => args.payload,
            };
            serde_json::to_value(args.spec.request(
                &task_type,
                payload.map(payload_value).into(),
                &task_type,
                None,
            ))?
        }
        (None, None, None) => {
            return Err(Usage(
                "no task is given: name a FILE, --batch FILE, or --type and --payload".to_owned(),
            )
            .into());
        }
    };
    if let Some(wait) = args.wait {
        let id = client.submit(&task).await?.task_id;
        let task = client.wait(&id, wait).await?;
        super::get::print(&task, args.raw, out)?;
        return Ok(Exit::of_task(&task));
    }
    let submitted = client.submit(&task).await?;
    if submitted.duplicate {
        remark(format_args!("tasklane: task {} exists already", submitted.task_id));
    }
    out.either(&submitted, |submitted| submitted.task_id.clone()).map(|()| Exit::OK)
}

/// An object or a list is meant as JSON; a number or a word is more likely a script.
pub(crate) fn payload_value(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        _ => Value::String(text),
    }
}

/// A file, or standard input for `-`.
pub(crate) fn read_text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Many tasks, as they are read; a bad one does not hold back the others.
async fn batch(file: &Path, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let (input, bytes): (Box<dyn BufRead>, u64) = if file == Path::new("-") {
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let bytes = opened.metadata().map_or(0, |metadata| metadata.len());
        (Box::new(std::io::BufReader::new(opened)), bytes)
    };
    let progress = bar(bytes, "submitted");
    let mut sender = Sender { client, out, lines: Vec::new(), bytes: 0, taken: 0, refused: 0, busy: 0 };
    for (number, line) in (1_u64..).zip(input.lines()) {
        let line = line.with_context(|| format!("cannot read line {number} of {}", file.display()))?;
        progress.inc(line.len() as u64 + 1);
        if line.trim().is_empty() {
            continue;
        }
        sender.push(number, line).await?;
    }
    sender.send().await?;
    progress.finish_and_clear();
    remark(format_args!("{} tasks accepted, {} refused", sender.taken, sender.refused));
    Ok(match sender.refused {
        0 => Exit::OK,
        refused if refused == sender.busy => Exit::BUSY,
        _ => Exit::FAILED,
    })
}

/// Gathers lines into batches and sends them.
struct Sender<'a> {
    client: &'a Client,
    out: Out,
    lines: Vec<(u64, Box<RawValue>)>,
    bytes: usize,
    taken: u64,
    refused: u64,
    /// Those of the refused that may be taken in later.
    busy: u64,
}

impl Sender<'_> {
    async fn push(&mut self, number: u64, line: String) -> anyhow::Result<()> {
        let size = line.len();
        match RawValue::from_string(line) {
            Ok(task) => {
                if self.bytes + size > BATCH_BYTES {
                    self.send().await?;
                }
                self.bytes += size;
                self.lines.push((number, task));
            }
            Err(error) => {
                let problem = json!({ "code": "invalid_json", "detail": error.to_string() });
                self.refuse(number, &problem, None)?;
            }
        }
        if self.lines.len() >= BATCH {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        self.bytes = 0;
        let (Some((first, _)), Some((last, _))) = (lines.first(), lines.last()) else { return Ok(()) };
        let (first, last) = (*first, *last);
        let (numbers, tasks): (Vec<u64>, Vec<Box<RawValue>>) = lines.into_iter().unzip();
        let answers = self.client.submit_batch(&tasks).await.with_context(|| {
            format!(
                "stopped at lines {first} to {last}: {} tasks before them are taken in. Tasks with a requestId can \
                 be sent again without becoming two",
                self.taken
            )
        })?;
        for (number, answer) in numbers.into_iter().zip(answers) {
            match answer {
                BatchItem::Submitted(submitted) => {
                    self.taken += 1;
                    self.out.either(&submitted, |submitted| submitted.task_id.clone())?;
                }
                BatchItem::Refused(problem) => {
                    self.busy += u64::from(Exit::of_problem(&problem) == Exit::BUSY);
                    self.refuse(number, &json!(problem), problem_hint(&problem))?;
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, number: u64, problem: &Value, hint: Option<String>) -> anyhow::Result<()> {
        self.refused += 1;
        if self.out.is_json() {
            return print_object(&json!({ "line": number, "error": problem }));
        }
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        remark(format_args!("line {number}: {} ({}){hint}", text("detail"), text("code")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json_and_scripts_are_text() {
        assert_eq!(payload_value(r#"{"argv":["ls"]}"#.to_owned()), json!({ "argv": ["ls"] }));
        assert_eq!(payload_value("echo hi".to_owned()), json!("echo hi"));
        assert_eq!(payload_value("42".to_owned()), json!("42"));
    }
}

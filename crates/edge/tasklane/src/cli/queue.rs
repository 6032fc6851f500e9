//! `tasklane queue`: where tasks wait, and by which rules.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tasklane_client::{Client, Queue, Status};

use super::exit::{Exit, Usage};
use super::out::{Out, pairs, remark};
use super::value;

/// Look at queues, set their policy, pause and resume them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the queues
    List,
    /// Show a queue and its policy
    Get {
        /// The queue
        queue: String,
    },
    /// Change the policy of a queue; what is not named stays as it is
    Set(Box<SetArgs>),
    /// Assign nothing more; what runs goes on
    Pause {
        /// The queue
        queue: String,
    },
    /// End a pause
    Resume {
        /// The queue
        queue: String,
    },
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct SetArgs {
    /// The queue
    queue: String,

    /// Refuse submits while this many tasks wait; 0 for no maximum
    #[arg(long, value_name = "N")]
    max_length: Option<u32>,

    /// At most this many attempts at once; 0 for no limit
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,

    /// At most so many starts in a time, such as 10/1s or 600/1m; 0 for no limit
    #[arg(long, value_parser = rate, value_name = "N/DURATION")]
    rate: Option<Rate>,

    /// How a worker is chosen
    #[arg(long, value_name = "STRATEGY", value_parser = ["random", "roundRobin", "leastLoad", "weighted", "consistentHash"])]
    strategy: Option<String>,

    /// Share among the queues, relative to the others
    #[arg(long, value_name = "N")]
    weight: Option<u32>,

    /// For tasks that do not bring their own
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    timeout: Option<Duration>,

    /// For tasks that do not bring their own
    #[arg(long, value_name = "N")]
    retries: Option<u32>,

    /// A whole policy as a JSON file, - for standard input; other flags change it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// `None` is no limit.
type Rate = Option<(u32, Duration)>;

fn rate(text: &str) -> Result<Rate, String> {
    if text == "0" {
        return Ok(None);
    }
    let wrong = || format!("a rate is written 10/1s or 600/1m, not {text:?}");
    let (count, per) = text.split_once('/').ok_or_else(wrong)?;
    // `10/s` is what people type.
    let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
    let count = count.parse().map_err(|_| wrong())?;
    Ok(Some((count, value::duration(&per).map_err(|_| wrong())?)))
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let queue = match command {
        Command::List => {
            let queues = client.queues().await?;
            out.rows(&queues, &HEAD, cells)?;
            if queues.is_empty() {
                remark("no queue has been used yet; a submit makes one");
            }
            return Ok(Exit::OK);
        }
        Command::Get { queue } => client.queue(&queue).await?,
        Command::Set(args) => set(*args, client).await?,
        Command::Pause { queue } => client.pause_queue(&queue).await?,
        Command::Resume { queue } => client.resume_queue(&queue).await?,
    };
    out.either(&queue, shown).map(|()| Exit::OK)
}

/// Reads the policy, changes it, and puts it back if nobody else has changed it meanwhile.
async fn set(args: SetArgs, client: &Client) -> anyhow::Result<Queue> {
    let queue = client.queue(&args.queue).await?;
    let policy = match &args.file {
        Some(file) => serde_json::from_str(&super::submit::read_text(file)?)
            .with_context(|| format!("{} is not a policy in JSON", file.display()))?,
        None => queue.policy.clone(),
    };
    let policy = changed(policy, &args);
    if policy == queue.policy {
        return Err(Usage("nothing to change: name what to set, such as --concurrency 4".to_owned()).into());
    }
    Ok(client.put_queue(&args.queue, queue.version, &policy).await?)
}

/// The limit over the whole queue that the flags set. Others are left as they are.
const LIMIT: &str = "queue";

fn changed(mut policy: Map<String, Value>, args: &SetArgs) -> Map<String, Value> {
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            policy.insert(key.to_owned(), value);
        }
    };
    put("maxLength", args.max_length.map(|max| if max == 0 { Value::Null } else { max.into() }));
    put("strategy", args.strategy.clone().map(Value::from));
    put("weight", args.weight.map(Value::from));
    put("executionTimeout", args.timeout.map(seconds));
    if let Some(retries) = args.retries {
        let retry = policy.entry("retryPolicy").or_insert_with(|| json!({}));
        if let Some(retry) = retry.as_object_mut() {
            retry.insert("maxRetries".to_owned(), retries.into());
        }
    }
    if args.concurrency.is_some() || args.rate.is_some() {
        let limits = policy.entry("limits").or_insert_with(|| json!([]));
        if let Some(limits) = limits.as_array_mut() {
            let at = limits.iter().position(|limit| limit["name"] == LIMIT);
            let mut limit =
                at.map_or_else(|| json!({ "name": LIMIT, "scope": "queue" }), |at| limits.remove(at));
            if let Some(concurrency) = args.concurrency {
                limit["concurrency"] = if concurrency == 0 { Value::Null } else { concurrency.into() };
            }
            if let Some(rate) = args.rate {
                limit["rate"] =
                    rate.map_or(Value::Null, |(count, per)| json!({ "limit": count, "per": seconds(per) }));
            }
            if !(limit["concurrency"].is_null() && limit["rate"].is_null()) {
                limits.push(limit);
            }
        }
    }
    policy
}

fn seconds(duration: Duration) -> Value {
    if duration.subsec_nanos() == 0 { duration.as_secs().into() } else { duration.as_secs_f64().into() }
}

const HEAD: [&str; 7] = ["QUEUE", "STATE", "WAITING", "IN FLIGHT", "SUCCESS", "FAILED", "CANCELLED"];

fn cells(queue: &Queue) -> Vec<String> {
    let sum = |states: &[Status]| states.iter().map(|status| queue.count(*status)).sum::<u64>().to_string();
    vec![
        queue.name.clone(),
        state(queue).to_owned(),
        sum(&[Status::Pending, Status::Retrying]),
        sum(&[Status::Scheduled, Status::Dispatched, Status::Running]),
        sum(&[Status::Success]),
        sum(&[Status::Failed]),
        sum(&[Status::Cancelled]),
    ]
}

fn state(queue: &Queue) -> &'static str {
    if queue.is_paused() { "paused" } else { "open" }
}

fn shown(queue: &Queue) -> String {
    let counts = Status::ALL.iter().filter(|status| queue.count(**status) > 0);
    let counts: Vec<String> = counts.map(|status| format!("{} {status}", queue.count(*status))).collect();
    let mut text = pairs(&[
        ("queue", queue.name.clone()),
        ("state", state(queue).to_owned()),
        ("tasks", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }),
        ("policy", format!("version {}", queue.version)),
    ]);
    let policy: Vec<(&str, String)> =
        queue.policy.iter().map(|(key, value)| (key.as_str(), value.to_string())).collect();
    for line in pairs(&policy).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_or_explained() {
        assert_eq!(rate("10/s"), Ok(Some((10, Duration::from_secs(1)))));
        assert_eq!(rate("600/5m"), Ok(Some((600, Duration::from_mins(5)))));
        assert_eq!(rate("0"), Ok(None));
        for wrong in ["10", "x/s", "10/parsec", "/s"] {
            assert!(rate(wrong).unwrap_err().contains("10/1s"), "{wrong}");
        }
    }

    #[test]
    fn only_what_was_named_changes() {
        let policy =
            json!({ "weight": 3, "limits": [{ "name": "tenant", "scope": "key", "concurrency": 1 }] });
        let Value::Object(policy) = policy else { unreachable!("it is one") };
        let args = SetArgs {
            concurrency: Some(4),
            rate: Some(Some((10, Duration::from_millis(1500)))),
            ..SetArgs::default()
        };
        let set = changed(policy.clone(), &args);
        assert_eq!(set["weight"], 3);
        assert_eq!(set["limits"][0], policy["limits"][0]);
        assert_eq!(
            set["limits"][1],
            json!({ "name": "queue", "scope": "queue", "concurrency": 4, "rate": { "limit": 10, "per": 1.5 } })
        );
        let none =
            SetArgs { concurrency: Some(0), rate: Some(None), max_length: Some(0), ..SetArgs::default() };
        let unset = changed(set, &none);
        assert_eq!(unset["limits"].as_array().unwrap().len(), 1);
        assert_eq!(unset["maxLength"], Value::Null);
    }
}

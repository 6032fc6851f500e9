//! `tasklane queue`: where tasks wait, and by which rules.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tasklane_client::{Client, Key, Queue, Status, Webhook};

use super::exit::{Exit, Usage};
use super::out::{Out, pairs, remark};
use super::spec::webhooks;
use super::value;

/// Show queues, set their policies, pause and resume them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the queues
    List,
    /// Show a queue and its policy
    Get {
        /// The queue
        queue: String,
    },
    /// Show the keys that the limits of a queue count
    Keys {
        /// The queue
        queue: String,

        /// The maximum of keys
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
    },
    /// Change the policy of a queue; other values stay unchanged
    Set(Box<SetArgs>),
    /// Pause a queue: no task is assigned, running tasks go on
    Pause {
        /// The queue
        queue: String,

        /// Pause the queue even if it has no tasks and no policy yet
        #[arg(long)]
        create: bool,
    },
    /// End the pause of a queue
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

    /// The maximum of attempts at once; 0 for no limit
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,

    /// The maximum of starts in a time, such as 10/1s or 600/1m; 0 for no limit
    #[arg(long, value_parser = rate, value_name = "N/DURATION")]
    rate: Option<Rate>,

    /// Count --concurrency and --rate by this key, such as '{{ metadata.tenant }}', instead of over the whole queue
    #[arg(long, value_name = "TEMPLATE")]
    key: Option<String>,

    /// With --concurrency: cancel the newest tasks above the limit instead of letting them wait
    #[arg(long, requires = "concurrency")]
    cancel_newest: bool,

    /// With --rate: the maximum of starts at once after a quiet time
    #[arg(long, requires = "rate", value_name = "N")]
    burst: Option<u32>,

    /// Allow one task at a time with the same key; empty for no such rule
    #[arg(long, value_name = "TEMPLATE")]
    unique: Option<String>,

    /// With --unique: hold the key for this long from the submit, instead of until the task has finished
    #[arg(long, requires = "unique", value_parser = value::duration, value_name = "DURATION")]
    unique_for: Option<Duration>,

    /// Before the first task and the first policy: spread the queue over all lanes by this key; empty for no key
    #[arg(long, value_name = "TEMPLATE")]
    spread: Option<String>,

    /// Notify this address over HTTP when tasks of the queue have ended; may be repeated; empty for none
    #[arg(long, value_name = "URL")]
    webhook: Vec<String>,

    /// Notify this address only of failed tasks; may be repeated
    #[arg(long, value_name = "URL")]
    webhook_on_failure: Vec<String>,

    /// The choice of a worker
    #[arg(long, value_name = "STRATEGY", value_parser = ["random", "roundRobin", "leastLoad", "weighted", "consistentHash"])]
    strategy: Option<String>,

    /// Share among the queues, relative to the others
    #[arg(long, value_name = "N")]
    weight: Option<u32>,

    /// The execution timeout of tasks without their own
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    timeout: Option<Duration>,

    /// The retries of tasks without their own
    #[arg(long, value_name = "N")]
    retries: Option<u32>,

    /// A whole policy as a JSON file, - for standard input; other flags override its values
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// `None` is no limit.
type Rate = Option<(u32, Duration)>;

fn rate(text: &str) -> Result<Rate, String> {
    if text == "0" { Ok(None) } else { value::rate(text).map(Some) }
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let queue = match command {
        Command::List => {
            let queues = client.queues().await?;
            out.rows(&queues, &HEAD, cells)?;
            if queues.is_empty() {
                remark("no queue has been used yet; a submit creates one");
            }
            return Ok(Exit::OK);
        }
        Command::Keys { queue, limit } => return keys(&queue, limit, client, out).await,
        Command::Get { queue } => client.queue(&queue).await?,
        Command::Set(args) => set(*args, client).await?,
        Command::Pause { queue, create } => client.pause_queue(&queue, create).await?,
        Command::Resume { queue } => client.resume_queue(&queue).await?,
    };
    out.either(&queue, shown).map(|()| Exit::OK)
}

/// The most keys that the server gives at once.
const KEYS_MAX: usize = 1000;

async fn keys(queue: &str, limit: usize, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let (mut keys, mut cursor) = (Vec::new(), None);
    while keys.len() < limit {
        let wanted = u32::try_from((limit - keys.len()).min(KEYS_MAX))?;
        let page = client.queue_keys(queue, wanted, cursor.as_deref()).await?;
        keys.extend(page.keys);
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    out.rows(&keys, &KEY_HEAD, key_cells)?;
    if keys.is_empty() {
        remark("no key has tasks now; `tasklane queue set` sets limits, see docs/flow-control.md");
    } else if cursor.is_some() {
        remark("there are more keys: --limit shows them");
    }
    Ok(Exit::OK)
}

const KEY_HEAD: [&str; 7] = ["KEY", "TEMPLATE", "RUNNING", "LIMIT", "WAITING", "RATE", "NEXT AT"];

fn key_cells(key: &Key) -> Vec<String> {
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let rate = key.rate.as_ref();
    let more = if key.more_waiting { "+" } else { "" };
    let no_template = if key.key.is_some() { "(of a task)" } else { "-" };
    let template = key.template.as_deref().unwrap_or(no_template);
    vec![
        key.key.clone().unwrap_or_else(|| "(whole queue)".to_owned()),
        template.to_owned(),
        key.running.to_string(),
        number(key.limit),
        format!("{}{more}", key.waiting),
        rate.map_or_else(
            || "-".to_owned(),
            |rate| {
                let per = Duration::try_from_secs_f64(rate.per).unwrap_or_default();
                format!("{}/{}", rate.limit, value::shown_duration(per))
            },
        ),
        value::shown_time(rate.map(|rate| rate.next_at)),
    ]
}

/// Reads the policy, changes it, and puts it back unless another client has changed it meanwhile.
async fn set(args: SetArgs, client: &Client) -> anyhow::Result<Queue> {
    if args.key.is_some() && args.concurrency.is_none() && args.rate.is_none() {
        let rule = "--key sets the key of --concurrency and --rate: add one of them";
        return Err(Usage(rule.to_owned()).into());
    }
    let queue = client.queue(&args.queue).await?;
    let policy = match &args.file {
        Some(file) => serde_json::from_str(&super::submit::read_text(file)?)
            .with_context(|| format!("{} is not a policy in JSON", file.display()))?,
        None => queue.policy.clone(),
    };
    let policy = changed(policy, &args);
    if policy == queue.policy {
        if args.file.is_none() && changed(Map::new(), &args).is_empty() {
            return Err(Usage("no value is given: name a value, such as --concurrency 4".to_owned()).into());
        }
        remark(format_args!("queue {} has these values already: the policy is unchanged", args.queue));
        return Ok(queue);
    }
    Ok(client.put_queue(&args.queue, queue.version, &policy).await?)
}

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
    put("spread", args.spread.clone().map(Value::from));
    put(
        "unique",
        args.unique.as_ref().map(|key| match (key.as_str(), args.unique_for) {
            ("", _) => Value::Null,
            (key, None) => json!({ "key": key }),
            (key, Some(time)) => json!({ "key": key, "until": seconds(time) }),
        }),
    );
    if !args.webhook.is_empty() || !args.webhook_on_failure.is_empty() {
        let told = webhooks(args.webhook.clone(), args.webhook_on_failure.clone());
        let told: Vec<Webhook> = told.into_iter().filter(|webhook| !webhook.url.is_empty()).collect();
        policy.insert("webhooks".to_owned(), json!(told));
    }
    if let Some(retries) = args.retries {
        let retry = policy.entry("retryPolicy").or_insert_with(|| json!({}));
        if let Some(retry) = retry.as_object_mut() {
            retry.insert("maxRetries".to_owned(), retries.into());
        }
    }
    let key = args.key.as_ref().map_or(Value::Null, |key| Value::from(key.as_str()));
    if let Some(limit) = args.concurrency {
        let when_full = args.cancel_newest.then(|| json!("cancelNewest"));
        let limit = (limit > 0).then(|| json!({ "key": key, "limit": limit }));
        replace(&mut policy, "concurrency", &key, limit, ("whenFull", when_full, json!("wait")));
    }
    if let Some(rate) = args.rate {
        let limit = rate.map(|(limit, per)| json!({ "key": key, "limit": limit, "per": seconds(per) }));
        replace(&mut policy, "rate", &key, limit, ("burst", args.burst.map(Value::from), json!(1)));
    }
    policy
}

/// Puts a limit in the place of the one with the same key. Its `rest` is as given, else as it was, else the default.
fn replace(
    policy: &mut Map<String, Value>,
    list: &str,
    key: &Value,
    limit: Option<Value>,
    rest: (&str, Option<Value>, Value),
) {
    let limits = policy.entry(list).or_insert_with(|| json!([]));
    let Some(limits) = limits.as_array_mut() else { return };
    let at = limits.iter().position(|limit| limit["key"] == *key).unwrap_or(limits.len());
    let before = if at < limits.len() { limits.remove(at) } else { Value::Null };
    if let Some(mut limit) = limit {
        let (field, given, default) = rest;
        let kept = before.get(field).cloned().unwrap_or(default);
        limit[field] = given.unwrap_or(kept);
        limits.insert(at, limit);
    }
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
        let tenant = "{{ metadata.tenant }}";
        let policy =
            json!({ "weight": 3, "concurrency": [{ "key": tenant, "limit": 1, "whenFull": "wait" }] });
        let Value::Object(policy) = policy else { unreachable!("it is one") };
        let args = SetArgs {
            concurrency: Some(4),
            rate: Some(Some((10, Duration::from_millis(1500)))),
            unique: Some("k".to_owned()),
            ..SetArgs::default()
        };
        let set = changed(policy.clone(), &args);
        assert_eq!((&set["weight"], &set["unique"]), (&json!(3), &json!({ "key": "k" })));
        assert_eq!(set["concurrency"][0], policy["concurrency"][0]);
        assert_eq!(set["concurrency"][1], json!({ "key": null, "limit": 4, "whenFull": "wait" }));
        assert_eq!(set["rate"], json!([{ "key": null, "limit": 10, "per": 1.5, "burst": 1 }]));
        let by_tenant = SetArgs {
            key: Some(tenant.to_owned()),
            concurrency: Some(2),
            cancel_newest: true,
            ..SetArgs::default()
        };
        let by_tenant = changed(set.clone(), &by_tenant);
        assert_eq!(
            by_tenant["concurrency"][0],
            json!({ "key": tenant, "limit": 2, "whenFull": "cancelNewest" })
        );
        assert_eq!(by_tenant["concurrency"][1], set["concurrency"][1]);
        let more = SetArgs { key: Some(tenant.to_owned()), concurrency: Some(3), ..SetArgs::default() };
        let more = changed(by_tenant, &more);
        assert_eq!(more["concurrency"][0], json!({ "key": tenant, "limit": 3, "whenFull": "cancelNewest" }));
        let none = SetArgs {
            concurrency: Some(0),
            rate: Some(None),
            max_length: Some(0),
            unique: Some(String::new()),
            ..SetArgs::default()
        };
        let unset = changed(set, &none);
        assert_eq!(unset["concurrency"], policy["concurrency"]);
        assert_eq!(
            (&unset["rate"], &unset["maxLength"], &unset["unique"]),
            (&json!([]), &Value::Null, &Value::Null)
        );
    }
}

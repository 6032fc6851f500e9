//! The flags that describe a task, for every command that submits one.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tasklane_client::{Concurrency, Rate, RetryPolicy, TaskRequest, Unique, Webhook};

use super::value;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Task")]
pub(crate) struct Spec {
    /// A name for people
    #[arg(long)]
    name: Option<String>,

    /// The queue of the task
    #[arg(long, short)]
    queue: Option<String>,

    /// The priority, 0 to 9; 9 goes first
    #[arg(long, short, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,

    /// Stop an attempt that runs longer, such as 90s or 5m
    #[arg(long, short, value_parser = value::duration, value_name = "DURATION")]
    timeout: Option<Duration>,

    /// The maximum of attempts after a failed first one
    #[arg(long, short, value_name = "N")]
    retries: Option<u32>,

    /// The wait before the first retry
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    retry_delay: Option<Duration>,

    /// Start after this wait at the earliest
    #[arg(long, value_parser = value::duration, value_name = "DURATION", conflicts_with = "run_at")]
    delay: Option<Duration>,

    /// Start at this time at the earliest, such as 2030-01-31T12:00:00Z
    #[arg(long, value_parser = value::time_to_come, value_name = "TIME")]
    run_at: Option<Timestamp>,

    /// A label that the worker must have; may be repeated
    #[arg(long, short, value_parser = value::pair, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,

    /// A pair of your own, for filters; may be repeated
    #[arg(long, short, value_parser = value::pair, value_name = "KEY=VALUE")]
    metadata: Vec<(String, String)>,

    /// Your own name for this request: a repeated name creates one task
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// With the consistent-hash strategy: the same key goes to the same worker
    #[arg(long, value_name = "KEY")]
    hash_key: Option<String>,

    /// Fail if the task has not started this long after it was due
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    start_timeout: Option<Duration>,

    /// Stop an attempt that reports no progress for this long
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    progress_timeout: Option<Duration>,

    /// Start only while fewer attempts of this key are live, such as stripe=3; may be repeated
    #[arg(long, value_parser = value::limit, value_name = "KEY=N")]
    concurrency: Vec<(String, u32)>,

    /// Start at this rate of the key at most, such as stripe=100/1m; may be repeated
    #[arg(long, value_parser = value::key_rate, value_name = "KEY=N/DURATION")]
    rate: Vec<(String, u32, Duration)>,

    /// Allow one unfinished task of the queue with this key
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,

    /// With --unique: hold the key for this long, instead of until the task has finished
    #[arg(long, requires = "unique", value_parser = value::duration, value_name = "DURATION")]
    unique_for: Option<Duration>,

    /// Notify this address over HTTP when the task has ended; may be repeated
    #[arg(long, value_name = "URL")]
    webhook: Vec<String>,

    /// Notify this address only if the task has failed; may be repeated
    #[arg(long, value_name = "URL")]
    webhook_on_failure: Vec<String>,
}

/// The webhooks for every end, and the webhooks for failures.
pub(crate) fn webhooks(finished: Vec<String>, failed: Vec<String>) -> Vec<Webhook> {
    let finished = finished.into_iter().map(|url| Webhook::new(url, &["finished"]));
    finished.chain(failed.into_iter().map(|url| Webhook::new(url, &["failed"]))).collect()
}

impl Spec {
    /// The request for a task of a type. `name` and `retries` hold where nothing else was said.
    pub(crate) fn request(
        self,
        task_type: &str,
        payload: serde_json::Value,
        name: &str,
        retries: Option<u32>,
    ) -> TaskRequest {
        let retries = self.retries.or(retries);
        let policy = self.retry_delay.map(|delay| RetryPolicy {
            max_retries: retries,
            retry_delay: Some(delay),
            ..RetryPolicy::default()
        });
        TaskRequest {
            execution_timeout: self.timeout,
            retry_count: if policy.is_some() { None } else { retries },
            retry_policy: policy,
            request_id: self.request_id,
            queue: self.queue,
            priority: self.priority,
            run_at: self.run_at,
            delay: self.delay,
            metadata: self.metadata.into_iter().collect::<BTreeMap<_, _>>(),
            labels: self.label.into_iter().collect::<BTreeMap<_, _>>(),
            hash_key: self.hash_key,
            start_timeout: self.start_timeout,
            progress_timeout: self.progress_timeout,
            concurrency: self
                .concurrency
                .into_iter()
                .map(|(key, limit)| Concurrency { key, limit, cancel_newest: false })
                .collect(),
            rate: self
                .rate
                .into_iter()
                .map(|(key, limit, per)| Rate { key, limit, per, burst: None })
                .collect(),
            webhooks: webhooks(self.webhook, self.webhook_on_failure),
            unique: self.unique.map(|key| Unique { key, hold_for: self.unique_for }),
            ..TaskRequest::new(self.name.as_deref().unwrap_or(name), task_type, payload)
        }
    }
}

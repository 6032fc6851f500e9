//! Webhooks: notifies URLs over HTTP, in the form of [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! A delivery is a system task. So it is durable, is retried with growing waits, and can be listed, cancelled
//! and repeated as any other. Its content is read when it is sent: the task is final by then.

mod secrets;
mod sending;

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tasklane_core::id::{LaneId, Name, TaskId};
use tasklane_core::policy::{Concurrency, ConcurrencyLimit, WhenReached};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Occasion, Payload, TaskBody, TaskRow, Webhook};
use tasklane_core::time::Timestamp;
use tasklane_ports::{DocumentKey, StoreError, TaskFilter, TaskList, TaskPage};
use tasklane_schedule::{Alert, AlertKind, Schedule};
use xxhash_rust::xxh3::xxh3_128;

pub use self::secrets::{Endpoint, Secrets};
pub(super) use self::sending::WebhookExecutor;

use crate::clock;
use crate::request::{RetryRequest, TaskRequest, check_url};

use super::{Node, SubmitError};

/// Task type and queue of deliveries.
pub const WEBHOOK_TYPE: &str = "tasklane.webhook";

/// Deliveries of a namespace to one host that are under way together: a host that hangs must not hold up the
/// others.
const AT_ONCE: u32 = 8;
/// How long a delivery waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// The retry policy of a delivery: for about two days.
const RETRY: RetryRequest = RetryRequest {
    max_retries: Some(20),
    delay: Some(Duration::from_secs(5)),
    backoff_percent: Some(300),
    delay_max: Some(Duration::from_hours(3)),
    jitter_percent: Some(20),
};

/// The payload of a delivery.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    /// The id of the message: the same at every retry.
    id: String,
    /// The receiver.
    url: String,
    /// The event.
    event: String,
    /// The time of the event.
    at: Timestamp,
    /// The task of the event …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskId>,
    /// … or the whole content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// A delivery, as the API lists it.
#[derive(Clone, Debug)]
pub struct DeliveryView {
    /// The id of the message.
    pub message_id: String,
    /// The receiver.
    pub url: String,
    /// The event.
    pub event: String,
    /// The task of the event.
    pub task: Option<TaskId>,
    /// The schedule of the event.
    pub schedule: Option<String>,
    /// The task that sends it.
    pub row: TaskRow,
}

fn system_name() -> Name {
    Name::new(WEBHOOK_TYPE).expect("a valid name")
}

/// The event of a task's status, if the webhook asks for it.
fn event_of(webhook: &Webhook, status: Status) -> Option<&'static str> {
    let wants = |occasion| webhook.on.contains(&occasion);
    match status {
        Status::Success => Some("task.succeeded").filter(|_| wants(Occasion::Finished)),
        Status::Failed => {
            Some("task.failed").filter(|_| wants(Occasion::Finished) || wants(Occasion::Failed))
        }
        Status::Cancelled => Some("task.cancelled").filter(|_| wants(Occasion::Finished)),
        _ => None,
    }
}

fn event_of_alert(kind: AlertKind) -> &'static str {
    match kind {
        AlertKind::Failing => "schedule.failing",
        AlertKind::Paused => "schedule.paused",
        AlertKind::Recovered => "schedule.recovered",
        AlertKind::Late => "schedule.late",
        AlertKind::OnTime => "schedule.onTime",
    }
}

impl Node {
    /// The deliveries for a task that has ended.
    pub(super) async fn deliveries_of(
        &self,
        row: &TaskRow,
        body: &TaskBody,
    ) -> Result<Vec<NewTask>, StoreError> {
        let mut deliveries = Vec::new();
        for (n, webhook) in body.webhooks.iter().enumerate() {
            let Some(event) = event_of(webhook, row.state.status) else { continue };
            let key = format!("{}:{n}", row.id);
            let delivery = Delivery {
                id: message_id(&key),
                url: webhook.url.clone(),
                event: event.to_owned(),
                at: row.state.finished_at.unwrap_or(row.state.created_at),
                task: Some(row.id),
                data: None,
            };
            let namespace = &row.head.queue.namespace;
            deliveries.extend(self.delivery(namespace, &key, delivery).await?);
        }
        Ok(deliveries)
    }

    /// The deliveries for the alerts of a schedule.
    pub(super) async fn deliveries_of_alerts(
        &self,
        key: &DocumentKey,
        schedule: &Schedule,
    ) -> Result<Vec<NewTask>, StoreError> {
        let mut deliveries = Vec::new();
        for Alert { number, at, what, nominal, failures, reason } in &schedule.state.alerts {
            let webhooks = schedule.rule.webhooks.iter().enumerate();
            for (n, webhook) in webhooks.filter(|(_, webhook)| webhook.on.contains(&what.occasion())) {
                // The creation time makes a schedule that was deleted and put again count as a new one.
                let since = schedule.state.created_at.as_micros();
                let id = format!("{}:{since}:{number}:{n}", key.id);
                let data = json!({
                    "schedule": key.id.as_str(),
                    "namespace": key.namespace.as_str(),
                    "reason": reason,
                    "nominalTime": nominal.map(written),
                    "failures": failures,
                });
                let delivery = Delivery {
                    id: message_id(&id),
                    url: webhook.url.clone(),
                    event: event_of_alert(*what).to_owned(),
                    at: *at,
                    task: None,
                    data: Some(data),
                };
                deliveries.extend(self.delivery(&key.namespace, &id, delivery).await?);
            }
        }
        Ok(deliveries)
    }

    /// The task of a delivery; `None` if there can be none.
    async fn delivery(
        &self,
        namespace: &Name,
        key: &str,
        delivery: Delivery,
    ) -> Result<Option<NewTask>, StoreError> {
        let request = delivery_request(&delivery, Some(format!("{WEBHOOK_TYPE}:{key}")));
        match self.place(namespace, request).await {
            Ok(task) => Ok(Some(task)),
            Err(SubmitError::Store(error)) => Err(StoreError::unavailable(error)),
            Err(error) => {
                tracing::error!(%namespace, key, %error, "a webhook cannot be delivered");
                Ok(None)
            }
        }
    }

    /// Submits deliveries. Durable when it returns.
    pub(super) async fn deliver(&self, deliveries: Vec<NewTask>) -> Result<(), StoreError> {
        let mut lanes: BTreeMap<LaneId, Vec<NewTask>> = BTreeMap::new();
        for task in deliveries {
            lanes.entry(task.id.lane()).or_default().push(task);
        }
        for (lane, tasks) in lanes {
            // Each exists now, or did before: nothing limits this queue, and its request ids are system ids.
            self.outcomes(lane, &tasks).await?;
        }
        Ok(())
    }

    /// Sends a test message to an address. Returns the delivery.
    pub async fn test_webhook(&self, namespace: &Name, url: &str) -> Result<TaskId, SubmitError> {
        check_url("url", url)?;
        let delivery = Delivery {
            id: message_id(&format!("{:032x}", rand::random::<u128>())),
            url: url.to_owned(),
            event: "test".to_owned(),
            at: clock::wall(),
            task: None,
            data: Some(json!({ "namespace": namespace.as_str(), "message": "It works." })),
        };
        let task = self.place(namespace, delivery_request(&delivery, None)).await?;
        let answer = self.submit_to(task.id.lane(), vec![task]).await.pop();
        answer.expect("one answer for one task").map(|submitted| submitted.id)
    }

    /// Deliveries of a namespace, the newest first.
    pub async fn deliveries(&self, list: TaskList) -> Result<(Vec<DeliveryView>, TaskPage), StoreError> {
        let filter = TaskFilter { task_type: Some(system_name()), ..list.filter };
        let page = self.list(TaskList { filter, ..list }).await?;
        let views = page.tasks.iter().filter_map(|row| {
            let delivery = delivery_of(row.body.as_deref()?).ok()?;
            let text = |field: &str| Some(delivery.data.as_ref()?.get(field)?.as_str()?.to_owned());
            Some(DeliveryView {
                schedule: text("schedule"),
                message_id: delivery.id,
                url: delivery.url,
                event: delivery.event,
                task: delivery.task,
                row: row.clone(),
            })
        });
        Ok((views.collect(), page))
    }
}

/// The id of a message, so that receivers can drop repeats. The signature covers id, time and body, with dots
/// between.
fn message_id(key: &str) -> String {
    format!("evt_{:032x}", xxh3_128(key.as_bytes()))
}

fn delivery_request(delivery: &Delivery, request_id: Option<String>) -> TaskRequest {
    let url = Url::parse(&delivery.url).ok();
    let host = url.as_ref().map_or(String::new(), |url| {
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        format!("{}{port}", url.host_str().unwrap_or_default())
    });
    let host: String = host.chars().take(200).collect();
    let parent = delivery.task;
    let payload = serde_json::to_string(delivery).expect("a delivery can be written");
    let mut request =
        TaskRequest::new(format!("{} to {host}", delivery.event), system_name(), Payload::Json(payload));
    request.queue = system_name();
    request.request_id = request_id;
    request.parent = parent;
    request.retry = RETRY;
    request.execution_timeout = Some(ANSWER_WITHIN + Duration::from_secs(5));
    request.metadata = BTreeMap::from([("host".to_owned(), host)]);
    request.concurrency = vec![ConcurrencyLimit {
        key: Some("{{ metadata.host }}".to_owned()),
        concurrency: Concurrency { limit: AT_ONCE, when_reached: WhenReached::Wait },
    }];
    request.roomy = true;
    request
}

fn delivery_of(body: &TaskBody) -> Result<Delivery, serde_json::Error> {
    serde_json::from_str(body.payload.as_str())
}

/// A time in the form of the API.
fn written(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).map_or_else(|_| String::new(), |at| format!("{at:.6}"))
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn payloads_of_deliveries_keep_their_form() {
        let delivery = Delivery {
            id: message_id("a task:0"),
            url: "https://example.com/hook".to_owned(),
            event: "task.failed".to_owned(),
            at: Timestamp::from_millis(1_800_000_000_000),
            task: Some(TaskId::from_random(7)),
            data: None,
        };
        check("delivery", |golden| {
            golden.json("of a task", &delivery);
            let data = Some(json!({ "schedule": "nightly" }));
            golden.json("of a schedule", &Delivery { task: None, data, ..delivery });
        });
    }
}

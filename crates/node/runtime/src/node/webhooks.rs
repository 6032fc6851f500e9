//! Webhooks: those who asked for it are told over HTTP, as [Standard Webhooks](https://www.standardwebhooks.com) says.
//!
//! A delivery is a task of the server's own. So it is durable, is tried again with growing waits, and can be listed,
//! cancelled and repeated as any other. What is told of a task is read when it is sent: the task is final by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Url};
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tasklane_core::id::{LaneId, Name, TaskId};
use tasklane_core::message::{Dispatch, Finish, RetryAdvice};
use tasklane_core::policy::{Concurrency, ConcurrencyLimit, WhenReached};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Occasion, Payload, TaskBody, TaskError, TaskResult, TaskRow, Webhook};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Attempt, Content, DocumentKey, DocumentKind, Execution, Executor, ExecutorError, PutDocument, PutOutcome,
    StoreError, TaskFilter, TaskList, TaskPage, TaskView, codec,
};
use tasklane_schedule::{Alert, News, Schedule};
use xxhash_rust::xxh3::xxh3_128;

use crate::clock;
use crate::executors::http;
use crate::request::{FieldError, RetryRequest, TaskRequest, check_url};

use super::{Node, SubmitError};

/// Task type and queue of deliveries.
pub const WEBHOOK_TYPE: &str = "tasklane.webhook";

/// Deliveries to one host that are under way at once: one that hangs must not hold up the others.
const AT_ONCE: u32 = 8;
/// How long an answer is waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The longest wait that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// How much of an answer is kept.
const ANSWER_BYTES_MAX: usize = 1024;
/// A larger result is not sent; whoever wants it asks for it.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// How long what is sent is also signed with the secret before.
const BOTH_SIGN_FOR: Duration = Duration::from_hours(24);
/// How often a change of the secret is tried that somebody else's gets in the way of.
const TRIES: usize = 10;

/// When a delivery is tried again: for about two days.
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
    /// Names what is told: the same however often it is sent.
    id: String,
    /// Who is told.
    url: String,
    /// What has happened.
    event: String,
    /// When.
    at: Timestamp,
    /// The task that it is about …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskId>,
    /// … or all that there is to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// A delivery, as it is listed.
#[derive(Clone, Debug)]
pub struct DeliveryView {
    /// Names what is told.
    pub message_id: String,
    /// Who is told.
    pub url: String,
    /// What has happened.
    pub event: String,
    /// The task that it is about.
    pub task: Option<TaskId>,
    /// The schedule that it is about.
    pub schedule: Option<String>,
    /// The task that delivers it.
    pub row: TaskRow,
}

/// What deliveries of a namespace are signed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// In use.
    pub current: String,
    /// Also in use, until this time.
    pub previous: Option<(String, Timestamp)>,
}

/// What a secret begins with, as receivers' libraries expect it.
const SECRET_PREFIX: &str = "whsec_";

impl Secrets {
    fn new() -> Self {
        let bytes: [u8; 32] = rand::random();
        Self { current: format!("{SECRET_PREFIX}{}", BASE64.encode(bytes)), previous: None }
    }

    /// The next one; what came before counts for a while.
    fn rotated(self, now: Timestamp) -> Self {
        Self { previous: Some((self.current, now + BOTH_SIGN_FOR)), ..Self::new() }
    }

    /// The value of the header that says who sent it.
    fn sign(&self, id: &str, at: Timestamp, body: &str) -> String {
        let seconds = at.as_micros() / 1_000_000;
        let signed = format!("{id}.{seconds}.{body}");
        let sign = |secret: &str| {
            let key = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
            let key = BASE64.decode(key).unwrap_or_else(|_| key.as_bytes().to_vec());
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
            format!("v1,{}", BASE64.encode(tag))
        };
        let previous =
            self.previous.as_ref().filter(|(_, until)| at < *until).map(|(secret, _)| sign(secret));
        [Some(sign(&self.current)), previous].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

fn own_name() -> Name {
    Name::new(WEBHOOK_TYPE).expect("a valid name")
}

fn secret_key(namespace: &Name) -> DocumentKey {
    let id = Name::new("webhooks").expect("a valid name");
    DocumentKey { kind: DocumentKind::Secret, namespace: namespace.clone(), id }
}

/// What happened to a task, if it is news.
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

fn event_of_news(news: News) -> &'static str {
    match news {
        News::Failing => "schedule.failing",
        News::Paused => "schedule.paused",
        News::Recovered => "schedule.recovered",
        News::Late => "schedule.late",
        News::OnTime => "schedule.onTime",
    }
}

impl Node {
    /// What is to be told of a task that has ended.
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

    /// What is to be told of a schedule.
    pub(super) async fn deliveries_of_alerts(
        &self,
        key: &DocumentKey,
        schedule: &Schedule,
    ) -> Result<Vec<NewTask>, StoreError> {
        let mut deliveries = Vec::new();
        for Alert { number, at, what, nominal, reason } in &schedule.state.alerts {
            let told = schedule.rule.webhooks.iter().enumerate();
            for (n, webhook) in told.filter(|(_, webhook)| webhook.on.contains(&what.occasion())) {
                // A schedule that is put again after it was deleted counts from the start.
                let since = schedule.state.created_at.as_micros();
                let id = format!("{}:{since}:{number}:{n}", key.id);
                let data = json!({
                    "schedule": key.id.as_str(),
                    "namespace": key.namespace.as_str(),
                    "reason": reason,
                    "nominalTime": nominal.map(written),
                    "failures": schedule.state.failures,
                    "paused": schedule.state.paused,
                });
                let delivery = Delivery {
                    id: message_id(&id),
                    url: webhook.url.clone(),
                    event: event_of_news(*what).to_owned(),
                    at: *at,
                    task: None,
                    data: Some(data),
                };
                deliveries.extend(self.delivery(&key.namespace, &id, delivery).await?);
            }
        }
        Ok(deliveries)
    }

    /// The task that delivers something; `None` if there can be none.
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

    /// Hands deliveries on. Durable when it returns.
    pub(super) async fn deliver(&self, deliveries: Vec<NewTask>) -> Result<(), StoreError> {
        let mut lanes: BTreeMap<LaneId, Vec<NewTask>> = BTreeMap::new();
        for task in deliveries {
            lanes.entry(task.id.lane()).or_default().push(task);
        }
        for (lane, tasks) in lanes {
            self.outcomes(lane, &tasks).await?;
        }
        Ok(())
    }

    /// Sends something to an address, to see whether it arrives. Answers the delivery.
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
        let filter = TaskFilter { task_type: Some(own_name()), ..list.filter };
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

    /// What deliveries are signed with; made when it is first asked for.
    pub async fn webhook_secrets(&self, namespace: &Name) -> Result<Secrets, StoreError> {
        self.change_secrets(namespace, |found| found.is_none().then(Secrets::new)).await
    }

    /// Puts another secret in its place. The one before is used besides for a day.
    pub async fn rotate_webhook_secret(&self, namespace: &Name) -> Result<Secrets, StoreError> {
        let now = clock::wall();
        let rotate = |found: Option<&Secrets>| {
            Some(found.map_or_else(Secrets::new, |secrets| secrets.clone().rotated(now)))
        };
        self.change_secrets(namespace, rotate).await
    }

    async fn change_secrets(
        &self,
        namespace: &Name,
        change: impl Fn(Option<&Secrets>) -> Option<Secrets>,
    ) -> Result<Secrets, StoreError> {
        let (key, documents) = (secret_key(namespace), &self.0.parts.documents);
        for _ in 0..TRIES {
            let found = documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
            let (version, secrets) = match &found {
                Some(document) => (document.version, Some(codec::decode::<Secrets>(&document.value)?)),
                None => (0, None),
            };
            let changed = match (change(secrets.as_ref()), secrets) {
                (Some(changed), _) => changed,
                (None, Some(secrets)) => return Ok(secrets),
                (None, None) => continue,
            };
            let content = Some(Content { due: None, value: codec::encode(&changed) });
            let put = PutDocument { key: key.clone(), expected: version, content };
            if let [PutOutcome::Stored { .. }] = documents.put(&[put]).await?[..] {
                return Ok(changed);
            }
        }
        Err(StoreError::unavailable("others change the secret of webhooks at the same time"))
    }
}

/// Names a message, for receivers that want each once. The signature is made of it and what follows, with dots between.
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
        TaskRequest::new(format!("{} to {host}", delivery.event), own_name(), Payload::Json(payload));
    request.queue = own_name();
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

/// Delivers, in a server.
#[derive(Debug)]
pub(super) struct WebhookExecutor {
    node: Node,
    client: http::LazyClient,
}

impl WebhookExecutor {
    /// Over the node that knows what is told.
    pub(super) fn new(node: Node) -> Self {
        Self { node, client: http::LazyClient::new(ANSWER_WITHIN, 0) }
    }
}

fn read(dispatch: &Dispatch) -> Result<Delivery, ExecutorError> {
    let bad = |reason: String| ExecutorError::BadPayload { reason };
    let body = dispatch.body.as_ref().ok_or_else(|| bad("is missing".to_owned()))?;
    let delivery = delivery_of(body).map_err(|error| bad(error.to_string()))?;
    check_url("url", &delivery.url).map_err(|FieldError { message, .. }| bad(message))?;
    Ok(delivery)
}

#[async_trait]
impl Executor for WebhookExecutor {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        read(dispatch).map(drop)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let delivery = read(dispatch)?;
        let namespace = dispatch.head.queue.namespace.clone();
        Ok(Box::new(Sending { node: self.node.clone(), client: self.client.get()?, namespace, delivery }))
    }
}

#[derive(Debug)]
struct Sending {
    node: Node,
    client: Client,
    namespace: Name,
    delivery: Delivery,
}

#[async_trait]
impl Execution for Sending {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        tokio::select! {
            biased;
            finish = self.send() => finish,
            _ = attempt.stopped() => failed("stopped", "the delivery was given up", RetryAdvice::Policy),
        }
    }
}

fn failed(code: &'static str, message: impl Into<String>, retry: RetryAdvice) -> Finish {
    http::failed(TaskError::new(code, message.into()).bounded(), retry, TaskResult::default())
}

impl Sending {
    async fn send(&self) -> Finish {
        let unavailable = |error: StoreError| failed("store", error.to_string(), RetryAdvice::Policy);
        let Delivery { id, url, event, at, task, data } = &self.delivery;
        let data = match (data, task) {
            (Some(data), _) => data.clone(),
            (None, Some(task)) => match self.node.task(&self.namespace, *task).await {
                Ok(Some(view)) => told(&view),
                Ok(None) => {
                    return failed("task_removed", "the task is not kept any more", RetryAdvice::Never);
                }
                Err(error) => return unavailable(error),
            },
            (None, None) => Value::Null,
        };
        let secrets = match self.node.webhook_secrets(&self.namespace).await {
            Ok(secrets) => secrets,
            Err(error) => return unavailable(error),
        };
        let body = json!({ "type": event, "timestamp": written(*at), "data": data }).to_string();
        let now = clock::wall();
        let request = self
            .client
            .post(url)
            .timeout(ANSWER_WITHIN)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now.as_micros() / 1_000_000)
            .header("webhook-signature", secrets.sign(id, now, &body));
        let mut response = match request.body(body).send().await {
            Ok(response) => response,
            Err(error) => return http::unanswered(&error),
        };
        let (status, wait) = (response.status(), http::retry_after(response.headers(), RETRY_AFTER_MAX));
        let answer = beginning_of(&mut response).await;
        let code = i32::from(status.as_u16());
        let data = if answer.is_empty() { String::new() } else { Value::from(answer).to_string() };
        let result = TaskResult { code, message: status.to_string(), data };
        if status.is_success() {
            return http::succeeded(result);
        }
        let error = TaskError::new("http_status", format!("the receiver answered {status}"));
        let retry = match (status, wait) {
            // The one answer that says so for good.
            (StatusCode::GONE, _) => RetryAdvice::Never,
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait)) => {
                RetryAdvice::After(wait)
            }
            _ => RetryAdvice::Policy,
        };
        http::failed(error, retry, result)
    }
}

/// The beginning of an answer: for people who look why it was not what it should be.
async fn beginning_of(response: &mut reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - bytes.len())]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A time as the API writes it.
fn written(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros()).map_or_else(|_| String::new(), |at| format!("{at:.6}"))
}

/// What is told of a task, in the words of the API.
fn told(view: &TaskView) -> Value {
    let TaskRow { id, head, state, body, .. } = &view.row;
    let body = body.as_deref().cloned().unwrap_or_default();
    let time = |at: Option<Timestamp>| at.map(written);
    let mut data = json!({
        "taskId": id,
        "status": state.status.to_string(),
        "taskName": body.name,
        "taskType": head.task_type.as_str(),
        "namespace": head.queue.namespace.as_str(),
        "queue": head.queue.queue.as_str(),
        "metadata": body.metadata,
        "requestId": body.request_id,
        "schedule": body.schedule,
        "nominalTime": time(body.nominal_time),
        "attempt": state.attempt.0,
        "createdAt": written(state.created_at),
        "startedAt": time(state.started_at),
        "finishedAt": time(state.finished_at),
        "error": state.error.as_ref().map(|error| json!({ "code": error.code, "message": error.message })),
    });
    if let Some(result) = &view.result {
        let large = result.data.len() > RESULT_BYTES_MAX;
        let value = if large { None } else { serde_json::from_str::<Value>(&result.data).ok() };
        data["result"] = json!({
            "code": result.code,
            "message": result.message,
            "data": value,
            "truncated": large,
        });
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        let current = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        let secrets = Secrets { current, previous: None };
        let at = Timestamp::from_millis(1_614_265_330_000);
        let signed = secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, r#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn both_secrets_sign_for_a_day() {
        let now = Timestamp::from_millis(1_000_000_000);
        let secrets = Secrets::new().rotated(now);
        let parts = |at| secrets.sign("a", at, "b").split(' ').count();
        assert_eq!(parts(now), 2);
        assert_eq!(parts(now + BOTH_SIGN_FOR), 1);
    }
}

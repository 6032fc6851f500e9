//! The executor that sends deliveries.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tasklane_core::id::Name;
use tasklane_core::message::{Dispatch, Finish, RetryAdvice};
use tasklane_core::rng::Rng;
use tasklane_core::task::{NewTask, TaskBody, TaskError, TaskResult, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError, StoreError, TaskView};

use crate::clock;
use crate::executors::http;
use crate::request::{FieldError, TaskRequest, check_url, parse_exact, shown_request_id, write_exact};

use super::super::{JOB_TYPE, MAP_TYPE, Node};
use super::{ANSWER_WITHIN, Delivery, delivery_of, written};

/// The longest wait that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// How much of an answer is kept.
const ANSWER_BYTES_MAX: usize = 1024;
/// A larger result is not sent; the receiver can read it from the API.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Sends deliveries, in a server.
#[derive(Debug)]
pub(in super::super) struct WebhookExecutor {
    node: Node,
    client: http::LazyClient,
}

impl WebhookExecutor {
    /// Over the node that reads the content.
    pub(in super::super) fn new(node: Node) -> Self {
        Self { node, client: http::LazyClient::new(ANSWER_WITHIN) }
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
        let tried = dispatch.attempt.number.0.saturating_sub(1);
        let wait = dispatch.head.retry.wait(tried, &mut Rng::new(rand::random()));
        let (node, client) = (self.node.clone(), self.client.get()?);
        Ok(Box::new(DeliveryExecution { node, client, namespace, wait, delivery }))
    }
}

#[derive(Debug)]
struct DeliveryExecution {
    node: Node,
    client: Client,
    namespace: Name,
    /// The wait before the retry, unless the receiver asks for more.
    wait: Duration,
    delivery: Delivery,
}

#[async_trait]
impl Execution for DeliveryExecution {
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

impl DeliveryExecution {
    async fn send(&self) -> Finish {
        let unavailable = |error: StoreError| failed("store", error.to_string(), RetryAdvice::Policy);
        let Delivery { id, url, event, at, task, data } = &self.delivery;
        let data = match (data, task) {
            (Some(data), _) => data.clone(),
            (None, Some(task)) => match self.node.task(&self.namespace, *task).await {
                Ok(Some(view)) => event_data(&view),
                Ok(None) => {
                    return failed("task_removed", "the task is not kept any more", RetryAdvice::Never);
                }
                Err(error) => return unavailable(error),
            },
            (None, None) => Value::Null,
        };
        let secrets = match self.node.signing_secrets(&self.namespace, url).await {
            Ok(secrets) => secrets,
            Err(error) => return unavailable(error),
        };
        let body = json!({ "type": event, "timestamp": written(*at), "data": data });
        let body = write_exact(&body);
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
            // The one answer that refuses for good.
            (StatusCode::GONE, _) => RetryAdvice::Never,
            // The receiver may ask for a longer wait, not for a shorter one: the number of tries is bounded.
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait)) => {
                RetryAdvice::After(wait.max(self.wait))
            }
            _ => RetryAdvice::Policy,
        };
        http::failed(error, retry, result)
    }
}

/// The beginning of an answer, for people who look for the cause of a failure.
async fn beginning_of(response: &mut reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - bytes.len())]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The queue and the type of the request: a map task or a job waits in another queue.
fn asked_for(row: &TaskRow, body: &TaskBody) -> (Name, Name) {
    #[derive(Deserialize)]
    struct MapOf {
        task: Box<RawValue>,
    }
    #[derive(Deserialize)]
    struct JobOf {
        root: NewTask,
    }
    let payload = body.payload.as_str();
    let asked = match row.head.task_type.as_str() {
        MAP_TYPE => serde_json::from_str::<MapOf>(payload).ok().and_then(|map| {
            let request = TaskRequest::from_json(map.task.get().as_bytes()).ok()?;
            Some((request.queue, request.task_type))
        }),
        JOB_TYPE => serde_json::from_str::<JobOf>(payload).ok().map(|job| {
            let head = &job.root.spec.head;
            (head.queue.queue.clone(), head.task_type.clone())
        }),
        _ => None,
    };
    asked.unwrap_or_else(|| (row.head.queue.queue.clone(), row.head.task_type.clone()))
}

/// The content for a task, in the words of the API.
fn event_data(view: &TaskView) -> Value {
    let TaskRow { id, head, state, body, .. } = &view.row;
    let body = body.as_deref().cloned().unwrap_or_default();
    let (queue, task_type) = asked_for(&view.row, &body);
    let time = |at: Option<Timestamp>| at.map(written);
    let mut data = json!({
        "taskId": id,
        "status": state.status.to_string(),
        "taskName": body.name,
        "taskType": task_type.as_str(),
        "namespace": head.queue.namespace.as_str(),
        "queue": queue.as_str(),
        "metadata": body.metadata,
        "requestId": shown_request_id(body.request_id.as_deref()),
        "parent": body.parent,
        "childName": body.child_name,
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
        let value = if large { None } else { parse_exact(&result.data).ok() };
        data["result"] = json!({
            "code": result.code,
            "message": result.message,
            "data": value,
            "truncated": large,
        });
    }
    data
}

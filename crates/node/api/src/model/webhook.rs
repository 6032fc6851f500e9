//! Webhooks, and their deliveries.

use serde::{Deserialize, Serialize};
use tasklane_core::mask::masked_url;
use tasklane_core::task::Webhook;
use tasklane_runtime::node::{DeliveryView, Endpoint, Secrets};
use tasklane_runtime::request::OccasionName;
use utoipa::ToSchema;

use super::task::ErrorJson;
use super::{StatusName, Time};

/// An address to notify over HTTP.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookShown)]
pub(crate) struct WebhookOut {
    /// The address of the messages.
    url: String,
    /// The occasions.
    #[schema(value_type = Vec<String>)]
    on: Vec<OccasionName>,
}

impl From<&Webhook> for WebhookOut {
    fn from(Webhook { url, on }: &Webhook) -> Self {
        Self { url: url.clone(), on: on.iter().map(|occasion| OccasionName::from(*occasion)).collect() }
    }
}

/// A delivery of a message. The delivery is itself a task, and can be read, cancelled and retried as such.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Delivery {
    /// The task that delivers it.
    #[schema(format = "uuid")]
    delivery_id: String,
    /// The `webhook-id` of the message: the same for every attempt to send it.
    message_id: String,
    /// The occasion.
    #[schema(example = "task.failed")]
    event: String,
    /// The address of the receiver, without passwords and the query.
    url: String,
    /// The task of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    task_id: Option<String>,
    /// The schedule of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    schedule: Option<String>,
    /// `SUCCESS` when the receiver has accepted it.
    status: StatusName,
    /// The number of attempts.
    attempts: u32,
    /// The time of the next attempt, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_attempt_at: Option<Time>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<ErrorJson>,
    created_at: Time,
    /// When the message was delivered, or its retries ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    finished_at: Option<Time>,
}

impl From<DeliveryView> for Delivery {
    fn from(view: DeliveryView) -> Self {
        let state = &view.row.state;
        let waits = !state.status.is_final() && !state.status.is_in_flight();
        Self {
            delivery_id: view.row.id.to_string(),
            message_id: view.message_id,
            event: view.event,
            url: masked_url(&view.url, |_| false),
            task_id: view.task.map(|task| task.to_string()),
            schedule: view.schedule,
            status: StatusName(state.status),
            attempts: state.attempt.0,
            next_attempt_at: waits.then_some(Time(state.due)),
            error: state.error.as_ref().map(ErrorJson::from),
            created_at: Time(state.created_at),
            finished_at: state.finished_at.map(Time),
        }
    }
}

/// A page of deliveries, the newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DeliveryPage {
    pub(crate) deliveries: Vec<Delivery>,
    /// Where to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// The secrets that sign deliveries of the namespace.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookSecret {
    /// The current secret.
    #[schema(example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD2dEwlE5yHRc=")]
    secret: String,
    /// Previous secrets that still sign, so that receivers can change one after the other: the latest first.
    previous: Vec<PreviousSecret>,
}

/// A replaced secret that still signs for a while.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct PreviousSecret {
    secret: String,
    /// The end of its use.
    until: Time,
}

impl From<Secrets> for WebhookSecret {
    fn from(Secrets { current, previous }: Secrets) -> Self {
        let previous =
            previous.into_iter().map(|(secret, until)| PreviousSecret { secret, until: Time(until) });
        Self { secret: current, previous: previous.collect() }
    }
}

/// An endpoint with a secret of its own.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebhookEndpoint {
    /// Its address.
    pub(crate) url: String,
    /// The secret that signs deliveries to it. Only the answer to its creation has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD2dEwlE5yHRc=")]
    pub(crate) secret: Option<String>,
    /// Until then the previous secret signs deliveries too; absent without a previous secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) previous_until: Option<Time>,
}

impl From<Endpoint> for WebhookEndpoint {
    fn from(Endpoint { url, previous_until }: Endpoint) -> Self {
        Self { url, secret: None, previous_until: previous_until.map(Time) }
    }
}

/// A page of endpoints with secrets of their own.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct EndpointPage {
    pub(crate) endpoints: Vec<WebhookEndpoint>,
    /// Where to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// An endpoint that gets a secret of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointRequest {
    pub(crate) url: String,
}

/// Where a message is sent to, to see whether it arrives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestRequest {
    pub(crate) url: String,
}

/// A message is on its way.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TestStarted {
    /// The task that delivers it.
    #[schema(format = "uuid")]
    pub(crate) delivery_id: String,
}

//! Webhooks.

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::error::Error;
use crate::task::{Status, TaskError};

/// A URL that receives notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// The receiver's URL.
    pub url: String,
    /// The events to send: `finished`, `failed`, and for schedules `failing`, `late`. Empty for the server's
    /// default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
}

impl Webhook {
    /// A receiver of these events.
    pub fn new(url: impl Into<String>, on: &[&str]) -> Self {
        Self { url: url.into(), on: on.iter().map(|&on| on.to_owned()).collect() }
    }
}

/// A message that is, or was, delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The task that delivers it.
    pub delivery_id: String,
    /// The id by which the receiver recognizes the message.
    pub message_id: String,
    /// The event.
    pub event: String,
    /// The receiver's URL.
    pub url: String,
    /// The task that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The schedule that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Its status.
    pub status: Status,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The secrets that sign deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSecret {
    /// In use.
    pub secret: String,
    /// Also in use, for a while: the latest first.
    #[serde(default)]
    pub previous: Vec<PreviousSecret>,
}

/// A secret that was replaced, and is in use for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousSecret {
    /// The secret.
    pub secret: String,
    /// The end of its use.
    pub until: Timestamp,
}

/// An endpoint with a secret of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookEndpoint {
    /// Its address.
    pub url: String,
    /// The secret; only in the answer that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Until this time deliveries are also signed with the secret before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_until: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Endpoints {
    endpoints: Vec<WebhookEndpoint>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Deliveries {
    deliveries: Vec<Delivery>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    delivery_id: String,
}

impl Client {
    /// The last deliveries, the newest first: of a task or of all, in these states or in any.
    pub async fn deliveries(
        &self,
        task: Option<&str>,
        statuses: &[Status],
        limit: usize,
    ) -> Result<Vec<Delivery>, Error> {
        let status = statuses.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(",");
        let mut found = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let wanted = (limit - found.len()).clamp(1, 1000).to_string();
            let pairs = [
                ("task", task),
                ("status", Some(status.as_str()).filter(|text| !text.is_empty())),
                ("limit", Some(wanted.as_str())),
                ("cursor", cursor.as_deref()),
            ];
            let pairs: Vec<(&str, &str)> =
                pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            let page: Deliveries = self.answer(self.get(&["webhooks", "deliveries"]).query(&pairs)).await?;
            found.extend(page.deliveries);
            cursor = page.cursor;
            if cursor.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// The secrets that sign deliveries of the namespace.
    pub async fn webhook_secret(&self) -> Result<WebhookSecret, Error> {
        self.answer(self.get(&["webhooks", "secret"])).await
    }

    /// Replaces it. For a day, deliveries are signed with both.
    pub async fn rotate_webhook_secret(&self) -> Result<WebhookSecret, Error> {
        self.answer(self.post(&["webhooks", "secret", "rotate"])).await
    }

    /// All endpoints with a secret of their own, without the secrets.
    pub async fn webhook_endpoints(&self) -> Result<Vec<WebhookEndpoint>, Error> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&["webhooks", "endpoints"]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: Endpoints = self.answer(call).await?;
            all.extend(page.endpoints);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// Gives an endpoint a secret of its own, or replaces it. Nothing shows the secret again.
    pub async fn rotate_endpoint_secret(&self, url: &str) -> Result<WebhookEndpoint, Error> {
        self.answer(self.post(&["webhooks", "endpoints"]).json(&json!({ "url": url }))).await
    }

    /// Takes the secret of an endpoint away: that of the namespace holds for it.
    pub async fn delete_endpoint_secret(&self, url: &str) -> Result<(), Error> {
        let call = self.request(Method::DELETE, &["webhooks", "endpoints"]);
        self.send(call.query(&[("url", url)])).await.map(drop)
    }

    /// Sends a message to an address, to see whether it arrives. Answers the delivery, which is a task.
    pub async fn test_webhook(&self, url: &str) -> Result<String, Error> {
        let body = json!({ "url": url });
        let started: Started = self.answer(self.post(&["webhooks", "test"]).json(&body)).await?;
        Ok(started.delivery_id)
    }
}

//! Locks.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::error::Error;

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub owner: String,
    /// Rises with every new owner.
    pub token: u64,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Deserialize)]
struct Locks {
    locks: Vec<Lock>,
    #[serde(default)]
    cursor: Option<String>,
}

impl Client {
    /// All locks of the namespace that are held.
    pub async fn locks(&self) -> Result<Vec<Lock>, Error> {
        let mut locks = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let call = self.get(&["locks"]);
            let call = if let Some(cursor) = &cursor { call.query(&[("cursor", cursor)]) } else { call };
            let page: Locks = self.answer(call).await?;
            locks.extend(page.locks);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(locks);
            }
        }
    }

    /// Takes a lock for a time, or renews it.
    pub async fn take_lock(&self, name: &str, owner: &str, ttl: Duration) -> Result<Lock, Error> {
        let body = json!({ "owner": owner, "ttl": ttl.as_secs_f64() });
        self.answer(self.request(Method::PUT, &["locks", name]).json(&body)).await
    }

    /// Gives a lock back.
    pub async fn release_lock(&self, name: &str, owner: &str) -> Result<(), Error> {
        let call = self.request(Method::DELETE, &["locks", name]).query(&[("owner", owner)]);
        self.send(call).await.map(drop)
    }
}

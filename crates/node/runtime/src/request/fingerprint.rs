//! The fingerprint of a request: shows whether a request id is used again for another request.
//!
//! It covers the fields that the client sent, without the defaults of the queue's policy, so that a changed
//! policy does not turn a repeat into a conflict. Namespace, queue and request id are left out: the task id
//! is made of them, so they are equal whenever two fingerprints are compared.
//!
//! Stores keep fingerprints for as long as request ids. So the hash names each value of an enum by a code of this file,
//! and a rename of the enum changes no fingerprint. The codes are the names that version 1 has hashed from the start:
//! fingerprints that are stored stay valid, and the version stays 1. `tests/golden/fingerprint.txt` holds twenty
//! requests with their fingerprints.

use std::time::Duration;

use tasklane_core::policy::{ConcurrencyLimit, RateLimit, WhenReached};
use tasklane_core::task::{Fingerprint, Occasion, Payload, Webhook};
use xxhash_rust::xxh3::Xxh3;

use super::task::TaskRequest;

/// Changes with the set of hashed fields or their form.
const VERSION: u8 = 1;

pub(super) fn of(request: &TaskRequest) -> Fingerprint {
    let mut hash = Fields(Xxh3::new());
    hash.text("taskName", &request.task_name);
    hash.text("taskType", request.task_type.as_str());
    match (&request.identity, &request.payload) {
        (Some(identity), _) => hash.text("identity", identity),
        (None, Payload::Text(text)) => hash.text("text", text),
        (None, Payload::Json(text)) => hash.text("json", text),
    }
    hash.duration("executionTimeout", request.execution_timeout);
    let retry = &request.retry;
    hash.number("maxRetries", retry.max_retries.map(i128::from));
    hash.duration("retryDelay", retry.delay);
    hash.number("backoffRate", retry.backoff_percent.map(i128::from));
    hash.duration("maxDelay", retry.delay_max);
    hash.number("jitter", retry.jitter_percent.map(i128::from));
    hash.number("priority", Some(i128::from(request.priority.get())));
    hash.number("runAt", request.run_at.map(|at| i128::from(at.as_micros())));
    hash.duration("delay", request.delay);
    hash.pairs("metadata", &request.metadata);
    hash.pairs("labels", &request.labels);
    if let Some(key) = &request.hash_key {
        hash.text("hashKey", key);
    }
    hash.duration("startTimeout", request.start_timeout);
    hash.duration("progressTimeout", request.progress_timeout);
    for ConcurrencyLimit { key, concurrency } in &request.concurrency {
        hash.text("concurrency", key.as_deref().unwrap_or_default());
        hash.number("limit", Some(i128::from(concurrency.limit)));
        hash.text("whenFull", when_full(concurrency.when_reached));
    }
    for RateLimit { key, rate } in &request.rate {
        hash.text("rate", key.as_deref().unwrap_or_default());
        hash.number("limit", Some(i128::from(rate.limit)));
        hash.duration("per", Some(rate.per));
        hash.number("burst", Some(i128::from(rate.burst)));
    }
    if let Some(unique) = &request.unique {
        hash.text("unique", &unique.key);
        hash.duration("until", unique.hold_for);
    }
    for Webhook { url, on } in &request.webhooks {
        hash.text("webhook", url);
        let on: Vec<&str> = on.iter().copied().map(occasion).collect();
        hash.text("on", &format!("[{}]", on.join(", ")));
    }
    if let Some(parent) = request.parent {
        hash.text("parent", &parent.to_string());
    }
    Fingerprint { version: VERSION, hash: hash.0.digest() }
}

/// The code of a rule in the hash; it never changes.
fn when_full(rule: WhenReached) -> &'static str {
    match rule {
        WhenReached::Wait => "Wait",
        WhenReached::CancelNewest => "CancelNewest",
    }
}

/// The code of an occasion in the hash; it never changes.
fn occasion(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::Finished => "Finished",
        Occasion::Failed => "Failed",
        Occasion::Failing => "Failing",
        Occasion::Late => "Late",
    }
}

/// Hashes names and values with their lengths, so that no two requests give the same bytes. Absent fields are
/// left out.
struct Fields(Xxh3);

impl Fields {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.bytes(name.as_bytes());
        self.bytes(value.as_bytes());
    }

    fn number(&mut self, name: &str, value: Option<i128>) {
        if let Some(value) = value {
            self.bytes(name.as_bytes());
            self.bytes(&value.to_le_bytes());
        }
    }

    fn duration(&mut self, name: &str, value: Option<Duration>) {
        self.number(name, value.map(|value| i128::try_from(value.as_micros()).unwrap_or(i128::MAX)));
    }

    fn pairs(&mut self, name: &str, pairs: &std::collections::BTreeMap<String, String>) {
        for (key, value) in pairs {
            self.bytes(name.as_bytes());
            self.text(key, value);
        }
    }
}

//! The secrets that sign deliveries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Content, DocumentKey, DocumentKind, DocumentList, PutDocument, PutOutcome, StoreError, codec,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::clock;
use crate::request::{check_url, same_url};

use super::super::{NamedDocumentError, Node};

/// How long the previous secrets also sign.
const BOTH_SIGN_FOR: Duration = Duration::from_hours(24);
/// Most previous secrets.
const PREVIOUS_MAX: usize = 5;
/// How often a change is tried when other changes come first.
const TRIES: usize = 10;

/// The secrets that sign deliveries of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// The current secret.
    pub current: String,
    /// Previous secrets, each until its time: the latest first.
    pub previous: Vec<(String, Timestamp)>,
}

/// The prefix of a secret, as receivers' libraries expect it.
const SECRET_PREFIX: &str = "whsec_";

/// The prefix of the documents of endpoints. Servers of earlier versions pass over them.
const ENDPOINT_PREFIX: &str = "webhooks:";

fn secret_key(namespace: &Name) -> DocumentKey {
    let id = Name::new("webhooks").expect("a valid name");
    DocumentKey { kind: DocumentKind::Secret, namespace: namespace.clone(), id }
}

/// The key of one endpoint's secret: the same for every spelling of its address.
fn endpoint_key(namespace: &Name, url: &str) -> DocumentKey {
    let id = Name::new(&format!("{ENDPOINT_PREFIX}{:032x}", xxh3_128(same_url(url).as_bytes())));
    DocumentKey { kind: DocumentKind::Secret, namespace: namespace.clone(), id: id.expect("a valid name") }
}

/// An endpoint with a secret of its own. The secret itself is shown once, when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub url: String,
    /// Until then the previous secret signs too, if there was one.
    pub previous_until: Option<Timestamp>,
}

/// How the secret of an endpoint is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredEndpoint {
    url: String,
    secrets: Secrets,
}

impl StoredEndpoint {
    fn shown(&self, now: Timestamp) -> Endpoint {
        let previous = self.secrets.previous.iter().map(|(_, until)| *until);
        Endpoint { url: self.url.clone(), previous_until: previous.filter(|until| now < *until).max() }
    }
}

impl Secrets {
    fn new() -> Self {
        let bytes: [u8; 32] = rand::random();
        Self { current: format!("{SECRET_PREFIX}{}", BASE64.encode(bytes)), previous: Vec::new() }
    }

    /// Replaces the secret; the previous one signs for a while longer.
    fn rotated(mut self, now: Timestamp) -> Self {
        self.previous.retain(|(_, until)| now < *until);
        self.previous.insert(0, (self.current, now + BOTH_SIGN_FOR));
        self.previous.truncate(PREVIOUS_MAX);
        Self { previous: self.previous, ..Self::new() }
    }

    /// The value of the header that authenticates the sender.
    pub(super) fn sign(&self, id: &str, at: Timestamp, body: &str) -> String {
        let seconds = at.as_micros() / 1_000_000;
        let signed = format!("{id}.{seconds}.{body}");
        let sign = |secret: &str| {
            let key = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
            let key = BASE64.decode(key).unwrap_or_else(|_| key.as_bytes().to_vec());
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
            format!("v1,{}", BASE64.encode(tag))
        };
        let previous = self.previous.iter().filter(|(_, until)| at < *until).map(|(secret, _)| secret);
        let all: Vec<String> =
            std::iter::once(&self.current).chain(previous).map(|secret| sign(secret)).collect();
        all.join(" ")
    }
}

impl Node {
    /// The secrets that sign deliveries; made at the first use.
    pub async fn webhook_secrets(&self, namespace: &Name) -> Result<Secrets, StoreError> {
        self.change_secrets(namespace, |found| found.is_none().then(Secrets::new)).await
    }

    /// Replaces the secret. The previous one also signs for a day.
    pub async fn rotate_webhook_secret(&self, namespace: &Name) -> Result<Secrets, StoreError> {
        let now = clock::wall();
        let rotate = |found: Option<&Secrets>| {
            Some(found.map_or_else(Secrets::new, |secrets| secrets.clone().rotated(now)))
        };
        self.change_secrets(namespace, rotate).await
    }

    /// The secrets for an address: that of the endpoint, else that of the namespace.
    pub(super) async fn signing_secrets(&self, namespace: &Name, url: &str) -> Result<Secrets, StoreError> {
        match self.document(&endpoint_key(namespace, url)).await? {
            Some(document) => Ok(codec::decode::<StoredEndpoint>(&document.value)?.secrets),
            None => self.webhook_secrets(namespace).await,
        }
    }

    /// Gives an endpoint a secret of its own, or replaces it; the previous one also signs for a day. Returns
    /// the secret, which is never shown again, and whether it is the endpoint's first.
    pub async fn rotate_endpoint_secret(
        &self,
        namespace: &Name,
        url: &str,
    ) -> Result<(Endpoint, String, bool), NamedDocumentError> {
        check_url("url", url)?;
        let (key, now) = (endpoint_key(namespace, url), clock::wall());
        for _ in 0..TRIES {
            let found = self.document(&key).await?;
            let (expected, stored) = match &found {
                Some(document) => {
                    (document.version, Some(codec::decode::<StoredEndpoint>(&document.value)?.secrets))
                }
                None => (0, None),
            };
            let secrets = stored.map_or_else(Secrets::new, |secrets| secrets.rotated(now));
            let stored = StoredEndpoint { url: url.to_owned(), secrets };
            let content = Some(Content { due: None, value: codec::encode(&stored) });
            let put = PutDocument { key: key.clone(), expected, content };
            if let [PutOutcome::Stored { .. }] = self.0.parts.documents.put(&[put]).await?[..] {
                return Ok((stored.shown(now), stored.secrets.current, expected == 0));
            }
        }
        Err(NamedDocumentError::Crowded)
    }

    /// Endpoints with a secret of their own, in the order of their keys, which carries no meaning, and where
    /// the next page begins.
    pub async fn webhook_endpoints(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<(Vec<Endpoint>, Option<Name>), StoreError> {
        // The secret of the namespace sorts first, and belongs to no endpoint.
        let after = Some(after.unwrap_or_else(|| secret_key(namespace).id));
        let page = DocumentList { kind: DocumentKind::Secret, namespace: namespace.clone(), after, limit };
        let found = self.0.parts.documents.by_name(page).await?;
        let next = found.last().filter(|_| found.len() >= limit).map(|document| document.key.id.clone());
        let now = clock::wall();
        let own = found.iter().filter(|document| document.key.id.as_str().starts_with(ENDPOINT_PREFIX));
        let endpoints = own.map(|document| {
            codec::decode::<StoredEndpoint>(&document.value).map(|endpoint| endpoint.shown(now))
        });
        Ok((endpoints.collect::<Result<_, _>>()?, next))
    }

    /// Removes the secret of an endpoint: the secret of the namespace signs its deliveries from then on.
    pub async fn delete_endpoint_secret(
        &self,
        namespace: &Name,
        url: &str,
    ) -> Result<bool, NamedDocumentError> {
        check_url("url", url)?;
        self.delete_named(endpoint_key(namespace, url)).await
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
        Err(StoreError::unavailable("other changes of the webhook secret came first"))
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn stored_secrets_keep_their_keys_and_bytes() {
        let namespace = Name::new("default").expect("a valid name");
        let previous = vec![("whsec_AAAA".to_owned(), Timestamp::from_millis(1_800_000_000_000))];
        let secrets = Secrets { current: "whsec_MfKQ".to_owned(), previous };
        let url = "https://example.com/hook".to_owned();
        check("secret", |golden| {
            golden.text("its name", secret_key(&namespace).id);
            golden.packed("secrets", &secrets);
            golden.text("the name of an endpoint", endpoint_key(&namespace, &url).id);
            golden.packed("endpoint", &StoredEndpoint { url, secrets });
        });
    }

    /// The example of the specification.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        let current = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        let secrets = Secrets { current, previous: Vec::new() };
        let at = Timestamp::from_millis(1_614_265_330_000);
        let signed = secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, r#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn secrets_sign_for_a_day_after_they_were_replaced() {
        let now = Timestamp::from_millis(1_000_000_000);
        let secrets = Secrets::new().rotated(now);
        let parts = |at| secrets.sign("a", at, "b").split(' ').count();
        assert_eq!(parts(now), 2);
        assert_eq!(parts(now + BOTH_SIGN_FOR), 1);
        let again = secrets.clone().rotated(now + Duration::from_hours(1));
        assert_eq!(again.previous.len(), 2, "the first one is still in use: {again:?}");
        let later = again.rotated(now + Duration::from_hours(24));
        assert_eq!(later.previous.len(), 2, "and then no more: {later:?}");
    }
}

//! Locks for users: one owner at a time, until a time.
//!
//! A lock is a document. Its token rises with every new owner, so that the protected resource can refuse an
//! earlier owner whose lock has expired unnoticed. For the time that a lock is held see
//! `tasklane_core::lock`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::clock_watch::Clock;
use tasklane_core::id::Name;
use tasklane_core::invariant::Invariants;
use tasklane_core::lock::{Lease, SteadyEnd};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DocumentList, DueList, PutDocument, PutOutcome, StoreError,
    codec,
};

use crate::clock;

use super::Node;

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: Name,
    /// The owner.
    pub owner: String,
    /// Rises with every new owner.
    pub token: u64,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
}

/// The outcome of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The caller holds it now.
    Yes(Lock),
    /// Another owner holds it.
    HeldBy(Lock),
}

/// The stored form of a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredLock {
    #[serde(rename = "o")]
    owner: String,
    /// `None` stands for the version of the document: the lock was not renewed yet.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(rename = "s")]
    since: Timestamp,
    #[serde(rename = "u")]
    until: Timestamp,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    steady: Option<SteadyEnd>,
}

impl StoredLock {
    fn lease(&self) -> Lease {
        Lease { until: self.until, steady: self.steady }
    }

    fn is_held(&self, clock: &Clock) -> bool {
        self.lease().is_held(clock, clock::boot_id(), Invariants::ALL_ON)
    }

    /// The lock as the API shows it.
    fn shown(&self, document: &Document, clock: &Clock) -> Lock {
        Lock {
            name: document.key.id.clone(),
            owner: self.owner.clone(),
            token: self.token.unwrap_or(document.version),
            since: self.since,
            until: self.lease().until(clock, clock::boot_id()),
        }
    }
}

/// How often a change is tried when other changes come first.
const TRIES: usize = 10;
/// An expired lock is removed after this time.
const KEPT: Duration = Duration::from_mins(1);
/// Locks removed in one go.
const PAGE: usize = 500;

fn key_of(namespace: &Name, name: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Lock, namespace: namespace.clone(), id: name.clone() }
}

fn stored(document: &Document) -> Result<StoredLock, StoreError> {
    codec::decode(&document.value)
}

/// A lock, if it is held.
fn held(document: &Document, clock: &Clock) -> Result<Option<Lock>, StoreError> {
    let stored = stored(document)?;
    Ok(stored.is_held(clock).then(|| stored.shown(document, clock)))
}

impl Node {
    /// Takes a lock for a time, or renews it for its owner.
    pub async fn take_lock(
        &self,
        namespace: &Name,
        name: &Name,
        owner: &str,
        ttl: Duration,
    ) -> Result<LockOutcome, StoreError> {
        let key = key_of(namespace, name);
        for _ in 0..TRIES {
            let found = self.0.parts.documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
            let clock = clock::now();
            let (expected, held) = match &found {
                Some(document) => {
                    let held = stored(document)?;
                    (document.version, held.is_held(&clock).then(|| held.shown(document, &clock)))
                }
                None => (0, None),
            };
            let renewed = match held {
                Some(lock) if lock.owner != owner => return Ok(LockOutcome::HeldBy(lock)),
                held => held,
            };
            let Lease { until, steady } = Lease::taken(&clock, clock::boot_id(), ttl);
            let since = renewed.as_ref().map_or(clock.wall, |lock| lock.since);
            let token = renewed.map(|lock| lock.token);
            let stored = StoredLock { owner: owner.to_owned(), token, since, until, steady };
            let content = Some(Content { due: Some(until), value: codec::encode(&stored) });
            let put = PutDocument { key: key.clone(), expected, content };
            if let [PutOutcome::Stored { version }] = self.0.parts.documents.put(&[put]).await?[..] {
                let (name, owner) = (name.clone(), owner.to_owned());
                return Ok(LockOutcome::Yes(Lock {
                    name,
                    owner,
                    token: token.unwrap_or(version),
                    since,
                    until,
                }));
            }
        }
        Err(StoreError::unavailable("other changes of the lock came first"))
    }

    /// Releases a lock. Returns the lock if another owner holds it.
    pub async fn release_lock(
        &self,
        namespace: &Name,
        name: &Name,
        owner: &str,
    ) -> Result<Option<Lock>, StoreError> {
        let key = key_of(namespace, name);
        for _ in 0..TRIES {
            let found = self.0.parts.documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
            let Some(document) = found else { return Ok(None) };
            let (lock, clock) = (stored(&document)?, clock::now());
            if lock.owner != owner {
                return Ok(lock.is_held(&clock).then(|| lock.shown(&document, &clock)));
            }
            let put = PutDocument { key: key.clone(), expected: document.version, content: None };
            if let [PutOutcome::Stored { .. }] = self.0.parts.documents.put(&[put]).await?[..] {
                return Ok(None);
            }
        }
        Err(StoreError::unavailable("other changes of the lock came first"))
    }

    /// A lock, if it is held.
    pub async fn lock(&self, namespace: &Name, name: &Name) -> Result<Option<Lock>, StoreError> {
        let found = self.0.parts.documents.get(&[key_of(namespace, name)]).await?.pop().flatten();
        let clock = clock::now();
        let held = found.map(|document| held(&document, &clock)).transpose()?;
        Ok(held.flatten())
    }

    /// Held locks, by name, and where to go on: behind the last lock of this page.
    pub async fn locks(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<(Vec<Lock>, Option<Name>), StoreError> {
        let list = DocumentList { kind: DocumentKind::Lock, namespace: namespace.clone(), after, limit };
        let documents = self.0.parts.documents.by_name(list).await?;
        let next = documents.last().filter(|_| documents.len() >= limit).map(|last| last.key.id.clone());
        let clock = clock::now();
        let locks = documents.iter().filter_map(|document| held(document, &clock).transpose());
        Ok((locks.collect::<Result<_, _>>()?, next))
    }

    /// Removes expired locks; none while the clock is not settled.
    pub(super) async fn forget_locks(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let clock = clock::now();
            if !clock.is_settled() {
                return Ok(());
            }
            let until = clock.wall - KEPT;
            let list = DueList { kind: DocumentKind::Lock, until, after, limit: PAGE };
            let over = self.0.parts.documents.by_time(list).await?;
            let removal = |document: &Document| PutDocument {
                key: document.key.clone(),
                expected: document.version,
                content: None,
            };
            // By the steady clock some of them may still be held.
            let ended = over.iter().filter(|document| matches!(held(document, &clock), Ok(None)));
            self.0.parts.documents.put(&ended.map(removal).collect::<Vec<_>>()).await?;
            let more = over.len() == PAGE;
            after = over
                .into_iter()
                .last()
                .filter(|_| more)
                .and_then(|last| Some((last.due?, last.key.namespace, last.key.id)));
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn stored_locks_keep_their_bytes() {
        let at = Timestamp::from_millis(1_800_000_000_000);
        let steady = Some(SteadyEnd { boot: Uuid::from_u128(7), until: at });
        let stored = StoredLock { owner: "a".to_owned(), token: Some(3), since: at, until: at, steady };
        check("lock", |golden| {
            golden.packed("lock", &stored);
            golden.packed("lock least", &StoredLock { token: None, steady: None, ..stored });
        });
    }
}

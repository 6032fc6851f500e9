//! Locks for users: one owner at a time, for a time.
//!
//! A lock is a document. Its token rises with every new owner, so that what a lock protects can refuse one who held it
//! before and does not know that it is over. Times are those of the servers' clocks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::id::Name;
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
    /// Who holds it.
    pub owner: String,
    /// Rises with every new owner.
    pub token: u64,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless it is renewed.
    pub until: Timestamp,
}

/// What came of asking for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is held now.
    Yes(Lock),
    /// Somebody else holds it.
    HeldBy(Lock),
}

/// What is stored of a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(rename = "o")]
    owner: String,
    /// `None` for the version of the document: it was not renewed yet.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(rename = "s")]
    since: Timestamp,
    #[serde(rename = "u")]
    until: Timestamp,
}

/// How often a change is tried that somebody else's gets in the way of.
const TRIES: usize = 10;
/// A lock that ended this long ago is removed.
const KEPT: Duration = Duration::from_mins(1);
/// Locks removed in one go.
const PAGE: usize = 500;

fn key_of(namespace: &Name, name: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Lock, namespace: namespace.clone(), id: name.clone() }
}

fn lock_of(document: &Document) -> Result<Lock, StoreError> {
    let stored: Stored = codec::decode(&document.value)?;
    Ok(Lock {
        name: document.key.id.clone(),
        owner: stored.owner,
        token: stored.token.unwrap_or(document.version),
        since: stored.since,
        until: stored.until,
    })
}

impl Node {
    /// Takes a lock for a time, or renews it for the one who holds it.
    pub async fn take_lock(
        &self,
        namespace: &Name,
        name: &Name,
        owner: &str,
        ttl: Duration,
    ) -> Result<Taken, StoreError> {
        let key = key_of(namespace, name);
        for _ in 0..TRIES {
            let found = self.0.parts.documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
            let now = clock::wall();
            let (expected, held) = match &found {
                Some(document) => {
                    (document.version, Some(lock_of(document)?).filter(|lock| lock.until > now))
                }
                None => (0, None),
            };
            let renewed = match held {
                Some(lock) if lock.owner != owner => return Ok(Taken::HeldBy(lock)),
                held => held,
            };
            let until = now + ttl;
            let since = renewed.as_ref().map_or(now, |lock| lock.since);
            let token = renewed.map(|lock| lock.token);
            let stored = Stored { owner: owner.to_owned(), token, since, until };
            let content = Some(Content { due: Some(until), value: codec::encode(&stored) });
            let put = PutDocument { key: key.clone(), expected, content };
            if let [PutOutcome::Stored { version }] = self.0.parts.documents.put(&[put]).await?[..] {
                let (name, owner) = (name.clone(), owner.to_owned());
                return Ok(Taken::Yes(Lock { name, owner, token: token.unwrap_or(version), since, until }));
            }
        }
        Err(StoreError::unavailable("others change this lock at the same time"))
    }

    /// Gives a lock back. Answers who holds it, if that is somebody else.
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
            let lock = lock_of(&document)?;
            if lock.owner != owner {
                return Ok(Some(lock).filter(|lock| lock.until > clock::wall()));
            }
            let put = PutDocument { key: key.clone(), expected: document.version, content: None };
            if let [PutOutcome::Stored { .. }] = self.0.parts.documents.put(&[put]).await?[..] {
                return Ok(None);
            }
        }
        Err(StoreError::unavailable("others change this lock at the same time"))
    }

    /// A lock, if somebody holds it.
    pub async fn lock(&self, namespace: &Name, name: &Name) -> Result<Option<Lock>, StoreError> {
        let found = self.0.parts.documents.get(&[key_of(namespace, name)]).await?.pop().flatten();
        let lock = found.map(|document| lock_of(&document)).transpose()?;
        Ok(lock.filter(|lock| lock.until > clock::wall()))
    }

    /// Locks that are held, by name, and where to go on: behind the last one that was looked at.
    pub async fn locks(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<(Vec<Lock>, Option<Name>), StoreError> {
        let list = DocumentList { kind: DocumentKind::Lock, namespace: namespace.clone(), after, limit };
        let documents = self.0.parts.documents.by_name(list).await?;
        let next = documents.last().filter(|_| documents.len() >= limit).map(|last| last.key.id.clone());
        let now = clock::wall();
        let locks = documents.iter().map(lock_of).collect::<Result<Vec<_>, _>>()?;
        Ok((locks.into_iter().filter(|lock| lock.until > now).collect(), next))
    }

    /// Removes locks that nobody has renewed.
    pub(super) async fn forget_locks(&self) -> Result<(), StoreError> {
        loop {
            let until = clock::wall() - KEPT;
            let list = DueList { kind: DocumentKind::Lock, until, after: None, limit: PAGE };
            let over = self.0.parts.documents.by_time(list).await?;
            let removal = |document: &Document| PutDocument {
                key: document.key.clone(),
                expected: document.version,
                content: None,
            };
            self.0.parts.documents.put(&over.iter().map(removal).collect::<Vec<_>>()).await?;
            if over.len() < PAGE {
                return Ok(());
            }
        }
    }
}

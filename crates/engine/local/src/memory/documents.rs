//! Documents.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use async_trait::async_trait;
use tasklane_core::id::Name;
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
    StoreError,
};

use super::state::MemoryState;
use super::store::MemoryStore;

/// All documents.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    by_key: BTreeMap<DocumentKey, Document>,
    by_time: BTreeSet<(DocumentKind, Timestamp, Name, Name)>,
    /// The last version that was given.
    version: u64,
}

impl Shelf {
    fn timed(document: &Document) -> Option<(DocumentKind, Timestamp, Name, Name)> {
        let DocumentKey { kind, namespace, id } = document.key.clone();
        Some((kind, document.due?, namespace, id))
    }

    fn put(&mut self, put: &PutDocument, invariants: Invariants) -> PutOutcome {
        let stored = self.by_key.get(&put.key);
        let current = stored.map_or(0, |document| document.version);
        if current != put.expected && invariants.on(Invariant::DocumentVersion) {
            return PutOutcome::Conflict { current };
        }
        if let Some(timed) = stored.and_then(Self::timed) {
            self.by_time.remove(&timed);
        }
        self.version += 1;
        let version = self.version;
        match put.content.clone() {
            Some(content) => {
                let (due, value) = (content.due, content.value);
                let document = Document { key: put.key.clone(), version, due, value };
                self.by_time.extend(Self::timed(&document));
                self.by_key.insert(put.key.clone(), document);
            }
            None => _ = self.by_key.remove(&put.key),
        }
        PutOutcome::Stored { version }
    }
}

impl MemoryState {
    /// See [`Documents::put`].
    pub fn put_documents(&mut self, puts: &[PutDocument]) -> Vec<PutOutcome> {
        let invariants = self.options.invariants;
        puts.iter().map(|put| self.documents.put(put, invariants)).collect()
    }

    /// See [`Documents::get`].
    pub fn documents(&self, keys: &[DocumentKey]) -> Vec<Option<Document>> {
        keys.iter().map(|key| self.documents.by_key.get(key).cloned()).collect()
    }

    /// See [`Documents::by_name`].
    pub fn documents_by_name(&self, list: &DocumentList) -> Vec<Document> {
        let key =
            |id: &Name| DocumentKey { kind: list.kind, namespace: list.namespace.clone(), id: id.clone() };
        let of_kind =
            self.documents.by_key.values().filter(|document| {
                document.key.kind == list.kind && document.key.namespace == list.namespace
            });
        let after = list.after.as_ref().map(key);
        let behind = of_kind.filter(|document| after.as_ref().is_none_or(|after| document.key > *after));
        behind.take(list.limit).cloned().collect()
    }

    /// See [`Documents::by_time`].
    pub fn documents_by_time(&self, list: &DueList) -> Vec<Document> {
        let from = match &list.after {
            Some((due, namespace, id)) => Bound::Excluded((list.kind, *due, namespace.clone(), id.clone())),
            None => Bound::Unbounded,
        };
        let timed = self.documents.by_time.range((from, Bound::Unbounded));
        let due = timed.filter(|(kind, due, ..)| *kind == list.kind && *due <= list.until);
        let keys = due.map(|(kind, _, namespace, id)| DocumentKey {
            kind: *kind,
            namespace: namespace.clone(),
            id: id.clone(),
        });
        keys.take(list.limit).map(|key| self.documents.by_key[&key].clone()).collect()
    }
}

#[async_trait]
impl Documents for MemoryStore {
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        Ok(self.lock()?.put_documents(puts))
    }

    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError> {
        Ok(self.lock()?.documents(keys))
    }

    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError> {
        Ok(self.lock()?.documents_by_name(&list))
    }

    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError> {
        Ok(self.lock()?.documents_by_time(&list))
    }
}

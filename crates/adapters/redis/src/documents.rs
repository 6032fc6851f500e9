//! Documents: a hash of all of a kind, and two indexes, by name and by time.

use async_trait::async_trait;
use tasklane_core::id::Name;
use tasklane_ports::{
    Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
    StoreError,
};

use crate::connect::Traffic;
use crate::error::unexpected;
use crate::layout::{self, ReplyValues};
use crate::script::SCRIPTS;
use crate::store::RedisStore;

/// Stands between namespace and id, and in no name: so names are in the order of both.
const BETWEEN: char = '\0';

#[async_trait]
impl Documents for RedisStore {
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(puts.len());
        for batch in PutDocument::batches(puts) {
            for of_kind in batch.chunk_by(|a, b| a.key.kind == b.key.kind) {
                outcomes.extend(self.put_batch(of_kind).await?);
            }
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError> {
        let mut documents = Vec::with_capacity(keys.len());
        for of_kind in keys.chunk_by(|a, b| a.kind == b.kind) {
            let mut command = redis::cmd("HMGET");
            command.arg(&self.shared().documents(of_kind[0].kind).values);
            for key in of_kind {
                command.arg(name_of(&key.namespace, key.id.as_str()));
            }
            let answer = self.send(self.shared().slot, Traffic::Query, &command).await?;
            let mut answer = ReplyValues::new(answer)?;
            for key in of_kind {
                let stored = answer.optional()?;
                documents.push(stored.map(|stored| document(key.clone(), &stored)).transpose()?);
            }
        }
        Ok(documents)
    }

    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError> {
        let after = list.after.as_ref().map_or("", Name::as_str);
        let from = format!("({}", name_of(&list.namespace, after));
        let until = format!("({}\u{1}", list.namespace);
        let names = &self.shared().documents(list.kind).names;
        self.listed(list.kind, names, [from.as_bytes(), until.as_bytes()], list.limit, 1).await
    }

    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError> {
        let from = match &list.after {
            Some((due, namespace, id)) => {
                let name = name_of(namespace, id.as_str());
                [b"(".as_slice(), &layout::time_key(*due), name.as_bytes()].concat()
            }
            None => b"-".to_vec(),
        };
        // A name begins with a letter or a sign, all below 255.
        let until = [b"(".as_slice(), &layout::time_key(list.until), &[0xff]].concat();
        let times = &self.shared().documents(list.kind).times;
        self.listed(list.kind, times, [&from, &until], list.limit, 9).await
    }
}

impl RedisStore {
    async fn put_batch(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        let keys = self.shared().documents(puts[0].key.kind);
        let keys = [&keys.values, &keys.names, &keys.times, &keys.version].map(String::as_str);
        let mut call = SCRIPTS.put_documents.call(keys.into_iter());
        for put in puts {
            call.arg(name_of(&put.key.namespace, put.key.id.as_str())).arg(&put.expected.to_be_bytes());
            match &put.content {
                Some(content) => {
                    let time = content.due.map(layout::time_key);
                    call.arg("put").arg(time.as_ref().map_or(&[][..], |time| time)).arg(&content.value);
                }
                None => _ = call.arg("remove").arg("").arg(""),
            }
        }
        let answer = self.run(&SCRIPTS.put_documents, self.shared().slot, Traffic::Lane, call).await?;
        let mut answer = ReplyValues::new(answer)?;
        let mut outcomes = Vec::with_capacity(puts.len());
        for _ in puts {
            let (written, version) = (answer.flag()?, layout::be_number(&answer.bytes()?)?);
            outcomes.push(if written {
                PutOutcome::Stored { version }
            } else {
                PutOutcome::Conflict { current: version }
            });
        }
        Ok(outcomes)
    }

    async fn listed(
        &self,
        kind: DocumentKind,
        index: &str,
        bounds: [&[u8]; 2],
        limit: usize,
        name_begins: usize,
    ) -> Result<Vec<Document>, StoreError> {
        let keys = [self.shared().documents(kind).values.as_str(), index];
        let mut call = SCRIPTS.documents.call(keys.into_iter());
        call.arg(bounds[0]).arg(bounds[1]).arg(limit).arg(name_begins);
        let answer = self.run(&SCRIPTS.documents, self.shared().slot, Traffic::Query, call).await?;
        let mut answer = ReplyValues::new(answer)?;
        let mut documents = Vec::with_capacity(answer.len() / 2);
        while !answer.is_empty() {
            let (name, stored) = (answer.bytes()?, answer.bytes()?);
            documents.push(document(key_of(kind, &name)?, &stored)?);
        }
        Ok(documents)
    }
}

pub(crate) fn name_of(namespace: &Name, id: &str) -> String {
    format!("{namespace}{BETWEEN}{id}")
}

fn key_of(kind: DocumentKind, name: &[u8]) -> Result<DocumentKey, StoreError> {
    let name = std::str::from_utf8(name).map_err(StoreError::corrupt)?;
    let (namespace, id) =
        name.split_once(BETWEEN).ok_or_else(|| unexpected("a document without a namespace"))?;
    let name = |text: &str| Name::new(text).map_err(StoreError::corrupt);
    Ok(DocumentKey { kind, namespace: name(namespace)?, id: name(id)? })
}

/// A document from its version, the size of its time, its time and its value.
pub(crate) fn document(key: DocumentKey, stored: &[u8]) -> Result<Document, StoreError> {
    let cut_off = || unexpected("a document cut off");
    let version = layout::be_number(stored)?;
    let rest = stored.get(8..).ok_or_else(cut_off)?;
    let (due, value) = match rest.split_first() {
        Some((0, value)) => (None, value),
        Some((_, rest)) => {
            let (time, value) = rest.split_first_chunk::<8>().ok_or_else(cut_off)?;
            (Some(layout::time_of(*time)), value)
        }
        None => return Err(cut_off()),
    };
    Ok(Document { key, version, due, value: value.to_vec() })
}

//! Documents.

use async_trait::async_trait;
use rusqlite::{Connection, Statement, params};
use tasklane_core::id::{Name, QueueKey};
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
    StoreError,
};

use crate::error::Failure;
use crate::load::queue_key;
use crate::requests::{Request, Size};
use crate::store::Sqlite;
use crate::write_state::WriteState;

/// `Documents::put`.
struct PutDocuments(Vec<PutDocument>);

impl Request for PutDocuments {
    type Response = Vec<PutOutcome>;

    fn size(&self) -> Size {
        Size { ops: self.0.len(), bytes: self.0.iter().map(PutDocument::bytes).sum() }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let mut outcomes = Vec::with_capacity(self.0.len());
        for put in &self.0 {
            let current = write_state.document_version(&put.key)?;
            outcomes.push(if current == put.expected {
                PutOutcome::Stored { version: write_state.put_document(&put.key, put.content.as_ref())? }
            } else {
                PutOutcome::Conflict { current }
            });
        }
        Ok(Ok(outcomes))
    }
}

#[async_trait]
impl Documents for Sqlite {
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(puts.len());
        for batch in PutDocument::batches(puts) {
            outcomes.extend(self.write(PutDocuments(batch.to_vec())).await?);
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError> {
        let keys = keys.to_vec();
        self.read(move |conn| keys.iter().map(|key| get(conn, key)).collect()).await
    }

    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError> {
        self.read(move |conn| by_name(conn, &list)).await
    }

    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError> {
        self.read(move |conn| by_time(conn, &list)).await
    }
}

fn get(conn: &Connection, key: &DocumentKey) -> Result<Option<Document>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT namespace, id, version, due, value FROM document WHERE kind = ?1 AND namespace = ?2 AND id = ?3",
    )?;
    let name = params![key.kind.code(), key.namespace.as_str(), key.id.as_str()];
    Ok(documents(&mut statement, key.kind, name)?.pop())
}

fn by_name(conn: &Connection, list: &DocumentList) -> Result<Vec<Document>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT namespace, id, version, due, value FROM document
         WHERE kind = ?1 AND namespace = ?2 AND id > ?3 ORDER BY id LIMIT ?4",
    )?;
    // No name is empty.
    let after = list.after.as_ref().map_or("", Name::as_str);
    let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
    documents(&mut statement, list.kind, params![list.kind.code(), list.namespace.as_str(), after, limit])
}

fn by_time(conn: &Connection, list: &DueList) -> Result<Vec<Document>, Failure> {
    let mut statement = conn.prepare_cached(
        "SELECT namespace, id, version, due, value FROM document
         WHERE kind = ?1 AND due <= ?2 AND (due, namespace, id) > (?3, ?4, ?5)
         ORDER BY due, namespace, id LIMIT ?6",
    )?;
    let (due, namespace, id) = match &list.after {
        Some((due, namespace, id)) => (due.as_micros(), namespace.as_str(), id.as_str()),
        None => (i64::MIN, "", ""),
    };
    let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
    let params = params![list.kind.code(), list.until.as_micros(), due, namespace, id, limit];
    documents(&mut statement, list.kind, params)
}

fn documents(
    statement: &mut Statement<'_>,
    kind: DocumentKind,
    params: impl rusqlite::Params,
) -> Result<Vec<Document>, Failure> {
    let mut found = statement.query(params)?;
    let mut documents = Vec::new();
    while let Some(row) = found.next()? {
        let QueueKey { namespace, queue: id } = queue_key(row, 0)?;
        documents.push(Document {
            key: DocumentKey { kind, namespace, id },
            version: row.get::<_, i64>(2)?.cast_unsigned(),
            due: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
            value: row.get(4)?,
        });
    }
    Ok(documents)
}

//! The port `Documents`.

use async_trait::async_trait;
use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
    StoreError,
};
use tokio_postgres::Row;

use crate::columns::Column;
use crate::error::unexpected;
use crate::rows::{column, name, number};
use crate::store::PostgresStore;

/// Most documents in one read by key: each may have 1 MiB.
const GET_MAX: usize = 1_000;

#[async_trait]
impl Documents for PostgresStore {
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(puts.len());
        for batch in PutDocument::batches(puts) {
            outcomes.extend(self.put_batch(batch).await?);
        }
        Ok(outcomes)
    }

    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError> {
        let mut documents = Vec::with_capacity(keys.len());
        for keys in keys.chunks(GET_MAX) {
            let (mut kinds, mut namespaces, mut ids) =
                (Column::smallints(), Column::texts(), Column::texts());
            for key in keys {
                kinds.smallint(i16::from(key.kind.code()));
                namespaces.text(key.namespace.as_str());
                ids.text(key.id.as_str());
            }
            let rows =
                self.database.read(&self.database.statements.documents, &[&kinds, &namespaces, &ids]).await?;
            let mut found = vec![None; keys.len()];
            for row in &rows {
                let at = usize::try_from(column::<i64>(row, 0)? - 1).map_err(unexpected)?;
                let key = keys.get(at).ok_or_else(|| unexpected("a document that was not asked for"))?;
                found[at] = Some(document(key.clone(), row, 1)?);
            }
            documents.extend(found);
        }
        Ok(documents)
    }

    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError> {
        // No name is empty.
        let after = list.after.as_ref().map_or("", Name::as_str);
        let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
        let kind = i16::from(list.kind.code());
        let statement = &self.database.statements.documents_by_name;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&kind, &list.namespace.as_str(), &after, &limit];
        documents(list.kind, &self.database.read(statement, &params).await?)
    }

    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError> {
        let (due, namespace, id) = match &list.after {
            Some((due, namespace, id)) => (due.as_micros(), namespace.as_str(), id.as_str()),
            None => (i64::MIN, "", ""),
        };
        let limit = i64::try_from(list.limit).unwrap_or(i64::MAX);
        let (kind, until) = (i16::from(list.kind.code()), list.until.as_micros());
        let statement = &self.database.statements.documents_by_time;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&kind, &until, &due, &namespace, &id, &limit];
        documents(list.kind, &self.database.read(statement, &params).await?)
    }
}

impl PostgresStore {
    async fn put_batch(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        let (mut kinds, mut namespaces, mut ids) = (Column::smallints(), Column::texts(), Column::texts());
        let (mut expected, mut dues, mut values) = (Column::bigints(), Column::bigints(), Column::byteas());
        for put in puts {
            kinds.smallint(i16::from(put.key.kind.code()));
            namespaces.text(put.key.namespace.as_str());
            ids.text(put.key.id.as_str());
            // No version is that high, so it is a conflict.
            expected.bigint(i64::try_from(put.expected).unwrap_or(i64::MAX));
            dues.maybe_bigint(put.content.as_ref().and_then(|content| content.due).map(Timestamp::as_micros));
            values.maybe_bytea(put.content.as_ref().map(|content| content.value.as_slice()));
        }
        let statement = &self.database.statements.put_documents;
        let row = self
            .database
            .query_one(statement, &[&kinds, &namespaces, &ids, &expected, &dues, &values])
            .await?;
        let answers: Vec<i64> = column(&row, 0)?;
        if answers.len() != puts.len() {
            return Err(unexpected("not one outcome for each put"));
        }
        let outcome = |answer: i64| match u64::try_from(answer) {
            Ok(version @ 1..) => PutOutcome::Stored { version },
            _ => PutOutcome::Conflict { current: answer.unsigned_abs() },
        };
        Ok(answers.into_iter().map(outcome).collect())
    }
}

/// Documents from columns with namespace, id, version, due and value.
fn documents(kind: DocumentKind, rows: &[Row]) -> Result<Vec<Document>, StoreError> {
    let document = |row: &Row| {
        let key = DocumentKey { kind, namespace: name(row, 0)?, id: name(row, 1)? };
        document(key, row, 2)
    };
    rows.iter().map(document).collect()
}

fn document(key: DocumentKey, row: &Row, at: usize) -> Result<Document, StoreError> {
    Ok(Document {
        key,
        version: number(row, at)?,
        due: column::<Option<i64>>(row, at + 1)?.map(Timestamp::from_micros),
        value: column(row, at + 2)?,
    })
}

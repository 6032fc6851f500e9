//! The last time that the store has seen: written once a minute while the clock is settled, compared with the
//! clock at a start.
//!
//! A server that starts long after it, or before it, may have a wrong clock, or may have been away for long:
//! the two look the same. So steps that cannot be undone wait for the clock to settle.

use std::sync::PoisonError;
use std::time::Duration;

use tasklane_core::clock_watch::Trust;
use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;
use tasklane_ports::{Content, DocumentKey, DocumentKind, Documents, PutDocument, StoreError};

use crate::clock;

use super::Node;

/// How often it is written.
const NOTE_EVERY: Duration = Duration::from_mins(1);

fn key() -> DocumentKey {
    let name = |text| Name::new(text).expect("a valid name");
    DocumentKey { kind: DocumentKind::Deployment, namespace: name("tasklane"), id: name("clock") }
}

/// The value of the document.
fn value_of(at: Timestamp) -> Vec<u8> {
    at.as_micros().to_string().into_bytes()
}

/// Back from [`value_of`].
fn time_of(value: &[u8]) -> Option<Timestamp> {
    str::from_utf8(value).ok()?.parse().ok().map(Timestamp::from_micros)
}

/// Compares the clock with the last time in the store. Call it before any decision by the clock.
pub async fn compare_with_store(documents: &dyn Documents) -> Result<(), StoreError> {
    let noted = documents.get(&[key()]).await?.pop().flatten();
    if let Some(at) = noted.and_then(|noted| time_of(&noted.value))
        && let Trust::Unsettled { left, why } = clock::started(at).trust
    {
        tracing::warn!("{why}: steps that cannot be undone wait for {left:?}");
    }
    Ok(())
}

impl Node {
    /// Writes the time, if the clock is settled and the last write is old enough.
    pub(super) async fn note_time(&self) -> Result<(), StoreError> {
        let clock = clock::now();
        let is_fresh = |at: Timestamp| clock.steady.since(at) < NOTE_EVERY;
        let noted_at = *self.0.noted_at.lock().unwrap_or_else(PoisonError::into_inner);
        if !clock.is_settled() || noted_at.is_some_and(is_fresh) {
            return Ok(());
        }
        let documents = &self.0.parts.documents;
        let noted = documents.get(&[key()]).await?.pop().flatten();
        let expected = noted.map_or(0, |noted| noted.version);
        let content = Some(Content { due: None, value: value_of(clock.wall) });
        // Another server was first and has written the same.
        documents.put(&[PutDocument { key: key(), expected, content }]).await?;
        *self.0.noted_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock.steady);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn the_document_of_the_clock_keeps_its_key_and_bytes() {
        let at = Timestamp::from_micros(1_800_000_000_000_001);
        check("clock", |golden| {
            let DocumentKey { namespace, id, .. } = key();
            golden.text("its name", format!("{namespace}/{id}"));
            let stored = golden.bytes("its value", &value_of(at));
            assert_eq!(time_of(&stored), Some(at));
        });
    }
}

//! The number of lanes of a deployment: all its servers and workers must agree, so the first start stores it.

use anyhow::{Result, bail};
use tasklane_core::id::Name;
use tasklane_ports::{Content, DocumentKey, DocumentKind, Documents, PutDocument, PutOutcome};

use crate::config::Config;

/// In a cluster, so that several servers can share the work.
const CLUSTER_LANES: u16 = 16;
/// Tries of a compare-and-set against changes of other servers.
const TRIES: usize = 10;

/// The number of lanes: the stored one, or the configured one if it is the first, or the only process can let it grow.
pub(crate) async fn agree(config: &Config, documents: &dyn Documents) -> Result<u16> {
    let key = key();
    let wanted = config.lanes.map(std::num::NonZeroU16::get);
    for _ in 0..TRIES {
        let stored = documents.get(std::slice::from_ref(&key)).await?.pop().flatten();
        let (expected, lanes) = match &stored {
            None => {
                let first = || if config.is_cluster() { CLUSTER_LANES } else { 1 };
                (0, wanted.unwrap_or_else(first))
            }
            Some(stored) => {
                let lanes = read(&stored.value)?;
                match wanted {
                    None => return Ok(lanes),
                    Some(wanted) if wanted == lanes => return Ok(lanes),
                    // Nobody else can have lanes of its own here.
                    Some(wanted) if wanted > lanes && !config.is_cluster() => (stored.version, wanted),
                    Some(wanted) => bail!(
                        "this deployment has {lanes} lanes, and `lanes` is {wanted}: set it to {lanes} or leave it out"
                    ),
                }
            }
        };
        let content = Some(Content { due: None, value: value_of(lanes) });
        let put = PutDocument { key: key.clone(), expected, content };
        if let [PutOutcome::Stored { .. }] = documents.put(&[put]).await?[..] {
            return Ok(lanes);
        }
    }
    bail!("other servers keep changing the number of lanes: start again")
}

fn key() -> DocumentKey {
    let name = |text| Name::new(text).expect("a valid name");
    DocumentKey { kind: DocumentKind::Deployment, namespace: name("tasklane"), id: name("lanes") }
}

/// The value of the document.
fn value_of(lanes: u16) -> Vec<u8> {
    lanes.to_string().into_bytes()
}

/// Back from [`value_of`].
fn read(value: &[u8]) -> Result<u16> {
    match str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
        Some(lanes) if lanes > 0 => Ok(lanes),
        _ => bail!("the stored number of lanes cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn the_document_of_the_lane_count_keeps_its_key_and_bytes() {
        check("lane_count", |golden| {
            let DocumentKey { namespace, id, .. } = key();
            golden.text("its name", format!("{namespace}/{id}"));
            let stored = golden.bytes("its value", &value_of(16));
            assert_eq!(read(&stored).unwrap(), 16);
        });
    }
}

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
    let name = |text| Name::new(text).expect("a valid name");
    let key = DocumentKey { kind: DocumentKind::Deployment, namespace: name("tasklane"), id: name("lanes") };
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
        let content = Some(Content { due: None, value: lanes.to_string().into_bytes() });
        let put = PutDocument { key: key.clone(), expected, content };
        if let [PutOutcome::Stored { .. }] = documents.put(&[put]).await?[..] {
            return Ok(lanes);
        }
    }
    bail!("other servers keep changing the number of lanes: start again")
}

fn read(value: &[u8]) -> Result<u16> {
    match str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
        Some(lanes) if lanes > 0 => Ok(lanes),
        _ => bail!("the stored number of lanes cannot be read"),
    }
}

//! Queues and their policies.

use std::collections::BTreeMap;

use tasklane_core::id::{LaneId, Name, QueueKey};
use tasklane_core::lane::{KeyInfo, KeyPosition};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_ports::{CountList, LoadQuery, PutPolicy, QueueCounts, StoreError};

use crate::request::FieldError;

use super::Node;
use super::submit::POLICY_FRESH;

/// A queue as the API shows it.
#[derive(Clone, Debug)]
pub struct QueueInfo {
    /// Its name and namespace.
    pub queue: QueueKey,
    /// Its policy.
    pub policy: VersionedPolicy,
    /// Its tasks by `Status::code`.
    pub counts: [u64; 8],
}

/// Why a policy was not written. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The policy is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// Another caller has changed it, or the store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Rows read together.
const PAGE: usize = 500;

impl Node {
    /// Queues of a namespace by name: queues that have tasks, and queues that have a policy.
    pub async fn queues(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<QueueInfo>, StoreError> {
        let mut queues = BTreeMap::<QueueKey, QueueInfo>::new();
        let fresh = |queue: &QueueKey| QueueInfo {
            queue: queue.clone(),
            policy: VersionedPolicy::default(),
            counts: [0; 8],
        };
        let wanted = |queue: &QueueKey| {
            queue.namespace == *namespace && after.as_ref().is_none_or(|after| queue.queue > *after)
        };
        for counts in self.all_counts().await?.into_iter().filter(|counts| wanted(&counts.queue)) {
            queues.entry(counts.queue.clone()).or_insert_with_key(fresh).counts = counts.by_status;
        }
        for (queue, policy) in self.all_policies().await?.into_iter().filter(|(queue, _)| wanted(queue)) {
            queues.entry(queue).or_insert_with_key(fresh).policy = policy;
        }
        Ok(queues.into_values().take(limit).collect())
    }

    /// One queue. A queue that was never used has the default policy and no tasks.
    pub async fn queue(&self, queue: &QueueKey) -> Result<QueueInfo, StoreError> {
        let policy = self.0.parts.store.policy(queue).await?;
        let counts = self.counts_of(queue).await?;
        Ok(QueueInfo { queue: queue.clone(), policy, counts })
    }

    /// The keys that the limits of a queue count now, behind a position.
    pub async fn keys(&self, queue: &QueueKey, after: Option<&KeyPosition>, limit: usize) -> Vec<KeyInfo> {
        self.0.parts.scheduler.keys(queue, after, limit).await
    }

    /// Changes a policy by compare-and-set of its version. Returns the new version when all servers use it.
    pub async fn put_policy(&self, put: PutPolicy) -> Result<u64, PolicyError> {
        self.0.options.limits.check_policy(&put.policy)?;
        self.bind(&put).await?;
        let (queue, policy) = (put.queue.clone(), put.policy.clone());
        let version = self.0.parts.store.put_policy(put).await?;
        self.0.queues.forget(&queue);
        self.0.parts.scheduler.policy_changed(&queue, &VersionedPolicy { version, policy }).await;
        if self.0.options.is_cluster {
            // Until then other servers may apply the policy that they have read before.
            tokio::time::sleep(POLICY_FRESH).await;
        }
        Ok(version)
    }

    /// The first task or the first policy of a queue decides whether it is spread.
    async fn bind(&self, put: &PutPolicy) -> Result<(), PolicyError> {
        let store = &self.0.parts.store;
        let current = store.policy(&put.queue).await?.version;
        if current != put.expected {
            let PutPolicy { queue, expected, .. } = put.clone();
            return Err(StoreError::PolicyConflict { queue, expected, current }.into());
        }
        let wanted = match &put.policy.spread {
            Some(key) => QueueBinding::Spread { lanes: self.0.options.lanes, key: key.clone() },
            None => self.lane_of(&put.queue),
        };
        let rule = match (store.bind_queue(&put.queue, &wanted).await?, &put.policy.spread) {
            (QueueBinding::Lane(_), None) => return Ok(()),
            (QueueBinding::Spread { key, .. }, Some(wanted)) if key == *wanted => return Ok(()),
            (QueueBinding::Lane(_), Some(_)) => {
                "must not be given: the queue is in use, and is not spread".to_owned()
            }
            (QueueBinding::Spread { key, .. }, _) => {
                format!("must be {key:?}: the queue is in use, spread by it")
            }
        };
        Err(FieldError::invalid("policy.spread", rule).into())
    }

    /// Tasks of all queues by state.
    pub async fn all_counts(&self) -> Result<Vec<QueueCounts>, StoreError> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|last: &QueueCounts| last.queue.clone());
            let page = self.0.parts.store.counts(CountList { after, limit: PAGE }).await?;
            let more = page.len() == PAGE;
            all.extend(page);
            if !more {
                return Ok(all);
            }
        }
    }

    async fn counts_of(&self, queue: &QueueKey) -> Result<[u64; 8], StoreError> {
        // The store lists the queues after a key: after the key just before this one comes this one, if it
        // has tasks.
        let list = CountList { after: key_before(queue), limit: 1 };
        let found = self.0.parts.store.counts(list).await?.pop();
        Ok(found.filter(|found| found.queue == *queue).map_or([0; 8], |found| found.by_status))
    }

    async fn all_policies(&self) -> Result<Vec<(QueueKey, VersionedPolicy)>, StoreError> {
        let mut policies = Vec::new();
        let mut after = 0;
        loop {
            let read = LaneRead::Policies { after };
            let load = LoadQuery { lane: LaneId(0), read, limit: PAGE, body_bytes_max: 0 };
            let LanePage::Policies { rows, revision, more } = self.0.parts.store.load(load).await? else {
                return Err(StoreError::corrupt("a request for policies returned another page"));
            };
            policies.extend(rows);
            if !more {
                return Ok(policies);
            }
            after = revision;
        }
    }
}

/// The greatest possible key before one.
fn key_before(key: &QueueKey) -> Option<QueueKey> {
    if let Some(queue) = name_before(&key.queue) {
        return Some(QueueKey::new(key.namespace.clone(), queue));
    }
    let namespace = name_before(&key.namespace)?;
    let last = char_before(u8::MAX)?.to_string().repeat(Name::LEN_MAX);
    Some(QueueKey::new(namespace, Name::new(&last).ok()?))
}

/// The greatest possible name before one.
fn name_before(name: &Name) -> Option<Name> {
    let (last, stem) = name.as_str().as_bytes().split_last()?;
    let stem = &name.as_str()[..stem.len()];
    // Without its last character, if that one is the least; else with the next lesser one, followed by the
    // greatest.
    let Some(lesser) = char_before(*last) else { return Name::new(stem).ok() };
    let greatest = char_before(u8::MAX)?.to_string();
    Name::new(&format!("{stem}{lesser}{}", greatest.repeat(Name::LEN_MAX - name.as_str().len()))).ok()
}

/// The greatest character of names that is less than one.
fn char_before(byte: u8) -> Option<char> {
    (0..byte.min(128)).rev().map(char::from).find(|c| Name::new(c.encode_utf8(&mut [0; 4])).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, queue: &str) -> QueueKey {
        QueueKey::new(Name::new(namespace).unwrap(), Name::new(queue).unwrap())
    }

    #[test]
    fn nothing_fits_between_a_key_and_the_one_before() {
        let z = |n| "z".repeat(n);
        assert_eq!(key_before(&key("n", "b")), Some(key("n", &format!("a{}", z(127)))));
        assert_eq!(key_before(&key("n", "q-")), Some(key("n", "q")));
        assert_eq!(key_before(&key("n", "A")), Some(key("n", &format!("@{}", z(127)))));
        assert_eq!(key_before(&key("n", &z(128))), Some(key("n", &format!("{}y", z(127)))));
        assert_eq!(key_before(&key("n-", "-")), Some(key("n", &z(128))));
        assert_eq!(key_before(&key("-", "-")), None);
    }
}

//! Policies and bindings of queues.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::id::{LaneId, QueueKey};
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueueBinding, QueuePolicy, Rate, RateLimit, Strategy, UniqueRule,
    VersionedPolicy, WhenFull, WhenReached,
};

use crate::conformance::fixture::{LANE, OTHER_LANE, name, queue};
use crate::conformance::{StoreEnv, pages};
use crate::{PutPolicy, Store, StoreError};

async fn put(store: &dyn Store, key: &QueueKey, expected: u64, weight: u32) -> Result<u64, StoreError> {
    let policy = QueuePolicy { weight, ..QueuePolicy::default() };
    store.put_policy(PutPolicy { queue: key.clone(), expected, policy }).await
}

/// 13: version 0 is the default.
pub async fn a_queue_without_a_policy_has_the_default_one(env: &dyn StoreEnv) {
    assert_eq!(env.store().policy(&queue("q")).await.unwrap(), VersionedPolicy::default());
}

/// 13: a change names the version that it replaces.
pub async fn a_policy_changes_by_compare_and_set(env: &dyn StoreEnv) {
    let store = env.store();
    let key = queue("q");
    assert!(matches!(
        put(&*store, &key, 1, 9).await,
        Err(StoreError::PolicyConflict { expected: 1, current: 0, .. })
    ));
    assert_eq!(put(&*store, &key, 0, 10).await.unwrap(), 1);
    assert_eq!(put(&*store, &key, 1, 11).await.unwrap(), 2);
    for expected in [0, 1, 3] {
        match put(&*store, &key, expected, 99).await {
            Err(StoreError::PolicyConflict { queue, expected: e, current: 2 }) => {
                assert_eq!((queue, e), (key.clone(), expected));
            }
            other => panic!("{other:?}"),
        }
    }
    let found = env.second().await.policy(&key).await.unwrap();
    assert_eq!((found.version, found.policy.weight), (2, 11));
    assert_eq!(store.policy(&queue("other")).await.unwrap().version, 0);
}

/// 13: a change whose answer was lost is repeated; then the stored policy shows whether it was made.
pub async fn a_change_of_unknown_outcome_is_settled_by_reading(env: &dyn StoreEnv) {
    let (store, other) = (env.store(), env.second().await);
    let key = queue("q");
    // It was not made: the repetition makes it. It was made: the repetition is a conflict, and it is there as sent.
    for repetition in [Ok(1), Err(1)] {
        let answer = put(&*store, &key, 0, 10).await.map_err(|error| match error {
            StoreError::PolicyConflict { expected: 0, current, .. } => current,
            other => panic!("{other}"),
        });
        assert_eq!(answer, repetition);
        let found = other.policy(&key).await.unwrap();
        assert_eq!((found.version, found.policy), (1, QueuePolicy { weight: 10, ..QueuePolicy::default() }));
    }
    // Another client's change was made instead: the version is the same, the content is not.
    assert_eq!(put(&*other, &key, 1, 20).await.unwrap(), 2);
    let lost = put(&*store, &key, 1, 30).await.unwrap_err();
    assert!(matches!(lost, StoreError::PolicyConflict { expected: 1, current: 2, .. }), "{lost}");
    let found = store.policy(&key).await.unwrap();
    assert_eq!((found.version, found.policy.weight), (2, 20));
}

/// 13: of several that saw the same version, one changes it.
pub async fn of_racing_changes_one_wins(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    for expected in 0..4 {
        let racers = (0..6_u32).map(|racer| {
            let store = Arc::clone(&handles[racer as usize % 2]);
            tokio::spawn(async move { put(&*store, &queue("q"), expected, racer).await.map(|_| racer) })
        });
        let answers: Vec<_> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
        let won: Vec<_> = answers.iter().flatten().copied().collect();
        let lost = answers.iter().filter(|a| matches!(a, Err(StoreError::PolicyConflict { .. }))).count();
        assert_eq!((won.len(), lost), (1, 5), "{answers:?}");
        let found = handles[0].policy(&queue("q")).await.unwrap();
        assert_eq!((found.version, found.policy.weight), (expected + 1, won[0]));
    }
}

/// 13: a policy comes back as it was put.
pub async fn all_fields_of_a_policy_are_kept(env: &dyn StoreEnv) {
    let store = env.store();
    let mut policy = QueuePolicy {
        paused: true,
        len_max: Some(u32::MAX),
        strategy: Strategy::ConsistentHash { when_full: WhenFull::Next },
        weight: 7,
        execution_timeout: Duration::from_micros(1_500),
        ..QueuePolicy::default()
    };
    policy.retry.max_retries = 0;
    policy.concurrency = [(None, WhenReached::Wait), (Some("{{ taskType }}"), WhenReached::CancelNewest)]
        .map(|(key, when_reached)| ConcurrencyLimit {
            key: key.map(str::to_owned),
            concurrency: Concurrency { limit: 5, when_reached },
        })
        .to_vec();
    policy.rate = vec![RateLimit {
        key: Some("{{ metadata.customer }}".to_owned()),
        rate: Rate { limit: 10, per: Duration::from_mins(1), burst: 3 },
    }];
    policy.unique =
        Some(UniqueRule { key: "{{ payload }}".to_owned(), hold_for: Some(Duration::from_secs(3)) });
    let put = PutPolicy { queue: queue("q"), expected: 0, policy: policy.clone() };
    store.put_policy(put).await.unwrap();
    assert_eq!(store.policy(&queue("q")).await.unwrap(), VersionedPolicy { version: 1, policy });
}

/// 12, 13: each changed queue once, with its present policy; whichever lane asks.
pub async fn changed_policies_are_read_after_a_revision(env: &dyn StoreEnv) {
    let store = env.store();
    let (rows, start) = pages::all_policies(&*store, LANE, 0, 10).await;
    assert_eq!(rows, []);
    let keys: Vec<_> = (0..5).map(|n| queue(&format!("q{n}"))).collect();
    for (key, weight) in keys.iter().zip(1..) {
        put(&*store, key, 0, weight).await.unwrap();
    }
    put(&*store, &keys[1], 1, 50).await.unwrap();
    let expected =
        [(&keys[0], 1, 1), (&keys[2], 1, 3), (&keys[3], 1, 4), (&keys[4], 1, 5), (&keys[1], 2, 50)];
    let mut reached = start;
    for (lane, limit) in [(LANE, 1), (OTHER_LANE, 2), (LANE, 100)] {
        let (rows, revision) = pages::all_policies(&*store, lane, start, limit).await;
        let rows: Vec<_> = rows.iter().map(|(key, p)| (key, p.version, p.policy.weight)).collect();
        assert_eq!(rows, expected, "{limit}");
        reached = revision;
    }
    assert_eq!(pages::all_policies(&*store, LANE, reached, 10).await, (Vec::new(), reached));
    put(&*store, &keys[2], 1, 60).await.unwrap();
    let (rows, next) = pages::all_policies(&*store, LANE, reached, 10).await;
    assert!(rows.len() == 1 && rows[0].0 == keys[2] && next > reached);
}

/// 13: a binding is never changed.
pub async fn the_first_binding_counts(env: &dyn StoreEnv) {
    let store = env.store();
    let lane = QueueBinding::Lane(LaneId(u16::MAX));
    let spread = QueueBinding::Spread { lanes: 16, key: "{metadata.customer}".to_owned() };
    assert_eq!(store.bind_queue(&queue("a"), &lane).await.unwrap(), lane);
    assert_eq!(store.bind_queue(&queue("b"), &spread).await.unwrap(), spread);
    let second = env.second().await;
    assert_eq!(second.bind_queue(&queue("a"), &spread).await.unwrap(), lane);
    assert_eq!(second.bind_queue(&queue("b"), &lane).await.unwrap(), spread);
    let elsewhere = QueueKey::new(name("other"), name("a"));
    assert_eq!(store.bind_queue(&elsewhere, &spread).await.unwrap(), spread);
}

/// 13: all who bind a queue at once get the same binding.
pub async fn of_racing_bindings_one_counts(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    let racers = (0..8_u16).map(|racer| {
        let store = Arc::clone(&handles[usize::from(racer % 2)]);
        tokio::spawn(async move { store.bind_queue(&queue("q"), &QueueBinding::Lane(LaneId(racer))).await })
    });
    let told: Vec<_> = join_all(racers).await.into_iter().map(|told| told.unwrap().unwrap()).collect();
    assert!(told.iter().all(|binding| *binding == told[0]), "{told:?}");
}

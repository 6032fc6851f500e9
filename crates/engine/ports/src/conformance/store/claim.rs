//! Claiming lanes.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::command::InboxRow;
use tasklane_core::commit::{Group, RecordKey};
use tasklane_core::id::{CommitNo, Epoch, LaneId};
use tasklane_core::status::Status::Scheduled;

use crate::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, cancel, changing, create, inserting, owner_id, record, state, task,
    view,
};
use crate::conformance::{StoreEnv, pages, skipped};
use crate::{ClaimLane, LaneHead, StoreError, TaskView};

fn claim(lane: LaneId, owner: u128, seen: u64) -> ClaimLane {
    ClaimLane { lane, owner: owner_id(owner), seen: Epoch(seen), failures: 0 }
}

/// 4: epochs begin at 0.
pub async fn a_lane_that_nobody_claimed_has_epoch_zero(env: &dyn StoreEnv) {
    let nobody = LaneHead { epoch: Epoch(0), owner: None, commit: CommitNo(0), failures: 0 };
    assert_eq!(env.store().lane_head(LANE).await.unwrap(), nobody);
    create(&*env.store(), [task(1).build()]).await;
    assert_eq!(env.store().lane_head(LANE).await.unwrap(), nobody);
}

/// 4: every handle sees a claim once it has returned.
pub async fn a_claim_raises_the_epoch_and_names_the_owner(env: &dyn StoreEnv) {
    let store = env.store();
    for (seen, failures) in [(0, 0), (1, 7), (2, 0)] {
        let owner = owner_id(u128::from(seen));
        let claim = ClaimLane { lane: LANE, owner, seen: Epoch(seen), failures };
        let epoch = store.claim_lane(claim).await.unwrap();
        assert_eq!(epoch, Epoch(seen + 1));
        let head = env.second().await.lane_head(LANE).await.unwrap();
        assert_eq!(head, LaneHead { epoch, owner: Some(owner), commit: CommitNo(0), failures });
    }
}

/// 4: however many claim at once, one wins, and the others are refused.
pub async fn of_racing_claims_one_wins(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    for seen in 0..4 {
        let racers = (0..8_usize).map(|racer| {
            let store = Arc::clone(&handles[racer % 2]);
            let claim = claim(LANE, (u128::from(seen) << 8) | racer as u128, seen);
            tokio::spawn(async move { (claim.owner, store.claim_lane(claim).await) })
        });
        let mut won = Vec::new();
        for racer in join_all(racers).await {
            match racer.unwrap() {
                (owner, Ok(epoch)) => won.push((owner, epoch)),
                (_, Err(StoreError::ClaimLost { lane: LANE, current })) => {
                    assert_eq!(current, Epoch(seen + 1));
                }
                (_, Err(error)) => panic!("{error}"),
            }
        }
        let head = handles[1].lane_head(LANE).await.unwrap();
        assert_eq!(won, [(head.owner.unwrap(), Epoch(seen + 1))]);
    }
}

/// 4: neither an older nor a newer epoch than the stored one can be claimed from.
pub async fn a_claim_that_has_seen_another_epoch_is_lost(env: &dyn StoreEnv) {
    let store = env.store();
    for epoch in 0..3 {
        store.claim_lane(claim(LANE, u128::from(epoch), epoch)).await.unwrap();
    }
    let before = store.lane_head(LANE).await.unwrap();
    for seen in [0, 1, 2, 4, 5] {
        let lost = store.claim_lane(claim(LANE, 99, seen)).await.unwrap_err();
        assert!(matches!(lost, StoreError::ClaimLost { lane: LANE, current: Epoch(3) }), "{seen}: {lost}");
    }
    assert_eq!(store.lane_head(LANE).await.unwrap(), before);
}

/// 4: a claim whose answer was lost is repeated; once its owner has committed, the lane is claimed.
pub async fn a_claim_is_repeated_while_its_owner_has_not_committed(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let again = ClaimLane { lane: LANE, owner: owner.owner, seen: Epoch(0), failures: 0 };
    assert_eq!(env.second().await.claim_lane(again).await.unwrap(), Epoch(1));
    let other = ClaimLane { owner: owner_id(99), ..again };
    assert!(matches!(store.claim_lane(other).await, Err(StoreError::ClaimLost { .. })));
    owner.commit([]).await;
    assert!(matches!(store.claim_lane(again).await, Err(StoreError::ClaimLost { current: Epoch(1), .. })));
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(1));
}

/// 5: a commit that was under way when the lane was claimed is fenced, and nothing of it is ever seen.
pub async fn a_claim_fences_a_commit_under_way(env: &dyn StoreEnv) {
    let store = env.store();
    let (first, second) = (task(1).build(), task(2).build());
    create(&*store, [first.clone()]).await;
    store.post(LANE, &[cancel(first.id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut old = Owner::claim(&store, LANE).await;
    let mut assign = changing(first.id, &first.state(), &[Scheduled]);
    assign.inbox_done = vec![inbox[0].seq];
    assign.records = vec![record("rate", Some(b"moved"))];
    let insert = inserting(second.clone());
    let stalled = env.stalled_commit(old.next([assign, insert])).await;

    let new = Owner::claim(&store, LANE).await;
    let unchanged = async |when: &str| {
        assert_eq!(state(&*store, first.id).await, first.state(), "{when}");
        assert_eq!(store.tasks(&[second.id]).await.unwrap(), [None], "{when}");
        assert_eq!(pages::all_inbox(&*store, LANE, 10).await, inbox, "{when}");
        assert_eq!(pages::all_records(&*store, LANE, 10).await, [], "{when}");
        assert_eq!(store.lane_head(LANE).await.unwrap().epoch, new.epoch, "{when}");
        assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(0), "{when}");
    };
    unchanged("after the claim").await;
    // A store that cut the connection to fence it cannot give the reason.
    match stalled.release().await {
        Err(StoreError::Fenced { .. } | StoreError::Unavailable { .. }) => {}
        other => panic!("the old owner got {other:?}"),
    }
    unchanged("after the old owner went on").await;
    let mut new = new;
    assert_eq!(new.commit([changing(first.id, &first.state(), &[Scheduled])]).await, [APPLIED]);
}

/// 5: a commit that was stopped in the middle of its writes is applied or refused when the claim returns;
/// commits that the old owner sends meanwhile are settled too, or fenced.
pub async fn a_claim_waits_for_a_commit_that_is_being_written(env: &dyn StoreEnv) {
    let store = env.store();
    let (first, second) = (task(1).build(), task(2).build());
    create(&*store, [first.clone()]).await;
    store.post(LANE, &[cancel(first.id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut old = Owner::claim(&store, LANE).await;
    let mut assign = changing(first.id, &first.state(), &[Scheduled]);
    assign.inbox_done = vec![inbox[0].seq];
    assign.records = vec![record("rate", Some(b"moved"))];
    let commit = old.next([assign, inserting(second.clone())]);
    let late = old.next([Group { records: vec![record("late", Some(b"1"))], ..Group::default() }]);
    let Some(held) = env.held_commit(commit).await else {
        let why = "a commit is one step here, and cannot be stopped inside";
        return skipped("a_claim_waits_for_a_commit_that_is_being_written", why);
    };
    let shown = async || {
        let tasks = store.tasks(&[first.id, second.id]).await.unwrap();
        let inbox = pages::all_inbox(&*store, LANE, 10).await;
        (tasks, inbox, pages::all_records(&*store, LANE, 10).await, store.lane_head(LANE).await.unwrap())
    };
    let written = |shown: &(Vec<Option<TaskView>>, Vec<InboxRow>, Vec<_>, LaneHead)| {
        let (tasks, inbox, records, _) = shown;
        let parts = [
            tasks[0].as_ref().unwrap().row.state != first.state(),
            tasks[1].is_some(),
            inbox.is_empty(),
            records.iter().any(|(key, _): &(RecordKey, Vec<u8>)| key.key == "rate"),
        ];
        assert!(parts.iter().all(|part| *part == parts[0]), "half of a commit: {shown:?}");
        parts[0]
    };
    assert!(!written(&shown().await), "an uncommitted write is visible");

    let mut claiming = tokio::spawn({
        let store = Arc::clone(&store);
        async move { Owner::claim(&store, LANE).await }
    });
    let waits = tokio::time::timeout(WHILE_HELD, &mut claiming).await;
    assert!(waits.is_err(), "the claim returned, and the commit can still go on");
    let sending_late = tokio::spawn({
        let old = old.clone();
        async move { old.send(&late).await }
    });
    tokio::time::sleep(WHILE_HELD).await;
    let answer = held.release().await;
    let mut new = claiming.await.unwrap();
    let after = shown().await;
    match answer {
        Ok(outcomes) => {
            assert_eq!(outcomes.len(), 2);
            assert!(written(&after), "it was acknowledged");
        }
        Err(StoreError::Fenced { .. } | StoreError::Unavailable { .. }) => assert!(!written(&after)),
        Err(other) => panic!("the old owner got {other}"),
    }
    let (epoch, owner) = (new.epoch, Some(new.owner));
    assert_eq!(after.3, LaneHead { epoch, owner, commit: CommitNo(0), failures: 0 });
    let late = sending_late.await.unwrap();
    assert_eq!(late.is_ok(), after.2.iter().any(|(key, _)| key.key == "late"), "{late:?}");
    assert_eq!(shown().await, after, "something became visible after the claim");
    assert!(matches!(old.send(&old.numbered(3, [])).await, Err(StoreError::Fenced { .. })));
    assert_eq!(new.commit([]).await, []);
}

/// Long enough for a claim that does not wait to have returned.
const WHILE_HELD: Duration = Duration::from_millis(200);

/// 4: a new owner finds everything, and counts its own commits.
pub async fn a_claim_keeps_what_the_lane_holds(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    store.post(LANE, &[cancel(new.id)]).await.unwrap();
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new.id, &new.state(), &[Scheduled]);
    group.records = vec![record("rate", Some(b"1"))];
    owner.commit([group]).await;
    let before = view(&*store, new.id).await;
    let mut owner = Owner::claim(&store, LANE).await;
    assert_eq!(view(&*store, new.id).await, before);
    assert_eq!(pages::all_inbox(&*store, LANE, 10).await.len(), 1);
    assert_eq!(pages::all_records(&*store, LANE, 10).await.len(), 1);
    assert_eq!(owner.commit([]).await, []);
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(1));
}

/// 4: a claim of one lane does not touch another.
pub async fn lanes_are_claimed_apart(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let mut other = Owner::claim(&store, OTHER_LANE).await;
    assert_eq!((owner.epoch, other.epoch), (Epoch(1), Epoch(1)));
    owner.commit([]).await;
    Owner::claim(&store, LANE).await;
    other.commit([]).await;
    assert_eq!(store.lane_head(OTHER_LANE).await.unwrap().epoch, Epoch(1));
}

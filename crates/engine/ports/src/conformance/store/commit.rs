//! Commits as a whole: fences and numbers.

use std::sync::Arc;

use futures::future::join_all;
use tasklane_core::commit::{Group, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{CommitNo, Epoch, Seq, TaskId};
use tasklane_core::status::Status::{Cancelled, Dispatched, Running, Scheduled};

use crate::conformance::fixture::{
    APPLIED, LANE, Owner, cancel, changing, create, created, inserting, inserting_assigned, owner_id, record,
    state, submit, task, tasks, view,
};
use crate::conformance::{StoreEnv, pages};
use crate::{Store, StoreError};

/// 6: an owner that was superseded writes nothing more.
pub async fn stale_epoch_is_fenced(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut old = Owner::claim(&store, LANE).await;
    old.commit([]).await;
    let current = Owner::claim(&env.second().await, LANE).await;
    let group = changing(new.id, &new.state(), &[Scheduled]);
    // Also a repetition of its last commit, and one under the number that the new owner would use.
    for number in [1, 2] {
        let fenced = old.send(&old.numbered(number, [group.clone()])).await.unwrap_err();
        let (held, stored) = (old.epoch, current.epoch);
        assert!(
            matches!(fenced, StoreError::Fenced { lane: LANE, held: h, current: c } if h == held && c == stored),
            "{fenced}"
        );
    }
    assert_eq!(state(&*store, new.id).await, new.state());
}

/// 6: the epoch alone is not enough, nor is an epoch that is still to come.
pub async fn another_owner_is_fenced(env: &dyn StoreEnv) {
    let store = env.store();
    let owner = Owner::claim(&store, LANE).await;
    let other = Owner { owner: owner_id(99), ..owner.clone() };
    assert!(matches!(other.send(&other.numbered(1, [])).await, Err(StoreError::Fenced { .. })));
    let early = Owner { epoch: Epoch(2), ..owner.clone() };
    assert!(matches!(early.send(&early.numbered(1, [])).await, Err(StoreError::Fenced { .. })));
    assert_eq!(owner.send(&owner.numbered(1, [])).await.unwrap(), []);
}

/// 6: no claim, no commit.
pub async fn nobody_commits_to_a_lane_that_was_not_claimed(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    owner.lane = crate::conformance::fixture::OTHER_LANE;
    for epoch in [0, 1] {
        owner.epoch = Epoch(epoch);
        assert!(matches!(owner.send(&owner.numbered(1, [])).await, Err(StoreError::Fenced { .. })));
    }
}

/// 6: number 0 is none; a number left out or gone by is refused, and nothing is written.
pub async fn numbers_begin_at_one_and_leave_none_out(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let group = changing(new.id, &new.state(), &[Scheduled]);
    let refused = async |owner: &Owner, number, last| {
        let error = owner.send(&owner.numbered(number, [group.clone()])).await.unwrap_err();
        let expected = matches!(error, StoreError::OutOfOrder { lane: LANE, number: n, last: l }
            if n == CommitNo(number) && l == CommitNo(last));
        assert!(expected, "{error}");
    };
    refused(&owner, 0, 0).await;
    refused(&owner, 2, 0).await;
    owner.commit([]).await;
    owner.commit([]).await;
    for number in [0, 1, 4, u64::from(u32::MAX)] {
        refused(&owner, number, 2).await;
    }
    assert_eq!(state(&*store, new.id).await, new.state());
    assert_eq!(owner.commit([group]).await, [APPLIED]);
}

async fn mixed_commit(store: &Arc<dyn Store>) -> (Owner, Vec<Group>, Vec<TaskId>) {
    let known = tasks([1, 2, 3]);
    create(&**store, known.clone()).await;
    let owner = Owner::claim(store, LANE).await;
    let mut cancelled = changing(known[0].id, &known[0].state(), &[Cancelled]);
    cancelled.records = vec![record("a", Some(b"1"))];
    let wrong = changing(known[0].id, &known[0].state(), &[Scheduled]);
    let full = task(7).len_max(1).build();
    let groups = vec![
        cancelled,
        wrong,
        changing(task(99).id(), &known[0].state(), &[Scheduled]),
        inserting(task(2).build()),
        inserting(task(2).fingerprint(1, 77).build()),
        inserting(full),
        inserting(task(4).build()),
        inserting_assigned(task(5).build()),
        changing(known[1].id, &known[1].state(), &[Scheduled]),
        Group { records: vec![record("b", Some(b"2"))], ..Group::default() },
    ];
    (owner, groups, vec![known[0].id, known[1].id, known[2].id, task(4).id(), task(5).id(), task(7).id()])
}

fn check_mixed(outcomes: &[GroupOutcome]) {
    let refused = |outcome| GroupOutcome::NotCreated(outcome);
    let numbers: Vec<Seq> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            GroupOutcome::Applied { seq } => *seq,
            GroupOutcome::NotCreated(_) | GroupOutcome::Mismatch { .. } => None,
        })
        .collect();
    assert!(numbers.len() == 2 && numbers[0] < numbers[1], "{numbers:?}");
    let found =
        Some(tasklane_core::status::Version { status: Cancelled, ..tasklane_core::status::Version::NEW });
    let expected = [
        APPLIED,
        GroupOutcome::Mismatch { found },
        GroupOutcome::Mismatch { found: None },
        refused(SubmitOutcome::Duplicate),
        refused(SubmitOutcome::RequestIdReused),
        refused(SubmitOutcome::QueueFull),
        GroupOutcome::Applied { seq: Some(numbers[0]) },
        GroupOutcome::Applied { seq: Some(numbers[1]) },
        APPLIED,
        APPLIED,
    ];
    assert_eq!(outcomes, expected);
}

/// 7, 8: every kind of outcome is kept for the repetition, over another handle too.
pub async fn a_repeated_commit_answers_the_first_outcomes(env: &dyn StoreEnv) {
    let store = env.store();
    let (mut owner, groups, _) = mixed_commit(&store).await;
    let commit = owner.next(groups);
    let outcomes = owner.send(&commit).await.unwrap();
    check_mixed(&outcomes);
    for handle in [store, env.second().await] {
        assert_eq!(handle.commit(&commit).await.unwrap(), outcomes);
    }
}

/// 7: what happened since the first time is not undone, and nothing is written twice.
pub async fn a_repeated_commit_changes_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    let (mut owner, groups, ids) = mixed_commit(&store).await;
    let commit = owner.next(groups);
    owner.send(&commit).await.unwrap();
    create(&*store, [task(50).build()]).await;
    store.post(LANE, &[cancel(ids[1])]).await.unwrap();
    let before = store.tasks(&ids).await.unwrap();
    let arrived = pages::all_arrivals(&*store, LANE, Seq(0), 100).await.unwrap();
    let counts = pages::all_counts(&*store, 10).await;
    owner.send(&commit).await.unwrap();
    assert_eq!(store.tasks(&ids).await.unwrap(), before);
    assert_eq!(pages::all_arrivals(&*store, LANE, Seq(0), 100).await.unwrap().0, arrived.0);
    assert_eq!(pages::all_counts(&*store, 10).await, counts);
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(1));
    assert_eq!(owner.commit([]).await, [], "and the next number follows");
}

/// 6, 7: a commit and its repetition at the same moment, over two handles, apply once and answer the same.
pub async fn a_commit_racing_with_its_repetition_applies_once(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    let (mut owner, groups, ids) = mixed_commit(&handles[0]).await;
    let commit = owner.next(groups);
    let racers = (0..6).map(|racer| {
        let (store, commit) = (Arc::clone(&handles[racer % 2]), commit.clone());
        tokio::spawn(async move { store.commit(&commit).await })
    });
    let answers: Vec<_> = join_all(racers).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    check_mixed(&answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let found = handles[0].tasks(&ids).await.unwrap();
    assert_eq!(found.iter().flatten().count(), 5);
}

/// 6: an owner is not bound to a connection.
pub async fn a_commit_over_another_handle_goes_on(env: &dyn StoreEnv) {
    let (store, second) = (env.store(), env.second().await);
    let new = task(1).build();
    create(&*second, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new.id, &[Scheduled]).await;
    let mut owner = owner.over(&second);
    owner.advance(new.id, &[Dispatched]).await;
    let mut owner = owner.over(&store);
    owner.advance(new.id, &[Running]).await;
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(3));
}

/// 6: an empty commit is one.
pub async fn a_commit_without_groups_counts(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    assert_eq!(owner.commit([]).await, []);
    assert_eq!(owner.send(&owner.numbered(1, [])).await.unwrap(), []);
    assert_eq!(owner.commit([Group::default()]).await, [APPLIED]);
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(2));
}

/// 6: the stated capabilities hold, for inserts and for changes.
pub async fn a_commit_as_large_as_the_store_takes_is_written(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let per_group = inserting_assigned(task(0).build()).ops();
    let count = (store.capabilities().ops_max / per_group).clamp(1, 500);
    let new = tasks(0..count as u64);
    let inserts: Vec<_> = new.iter().cloned().map(inserting_assigned).collect();
    assert_eq!(owner.commit(inserts).await.len(), count);
    let mut changes = Vec::new();
    for task in &new {
        changes.push(changing(task.id, &state(&*store, task.id).await, &[Dispatched, Running]));
    }
    assert_eq!(owner.commit(changes).await, vec![APPLIED; count]);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, 100).await.len(), count);
}

/// 1, 6: submitters and an owner on the same lane do not disturb each other.
pub async fn submits_and_commits_at_once_lose_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    let second = env.second().await;
    let known = tasks(0..20);
    create(&*store, known.clone()).await;
    let submitting = tokio::spawn(async move {
        for number in 100..140 {
            assert!(created(&submit(&*second, tasks([number])).await[0]).is_some());
            second.post(LANE, &[cancel(task(number).id())]).await.unwrap();
        }
    });
    let mut owner = Owner::claim(&store, LANE).await;
    for (known, number) in known.iter().zip(200..) {
        let assign = changing(known.id, &known.state(), &[Scheduled]);
        let outcomes = owner.commit([assign, inserting(task(number).build())]).await;
        assert!(outcomes.iter().all(|o| matches!(o, GroupOutcome::Applied { .. })), "{outcomes:?}");
    }
    submitting.await.unwrap();
    let (arrived, _) = pages::all_arrivals(&*store, LANE, Seq(0), 7).await.unwrap();
    assert_eq!(arrived.len(), 20 + 40 + 40 + 20);
    for known in known {
        assert_eq!(view(&*store, known.id).await.row.state.status, Scheduled);
    }
}

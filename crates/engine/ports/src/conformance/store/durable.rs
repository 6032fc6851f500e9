//! Data that outlives a process.

use tasklane_core::commit::{Group, GroupOutcome};
use tasklane_core::id::{CommitNo, LaneId, Seq};
use tasklane_core::policy::{QueueBinding, QueuePolicy};
use tasklane_core::status::Status::{Cancelled, Dispatched, Running, Scheduled, Success};
use tasklane_core::task::AttemptOutcome;

use crate::conformance::fixture::{
    APPLIED, LANE, Owner, at, cancel, changing, create, ended, inserting, queue, record, result, submit,
    task, tasks,
};
use crate::conformance::{StoreEnv, pages};
use crate::{PutPolicy, Store, TaskFilter};

/// Everything that can be read of the lane and its queue.
async fn everything(store: &dyn Store) -> String {
    let ids: Vec<_> = (0..20).map(|n| task(n).id()).collect();
    let mut attempts = Vec::new();
    for id in &ids {
        attempts.push(pages::all_attempts(store, *id, 10).await);
    }
    let mut pages_of_tasks = Vec::new();
    for read in [pages::LINES, pages::DELAYED, pages::IN_FLIGHT, pages::expiring(at(1_000_000))] {
        pages_of_tasks.push(pages::all_tasks(store, LANE, read, 100).await);
    }
    let all = (
        (store.tasks(&ids).await.unwrap(), attempts, pages_of_tasks),
        store.lane_head(LANE).await.unwrap(),
        pages::all_inbox(store, LANE, 100).await,
        pages::all_records(store, LANE, 100).await,
        pages::all_arrivals(store, LANE, Seq(0), 100).await.unwrap(),
        pages::all_policies(store, LANE, 0, 100).await,
        store.policy(&queue("q")).await.unwrap(),
        store.bind_queue(&queue("q"), &QueueBinding::Lane(LaneId(99))).await.unwrap(),
        pages::all_counts(store, 10).await,
        pages::all_listed(store, TaskFilter::default(), 100).await,
    );
    format!("{all:#?}")
}

/// 14: every answered write.
pub async fn what_was_acknowledged_survives_a_crash(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [
        task(1).start_timeout(500).build(),
        task(2).delay(100).build(),
        task(3).build(),
        task(4).payload_bytes(100_000).build(),
    ];
    store.bind_queue(&queue("q"), &QueueBinding::Lane(LANE)).await.unwrap();
    let policy = QueuePolicy { paused: true, ..QueuePolicy::default() };
    store.put_policy(PutPolicy { queue: queue("q"), expected: 0, policy }).await.unwrap();
    create(&*store, new.clone()).await;
    store.post(LANE, &[cancel(new[0].id), cancel(new[1].id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new[2].id, &new[2].state(), &[Scheduled, Dispatched, Running, Success]);
    group.inbox_done = vec![inbox[0].seq];
    group.records = vec![record("a", Some(b"1"))];
    let change = group.change.as_mut().unwrap();
    change.ended = vec![ended(1, AttemptOutcome::Lost)];
    change.result = Some(result(0, 1_000));
    owner
        .commit([group, changing(new[3].id, &new[3].state(), &[Scheduled]), inserting(task(5).build())])
        .await;
    let before = everything(&*store).await;
    drop((owner, store));
    let store = env.reopen().await;
    assert_eq!(everything(&*store).await, before);
}

/// 6, 14: the fence outlives the process too, and an owner elsewhere goes on.
pub async fn an_owner_goes_on_after_a_crash(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks([1])).await;
    let old = Owner::claim(&store, LANE).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(task(1).id(), &[Scheduled]).await;
    drop(store);
    let store = env.reopen().await;
    assert!(old.over(&store).send(&old.numbered(1, [])).await.is_err());
    let mut owner = owner.over(&store);
    owner.advance(task(1).id(), &[Dispatched]).await;
    assert_eq!(store.lane_head(LANE).await.unwrap().commit, CommitNo(2));
}

/// 7, 14: a repetition gives the answer that was lost with the connection.
pub async fn a_repeated_commit_after_a_crash_answers_the_first_outcomes(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks([1, 2])).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let groups = [
        changing(task(1).id(), &task(1).build().state(), &[Cancelled]),
        inserting(task(2).build()),
        inserting(task(3).build()),
        Group::default(),
    ];
    let commit = owner.next(groups);
    let outcomes = owner.send(&commit).await.unwrap();
    assert!(matches!(outcomes[2], GroupOutcome::Applied { seq: Some(_) }), "{outcomes:?}");
    assert_eq!(outcomes[3], APPLIED);
    drop((owner, store));
    let store = env.reopen().await;
    assert_eq!(store.commit(&commit).await.unwrap(), outcomes);
}

/// 10, 14: a reader that goes on after the crash misses nothing.
pub async fn arrival_numbers_rise_over_a_crash(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks([1])).await;
    store.post(LANE, &[cancel(task(1).id())]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut owner = Owner::claim(&store, LANE).await;
    // The highest number is that of a row which is gone.
    owner.commit([Group { inbox_done: vec![inbox[0].seq], ..Group::default() }]).await;
    let (_, reached) = pages::all_arrivals(&*store, LANE, Seq(0), 10).await.unwrap();
    drop((owner, store));
    let store = env.reopen().await;
    let seq = create(&*store, tasks([2])).await[0];
    assert!(seq > reached && seq > inbox[0].seq, "{seq} after {reached}");
    assert_eq!(pages::all_arrivals(&*store, LANE, reached, 10).await.unwrap().0.len(), 1);
}

/// 14: after an orderly close the data is there, and the old handle refuses calls.
pub async fn a_closed_store_answers_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks([1])).await;
    store.close().await.unwrap();
    assert!(store.lane_head(LANE).await.is_err());
    assert!(store.tasks(&[task(1).id()]).await.is_err());
    drop(store);
    let store = env.reopen().await;
    assert_eq!(submit(&*store, tasks([1])).await, [tasklane_core::commit::SubmitOutcome::Duplicate]);
}

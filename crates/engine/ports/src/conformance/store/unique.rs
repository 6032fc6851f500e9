//! Unique keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use tasklane_core::commit::SubmitOutcome::{self, Duplicate, Exists, QueueFull, RequestIdReused};
use tasklane_core::commit::{Group, GroupOutcome};
use tasklane_core::id::{QueueKey, Seq, TaskId};
use tasklane_core::status::Status::{
    self, Cancelled, Dispatched, Failed, Pending, Retrying, Running, Scheduled, Success,
};
use tasklane_core::task::NewTask;
use tasklane_core::time::Timestamp;

use crate::Store;
use crate::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, TaskBuilder, at, changing, create, created, inserting,
    inserting_assigned, name, record, submit, task, view,
};
use crate::conformance::{StoreEnv, pages};

/// A task with the unique key of most cases.
fn unique(number: u64) -> TaskBuilder {
    task(number).unique("report")
}

fn exists(task: &NewTask) -> SubmitOutcome {
    Exists { task: task.id }
}

fn refused(outcome: SubmitOutcome) -> GroupOutcome {
    GroupOutcome::NotCreated(outcome)
}

fn is_created(outcome: &GroupOutcome) -> bool {
    matches!(outcome, GroupOutcome::Applied { seq: Some(_) })
}

/// Nothing is stored of a task.
async fn check_absent(store: &dyn Store, id: TaskId) {
    assert_eq!(store.tasks(&[id]).await.unwrap(), [None]);
}

const TO_SUCCESS: [Status; 4] = [Scheduled, Dispatched, Running, Success];

/// 20: in whatever state the task is; nothing of the refused task is stored.
pub async fn a_unique_key_is_held_by_an_unfinished_task(env: &dyn StoreEnv) {
    let store = env.store();
    let (first, second) = (unique(1).build(), unique(2).build());
    create(&*store, [first.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let counts = pages::all_counts(&*store, 10).await;
    for handle in [Arc::clone(&store), env.second().await] {
        assert_eq!(submit(&*handle, [second.clone()]).await, [exists(&first)]);
    }
    check_absent(&*store, second.id).await;
    assert_eq!(pages::all_counts(&*store, 10).await, counts);
    assert_eq!(pages::all_arrivals(&*store, LANE, Seq(0), 10).await.unwrap().0.len(), 1);
    for next in [Scheduled, Dispatched, Running, Retrying, Pending, Scheduled] {
        owner.advance(first.id, &[next]).await;
        assert_eq!(submit(&*store, [second.clone()]).await, [exists(&first)], "{next}");
    }
    // Also a task that would hold the key until a time.
    let timed = task(3).unique_until("report", at(10_000)).build();
    assert_eq!(submit(&*store, [timed]).await, [exists(&first)]);
    create(&*store, [task(4).build(), task(5).unique("other").build()]).await;
}

/// 20: however it ends, and the next one holds the key as the first did.
pub async fn a_unique_key_is_free_once_its_holder_is_final(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let ways: [&[Status]; 4] = [&TO_SUCCESS, &[Failed], &[Cancelled], &[Scheduled, Cancelled]];
    for (way, number) in ways.into_iter().zip((0..).step_by(2)) {
        let (holder, other) = (unique(number).build(), unique(number + 1).build());
        create(&*store, [holder.clone()]).await;
        assert_eq!(submit(&*store, [other]).await, [exists(&holder)], "{way:?}");
        owner.advance(holder.id, way).await;
    }
    create(&*store, [unique(100).build()]).await;
}

/// 20: to the microsecond, and no matter whether the task has finished.
pub async fn a_unique_key_is_held_until_a_time(env: &dyn StoreEnv) {
    let store = env.store();
    let first = task(1).created(0).unique_until("report", at(500)).build();
    create(&*store, [first.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let before = Timestamp::from_micros(at(500).as_micros() - 1);
    // Also for tasks that were created before its time: clocks differ.
    for created_at in [at(-1_000), at(0), before] {
        let new = unique(2).created_at(created_at).build();
        assert_eq!(submit(&*store, [new]).await, [exists(&first)], "{created_at}");
    }
    owner.advance(first.id, &TO_SUCCESS).await;
    assert_eq!(submit(&*store, [unique(2).created_at(before).build()]).await, [exists(&first)]);
    let second = task(3).created(500).unique_until("report", at(900)).build();
    create(&*store, [second.clone()]).await;
    // The time of the present holder counts, not the time of the holder before.
    assert_eq!(submit(&*store, [unique(4).created(899).build()]).await, [exists(&second)]);
    // After its time the key is free, although the task has not finished.
    let third = unique(5).created(900).build();
    create(&*store, [third.clone()]).await;
    assert_eq!(submit(&*store, [unique(6).created(100_000).build()]).await, [exists(&third)]);
    // A time that has passed from the start holds nothing.
    owner.advance(third.id, &[Cancelled]).await;
    create(&*store, [task(7).created(1_000).unique_until("report", at(1_000)).build()]).await;
    create(&*store, [task(8).created(1_000).unique_until("report", at(-5)).build()]).await;
    create(&*store, [unique(9).created(1_000).build()]).await;
}

/// 20: a step of the clock makes a time neither longer nor shorter: both are counted without it.
pub async fn a_unique_key_is_judged_without_the_steps_of_the_clock(env: &dyn StoreEnv) {
    let store = env.store();
    let first = task(1).created(0).unique_until("report", at(500)).build();
    create(&*store, [first.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    // The clock went forward by an hour, then back by two.
    for (shift, held) in [(3_600_000, 3_600_499), (-3_600_000, -3_599_501)] {
        let new = unique(2).created(held).shift(shift).build();
        assert_eq!(submit(&*store, [new.clone()]).await, [exists(&first)], "{shift}");
        assert_eq!(owner.commit([inserting(new)]).await, [refused(exists(&first))], "{shift}");
    }
    let after = unique(2).created(3_600_500).shift(3_600_000).build();
    let outcomes = owner.commit([inserting(after)]).await;
    assert!(is_created(&outcomes[0]), "{outcomes:?}");
}

/// 20: other queues, namespaces and lanes have keys of their own, even if the joined texts are the same.
pub async fn a_unique_key_belongs_to_a_queue_of_a_lane(env: &dyn StoreEnv) {
    let store = env.store();
    let keys = [
        ("default", "q", "report"),
        ("default", "r", "report"),
        ("other", "q", "report"),
        ("default", "q", "q/report"),
        ("q", "default", "report"),
        ("a", "b", "c"),
        ("a", "bc", ""),
        ("ab", "c", ""),
    ];
    let numbered = |from: u64| -> Vec<_> {
        let of = |namespace, queue| QueueKey::new(name(namespace), name(queue));
        let new = keys.iter().zip(from..);
        new.map(|((namespace, queue, key), n)| task(n).in_queue(of(namespace, queue)).unique(key).build())
            .collect()
    };
    let first = numbered(10);
    create(&*store, first.clone()).await;
    let elsewhere = TaskBuilder::new(OTHER_LANE, 1).unique("report").build();
    create(&*store, [elsewhere.clone()]).await;
    assert_eq!(submit(&*store, numbered(20)).await, first.iter().map(exists).collect::<Vec<_>>());
    let again = TaskBuilder::new(OTHER_LANE, 2).unique("report").build();
    assert_eq!(submit(&*store, [again]).await, [exists(&elsewhere)]);
    // A task that ends frees its own key.
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(first[1].id, &[Cancelled]).await;
    let outcomes = submit(&*store, numbered(30)).await;
    let free: Vec<_> = outcomes.iter().map(|outcome| created(outcome).is_some()).collect();
    assert_eq!(free, [false, true, false, false, false, false, false, false]);
}

/// 20: text of users; any difference makes another key.
pub async fn any_text_is_a_unique_key(env: &dyn StoreEnv) {
    let store = env.store();
    let long = "x".repeat(1_000);
    let keys =
        ["", " ", "a", "A", "a ", "é", "e\u{301}", "a\0", "a\0b", "+", "-", "'\"%_\\\r\n", "漢字🦀", &long];
    let new: Vec<_> = keys.iter().zip(0..).map(|(key, n)| task(n).unique(key).build()).collect();
    create(&*store, new.clone()).await;
    let timed = keys.iter().zip(100..).map(|(key, n)| task(n).unique_until(key, at(9)).build());
    let outcomes = submit(&*store, timed.collect::<Vec<_>>()).await;
    assert_eq!(outcomes, new.iter().map(exists).collect::<Vec<_>>());
}

/// 20: as if they had come one after the other.
pub async fn tasks_of_a_batch_see_the_unique_keys_of_those_before(env: &dyn StoreEnv) {
    let store = env.store();
    let batch = [
        unique(1).build(),
        unique(2).build(),
        task(3).unique("other").build(),
        task(4).build(),
        unique(1).build(),
        unique(5).created(1).build(),
        task(6).created(0).unique_until("timed", at(10)).build(),
        task(7).created(9).unique("timed").build(),
        task(8).created(10).unique("timed").build(),
        task(9).created(11).unique("timed").build(),
    ];
    let outcomes = submit(&*store, batch.clone()).await;
    let refused: Vec<_> = outcomes.into_iter().map(|o| Some(o).filter(|o| created(o).is_none())).collect();
    let expected = [
        None,
        Some(exists(&batch[0])),
        None,
        None,
        Some(Duplicate),
        Some(exists(&batch[0])),
        None,
        Some(exists(&batch[6])),
        None,
        Some(exists(&batch[8])),
    ];
    assert_eq!(refused, expected);
}

/// 2, 20: also for the holder of the key itself.
pub async fn a_known_id_is_told_before_a_held_unique_key(env: &dyn StoreEnv) {
    let store = env.store();
    let plain = task(2).build();
    create(&*store, [unique(1).build(), plain.clone()]).await;
    let batch = [
        unique(1).build(),
        unique(1).fingerprint(1, 77).build(),
        task(1).build(),
        unique(2).build(),
        unique(2).fingerprint(1, 77).build(),
        unique(1).len_max(0).build(),
    ];
    let expected = [Duplicate, RequestIdReused, Duplicate, Duplicate, RequestIdReused, Duplicate];
    assert_eq!(submit(&*store, batch.clone()).await, expected);
    let mut owner = Owner::claim(&store, LANE).await;
    let groups: Vec<_> = batch.into_iter().map(inserting).collect();
    assert_eq!(owner.commit(groups).await, expected.map(refused));
    // A duplicate takes no key.
    assert_eq!(submit(&*store, [task(2).unique("other").build()]).await, [Duplicate]);
    create(&*store, [task(3).unique("other").build()]).await;
}

/// 3, 20: both refuse the task.
pub async fn a_held_unique_key_is_told_before_a_full_queue(env: &dyn StoreEnv) {
    let store = env.store();
    let holder = unique(1).build();
    create(&*store, [holder.clone()]).await;
    let batch = [unique(2).len_max(1).build(), task(3).unique("other").len_max(1).build()];
    assert_eq!(submit(&*store, batch.clone()).await, [exists(&holder), QueueFull]);
    let mut owner = Owner::claim(&store, LANE).await;
    let outcomes = owner.commit(batch.map(inserting_assigned)).await;
    assert_eq!(outcomes, [refused(exists(&holder)), refused(QueueFull)]);
}

/// 20: neither a task that a full queue refuses nor a task whose change is wrong.
pub async fn a_refused_task_takes_no_unique_key(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let full = unique(1).len_max(0).build();
    assert_eq!(submit(&*store, [full.clone()]).await, [QueueFull]);
    let mut wrong = inserting_assigned(unique(2).build());
    wrong.change.as_mut().unwrap().path = [].into_iter().collect();
    let outcomes = owner.commit([inserting(full), wrong]).await;
    assert_eq!(outcomes, [refused(QueueFull), GroupOutcome::Mismatch { found: None }]);
    // A held key comes before a wrong change too.
    let holder = unique(3).build();
    create(&*store, [holder.clone()]).await;
    let mut wrong = inserting_assigned(unique(4).build());
    wrong.change.as_mut().unwrap().path = [].into_iter().collect();
    assert_eq!(owner.commit([wrong]).await, [refused(exists(&holder))]);
}

/// 8, 20: an owner's insert, with an assignment or without.
pub async fn an_insert_with_a_held_unique_key_skips_its_group(env: &dyn StoreEnv) {
    let store = env.store();
    let holder = unique(1).build();
    create(&*store, [holder.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let groups = [inserting(unique(2).build()), inserting_assigned(unique(3).build())]
        .map(|group| Group { records: vec![record("a", Some(b"1"))], ..group });
    let mut outcomes =
        owner.commit(groups.into_iter().chain([inserting(task(4).build())]).collect::<Vec<_>>()).await;
    assert!(is_created(&outcomes.pop().unwrap()));
    assert_eq!(outcomes, [refused(exists(&holder)), refused(exists(&holder))]);
    for number in [2, 3] {
        check_absent(&*store, task(number).id()).await;
    }
    assert_eq!(pages::all_records(&*store, LANE, 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, 10).await, []);
    // Tasks that an owner inserts hold their keys against submits.
    let (waiting, assigned) = (task(5).unique("b").build(), task(6).unique_until("c", at(10)).build());
    let outcomes = owner.commit([inserting(waiting.clone()), inserting_assigned(assigned.clone())]).await;
    assert!(outcomes.iter().all(is_created), "{outcomes:?}");
    let batch = [task(7).unique("b").build(), task(8).unique("c").build()];
    assert_eq!(submit(&*store, batch).await, [exists(&waiting), exists(&assigned)]);
}

/// 8, 20: a group that ends the holder frees the key for the next, and a group that takes it holds it.
pub async fn groups_see_the_unique_keys_of_those_before(env: &dyn StoreEnv) {
    let store = env.store();
    let holder = unique(1).build();
    create(&*store, [holder.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(holder.id, &[Scheduled]).await;
    let assigned = view(&*store, holder.id).await.row.state;
    let next = unique(4).build();
    let ended_at_once = task(7).unique("other").build();
    let outcomes = owner
        .commit([
            inserting(unique(2).build()),
            // The expectation is wrong, so the task does not end.
            changing(holder.id, &holder.state(), &[Cancelled]),
            inserting(unique(3).build()),
            changing(holder.id, &assigned, &[Dispatched, Running, Success]),
            inserting_assigned(next.clone()),
            inserting(unique(5).build()),
            inserting_assigned(unique(6).build()),
            Group {
                insert: Some(Box::new(ended_at_once.clone())),
                ..changing(ended_at_once.id, &ended_at_once.state(), &[Cancelled])
            },
            inserting(task(8).unique("other").build()),
            inserting(task(9).unique("other").build()),
        ])
        .await;
    let expected = [
        Some(refused(exists(&holder))),
        Some(GroupOutcome::Mismatch { found: Some(assigned.version()) }),
        Some(refused(exists(&holder))),
        Some(APPLIED),
        None,
        Some(refused(exists(&next))),
        Some(refused(exists(&next))),
        None,
        None,
        Some(refused(exists(&task(8).build()))),
    ];
    let outcomes: Vec<_> = outcomes.into_iter().map(|o| Some(o).filter(|o| !is_created(o))).collect();
    assert_eq!(outcomes, expected);
    assert_eq!(submit(&*store, [unique(10).build()]).await, [exists(&next)]);
    // One commit after the other.
    owner.advance(next.id, &[Cancelled]).await;
    assert!(is_created(&owner.commit([inserting(unique(11).build())]).await[0]));
}

/// 7, 20: although another task holds the key since, over another handle and after a crash.
pub async fn a_repeated_commit_names_the_same_holder(env: &dyn StoreEnv) {
    let store = env.store();
    let holder = unique(1).build();
    create(&*store, [holder.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let commit = owner.next([
        inserting(unique(2).build()),
        inserting(unique(3).build()),
        changing(holder.id, &holder.state(), &[Cancelled]),
        inserting_assigned(unique(4).build()),
        inserting(unique(5).build()),
    ]);
    let outcomes = owner.send(&commit).await.unwrap();
    assert_eq!(outcomes[..3], [refused(exists(&holder)), refused(exists(&holder)), APPLIED]);
    assert!(is_created(&outcomes[3]));
    assert_eq!(outcomes[4], refused(exists(&task(4).build())));
    for handle in [Arc::clone(&store), env.second().await] {
        assert_eq!(handle.commit(&commit).await.unwrap(), outcomes);
    }
    drop((owner, store));
    let store = env.reopen().await;
    assert_eq!(store.commit(&commit).await.unwrap(), outcomes);
    for number in [2, 3, 5] {
        check_absent(&*store, task(number).id()).await;
    }
}

/// 19, 20: also before the key's time has passed.
pub async fn a_forgotten_task_holds_no_unique_key(env: &dyn StoreEnv) {
    let store = env.store();
    let timed = |number| task(number).unique_until("timed", at(100_000)).build();
    let new = [unique(1).build(), timed(2)];
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    // Not finished, so not forgotten.
    store.retire(&[], &[new[0].id, new[1].id]).await.unwrap();
    assert_eq!(submit(&*store, [unique(3).build(), timed(4)]).await, [exists(&new[0]), exists(&new[1])]);
    for new in &new {
        owner.advance(new.id, &[Cancelled]).await;
    }
    assert_eq!(submit(&*store, [timed(4)]).await, [exists(&new[1])]);
    store.retire(&[], &[new[0].id, new[1].id]).await.unwrap();
    // The same requests are new, and hold none of their earlier keys: they may want another key, or none.
    let again = task(1).unique("other").build();
    create(&*store, [again.clone(), task(2).build()]).await;
    create(&*store, [unique(3).build(), timed(4)]).await;
    assert_eq!(submit(&*store, [task(5).unique("other").build()]).await, [exists(&again)]);
    assert_eq!(submit(&*store, [unique(5).build()]).await, [exists(&task(3).build())]);
}

/// 19, 20: the key goes only with the task that holds it.
pub async fn forgetting_leaves_a_unique_key_that_another_has_taken(env: &dyn StoreEnv) {
    let store = env.store();
    let first = [unique(1).build(), task(2).unique_until("timed", at(10)).build()];
    create(&*store, first.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    for first in &first {
        owner.advance(first.id, &[Cancelled]).await;
    }
    let second = [unique(3).build(), task(4).created(10).unique_until("timed", at(100_000)).build()];
    create(&*store, second.clone()).await;
    for _ in 0..2 {
        store.retire(&[], &[first[0].id, first[1].id]).await.unwrap();
        let wanted = [unique(5).build(), task(6).created(10).unique("timed").build()];
        assert_eq!(submit(&*store, wanted).await, [exists(&second[0]), exists(&second[1])]);
    }
    // In one call with its successor, in either order.
    owner.advance(second[0].id, &[Cancelled]).await;
    let third = unique(7).build();
    create(&*store, [third.clone()]).await;
    owner.advance(third.id, &[Cancelled]).await;
    create(&*store, [unique(8).build()]).await;
    store.retire(&[], &[third.id, second[0].id]).await.unwrap();
    assert_eq!(submit(&*store, [unique(9).build()]).await, [exists(&task(8).build())]);
    // A task that was forgotten, and is created again without the key, does not hold it.
    create(&*store, [task(3).build()]).await;
    owner.advance(task(3).id(), &[Cancelled]).await;
    store.retire(&[], &[task(3).id()]).await.unwrap();
    assert_eq!(submit(&*store, [unique(9).build()]).await, [exists(&task(8).build())]);
}

/// 18, 20: until the key's time has passed.
pub async fn a_stripped_task_keeps_its_unique_key(env: &dyn StoreEnv) {
    let store = env.store();
    let timed = task(1).unique_until("timed", at(500)).build();
    create(&*store, [timed.clone(), unique(2).build()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    for id in [timed.id, task(2).id()] {
        owner.advance(id, &[Cancelled]).await;
        store.retire(&[id], &[]).await.unwrap();
    }
    assert_eq!(submit(&*store, [task(3).created(499).unique("timed").build()]).await, [exists(&timed)]);
    create(&*store, [unique(4).build(), task(3).created(500).unique("timed").build()]).await;
    // Forgotten later, as any other.
    let timed = task(5).created(0).unique_until("again", at(500)).build();
    create(&*store, [timed.clone()]).await;
    owner.advance(timed.id, &[Cancelled]).await;
    store.retire(&[timed.id], &[]).await.unwrap();
    store.retire(&[], &[timed.id]).await.unwrap();
    create(&*store, [task(6).created(1).unique("again").build()]).await;
}

/// 20: all others get the id of the created task, however many clients submit and however often.
pub async fn of_racing_submits_with_a_unique_key_one_is_created(env: &dyn StoreEnv) {
    const KEYS: u64 = 8;
    let handles = [env.store(), env.second().await];
    let racers = (0..16).map(|racer: usize| {
        let store = Arc::clone(&handles[racer % 2]);
        // Not all in the same order, so that locks taken in the order of the batch would meet.
        let mut keys: Vec<u64> = (0..KEYS).collect();
        keys.rotate_left(racer % 8);
        tokio::spawn(async move {
            let new: Vec<_> = keys
                .iter()
                .map(|key| task(racer as u64 * KEYS + key).unique(&key.to_string()).build())
                .collect();
            let outcomes = submit(&*store, new.clone()).await;
            keys.into_iter().zip(new.into_iter().zip(outcomes)).collect::<Vec<_>>()
        })
    });
    let answers: Vec<_> = join_all(racers).await.into_iter().flat_map(|answers| answers.unwrap()).collect();
    let mut holders = BTreeMap::new();
    for (key, (new, outcome)) in &answers {
        if created(outcome).is_some() {
            assert_eq!(holders.insert(key, new.id), None, "key {key} was taken twice");
        }
    }
    assert_eq!(holders.len() as u64, KEYS);
    for (key, (_, outcome)) in &answers {
        assert!(
            created(outcome).is_some() || *outcome == Exists { task: holders[key] },
            "{key}: {outcome:?}"
        );
    }
    let (arrived, _) = pages::all_arrivals(&*handles[0], LANE, Seq(0), 3).await.unwrap();
    assert_eq!(arrived.len() as u64, KEYS);
}

/// 20: in a batch as large as the store takes.
pub async fn many_unique_keys_are_taken_at_once(env: &dyn StoreEnv) {
    let store = env.store();
    let new = |number: u64, key: u64| task(number).unique(&format!("key {key}")).build();
    let per_group = inserting_assigned(new(0, 0)).ops();
    let count = (store.capabilities().ops_max / per_group).clamp(1, 1_000) as u64;
    let first: Vec<_> = (0..count).map(|n| new(n, n)).collect();
    create(&*store, first.clone()).await;
    let told: Vec<_> = first.iter().map(exists).collect();
    let again: Vec<_> = (0..count).map(|n| new(10_000 + n, n)).collect();
    assert_eq!(submit(&*store, again.clone()).await, told);
    let mut owner = Owner::claim(&store, LANE).await;
    let groups: Vec<_> = again.iter().cloned().map(inserting_assigned).collect();
    let told: Vec<_> = told.into_iter().map(refused).collect();
    assert_eq!(owner.commit(groups.clone()).await, told);
    let ends: Vec<_> = first.iter().map(|task| changing(task.id, &task.state(), &[Cancelled])).collect();
    assert_eq!(owner.commit(ends).await, vec![APPLIED; first.len()]);
    assert!(owner.commit(groups).await.iter().all(is_created));
    let ids: Vec<_> = first.iter().map(|task| task.id).collect();
    store.retire(&[], &ids).await.unwrap();
    let third: Vec<_> = (0..count).map(|n| new(20_000 + n, n)).collect();
    assert_eq!(submit(&*store, third).await, again.iter().map(exists).collect::<Vec<_>>());
}

/// 14, 20: held keys stay held, and free keys stay free.
pub async fn unique_keys_survive_a_crash(env: &dyn StoreEnv) {
    let store = env.store();
    let keys = ["held", "timed", "inserted", "free", "forgotten", "taken"];
    let timed = task(2).unique_until("timed", at(500)).build();
    let submitted = [
        task(1).unique("held").build(),
        timed.clone(),
        task(4).unique("free").build(),
        task(5).unique_until("forgotten", at(500)).build(),
        task(6).unique("taken").build(),
    ];
    create(&*store, submitted).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let inserted = task(3).unique("inserted").build();
    assert!(is_created(&owner.commit([inserting_assigned(inserted)]).await[0]));
    for number in [2, 4, 5, 6] {
        owner.advance(task(number).id(), &[Cancelled]).await;
    }
    create(&*store, [task(7).unique("taken").build()]).await;
    store.retire(&[], &[task(5).id()]).await.unwrap();
    drop((owner, store));
    let store = env.reopen().await;
    let wanted: Vec<_> =
        keys.iter().zip(10..).map(|(key, n)| task(n).created(1).unique(key).build()).collect();
    let outcomes = submit(&*store, wanted).await;
    let told: Vec<_> = outcomes.into_iter().map(|o| Some(o).filter(|o| created(o).is_none())).collect();
    let holder = |number| Some(exists(&task(number).build()));
    assert_eq!(told, [holder(1), holder(2), holder(3), None, None, holder(7)]);
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(task(1).id(), &[Cancelled]).await;
    create(&*store, [task(20).unique("held").build(), task(21).created(500).unique("timed").build()]).await;
}

//! Tasks that finished long ago lose their data, and later are forgotten.

use std::sync::Arc;

use futures::future::join_all;
use tasklane_core::commit::SubmitOutcome::{Duplicate, RequestIdReused};
use tasklane_core::commit::{Group, GroupOutcome};
use tasklane_core::id::{Seq, TaskId};
use tasklane_core::read::{Arrival, LaneRead};
use tasklane_core::status::Status::{
    self, Cancelled, Dispatched, Failed, Retrying, Running, Scheduled, Success,
};
use tasklane_core::task::{AttemptOutcome, NewTask};
use tasklane_core::time::Timestamp;

use super::query::check_counts;
use crate::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, TaskBuilder, at, cancel, changing, create, created, ended, inserting,
    result, submit, task, tasks, view,
};
use crate::conformance::{StoreEnv, pages};
use crate::{ExpiredQuery, ExpiredTasks, QueueCounts, Store, TaskFilter};

/// A task with everything that it can have.
fn rich(number: u64) -> TaskBuilder {
    task(number).start_timeout(60_000).with(|_, body| {
        body.metadata = [("team".to_owned(), "search".to_owned())].into();
        body.parent = Some(task(1_000).id());
        body.schedule = Some("nightly".to_owned());
    })
}

/// Ends a task that was never touched, at some time, with a result and an attempt before its last.
fn ending(new: &NewTask, steps: &[Status], finished: i64) -> Group {
    let mut group = changing(new.id, &new.state(), steps);
    let change = group.change.as_mut().unwrap();
    change.state.finished_at = Some(at(finished));
    change.ended = vec![ended(1, AttemptOutcome::Lost)];
    change.result = Some(result(0, 100));
    group
}

const WAYS: [&[Status]; 3] = [&[Scheduled, Dispatched, Running, Success], &[Failed], &[Scheduled, Cancelled]];

/// Ends tasks at a time, in one way or another.
async fn end(owner: &mut Owner, new: &[NewTask], finished: i64) {
    let groups: Vec<_> =
        new.iter().zip(WAYS.iter().cycle()).map(|(new, way)| ending(new, way, finished)).collect();
    assert_eq!(owner.commit(groups).await, vec![APPLIED; new.len()]);
}

/// Tasks that finished before the first time are stripped, before the second forgotten.
fn bounds(finished_before: i64, forget_before: i64, limit: usize) -> ExpiredQuery {
    let (finished_before, forget_before) = (at(finished_before), at(forget_before));
    ExpiredQuery { finished_before, forget_before, after: None, limit }
}

fn ids(tasks: &[NewTask]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

/// The ids in the order in which `expired` finds them.
fn oldest_first(tasks: &[NewTask]) -> Vec<TaskId> {
    let mut order: Vec<(Timestamp, TaskId)> = tasks.iter().map(|task| (task.created_at, task.id)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, id)| id).collect()
}

fn by_name(text: &str) -> TaskFilter {
    TaskFilter { name: Some(text.to_owned()), ..TaskFilter::default() }
}

/// Filters that look into the body of [`rich`] number 1.
fn body_filters() -> [TaskFilter; 4] {
    let filter = TaskFilter::default;
    [
        by_name("task 1"),
        TaskFilter { parent: Some(task(1_000).id()), ..filter() },
        TaskFilter { schedule: Some("nightly".to_owned()), ..filter() },
        TaskFilter { metadata: vec![("team".to_owned(), "search".to_owned())], ..filter() },
    ]
}

/// 16: by the time at which they finished, to the microsecond; a task to forget is not listed to be stripped.
pub async fn expired_tasks_are_told_by_when_they_finished(env: &dyn StoreEnv) {
    let store = env.store();
    assert_eq!(store.expired(bounds(1_000, 1_000, 10)).await.unwrap(), ExpiredTasks::default());
    let new: Vec<_> = (0..6).map(|n| task(n).created(i64::try_from(n).unwrap()).build()).collect();
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    // In another order than they were created. The last is left alone, the one before it is at a worker.
    for (new, finished) in new.iter().zip([400, 100, 300, 200]) {
        end(&mut owner, std::slice::from_ref(new), finished).await;
    }
    owner.advance(new[4].id, &[Scheduled]).await;
    let id = |n: usize| new[n].id;
    for (finished_before, forget_before, strip, forget) in [
        (100, 100, vec![], vec![]),
        (101, 100, vec![id(1)], vec![]),
        (301, 201, vec![id(2)], vec![id(1), id(3)]),
        (1_000, 0, vec![id(0), id(1), id(2), id(3)], vec![]),
        (0, 1_000, vec![], vec![id(0), id(1), id(2), id(3)]),
    ] {
        let found = store.expired(bounds(finished_before, forget_before, 100)).await.unwrap();
        assert_eq!(
            found,
            ExpiredTasks { strip, forget, ..ExpiredTasks::default() },
            "{finished_before} {forget_before}"
        );
    }
    let before = store.tasks(&ids(&new)).await.unwrap();
    pages::all_expired(&*store, bounds(1_000, 1_000, 1)).await;
    assert_eq!(store.tasks(&ids(&new)).await.unwrap(), before, "looking changes nothing");
}

/// 16: a child is not named by itself, and a task that may have children is named as a composite.
pub async fn children_do_not_expire_by_themselves(env: &dyn StoreEnv) {
    let store = env.store();
    let composite = task(1).with(|_, body| body.composite = true).build();
    let child = task(2).with(|_, body| {
        body.parent = Some(task(1).id());
        body.child_name = Some("extract".to_owned());
    });
    let new =
        vec![composite, child.build(), task(3).with(|_, body| body.parent = Some(task(1).id())).build()];
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, &new, 100).await;
    let child = view(&*store, new[1].id).await.row.state.child_of.unwrap();
    assert_eq!((child.composite, child.name.as_str()), (new[0].id, "extract"));
    for forget_before in [0, 1_000] {
        let found = store.expired(bounds(1_000, forget_before, 10)).await.unwrap();
        assert_eq!(found.composites, [new[0].id]);
        let mut due = [found.strip, found.forget].concat();
        due.sort_unstable();
        let mut expected = [new[0].id, new[2].id];
        expected.sort_unstable();
        assert_eq!(due, expected, "{forget_before}");
    }
    store.retire(&[], &[new[1].id]).await.unwrap();
    assert_eq!(store.tasks(&[new[1].id]).await.unwrap(), [None], "it is forgotten when that is asked for");
}

/// 12, 19: over all lanes, page by page, however they came into the store; no other's, and no retired one.
pub async fn children_are_listed_by_their_parent_until_they_are_retired(env: &dyn StoreEnv) {
    let store = env.store();
    let parents = [task(1_000).id(), task(1_001).id()];
    let child = |lane, n: u64| {
        // Of one parent, of the other, of none in turn; several have the same time.
        let parent = parents.get(usize::try_from(n % 3).unwrap()).copied();
        let created = i64::try_from(n / 4).unwrap();
        TaskBuilder::new(lane, n).created(created).with(|_, body| body.parent = parent).build()
    };
    let mut all = Vec::new();
    for (lane, count) in [(LANE, 30), (OTHER_LANE, 17)] {
        let new: Vec<_> = (0..count).map(|n| child(lane, n)).collect();
        let (submitted, inserted) = new.split_at(new.len() / 2);
        create(&*store, submitted.to_vec()).await;
        let mut owner = Owner::claim(&store, lane).await;
        owner.commit(inserted.iter().cloned().map(inserting).collect::<Vec<_>>()).await;
        end(&mut owner, &new[..20.min(new.len())], 100).await;
        all.extend(new);
    }
    let check = async |gone: &[TaskId]| {
        for parent in parents {
            for (from, before) in [(None, None), (Some(2), None), (None, Some(4)), (Some(1), Some(5))] {
                let filter = TaskFilter {
                    parent: Some(parent),
                    created_from: from.map(at),
                    created_before: before.map(at),
                    ..TaskFilter::default()
                };
                let mut expected = all.clone();
                expected.retain(|new| {
                    let created = new.created_at;
                    new.spec.body.parent == Some(parent)
                        && !gone.contains(&new.id)
                        && from.is_none_or(|from| created >= at(from))
                        && before.is_none_or(|before| created < at(before))
                });
                let mut expected = oldest_first(&expected);
                expected.reverse();
                for limit in [1, 2, 7, 100] {
                    let listed = pages::all_listed(&*store, filter.clone(), limit).await;
                    let listed: Vec<_> = listed.iter().map(|row| row.id).collect();
                    assert_eq!(listed, expected, "{filter:?} by {limit}");
                }
            }
        }
    };
    check(&[]).await;
    let (strip, forget) = (ids(&all[0..6]), ids(&all[6..12]));
    store.retire(&strip, &forget).await.unwrap();
    let gone = [strip.clone(), forget].concat();
    check(&gone).await;
    // A stripped task is forgotten without a trace, and unfinished tasks stay.
    let rest = [strip, ids(&all[20..26]), ids(&all[30..34])].concat();
    store.retire(&[], &rest).await.unwrap();
    let gone = [gone, ids(&all[30..34])].concat();
    check(&gone).await;
}

/// 12, 16: over all lanes, oldest first, however small the pages; nothing behind the end is looked at.
pub async fn expired_tasks_are_found_page_by_page(env: &dyn StoreEnv) {
    let store = env.store();
    let mut all = Vec::new();
    for (lane, count) in [(LANE, 12), (OTHER_LANE, 7)] {
        let created = |n: u64| i64::try_from(n * 7 % 5).unwrap();
        let new: Vec<_> = (0..count).map(|n| TaskBuilder::new(lane, n).created(created(n)).build()).collect();
        create(&*store, new.clone()).await;
        let mut owner = Owner::claim(&store, lane).await;
        // Every third is still waiting.
        let done: Vec<_> = new.into_iter().enumerate().filter(|(n, _)| n % 3 != 0).map(|(_, t)| t).collect();
        for (n, new) in done.iter().enumerate() {
            end(&mut owner, std::slice::from_ref(new), if n % 2 == 0 { 10 } else { 20 }).await;
        }
        create(&*store, [TaskBuilder::new(lane, 999).created(30).build()]).await;
        all.extend(done.into_iter().enumerate());
    }
    let of = |odd: usize| {
        let of: Vec<_> = all.iter().filter(|(n, _)| n % 2 == odd).map(|(_, task)| task.clone()).collect();
        oldest_first(&of)
    };
    for limit in [1, 2, 3, 7, 19, 100] {
        let found = pages::all_expired(&*store, bounds(30, 15, limit)).await;
        assert_eq!(found, (of(1), of(0)), "by {limit}");
    }
    // On after a position that need not be that of a task.
    let after = Some(crate::TaskCursor { created_at: at(2), id: TaskId::from_random(0) });
    let later: Vec<_> = all.iter().map(|(_, task)| task.clone()).filter(|t| t.created_at >= at(2)).collect();
    let found = pages::all_expired(&*store, ExpiredQuery { after, ..bounds(30, 0, 3) }).await;
    assert_eq!(found, (oldest_first(&later), vec![]));
}

/// 12, 16: a caller that retires each page before it reads the next misses nothing.
pub async fn expired_tasks_are_retired_page_by_page(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new: Vec<_> = (0..20).map(|n| task(n).created(i64::try_from(n / 3).unwrap()).build()).collect();
    create(&*store, new.clone()).await;
    end(&mut owner, &new[..9], 100).await;
    end(&mut owner, &new[9..18], 200).await;
    let mut retire = bounds(300, 150, 4);
    let (mut stripped, mut forgotten) = (Vec::new(), Vec::new());
    for round in 0.. {
        let page = store.expired(retire).await.unwrap();
        store.retire(&page.strip, &page.forget).await.unwrap();
        stripped.extend(page.strip);
        forgotten.extend(page.forget);
        create(&*store, [task(1_000 + round).created(250).build()]).await;
        match page.next {
            Some(next) => retire.after = Some(next),
            None => break,
        }
        assert!(round < 100, "the pages do not end");
    }
    assert_eq!((stripped, forgotten), (oldest_first(&new[9..18]), oldest_first(&new[..9])));
    assert_eq!(pages::all_expired(&*store, bounds(300, 150, 4)).await, (vec![], vec![]));
    let found = store.tasks(&ids(&new)).await.unwrap();
    assert!(found[..9].iter().all(Option::is_none));
    assert!(found[9..18].iter().flatten().all(|view| view.row.body.is_none()));
    assert!(found[18..].iter().flatten().all(|view| view.row.body.is_some()));
}

/// 18: body, result and attempts are gone, all else is as it was; small and large bodies alike.
pub async fn a_stripped_task_keeps_what_it_is(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [rich(1).build(), rich(2).payload_bytes(100_000).build(), rich(3).build()];
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, &new, 100).await;
    let before = store.tasks(&ids(&new)).await.unwrap();
    assert!(before.iter().flatten().all(|view| view.row.body.is_some() && view.result.is_some()));
    store.retire(&ids(&new[..2]), &[]).await.unwrap();

    let found = store.tasks(&ids(&new)).await.unwrap();
    assert_eq!(found[2], before[2], "another task is as it was");
    let mut rows = Vec::new();
    for (found, before) in found.iter().zip(&before).take(2) {
        let (found, before) = (found.as_ref().unwrap(), before.as_ref().unwrap());
        let mut expected = before.clone();
        (expected.row.body, expected.result) = (None, None);
        assert_eq!(*found, expected);
        assert_eq!(pages::all_attempts(&*store, found.row.id, 10).await, []);
        rows.push(found.row.clone());
    }
    assert_eq!(pages::all_attempts(&*store, new[2].id, 10).await.len(), 1);
    let asked = LaneRead::Tasks { ids: ids(&new[..2]) };
    assert_eq!(pages::all_tasks(&*store, LANE, asked, 10).await, rows);
    let listed = pages::all_listed(&*store, TaskFilter::default(), 1).await;
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|row| row.body.is_some() == (row.id == new[2].id)));
    for filter in body_filters().into_iter().skip(1) {
        let listed = pages::all_listed(&*store, filter, 10).await;
        assert_eq!(listed.iter().map(|row| row.id).collect::<Vec<_>>(), [new[2].id]);
    }
    assert_eq!(pages::all_listed(&*store, by_name("task 1"), 10).await, []);
    check_counts(&*store, &ids(&new)).await;
    assert_eq!(pages::all_expired(&*store, bounds(1_000, 0, 10)).await, (vec![new[2].id], vec![]));
    assert_eq!(
        pages::all_expired(&*store, bounds(0, 1_000, 10)).await,
        (vec![], oldest_first(&new)),
        "a stripped one is still to be forgotten"
    );
}

/// 2, 18: a repeated request is still a duplicate after its task has lost its data.
pub async fn a_request_is_known_after_its_task_was_stripped(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).fingerprint(1, 10).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, std::slice::from_ref(&new), 100).await;
    store.retire(&[new.id], &[]).await.unwrap();
    let stripped = view(&*store, new.id).await;
    let other = task(1).fingerprint(1, 11).build();
    assert_eq!(submit(&*store, [new.clone(), other.clone()]).await, [Duplicate, RequestIdReused]);
    let outcomes = owner.commit([inserting(new.clone()), inserting(other)]).await;
    assert_eq!(outcomes, [Duplicate, RequestIdReused].map(GroupOutcome::NotCreated));
    let again = changing(new.id, &new.state(), &[Scheduled]);
    let found = Some(stripped.row.state.version());
    assert_eq!(owner.commit([again]).await, [GroupOutcome::Mismatch { found }]);
    assert_eq!(view(&*store, new.id).await, stripped);
}

/// 19: no read finds it any more, stripped before or not.
pub async fn a_forgotten_task_is_gone(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [rich(1).build(), rich(2).payload_bytes(100_000).build(), task(3).build()];
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, &new, 100).await;
    store.retire(&[new[0].id], &[]).await.unwrap();
    store.retire(&[], &ids(&new[..2])).await.unwrap();

    let found = store.tasks(&ids(&new)).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
    let asked = LaneRead::Tasks { ids: ids(&new) };
    assert_eq!(pages::all_tasks(&*store, LANE, asked, 10).await.len(), 1);
    for new in &new[..2] {
        assert_eq!(pages::all_attempts(&*store, new.id, 10).await, []);
    }
    let listed = pages::all_listed(&*store, TaskFilter::default(), 1).await;
    assert_eq!(listed.iter().map(|row| row.id).collect::<Vec<_>>(), [new[2].id]);
    for filter in body_filters() {
        assert_eq!(pages::all_listed(&*store, filter, 10).await, []);
    }
    check_counts(&*store, &ids(&new)).await;
    assert_eq!(pages::all_expired(&*store, bounds(1_000, 1_000, 10)).await, (vec![], vec![new[2].id]));
    let (arrived, _) = pages::all_arrivals(&*store, LANE, Seq(0), 10).await.unwrap();
    assert_eq!(arrived.len(), 1);
}

/// 2, 19: the same request makes another task, with nothing of the one before; it arrives once, at its new place.
pub async fn a_request_is_new_after_its_task_was_forgotten(env: &dyn StoreEnv) {
    let store = env.store();
    let old = rich(1).fingerprint(1, 10).build();
    let first = create(&*store, [old.clone()]).await[0];
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, std::slice::from_ref(&old), 100).await;
    store.retire(&[], &[old.id]).await.unwrap();

    let new = task(1).fingerprint(1, 11).created(500).build();
    assert_eq!(new.id, old.id);
    let second = create(&*store, [new.clone()]).await[0];
    assert!(second > first, "{second} after {first}");
    let found = view(&*store, new.id).await;
    assert_eq!((found.row.seq, &found.row.state, found.result), (second, &new.state(), None));
    assert_eq!(found.row.body.as_ref(), Some(&new.spec.body));
    assert_eq!(pages::all_attempts(&*store, new.id, 10).await, []);
    for limit in [1, 10] {
        let (arrived, _) = pages::all_arrivals(&*store, LANE, Seq(0), limit).await.unwrap();
        assert_eq!(arrived.iter().map(Arrival::seq).collect::<Vec<_>>(), [second]);
    }
    let listed = pages::all_listed(&*store, TaskFilter::default(), 10).await;
    assert_eq!(listed.iter().map(|row| row.state.created_at).collect::<Vec<_>>(), [at(500)]);
    assert_eq!(pages::all_listed(&*store, body_filters()[1].clone(), 10).await, []);
    check_counts(&*store, &[new.id]).await;
    // It is not finished, so it is safe again; and it lives as any other.
    store.retire(&[new.id], &[new.id]).await.unwrap();
    end(&mut owner, std::slice::from_ref(&new), 600).await;
    assert_eq!(pages::all_expired(&*store, bounds(1_000, 0, 10)).await, (vec![new.id], vec![]));
    // An owner's insert finds the id free as well.
    store.retire(&[], &[new.id]).await.unwrap();
    let inserted = owner.commit([inserting(old)]).await;
    assert!(matches!(inserted[..], [GroupOutcome::Applied { seq: Some(seq) }] if seq > second));
}

/// 17: in either list, over whatever path the task came there.
pub async fn unfinished_tasks_are_never_retired(env: &dyn StoreEnv) {
    let store = env.store();
    let ways: [&[Status]; 5] = [
        &[Scheduled],
        &[Scheduled, Dispatched],
        &[Scheduled, Dispatched, Running],
        &[Scheduled, Dispatched, Running, Retrying],
        &[Scheduled, Status::Pending],
    ];
    let mut new: Vec<_> = (0..5).map(|n| rich(n).build()).collect();
    new.push(rich(5).build());
    new.push(rich(6).delay(1_000).build());
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    for (new, way) in new.iter().zip(ways) {
        let mut group = changing(new.id, &new.state(), way);
        group.change.as_mut().unwrap().ended = vec![ended(1, AttemptOutcome::Lost)];
        group.change.as_mut().unwrap().result = Some(result(1, 10));
        assert_eq!(owner.commit([group]).await, [APPLIED]);
    }
    let mut all = ids(&new);
    all.extend([task(77).id(), TaskBuilder::new(OTHER_LANE, 77).id()]);
    let before = (store.tasks(&all).await.unwrap(), everywhere(&*store).await);
    assert_eq!(pages::all_expired(&*store, bounds(1_000_000, 1_000_000, 2)).await, (vec![], vec![]));
    store.retire(&all, &[]).await.unwrap();
    store.retire(&[], &all).await.unwrap();
    store.retire(&all, &all).await.unwrap();
    assert_eq!((store.tasks(&all).await.unwrap(), everywhere(&*store).await), before);
    for new in &new[..5] {
        assert_eq!(pages::all_attempts(&*store, new.id, 10).await.len(), 1);
    }
    check_counts(&*store, &all).await;
}

/// Everything that the owner finds in its lane.
async fn everywhere(store: &dyn Store) -> String {
    let mut places = Vec::new();
    for read in [pages::LINES, pages::DELAYED, pages::IN_FLIGHT, pages::expiring(at(1_000_000))] {
        places.push(pages::all_tasks(store, LANE, read, 100).await);
    }
    let line = task(0).build().spec.head.line();
    places.push(pages::all_tasks(store, LANE, pages::line(line), 100).await);
    format!("{places:#?} {:#?}", pages::all_arrivals(store, LANE, Seq(0), 100).await)
}

/// 15, 17: within a call and over calls; a task in both lists is forgotten.
pub async fn retiring_again_changes_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    let new: Vec<_> = (0..6).map(|n| rich(n).build()).collect();
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, &new, 100).await;
    let id = |n: usize| new[n].id;
    store.retire(&[], &[]).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        store.retire(&[id(0), id(1), id(0), id(4)], &[id(2), id(3), id(2), id(4)]).await.unwrap();
        let found = store.tasks(&ids(&new)).await.unwrap();
        let kept: Vec<_> = found.iter().map(Option::is_some).collect();
        assert_eq!(kept, [true, true, false, false, false, true]);
        check_counts(&*store, &ids(&new)).await;
        seen.push(found);
    }
    assert_eq!(seen[0], seen[1]);
}

/// 15, 17: also when two retire the same tasks at the same moment.
pub async fn racing_retires_count_once(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    let new: Vec<_> = (0..30).map(|n| task(n).queue(["q", "r"][usize::from(n % 2 == 0)]).build()).collect();
    create(&*handles[0], new.clone()).await;
    let mut owner = Owner::claim(&handles[0], LANE).await;
    end(&mut owner, &new[..20], 100).await;
    let racers = (0..8).map(|racer| {
        let store = Arc::clone(&handles[racer % 2]);
        let mut all = ids(&new);
        all.rotate_left(racer * 3);
        let strip = racer % 4 == 0;
        tokio::spawn(async move {
            if strip { store.retire(&all, &[]).await } else { store.retire(&[], &all).await }
        })
    });
    for racer in join_all(racers).await {
        racer.unwrap().unwrap();
    }
    let found = handles[1].tasks(&ids(&new)).await.unwrap();
    assert_eq!(found.iter().flatten().count(), 10);
    check_counts(&*handles[1], &ids(&new)).await;
}

/// 15: over queues and lanes. A queue whose last task was forgotten is not counted at all.
pub async fn counts_agree_after_tasks_were_forgotten(env: &dyn StoreEnv) {
    let store = env.store();
    let mut all = Vec::new();
    for lane in [LANE, OTHER_LANE] {
        let new: Vec<_> = (0..12)
            .map(|n| {
                TaskBuilder::new(lane, n).queue(["a", "b", "c"][usize::try_from(n % 3).unwrap()]).build()
            })
            .collect();
        create(&*store, new.clone()).await;
        end(&mut Owner::claim(&store, lane).await, &new[..9], 100).await;
        all.extend(ids(&new));
    }
    check_counts(&*store, &all).await;
    // Of both lanes, in one call.
    let some: Vec<_> = all.iter().copied().step_by(2).collect();
    store.retire(&[], &some).await.unwrap();
    check_counts(&*store, &all).await;
    let new = task(99).queue("last").build();
    create(&*store, [new.clone()]).await;
    end(&mut Owner::claim(&store, LANE).await, std::slice::from_ref(&new), 100).await;
    let of_last = |counts: Vec<QueueCounts>| counts.iter().any(|c| c.queue == new.spec.head.queue);
    assert!(of_last(pages::all_counts(&*store, 10).await));
    store.retire(&[], &[new.id]).await.unwrap();
    assert!(!of_last(pages::all_counts(&*store, 10).await));
    // Waiting tasks alone fill a queue, so nothing has changed for a submit.
    create(&*store, [task(100).queue("last").len_max(1).build()]).await;
}

/// 10, 19: the remaining arrivals come in order, and the reader gets to the end, whatever is missing on the
/// way.
pub async fn arrivals_pass_over_forgotten_tasks(env: &dyn StoreEnv) {
    let store = env.store();
    let mut new = Vec::new();
    for first in [0, 10, 20, 30] {
        let batch = tasks(first..first + 10);
        create(&*store, batch.clone()).await;
        store.post(LANE, &[cancel(batch[0].id), cancel(batch[1].id)]).await.unwrap();
        new.extend(batch);
    }
    let mut owner = Owner::claim(&store, LANE).await;
    let highest = pages::cursor(&*store, LANE).await;
    // The first and the last, and a long row in the middle.
    let gone: Vec<_> = [&new[..1], &new[5..27], &new[38..]].concat();
    end(&mut owner, &gone, 100).await;
    store.retire(&[], &ids(&gone)).await.unwrap();
    for limit in [1, 2, 5, 100] {
        let (rows, next) = pages::all_arrivals(&*store, LANE, Seq(0), limit).await.unwrap();
        assert_eq!(next, highest, "by {limit}");
        let shown: Vec<_> = rows
            .iter()
            .filter_map(|row| match row {
                Arrival::Task(row) => Some(row.id),
                Arrival::Command(_) => None,
            })
            .collect();
        let kept: Vec<_> = new.iter().filter(|task| !gone.contains(task)).map(|task| task.id).collect();
        assert_eq!(shown, kept, "by {limit}");
        assert_eq!(rows.len() - shown.len(), 8, "the commands are still there");
    }
    // A reader that stands right before a forgotten task, and a reader that has read everything.
    assert_eq!(pages::all_arrivals(&*store, LANE, highest, 5).await, Some((vec![], highest)));
    let seq = create(&*store, [task(100).build()]).await[0];
    let (rows, next) = pages::all_arrivals(&*store, LANE, highest, 5).await.unwrap();
    assert_eq!((rows.iter().map(Arrival::seq).collect::<Vec<_>>(), next), (vec![seq], seq));
    // Behind a cursor that a commit has named, as an owner reads.
    let mut commit = owner.next([]);
    commit.cursor = Seq(highest.0 - 1);
    owner.send(&commit).await.unwrap();
    let kept: Vec<_> = new.iter().filter(|task| !gone.contains(task)).cloned().collect();
    end(&mut owner, &kept, 100).await;
    store.retire(&[], &ids(&kept)).await.unwrap();
    let (rows, next) = pages::all_arrivals(&*store, LANE, commit.cursor, 1).await.unwrap();
    let tasks = rows.iter().filter(|row| matches!(row, Arrival::Task(_))).count();
    assert_eq!((tasks, next), (1, seq));
}

/// 6, 7: an owner does not notice, not even when it repeats the commit that created and ended the forgotten
/// tasks.
pub async fn retiring_does_not_disturb_an_owner(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks(0..4);
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    // Made and ended in one commit.
    let inserted = task(9).build();
    let insert = Some(Box::new(inserted.clone()));
    let commit = owner.next([
        ending(&new[0], &[Failed], 100),
        Group { insert, ..ending(&inserted, &[Failed], 100) },
        changing(new[1].id, &new[1].state(), &[Scheduled]),
    ]);
    let outcomes = owner.send(&commit).await.unwrap();
    assert!(matches!(outcomes[..], [APPLIED, GroupOutcome::Applied { seq: Some(_) }, APPLIED]));
    let head = store.lane_head(LANE).await.unwrap();
    store.retire(&[new[0].id], &[inserted.id]).await.unwrap();
    assert_eq!(store.lane_head(LANE).await.unwrap(), head);
    assert_eq!(owner.send(&commit).await.unwrap(), outcomes);
    assert_eq!(store.tasks(&[inserted.id]).await.unwrap(), [None]);
    owner.advance(new[1].id, &[Dispatched, Running, Success]).await;
    owner.advance(new[2].id, &[Scheduled]).await;
    // A change of a forgotten task gets the outcome of an unknown task.
    let gone = changing(inserted.id, &inserted.state(), &[Scheduled]);
    assert_eq!(owner.commit([gone]).await, [GroupOutcome::Mismatch { found: None }]);
}

/// 12, 17: more than any store does in one step.
pub async fn many_tasks_are_retired_at_once(env: &dyn StoreEnv) {
    let store = env.store();
    let mut all: Vec<NewTask> = Vec::new();
    // Fits into every store's transaction, five operations for each task.
    let at_once = (store.capabilities().ops_max / 8).min(300);
    for lane in [LANE, OTHER_LANE] {
        let mut owner = Owner::claim(&store, lane).await;
        let new: Vec<_> = (0..1_000).map(|n| TaskBuilder::new(lane, n).build()).collect();
        for new in new.chunks(at_once) {
            create(&*store, new.to_vec()).await;
            end(&mut owner, new, 100).await;
        }
        all.extend(new);
    }
    let all = ids(&all);
    store.retire(&all, &[]).await.unwrap();
    assert_eq!(pages::all_expired(&*store, bounds(1_000, 0, 500)).await, (vec![], vec![]));
    store.retire(&[], &all[1..]).await.unwrap();
    let (_, left) = pages::all_expired(&*store, bounds(0, 1_000, 500)).await;
    assert_eq!(left, all[..1]);
    check_counts(&*store, &all[..10]).await;
}

/// 14, 18, 19.
pub async fn what_was_retired_stays_so_after_a_crash(env: &dyn StoreEnv) {
    let store = env.store();
    let new: Vec<_> = (0..3).map(|n| rich(n).build()).collect();
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    end(&mut owner, &new, 100).await;
    store.retire(&[new[0].id], &[new[1].id]).await.unwrap();
    let before = store.tasks(&ids(&new)).await.unwrap();
    drop((owner, store));
    let store = env.reopen().await;
    assert_eq!(store.tasks(&ids(&new)).await.unwrap(), before);
    check_counts(&*store, &ids(&new)).await;
    let outcomes = submit(&*store, new).await;
    assert_eq!(outcomes.iter().map(|o| created(o).is_some()).collect::<Vec<_>>(), [false, true, false]);
}

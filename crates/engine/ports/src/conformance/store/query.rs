//! Queries for people and tools.

use std::sync::Arc;

use futures::future::join_all;
use tasklane_core::id::{QueueKey, TaskId};
use tasklane_core::status::Status::{
    self, Cancelled, Dispatched, Failed, Pending, Retrying, Running, Scheduled, Success,
};
use tasklane_core::task::NewTask;

use crate::conformance::fixture::{
    LANE, OTHER_LANE, Owner, TaskBuilder, at, changing, create, name, queue, submit, task, tasks,
};
use crate::conformance::{StoreEnv, pages};
use crate::{CountList, QueueCounts, Store, TaskFilter, TaskList};

/// 12: unknown ones are `None` in their place; one asked for twice is answered twice.
pub async fn tasks_come_in_the_order_asked_for(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks(0..3)).await;
    let foreign = TaskBuilder::new(OTHER_LANE, 1).build();
    create(&*store, [foreign.clone()]).await;
    let asked = [task(2).id(), task(9).id(), foreign.id, task(0).id(), task(2).id()];
    let found = store.tasks(&asked).await.unwrap();
    let ids: Vec<_> = found.iter().map(|found| found.as_ref().map(|found| found.row.id)).collect();
    let expected = [Some(asked[0]), None, Some(asked[2]), Some(asked[3]), Some(asked[4])];
    assert_eq!(ids, expected);
    assert_eq!(store.tasks(&[]).await.unwrap(), []);
}

/// 12: over all lanes and queues, by creation time, then id.
pub async fn the_list_is_newest_first(env: &dyn StoreEnv) {
    let store = env.store();
    assert_eq!(pages::all_listed(&*store, TaskFilter::default(), 10).await, []);
    let mut new: Vec<_> =
        (0..10).map(|n| task(n).created([5, 1, 9][usize::try_from(n % 3).unwrap()]).build()).collect();
    create(&*store, new.clone()).await;
    let other: Vec<_> =
        (0..4).map(|n| TaskBuilder::new(OTHER_LANE, n).queue("z").created(5).build()).collect();
    create(&*store, other.clone()).await;
    new.extend(other);
    new.sort_by_key(|task| std::cmp::Reverse((task.created_at, task.id)));
    for limit in [1, 3, 14, 100] {
        let listed = pages::all_listed(&*store, TaskFilter::default(), limit).await;
        assert_eq!(
            listed.iter().map(|row| row.id).collect::<Vec<_>>(),
            new.iter().map(|t| t.id).collect::<Vec<_>>()
        );
        for (row, new) in listed.iter().zip(&new) {
            assert_eq!(
                (&row.head, row.body.as_ref(), &row.state),
                (&new.spec.head, Some(&new.spec.body), &new.state())
            );
        }
    }
}

/// Tasks that differ in everything that a filter looks at.
async fn varied(store: &Arc<dyn Store>) -> Vec<NewTask> {
    let mut new = Vec::new();
    for number in 0..24_u64 {
        let one_of = |texts: [&str; 2]| texts[usize::try_from(number / 2 % 2).unwrap()].to_owned();
        let namespace = if number % 2 == 0 { "default" } else { "team" };
        let key = QueueKey::new(name(namespace), name(&one_of(["q", "r"])));
        new.push(
            task(number)
                .in_queue(key)
                .kind(["SHELL", "HTTP", "PYTHON"][usize::try_from(number % 3).unwrap()])
                .created(i64::try_from(number / 2).unwrap() * 10)
                .with(|_, body| {
                    body.name = one_of(["import", "export"]);
                    body.parent = (number % 5 == 0).then(|| task(1_000).id());
                    body.schedule = (number % 4 == 1).then(|| "nightly".to_owned());
                    body.metadata =
                        [("n".to_owned(), (number % 2).to_string()), ("x".to_owned(), one_of(["1", "2"]))]
                            .into();
                })
                .build(),
        );
    }
    create(&**store, new.clone()).await;
    let mut owner = Owner::claim(store, LANE).await;
    let ways: [&[Status]; 8] = [
        &[],
        &[Scheduled],
        &[Scheduled, Dispatched],
        &[Scheduled, Dispatched, Running],
        &[Scheduled, Dispatched, Running, Retrying],
        &[Scheduled, Dispatched, Running, Success],
        &[Failed],
        &[Scheduled, Cancelled],
    ];
    for (task, way) in new.iter().zip(ways.iter().cycle()) {
        if !way.is_empty() {
            let mut group = changing(task.id, &task.state(), way);
            if task.spec.head.priority.get() == 5 && way.len() > 2 {
                group.change.as_mut().unwrap().state.worker = Some(name("worker-2"));
            }
            owner.commit([group]).await;
        }
    }
    new
}

fn filters() -> Vec<TaskFilter> {
    let filter = TaskFilter::default;
    vec![
        filter(),
        TaskFilter { namespace: Some(name("team")), ..filter() },
        TaskFilter { namespace: Some(name("nobody")), ..filter() },
        TaskFilter { queue: Some(name("r")), ..filter() },
        TaskFilter { namespace: Some(name("default")), queue: Some(name("q")), ..filter() },
        TaskFilter { statuses: vec![Pending], ..filter() },
        TaskFilter { statuses: vec![Running, Success, Cancelled], ..filter() },
        TaskFilter { statuses: Status::ALL.to_vec(), ..filter() },
        TaskFilter { task_type: Some(name("HTTP")), ..filter() },
        TaskFilter { name: Some("export".to_owned()), ..filter() },
        TaskFilter { name: Some("expor_".to_owned()), ..filter() },
        TaskFilter { worker: Some(name("worker-1")), ..filter() },
        TaskFilter { worker: Some(name("worker-2")), ..filter() },
        TaskFilter { parent: Some(task(1_000).id()), ..filter() },
        TaskFilter { schedule: Some("nightly".to_owned()), ..filter() },
        TaskFilter { metadata: vec![("n".to_owned(), "1".to_owned())], ..filter() },
        TaskFilter {
            metadata: vec![("n".to_owned(), "1".to_owned()), ("x".to_owned(), "2".to_owned())],
            ..filter()
        },
        TaskFilter { metadata: vec![("y".to_owned(), "1".to_owned())], ..filter() },
        TaskFilter { created_from: Some(at(50)), ..filter() },
        TaskFilter { created_before: Some(at(50)), ..filter() },
        TaskFilter { created_from: Some(at(20)), created_before: Some(at(60)), ..filter() },
        TaskFilter { created_from: Some(at(60)), created_before: Some(at(60)), ..filter() },
        TaskFilter { created_from: Some(at(61)), created_before: Some(at(20)), ..filter() },
    ]
}

async fn check_filter(store: &dyn Store, new: &[NewTask], filter: &TaskFilter, limits: &[usize]) -> usize {
    let ids: Vec<TaskId> = new.iter().map(|task| task.id).collect();
    let mut expected: Vec<_> =
        store.tasks(&ids).await.unwrap().into_iter().map(|view| view.unwrap().row).collect();
    expected.retain(|row| filter.matches(row));
    expected.sort_by_key(|row| std::cmp::Reverse((row.state.created_at, row.id)));
    for limit in limits {
        assert_eq!(pages::all_listed(store, filter.clone(), *limit).await, expected, "{filter:?} by {limit}");
    }
    expected.len()
}

/// 12: each condition alone selects exactly its tasks.
pub async fn every_filter_selects(env: &dyn StoreEnv) {
    let store = env.store();
    let new = varied(&store).await;
    let mut selected = Vec::new();
    for filter in filters() {
        selected.push(check_filter(&*store, &new, &filter, &[100]).await);
    }
    let partly = selected.iter().filter(|count| (1..24).contains(*count)).count();
    assert!(partly > 12, "the case has lost its meaning: {selected:?}");
}

/// 12: conditions combine, and a page may be short.
pub async fn filters_combine_and_page(env: &dyn StoreEnv) {
    let store = env.store();
    let new = varied(&store).await;
    let combined = [
        TaskFilter {
            namespace: Some(name("team")),
            statuses: vec![Scheduled, Running, Success],
            ..TaskFilter::default()
        },
        TaskFilter {
            namespace: Some(name("default")),
            queue: Some(name("q")),
            task_type: Some(name("SHELL")),
            created_from: Some(at(10)),
            ..TaskFilter::default()
        },
        TaskFilter {
            name: Some("import".to_owned()),
            worker: Some(name("worker-1")),
            metadata: vec![("n".to_owned(), "1".to_owned())],
            ..TaskFilter::default()
        },
        TaskFilter {
            parent: Some(task(1_000).id()),
            statuses: vec![Pending, Retrying],
            ..TaskFilter::default()
        },
    ];
    for filter in &combined {
        check_filter(&*store, &new, filter, &[1, 2, 3, 100]).await;
    }
    for filter in filters() {
        check_filter(&*store, &new, &filter, &[1, 5]).await;
    }
}

/// 12: bodies over 4 KiB are left out of the list, but still looked at.
pub async fn large_bodies_are_not_listed(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, [task(1).payload_bytes(100).build(), task(2).payload_bytes(10_000).created(1).build()])
        .await;
    let listed = pages::all_listed(&*store, TaskFilter::default(), 10).await;
    assert_eq!(listed.iter().map(|row| row.body.is_some()).collect::<Vec<_>>(), [false, true]);
    let by_name = TaskFilter { name: Some("task 2".to_owned()), ..TaskFilter::default() };
    let page = store.list(TaskList { filter: by_name, after: None, limit: 10 }).await.unwrap();
    assert_eq!(page.tasks.len(), 1);
}

/// Counts are those of the tasks with these ids, and there are no others.
pub(super) async fn check_counts(store: &dyn Store, ids: &[TaskId]) {
    let mut expected = std::collections::BTreeMap::<QueueKey, [u64; 8]>::new();
    for found in store.tasks(ids).await.unwrap().into_iter().flatten() {
        let status = usize::from(found.row.state.status.code());
        expected.entry(found.row.head.queue.clone()).or_default()[status] += 1;
    }
    let expected: Vec<_> =
        expected.into_iter().map(|(queue, by_status)| QueueCounts { queue, by_status }).collect();
    for limit in [1, 2, 100] {
        assert_eq!(pages::all_counts(store, limit).await, expected, "{limit}");
    }
}

/// 15: by whatever path the tasks came there.
pub async fn counts_agree_with_the_tasks(env: &dyn StoreEnv) {
    let store = env.store();
    check_counts(&*store, &[]).await;
    let new = varied(&store).await;
    let mut ids: Vec<_> = new.iter().map(|task| task.id).collect();
    check_counts(&*store, &ids).await;
    // Refused and repeated ones count for nothing; a queue over two lanes counts as one.
    submit(&*store, [new[0].clone(), task(99).queue("q").len_max(1).build()]).await;
    let other = TaskBuilder::new(OTHER_LANE, 5).build();
    create(&*store, [other.clone()]).await;
    ids.push(other.id);
    let mut owner = Owner::claim(&store, LANE).await;
    owner.commit([changing(new[0].id, &new[1].state(), &[Running])]).await;
    owner.advance(new[1].id, &[Pending, Scheduled, Dispatched, Running, Success]).await;
    check_counts(&*store, &ids).await;
}

/// 15: also when tasks came over several handles at once.
pub async fn counts_agree_after_racing_submits(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    let racers = (0..8).map(|racer| {
        let store = Arc::clone(&handles[racer % 2]);
        // Two lanes share a queue, and each task is submitted twice.
        let lane = if racer % 4 < 2 { LANE } else { OTHER_LANE };
        let new: Vec<_> =
            (0..10).map(|n| TaskBuilder::new(lane, n + 10 * (racer as u64 / 4)).build()).collect();
        tokio::spawn(async move { submit(&*store, new).await })
    });
    for racer in join_all(racers).await {
        racer.unwrap();
    }
    let counts = pages::all_counts(&*handles[0], 10).await;
    assert_eq!(counts, [QueueCounts { queue: queue("q"), by_status: [40, 0, 0, 0, 0, 0, 0, 0] }]);
}

/// 12, 15: by namespace, then by name, whatever lanes a queue has tasks in. A hyphen sorts before a slash, by
/// which stores may separate the two.
pub async fn counts_are_paged_by_queue(env: &dyn StoreEnv) {
    let store = env.store();
    let mut queues = Vec::new();
    for namespace in ["a", "a-b", "a.b", "ab"] {
        queues.extend(["q", "q-1", "q.1"].map(|queue| QueueKey::new(name(namespace), name(queue))));
    }
    for (number, queue) in (0..).zip(queues.iter().rev()) {
        let lane = if number % 2 == 0 { LANE } else { OTHER_LANE };
        create(&*store, [TaskBuilder::new(lane, number).in_queue(queue.clone()).build()]).await;
        create(&*store, [TaskBuilder::new(OTHER_LANE, 99).in_queue(queue.clone()).build()]).await;
    }
    for limit in [1, 2, 5, 12, 100] {
        let counts = pages::all_counts(&*store, limit).await;
        assert_eq!(
            counts.iter().map(|counts| &counts.queue).collect::<Vec<_>>(),
            queues.iter().collect::<Vec<_>>()
        );
        assert!(counts.iter().all(|counts| counts.by_status[0] == 2), "{counts:?}");
    }
    let after = Some(QueueKey::new(name("a-b"), name("nowhere")));
    let page = store.counts(CountList { after, limit: 2 }).await.unwrap();
    assert_eq!(page.into_iter().map(|counts| counts.queue).collect::<Vec<_>>(), queues[3..5]);
}

/// 12: an empty page is an answer.
pub async fn attempts_of_an_unknown_task_are_none(env: &dyn StoreEnv) {
    assert_eq!(pages::all_attempts(&*env.store(), task(1).id(), 10).await, []);
}

//! Cases that need many tasks.

mod support;

use tasklane_core::read::{LanePage, LaneRead};
use tasklane_ports::conformance::fixture::{LANE, create, name, task};
use tasklane_ports::conformance::pages::all_listed;
use tasklane_ports::{LoadQuery, Store, TaskFilter, TaskList};
use tasklane_sqlite::{Durability, Options, Sqlite};

#[tokio::test]
async fn pages_stay_bounded_with_many_tasks() {
    let folder = support::folder();
    let options =
        Options { durability: Durability::Relaxed, ..Options::new(folder.path().join("tasklane.db")) };
    let store = Sqlite::connect(options).await.unwrap();
    let rare = task(0).queue("rare").build();
    create(&store, [rare.clone()]).await;
    for first in 0..60 {
        let numbers = 1 + first * 1000..=(first + 1) * 1000;
        let tasks: Vec<_> = numbers.zip(0..).map(|(n, at)| task(n).created(1 + at).build()).collect();
        create(&store, tasks).await;
    }

    // The oldest task, and the only one of its queue: the first page ends before it, with a cursor.
    let filter = TaskFilter { queue: Some(name("rare")), ..TaskFilter::default() };
    let first = store.list(TaskList { filter: filter.clone(), after: None, limit: 10 }).await.unwrap();
    assert!(first.tasks.is_empty() && first.next.is_some());
    let listed = all_listed(&store, filter, 10).await;
    assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), [rare.id]);

    // Two lines, one of them very long.
    let load = LoadQuery { lane: LANE, read: LaneRead::Lines { after: None }, limit: 10, body_bytes_max: 0 };
    let LanePage::Tasks { rows, more } = store.load(load).await.unwrap() else { panic!("not tasks") };
    assert_eq!((rows.len(), more), (2, false));
}

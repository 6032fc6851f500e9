//! Entries of unique keys: none outlives its task.

mod support;

use std::sync::Arc;

use rusqlite::Connection;
use tasklane_core::status::Status::{Cancelled, Scheduled};
use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{
    LANE, Owner, at, changing, create, inserting_assigned, submit, task,
};
use tasklane_sqlite::{Options, Sqlite};

#[tokio::test]
async fn entries_go_with_their_tasks() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let store: Arc<dyn Store> = Arc::new(Sqlite::connect(Options::new(&path)).await.unwrap());
    let shell = Connection::open(&path).unwrap();
    let entries = || -> i64 {
        let orphans = "SELECT count(*) FROM unique_key WHERE key NOT IN (SELECT key FROM task)";
        assert_eq!(shell.query_row(orphans, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
        shell.query_row("SELECT count(*) FROM unique_key", [], |row| row.get(0)).unwrap()
    };
    let mut owner = Owner::claim(&store, LANE).await;
    create(&*store, [task(1).unique("a").build(), task(2).unique_until("b", at(10)).build()]).await;
    let inserted = task(3).unique("c").build();
    owner.commit([inserting_assigned(inserted)]).await;
    // Refused tasks leave no entry, and neither do tasks without a key.
    submit(&*store, [task(4).unique("a").build(), task(5).unique("d").len_max(0).build()]).await;
    create(&*store, [task(6).build()]).await;
    assert_eq!(entries(), 3);

    for number in [1, 2, 3, 6] {
        owner.advance(task(number).id(), &[Cancelled]).await;
    }
    let all: Vec<_> = (1..=7).map(|number| task(number).id()).collect();
    store.retire(&all, &[]).await.unwrap();
    assert_eq!(entries(), 3);
    // Taken over: one entry still.
    let next = task(7).unique("a").build();
    create(&*store, [next.clone()]).await;
    owner.commit([changing(next.id, &next.state(), &[Scheduled])]).await;
    assert_eq!(entries(), 3);
    store.retire(&[], &all).await.unwrap();
    assert_eq!(entries(), 1);
    owner.advance(next.id, &[Cancelled]).await;
    store.retire(&[], &all).await.unwrap();
    assert_eq!(entries(), 0);
}

//! Opening and releasing the file.

mod support;

use std::sync::Arc;

use rusqlite::Connection;
use tasklane_core::commit::SubmitOutcome;
use tasklane_ports::conformance::fixture::{LANE, create, submit, task, tasks};
use tasklane_ports::conformance::pages::all_counts;
use tasklane_ports::{Store, StoreError};
use tasklane_sqlite::{Options, Sqlite};

async fn refusal(options: Options) -> String {
    match Sqlite::connect(options).await {
        Err(StoreError::Refused { reason }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn file_and_folder_are_made() {
    let folder = support::folder();
    let path = folder.path().join("a/b/tasklane.db");
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    create(&store, tasks(1..=3)).await;
    assert!(path.exists());
}

#[tokio::test]
async fn file_can_be_opened_again_as_soon_as_it_is_dropped_or_closed() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    for round in 0..5 {
        let store = Sqlite::connect(Options::new(&path)).await.unwrap();
        create(&store, [task(round).build()]).await;
        let other = store.clone();
        if round % 2 == 0 {
            store.close().await.unwrap();
            other.close().await.unwrap();
            assert!(matches!(other.lane_head(LANE).await, Err(StoreError::Unavailable { .. })));
        }
    }
    // Closed in order, so there is no other file.
    assert!(!folder.path().join("tasklane.db-wal").exists());
}

#[tokio::test]
async fn requests_that_were_sent_are_written_before_it_is_dropped() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    // Polled once, which sends the request, and then dropped.
    for number in 0..100 {
        let submit =
            store.submit(tasklane_ports::Submit { lane: LANE, tasks: [task(number).build()].into() });
        let _ = tokio::time::timeout(std::time::Duration::ZERO, submit).await;
    }
    drop(store);
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    assert_eq!(all_counts(&store, 10).await[0].by_status[0], 100);
}

#[tokio::test]
async fn second_store_on_the_same_file_is_refused_by_any_name() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    let other_name = folder.path().join("link.db");
    std::os::unix::fs::symlink(&path, &other_name).unwrap();
    for name in [&path, &other_name] {
        let reason = refusal(Options::new(name)).await;
        let holder = format!("in use by process {}", std::process::id());
        assert!(reason.contains(&holder) && reason.contains("Stop that one"), "{reason}");
    }
    // The refused attempt has changed nothing.
    create(&store, tasks(1..=3)).await;
}

#[tokio::test]
async fn file_of_the_first_version_goes_on_with_what_it_holds() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    create(&Sqlite::connect(Options::new(&path)).await.unwrap(), tasks(1..=3)).await;
    // The schema before unique keys and documents.
    let shell = Connection::open(&path).unwrap();
    let older =
        "DROP TABLE unique_key; DROP TABLE document; DROP TABLE document_version; PRAGMA user_version = 1";
    shell.execute_batch(older).unwrap();
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    assert_eq!(submit(&store, [task(1).unique("a").build()]).await, [SubmitOutcome::Duplicate]);
    let holder = task(4).unique("a").build();
    create(&store, [holder.clone()]).await;
    assert_eq!(
        submit(&store, [task(5).unique("a").build()]).await,
        [SubmitOutcome::Exists { task: holder.id }]
    );
    assert_eq!(all_counts(&store, 10).await[0].by_status[0], 4);
}

#[tokio::test]
async fn newer_schema_is_refused_and_left_as_it_is() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    drop(Sqlite::connect(Options::new(&path)).await.unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1000).unwrap();
    let before = std::fs::read(&path).unwrap();
    let reason = refusal(Options::new(&path)).await;
    assert!(reason.contains("tasklane.db: its schema is version 1000"), "{reason}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn file_of_another_kind_is_refused_and_left_as_it_is() {
    let folder = support::folder();
    let text = folder.path().join("notes.txt");
    let notes = "not a database ".repeat(1000);
    std::fs::write(&text, &notes).unwrap();
    assert!(refusal(Options::new(&text)).await.contains("not a Tasklane database"));
    assert_eq!(std::fs::read_to_string(&text).unwrap(), notes);

    let theirs = folder.path().join("theirs.db");
    Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(refusal(Options::new(&theirs)).await.contains("not a Tasklane database"));
    assert!(refusal(Options::new(folder.path())).await.contains("cannot"));
}

/// Users may read the file, and even write to it, with the `sqlite3` shell: the store then reads its cache
/// again.
#[tokio::test]
async fn changes_by_another_program_are_noticed() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let store: Arc<dyn Store> = Arc::new(Sqlite::connect(Options::new(&path)).await.unwrap());
    create(&*store, tasks(1..=3)).await;
    let shell = Connection::open(&path).unwrap();
    shell.execute_batch("DELETE FROM task; DELETE FROM spec; DELETE FROM counts").unwrap();
    let again: Vec<_> = tasks(1..=3)
        .into_iter()
        .map(|t| tasklane_core::task::NewTask { queue_len_max: Some(3), ..t })
        .collect();
    create(&*store, again).await;
    assert_eq!(all_counts(&*store, 10).await[0].by_status[0], 3);
    assert_eq!(submit(&*store, [task(4).len_max(3).build()]).await.len(), 1);
}

/// An earlier version locked only the file beside the database.
#[tokio::test]
async fn earlier_versions_and_this_one_keep_each_other_out() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let beside = folder.path().join("tasklane.db.lock");
    let earlier = std::fs::File::create(&beside).unwrap();
    earlier.try_lock().unwrap();
    assert!(refusal(Options::new(&path)).await.contains("in use by another process"));
    drop(earlier);
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    assert!(std::fs::File::open(&beside).unwrap().try_lock().is_err());
    // Its removal changes nothing: the database itself is locked.
    std::fs::remove_file(&beside).unwrap();
    let holder = format!("in use by process {}", std::process::id());
    assert!(refusal(Options::new(&path)).await.contains(&holder));
    create(&store, tasks(1..=3)).await;
}

/// Closing any descriptor of the file would end SQLite's own locks on it. Another program that closes the
/// file then believes that it is the last one, and removes the log in use.
#[tokio::test]
async fn the_locks_of_sqlite_last_as_long_as_the_store() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    for _ in 0..2 {
        let store = Sqlite::connect(Options::new(&path)).await.unwrap();
        refusal(Options::new(&path)).await;
        drop(store.locked_file());
        create(&store, tasks(1..=3)).await;
        let shell = |sql: &str| {
            let ran = std::process::Command::new("sqlite3").arg(&path).arg(sql).output();
            ran.map(|ran| String::from_utf8(ran.stdout).unwrap())
        };
        match shell("SELECT count(*) FROM task") {
            Ok(count) => assert_eq!(count.trim(), "3"),
            Err(error) => {
                let skipped = format!("SKIPPED the_locks_of_sqlite: no sqlite3: {error}\n");
                std::io::Write::write_all(&mut std::io::stderr(), skipped.as_bytes()).unwrap();
            }
        }
        assert!(folder.path().join("tasklane.db-wal").exists());
        create(&store, tasks(4..=6)).await;
        store.close().await.unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

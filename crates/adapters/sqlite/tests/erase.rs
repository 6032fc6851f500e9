//! Removed values cannot be read in any file any more, and take no room.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Payload};
use tasklane_core::time::Timestamp;
use tasklane_ports::conformance::fixture::{LANE, Owner, changing, create, task};
use tasklane_ports::{LogChunk, LogPosition, LogStream, Logs, Store};
use tasklane_sqlite::{Options, Sqlite};

const MARKER: &str = "a secret that no other file has";
const PATIENCE: Duration = Duration::from_mins(1);

/// Whether the marker is in any file of a folder.
fn is_anywhere(folder: &Path) -> bool {
    let finds = |bytes: &[u8]| bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes());
    std::fs::read_dir(folder).unwrap().any(|entry| finds(&std::fs::read(entry.unwrap().path()).unwrap()))
}

/// Waits for the idle work of the store.
async fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Small values share pages with others, large ones have pages of their own.
fn secret(number: u64, bytes: usize) -> NewTask {
    let text = MARKER.repeat(bytes / MARKER.len() + 1);
    task(number).with(move |_, body| body.payload = Payload::Text(text)).build()
}

/// Submits tasks with output and ends them.
async fn run(store: &Arc<Sqlite>, tasks: &[NewTask]) -> Vec<TaskId> {
    for some in tasks.chunks(50) {
        create(&**store, some.to_vec()).await;
    }
    let output = tasks.iter().map(|task| LogChunk {
        task: task.id,
        position: LogPosition { attempt: AttemptNo(1), number: 0 },
        stream: LogStream::Stdout,
        at: Timestamp::ZERO,
        bytes: MARKER.repeat(10).into_bytes(),
    });
    store.append(&output.collect::<Vec<_>>()).await.unwrap();
    let port: Arc<dyn Store> = store.clone();
    let mut owner = Owner::claim(&port, LANE).await;
    let ended = tasks.iter().map(|task| changing(task.id, &task.state(), &[Status::Failed]));
    owner.commit(ended.collect::<Vec<_>>()).await;
    tasks.iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn what_was_removed_is_in_no_file_any_more() {
    let folder = support::folder();
    let store = Arc::new(Sqlite::connect(Options::new(folder.path().join("tasklane.db"))).await.unwrap());
    let tasks: Vec<_> =
        (0..200).map(|number| secret(number, if number % 2 == 0 { 100 } else { 20_000 })).collect();
    let ids = run(&store, &tasks).await;
    // The tasks that stay lie between them.
    create(
        &*store,
        (1_000..1_100).map(|number| task(number).payload_bytes(3_000).build()).collect::<Vec<_>>(),
    )
    .await;
    assert!(is_anywhere(folder.path()));
    store.remove(&ids).await.unwrap();
    store.retire(&ids, &[]).await.unwrap();
    until("it is still there", || !is_anywhere(folder.path())).await;
}

#[tokio::test]
async fn a_file_shrinks_when_most_of_it_was_removed() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let store = Arc::new(Sqlite::connect(Options::new(&path)).await.unwrap());
    let tasks: Vec<_> = (0..200).map(|number| secret(number, 100_000)).collect();
    let ids = run(&store, &tasks).await;
    store.remove(&ids).await.unwrap();
    store.retire(&[], &ids).await.unwrap();
    let bytes = || -> u64 {
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    until("20 MB are still there", || bytes() < 3_000_000).await;
    create(&*store, [task(1_000).build()]).await;
}

#[tokio::test]
async fn a_file_of_an_earlier_version_is_rewritten_once() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    create(&Sqlite::connect(Options::new(&path)).await.unwrap(), [task(1).build()]).await;
    let shell = Connection::open(&path).unwrap();
    let left = format!(
        "PRAGMA auto_vacuum = NONE; VACUUM; PRAGMA secure_delete = OFF;
         CREATE TABLE gone (text); INSERT INTO gone VALUES ('{}'); DROP TABLE gone",
        MARKER.repeat(1_000)
    );
    shell.execute_batch(&left).unwrap();
    drop(shell);
    assert!(is_anywhere(folder.path()));
    let store = Sqlite::connect(Options::new(&path)).await.unwrap();
    assert!(store.warnings().is_empty(), "{:?}", store.warnings());
    assert!(!is_anywhere(folder.path()));
    create(&store, [task(2).build()]).await;
    drop(store);
    let shell = Connection::open(&path).unwrap();
    let mode: i64 = shell.query_row("PRAGMA auto_vacuum", [], |row| row.get(0)).unwrap();
    let check: String = shell.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!((mode, check.as_str()), (2, "ok"));
}

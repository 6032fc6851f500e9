//! No room left: no write is stored in part, every request gets an answer, and writes succeed again when
//! there is room.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};

use rusqlite::Connection;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::status::Status;
use tasklane_core::task::NewTask;
use tasklane_ports::conformance::fixture::{LANE, Owner, changing, create, inserting_assigned, task};
use tasklane_ports::conformance::pages::all_counts;
use tasklane_ports::{Outcome, Store, StoreError, Submit};
use tasklane_sqlite::{Options, Signals, Sqlite};

async fn submit(store: &dyn Store, task: NewTask) -> Result<SubmitOutcome, StoreError> {
    store.submit(Submit { lane: LANE, tasks: [task].into() }).await.map(|mut outcomes| outcomes.remove(0))
}

/// Submits tasks of 64 KiB from `first` on until there is no room; answers how many were created.
async fn fill(store: &dyn Store, first: u64) -> u64 {
    for number in first..first + 10_000 {
        match submit(store, task(number).payload_bytes(64 << 10).build()).await {
            Ok(outcome) => assert!(matches!(outcome, SubmitOutcome::Created { .. })),
            Err(error @ StoreError::Full { .. }) => {
                assert_eq!(error.outcome(), Outcome::NotApplied);
                assert!(error.is_retryable());
                assert!(error.to_string().contains("no room left"), "{error}");
                return number - first;
            }
            Err(other) => panic!("task {number}: {other:?}"),
        }
    }
    panic!("there is no end to the room")
}

fn check_integrity(path: &Path) {
    let conn = Connection::open(path).unwrap();
    let answer: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, "ok");
    let (tasks, specs): (i64, i64) = conn
        .query_row("SELECT (SELECT count(*) FROM task), (SELECT count(*) FROM spec)", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(tasks, specs);
}

#[tokio::test]
async fn full_file_refuses_writes_and_still_answers_reads() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let options = Options { bytes_max: Some(2 << 20), ..Options::new(&path) };
    let store = Arc::new(Sqlite::connect(options).await.unwrap());
    let as_port: Arc<dyn Store> = Arc::clone(&store) as _;
    let mut owner = Owner::claim(&as_port, LANE).await;
    let taken = fill(&*store, 0).await;
    assert!(taken > 10, "{taken} tasks fit into 2 MiB");
    assert_eq!(all_counts(&*store, 10).await[0].by_status[0], taken);
    assert_eq!(store.tasks(&[task(taken).id()]).await.unwrap(), [None]);
    // A commit that does not fit has not happened, so its number is not used up.
    let large = owner.next([inserting_assigned(task(9999).payload_bytes(64 << 10).build())]);
    let error = store.commit(&large).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(store.lane_head(LANE).await.unwrap().commit.0, 0);
    drop((owner, as_port));
    drop(Arc::into_inner(store).unwrap());
    check_integrity(&path);

    // Room returns.
    let store: Arc<dyn Store> = Arc::new(Sqlite::connect(Options::new(&path)).await.unwrap());
    assert_eq!(store.commit(&large).await.unwrap().len(), 1);
    create(&*store, [task(taken).build()]).await;
}

#[tokio::test]
async fn request_without_room_does_not_fail_those_beside_it() {
    let folder = support::folder();
    let (began, go_on) = (mpsc::channel(), mpsc::channel::<()>());
    let (began_send, go_on_receive) = (began.0, std::sync::Mutex::new(go_on.1));
    let signal = move |requests: usize| {
        let _ = began_send.send(requests);
        let _ = go_on_receive.lock().unwrap().recv();
    };
    let options = Options {
        bytes_max: Some(1 << 20),
        signals: Signals { before_transaction: Some(Arc::new(signal)), ..Signals::default() },
        ..Options::new(folder.path().join("tasklane.db"))
    };
    let store = Sqlite::connect(options).await.unwrap();
    let send = |new: NewTask| {
        let store = store.clone();
        tokio::spawn(async move { submit(&store, new).await })
    };
    // The first request occupies the writer, the others gather behind it.
    let first = send(task(0).build());
    tokio::task::yield_now().await;
    let (began, go_on) = (began.1, go_on.0);
    assert_eq!(began.recv().unwrap(), 1);
    let mut others = Vec::new();
    for number in 1..10 {
        let bytes = if number == 5 { 2 << 20 } else { 100 };
        others.push(send(task(number).payload_bytes(bytes).build()));
        tokio::task::yield_now().await;
    }
    go_on.send(()).unwrap();
    assert!(matches!(first.await.unwrap().unwrap(), SubmitOutcome::Created { .. }));
    assert_eq!(began.recv().unwrap(), 9);
    go_on.send(()).unwrap();
    for (other, number) in others.into_iter().zip(1..) {
        match other.await.unwrap() {
            Ok(outcome) => assert!(number != 5 && matches!(outcome, SubmitOutcome::Created { .. })),
            Err(error) => {
                assert!(number == 5 && matches!(error, StoreError::Full { .. }), "{number}: {error}");
            }
        }
    }
    assert_eq!(all_counts(&store, 10).await[0].by_status[0], 9);
    drop(go_on);
}

/// The scenario on a real full disk, in a mount namespace of its own, so that nothing is left behind.
#[test]
fn full_disk_refuses_writes_until_there_is_room_again() {
    const SKIPPED: i32 = 77;
    let folder = support::folder();
    let script = format!("mount -t tmpfs -o size=6m tmpfs \"$DISK\" || exit {SKIPPED}; exec \"$@\"");
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "on_full_disk", "--ignored", "--nocapture"])
        .env("DISK", folder.path())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) if status.code().is_some_and(|code| code == SKIPPED || code == 1 && !may_mount()) => {
            skipped("a disk cannot be mounted here");
        }
        Err(error) => {
            skipped(&format!("unshare: {error}"));
        }
        Ok(status) => panic!("{status}"),
    }
}

fn may_mount() -> bool {
    Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success())
}

#[test]
#[ignore = "run by full_disk_refuses_writes_until_there_is_room_again, on a small disk"]
fn on_full_disk() {
    let disk = std::env::var_os("DISK").expect("started by the other test");
    let disk = Path::new(&disk);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let path = disk.join("tasklane.db");
        let filler = disk.join("filler");
        let store = Arc::new(Sqlite::connect(Options::new(&path)).await.unwrap());
        let as_port: Arc<dyn Store> = Arc::clone(&store) as _;
        let mut owner = Owner::claim(&as_port, LANE).await;
        let running = task(1).queue("other").build();
        owner.commit([inserting_assigned(running.clone())]).await;

        std::fs::write(&filler, vec![1; 3 << 20]).unwrap();
        let taken = fill(&*store, 100).await;
        assert!(taken > 5, "{taken} tasks fit into 3 MiB");
        for _ in 0..3 {
            assert_eq!(fill(&*store, 100 + taken).await, 0);
        }
        let counted = |of: &str| {
            let (store, of) = (Arc::clone(&store), of.to_owned());
            async move {
                let counts = all_counts(&*store, 10).await;
                counts.into_iter().find(|c| c.queue.queue.as_str() == of).unwrap().by_status
            }
        };
        assert_eq!(counted("q").await[0], taken);
        assert_eq!(store.tasks(&[task(100 + taken).id()]).await.unwrap(), [None]);

        std::fs::remove_file(&filler).unwrap();
        create(&*store, [task(100 + taken).payload_bytes(64 << 10).build()]).await;
        let state = as_port.tasks(&[running.id]).await.unwrap().remove(0).unwrap().row.state;
        owner
            .commit([changing(running.id, &state, &[Status::Dispatched, Status::Running, Status::Success])])
            .await;
        assert_eq!(counted("q").await[0], taken + 1);
        assert_eq!(counted("other").await[usize::from(Status::Success.code())], 1);
        drop((owner, as_port));
        store.close().await.unwrap();
        check_integrity(&path);
    });
}

/// Not by a macro: macros print only for tests that fail.
fn skipped(why: &str) {
    let name = "full_disk_refuses_writes_until_there_is_room_again";
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
}

//! Real processes: a second one is refused, and a process that is killed, or whose disk fails, has kept its
//! acknowledged writes. The other process is this test binary, started again with a role.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "the other process reports its writes by its output")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tasklane_core::id::LaneId;
use tasklane_core::status::Status;
use tasklane_ports::conformance::fixture::{
    LANE, Owner, TaskBuilder, changing, create, inserting_assigned, tasks,
};
use tasklane_ports::conformance::pages::{all_counts, all_listed};
use tasklane_ports::{Outcome, Store, StoreError, Submit, TaskFilter};
use tasklane_sqlite::{Durability, Options, Sqlite};

const ROLE: &str = "TASKLANE_SQLITE_TEST_ROLE";
const PATH: &str = "TASKLANE_SQLITE_TEST_PATH";
/// Tasks that are submitted together.
const BATCH: u64 = 4;
const BUSY_LANE: LaneId = LaneId(9);

/// This binary in a role, with its output.
struct OtherProcess {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OtherProcess {
    fn start(role: &str, path: &Path) -> Self {
        // A limit of a file's size must be an error and no signal.
        let script = "trap '' XFSZ; exec \"$@\"";
        let mut process = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next line of its output; `None` at the end.
    fn hear(&mut self) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| line.strip_prefix("> ").map(str::to_owned))
    }

    fn kill(&mut self) {
        // SIGKILL.
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "run by the other tests, as another process"]
fn other_process() {
    let role = std::env::var(ROLE).expect("started by another test");
    let path = std::env::var_os(PATH).expect("started by another test");
    // Ends the line that the test runner has begun.
    println!();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let durability = if role == "relaxed" { Durability::Relaxed } else { Durability::Full };
    let options = Options { durability, ..Options::new(path) };
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(Sqlite::connect(options).await.unwrap());
        println!("> ready");
        match role.as_str() {
            "hold" => {
                let _ = std::io::stdin().read(&mut [0]);
            }
            "full" | "relaxed" => write_for_ever(&store).await,
            "submit" => submit_for_ever(&*store, &AtomicU64::new(0)).await,
            other => panic!("no such role: {other}"),
        }
    });
}

async fn write_for_ever(store: &Arc<dyn Store>) {
    let next = AtomicU64::new(0);
    tokio::join!(
        submit_for_ever(&**store, &next),
        submit_for_ever(&**store, &next),
        submit_for_ever(&**store, &next),
        run_for_ever(store),
    );
}

/// Prints the outcome of each batch of tasks.
async fn submit_for_ever(store: &dyn Store, next: &AtomicU64) {
    loop {
        let first = next.fetch_add(BATCH, Ordering::Relaxed);
        let tasks = tasks(first..first + BATCH).into();
        match store.submit(Submit { lane: LANE, tasks }).await {
            Ok(_) => println!("> submitted {first}"),
            Err(error @ (StoreError::Unavailable { .. } | StoreError::Full { .. })) => {
                println!(
                    "> {} {first}",
                    if error.outcome() == Outcome::NotApplied { "refused" } else { "unknown" }
                );
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// An owner that creates, assigns and finishes tasks.
async fn run_for_ever(store: &Arc<dyn Store>) {
    let mut owner = Owner::claim(store, BUSY_LANE).await;
    for number in 0.. {
        let new = TaskBuilder::new(BUSY_LANE, number).queue("busy").build();
        let assigned = inserting_assigned(new.clone());
        let state = assigned.change.as_ref().unwrap().state.clone();
        owner.commit([assigned]).await;
        println!("> assigned {number}");
        let steps = [Status::Dispatched, Status::Running, Status::Success];
        owner.commit([changing(new.id, &state, &steps)]).await;
        println!("> finished {number}");
    }
}

/// The outcomes that another process has printed.
#[derive(Default)]
struct ReportedWork {
    submitted: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
    assigned: BTreeSet<u64>,
    finished: BTreeSet<u64>,
}

impl ReportedWork {
    fn note(&mut self, line: &str) {
        let Some((what, number)) = line.split_once(' ') else { return };
        let set = match what {
            "submitted" => &mut self.submitted,
            "refused" => &mut self.refused,
            "unknown" => &mut self.unknown,
            "assigned" => &mut self.assigned,
            "finished" => &mut self.finished,
            other => panic!("not understood: {other}"),
        };
        set.insert(number.parse().unwrap());
    }

    /// Opens the files of the ended process and compares.
    async fn check(&self, path: &Path) {
        let store = Sqlite::connect(Options::new(path)).await.unwrap();
        let there = async |first: &u64| {
            let ids: Vec<_> = tasks(*first..first + BATCH).iter().map(|task| task.id).collect();
            let found = store.tasks(&ids).await.unwrap();
            found.iter().filter(|found| found.is_some()).count()
        };
        for first in &self.submitted {
            assert_eq!(there(first).await, 4, "tasks {first} … were acknowledged");
        }
        for first in &self.refused {
            assert_eq!(there(first).await, 0, "tasks {first} … were refused");
        }
        for first in &self.unknown {
            assert!([0, 4].contains(&there(first).await), "tasks {first} … are there in part");
        }
        for number in &self.assigned {
            let id = TaskBuilder::new(BUSY_LANE, *number).queue("busy").id();
            let found = store.tasks(&[id]).await.unwrap().remove(0).expect("it was acknowledged");
            let status = found.row.state.status;
            let ended = self.finished.contains(number);
            assert!(status == Status::Success || !ended && status == Status::Scheduled, "{number}: {status}");
        }
        let mut counted = std::collections::BTreeMap::<_, [u64; 8]>::new();
        for task in all_listed(&store, TaskFilter::default(), 500).await {
            let by_status = counted.entry(task.head.queue.clone()).or_default();
            by_status[usize::from(task.state.status.code())] += 1;
        }
        let counts = all_counts(&store, 10).await.into_iter().map(|c| (c.queue, c.by_status)).collect();
        assert_eq!(counted, counts);
        // The store works as before.
        create(&store, tasks(1_000_000..1_000_010)).await;
        store.close().await.unwrap();
        let conn = Connection::open(path).unwrap();
        let answer: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(answer, "ok");
    }
}

#[tokio::test]
async fn second_process_is_refused_until_the_first_is_gone() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let mut other = OtherProcess::start("hold", &path);
    assert_eq!(other.hear().as_deref(), Some("ready"));
    let reason = match Sqlite::connect(Options::new(&path)).await {
        Err(StoreError::Refused { reason }) => reason,
        other => panic!("not refused: {other:?}"),
    };
    let holder = format!("in use by process {}, and one process at a time may use it", other.process.id());
    assert!(reason.contains(&holder), "{reason}");
    other.kill();
    create(&Sqlite::connect(Options::new(&path)).await.unwrap(), tasks(1..=3)).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9_in_the_middle_of_writes() {
    for (role, heard) in [("full", 3), ("full", 200), ("full", 700), ("relaxed", 1000), ("relaxed", 5000)] {
        let folder = support::folder();
        let path = folder.path().join("tasklane.db");
        let mut other = OtherProcess::start(role, &path);
        assert_eq!(other.hear().as_deref(), Some("ready"));
        let mut said = ReportedWork::default();
        for _ in 0..heard {
            said.note(&other.hear().unwrap());
        }
        other.kill();
        // Lines from before the kill count too.
        while let Some(line) = other.hear() {
            said.note(&line);
        }
        assert!(said.refused.is_empty() && said.unknown.is_empty());
        assert!(!said.submitted.is_empty());
        said.check(&path).await;
    }
}

/// Writes to the log fail as on a bad disk, also in the middle of `COMMIT`; then they succeed again.
#[tokio::test]
async fn io_errors_leave_nothing_half_written_and_pass() {
    let folder = support::folder();
    let path = folder.path().join("tasklane.db");
    let log = folder.path().join("tasklane.db-wal");
    let mut other = OtherProcess::start("submit", &path);
    assert_eq!(other.hear().as_deref(), Some("ready"));
    let pid = Pid::from_child(&other.process);
    let limit = |bytes: Option<u64>| {
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    };
    let mut said = ReportedWork::default();
    for round in 0..10 {
        for _ in 0..20 {
            said.note(&other.hear().unwrap());
        }
        // Somewhere within the next few pages that are written.
        limit(Some(std::fs::metadata(&log).unwrap().len() + 2000 * round));
        let failed = said.refused.len() + said.unknown.len();
        while said.refused.len() + said.unknown.len() < failed + 3 {
            said.note(&other.hear().unwrap());
        }
        limit(None);
        let submitted = said.submitted.len();
        while said.submitted.len() == submitted {
            said.note(&other.hear().unwrap());
        }
    }
    other.kill();
    // The outcome is known to be "not applied" where the next commit succeeded, and unknown elsewhere.
    assert!(!said.refused.is_empty() && !said.unknown.is_empty());
    said.check(&path).await;
}

/// A store whose process was killed after many writes: its folder, and the paths of database and log.
fn killed() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = support::folder();
    let (path, log) = (folder.path().join("tasklane.db"), folder.path().join("tasklane.db-wal"));
    let mut other = OtherProcess::start("submit", &path);
    for _ in 0..50 {
        other.hear().unwrap();
    }
    other.kill();
    (folder, path, log)
}

async fn warnings(path: &Path) -> Vec<String> {
    Sqlite::connect(Options::new(path)).await.unwrap().warnings().to_vec()
}

/// SQLite takes the rest of the log for all of it.
#[tokio::test]
async fn a_log_that_was_lost_or_damaged_is_told_at_the_start() {
    let (_folder, path, _) = killed();
    assert_eq!(warnings(&path).await, [""; 0], "a log that is whole is not");
    assert_eq!(warnings(&path).await, [""; 0], "nor a store that was closed in order");

    let (_folder, path, log) = killed();
    let file = std::fs::File::options().write(true).open(&log).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", middle).unwrap();
    let told = warnings(&path).await;
    assert!(told[0].contains("tasklane.db-wal is damaged or cut short"), "{told:?}");
    assert_eq!(warnings(&path).await, [""; 0], "the warning appears once");

    let (_folder, path, log) = killed();
    std::fs::remove_file(&log).unwrap();
    let told = warnings(&path).await;
    assert!(told[0].contains("tasklane.db-wal is missing"), "{told:?}");
}

//! The cost of a task from end to end, counted: commits, allocations, bytes written. Clocks differ, counts
//! hardly do.
//!
//! The bounds leave some room for how the work happens to fall into batches. A change that makes tasks
//! cheaper lowers them.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]
#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tasklane::{Name, Payload, TaskRequest, Tasklane};
use tasklane_core::id::QueueKey;
use tasklane_runtime::request::RunRequest;

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The counters belong to the whole process: one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The resources used since the start of the process.
#[derive(Clone, Copy, Debug)]
struct ResourceUse {
    commits: u64,
    allocations: u64,
    bytes: u64,
}

impl ResourceUse {
    async fn now(tasklane: &Tasklane) -> Self {
        let stats = tasklane.node().stats().await.unwrap();
        let io = std::fs::read_to_string("/proc/self/io").unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        Self {
            commits: stats.lanes.iter().map(|lane| lane.commits).sum(),
            allocations: ALLOCATIONS.load(Ordering::Relaxed),
            bytes: bytes.parse().unwrap(),
        }
    }
}

const TASKS: u64 = 10_000;
const BATCH: u64 = 1_000;

async fn start(folder: &Path) -> Tasklane {
    let mut config = tasklane::config::Config { listen: None, ..tasklane::config::Config::default() };
    config.data_dir = folder.to_path_buf();
    config.worker.task_types = [Name::new("NOOP").unwrap()].into_iter().collect();
    Tasklane::builder().config(config).start().await.unwrap()
}

async fn run(tasklane: &Tasklane, tasks: u64, payload: &str) {
    let mut request =
        TaskRequest::new("cost".to_owned(), Name::new("NOOP").unwrap(), Payload::Text(payload.to_owned()));
    request.queue = Name::new("costs").unwrap();
    let mut ids = Vec::new();
    for _ in 0..tasks / BATCH {
        let requests = vec![request.clone(); usize::try_from(BATCH).unwrap()];
        for answer in tasklane.submit_all(requests).await {
            ids.push(answer.unwrap().id);
        }
    }
    // Events are sent after the commit; the count shows that all tasks are finished.
    let queue = QueueKey::new(Name::new("default").unwrap(), request.queue.clone());
    let unfinished = async {
        while tasklane.node().queue(&queue).await.unwrap().counts[..5].iter().sum::<u64>() > 0 {
            tasklane.wait(*ids.last().unwrap(), Duration::from_millis(50)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), unfinished).await.expect("all tasks finish");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_costs_no_more_than_it_did() {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tasklane = start(folder.path()).await;
    let payload = "x".repeat(200);
    // The first tasks find out how many may wait at the worker.
    run(&tasklane, BATCH, &payload).await;
    let before = ResourceUse::now(&tasklane).await;
    run(&tasklane, TASKS, &payload).await;
    let after = ResourceUse::now(&tasklane).await;
    tasklane.close().await.unwrap();

    let (commits, allocations, bytes) = (
        after.commits - before.commits,
        (after.allocations - before.allocations) / TASKS,
        (after.bytes - before.bytes) / TASKS,
    );
    println!("{TASKS} tasks: {commits} commits; each {allocations} allocations, {bytes} bytes written");
    assert!(commits <= 100, "{commits} commits for {TASKS} tasks");
    assert!(allocations <= 35, "{allocations} allocations for each task");
    assert!(bytes <= 2_000, "{bytes} bytes written for each task");
}

/// How large the database is that `work` leaves behind.
async fn stored(work: impl AsyncFnOnce(&Tasklane)) -> u64 {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tasklane = start(folder.path()).await;
    work(&tasklane).await;
    tasklane.close().await.unwrap();
    std::fs::metadata(folder.path().join("tasklane.db")).unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_run_leaves_little_more_than_its_task() {
    let _alone = ALONE.lock().await;
    let plain = stored(async |tasklane| run(tasklane, TASKS, "xxxxxxxxxx").await).await;
    let nodes: Vec<Value> = (0..TASKS)
        .map(|at| {
            let depends_on: Vec<String> = (at >= 100).then(|| format!("n{}", at - 100)).into_iter().collect();
            json!({ "name": format!("n{at}"), "taskType": "NOOP", "payload": "xxxxxxxxxx", "dependsOn": depends_on })
        })
        .collect();
    let definition = json!({ "nodes": nodes }).to_string();
    let request = RunRequest::from_json(definition.as_bytes()).unwrap();
    let in_run = stored(async |tasklane| {
        let namespace = Name::new("default").unwrap();
        let id = tasklane.node().start_run(&namespace, request).await.unwrap().id;
        while !tasklane.wait(id, Duration::from_mins(1)).await.unwrap().unwrap().row.state.status.is_final() {
        }
        let run = tasklane.node().run_view(&namespace, id).await.unwrap().unwrap();
        assert_eq!(run.counts.succeeded as u64, TASKS);
    })
    .await;
    let definition = definition.len() as u64;
    let more = in_run.saturating_sub(plain + definition) / TASKS;
    println!(
        "{TASKS} tasks: {plain} bytes; as nodes {in_run}, {definition} of them what was asked for: each {more} more"
    );
    assert!(more <= 300, "a node leaves {more} bytes more than its task");
}

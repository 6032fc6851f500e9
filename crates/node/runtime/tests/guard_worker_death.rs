//! A killed or stopped worker leaves nothing of its attempts.
//!
//! The worker is this test program itself, started again to play that part.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod guard_support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use guard_support::*;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use tasklane_runtime::guard::{Guard, GuardOptions, boottime};

/// Starts a guard with a lock and a deadline, and attempts that are hard to end. Then waits until it is
/// killed.
#[tokio::test]
#[ignore = "a part that this program plays for the other tests"]
async fn worker() {
    let lock = File::create(std::env::var("LOCK").unwrap()).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let margin = Duration::from_millis(100);
    let options =
        GuardOptions { locks: vec![Arc::new(lock)], lease_grace: margin, kill_margin: margin, ..options() };
    let guard = Guard::start(options).await.unwrap();
    if let Ok(millis) = std::env::var("LEASE_MILLIS") {
        let guard = guard.clone();
        let lease = Duration::from_millis(millis.parse().unwrap());
        tokio::spawn(async move {
            loop {
                guard.set_deadline(Some(boottime() + lease));
                tokio::time::sleep(lease / 4).await;
            }
        });
    }
    println!("pid {}", guard.pid().await);
    // More together than stay, so that some shims wait while others run an attempt.
    let mut children = Vec::new();
    for _ in 0..5 {
        let mut child = guard.spawn(script("echo up; sleep 1000")).await.unwrap();
        line(&mut child).await;
        children.push(child);
    }
    for mut child in children.drain(..) {
        child.tree.kill();
        child.tree.ended().await;
    }
    for _ in 0..3 {
        let stubborn =
            r#"trap "" TERM; setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' & wait"#;
        let mut child = guard.spawn(script(stubborn)).await.unwrap();
        println!("pid {}", child.tree.pid());
        println!("pid {}", line(&mut child).await);
        children.push(child);
    }
    println!("dir {}", guard.dir().display());
    println!("up");
    std::future::pending::<()>().await;
}

struct Worker {
    process: Child,
    guard: Pid,
    attempts: Vec<Pid>,
    /// Shims of these attempts, and idle ones.
    shims: Vec<Pid>,
    dir: String,
}

impl Worker {
    fn start(lock: &Path, lease_millis: Option<&str>) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker", "--ignored", "--nocapture"])
            .env("LOCK", lock)
            .envs(lease_millis.map(|millis| ("LEASE_MILLIS", millis)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pids = Vec::new();
        let mut dir = String::new();
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            // The harness prints the name of the test before the first line, without a line break.
            if let Some((_, number)) = line.rsplit_once("pid ") {
                pids.push(pid(number.parse().unwrap()));
            } else if let Some(path) = line.strip_prefix("dir ") {
                path.clone_into(&mut dir);
            } else if line == "up" {
                break;
            }
        }
        let guard = pids.remove(0);
        assert_eq!(pids.len(), 6);
        assert!(pids.iter().all(|&pid| runs(pid)));
        let shims = shims_of(guard);
        assert_eq!(shims.len(), 5);
        Self { process, guard, attempts: pids, shims, dir }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    async fn assert_gone(&self) {
        for &attempt in &self.attempts {
            assert!(!runs(attempt), "{attempt:?} still runs");
        }
        for &shim in &self.shims {
            gone(shim).await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Waits as the next start of a server does.
async fn take_lock(path: &Path) {
    let lock = File::open(path).unwrap();
    let taken = tokio::task::spawn_blocking(move || flock(&lock, FlockOperation::LockExclusive));
    tokio::time::timeout(PATIENCE, taken).await.expect("the lock is freed").unwrap().unwrap();
}

#[tokio::test]
async fn a_killed_worker_leaves_nothing_when_its_lock_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("lock");
    let worker = Worker::start(&lock, None);
    let held = flock(File::open(&lock).unwrap(), FlockOperation::NonBlockingLockExclusive);
    assert!(held.is_err());
    kill(worker.pid());
    take_lock(&lock).await;
    worker.assert_gone().await;
    assert!(!Path::new(&worker.dir).exists());
}

#[tokio::test]
async fn worker_and_guard_both_killed_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("lock");
    let worker = Worker::start(&lock, None);
    kill(worker.guard);
    kill(worker.pid());
    take_lock(&lock).await;
    worker.assert_gone().await;
    std::fs::remove_dir_all(&worker.dir).unwrap();
}

#[tokio::test]
async fn a_stopped_worker_leaves_nothing_after_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let worker = Worker::start(&dir.path().join("lock"), Some("4000"));
    kill_process(worker.pid(), Signal::STOP).unwrap();
    for &attempt in &worker.attempts {
        gone(attempt).await;
    }
    assert!(runs(worker.guard), "it waits for the messages of the worker after it wakes up");
}

#[tokio::test]
async fn worker_and_guard_both_stopped_leave_nothing_after_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    let worker = Worker::start(&dir.path().join("lock"), Some("4000"));
    kill_process(worker.guard, Signal::STOP).unwrap();
    kill_process(worker.pid(), Signal::STOP).unwrap();
    for &attempt in &worker.attempts {
        gone(attempt).await;
    }
    kill_process(worker.guard, Signal::CONT).unwrap();
}

/// The worker received that its guard is ready, and no process was left that could have woken the guard.
#[test]
fn a_guard_ends_if_its_worker_is_gone_before_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (program, started, go) =
        (folder.path().join("guard"), folder.path().join("started"), folder.path().join("go"));
    let text = format!(
        "#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}; while [ ! -e {1} ]; do sleep 0.01; done; exec {2}\n",
        started.display(),
        go.display(),
        env!("CARGO_BIN_EXE_tasklane-guard")
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let options = GuardOptions { program: Some(program), ..GuardOptions::default() };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // It sends hello, and ends with all its open files.
    let worker = runtime();
    let number = worker.block_on(async {
        let until_started = async {
            loop {
                match std::fs::read_to_string(&started) {
                    Ok(number) => break number,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::select! {
            _ = Guard::start(options) => panic!("it is not ready"),
            number = until_started => number,
        }
    });
    drop(worker);
    std::fs::write(&go, "").unwrap();
    runtime().block_on(gone(pid(number.trim().parse().unwrap())));
}

//! A real server on a real disk that is full.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Api, PATIENCE, PROGRAM};

/// The exit code of a shell that may not mount a disk.
const SKIPPED: i32 = 77;

/// Ended when it goes out of scope; the disk, which only it sees, goes with it.
struct OnDisk(Child);

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_tasks_and_says_so_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, log) = (folder.path().join("disk"), folder.path().join("log"));
    std::fs::create_dir(&disk).unwrap();
    let Some((server, url)) = start(&disk, &log) else { return };
    // The disk as the server sees it.
    let filler = PathBuf::from(format!("/proc/{}/root", server.0.id()))
        .join(disk.strip_prefix("/").unwrap())
        .join("filler");
    let api = Api::new(&url);
    api.submit(json!({ "taskName": "a", "taskType": "NOOP" })).await;

    std::fs::write(&filler, vec![1; 3 << 20]).unwrap();
    let large = json!({ "taskName": "large", "taskType": "nobody", "payload": "x".repeat(200 << 10) });
    let problem = loop {
        let (status, answer) = api.post("/tasks", large.clone()).await;
        if status != 201 {
            assert_eq!(status, 507, "{answer}");
            break answer;
        }
    };
    assert_eq!(problem["code"], "store_full");
    let (status, tasks) = api.get("/tasks?limit=1").await;
    assert_eq!((status, tasks["tasks"].as_array().unwrap().len()), (200, 1), "what is there can be read");

    // A lane tried five times a second for ten seconds before that was answered, and told of it twice at most.
    let lines = |text: &str| std::fs::read_to_string(&log).unwrap().matches(text).count();
    let refused = lines("the store did not do what the lane asked for");
    assert!((1..=3).contains(&refused), "{refused}: {}", std::fs::read_to_string(&log).unwrap());

    std::fs::remove_file(&filler).unwrap();
    let started = Instant::now();
    while api.post("/tasks", large.clone()).await.0 != 201 {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let id = api.submit(json!({ "taskName": "b", "taskType": "NOOP" })).await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
    assert_eq!(lines("the store does again what the lane asks for"), 1);
}

/// A server with its data on a small disk of its own; `None`, said aloud, where there cannot be one.
fn start(disk: &Path, log: &Path) -> Option<(OnDisk, String)> {
    let script = format!("mount -t tmpfs -o size=6m tmpfs \"$DISK\" || exit {SKIPPED}; exec \"$@\"");
    let log = std::fs::File::create(log).unwrap();
    let process = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh", PROGRAM, "dev", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(disk)
        .env("DISK", disk)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn();
    let mut server = match process {
        Ok(process) => OnDisk(process),
        Err(error) => return skipped(&format!("unshare: {error}")),
    };
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| {
        let line = line.ok()?;
        Some(line[line.find("http://127.0.0.1:")?..].split_whitespace().next()?.to_owned())
    });
    std::thread::spawn(move || lines.for_each(drop));
    let Some(url) = url else {
        let code = server.0.wait().unwrap().code();
        let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
        let may_mount = may_mount.is_ok_and(|status| status.success());
        assert!(code == Some(SKIPPED) || !may_mount, "the server did not start: {code:?}");
        return skipped("a disk cannot be mounted here");
    };
    Some((server, url))
}

/// Not by a macro: what those print is shown only for tests that fail.
fn skipped<T>(why: &str) -> Option<T> {
    let _ = writeln!(std::io::stderr(), "SKIPPED full_disk: {why}");
    None
}

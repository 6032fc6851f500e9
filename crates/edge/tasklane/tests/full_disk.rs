//! A real server on a real disk that is full.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Api, PATIENCE, PROGRAM, free_port};

/// A small disk that only processes of its namespace see; it goes with the last of them.
struct Disk {
    /// Holds the namespace until its input is closed.
    holder: Child,
    input: Option<ChildStdin>,
    folder: tempfile::TempDir,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.holder.wait();
    }
}

/// Killed when it goes out of scope.
struct Server {
    process: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Disk {
    /// `None`, said aloud, where there cannot be one.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=6m tmpfs \"$DISK\" && echo mounted && exec cat";
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .env("DISK", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = match holder {
            Ok(holder) => holder,
            Err(error) => return skipped(&format!("unshare: {error}")),
        };
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let disk = Self { input: holder.stdin.take(), holder, folder };
        if line.trim() == "mounted" { Some(disk) } else { skipped("a disk cannot be mounted here") }
    }

    /// A file on it, as it is seen from outside.
    fn file(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.folder.path().strip_prefix("/").unwrap()).join(name)
    }

    /// Leaves no byte.
    fn fill(&self) {
        let mut filler =
            std::fs::File::options().append(true).create(true).open(self.file("filler")).unwrap();
        for size in [64 << 10, 4 << 10, 1] {
            while filler.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.file("filler")).unwrap();
    }

    /// Starts a server whose log is this file. It may not say where it listens before there is room.
    fn start(&self, port: u16, log: &Path) -> Server {
        let url = format!("http://127.0.0.1:{port}");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let process = Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args([PROGRAM, "dev", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"])
            .arg(self.folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Server { process: process.unwrap(), url }
    }
}

/// Waits until the server is ready, or says why it is not.
async fn until_ready_is(server: &Server, wanted: u16) -> Value {
    let started = Instant::now();
    loop {
        if let Ok(answer) = reqwest::get(format!("{}/readyz", server.url)).await {
            let status = answer.status().as_u16();
            let checks = answer.json().await.unwrap();
            if status == wanted {
                return checks;
            }
        }
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn large() -> Value {
    json!({ "taskName": "large", "taskType": "nobody", "payload": "x".repeat(200 << 10) })
}

#[tokio::test]
async fn a_full_disk_refuses_tasks_and_says_so_now_and_then() {
    let Some(disk) = Disk::mount() else { return };
    let log = disk.folder.path().with_extension("log");
    let server = disk.start(free_port(), &log);
    let api = Api::new(&server.url);
    until_ready_is(&server, 200).await;
    api.submit(json!({ "taskName": "a", "taskType": "NOOP" })).await;

    std::fs::write(disk.file("filler"), vec![1; 3 << 20]).unwrap();
    let problem = loop {
        let (status, answer) = api.post("/tasks", large()).await;
        if status != 201 {
            assert_eq!(status, 507, "{answer}");
            break answer;
        }
    };
    assert_eq!(problem["code"], "store_full");
    let (status, tasks) = api.get("/tasks?limit=1").await;
    assert_eq!((status, tasks["tasks"].as_array().unwrap().len()), (200, 1), "what is there can be read");

    // A lane asks several times a second, for as long as the disk is full.
    let lines = |text: &str| std::fs::read_to_string(&log).unwrap().matches(text).count();
    let refused = lines("the store did not do what the lane asked for");
    assert!((1..=3).contains(&refused), "{refused}: {}", std::fs::read_to_string(&log).unwrap());

    disk.make_room();
    until_ready_is(&server, 200).await;
    let started = Instant::now();
    while api.post("/tasks", large()).await.0 != 201 {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let id = api.submit(json!({ "taskName": "b", "taskType": "NOOP" })).await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
    assert!(lines("the store does again what the lane asks for") <= refused);
    let _ = std::fs::remove_file(&log);
}

/// It did not start at all, or hung before it listened.
#[tokio::test]
async fn a_start_on_a_full_disk_listens_and_says_why_it_does_nothing() {
    let Some(disk) = Disk::mount() else { return };
    let log = disk.folder.path().with_extension("log");
    let port = free_port();
    let mut server = disk.start(port, &log);
    let api = Api::new(&server.url);
    until_ready_is(&server, 200).await;
    let waiting = api.submit(json!({ "taskName": "w", "taskType": "nobody" })).await;

    disk.fill();
    // Nothing is asked of it meanwhile: it looks by itself.
    let checks = until_ready_is(&server, 503).await;
    assert!(checks.to_string().contains("is full"), "{checks}");
    let explained = api.get(&format!("/tasks/{waiting}/explain")).await.1;
    assert_eq!(explained["reasons"][0]["code"], "store_full", "{explained}");

    let shm = disk.file("data/tasklane.db-shm");
    for is_gone in [false, true] {
        drop(server);
        if is_gone {
            // Without it the database cannot even be opened.
            std::fs::remove_file(&shm).unwrap();
            disk.fill();
        }
        server = disk.start(port, &log);
        let checks = until_ready_is(&server, 503).await;
        assert!(checks.to_string().contains("store"), "{checks}");
        let (status, problem) = api.post("/tasks", large()).await;
        assert_eq!((status, &problem["code"]), (507, &json!("store_full")), "{problem}");
    }
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("free space on the disk") && said.contains("free some of it"), "{said}");

    disk.make_room();
    until_ready_is(&server, 200).await;
    let id = api.submit(json!({ "taskName": "b", "taskType": "NOOP" })).await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
    assert_eq!(api.get(&format!("/tasks/{waiting}")).await.1["status"], "PENDING");
    let _ = std::fs::remove_file(&log);
}

/// Not by a macro: what those print is shown only for tests that fail.
fn skipped<T>(why: &str) -> Option<T> {
    let _ = writeln!(std::io::stderr(), "SKIPPED full_disk: {why}");
    None
}

//! The files of a real server, while others delete, move, replace and read them.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Api, PATIENCE, PROGRAM, Server};

/// A server with its data in a folder of its own, which can be moved as a whole.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// Log lines about files that a start has made private.
    fn made_private(&self) -> usize {
        let log = self.log();
        ["was readable by other users", "other users could read these files"]
            .iter()
            .map(|text| log.matches(text).count())
            .sum()
    }

    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.data().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data().with_extension("log")).unwrap()
    }

    /// Starts another server on the same data, and answers why it ended.
    async fn second(&self) -> String {
        let log = self.folder.path().join("second.log");
        let mut process = Command::new(PROGRAM)
            .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(self.data())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let ended = loop {
            match process.try_wait().unwrap() {
                Some(ended) => break ended,
                None if started.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(20)).await,
                None => {
                    let _ = process.kill();
                    break process.wait().unwrap();
                }
            }
        };
        let said = std::fs::read_to_string(log).unwrap();
        assert!(ended.code().is_some_and(|code| code != 0), "it was let in: {said}");
        said
    }
}

async fn ready(server: &Server) -> (u16, Value) {
    let answer = reqwest::get(format!("{}/readyz", server.url)).await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn until_ready_is(server: &Server, wanted: u16) -> Value {
    let started = Instant::now();
    loop {
        let (status, checks) = ready(server).await;
        if status == wanted {
            return checks;
        }
        assert!(started.elapsed() < PATIENCE, "{checks}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Starts an attempt that runs until it is stopped, and answers its process.
async fn long_attempt(api: &Api, home: &Home) -> u32 {
    let pid_file = home.folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid_file.display());
    api.submit(json!({ "taskName": "long", "taskType": "SHELL", "payload": script })).await;
    let started = Instant::now();
    loop {
        let pid = std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse().ok());
        match pid {
            Some(pid) => return pid,
            None => assert!(started.elapsed() < PATIENCE, "the attempt does not start"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_gone(pid: u32) {
    let started = Instant::now();
    while Path::new(&format!("/proc/{pid}/cwd")).exists() {
        assert!(started.elapsed() < PATIENCE, "process {pid} is not stopped");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn task() -> Value {
    json!({ "taskName": "a", "taskType": "NOOP" })
}

async fn assert_refused(api: &Api) {
    let (status, problem) = api.post("/tasks", task()).await;
    assert_eq!((status, &problem["code"]), (503, &json!("store_lost")), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("tasklane.db") && detail.contains("stop this server"), "{detail}");
}

/// Submits were acknowledged and gone after a restart, and a second server started beside the first.
#[tokio::test]
async fn a_server_whose_database_is_deleted_takes_nothing_more() {
    let home = Home::new();
    let server = Server::start(&home.data());
    let api = server.api();
    api.submit(task()).await;
    let attempt = long_attempt(&api, &home).await;
    std::fs::remove_file(home.file("tasklane.db")).unwrap();
    // The very first.
    assert_refused(&api).await;
    let checks = until_ready_is(&server, 503).await;
    assert!(checks.to_string().contains("tasklane.db was deleted or moved"), "{checks}");
    until_gone(attempt).await;
    assert!(home.log().contains("tasklane.db was deleted or moved while the server runs"), "{}", home.log());
    let refused = home.second().await;
    assert!(refused.contains("in use by process"), "{refused}");
    assert_refused(&api).await;
}

#[tokio::test]
async fn a_server_whose_log_is_deleted_takes_nothing_more() {
    let home = Home::new();
    let server = Server::start(&home.data());
    server.api().submit(task()).await;
    std::fs::remove_file(home.file("tasklane.db-wal")).unwrap();
    assert_refused(&server.api()).await;
}

#[tokio::test]
async fn a_server_whose_database_is_replaced_takes_nothing_more() {
    let home = Home::new();
    let server = Server::start(&home.data());
    server.api().submit(task()).await;
    let copy = home.file("tasklane.db.copy");
    std::fs::copy(home.file("tasklane.db"), &copy).unwrap();
    std::fs::rename(&copy, home.file("tasklane.db")).unwrap();
    // The server notices the loss although it writes nothing meanwhile.
    let checks = until_ready_is(&server, 503).await;
    assert!(checks.to_string().contains("tasklane.db was replaced"), "{checks}");
    assert_refused(&server.api()).await;
}

#[tokio::test]
async fn a_folder_that_is_moved_away_and_back_is_used_again() {
    let home = Home::new();
    let server = Server::start(&home.data());
    let api = server.api();
    api.submit(task()).await;
    let away = home.folder.path().join("away");
    std::fs::rename(home.data(), &away).unwrap();
    until_ready_is(&server, 503).await;
    assert_refused(&api).await;
    std::fs::rename(&away, home.data()).unwrap();
    until_ready_is(&server, 200).await;
    let id = api.submit(task()).await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
}

/// `rm *.lock` and a second start gave eight attempts at once where one was allowed.
#[tokio::test]
async fn lock_files_that_are_removed_let_no_second_server_in() {
    let home = Home::new();
    let mut server = Server::start(&home.data());
    let attempt = long_attempt(&server.api(), &home).await;
    let remove_locks = || {
        for entry in std::fs::read_dir(home.data()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lock") {
                std::fs::remove_file(path).unwrap();
            }
        }
    };
    remove_locks();
    let refused = home.second().await;
    assert!(refused.contains(&format!("in use by process {}", server.pid())), "{refused}");
    remove_locks();
    // The guard of a server that was killed keeps others out until it has ended the attempt.
    server.kill();
    let next = Server::start(&home.data());
    assert!(!Path::new(&format!("/proc/{attempt}/cwd")).exists(), "two attempts at once");
    next.api().submit(task()).await;
}

/// Somebody else writes to the store, whatever let them in.
#[tokio::test]
async fn an_owner_whose_lane_is_taken_by_a_stranger_stops() {
    let home = Home::new();
    let server = Server::start(&home.data());
    let api = server.api();
    let attempt = long_attempt(&api, &home).await;
    let stranger = rusqlite::Connection::open(home.file("tasklane.db")).unwrap();
    stranger.execute_batch("UPDATE lane SET epoch = epoch + 1, owner = randomblob(16)").unwrap();
    let started = Instant::now();
    loop {
        let (status, problem) = api.post("/tasks", task()).await;
        if status == 503 && problem["code"] == "store_lost" {
            assert!(
                problem["detail"].as_str().unwrap().contains("another process has taken lane"),
                "{problem}"
            );
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{problem}");
    }
    until_gone(attempt).await;
    assert!(home.log().contains("another process has taken lane"), "{}", home.log());
}

/// The folder stayed open to all, and no line of the log said so.
#[tokio::test]
async fn a_data_folder_behind_a_symlink_is_for_its_user_alone() {
    let home = Home::new();
    let folder = home.folder.path().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    let open = |mode| std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
    let mode = || folder.metadata().unwrap().mode() & 0o777;
    open(0o755);
    std::os::unix::fs::symlink(&folder, home.data()).unwrap();
    let server = Server::start(&home.data());
    assert_eq!(mode(), 0o700);
    assert_eq!(home.made_private(), 1, "{}", home.log());
    server.terminate();

    std::fs::write(folder.join("notes.txt"), "").unwrap();
    open(0o755);
    let _server = Server::start(&home.data());
    assert_eq!(mode(), 0o755);
    assert!(home.log().contains("other users can list the data folder"), "{}", home.log());
}

#[tokio::test]
async fn what_a_server_keeps_is_for_its_user_alone() {
    let home = Home::new();
    let server = Server::start(&home.data());
    let id = server.api().submit(json!({ "taskName": "a", "taskType": "SHELL", "payload": "echo hi" })).await;
    server.api().finished(&id).await;
    let open = |path: &Path| path.metadata().unwrap().mode() & 0o077 != 0;
    let entries = || -> Vec<PathBuf> {
        let within = std::fs::read_dir(home.data()).unwrap().map(|entry| entry.unwrap().path());
        within.chain([home.data()]).collect()
    };
    let assert_private = || {
        let opened: Vec<PathBuf> = entries().into_iter().filter(|path| open(path)).collect();
        assert!(opened.is_empty(), "{opened:?}");
    };
    assert!(entries().len() > 5, "{:?}", entries());
    assert_private();
    server.terminate();
    // As an earlier version left them.
    for path in entries() {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let server = Server::start(&home.data());
    assert_private();
    assert_eq!(home.made_private(), 4, "{}", home.log());
    server.terminate();
    let _server = Server::start(&home.data());
    assert_eq!(home.made_private(), 4, "one warning each: {}", home.log());
}

//! Clusters of real processes on PostgreSQL alone and on Redis alone: servers share the lanes, any of them
//! answers, and another server takes over the work of a killed one.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "what is skipped or measured is said aloud")]

#[path = "support/held_threads.rs"]
mod held_threads;
mod support;

#[path = "../../../adapters/redis/tests/support/server.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod redis;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use held_threads::HeldThreads;
use serde_json::{Value, json};
use support::{Api, PATIENCE, PROGRAM, Server};
use tasklane_testkit::{
    self as testkit, Authority, Certificate, PostgresServer, RedisCluster, RedisSentinel,
};

/// A worker process. Killed when it goes out of scope.
struct Worker(Child);

impl Worker {
    fn start(folder: &Path, name: &str, store: &str, more: &[&str]) -> Self {
        let log = File::create(folder.join(format!("{name}.log"))).unwrap();
        let process = Command::new(PROGRAM)
            .args(["worker", "--name", name, "--capacity", "4", "--store", store])
            .args(more)
            .arg("--data-dir")
            .arg(folder.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Self(process.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until an answer is as it should be.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{what} never comes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn server(folder: &Path, name: &str, store: &str, more: &[&str]) -> Server {
    let args = [&["--listen", "127.0.0.1:0", "--store", store][..], more].concat();
    Server::start_as("server", &folder.join(name), &args, &[])
}

async fn owned(api: &Api) -> usize {
    let (_, stats) = api.get("/stats").await;
    stats["lanes"].as_array().unwrap().iter().filter(|lane| lane["phase"] == "owning").count()
}

async fn workers(api: &Api, count: usize) {
    until("all workers", async || {
        let (_, found) = api.get("/workers").await;
        (found["workers"].as_array().unwrap().len() == count).then_some(())
    })
    .await;
}

fn task(queue: &str, script: &str) -> Value {
    json!({ "taskName": "t", "taskType": "SHELL", "queue": queue, "payload": script, "retryCount": 0 })
}

/// A change at one server holds for submits to another, whichever owns the lane and whatever it knew before.
async fn a_policy_holds_when_it_is_answered(folder: &Path, api: &Api, other: &Api) {
    let mut ids = Vec::new();
    for queue in ["p0", "p1", "p2", "p3"] {
        other.finished(&other.submit(task(queue, "true")).await).await;
        let one_at_a_time =
            json!({ "version": 0, "policy": { "concurrency": [{ "key": "all", "limit": 1 }] } });
        let (status, answer) = api.put(&format!("/queues/{queue}"), one_at_a_time).await;
        assert_eq!(status, 200, "{answer}");
        let (lock, overlaps) = (folder.join(queue), folder.join("overlaps"));
        let (lock, overlaps) = (lock.display(), overlaps.display());
        for _ in 0..3 {
            let script = format!("mkdir {lock} || touch {overlaps}; sleep 0.1; rmdir {lock}");
            ids.push(other.submit(task(queue, &script)).await);
        }
    }
    for id in &ids {
        other.finished(id).await;
    }
    assert!(!folder.join("overlaps").exists(), "two of one key ran at the same time");
}

/// Sessions too long to wait for: the tasks of a killed process go on because its guard closes its sessions.
const LONG: [&str; 4] = ["--set", "session.server_ttl=1h", "--set", "session.worker_ttl=1h"];

/// Kills a worker and a server in the middle of things.
async fn what_is_killed_goes_on_elsewhere(store: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Both at once: one of them makes what the store needs.
    let (first, second) = std::thread::scope(|scope| {
        let one = scope.spawn(|| server(folder, "first", store, &LONG));
        let other = scope.spawn(|| server(folder, "second", store, &LONG));
        (one.join().unwrap(), other.join().unwrap())
    });
    let mut second = second;
    let (api, other) = (first.api(), second.api());
    until("a fair share", async || (owned(&api).await == 8 && owned(&other).await == 8).then_some(())).await;
    let mut left = Worker::start(folder, "left", store, &LONG);
    let _right = Worker::start(folder, "right", store, &LONG);
    workers(&api, 2).await;

    // Whichever server is asked, and whichever owns the lane.
    for queue in ["a", "b", "c", "d"] {
        for api in [&api, &other] {
            let (status, done) = api.post("/tasks?wait=60s", task(queue, "echo hi")).await;
            assert_eq!((status, &done["status"]), (200, &json!("SUCCESS")), "{done}");
        }
    }

    a_policy_holds_when_it_is_answered(folder, &api, &other).await;

    // The attempts run until `go` exists.
    let go = folder.join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let mut ids = Vec::new();
    for number in 0..8 {
        ids.push(api.submit(task(&format!("long{number}"), &script)).await);
    }
    let mut at_left = 0;
    for id in &ids {
        let running = api.until(id, "RUNNING").await;
        at_left += usize::from(running["worker"] == "left");
    }
    assert!(at_left > 0, "nothing would be killed");
    left.kill();
    // Only a lane's owner can explain a task; every other server forwards the question.
    let waiting = api
        .submit(
            json!({ "taskName": "w", "taskType": "SHELL", "labels": { "gpu": "yes" }, "payload": "true" }),
        )
        .await;
    for api in [&api, &other] {
        let reason = until("an explanation", async || {
            let (_, explained) = api.get(&format!("/tasks/{waiting}/explain")).await;
            let reason = explained["reasons"][0]["code"].as_str()?.to_owned();
            (reason != "loading").then_some(reason)
        })
        .await;
        assert_eq!(reason, "no_capable_worker");
    }
    second.kill();
    until("the lanes of a killed server", async || (owned(&api).await == 16).then_some(())).await;
    until("all of them at the other worker", async || {
        let (_, found) = api.get("/tasks?worker=right&status=RUNNING").await;
        (found["tasks"].as_array().unwrap().len() == 4).then_some(())
    })
    .await;
    File::create(&go).unwrap();
    let mut again = 0;
    for id in &ids {
        let done = api.finished(id).await;
        assert_eq!(done["status"], "SUCCESS", "{done}");
        again += usize::from(done["lostCount"] == 1);
    }
    assert_eq!(again, at_left, "what ran at the killed worker was lost, and nothing else was");
    first.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_killed_goes_on_elsewhere_on_redis() {
    let Some(redis) = redis::RedisServer::start() else { return };
    what_is_killed_goes_on_elsewhere(&redis.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_killed_goes_on_elsewhere_on_postgres() {
    // No process gets in without a certificate, and the guard's process that ends the sessions of a killed one needs it too.
    let Some(authority) = Authority::new() else { return };
    let Some(postgres) = PostgresServer::start_tls(&authority, &authority.local_server()) else { return };
    postgres.admit(&["hostssl all all 127.0.0.1/32 cert"]);
    let (root, Certificate { cert, key }) = (authority.ca(), authority.client("tasklane"));
    let files = format!("sslrootcert={}&sslcert={}&sslkey={}", root.display(), cert.display(), key.display());
    what_is_killed_goes_on_elsewhere(&format!("{}?sslmode=verify-full&{files}", postgres.url())).await;
}

/// How long workers may take to find a restarted server. Before, it took them up to 12 seconds, and the first of them to come
/// got all tasks that waited.
const FOUND_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_outlive_their_server_share_the_tasks_of_the_next_one() {
    let Some(postgres) = PostgresServer::start() else { return };
    let (folder, store) = (tempfile::tempdir().unwrap(), postgres.url());
    let folder = folder.path();
    let first = server(folder, "server", &store, &[]);
    let names = ["a", "b", "c"];
    let _workers = names.map(|name| Worker::start(folder, name, &store, &[]));
    // Each of them is connected: it runs what only it may run.
    for name in names {
        let mut task = task("before", "true");
        task["labels"] = json!({ "tasklane.worker": name });
        let done = first.api().finished(&first.api().submit(task).await).await;
        assert_eq!(done["worker"], name, "{done}");
    }
    first.terminate();
    let second = server(folder, "server", &store, &[]);
    let api = second.api();
    until("the lanes", async || (owned(&api).await == 16).then_some(())).await;
    tokio::time::sleep(FOUND_WITHIN).await;

    // Half of what they have room for, so that two of them could take it all.
    let tasks: Vec<Value> = (0..6).map(|_| task("after", "sleep 1")).collect();
    let (status, answer) = api.post("/tasks/batch", json!({ "tasks": tasks })).await;
    assert_eq!(status, 200, "{answer}");
    let mut taken = BTreeMap::new();
    for result in answer["results"].as_array().unwrap() {
        let done = api.finished(result["taskId"].as_str().unwrap()).await;
        *taken.entry(done["worker"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(taken.len(), names.len(), "{taken:?}");
}

/// The guard of a process.
fn guard_of(pid: u32) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> =
        children.flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    let is_guard = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"tasklane-guard"))
    };
    children.into_iter().find(is_guard)
}

/// A server starts nothing that would show it that its guard is gone. Before, it had none until its next start, and should it
/// have been killed then, its lanes would have waited for a TTL.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_killed_is_replaced() {
    let Some(redis) = redis::RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut first = server(folder.path(), "first", &redis.url(), &LONG);
    let second = server(folder.path(), "second", &redis.url(), &LONG);
    let api = second.api();
    until("a fair share", async || (owned(&api).await == 8).then_some(())).await;
    let guard = guard_of(first.pid()).unwrap();
    let pid = rustix::process::Pid::from_raw(guard.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let log = folder.path().join("first.log");
    until("another guard", async || {
        std::fs::read_to_string(&log).unwrap().contains("another guard knows the sessions").then_some(())
    })
    .await;
    assert!(guard_of(first.pid()).is_some_and(|new| new != guard));
    first.kill();
    until("the lanes of a killed server", async || (owned(&api).await == 16).then_some(())).await;
}

/// `--listen` of a worker did nothing, and no answer named the address of a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_answers_health_checks_and_has_an_address() {
    let Some(redis) = redis::RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), "server", &redis.url(), &[]);
    let mut worker = Command::new(PROGRAM)
        .args(["--json", "worker", "--name", "w", "--listen", "127.0.0.1:0", "--store", &redis.url()])
        .arg("--data-dir")
        .arg(folder.path().join("w"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.path().join("w.log")).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _worker = Worker(worker);
    let started: Value = serde_json::from_str(&line).unwrap();
    let listens = started["listen"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
    let ask = async |path: &str| {
        let answer = reqwest::get(format!("http://{listens}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let api = server.api();
    workers(&api, 1).await;
    let (_, found) = api.get("/workers/w").await;
    assert_eq!(found["address"], listens, "{found}");
    assert_eq!(ask("/healthz").await, (200, "ok\n".to_owned()));
    until("readiness", async || {
        let (status, text) = ask("/readyz").await;
        (status == 200 && text.contains("\"ready\":true")).then_some(())
    })
    .await;
    assert_eq!(ask("/api/v1/tasks").await.0, 404);

    // Another one without health checks: its machine is known.
    let _other = Worker::start(folder.path(), "other", &redis.url(), &[]);
    workers(&api, 2).await;
    let (_, found) = api.get("/workers/other").await;
    assert_eq!(found["address"], "127.0.0.1", "{found}");

    // While it drains it lives, and is not ready.
    let held = json!({ "labels": { "tasklane.worker": "w" } });
    let mut long = task("held", "sleep 60");
    long.as_object_mut().unwrap().extend(held.as_object().unwrap().clone());
    let id = api.submit(long).await;
    api.until(&id, "RUNNING").await;
    api.post("/workers/w/drain", json!({})).await;
    until("the drain", async || {
        let (status, text) = ask("/readyz").await;
        (status == 503 && text.contains("drains")).then_some(())
    })
    .await;
    assert_eq!(ask("/healthz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_come_by_message_on_redis() {
    let Some(redis) = redis::RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), "server", &redis.url(), &[]);
    let _worker = Worker::start(folder.path(), "worker", &redis.url(), &[]);
    redis.command(&["LPUSH", "tasklane:inbox", &task("by-message", "echo hi").to_string(), "{\"no\":1}"]);
    let api = server.api();
    let id = until("the task", async || {
        let (_, found) = api.get("/tasks?queue=by-message").await;
        Some(found["tasks"][0]["taskId"].as_str()?.to_owned())
    })
    .await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
    let dead = until("the dead letter", async || {
        let dead = redis.command(&["LRANGE", "tasklane:inbox:dead", "0", "-1"]);
        dead.contains("no").then_some(dead)
    })
    .await;
    assert!(dead.contains("is not a known field"), "{dead}");
}

/// The real program on a Redis Cluster, over TLS and behind sentinels: everything that `redis://` is.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_on_every_kind_of_redis() {
    let Some(authority) = Authority::new() else { return };
    let (cluster, sentinels) = (RedisCluster::start(), RedisSentinel::start());
    let encrypted = testkit::RedisServer::start_tls(&authority, false, testkit::redis::IN_MEMORY);
    let (Some(cluster), Some(sentinels), Some(encrypted)) = (cluster, sentinels, encrypted) else { return };
    for (store, warning) in
        [(cluster.url(), "disk"), (sentinels.url(), "failover"), (encrypted.url(), "disk")]
    {
        let folder = tempfile::tempdir().unwrap();
        let server = server(folder.path(), "server", &store, &[]);
        let _worker = Worker::start(folder.path(), "worker", &store, &[]);
        let api = server.api();
        let (status, done) = api.post("/tasks?wait=60s", task("one", "echo done")).await;
        assert_eq!((status, &done["status"]), (200, &json!("SUCCESS")), "{store}: {done}");
        let ready = reqwest::get(format!("{}/readyz", server.url)).await.unwrap().text().await.unwrap();
        assert!(ready.contains(warning), "{store}: {ready}");
    }
    // An authority that is not trusted ends the start at once, with the remedy.
    let folder = tempfile::tempdir().unwrap();
    let store = format!("rediss://127.0.0.1:{}", encrypted.port());
    let other = Authority::new().unwrap();
    let store = format!("{store}?sslrootcert={}", other.ca().display());
    let refused = Command::new(PROGRAM)
        .args(["server", "--listen", "127.0.0.1:0", "--store", &store, "--data-dir"])
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("sslrootcert="), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_tasks_are_archived_on_postgres() {
    let Some(postgres) = PostgresServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let archive = format!("archive={}", postgres.url());
    let server = server(folder.path(), "server", &postgres.url(), &["--set", &archive]);
    let _worker = Worker::start(folder.path(), "worker", &postgres.url(), &[]);
    let id = server.api().submit(task("kept", "exit 3")).await;
    server.api().finished(&id).await;
    let row = until("the archived task", async || {
        let row = postgres.sql("SELECT id, queue, status, result_code FROM tasklane.archived_task");
        (!row.trim().is_empty()).then_some(row)
    })
    .await;
    assert!(
        row.contains(&id) && row.contains("kept") && row.contains("FAILED") && row.contains('3'),
        "{row}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_held_up_gives_its_lanes_to_others_and_can_be_ended() {
    let Some(redis) = redis::RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut first = server(folder, "first", &redis.url(), &[]);
    let second = server(folder, "second", &redis.url(), &[]);
    let (api, other) = (first.api(), second.api());
    let fair = async || (owned(&api).await == 8 && owned(&other).await == 8).then_some(());
    until("a fair share", fair).await;
    let complaints = || {
        let log = std::fs::read_to_string(folder.join("first.log")).unwrap();
        log.matches("have not answered for 3 s").count()
    };

    let held = HeldThreads::named("tokio-rt-worker", first.pid());
    until("the takeover", async || (owned(&other).await == 16).then_some(())).await;
    until("the complaint", async || (complaints() == 1).then_some(())).await;
    drop(held);
    until("a fair share again", fair).await;

    // A signal needs none of the threads that are held up.
    let held = HeldThreads::named("tokio-rt-worker", first.pid());
    let pid = rustix::process::Pid::from_child(&first.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // It has ended when its first thread has; the others are there until they are no longer held.
    let stat = format!("/proc/{}/stat", first.pid());
    until("the end", async || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')).then_some(())
    })
    .await;
    drop(held);
    assert!(!first.process.wait().unwrap().success());
    until("the second takeover", async || (owned(&other).await == 16).then_some(())).await;
}

#[test]
fn the_number_of_lanes_is_agreed_on() {
    let Some(redis) = redis::RedisServer::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    drop(server(folder.path(), "first", &redis.url(), &["--set", "lanes=4"]));
    let refused = Command::new(PROGRAM)
        .args([
            "server",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &redis.url(),
            "--set",
            "lanes=5",
            "--data-dir",
        ])
        .arg(folder.path().join("second"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("has 4 lanes, and `lanes` is 5"), "{said}");
}

/// Three servers and ten workers that have nothing to do ask the store for less than this in a second.
const IDLE_MAX: u64 = 20;

async fn idle_asks_for_little(store: &str, statements: impl Fn() -> u64) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let servers: Vec<Server> = ["a", "b", "c"].iter().map(|name| server(folder, name, store, &[])).collect();
    let _workers: Vec<Worker> =
        (0..10).map(|number| Worker::start(folder, &format!("w{number}"), store, &[])).collect();
    let api = servers[0].api();
    workers(&api, 10).await;
    until("the work of all servers", async || {
        let mut owned_by_all = 0;
        for server in &servers {
            owned_by_all += owned(&server.api()).await;
        }
        (owned_by_all == 16).then_some(())
    })
    .await;
    let (_, done) = api.post("/tasks?wait=60s", task("one", "true")).await;
    assert_eq!(done["status"], "SUCCESS", "{done}");
    // The last writes are stored, and all processes are idle.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (before, began) = (statements(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let asked = statements() - before;
    let rate = asked / began.elapsed().as_secs();
    println!("{rate} statements a second");
    assert!(rate < IDLE_MAX, "{rate} statements a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_asks_redis_for_little() {
    let Some(redis) = redis::RedisServer::start() else { return };
    // The number of all calls, messages between members too; calls inside a script are a part of its call.
    let asked = Arc::new(AtomicU64::new(0));
    let mut monitor = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        let is_counted = |line: &String| !line.contains(" lua] ");
        for _ in BufReader::new(monitor).lines().map_while(Result::ok).filter(is_counted) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    idle_asks_for_little(&redis.url(), || asked.load(Ordering::Relaxed)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_asks_postgres_for_little() {
    let Some(postgres) = PostgresServer::start() else { return };
    idle_asks_for_little(&postgres.url(), || {
        // Each statement is a transaction of its own.
        let counted =
            "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname = 'postgres'";
        postgres.sql(counted).trim().parse().unwrap()
    })
    .await;
}

//! Webhooks of a server that is killed again and again, sent to a receiver that checks signatures by itself.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Api, PATIENCE, Server, free_port};
use tasklane_core::rng::Rng;

const TASKS: usize = 400;
const KILLS: usize = 8;

/// The receiver of the example. Killed when it goes out of scope.
struct Receiver {
    process: Child,
    told: mpsc::Receiver<Value>,
    url: String,
}

impl Receiver {
    fn start(secret: &str) -> Self {
        let mut process = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/webhook/receiver.py"))
            .env("WEBHOOK_SECRET", secret)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
        let port = said.next().unwrap().unwrap().rsplit(' ').next().unwrap().to_owned();
        std::thread::spawn(move || said.for_each(drop));
        let (tell, told) = mpsc::channel();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { process, told, url: format!("http://127.0.0.1:{port}/hook") }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Submits until the server, whichever it is, has answered.
async fn submit_all(api: &Api, hook: &Value) -> BTreeMap<String, &'static str> {
    let mut tasks = BTreeMap::new();
    for number in 0..TASKS {
        let (task_type, payload, event) = match number % 3 {
            0 => ("NOOP", json!(null), "task.succeeded"),
            1 => ("SHELL", json!("sleep 0.01"), "task.succeeded"),
            _ => ("SHELL", json!("exit 1"), "task.failed"),
        };
        let task = json!({
            "taskName": format!("t{number}"), "taskType": task_type, "payload": payload, "retryCount": 0,
            "requestId": format!("r{number}"), "webhooks": [hook],
        });
        let id = loop {
            match api.try_post("/tasks", &task).await {
                Ok((200 | 201, answer)) => break answer["taskId"].as_str().unwrap().to_owned(),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        tasks.insert(id, event);
    }
    tasks
}

async fn all_deliveries(api: &Api) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = api.get(&format!("/webhooks/deliveries?limit=1000{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        all.extend(page["deliveries"].as_array().unwrap().iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_is_told_once_however_often_the_server_is_killed() {
    let mut rng = Rng::new(u64::from(std::process::id()));
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || Server::start_with(&data, &["--listen", &listen], &[]);
    let mut server = start();
    let (_, secret) = server.api().get("/webhooks/secret").await;
    let receiver = Receiver::start(secret["secret"].as_str().unwrap());
    let (api, hook) = (server.api(), json!({ "url": receiver.url, "on": ["finished"] }));
    let submitting = tokio::spawn(async move { submit_all(&api, &hook).await });
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(50 + rng.below(500))).await;
        server.kill();
        server = start();
    }
    let tasks = tokio::time::timeout(PATIENCE, submitting).await.expect("all were submitted").unwrap();
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let begun = Instant::now();
    while told.len() < tasks.len() {
        let left = PATIENCE.checked_sub(begun.elapsed()).expect("in time");
        let message = receiver.told.recv_timeout(left).unwrap();
        let task = message["data"]["taskId"].as_str().unwrap().to_owned();
        told.entry(task).or_default().insert(message["type"].as_str().unwrap().to_owned());
    }
    for (task, events) in &told {
        // An attempt that a kill has hit is run again; the receiver gets the outcome of the last one.
        assert_eq!(events.len(), 1, "{task}: {events:?}");
        assert_eq!(events.first().map(String::as_str), tasks.get(task).copied(), "{task}");
    }
    let api = server.api();
    let deliveries = loop {
        let all = all_deliveries(&api).await;
        if all.iter().all(|delivery| delivery["finishedAt"].is_string()) {
            break all;
        }
        assert!(begun.elapsed() < PATIENCE, "deliveries do not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let about: BTreeSet<&str> = deliveries.iter().map(|one| one["taskId"].as_str().unwrap()).collect();
    assert_eq!((deliveries.len(), about.len()), (TASKS, TASKS), "one delivery for each task");
    assert!(deliveries.iter().all(|delivery| delivery["status"] == "SUCCESS"));
    server.terminate();
    let database = rusqlite::Connection::open(data.join("tasklane.db")).unwrap();
    let notes: i64 =
        database.query_row("SELECT count(*) FROM record WHERE kind = 3", [], |row| row.get(0)).unwrap();
    assert_eq!(notes, 0, "everything was looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_away_is_told_later_and_a_wrong_secret_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let (_, secret) = api.get("/webhooks/secret").await;
    let liar = Receiver::start("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let tested = server.cli(&["webhook", "test", &liar.url]).output().unwrap();
    let remark = String::from_utf8_lossy(&tested.stderr);
    assert_eq!(tested.status.code(), Some(1), "{remark}");
    assert!(remark.contains("the receiver answered 401"), "{remark}");
    let honest = Receiver::start(secret["secret"].as_str().unwrap());
    let tested = server.cli(&["webhook", "test", &honest.url]).output().unwrap();
    assert_eq!(tested.status.code(), Some(0), "{}", String::from_utf8_lossy(&tested.stderr));
    assert_eq!(honest.told.recv_timeout(PATIENCE).unwrap()["type"], "test");
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let id =
        api.submit(json!({ "taskName": "t", "taskType": "NOOP", "webhooks": [{ "url": nobody }] })).await;
    let begun = Instant::now();
    let delivery = loop {
        let (_, page) = api.get(&format!("/webhooks/deliveries?task={id}")).await;
        if let Some(delivery) = page["deliveries"].get(0).filter(|one| one["status"] == "RETRYING") {
            break delivery.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(delivery["error"]["code"], "http_connect");
    assert!(delivery["nextAttemptAt"].is_string());
    // An unwanted delivery is cancelled as any task.
    let (status, _) = api.delete(&format!("/tasks/{}", delivery["deliveryId"].as_str().unwrap())).await;
    assert_eq!(status, 202);
}

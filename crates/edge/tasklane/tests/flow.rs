//! Limits by key with the real program, real processes and `kill -9`.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Api, Server};

/// A process that holds the lock of its key for a moment, and says so if another one has it.
fn locking(folder: &Path, key: &str) -> Value {
    let (lock, faults) = (folder.join(key), folder.join("overlaps"));
    let script = format!("flock -n {} sleep 0.05 || echo {key} >> {}", lock.display(), faults.display());
    json!({ "taskName": key, "taskType": "SHELL", "payload": script, "queue": "q", "metadata": { "key": key } })
}

async fn unfinished(api: &Api) -> u64 {
    let (_, queue) = api.get("/queues/q").await;
    let states = ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "RETRYING"];
    states.iter().map(|state| queue["counts"][state].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn one_at_a_time_of_each_key_whatever_is_killed() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut server = Server::start(&data);
    let limit =
        json!({ "version": 0, "policy": { "concurrency": [{ "key": "{{ metadata.key }}", "limit": 1 }] } });
    assert_eq!(server.api().put("/queues/q", limit).await.0, 200);
    let tasks: Vec<Value> = (0..90).map(|n| locking(folder.path(), KEYS[n % 3])).collect();
    let (status, answer) = server.api().post("/tasks/batch", json!({ "tasks": tasks })).await;
    assert_eq!(status, 200, "{answer}");
    for left in [75, 50, 25] {
        while unfinished(&server.api()).await > left {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.kill();
        server = Server::start(&data);
    }
    while unfinished(&server.api()).await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!folder.path().join("overlaps").exists(), "two of one key ran at the same time");
    let (_, queue) = server.api().get("/queues/q").await;
    assert_eq!(queue["counts"]["SUCCESS"], 90, "{queue}");
    server.terminate();
}

fn printed(server: &Server, args: &[&str]) -> String {
    let output = server.cli(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out.into_owned()
}

#[tokio::test]
async fn the_command_line_sets_limits_and_shows_keys() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let tenant = "{{ metadata.tenant }}";
    let set =
        ["queue", "set", "q", "--key", tenant, "--concurrency", "1", "--rate", "100/1m", "--burst", "9"];
    assert!(printed(&server, &set).contains(tenant));
    let submit = [
        "submit",
        "--queue",
        "q",
        "--metadata",
        "tenant=acme",
        "--json",
        "--type",
        "SHELL",
        "--payload",
        "sleep 60",
    ];
    let id = |text: &str| serde_json::from_str::<Value>(text).unwrap()["taskId"].as_str().unwrap().to_owned();
    let first = id(&printed(&server, &submit));
    server.api().until(&first, "RUNNING").await;
    let second = id(&printed(&server, &submit));
    let keys = printed(&server, &["queue", "keys", "q"]);
    let row = keys.lines().find(|line| line.contains("acme")).unwrap();
    assert!(row.contains(tenant) && row.contains("100/1m"), "{keys}");
    let why = printed(&server, &["explain", &second]);
    assert!(why.contains("\"acme\"") && why.contains(&first), "{why}");
    let unique = ["submit", "--unique", "nightly", "--delay", "1h", "--json", "--type", "NOOP"];
    assert_eq!(id(&printed(&server, &unique)), id(&printed(&server, &unique)));
    let own =
        ["submit", "--concurrency", "api=1", "--rate", "api=9/1s", "--json", "--type", "nobody-offers-it"];
    id(&printed(&server, &own));
    assert!(printed(&server, &["queue", "keys", "default"]).contains("(of a task)"));
    for args in [
        &["queue", "set", "q", "--key", "{{ tenant }}", "--concurrency", "1"][..],
        &["submit", "--concurrency", "api", "--type", "NOOP"],
    ] {
        assert!(!server.cli(args).output().unwrap().status.success(), "{args:?}");
    }
    for task in [first, second] {
        printed(&server, &["cancel", &task]);
    }
    server.terminate();
}

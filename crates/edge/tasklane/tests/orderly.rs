//! Workers that leave in an orderly way: no attempt is lost, and stopped attempts can clean up.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::Server;

/// Attempts are stopped at once when the server is asked to end.
const HASTY: [&str; 4] = ["--listen", "127.0.0.1:0", "--set", "worker.drain_grace=0s"];

async fn lines(file: &Path, wanted: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    for _ in 0..6_000 {
        if read().lines().count() >= wanted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    read().lines().map(str::to_owned).collect()
}

fn outcomes(task: &Value) -> Vec<&str> {
    task["attempts"].as_array().unwrap().iter().map(|a| a["outcome"].as_str().unwrap_or("none")).collect()
}

#[tokio::test]
async fn a_long_task_survives_seven_orderly_restarts() {
    const RESTARTS: usize = 7;
    let folder = tempfile::tempdir().unwrap();
    let [data, begun, tidied] = ["data", "begun", "tidied"].map(|name| folder.path().join(name));
    let script = format!(
        "trap 'sleep 0.2; echo tidied >> {tidied}; exit 1' TERM; echo begun >> {begun}; \
         if [ $(wc -l < {begun}) -gt {RESTARTS} ]; then exit 0; fi; while :; do sleep 0.05; done",
        begun = begun.display(),
        tidied = tidied.display(),
    );
    let mut server = Server::start_with(&data, &HASTY, &[]);
    let task = json!({"taskName": "long", "taskType": "SHELL", "payload": script, "retryCount": 0});
    let id = server.api().submit(task).await;
    for restart in 1..=RESTARTS {
        assert_eq!(lines(&begun, restart).await.len(), restart);
        server.terminate();
        assert_eq!(lines(&tidied, 0).await.len(), restart, "the trap did not run to its end");
        server = Server::start_with(&data, &HASTY, &[]);
    }
    let task = server.api().finished(&id).await;
    assert_eq!(task["status"], "SUCCESS", "{task}");
    let mut expected = vec!["HANDED_BACK"; RESTARTS];
    expected.push("SUCCESS");
    assert_eq!(outcomes(&task), expected, "{task}");
    server.terminate();
}

#[tokio::test]
async fn an_attempt_that_ends_well_when_its_worker_leaves_has_succeeded() {
    let folder = tempfile::tempdir().unwrap();
    let [data, begun] = ["data", "begun"].map(|name| folder.path().join(name));
    let script = format!(
        "trap 'echo done; exit 0' TERM; echo begun > {}; while :; do sleep 0.05; done",
        begun.display()
    );
    let server = Server::start_with(&data, &HASTY, &[]);
    let id = server.api().submit(json!({"taskName": "a", "taskType": "SHELL", "payload": script})).await;
    lines(&begun, 1).await;
    server.terminate();
    let server = Server::start_with(&data, &HASTY, &[]);
    let task = server.api().finished(&id).await;
    assert_eq!((&task["status"], outcomes(&task)), (&json!("SUCCESS"), vec!["SUCCESS"]), "{task}");
    server.terminate();
}

#[tokio::test]
async fn a_drained_worker_gives_back_what_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let [data, begun, tidied] = ["data", "begun", "tidied"].map(|name| folder.path().join(name));
    let script = format!(
        "trap 'echo tidied > {}; exit 1' TERM; echo begun > {}; while :; do sleep 0.05; done",
        tidied.display(),
        begun.display()
    );
    let server = Server::start_with(&data, &HASTY, &[]);
    let api = server.api();
    let id =
        api.submit(json!({"taskName": "a", "taskType": "SHELL", "payload": script, "retryCount": 0})).await;
    lines(&begun, 1).await;
    let (_, workers) = api.get("/workers").await;
    let worker = workers["workers"][0]["name"].as_str().unwrap_or_else(|| panic!("{workers}")).to_owned();
    let (status, answer) = api.post(&format!("/workers/{worker}/drain"), json!({})).await;
    assert_eq!(status, 200, "{answer}");
    let task = api.until(&id, "PENDING").await;
    assert_eq!(outcomes(&task), ["HANDED_BACK"], "{task}");
    assert_eq!(lines(&tidied, 1).await, ["tidied"]);
    server.terminate();
}

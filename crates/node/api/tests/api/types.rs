//! Misspelt task types, and payloads that built-in types refuse: refused before anything is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tasklane_core::id::{Name, SessionId};
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_ports::{Coordinator, OpenSession};

use crate::support::{Server, task_with};

fn task(task_type: &str, payload: &Value) -> Value {
    task_with(task_type, json!({ "payload": payload }))
}

/// Type, payload, field.
fn wrong() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("SHELL", json!(""), "payload"),
        ("SHELL", json!(17), "payload"),
        ("SHELL", json!({ "argv": "ls -l" }), "payload.argv"),
        ("SHELL", json!({ "argv": ["ls", 1] }), "payload.argv"),
        ("SHELL", json!({ "script": "ls", "shell": "bash" }), "payload.shell"),
        ("SHELL", json!({ "script": "ls", "env": { "A": 1 } }), "payload.env.A"),
        ("PYTHON_SCRIPT", json!({}), "payload.script"),
        ("PYTHON_SCRIPT", json!({ "script": "1", "args": "x" }), "payload.args"),
        ("HTTP", json!("https://example.com"), "payload"),
        ("HTTP", json!({ "method": "GET" }), "payload.url"),
        ("HTTP", json!({ "url": "ftp://example.com" }), "payload.url"),
        ("HTTP", json!({ "url": "https://example.com", "expectStatus": "ok" }), "payload.expectStatus"),
    ]
}

/// The task was stored, and failed when a worker looked at it.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_of_built_in_types_are_checked_at_the_submit() {
    let server = Server::start().await;
    for (task_type, payload, field) in wrong() {
        let refused = server.post("/api/v1/tasks", &task(task_type, &payload)).await;
        refused.problem(422, "invalid_value", Some(field));
        let batch = json!({ "tasks": [task("NOOP", &json!(1)), task(task_type, &payload)] });
        let results = server.post("/api/v1/tasks/batch", &batch).await.json();
        let error = &results["results"][1]["error"];
        assert_eq!((&error["code"], &error["field"]), (&json!("invalid_value"), &json!(field)), "{results}");
        assert!(results["results"][0]["taskId"].is_string(), "{results}");
    }
    let listed = server.get("/api/v1/tasks?limit=100").await.json();
    assert!(listed["tasks"].as_array().unwrap().iter().all(|task| task["taskType"] == "NOOP"), "{listed}");
    for (task_type, payload) in [
        ("SHELL", json!("echo hi")),
        ("SHELL", json!({ "argv": ["ls"], "cwd": "/", "stdin": "x", "env": { "A": "1" } })),
        ("PYTHON_SCRIPT", json!({ "file": "/srv/a.py", "args": ["x"] })),
        ("HTTP", json!({ "url": "https://example.com", "body": { "a": 1 }, "expectStatus": [200] })),
        ("NOOP", json!([1, 2])),
    ] {
        server.submit(task(task_type, &payload)).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_checked_in_schedules_workflows_and_maps_where_they_hold_no_expressions() {
    let server = Server::start().await;
    let put = async |path: &str, body: &Value| server.request("PUT", path).json(body).send().await;
    let bad = json!({ "argv": "ls -l" });
    let schedule = |payload: &Value| json!({ "cron": "0 3 * * *", "task": task("SHELL", payload) });
    let refused = put("/api/v1/schedules/s", &schedule(&bad)).await;
    refused.problem(422, "invalid_value", Some("task.payload.argv"));
    let nodes = |payload: &Value| json!([{ "name": "a", "taskType": "SHELL", "payload": payload }]);
    let refused = put("/api/v1/workflows/w", &json!({ "nodes": nodes(&bad) })).await;
    refused.problem(422, "invalid_value", Some("nodes[0].payload.argv"));
    let run = json!({ "name": "r", "nodes": nodes(&bad) });
    let refused = server.post("/api/v1/workflows/runs", &run).await;
    refused.problem(422, "invalid_value", Some("nodes[0].payload.argv"));
    let scheduled = json!({ "cron": "0 3 * * *", "workflow": run });
    let refused = put("/api/v1/schedules/s", &scheduled).await;
    refused.problem(422, "invalid_value", Some("workflow.nodes[0].payload.argv"));
    let map = |payload: &Value| task_with("SHELL", json!({ "payload": payload, "map": { "items": ["a"] } }));
    let refused = server.post("/api/v1/tasks", &map(&bad)).await;
    refused.problem(422, "invalid_value", Some("payload.argv"));
    let mut reduced = map(&json!({ "argv": ["echo", "{{ item }}"] }));
    reduced["map"]["reduce"] = json!({ "taskName": "r", "taskType": "shell" });
    let refused = server.post("/api/v1/tasks", &reduced).await;
    refused.problem(422, "invalid_value", Some("map.reduce.taskType"));
    for path in ["/api/v1/schedules/s", "/api/v1/workflows/w"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    assert_eq!(server.get("/api/v1/tasks").await.json()["tasks"], json!([]), "nothing is stored");

    // Whether these fit is known when they are rendered.
    let later = json!([
        { "name": "a", "taskType": "NOOP" },
        { "name": "b", "taskType": "SHELL", "dependsOn": ["a"], "payload": { "argv": "{{ nodes.a.result.data }}" } },
    ]);
    assert_eq!(put("/api/v1/workflows/w", &json!({ "nodes": later })).await.status, 201);
    server.submit(map(&json!({ "argv": "{{ item }}" }))).await;
    server.submit(task_with("echo", json!({ "payload": null, "map": { "items": ["a"] } }))).await;
    server.close().await;
}

/// `shell` and `GRPC` were accepted, and their tasks waited without end.
#[tokio::test(flavor = "multi_thread")]
async fn types_that_are_slips_are_refused_with_a_hint() {
    let server = Server::start().await;
    let executor = json!({ "command": ["convert"] });
    let put = server.request("PUT", "/api/v1/executors/resize").json(&executor).send().await;
    assert_eq!(put.status, 201, "{}", put.text);
    let slips = [("shell", "SHELL"), ("PYTHON", "PYTHON_SCRIPT"), ("HTTPS", "HTTP"), ("Resize", "resize")];
    for (wrong, meant) in slips {
        let refused = server.post("/api/v1/tasks", &task(wrong, &json!("x"))).await;
        let problem = refused.problem(422, "invalid_value", Some("taskType"));
        let hint = format!("did you mean {meant:?}?");
        assert!(problem["detail"].as_str().unwrap().contains(&hint), "{problem}");
    }
    let refused = server.post("/api/v1/tasks", &task("GRPC", &json!({}))).await;
    let problem = refused.problem(422, "invalid_value", Some("taskType"));
    assert!(problem["detail"].as_str().unwrap().contains("is not built yet"), "{problem}");
    assert_eq!(server.get("/api/v1/tasks").await.json()["tasks"], json!([]), "nothing is stored");

    // A worker may bring any type, and may come after its first task.
    let id = server.submit(task("ours", &json!("x"))).await;
    let explained = server.get(&format!("/api/v1/tasks/{id}/explain")).await.json();
    assert_eq!(explained["reasons"][0]["code"], "no_capable_worker", "{explained}");
    let descriptor = WorkerDescriptor {
        name: Name::new("own").unwrap(),
        capacity: 1,
        weight: 1,
        labels: BTreeMap::new(),
        task_types: BTreeSet::from([Name::new("shell").unwrap(), Name::new("GRPC").unwrap()]),
        draining: false,
        pause_reason: None,
        address: String::new(),
    };
    let session = SessionId::from_random(7);
    let open = OpenSession { session, role: Role::Worker(descriptor), ttl: Duration::from_mins(1) };
    server.coordinator.open(open).await.unwrap();
    while server.get("/api/v1/workers/own").await.status != 200 {
        tokio::task::yield_now().await;
    }
    server.submit(task("shell", &json!({ "any": "thing" }))).await;
    server.submit(task("GRPC", &json!({}))).await;
    server.close().await;
}

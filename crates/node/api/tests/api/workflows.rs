//! Workflows, runs and tasks that become many, over REST.

use crate::support::{Answer, Server, task_with};
use serde_json::{Value, json};

async fn start(server: &Server, body: &Value) -> Answer {
    server.post("/api/v1/workflows/runs", body).await
}

/// Runs to the end.
async fn run(server: &Server, body: &Value) -> Value {
    let started = start(server, body).await;
    assert_eq!(started.status, 201, "{}", started.text);
    let id = started.json()["runId"].as_str().expect("an id").to_owned();
    server.get(&format!("/api/v1/workflows/runs/{id}?wait=60s")).await.json()
}

fn two() -> Value {
    json!({ "nodes": [
        { "name": "a", "taskType": "echo", "payload": "{{ input.word }}" },
        { "name": "b", "dependsOn": ["a"], "taskType": "echo", "payload": "{{ nodes.a.result.data }}!" },
    ] })
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_with_every_node() {
    let server = Server::start().await;
    let body =
        with(two(), &json!({ "input": { "word": "hello" }, "requestId": "r1", "metadata": { "team": "x" } }));
    let done = run(&server, &body).await;
    assert_eq!((&done["status"], &done["name"]), (&json!("SUCCESS"), &json!("workflow")));
    assert_eq!(done["input"], json!({ "word": "hello" }));
    assert_eq!((&done["metadata"]["team"], &done["requestId"]), (&json!("x"), &json!("r1")));
    assert_eq!(done["counts"]["succeeded"], 2);
    assert_eq!(done["nodes"][1]["result"]["data"], "hello!");
    assert_eq!(done["nodes"][1]["dependsOn"], json!(["a"]));
    let again = start(&server, &body).await;
    assert_eq!((again.status, &again.json()["duplicate"]), (200, &json!(true)));
    assert_eq!(again.json()["runId"], done["runId"]);
    start(&server, &with(body, &json!({ "input": 1 }))).await.problem(
        409,
        "request_id_reused",
        Some("requestId"),
    );

    let task = done["nodes"][0]["taskId"].as_str().expect("an id");
    let task = server.get(&format!("/api/v1/tasks/{task}")).await.json();
    assert_eq!((&task["parent"], &task["childName"]), (&done["runId"], &json!("a")));
    let runs = server.get("/api/v1/workflows/runs?status=SUCCESS&workflow=workflow").await.json();
    assert_eq!(runs["runs"][0]["runId"], done["runId"]);
    let id = task["taskId"].as_str().expect("an id");
    server.get(&format!("/api/v1/workflows/runs/{id}")).await.problem(404, "run_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workflows_are_put_and_run_by_name() {
    let server = Server::start().await;
    let put = |body: Value| server.request("PUT", "/api/v1/workflows/greet").json(&body).send();
    let first = put(two()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let again = put(two()).await;
    assert_eq!((again.status, again.json()), (200, first.json()));
    let changed = put(with(two(), &json!({ "name": "greeting" }))).await.json();
    assert_ne!(changed["version"], first.json()["version"]);
    assert_eq!(server.get("/api/v1/workflows/greet").await.json(), changed);
    assert_eq!(server.get("/api/v1/workflows").await.json()["workflows"], json!([changed]));
    let done = run(&server, &json!({ "workflow": "greet", "input": { "word": "ho" } })).await;
    assert_eq!((&done["workflow"], &done["nodes"][1]["result"]["data"]), (&json!("greet"), &json!("ho!")));

    start(&server, &json!({ "workflow": "none" })).await.problem(422, "invalid_value", Some("workflow"));
    let both = with(two(), &json!({ "workflow": "greet" }));
    start(&server, &both).await.problem(422, "conflicting_fields", Some("nodes"));
    put(with(two(), &json!({ "input": 1 }))).await.problem(422, "unknown_field", Some("input"));
    for _ in 0..2 {
        let removed = server.request("DELETE", "/api/v1/workflows/greet").send().await;
        assert_eq!(removed.status, 204);
    }
    server.get("/api/v1/workflows/greet").await.problem(404, "workflow_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_with_its_place() {
    let server = Server::start().await;
    let node = |more: Value| with(json!({ "name": "b", "dependsOn": ["a"], "taskType": "echo" }), &more);
    let body = |node: Value| json!({ "nodes": [{ "name": "a", "taskType": "echo" }, node] });
    for (wrong, code, field) in [
        (json!({}), "missing_field", "nodes"),
        (json!({ "nodes": [] }), "invalid_value", "nodes"),
        (json!({ "nodes": [{}] }), "missing_field", "nodes[0].taskType"),
        (json!({ "nodes": [{ "taskType": "echo" }] }), "missing_field", "nodes[0].name"),
        (body(node(json!({ "name": "a" }))), "invalid_value", "nodes[1].name"),
        (body(node(json!({ "name": "a-b" }))), "invalid_value", "nodes[1].name"),
        (body(node(json!({ "dependsOn": ["x"] }))), "invalid_value", "nodes[1].dependsOn[0]"),
        (body(node(json!({ "dependsOn": ["a", "a"] }))), "invalid_value", "nodes[1].dependsOn[1]"),
        (body(node(json!({ "dependsOn": ["b"] }))), "invalid_value", "nodes[1].dependsOn"),
        (body(node(json!({ "payload": "{{ nodes.c.result }}" }))), "invalid_value", "nodes[1].payload"),
        (body(node(json!({ "payload": { "x": ["{{ item }}"] } }))), "invalid_value", "nodes[1].payload"),
        (body(node(json!({ "when": "nodes.a. ==" }))), "invalid_value", "nodes[1].when"),
        (body(node(json!({ "metadata": { "k": "{{ x }}" } }))), "invalid_value", "nodes[1].metadata.k"),
        (body(node(json!({ "requestId": "x" }))), "invalid_value", "nodes[1].requestId"),
        (body(node(json!({ "taskType": "tasklane.bulk" }))), "invalid_value", "nodes[1].taskType"),
        (
            body(node(json!({ "retryPolicy": { "maxRetries": -1 } }))),
            "invalid_value",
            "nodes[1].retryPolicy.maxRetries",
        ),
        (body(node(json!({ "colour": "red" }))), "unknown_field", "nodes[1].colour"),
        (
            body(node(json!({ "dependsOn": [], "triggerRule": "allDone" }))),
            "invalid_value",
            "nodes[1].triggerRule",
        ),
        (body(node(json!({ "map": {} }))), "missing_field", "nodes[1].map.items"),
        (body(node(json!({ "map": { "items": "files" } }))), "invalid_value", "nodes[1].map.items"),
        (body(node(json!({ "shards": 2, "broadcast": true }))), "conflicting_fields", "nodes[1].broadcast"),
        (with(two(), &json!({ "onFailure": "explode" })), "invalid_value", "onFailure"),
        // The run kept the text as it was.
        (with(two(), &json!({ "name": "{{ input.word }}" })), "invalid_value", "name"),
    ] {
        start(&server, &wrong).await.problem(422, code, Some(field));
    }
    let put = |body: Value| server.request("PUT", "/api/v1/workflows/w").json(&body).send();
    let named = put(with(two(), &json!({ "name": "for {{ input.word }}" }))).await;
    let problem = named.problem(422, "invalid_value", Some("name"));
    let detail = problem["detail"].as_str().expect("text");
    assert!(
        detail.contains("must not hold an expression: those of a workflow stand in its nodes"),
        "{detail}"
    );
    for (more, code, field) in [
        (json!({ "dependsOn": [] }), "unknown_field", "dependsOn"),
        (json!({ "shards": 0 }), "invalid_value", "shards"),
        (
            json!({ "map": { "items": [1], "tolerateFailures": "x" } }),
            "invalid_value",
            "map.tolerateFailures",
        ),
        (
            json!({ "map": { "items": [1], "reduce": { "taskName": "r" } } }),
            "missing_field",
            "map.reduce.taskType",
        ),
        (json!({ "map": { "items": [1] }, "payload": "{{ nodes.a }}" }), "invalid_value", "payload"),
    ] {
        server.post("/api/v1/tasks", &task_with("echo", more)).await.problem(422, code, Some(field));
    }
    let circle = json!({ "nodes": [
        { "name": "a", "dependsOn": ["b"], "taskType": "echo" },
        { "name": "b", "dependsOn": ["a"], "taskType": "echo" },
    ] });
    let problem = start(&server, &circle).await.problem(422, "invalid_value", Some("nodes[0].dependsOn"));
    assert!(problem["detail"].as_str().expect("text").contains("a waits for b waits for a"), "{problem}");
    let many: Vec<Value> =
        (0..10_001).map(|n| json!({ "name": format!("n{n}"), "taskType": "noop" })).collect();
    start(&server, &json!({ "nodes": many })).await.problem(422, "invalid_value", Some("nodes"));
    let runs = server.get("/api/v1/workflows/runs").await.json();
    assert_eq!(runs["runs"], json!([]), "nothing of it was taken in");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_cancelled_and_run_again() {
    let server = Server::start().await;
    let body = json!({ "nodes": [
        { "name": "a", "taskType": "echo", "payload": "x" },
        { "name": "b", "dependsOn": ["a"], "taskType": "endless" },
    ] });
    let id = start(&server, &body).await.json()["runId"].as_str().expect("an id").to_owned();
    let path = format!("/api/v1/workflows/runs/{id}");
    let task = loop {
        let run = server.get(&path).await.json();
        if let Some(task) = run["nodes"][1]["taskId"].as_str() {
            break task.to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    server.begun(&task).await;
    server.post(&format!("{path}/retry"), &json!({})).await.problem(409, "task_unfinished", None);
    assert_eq!(server.request("DELETE", &path).send().await.status, 202);
    let ended = server.get(&format!("{path}?wait=60s")).await.json();
    assert_eq!((&ended["status"], &ended["nodes"][1]["status"]), (&json!("CANCELLED"), &json!("CANCELLED")));
    assert_eq!(server.request("DELETE", &path).send().await.status, 202);

    let again = server.post(&format!("{path}/retry"), &json!({ "requestId": "again" })).await;
    assert_eq!(again.status, 201, "{}", again.text);
    let same = server.post(&format!("{path}/retry"), &json!({ "requestId": "again" })).await;
    assert_eq!((same.status, &same.json()["runId"]), (200, &again.json()["runId"]));
    // As a task it is the same run, and its answer says as much.
    let task =
        server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({ "requestId": "again" })).await.json();
    assert_eq!(task["newTaskId"], again.json()["runId"]);
    assert_eq!((&task["kept"], &task["runsAgain"]), (&json!(["a"]), &json!(["b"])));
    let path = format!("/api/v1/workflows/runs/{}", again.json()["runId"].as_str().expect("an id"));
    let second = server.get(&path).await.json();
    assert_eq!((&second["takesOver"], &second["nodes"][0]["takenOver"]), (&json!(id), &json!(true)));
    assert_eq!(server.request("DELETE", &path).send().await.status, 202);
    assert_eq!(server.get(&format!("{path}?wait=60s")).await.json()["status"], "CANCELLED");
    let unknown = "/api/v1/workflows/runs/00000000-0000-8000-8000-000000000000";
    server.request("DELETE", unknown).send().await.problem(404, "run_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_are_listed_with_their_results() {
    let server = Server::start().await;
    let body = json!({ "taskName": "m", "taskType": "echo", "requestId": "m1", "payload": "{{ item }}", "map": { "items": ["x", "y", "z"] } });
    let done = server.run(body.clone()).await;
    assert_eq!(
        (&done["status"], &done["result"]["data"]["results"]),
        (&json!("SUCCESS"), &json!(["x", "y", "z"]))
    );
    assert_eq!(done["taskType"], "tasklane.map");
    let again = server.post("/api/v1/tasks", &body).await;
    assert_eq!((again.status, &again.json()["taskId"]), (200, &done["taskId"]));
    let path = format!("/api/v1/tasks/{}/children", done["taskId"].as_str().expect("an id"));
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{path}?limit=2{cursor}")).await.json();
        found.extend(page["children"].as_array().expect("a list").clone());
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    found.sort_by_key(|child| child["childName"].to_string());
    let results: Vec<&Value> = found.iter().map(|child| &child["result"]["data"]).collect();
    assert_eq!(results, [&json!("x"), &json!("y"), &json!("z")]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_heard_however_much_is_going_on() {
    let server = Server::start().await;
    let id = server.submit(json!({ "taskName": "m", "taskType": "noop", "shards": 20_000 })).await;
    assert_eq!(server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await.status, 202);
    let ended = server.get(&format!("/api/v1/jobs/{id}?wait=60s")).await.json();
    assert_eq!((&ended["status"], &ended["open"]), (&json!("CANCELLED"), &json!(0)), "{ended:#}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_is_known_however_it_is_written() {
    let server = Server::start().await;
    let same = [
        ("/api/v1/tasks", r#"{"taskName":"m","taskType":"noop","shards":2,"requestId":"r"}"#),
        ("/api/v1/tasks", r#"{ "requestId":"r", "shards":2, "taskType":"noop", "taskName":"m" }"#),
        ("/api/v1/workflows/runs", r#"{"requestId":"r","nodes":[{"name":"a","taskType":"noop"}]}"#),
        ("/api/v1/workflows/runs", r#"{"nodes":[{"taskType":"noop","name":"a"}], "requestId":"r"}"#),
    ];
    for (at, (path, body)) in same.into_iter().enumerate() {
        let answer =
            server.request("POST", path).header("content-type", "application/json").body(body).send().await;
        assert_eq!(answer.status, if at % 2 == 0 { 201 } else { 200 }, "{}", answer.text);
    }
    // Ids of children cannot be requested.
    let own = task_with("noop", json!({ "requestId": "tasklane.part:x" }));
    server.post("/api/v1/tasks", &own).await.problem(422, "invalid_value", Some("requestId"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_a_full_queue() {
    let server = Server::start().await;
    let policy = json!({ "version": 0, "policy": { "maxLength": 1 } });
    assert_eq!(server.request("PUT", "/api/v1/queues/small").json(&policy).send().await.status, 200);
    server.request("POST", "/api/v1/queues/small/pause").send().await;
    server.submit(task_with("noop", json!({ "queue": "small" }))).await;
    let analyzer = json!({ "taskType": "noop" });
    let put = server.request("PUT", "/api/v1/analyzers/echo").json(&analyzer).send().await;
    assert_eq!(put.status, 201, "{}", put.text);
    let id = server.submit(task_with("echo", json!({ "queue": "small" }))).await;
    server.request("POST", "/api/v1/queues/small/resume").send().await;
    let job = server.get(&format!("/api/v1/jobs/{id}?wait=60s")).await.json();
    assert_eq!((&job["status"], &job["total"]), (&json!("SUCCESS"), &json!(1)), "{job:#}");

    // Of two with one unique key there is one job.
    let unique = task_with("echo", json!({ "unique": { "key": "k", "until": "1h" } }));
    let first = server.submit(unique.clone()).await;
    let second = server.post("/api/v1/tasks", &unique).await;
    assert_eq!((second.status, &second.json()["taskId"]), (200, &json!(first)), "{}", second.text);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_are_registered_once_unless_they_replace() {
    let server = Server::start().await;
    let put = |path: &str, body: Value| {
        server.request("PUT", &format!("/api/v1/executors/{path}")).json(&body).send()
    };
    let greet = json!({ "description": "Greets", "command": ["echo", "{{ payload.name }}"],
        "payloadSchema": { "type": "object", "required": ["name"] } });
    assert_eq!(put("greet", greet.clone()).await.status, 201);
    assert_eq!(put("greet", greet.clone()).await.status, 200);
    let other = json!({ "script": "cat" });
    put("greet", other.clone()).await.problem(409, "already_registered", None);
    assert_eq!(server.get("/api/v1/executors/greet").await.json()["definition"], greet);
    let wrong = json!({ "taskName": "t", "taskType": "greet", "payload": { "nam": "x" } });
    let problem = server.post("/api/v1/tasks", &wrong).await.problem(422, "invalid_value", Some("payload"));
    assert!(
        problem["detail"].as_str().expect("text").contains("\"name\" is a required property"),
        "{problem}"
    );
    assert_eq!(put("greet?replace=true", other).await.status, 200);
    for (body, code, field) in [
        (json!({}), "missing_field", "command"),
        (json!({ "command": [] }), "invalid_value", "command"),
        (json!({ "script": "x", "python": "y" }), "conflicting_fields", "python"),
        (json!({ "command": ["a", "{{ nodes.x }}"] }), "invalid_value", "command"),
        (json!({ "script": "x", "payloadSchema": { "type": 7 } }), "invalid_value", "payloadSchema"),
        (json!({ "script": "x", "payloadSchema": { "$ref": "#" } }), "too_costly", "payloadSchema"),
        (json!({ "http": {} }), "missing_field", "http.url"),
    ] {
        put("bad", body).await.problem(422, code, Some(field));
    }
    put("SHELL", json!({ "script": "x" })).await.problem(422, "invalid_value", Some("taskType"));
    assert_eq!(server.request("DELETE", "/api/v1/executors/greet").send().await.status, 204);
    server.get("/api/v1/executors/greet").await.problem(404, "executor_not_found", None);
    server.close().await;
}

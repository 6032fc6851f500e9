//! Every fault of a request, and its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::time::Duration;

use crate::support::{Answer, Fault, Server, task, task_with};
use serde_json::{Value, json};
use tasklane_api::{ApiOptions, ServeOptions};
use tasklane_core::id::{Name, SessionId};
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_ports::{Coordinator, OpenSession, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NO_SUCH: &str = "00000000-0000-8000-8000-000000000000";

/// Sends a body as it is.
async fn raw(server: &Server, body: &str) -> Answer {
    let request = server.request("POST", "/api/v1/tasks").header("content-type", "application/json");
    request.body(body).send().await
}

async fn with(server: &Server, more: Value) -> Answer {
    server.post("/api/v1/tasks", &task_with("noop", more)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_json() {
    let server = Server::start().await;
    let problem = raw(&server, "{\"taskName\": ").await.problem(400, "invalid_json", None);
    assert!(problem["detail"].as_str().unwrap().contains("line 1 column"), "{problem}");
    raw(&server, "").await.problem(400, "invalid_json", None);
    raw(&server, "{\"taskName\":\"a\",\"taskType\":\"b\"} {}").await.problem(400, "invalid_json", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field() {
    let server = Server::start().await;
    let problem =
        with(&server, json!({ "colour": "red" })).await.problem(422, "unknown_field", Some("colour"));
    assert!(problem["detail"].as_str().unwrap().contains("colour"), "{problem}");
    let nested = json!({ "retryPolicy": { "maxretries": 3 } });
    with(&server, nested).await.problem(422, "unknown_field", Some("retryPolicy.maxretries"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_field() {
    let server = Server::start().await;
    let answer = server.post("/api/v1/tasks", &json!({ "taskName": "a" })).await;
    answer.problem(422, "missing_field", Some("taskType"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_twice() {
    let server = Server::start().await;
    let answer = raw(&server, r#"{"taskName":"a","taskType":"b","queue":"c","queue":"d"}"#).await;
    answer.problem(422, "duplicate_field", Some("queue"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_type() {
    let server = Server::start().await;
    with(&server, json!({ "priority": "9" })).await.problem(422, "wrong_type", Some("priority"));
    with(&server, json!({ "metadata": { "k": 1 } })).await.problem(422, "wrong_type", Some("metadata.k"));
    server.post("/api/v1/tasks", &json!([task("noop")])).await.problem(422, "wrong_type", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_not_allowed() {
    let server = Server::start().await;
    with(&server, json!({ "priority": 10 })).await.problem(422, "invalid_value", Some("priority"));
    with(&server, json!({ "executionTimeout": "soon" })).await.problem(
        422,
        "invalid_value",
        Some("executionTimeout"),
    );
    with(&server, json!({ "runAt": "tomorrow" })).await.problem(422, "invalid_value", Some("runAt"));
    with(&server, json!({ "queue": "a b" })).await.problem(422, "invalid_value", Some("queue"));
    with(&server, json!({ "taskName": "" })).await.problem(422, "invalid_value", Some("taskName"));
    server.close().await;
}

/// U+202E shows what follows it from right to left: `gpj.exe` as `exe.jpg`.
#[tokio::test(flavor = "multi_thread")]
async fn names_with_characters_that_hide_or_reorder_text() {
    let server = Server::start().await;
    for c in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{ad}', '\u{2028}', '\u{1b}'] {
        let name = format!("a{c}b");
        for (field, value) in [
            ("taskName", json!(name)),
            ("requestId", json!(name)),
            ("hashKey", json!(name)),
            ("labels.a", json!({ "a": name })),
            (&format!("labels.a{}b", c.escape_unicode()), json!({ name.as_str(): "a" })),
            (&format!("metadata.a{}b", c.escape_unicode()), json!({ name.as_str(): "a" })),
            ("unique.key", json!({ "key": name })),
        ] {
            let body = json!({ field.split('.').next().unwrap(): value });
            let problem = with(&server, body).await.problem(422, "invalid_value", Some(field));
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.contains(&format!("U+{:04X}", u32::from(c))) && detail.contains("leave it out"),
                "{detail}"
            );
        }
    }
    for name in ["Überprüfung", "می\u{200c}خواهم", "שלום", "👩\u{200d}🚀❤\u{fe0f}", "日本語"]
    {
        assert_eq!(with(&server, json!({ "taskName": name })).await.status, 201, "{name}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_exclude_each_other() {
    let server = Server::start().await;
    let both = json!({ "retryCount": 1, "retryPolicy": {} });
    with(&server, both).await.problem(422, "conflicting_fields", Some("retryCount"));
    let both = json!({ "runAt": "2030-01-01T00:00:00Z", "delay": 1 });
    with(&server, both).await.problem(422, "conflicting_fields", Some("delay"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_the_server_keeps_for_itself() {
    let server = Server::start().await;
    for field in ["taskType", "queue"] {
        let refused = with(&server, json!({ field: "tasklane.bulk" })).await;
        let problem = refused.problem(422, "invalid_value", Some(field));
        assert!(problem["detail"].as_str().unwrap().contains("begin with `tasklane.`"), "{problem}");
    }
    let policy = json!({ "version": 0, "policy": {} });
    let put = server.request("PUT", "/api/v1/queues/tasklane.bulk").json(&policy).send().await;
    put.problem(403, "name_reserved", Some("name"));
    for change in ["pause", "resume"] {
        let path = format!("/api/v1/queues/tasklane.bulk/{change}");
        server.request("POST", &path).send().await.problem(403, "name_reserved", Some("name"));
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_too_large() {
    let server = Server::start().await;
    let largest = json!({ "payload": "x".repeat(256 << 10) });
    assert_eq!(with(&server, largest).await.status, 201);
    let too_large = json!({ "payload": "x".repeat((256 << 10) + 1) });
    with(&server, too_large).await.problem(413, "payload_too_large", Some("payload"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large() {
    let server = Server::with(ApiOptions { body_bytes_max: 1000, ..ApiOptions::default() }).await;
    with(&server, json!({ "payload": "x".repeat(2000) })).await.problem(413, "body_too_large", None);
    // Without a length in its head, it is noticed while it is read.
    let chunk = "x".repeat(2000);
    let body = format!("{:x}\r\n{chunk}\r\n0\r\n\r\n", chunk.len());
    let request = server.request("POST", "/api/v1/tasks").header("content-type", "application/json");
    request.chunked(body).send().await.problem(413, "body_too_large", None);
    server.close().await;
}

/// Many clients read nothing before they have sent everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_taken_and_refused() {
    let server = Server::with(ApiOptions { token: Some("secret".to_owned()), ..ApiOptions::default() }).await;
    let address = server.address;
    let send = move |path: &str, token: &str, bytes: usize| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&vec![b'x'; bytes]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answers = tokio::task::spawn_blocking(move || {
        let one = send("/api/v1/tasks", "secret", 6_000_000);
        let batch = send("/api/v1/tasks/batch", "secret", 40_000_000);
        (one, batch, send("/api/v1/tasks/batch", "guessed", 30_000_000))
    });
    let (one, batch, stranger) = answers.await.unwrap();
    for answer in [one, batch] {
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
    }
    assert!(stranger.starts_with("HTTP/1.1 401 "), "{stranger}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come() {
    let options = ApiOptions { body_timeout: Duration::from_millis(20), ..ApiOptions::default() };
    let server = Server::with(options).await;
    let request = server.request("POST", "/api/v1/tasks").header("content-type", "application/json");
    request.header("content-length", "10").body("{").send().await.problem(408, "body_timeout", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_content_type() {
    let server = Server::start().await;
    let body = task("noop").to_string();
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
    {
        let request = server.request("POST", "/api/v1/tasks").header("content-type", kind).body(body.clone());
        request.send().await.problem(415, "unsupported_media_type", Some("content-type"));
    }
    let none = server.request("POST", "/api/v1/tasks").body(body.clone()).send().await;
    none.problem(415, "unsupported_media_type", Some("content-type"));
    let exact =
        server.request("POST", "/api/v1/tasks").header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(exact.body(body).send().await.status, 201);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_where_none_belongs() {
    let server = Server::start().await;
    let path = "/api/v1/queues/q/pause?create=true";
    server.post(path, &json!({ "now": true })).await.problem(422, "unknown_field", Some("now"));
    let text = server.request("POST", path).header("content-type", "text/plain").body("x").send().await;
    text.problem(415, "unsupported_media_type", Some("content-type"));
    assert_eq!(server.post(path, &json!({})).await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_none() {
    let server = Server::start().await;
    for id in
        ["x", "1234", "00000000000080008000000000000000", "%ff", "%7B00000000-0000-8000-8000-000000000000%7D"]
    {
        for path in ["", "/attempts", "/logs", "/logs?follow=true", "/explain"] {
            let answer = server.get(&format!("/api/v1/tasks/{id}{path}")).await;
            answer.problem(400, "invalid_id", Some("id"));
        }
    }
    server.get("/api/v1/operations/x").await.problem(400, "invalid_id", Some("id"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn something_that_does_not_exist() {
    let server = Server::start().await;
    for path in ["", "/attempts", "/logs", "/logs?follow=true", "/explain"] {
        server.get(&format!("/api/v1/tasks/{NO_SUCH}{path}")).await.problem(404, "task_not_found", None);
    }
    let task = format!("/api/v1/tasks/{NO_SUCH}");
    server.request("DELETE", &task).send().await.problem(404, "task_not_found", None);
    server.request("POST", &format!("{task}/retry")).send().await.problem(404, "task_not_found", None);
    server.get("/api/v1/workers/nobody").await.problem(404, "worker_not_found", None);
    let patch = server.request("PATCH", "/api/v1/workers/nobody").json(&json!({ "capacity": 1 }));
    patch.send().await.problem(404, "worker_not_found", None);
    server.request("POST", "/api/v1/workers/nobody/drain").send().await.problem(
        404,
        "worker_not_found",
        None,
    );
    server.get(&format!("/api/v1/operations/{NO_SUCH}")).await.problem(404, "operation_not_found", None);
    for path in ["/api/v1/nothing", "/", "/api/v2/tasks", "/api/v1/tasks/"] {
        server.get(path).await.problem(404, "route_not_found", None);
    }
    server.get("/docs/errors/nothing").await.problem(404, "route_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_method() {
    let server = Server::start().await;
    let answer = server.request("PUT", "/api/v1/tasks").json(&json!({})).send().await;
    answer.problem(405, "method_not_allowed", None);
    let allowed = answer.header("allow").unwrap();
    assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
    server.request("TRACE", "/api/v1/stats").send().await.problem(405, "method_not_allowed", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_no_name() {
    let server = Server::start().await;
    let request = server.request("GET", "/api/v1/tasks").header("Tasklane-Namespace", "a b");
    request.send().await.problem(400, "invalid_namespace", Some("Tasklane-Namespace"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_none() {
    let server = Server::start().await;
    server.get("/api/v1/queues/a%20b").await.problem(400, "invalid_name", Some("name"));
    server.get("/api/v1/workers/%ff").await.problem(400, "invalid_name", Some("name"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_query_parameter() {
    let server = Server::start().await;
    let paths = [
        "/api/v1/tasks?colour=red".to_owned(),
        format!("/api/v1/tasks/{NO_SUCH}?colour=red"),
        format!("/api/v1/tasks/{NO_SUCH}/logs?colour=red"),
        "/api/v1/queues?colour=red".to_owned(),
        "/api/v1/workers?colour=red".to_owned(),
        "/api/v1/stats?colour=red".to_owned(),
        "/api/v1/events?colour=red".to_owned(),
    ];
    for path in paths {
        server.get(&path).await.problem(400, "unknown_parameter", Some("colour"));
    }
    server.post("/api/v1/tasks?Wait=3s", &task("noop")).await.problem(400, "unknown_parameter", Some("Wait"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_parameter_that_is_not_allowed() {
    let server = Server::start().await;
    let cases = [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("status=pending", "status"),
        ("type=a%20b", "type"),
        ("queue=", "queue"),
        ("parent=x", "parent"),
        ("createdAfter=yesterday", "createdAfter"),
        ("cursor=x", "cursor"),
    ];
    for (query, field) in cases {
        let answer = server.get(&format!("/api/v1/tasks?{query}")).await;
        let detail = answer.problem(400, "invalid_parameter", Some(field))["detail"].clone();
        assert!(detail.as_str().unwrap().starts_with(&format!("{field}: ")), "{detail}");
    }
    let id = server.submit(task("noop")).await;
    for (query, field) in [("after=x", "after"), ("after=1--1", "after"), ("follow=maybe", "follow")] {
        let answer = server.get(&format!("/api/v1/tasks/{id}/logs?{query}")).await;
        answer.problem(400, "invalid_parameter", Some(field));
    }
    server.get("/api/v1/events?after=x").await.problem(400, "invalid_parameter", Some("after"));
    server.post("/api/v1/tasks?wait=soon", &task("noop")).await.problem(
        400,
        "invalid_parameter",
        Some("wait"),
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_too_long() {
    let server = Server::start().await;
    server.post("/api/v1/tasks?wait=301s", &task("noop")).await.problem(400, "wait_too_long", Some("wait"));
    let listed = server.get("/api/v1/tasks").await.json();
    assert_eq!(listed["tasks"], json!([]), "nothing was taken in");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue() {
    let server = Server::start().await;
    let policy = json!({ "version": 0, "policy": { "maxLength": 1, "paused": true } });
    assert_eq!(server.request("PUT", "/api/v1/queues/q").json(&policy).send().await.status, 200);
    let request = task_with("noop", json!({ "queue": "q" }));
    server.submit(request.clone()).await;
    let refused = server.post("/api/v1/tasks", &request).await;
    refused.problem(429, "queue_full", Some("queue"));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let batch = server.post("/api/v1/tasks/batch", &json!({ "tasks": [request] })).await;
    let error = &batch.json()["results"][0]["error"];
    assert_eq!((&error["code"], &error["retryAfter"]), (&json!("queue_full"), &json!(1)), "{error}");
    assert_eq!(batch.header("retry-after"), Some("1"), "{batch:?}");
    let batch = server.post("/api/v1/tasks/batch", &json!({ "tasks": [task("noop")] })).await;
    assert_eq!((batch.status, batch.header("retry-after")), (200, None));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_somebody_else_changed() {
    let server = Server::start().await;
    let put = json!({ "version": 0, "policy": { "weight": 2 } });
    let first = server.request("PUT", "/api/v1/queues/q").json(&put).send().await;
    assert_eq!((first.status, &first.json()["version"]), (200, &json!(1)));
    let second = server.request("PUT", "/api/v1/queues/q").json(&put).send().await;
    assert_eq!(second.problem(409, "policy_conflict", Some("version"))["currentVersion"], 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_is_not_allowed() {
    let server = Server::start().await;
    let cases = [
        (json!({ "version": 0 }), "missing_field", "policy"),
        (json!({ "version": -1, "policy": {} }), "invalid_value", "version"),
        (json!({ "version": 0, "policy": { "size": 1 } }), "unknown_field", "policy.size"),
        (json!({ "version": 0, "policy": { "weight": 0 } }), "invalid_value", "policy.weight"),
        (json!({ "version": 0, "policy": { "maxLength": 0 } }), "invalid_value", "policy.maxLength"),
        (json!({ "version": 0, "policy": { "strategy": "best" } }), "invalid_value", "policy.strategy"),
        (
            json!({ "version": 0, "policy": { "concurrency": [{ "key": "a" }] } }),
            "missing_field",
            "policy.concurrency[0].limit",
        ),
        (
            json!({ "version": 0, "policy": { "concurrency": [{ "key": "{{ tenant }}", "limit": 1 }] } }),
            "invalid_value",
            "policy.concurrency[0].key",
        ),
        (
            json!({ "version": 0, "policy": { "rate": [{ "limit": 1, "per": 1 }, { "limit": 2, "per": 1 }] } }),
            "invalid_value",
            "policy.rate[1].key",
        ),
        (
            json!({ "version": 0, "policy": { "rate": [{ "limit": 1, "per": "367d" }] } }),
            "invalid_value",
            "policy.rate[0].per",
        ),
    ];
    for (body, code, field) in cases {
        let answer = server.request("PUT", "/api/v1/queues/q").json(&body).send().await;
        answer.problem(422, code, Some(field));
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_action_that_is_not_allowed() {
    let server = Server::start().await;
    let cases = [
        (json!({ "action": "explode", "filter": {} }), "invalid_value", "action"),
        (json!({ "action": "cancel" }), "missing_field", "filter"),
        (json!({ "action": "cancel", "filter": { "colour": "red" } }), "unknown_field", "filter.colour"),
        (
            json!({ "action": "cancel", "filter": { "status": ["DONE"] } }),
            "invalid_value",
            "filter.status[0]",
        ),
        (json!({ "action": "cancel", "filter": { "parent": "x" } }), "invalid_value", "filter.parent"),
        (
            json!({ "action": "cancel", "filter": { "createdAfter": "x" } }),
            "invalid_value",
            "filter.createdAfter",
        ),
    ];
    for (body, code, field) in cases {
        server.post("/api/v1/tasks/bulk", &body).await.problem(422, code, Some(field));
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_worker_that_is_not_allowed() {
    let server = Server::start().await;
    server.run(task("noop")).await;
    let before = server.get("/api/v1/workers/w1").await.json();
    let many: BTreeMap<String, String> = (0..33).map(|n| (format!("l{n}"), String::new())).collect();
    let cases = [
        (json!({ "capacity": 0 }), "invalid_value", "capacity"),
        (json!({ "capacity": 100_001 }), "invalid_value", "capacity"),
        (json!({ "weight": 0 }), "invalid_value", "weight"),
        (json!({ "weight": 1_000_001, "capacity": 2 }), "invalid_value", "weight"),
        (json!({ "labels": many, "capacity": 2 }), "invalid_value", "labels"),
        (json!({ "labels": { "zone": "a\u{7}" } }), "invalid_value", "labels.zone"),
        (json!({ "labels": { "zone": 1 } }), "wrong_type", "labels.zone"),
        (json!({ "colour": "red" }), "unknown_field", "colour"),
    ];
    for (body, code, field) in cases {
        let answer = server.request("PATCH", "/api/v1/workers/w1").json(&body).send().await;
        answer.problem(422, code, Some(field));
    }
    let after = server.get("/api/v1/workers/w1").await.json();
    for field in ["capacity", "weight", "labels"] {
        assert_eq!(before[field], after[field]);
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_server_takes() {
    let server =
        Server::with(ApiOptions { streams_max: 0, batches_bytes_max: 0, ..ApiOptions::default() }).await;
    let refused = server.get("/api/v1/events").await;
    refused.problem(503, "overloaded", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    server.post("/api/v1/tasks?wait=1s", &task("noop")).await.problem(503, "overloaded", None);
    server.post("/api/v1/tasks/batch", &json!({ "tasks": [] })).await.problem(503, "overloaded", None);
    assert_eq!(server.get("/api/v1/tasks").await.json()["tasks"], json!([]), "nothing was taken in");
    server.close().await;

    let server = Server::with(ApiOptions { requests_max: 0, ..ApiOptions::default() }).await;
    server.get("/api/v1/tasks").await.problem(503, "overloaded", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_reached() {
    let server = Server::start().await;
    server.close_store().await;
    let paths = [
        "/api/v1/tasks".to_owned(),
        format!("/api/v1/tasks/{NO_SUCH}"),
        "/api/v1/queues".to_owned(),
        "/api/v1/stats".to_owned(),
    ];
    for path in paths {
        let refused = server.get(&path).await;
        refused.problem(503, "store_unavailable", None);
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &json!(false)));
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.text.contains("tasklane_store_up 0\n") && !metrics.text.contains("tasklane_tasks{"));
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_full() {
    let server = Server::start().await;
    let id = server.submit(task("unknown")).await;
    server.faults.plan(|verb| {
        let writes = ["submit", "commit", "post", "put_policy", "bind_queue"].contains(&verb);
        writes.then(|| Fault::Error(StoreError::Full { source: "no room".into() }))
    });
    let refused = server.post("/api/v1/tasks", &task("noop")).await;
    refused.problem(507, "store_full", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let batch = server.post("/api/v1/tasks/batch", &json!({ "tasks": [task("noop")] })).await.json();
    assert_eq!(batch["results"][0]["error"]["code"], "store_full");
    let path = format!("/api/v1/tasks/{id}");
    server.request("DELETE", &path).send().await.problem(507, "store_full", None);
    server.post("/api/v1/queues/default/pause", &json!({})).await.problem(507, "store_full", None);
    assert_eq!(server.get(&path).await.status, 200, "a stored task can be read");
    server.faults.plan(|_| None);
    server.run(task("noop")).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_answer() {
    let server = Server::start().await;
    let descriptor = WorkerDescriptor {
        name: Name::new("mute").unwrap(),
        capacity: 1,
        weight: 1,
        labels: BTreeMap::new(),
        task_types: BTreeSet::new(),
        draining: false,
        pause_reason: None,
        address: String::new(),
    };
    let session = SessionId::from_random(7);
    let open = OpenSession { session, role: Role::Worker(descriptor), ttl: Duration::from_mins(1) };
    server.coordinator.open(open).await.unwrap();
    while server.get("/api/v1/workers/mute").await.status != 200 {
        tokio::task::yield_now().await;
    }
    // A worker of an earlier version has no address.
    assert_eq!(server.get("/api/v1/workers/mute").await.json().get("address"), None);
    let refused =
        server.request("PATCH", "/api/v1/workers/mute").json(&json!({ "capacity": 3 })).send().await;
    refused.problem(503, "worker_unavailable", None);
    assert_eq!(refused.header("retry-after"), Some("1"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_no_longer_has_its_payload() {
    let server = Server::start().await;
    let done = server.run(task("noop")).await;
    let id = done["taskId"].as_str().unwrap();
    server.store.retire(&[id.parse().unwrap()], &[]).await.unwrap();
    let refused = server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).await;
    refused.problem(409, "payload_removed", None);
    server.close().await;
}

/// Nothing bounded the time of a handler.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_takes_too_long() {
    let options = ApiOptions { request_timeout: Duration::from_millis(50), ..ApiOptions::default() };
    let server = Server::with(options).await;
    server.faults.plan(|verb| (verb == "tasks").then_some(Fault::Hang));
    let refused = server.get(&format!("/api/v1/tasks/{NO_SUCH}")).await;
    let problem = refused.problem(503, "answer_timeout", None);
    assert!(problem["detail"].as_str().unwrap().contains("within 50ms"), "{problem}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(server.get("/api/v1/tasks").await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_and_a_stream_have_their_own_time() {
    let options = ApiOptions { request_timeout: Duration::from_millis(50), ..ApiOptions::default() };
    let server = Server::with(options).await;
    let mut events = server.request("GET", "/api/v1/events").stream().await;
    let waited = server.post("/api/v1/tasks?wait=300ms", &task("endless")).await;
    assert_eq!((waited.status, waited.json()["status"] == "RUNNING"), (202, true), "{}", waited.text);
    assert!(events.next().await.is_some());
    let id = waited.json()["taskId"].as_str().unwrap().to_owned();
    server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
    server.until(&id, "CANCELLED").await;
    drop(events);
    server.close().await;
}

/// Whoever waited for a task that was taken in, and met an error, never learned its id.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_while_waiting_does_not_hide_the_task() {
    let options = ApiOptions { request_timeout: Duration::from_millis(50), ..ApiOptions::default() };
    let server = Server::with(options).await;
    let known = async |wait: &str| {
        let task = task_with("flaky", json!({ "retryCount": 1 }));
        let answer = server.post(&format!("/api/v1/tasks?wait={wait}"), &task).await;
        let id = answer.json()["taskId"].as_str().unwrap_or_else(|| panic!("{}", answer.text)).to_owned();
        server.faults.plan(|_| None);
        assert_eq!(server.get(&format!("/api/v1/tasks/{id}")).await.status, 200);
        (answer.status, answer.json())
    };
    let fail = |verb: &'static str| {
        server.faults.plan(move |asked| {
            (asked == verb).then(|| Fault::Error(StoreError::unavailable("for a moment")))
        });
    };
    fail("tasks");
    let (status, answer) = known("5s").await;
    assert_eq!((status, &answer["status"]), (202, &json!("PENDING")));
    server.faults.plan(|verb| (verb == "tasks").then_some(Fault::Hang));
    assert_eq!(known("10ms").await.0, 202);
    fail("attempts");
    let (status, answer) = known("5s").await;
    assert_eq!((status, &answer["status"], &answer["attempts"]), (200, &json!("SUCCESS"), &Value::Null));
    server.close().await;
}

/// It kept its room, and the unsent answer, for as long as it liked.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_does_not_read_is_dropped() {
    let serve = ServeOptions {
        connections_max: 1,
        write_timeout: Duration::from_millis(200),
        ..ServeOptions::default()
    };
    let server = Server::with_all(ApiOptions::default(), serve).await;
    let mut first = tokio::net::TcpStream::connect(server.address).await.unwrap();
    // Far more answers than the buffers between the two can hold.
    let many = "GET /api/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(500);
    first.write_all(many.as_bytes()).await.unwrap();
    // It has a request under way from now on, so that it does not give way to others.
    first.readable().await.unwrap();
    assert_eq!(server.get("/healthz").await.status, 200);
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest).await;
    let answers = rest.windows(15).filter(|window| window == b"HTTP/1.1 200 OK").count();
    assert!((1..500).contains(&answers), "{answers}");
    server.close().await;
}

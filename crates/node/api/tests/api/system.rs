//! Queues, workers, and the server's own health.

use std::time::Duration;

use serde_json::json;
use tasklane_core::member::Role;
use tasklane_ports::Coordinator as _;

use crate::support::{Fault, Server, task, task_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_has_a_policy_and_counts() {
    let server = Server::start().await;
    let fresh = server.get("/api/v1/queues/q").await.json();
    assert_eq!((&fresh["name"], &fresh["version"]), (&json!("q"), &json!(0)));
    assert_eq!(fresh["policy"]["executionTimeout"], 300);
    assert_eq!(fresh["policy"]["strategy"], "leastLoad");
    assert_eq!(fresh["counts"]["PENDING"], 0);

    let policy = json!({
        "paused": true, "maxLength": 5, "strategy": "consistentHash", "whenFull": "next", "weight": 3,
        "concurrency": [{ "key": "{{ metadata.tenant | default('') }}", "limit": 2, "whenFull": "cancelNewest" }],
        "rate": [{ "key": null, "limit": 5, "per": 1.5, "burst": 2 }],
        "unique": null, "webhooks": [], "spread": null,
        "retryPolicy": { "maxRetries": 1, "retryDelay": 2, "backoffRate": 1.5, "maxDelay": 60, "jitter": 0.0 },
        "executionTimeout": 9,
    });
    let put = server.request("PUT", "/api/v1/queues/q").json(&json!({ "version": 0, "policy": policy }));
    let put = put.send().await;
    assert_eq!(put.status, 200, "{}", put.text);
    assert_eq!((&put.json()["version"], &put.json()["policy"]), (&json!(1), &policy));
    server.submit(task_with("noop", json!({ "queue": "q" }))).await;
    let found = server.get("/api/v1/queues/q").await.json();
    assert_eq!((&found["policy"], &found["counts"]["PENDING"]), (&policy, &json!(1)));
    server.close().await;
}

/// A mistyped name paused a queue that no task uses, and the queue that was meant went on.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_tasks_and_policy_is_paused_only_on_request() {
    let server = Server::start().await;
    let refused = server.request("POST", "/api/v1/queues/mial/pause").send().await;
    let problem = refused.problem(404, "queue_not_found", Some("name"));
    assert!(problem["detail"].as_str().unwrap().contains("create=true"), "{problem}");
    assert_eq!(server.get("/api/v1/queues/mial").await.json()["version"], 0, "nothing is stored");
    let listed = server.get("/api/v1/queues").await.json();
    assert_eq!(listed["queues"], json!([]));

    let created = server.request("POST", "/api/v1/queues/mial/pause?create=true").send().await;
    assert_eq!((created.status, &created.json()["policy"]["paused"]), (200, &json!(true)));
    server.submit(task_with("unknown", json!({ "queue": "used" }))).await;
    assert_eq!(server.request("POST", "/api/v1/queues/used/pause").send().await.status, 200);
    let policy = json!({ "version": 0, "policy": { "weight": 2 } });
    assert_eq!(server.request("PUT", "/api/v1/queues/set").json(&policy).send().await.status, 200);
    assert_eq!(server.request("POST", "/api/v1/queues/set/pause").send().await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_waits_until_it_is_resumed() {
    let server = Server::start().await;
    let paused = server.request("POST", "/api/v1/queues/q/pause?create=true").send().await;
    assert_eq!((paused.status, &paused.json()["policy"]["paused"]), (200, &json!(true)));
    let again = server.request("POST", "/api/v1/queues/q/pause").send().await;
    assert_eq!(again.json()["version"], paused.json()["version"], "nothing to change");
    let id = server.submit(task_with("noop", json!({ "queue": "q" }))).await;
    let explained = server.get(&format!("/api/v1/tasks/{id}/explain")).await.json();
    assert_eq!(explained["reasons"][0]["code"], "paused", "{explained}");
    assert_eq!(server.request("POST", "/api/v1/queues/q/resume").send().await.status, 200);
    server.until(&id, "SUCCESS").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_listed_page_by_page() {
    let server = Server::start().await;
    for queue in ["a", "b", "c"] {
        server.submit(task_with("unknown", json!({ "queue": queue }))).await;
    }
    let first = server.get("/api/v1/queues?limit=2").await.json();
    let names = |page: &serde_json::Value| -> Vec<String> {
        page["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&first), ["a", "b"]);
    let second = server
        .get(&format!("/api/v1/queues?limit=2&cursor={}", first["cursor"].as_str().unwrap()))
        .await
        .json();
    assert_eq!((names(&second), &second["cursor"]), (vec!["c".to_owned()], &json!(null)));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_seen_changed_and_drained() {
    let server = Server::start().await;
    // The worker is there at the latest when it has run something.
    server.run(task("noop")).await;
    let workers = server.get("/api/v1/workers").await.json();
    let worker = &workers["workers"][0];
    assert_eq!((&worker["name"], &worker["labels"]), (&json!("w1"), &json!({ "zone": "a" })));
    assert!(worker["taskTypes"].as_array().unwrap().contains(&json!("echo")));
    assert_eq!(worker["address"], "127.0.0.1:7070");
    let session = worker["session"].as_str().unwrap();
    assert_eq!(server.get(&format!("/api/v1/workers/{session}")).await.json()["name"], "w1");

    let patched = server.request("PATCH", "/api/v1/workers/w1").json(&json!({ "capacity": 7 })).send().await;
    assert_eq!((patched.status, &patched.json()["capacity"]), (200, &json!(7)), "{}", patched.text);
    let more = json!({ "weight": 3, "labels": { "zone": "b", "gpu": "yes" } });
    let patched = server.request("PATCH", "/api/v1/workers/w1").json(&more).send().await;
    assert_eq!(patched.status, 200, "{}", patched.text);
    let worker = server.get("/api/v1/workers/w1").await.json();
    assert_eq!((&worker["capacity"], &worker["weight"]), (&json!(7), &json!(3)));
    assert_eq!(worker["labels"], more["labels"]);
    let unchanged = server.request("PATCH", "/api/v1/workers/w1").json(&json!({})).send().await;
    assert_eq!((unchanged.status, &unchanged.json()["labels"]), (200, &more["labels"]));

    // One that has nothing to do would be gone at once.
    let id = server.submit(task("endless")).await;
    server.begun(&id).await;
    let drained = server.request("POST", "/api/v1/workers/w1/drain").send().await;
    assert_eq!((drained.status, &drained.json()["status"]), (200, &json!("DRAINING")), "{}", drained.text);
    assert_eq!(server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await.status, 202);
    server.until(&id, "CANCELLED").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_says_how_it_is_doing() {
    let server = Server::start().await;
    server.run(task("noop")).await;
    let health = server.get("/healthz").await;
    assert_eq!((health.status, health.text.as_str()), (200, "ok\n"));
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)), "{}", ready.text);
    assert!(ready.json()["checks"].as_array().unwrap().iter().any(|check| check["name"] == "store"));
    let stats = server.get("/api/v1/stats").await.json();
    assert_eq!((&stats["tasks"]["SUCCESS"], &stats["workers"]), (&json!(1), &json!(1)));
    assert!(stats["startedAt"].is_string());
    assert_eq!(stats["lanes"].as_array().unwrap().len(), 2);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_as_prometheus_reads_them() {
    let server = Server::start().await;
    server.run(task_with("noop", json!({ "queue": "q" }))).await;
    server.get("/api/v1/tasks/x").await;
    let asked = "text/plain;version=0.0.4;q=0.3,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
    let metrics = server.request("GET", "/metrics").header("accept", asked).send().await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    for line in [
        "tasklane_tasks{status=\"SUCCESS\"} 1",
        "tasklane_queue_tasks{namespace=\"default\",queue=\"q\",status=\"SUCCESS\"} 1",
        "tasklane_workers 1",
        "tasklane_store_up 1",
        "tasklane_http_requests_total{method=\"POST\",route=\"/api/v1/tasks\",status=\"200\"} 1",
        "tasklane_http_requests_total{method=\"GET\",route=\"/api/v1/tasks/{id}\",status=\"400\"} 1",
        "# TYPE tasklane_http_request_seconds histogram",
    ] {
        assert!(metrics.text.lines().any(|found| found == line), "{line} is not in\n{}", metrics.text);
    }
    assert!(metrics.text.ends_with("# EOF\n"));
    assert!(metrics.text.contains("# TYPE tasklane_http_requests counter\n"));
    server.close().await;
}

/// The answer was `OpenMetrics` whatever was asked for, which readers of the older format refuse.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_plain_text_unless_openmetrics_is_asked_for() {
    let server = Server::start().await;
    server.run(task_with("noop", json!({ "queue": "q" }))).await;
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    let asked =
        [None, Some("*/*"), Some("text/plain"), Some("text/plain;q=0.9,application/openmetrics-text;q=0.1")];
    for accept in asked {
        let request = server.request("GET", "/metrics");
        let request = if let Some(accept) = accept { request.header("accept", accept) } else { request };
        let metrics = request.send().await;
        assert_eq!(metrics.header("content-type"), Some(plain), "{accept:?}");
        let route = "method=\"POST\",route=\"/api/v1/tasks\"";
        for line in [
            "tasklane_tasks{status=\"SUCCESS\"} 1",
            "# TYPE tasklane_tasks gauge",
            // In this format the type belongs to the name of the sample.
            "# TYPE tasklane_http_requests_total counter",
            &format!("tasklane_http_requests_total{{{route},status=\"200\"}} 1"),
            "# TYPE tasklane_http_request_seconds histogram",
            &format!("tasklane_http_request_seconds_bucket{{le=\"+Inf\",{route}}} 1"),
        ] {
            assert!(metrics.text.lines().any(|found| found == line), "{line} is not in\n{}", metrics.text);
        }
        assert!(!metrics.text.contains("# EOF") && !metrics.text.contains("# UNIT"), "{}", metrics.text);
    }
    server.close().await;
}

/// Queues above the limit vanished from the metrics without a trace.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_the_queues_that_have_no_rows_of_their_own() {
    let server = Server::start().await;
    let tasks: Vec<_> =
        (0..1003).map(|n| task_with("unknown", json!({ "queue": format!("q{n:04}") }))).collect();
    let batch = server.post("/api/v1/tasks/batch", &json!({ "tasks": tasks })).await;
    assert_eq!(batch.status, 200, "{}", batch.text);
    // The last by name, and the longest: it has rows of its own.
    server.submit(task_with("unknown", json!({ "queue": "q1002" }))).await;
    let metrics = server.get("/metrics").await.text;
    let row = |namespace: &str, queue: &str, count: u64| {
        let labels = format!("namespace=\"{namespace}\",queue=\"{queue}\",status=\"PENDING\"");
        format!("tasklane_queue_tasks{{{labels}}} {count}")
    };
    for line in [
        row("default", "q1002", 2),
        row("default", "q0998", 1),
        row("(other)", "(other)", 3),
        "tasklane_queues_left_out 3".to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing");
    }
    assert!(!metrics.contains("q0999"), "the shortest are left out, the first by name stay");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_describes_itself() {
    let server = Server::start().await;
    let description = server.get("/api/openapi.json").await;
    assert_eq!(description.header("content-type"), Some("application/json"));
    assert_eq!(description.text, tasklane_api::openapi_json());
    assert_eq!(description.json()["openapi"], "3.1.0");
    let page = server.get("/api").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").is_some());
    assert!(page.text.contains("/api/v1/tasks/{id}/explain"));
    let problem = server.get("/api/v1/nothing").await.json();
    let about = server.get(problem["type"].as_str().unwrap()).await;
    assert_eq!((about.status, about.header("content-type")), (200, Some("text/markdown; charset=utf-8")));
    assert!(about.text.starts_with("# route_not_found\n"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_answered_without_a_body() {
    let server = Server::start().await;
    let head = server.request("HEAD", "/api/v1/stats").send().await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lane_that_is_held_up_is_told_and_its_session_is_not_renewed() {
    let server = Server::start().await;
    let (release, held) = std::sync::mpsc::channel();
    let mut held = Some(held);
    // The first commit does not come back, and neither does the thread of its lane.
    server.faults.plan(move |verb| held.take_if(|_| verb == "commit").map(Fault::HoldUp));
    let held_up = tokio::spawn(server.request("POST", "/api/v1/tasks").json(&task("noop")).send());
    let asked = async |path: &str, status: u16| {
        loop {
            let answer = server.get(path).await;
            if answer.status == status {
                return answer.text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let said = asked("/healthz", 503).await;
    assert!(said.starts_with("lane ") && said.contains("has not answered for 3 s"), "{said}");
    assert!(asked("/readyz", 503).await.contains("\"ready\":false"));
    let mut watch = server.coordinator.watch().await.unwrap();
    // The session of the server is not renewed any more: others could take its lanes.
    while watch
        .next()
        .await
        .unwrap()
        .members
        .values()
        .any(|member| matches!(member.role, Role::Server { .. }))
    {}
    drop(release);
    asked("/healthz", 200).await;
    held_up.await.unwrap();
    assert_eq!(server.run(task("noop")).await["status"], "SUCCESS");
    server.close().await;
}

//! Limits, rates and uniqueness by key.

use crate::support::{Server, task_with};
use serde_json::{Value, json};

const TENANT: &str = "{{ metadata.tenant }}";

async fn put(server: &Server, queue: &str, version: u64, policy: Value) -> crate::support::Answer {
    let body = json!({ "version": version, "policy": policy });
    server.request("PUT", &format!("/api/v1/queues/{queue}")).json(&body).send().await
}

/// A task that runs until it is cancelled.
fn endless(tenant: &str) -> Value {
    task_with("endless", json!({ "queue": "q", "metadata": { "tenant": tenant } }))
}

async fn explained(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/tasks/{id}/explain")).await.json()
}

async fn keys(server: &Server, queue: &str) -> Vec<Value> {
    let page = server.get(&format!("/api/v1/queues/{queue}/keys")).await;
    assert_eq!(page.status, 200, "{}", page.text);
    page.json()["keys"].as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_by_key_says_who_holds_it_and_a_raised_one_holds_at_once() {
    let server = Server::start().await;
    let policy = |limit| json!({ "concurrency": [{ "key": TENANT, "limit": limit }] });
    assert_eq!(put(&server, "q", 0, policy(1)).await.status, 200);
    let first = server.submit(endless("acme")).await;
    server.begun(&first).await;
    let second = server.submit(endless("acme")).await;
    let other = server.submit(endless("other")).await;
    server.begun(&other).await;

    let why = explained(&server, &second).await;
    let reason = &why["reasons"][0];
    assert_eq!(
        (&reason["code"], &reason["key"], &reason["template"]),
        (&json!("limit"), &json!("acme"), &json!(TENANT))
    );
    assert_eq!((&reason["running"], &reason["max"]), (&json!(1), &json!(1)));
    assert_eq!(reason["heldBy"][0]["taskId"], json!(first));
    assert!(reason["heldBy"][0]["since"].is_string());
    let summary = why["summary"].as_str().unwrap();
    assert!(summary.contains("\"acme\"") && summary.contains(&first), "{summary}");

    let shown: Vec<_> = keys(&server, "q").await;
    let acme = shown.iter().find(|key| key["key"] == "acme").unwrap();
    assert_eq!((&acme["running"], &acme["waiting"], &acme["limit"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!((shown.len(), &acme["template"]), (2, &json!(TENANT)));

    assert_eq!(put(&server, "q", 1, policy(2)).await.status, 200);
    server.begun(&second).await;
    for id in [first, second, other] {
        server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
        server.until(&id, "CANCELLED").await;
    }
    assert_eq!(keys(&server, "q").await, Vec::<Value>::new(), "keys without tasks are not kept");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_by_key_says_until_when() {
    let server = Server::start().await;
    let policy = json!({ "rate": [{ "key": TENANT, "limit": 1, "per": "1h" }] });
    assert_eq!(put(&server, "q", 0, policy).await.status, 200);
    let task = |tenant: &str| task_with("noop", json!({ "queue": "q", "metadata": { "tenant": tenant } }));
    let first = server.run(task("acme")).await;
    assert_eq!(first["keys"], json!(["acme"]));
    let second = server.submit(task("acme")).await;
    assert_eq!(server.run(task("other")).await["status"], "SUCCESS");
    let reason = &explained(&server, &second).await["reasons"][0];
    assert_eq!((&reason["code"], &reason["key"]), (&json!("rate"), &json!("acme")));
    let shown = keys(&server, "q").await;
    let acme = shown.iter().find(|key| key["key"] == "acme").unwrap();
    assert_eq!(acme["rate"]["nextAt"], reason["until"]);
    assert_eq!(
        (&acme["rate"]["limit"], &acme["rate"]["per"], &acme["rate"]["burst"]),
        (&json!(1), &json!(3600), &json!(1))
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_page_by_page() {
    let server = Server::start().await;
    for n in 0..5 {
        let own = json!({ "concurrency": [{ "key": format!("k{n}/ü"), "limit": 1 }] });
        server.submit(task_with("unknown", own)).await;
    }
    let (mut seen, mut path) = (Vec::new(), "/api/v1/queues/default/keys?limit=2".to_owned());
    loop {
        let page = server.get(&path).await.json();
        seen.extend(
            page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["cursor"].as_str() else { break };
        path = format!("/api/v1/queues/default/keys?limit=2&cursor={cursor}");
    }
    seen.sort();
    assert_eq!(seen, (0..5).map(|n| format!("k{n}/ü")).collect::<Vec<_>>());
    for cursor in ["x", "0123456789abcdef", "0123456789abcdef-1"] {
        let answer = server.get(&format!("/api/v1/queues/default/keys?cursor={cursor}")).await;
        answer.problem(400, "invalid_parameter", Some("cursor"));
    }
    assert_eq!(server.get("/api/v1/queues/never-used/keys").await.json(), json!({ "keys": [] }));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_is_cancelled_and_says_why() {
    let server = Server::start().await;
    let policy = json!({ "concurrency": [{ "key": TENANT, "limit": 1, "whenFull": "cancelNewest" }] });
    assert_eq!(put(&server, "q", 0, policy).await.status, 200);
    let first = server.submit(endless("acme")).await;
    server.begun(&first).await;
    let second = server.run(endless("acme")).await;
    assert_eq!((&second["status"], &second["error"]["code"]), (&json!("CANCELLED"), &json!("limit_reached")));
    assert!(second["error"]["message"].as_str().unwrap().contains("\"acme\""), "{second}");
    server.request("DELETE", &format!("/api/v1/tasks/{first}")).send().await;
    server.until(&first, "CANCELLED").await;
    let third = server.submit(endless("acme")).await;
    server.begun(&third).await;
    server.request("DELETE", &format!("/api/v1/tasks/{third}")).send().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_is_answered_with_the_task_that_holds_it() {
    let server = Server::start().await;
    let unique = |queue: &str| {
        let more = json!({ "queue": queue, "metadata": { "tenant": "acme" }, "unique": { "key": TENANT } });
        task_with("endless", more)
    };
    let first = server.submit(unique("q")).await;
    let second = server.post("/api/v1/tasks", &unique("q")).await;
    assert_eq!((second.status, &second.json()["taskId"]), (200, &json!(first)));
    assert_eq!(second.json()["duplicate"], json!(true));
    let elsewhere = server.submit(unique("other")).await;
    assert_ne!(first, elsewhere);
    let shown = server.get(&format!("/api/v1/tasks/{first}")).await.json();
    assert_eq!(shown["unique"], json!({ "key": "acme", "until": "finished" }));
    for id in [&first, &elsewhere] {
        server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
        server.until(id, "CANCELLED").await;
    }
    // Running it again takes the key again, and a later submit gets that task.
    let again = server.request("POST", &format!("/api/v1/tasks/{first}/retry")).send().await;
    assert_eq!(again.status, 201, "{}", again.text);
    let again = again.json()["newTaskId"].clone();
    let third = server.post("/api/v1/tasks", &unique("q")).await;
    assert_eq!((third.status, &third.json()["taskId"]), (200, &again));
    let retried = server.request("POST", &format!("/api/v1/tasks/{first}/retry")).send().await;
    assert_eq!((retried.status, &retried.json()["newTaskId"]), (200, &again));
    server.request("DELETE", &format!("/api/v1/tasks/{}", again.as_str().unwrap())).send().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_of_the_policy_is_held_for_a_time() {
    let server = Server::start().await;
    let policy = json!({ "unique": { "key": "{{ payload }}", "until": "1h" } });
    assert_eq!(put(&server, "q", 0, policy).await.status, 200);
    let task = || task_with("noop", json!({ "queue": "q" }));
    let first = server.run(task()).await;
    assert_eq!(first["unique"], json!({ "key": "hello", "until": 3600 }));
    let second = server.post("/api/v1/tasks", &task()).await;
    assert_eq!(
        (second.status, &second.json()["taskId"]),
        (200, &first["taskId"]),
        "also after it has finished"
    );
    let retry = format!("/api/v1/tasks/{}/retry", first["taskId"].as_str().unwrap());
    let again = server.request("POST", &retry).send().await;
    assert_eq!(again.status, 201, "who runs it again means it");
    assert_ne!(again.json()["newTaskId"], first["taskId"]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_spread_from_the_start_or_never() {
    let server = Server::start().await;
    let spread = |limit: &str| json!({ "spread": TENANT, "concurrency": [{ "key": limit, "limit": 1 }] });
    put(&server, "q", 0, spread("{{ taskType }}")).await.problem(
        422,
        "invalid_value",
        Some("policy.concurrency[0].key"),
    );
    let whole = json!({ "spread": TENANT, "concurrency": [{ "limit": 1 }] });
    let refused =
        put(&server, "q", 0, whole).await.problem(422, "invalid_value", Some("policy.concurrency[0].key"));
    assert!(refused["detail"].as_str().unwrap().contains("spread"), "{refused}");
    assert_eq!(put(&server, "q", 0, spread(TENANT)).await.status, 200);
    // Each of many tenants has one at a time, whichever lane it is in.
    for n in 0..8 {
        for _ in 0..2 {
            server
                .submit(task_with(
                    "unknown",
                    json!({ "queue": "q", "metadata": { "tenant": format!("t{n}") } }),
                ))
                .await;
        }
    }
    let mut shown = keys(&server, "q").await;
    shown.sort_by_key(|key| key["key"].to_string());
    let waiting: Vec<_> = shown.iter().map(|key| key["waiting"].as_u64().unwrap()).collect();
    assert_eq!(waiting, [2; 8]);
    let own = json!({ "queue": "q", "metadata": { "tenant": "a" }, "rate": [{ "key": "k", "limit": 1, "per": 1 }] });
    let own = server.post("/api/v1/tasks", &task_with("noop", own)).await;
    own.problem(422, "invalid_value", Some("rate[0].key"));
    put(&server, "q", 1, json!({})).await.problem(422, "invalid_value", Some("policy.spread"));
    put(&server, "q", 1, json!({ "spread": "x" })).await.problem(422, "invalid_value", Some("policy.spread"));
    server.submit(task_with("noop", json!({ "queue": "plain" }))).await;
    put(&server, "plain", 0, json!({ "spread": TENANT })).await.problem(
        422,
        "invalid_value",
        Some("policy.spread"),
    );
    // A change that is refused for its version settles nothing.
    put(&server, "later", 7, json!({})).await.problem(409, "policy_conflict", Some("version"));
    assert_eq!(put(&server, "later", 0, json!({ "spread": "" })).await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_counts_tasks_that_come_later() {
    let server = Server::start().await;
    let by = |key: &str| json!({ "concurrency": [{ "key": key, "limit": 1 }] });
    assert_eq!(put(&server, "q", 0, by(TENANT)).await.status, 200);
    let first = server.submit(endless("acme")).await;
    assert_eq!(put(&server, "q", 1, by("{{ taskType }}")).await.status, 200);
    let second = server.submit(endless("acme")).await;
    let keys_of = async |id: &str| server.get(&format!("/api/v1/tasks/{id}")).await.json()["keys"].clone();
    assert_eq!((keys_of(&first).await, keys_of(&second).await), (json!(["acme"]), json!(["endless"])));
    // A retried task is a later one; a task that cannot be counted again is counted as it was.
    for id in [&first, &second] {
        server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
        server.until(id, "CANCELLED").await;
    }
    let again = async || {
        let answer = server.request("POST", &format!("/api/v1/tasks/{first}/retry")).send().await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        let id = answer.json()["newTaskId"].as_str().expect("an id").to_owned();
        let keys = keys_of(&id).await;
        server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
        keys
    };
    assert_eq!(again().await, json!(["endless"]));
    assert_eq!(put(&server, "q", 2, by("{{ metadata.missing }}")).await.status, 200);
    assert_eq!(again().await, json!(["acme"]));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_its_queue_cannot_count_is_refused() {
    let server = Server::start().await;
    assert_eq!(
        put(&server, "q", 0, json!({ "concurrency": [{ "key": TENANT, "limit": 1 }] })).await.status,
        200
    );
    let refused = server.post("/api/v1/tasks", &task_with("noop", json!({ "queue": "q" }))).await;
    let problem = refused.problem(422, "invalid_value", Some("queue"));
    assert!(problem["detail"].as_str().unwrap().contains("metadata.tenant"), "{problem}");
    server.close().await;
}

//! Webhooks over REST, sent to a receiver on a real socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::{Server, task, task_with};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use serde_json::{Value, json};
use tasklane_ports::{Content, DocumentKey, DocumentKind, Documents as _, PutDocument, PutOutcome};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Something that was received.
#[derive(Debug)]
struct Message {
    id: String,
    signatures: usize,
    /// The header with the signatures, and the text that they sign.
    signature: String,
    signed: String,
    body: Value,
}

impl Message {
    /// Whether one of its signatures is made with a secret.
    fn is_signed_with(&self, secret: &str) -> bool {
        let key = BASE64.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), self.signed.as_bytes());
        let expected = format!("v1,{}", BASE64.encode(tag));
        self.signature.split(' ').any(|signature| signature == expected)
    }
}

/// Answers with the queued codes, and 204 after that.
struct Receiver {
    url: String,
    answers: Arc<Mutex<Vec<StatusCode>>>,
    messages: mpsc::UnboundedReceiver<Message>,
}

type Shared = (Arc<Mutex<Vec<StatusCode>>>, mpsc::UnboundedSender<Message>);

async fn receive(
    State((answers, heard)): State<Shared>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, HeaderMap) {
    let header = |name: &str| headers[name].to_str().expect("text").to_owned();
    assert_eq!(header("content-type"), "application/json");
    assert!(header("webhook-timestamp").parse::<i64>().is_ok());
    let signatures = header("webhook-signature").split(' ').filter(|part| part.starts_with("v1,")).count();
    let signed = format!("{}.{}.{body}", header("webhook-id"), header("webhook-timestamp"));
    let body = serde_json::from_str(&body).expect("JSON");
    let signature = header("webhook-signature");
    let _ = heard.send(Message { id: header("webhook-id"), signatures, signature, signed, body });
    let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let again = HeaderMap::from_iter([(axum::http::header::RETRY_AFTER, "0".parse().expect("a value"))]);
    (answer.unwrap_or(StatusCode::NO_CONTENT), again)
}

impl Receiver {
    async fn start() -> Self {
        let (heard, messages) = mpsc::unbounded_channel();
        let answers = Arc::<Mutex<Vec<StatusCode>>>::default();
        let router = Router::new().fallback(receive).with_state((Arc::clone(&answers), heard));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, answers, messages }
    }

    fn answer(&self, status: StatusCode) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(status);
    }

    async fn next(&mut self) -> Message {
        let next = tokio::time::timeout(Duration::from_mins(1), self.messages.recv()).await;
        next.expect("a message in time").expect("the receiver runs")
    }

    fn has_more(&mut self) -> bool {
        self.messages.try_recv().is_ok()
    }

    fn hook(&self, on: &[&str]) -> Value {
        json!({ "url": self.url, "on": on })
    }
}

/// The deliveries that there are, once they have all ended.
async fn deliveries(server: &Server, query: &str, count: usize) -> Vec<Value> {
    loop {
        let page = server.get(&format!("/api/v1/webhooks/deliveries{query}")).await.json();
        let all = page["deliveries"].as_array().expect("a list").clone();
        if all.len() >= count && all.iter().all(|one| !one["finishedAt"].is_null()) {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_task_is_told_and_the_delivery_listed() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let hooks = json!([receiver.hook(&["finished"])]);
    let done = server
        .run(task_with("echo", json!({ "payload": "hi", "metadata": { "a": "b" }, "webhooks": hooks })))
        .await;
    assert_eq!(done["webhooks"], hooks);
    let told = receiver.next().await;
    assert_eq!((&told.body["type"], told.signatures), (&json!("task.succeeded"), 1));
    assert_eq!(told.body["timestamp"], done["finishedAt"]);
    let data = &told.body["data"];
    for field in ["taskId", "status", "taskName", "taskType", "queue", "createdAt", "finishedAt", "metadata"]
    {
        assert_eq!(data[field], done[field], "{field}");
    }
    assert_eq!(data["result"]["data"], "hi");
    let id = done["taskId"].as_str().expect("an id");
    let [delivery] = &deliveries(&server, &format!("?task={id}"), 1).await[..] else {
        panic!("there is one")
    };
    assert_eq!((&delivery["status"], &delivery["event"]), (&json!("SUCCESS"), &json!("task.succeeded")));
    assert_eq!((&delivery["url"], &delivery["messageId"]), (&json!(receiver.url), &json!(told.id)));
    assert_eq!((&delivery["taskId"], &delivery["attempts"]), (&json!(id), &json!(1)));
    assert_eq!(deliveries(&server, "?status=SUCCESS,FAILED", 1).await[..], *std::slice::from_ref(delivery));
    assert!(!receiver.has_more());
    server.close().await;
}

/// A client that may list deliveries, or receives one, has not always set the address up.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_in_addresses_are_masked_in_deliveries_and_errors() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let with_secret = receiver.url.replace("http://", "http://me:pa55word@") + "?token=s3cret";
    let task = task_with("echo", json!({ "webhooks": [{ "url": with_secret }] }));
    let done = server.run(task).await;
    // Its owner sees what was asked for.
    assert_eq!(done["webhooks"][0]["url"], with_secret);
    receiver.next().await;
    let delivered = deliveries(&server, "", 1).await;
    assert_eq!(delivered[0]["url"], receiver.url.replace("http://", "http://***@") + "?***");

    // A port that was free a moment ago.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nowhere = format!("http://me:pa55word@{free}/?token=s3cret");
    let started = server.post("/api/v1/webhooks/test", &json!({ "url": nowhere })).await.json();
    let id = started["deliveryId"].as_str().unwrap();
    server.until(id, "RETRYING").await;
    let failed = server.get(&format!("/api/v1/tasks/{id}")).await.json();
    let error = failed["error"]["message"].as_str().unwrap();
    assert!(error.contains(&format!("http://{free}/?***")), "{error}");
    assert!(!error.contains("s3cret") && !error.contains("pa55word"), "{error}");
    let listed = server.get("/api/v1/webhooks/deliveries?status=RETRYING").await.text;
    assert!(!listed.contains("s3cret") && !listed.contains("pa55word"), "{listed}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_failures_are_told_to_those_who_ask_for_them() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let hooks = json!([receiver.hook(&["failed"])]);
    server.run(task_with("echo", json!({ "webhooks": hooks }))).await;
    let failed = server.run(task_with("fail", json!({ "retryCount": 0, "webhooks": hooks }))).await;
    let told = receiver.next().await;
    assert_eq!(
        (&told.body["type"], &told.body["data"]["taskId"]),
        (&json!("task.failed"), &failed["taskId"])
    );
    assert_eq!(told.body["data"]["error"]["code"], failed["error"]["code"]);
    assert_eq!(deliveries(&server, "", 1).await.len(), 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_tells_of_its_tasks_and_of_a_whole_once() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let policy = json!({ "version": 0, "policy": { "webhooks": [receiver.hook(&["finished"])] } });
    let put = server.request("PUT", "/api/v1/queues/told").json(&policy).send().await;
    assert_eq!(put.status, 200, "{}", put.text);
    assert_eq!(put.json()["policy"]["webhooks"], policy["policy"]["webhooks"]);
    // A receiver that both the task and its queue name gets one message.
    let own = json!([receiver.hook(&["failed"])]);
    let one = server.run(task_with("echo", json!({ "queue": "told", "webhooks": own }))).await;
    assert_eq!(receiver.next().await.body["data"]["taskId"], one["taskId"]);
    let many = json!({ "queue": "told", "map": { "items": [1, 2, 3] } });
    let many = server.run(task_with("echo", many)).await;
    let told = receiver.next().await.body;
    assert_eq!(told["data"]["taskId"], many["taskId"]);
    assert_eq!((&told["data"]["queue"], &told["data"]["taskType"]), (&json!("told"), &json!("echo")));
    assert_eq!(deliveries(&server, "", 2).await.len(), 2);
    assert!(!receiver.has_more());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_tried_again_and_given_up_when_the_receiver_is_gone() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    receiver.answer(StatusCode::SERVICE_UNAVAILABLE);
    let hooks = json!([receiver.hook(&["finished"])]);
    server.run(task_with("echo", json!({ "webhooks": hooks }))).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    assert_eq!((&first.id, &first.body), (&second.id, &second.body));
    assert_eq!(deliveries(&server, "", 1).await[0]["attempts"], 2);

    receiver.answer(StatusCode::GONE);
    let done = server.run(task_with("echo", json!({ "webhooks": hooks }))).await;
    let gone = receiver.next().await;
    let query = format!("?task={}", done["taskId"].as_str().expect("an id"));
    let [delivery] = &deliveries(&server, &query, 1).await[..] else { panic!("there is one") };
    assert_eq!((&delivery["status"], &delivery["error"]["code"]), (&json!("FAILED"), &json!("http_status")));
    // Somebody asks for it once more: the same message, for the same task.
    let id = delivery["deliveryId"].as_str().expect("an id");
    let again = server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({})).await;
    assert_eq!(again.status, 201, "{}", again.text);
    assert_eq!(receiver.next().await.id, gone.id);
    assert_eq!(deliveries(&server, &query, 2).await.len(), 2);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_tells_of_its_tasks_and_that_it_fails() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let hooks = json!([receiver.hook(&["finished", "failing"])]);
    let put = |task: Value| {
        let schedule = json!({
            "every": "1h", "overlap": "allowAll", "task": task, "pauseAfterFailures": 2,
            "webhooks": hooks,
        });
        server.request("PUT", "/api/v1/schedules/s").json(&schedule).send()
    };
    let trigger = || async {
        let fired = server.request("POST", "/api/v1/schedules/s/trigger").send().await;
        assert_eq!(fired.status, 201, "{}", fired.text);
        fired.json()["taskId"].clone()
    };
    let answer = put(task_with("fail", json!({ "retryCount": 0 }))).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let task_id = trigger().await;
    let mut told = [receiver.next().await.body, receiver.next().await.body];
    told.sort_by_key(|body| body["type"].as_str().expect("text").to_owned());
    assert_eq!((&told[0]["type"], &told[0]["data"]["schedule"]), (&json!("schedule.failing"), &json!("s")));
    assert_eq!((&told[1]["type"], &told[1]["data"]["taskId"]), (&json!("task.failed"), &task_id));
    assert_eq!(told[1]["data"]["schedule"], "s");
    put(task("echo")).await;
    trigger().await;
    let mut told = [receiver.next().await.body, receiver.next().await.body];
    told.sort_by_key(|body| body["type"].as_str().expect("text").to_owned());
    assert_eq!(
        (&told[0]["type"], &told[1]["type"]),
        (&json!("schedule.recovered"), &json!("task.succeeded"))
    );
    // A schedule is paused as soon as its tasks have failed so often, not only at its next time.
    put(task_with("fail", json!({ "retryCount": 0 }))).await;
    trigger().await;
    trigger().await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(receiver.next().await.body["type"].as_str().expect("text").to_owned());
    }
    told.sort_unstable();
    assert_eq!(told, ["schedule.failing", "schedule.paused", "task.failed", "task.failed"]);
    assert_eq!(server.get("/api/v1/schedules/s").await.json()["enabled"], false);
    server.close().await;
}

/// A task may end before it is written down that it was submitted.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_counts_however_early_it_comes() {
    let server = Server::start().await;
    let schedule = json!({ "every": "1h", "task": task_with("fail", json!({ "retryCount": 0 })), "pauseAfterFailures": 1 });
    for number in 0..60 {
        let put = server.request("PUT", &format!("/api/v1/schedules/s{number}")).json(&schedule).send().await;
        assert_eq!(put.status, 201, "{}", put.text);
        server.request("POST", &format!("/api/v1/schedules/s{number}/trigger")).send().await;
    }
    let begun = std::time::Instant::now();
    loop {
        let all = server.get("/api/v1/schedules?limit=100").await.json()["schedules"].clone();
        let open = all.as_array().expect("a list").iter().filter(|one| one["enabled"] == true).count();
        if open == 0 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "{open} schedules were not paused: {all:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_cannot_be_read_holds_up_nobody_else() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let schedule = json!({
        "every": "1h", "overlap": "bufferOne", "task": task_with("echo", json!({ "delay": "300ms" })),
    });
    server.request("PUT", "/api/v1/schedules/s").json(&schedule).send().await;
    let fired = server.request("POST", "/api/v1/schedules/s/trigger").send().await;
    let fired = fired.json()["taskId"].as_str().expect("an id").to_owned();
    let name = |text: &str| tasklane_core::id::Name::new(text).expect("a name");
    let key = DocumentKey { kind: DocumentKind::Schedule, namespace: name("default"), id: name("s") };
    loop {
        let found = server.store.get(std::slice::from_ref(&key)).await.expect("documents").pop().flatten();
        let expected = found.expect("it is there").version;
        let content = Some(Content { due: None, value: b"nonsense".to_vec() });
        let put = [PutDocument { key: key.clone(), expected, content }];
        if let [PutOutcome::Stored { .. }] = server.store.put(&put).await.expect("documents")[..] {
            break;
        }
    }
    server.get(&format!("/api/v1/tasks/{fired}/logs?follow=true")).await;
    server.run(task_with("echo", json!({ "webhooks": [receiver.hook(&["finished"])] }))).await;
    assert_eq!(receiver.next().await.body["type"], "task.succeeded");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_task_does_not_begin_is_late() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let schedule = json!({
        "every": "1h", "task": task("nobody_runs_this"), "lateAfter": "1s",
        "webhooks": [receiver.hook(&["late"])],
    });
    let answer = server.request("PUT", "/api/v1/schedules/s").json(&schedule).send().await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    server.request("POST", "/api/v1/schedules/s/trigger").send().await;
    let told = receiver.next().await.body;
    assert_eq!((&told["type"], &told["data"]["schedule"]), (&json!("schedule.late"), &json!("s")));
    let late = server.get("/api/v1/schedules/s").await.json()["late"].clone();
    assert_eq!(told["data"]["nominalTime"], late);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_of_once() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let run = json!({
        "nodes": [{ "name": "a", "taskType": "echo" }, { "name": "b", "taskType": "echo", "dependsOn": ["a"] }],
        "webhooks": [receiver.hook(&["finished"])],
    });
    let started = server.post("/api/v1/workflows/runs", &run).await;
    assert_eq!(started.status, 201, "{}", started.text);
    let told = receiver.next().await.body;
    assert_eq!(
        (&told["type"], &told["data"]["taskId"]),
        (&json!("task.succeeded"), &started.json()["runId"])
    );
    assert_eq!(deliveries(&server, "", 1).await.len(), 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_replaced_without_a_gap() {
    let (server, mut receiver) = (Server::start().await, Receiver::start().await);
    let secret = server.get("/api/v1/webhooks/secret").await.json();
    assert!(secret["secret"].as_str().is_some_and(|text| text.starts_with("whsec_")));
    assert_eq!(server.get("/api/v1/webhooks/secret").await.json(), secret);
    let test = json!({ "url": receiver.url });
    let send = || async {
        let answer = server.post("/api/v1/webhooks/test", &test).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    };
    send().await;
    let told = receiver.next().await;
    assert_eq!((told.signatures, &told.body["type"]), (1, &json!("test")));
    let rotated = server.request("POST", "/api/v1/webhooks/secret/rotate").send().await.json();
    assert_eq!(rotated["previous"][0]["secret"], secret["secret"]);
    assert_ne!(rotated["secret"], secret["secret"]);
    send().await;
    assert_eq!(receiver.next().await.signatures, 2);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_webhooks_are_refused_by_field() {
    let server = Server::start().await;
    let hook = |more: &Value| {
        let mut hook = json!({ "url": "http://127.0.0.1:9/" });
        hook.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({ "webhooks": [hook] })
    };
    for (more, code, field) in [
        (json!({ "url": "mailto:a@b" }), "invalid_value", "webhooks[0].url"),
        (json!({ "url": "http://" }), "invalid_value", "webhooks[0].url"),
        (json!({ "on": ["late"] }), "invalid_value", "webhooks[0].on"),
        (json!({ "on": [] }), "invalid_value", "webhooks[0].on"),
        (json!({ "on": [null] }), "wrong_type", "webhooks[0].on[0]"),
        (json!({ "on": [{}] }), "wrong_type", "webhooks[0].on[0]"),
        (json!({ "secret": "x" }), "unknown_field", "webhooks[0].secret"),
    ] {
        let answer = server.post("/api/v1/tasks", &task_with("echo", hook(&more))).await;
        answer.problem(422, code, Some(field));
    }
    let policy = json!({ "version": 0, "policy": hook(&json!({ "url": "x" })) });
    let put = server.request("PUT", "/api/v1/queues/q").json(&policy).send().await;
    put.problem(422, "invalid_value", Some("policy.webhooks[0].url"));
    let mut schedule = json!({ "every": "1h", "task": task("echo") });
    schedule["webhooks"] = hook(&json!({ "on": ["late"] }))["webhooks"].clone();
    let put = server.request("PUT", "/api/v1/schedules/s").json(&schedule).send().await;
    put.problem(422, "missing_field", Some("lateAfter"));
    server.post("/api/v1/webhooks/test", &json!({ "url": "x" })).await.problem(
        422,
        "invalid_value",
        Some("url"),
    );
    server.close().await;
}

/// All receivers of a namespace had one secret, so that each could sign as the sender to the others.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_may_have_a_secret_of_its_own() {
    let server = Server::start().await;
    let (mut own, mut other) = (Receiver::start().await, Receiver::start().await);
    let path = "/api/v1/webhooks/endpoints";
    let common = server.get("/api/v1/webhooks/secret").await.json()["secret"].as_str().unwrap().to_owned();
    let send = async |url: &str| {
        let sent = server.post("/api/v1/webhooks/test", &json!({ "url": url })).await;
        assert_eq!(sent.status, 202, "{}", sent.text);
    };
    let made = server.post(path, &json!({ "url": own.url })).await;
    assert_eq!((made.status, &made.json()["url"]), (201, &json!(own.url)), "{}", made.text);
    let first = made.json()["secret"].as_str().unwrap().to_owned();
    send(&own.url).await;
    let told = own.next().await;
    assert!(told.is_signed_with(&first) && !told.is_signed_with(&common) && told.signatures == 1, "{told:?}");
    send(&other.url).await;
    let told = other.next().await;
    assert!(told.is_signed_with(&common) && !told.is_signed_with(&first) && told.signatures == 1, "{told:?}");

    // It is shown once, and the same address in another spelling is the same endpoint.
    let listed = server.get(path).await;
    assert_eq!(listed.json(), json!({ "endpoints": [{ "url": own.url }] }));
    let spelt = format!("{}#x", own.url.replace("http://", "HTTP://"));
    server.post(path, &json!({ "url": spelt })).await.problem(422, "invalid_value", Some("url"));
    let replaced = server.post(path, &json!({ "url": format!("{}#x", own.url) })).await;
    assert_eq!(replaced.status, 200, "{}", replaced.text);
    let second = replaced.json()["secret"].as_str().unwrap().to_owned();
    assert!(second != first && replaced.json()["previousUntil"].is_string(), "{}", replaced.text);
    send(&own.url).await;
    let told = own.next().await;
    assert!(told.is_signed_with(&first) && told.is_signed_with(&second) && told.signatures == 2, "{told:?}");

    let gone = server.request("DELETE", &format!("{path}?url={}", own.url)).send().await;
    assert_eq!(gone.status, 204, "{}", gone.text);
    assert_eq!(server.get(path).await.json()["endpoints"], json!([]));
    send(&own.url).await;
    let told = own.next().await;
    assert!(told.is_signed_with(&common) && told.signatures == 1, "{told:?}");
    server.request("DELETE", path).send().await.problem(400, "invalid_parameter", Some("url"));
    server.close().await;
}

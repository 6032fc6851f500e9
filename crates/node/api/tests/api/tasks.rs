//! Tasks over HTTP, from submit to result.

use crate::support::{Server, task, task_with};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_submitted_and_read() {
    let server = Server::start().await;
    let answer = server.post("/api/v1/tasks", &task("echo")).await;
    assert_eq!((answer.status, answer.header("content-type")), (201, Some("application/json")));
    let created = answer.json();
    assert_eq!(created["status"], "PENDING");
    assert_eq!(created.as_object().unwrap().len(), 2, "{created}");
    let id = created["taskId"].as_str().unwrap();
    server.until(id, "SUCCESS").await;

    let found = server.get(&format!("/api/v1/tasks/{id}")).await.json();
    assert_eq!(found["taskId"], *id);
    assert_eq!(found["status"], "SUCCESS");
    assert_eq!(found["result"], json!({ "code": 0, "message": "said", "data": "hello" }));
    assert_eq!(
        (&found["payload"], &found["queue"], &found["priority"]),
        (&json!("hello"), &json!("default"), &json!(5))
    );
    assert_eq!((&found["worker"], &found["attempt"]), (&json!("w1"), &json!(1)));
    assert_eq!(found["executionTimeout"], 300);
    assert_eq!(found["retryPolicy"]["backoffRate"], 2.0);
    assert_eq!(found["logs"][0]["text"], "hello\n");
    assert_eq!(
        (&found["logs"][1]["stream"], &found["logs"][1]["base64"]),
        (&json!("stderr"), &json!("/wo="))
    );
    assert_eq!(found["attempts"][0]["outcome"], "SUCCESS");
    for time in ["createdAt", "dueAt", "scheduledAt", "startedAt", "finishedAt"] {
        assert!(found[time].as_str().is_some_and(|time| time.ends_with('Z')), "{time}: {found}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_payload_comes_back_as_it_was_sent() {
    let server = Server::start().await;
    let body = r#"{"taskName":"j","taskType":"noop","payload":{"b":1.0, "a":[12345678901234567890123]}}"#;
    let request = server.request("POST", "/api/v1/tasks?wait=60").header("content-type", "application/json");
    let answer = request.body(body).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.contains(r#""payload":{"b":1.0, "a":[12345678901234567890123]}"#), "{}", answer.text);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_asked_for_comes_back() {
    let server = Server::start().await;
    let asked = json!({
        "executionTimeout": 60, "retryPolicy":
            { "maxRetries": 2, "retryDelay": 1, "backoffRate": 1.5, "maxDelay": 9, "jitter": 0.5 },
        "requestId": "r", "queue": "q", "priority": 7, "metadata": { "k": "v" }, "labels": { "zone": "eu" },
        "hashKey": "customer-7", "startTimeout": 30, "progressTimeout": 20, "payload": { "a": 1 },
    });
    let id = server.submit(task_with("noop", asked.clone())).await;
    let found = server.get(&format!("/api/v1/tasks/{id}")).await.json();
    for (field, value) in asked.as_object().unwrap() {
        assert_eq!(&found[field], value, "{field}");
    }
    server.close().await;
}

/// `retryCount` in an answer was the number of retries used: a client that read a task and sent it again asked for
/// fewer retries, or for none.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_can_be_sent_again() {
    let server = Server::start().await;
    let asked = json!({
        "executionTimeout": 60, "retryCount": 1, "queue": "q", "priority": 7, "metadata": { "k": "v" },
        "labels": { "zone": "a" }, "hashKey": "customer-7", "startTimeout": 30, "progressTimeout": 20,
        "unique": { "key": "u", "until": "finished" }, "payload": { "a": 1 },
        "webhooks": [{ "url": "http://127.0.0.1:9/hook", "on": ["failed"] }],
        "retryPolicy": { "maxRetries": 1, "retryDelay": 0, "backoffRate": 1.5, "maxDelay": 9, "jitter": 0.5 },
    });
    let first = server.run(task_with("flaky", asked.clone())).await;
    assert_eq!((&first["retryCount"], &first["retriesUsed"]), (&json!(1), &json!(1)), "{first}");

    let requested: Vec<&String> = asked.as_object().unwrap().keys().collect();
    let request = |answer: &Value| {
        let mut request = task("flaky");
        for field in &requested {
            request[field.as_str()] = answer[field.as_str()].clone();
        }
        request
    };
    let again = server.run(request(&first)).await;
    assert_eq!(request(&again), request(&first));
    assert_eq!((&again["retryCount"], &again["retriesUsed"]), (&json!(1), &json!(1)), "{again}");
    let listed = server.get("/api/v1/tasks?queue=q").await.json();
    assert_eq!(
        (&listed["tasks"][0]["retryCount"], &listed["tasks"][0]["retriesUsed"]),
        (&json!(1), &json!(1))
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_gives_the_finished_task_or_its_state_when_time_is_up() {
    let server = Server::start().await;
    assert_eq!(server.run(task("echo")).await["status"], "SUCCESS");
    assert_eq!(
        server.run(task("fail")).await["error"],
        json!({ "code": "exit_code", "message": "exit code 3" })
    );
    let answer = server.post("/api/v1/tasks?wait=10ms", &task("endless")).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let unfinished = answer.json();
    let id = unfinished["taskId"].as_str().unwrap();
    assert_ne!(unfinished["status"], "SUCCESS");
    assert_eq!(server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await.status, 202);
    server.until(id, "CANCELLED").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_id_is_one_task() {
    let server = Server::start().await;
    let request = task_with("noop", json!({ "requestId": "r-1" }));
    let id = server.submit(request.clone()).await;
    let again = server.post("/api/v1/tasks", &request).await;
    assert_eq!(
        (again.status, again.json()),
        (200, json!({ "taskId": id, "status": "PENDING", "duplicate": true }))
    );
    let other = task_with("noop", json!({ "requestId": "r-1", "priority": 9 }));
    server.post("/api/v1/tasks", &other).await.problem(409, "request_id_reused", Some("requestId"));
    let elsewhere = task_with("noop", json!({ "requestId": "r-1", "priority": 9, "queue": "other" }));
    assert_ne!(server.submit(elsewhere).await, id);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_task_of_a_batch_does_not_hold_back_the_others() {
    let server = Server::start().await;
    let tasks = json!({ "tasks": [
        task_with("noop", json!({ "requestId": "a" })),
        { "taskName": "x" },
        5,
        task_with("noop", json!({ "requestId": "a" })),
        task_with("noop", json!({ "payload": "x".repeat((256 << 10) + 1) })),
        task("noop"),
    ] });
    let answer = server.post("/api/v1/tasks/batch", &tasks).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    assert_eq!(results[0]["status"], "PENDING");
    assert_eq!(
        (&results[1]["error"]["code"], &results[1]["error"]["field"]),
        (&json!("missing_field"), &json!("taskType"))
    );
    assert_eq!(results[2]["error"]["code"], "wrong_type");
    assert_eq!((&results[3]["taskId"], &results[3]["duplicate"]), (&results[0]["taskId"], &json!(true)));
    assert_eq!(results[4]["error"]["code"], "payload_too_large");
    assert!(results[5]["taskId"].is_string() && results[5]["error"].is_null());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_one_to_ten_thousand_tasks() {
    let server = Server::start().await;
    let batch = |count| json!({ "tasks": vec![task("unknown"); count] });
    let most = server.post("/api/v1/tasks/batch", &batch(10_000)).await;
    assert_eq!(most.status, 200);
    let most = most.json();
    assert_eq!(most["results"].as_array().unwrap().len(), 10_000);
    assert!(most["results"].as_array().unwrap().iter().all(|result| result["taskId"].is_string()));
    server.post("/api/v1/tasks/batch", &batch(10_001)).await.problem(422, "invalid_value", Some("tasks"));
    server.post("/api/v1/tasks/batch", &batch(0)).await.problem(422, "invalid_value", Some("tasks"));
    // Entries after ten thousand tasks are not read: thirty-two megabytes of them took half a gigabyte.
    let endless = format!(r#"{{"tasks":[{}0"#, "0,".repeat(10_001));
    let request = server.request("POST", "/api/v1/tasks/batch").header("content-type", "application/json");
    request.body(endless).send().await.problem(422, "invalid_value", Some("tasks"));
    let large = format!(r#"{{"tasks":[{}]}}"#, vec!["0".repeat(100_000); 10].join(","));
    let request = server.request("POST", "/api/v1/tasks/batch").header("content-type", "application/json");
    request.body(large).send().await.problem(400, "invalid_json", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_by_filter_and_page_by_page() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let more = json!({ "queue": "q", "taskName": format!("t{}", n % 2), "metadata": { "n": n.to_string(), "k": "v" } });
        ids.push(server.submit(task_with("unknown", more)).await);
    }
    let done = server.run(task("noop")).await;
    let large = server
        .submit(task_with("unknown", json!({ "taskName": "large", "payload": "x".repeat(10_000) })))
        .await;

    let list = async |query: &str| {
        let answer = server.get(&format!("/api/v1/tasks?{query}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let tasks = answer["tasks"].as_array().unwrap();
        let ids: Vec<String> = tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect();
        (ids, answer["cursor"].as_str().map(str::to_owned))
    };
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(list("queue=q").await, (newest_first.clone(), None));
    assert_eq!(list("queue=q&name=t1").await.0, [ids[3].clone(), ids[1].clone()]);
    assert_eq!(list("metadata.n=3&metadata.k=v").await.0, [ids[3].clone()]);
    assert_eq!(list("metadata.n=3&metadata.k=w").await.0, Vec::<String>::new());
    assert_eq!(list("status=SUCCESS").await.0, [done["taskId"].as_str().unwrap()]);
    assert_eq!(list("status=SUCCESS,FAILED&type=noop").await.0.len(), 1);
    assert_eq!(list("status=SUCCESS&status=PENDING").await.0.len(), 7);
    assert_eq!(list("worker=w1").await.0.len(), 1);
    assert_eq!(list("createdBefore=2000-01-01T00:00:00Z").await.0.len(), 0);
    assert_eq!(list("createdAfter=2000-01-01T00:00:00Z").await.0.len(), 7);
    assert_eq!(list(&format!("parent={large}")).await.0.len(), 0);

    let (first, cursor) = list("queue=q&limit=2").await;
    let (second, cursor) = list(&format!("queue=q&limit=2&cursor={}", cursor.unwrap())).await;
    let (third, _) = list(&format!("queue=q&limit=2&cursor={}", cursor.unwrap())).await;
    assert_eq!([first, second, third].concat(), newest_first);

    // Its body is too large for lists; its name is shown nevertheless.
    let named = server.get("/api/v1/tasks?name=large").await.json();
    assert_eq!(named["tasks"][0]["taskName"], "large");
    assert!(named["tasks"][0]["payload"].is_null() && named["tasks"][0]["logs"].is_null());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_sees_only_its_own_tasks() {
    let server = Server::start().await;
    let id = server.submit(task("noop")).await;
    let path = format!("/api/v1/tasks/{id}");
    server.request("GET", &path).header("tasklane-namespace", "other").send().await.problem(
        404,
        "task_not_found",
        None,
    );
    let elsewhere =
        server.request("POST", "/api/v1/tasks").header("tasklane-namespace", "other").json(&task("noop"));
    let elsewhere = elsewhere.send().await.json();
    let list =
        server.request("GET", "/api/v1/tasks").header("tasklane-namespace", "other").send().await.json();
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(list["tasks"][0]["taskId"], elsewhere["taskId"]);
    assert_eq!(list["tasks"][0]["namespace"], "other");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_task_is_cancelled_and_a_finished_one_is_not() {
    let server = Server::start().await;
    let id = server.submit(task("endless")).await;
    server.begun(&id).await;
    let path = format!("/api/v1/tasks/{id}");
    let accepted = server.request("DELETE", &path).send().await;
    assert_eq!((accepted.status, accepted.json()), (202, json!({ "message": "Cancel request accepted." })));
    server.until(&id, "CANCELLED").await;
    assert_eq!(server.request("DELETE", &path).send().await.status, 202);

    let done = server.run(task("noop")).await;
    let path = format!("/api/v1/tasks/{}", done["taskId"].as_str().unwrap());
    let problem = server.request("DELETE", &path).send().await.problem(409, "task_finished", None);
    assert_eq!(problem["taskStatus"], "SUCCESS");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_task_is_run_again_as_a_new_one() {
    let server = Server::start().await;
    let done = server.run(task("noop")).await;
    let path = format!("/api/v1/tasks/{}/retry", done["taskId"].as_str().unwrap());
    let first = server.request("POST", &path).send().await;
    assert_eq!((first.status, &first.json()["status"]), (201, &json!("PENDING")), "{}", first.text);
    let new = first.json()["newTaskId"].as_str().unwrap().to_owned();
    server.until(&new, "SUCCESS").await;
    assert_eq!(server.get(&format!("/api/v1/tasks/{new}")).await.json()["parent"], done["taskId"]);
    let children =
        server.get(&format!("/api/v1/tasks?parent={}", done["taskId"].as_str().unwrap())).await.json();
    assert_eq!(children["tasks"][0]["taskId"], *new);

    let named = server.post(&path, &json!({ "requestId": "again" })).await;
    let repeated = server.post(&path, &json!({ "requestId": "again" })).await;
    assert_eq!((named.status, repeated.status), (201, 200));
    assert_eq!(
        (&repeated.json()["newTaskId"], &repeated.json()["duplicate"]),
        (&named.json()["newTaskId"], &json!(true))
    );

    let endless = server.submit(task("endless")).await;
    let problem = server.request("POST", &format!("/api/v1/tasks/{endless}/retry")).send().await;
    problem.problem(409, "task_unfinished", None);
    server.request("DELETE", &format!("/api/v1/tasks/{endless}")).send().await;
    server.until(&endless, "CANCELLED").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_of_a_retry_is_not_one_of_a_submit() {
    let server = Server::start().await;
    let named = |id: &str| task_with("noop", json!({ "requestId": id }));
    let done = server.run(named("mine")).await["taskId"].as_str().unwrap().to_owned();
    let retry = format!("/api/v1/tasks/{done}/retry");
    let reused =
        |answer: crate::support::Answer| _ = answer.problem(409, "request_id_reused", Some("requestId"));

    let first = server.post(&retry, &json!({ "requestId": "w1" })).await;
    assert_eq!(first.status, 201, "{}", first.text);
    reused(server.post("/api/v1/tasks", &named("w1")).await);

    server.run(named("w2")).await;
    reused(server.post(&retry, &json!({ "requestId": "w2" })).await);
    // Its own one stands for the request that made it.
    reused(server.post(&retry, &json!({ "requestId": "mine" })).await);
    let again = first.json()["newTaskId"].as_str().unwrap().to_owned();
    server.until(&again, "SUCCESS").await;
    let retry_again = format!("/api/v1/tasks/{again}/retry");
    reused(server.post(&retry_again, &json!({ "requestId": "w1" })).await);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_output_are_read_page_by_page() {
    let server = Server::start().await;
    let done = server.run(task("echo")).await;
    let path = format!("/api/v1/tasks/{}", done["taskId"].as_str().unwrap());
    let attempts = server.get(&format!("{path}/attempts")).await.json();
    assert_eq!(attempts["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(attempts["attempts"][0]["worker"], "w1");
    assert_eq!(server.get(&format!("{path}/attempts?after=1")).await.json(), json!({ "attempts": [] }));

    let first = server.get(&format!("{path}/logs?limit=1")).await.json();
    assert_eq!((first["logs"].as_array().unwrap().len(), &first["logs"][0]["text"]), (1, &json!("hello\n")));
    let rest = server.get(&format!("{path}/logs?after={}", first["next"].as_str().unwrap())).await.json();
    assert_eq!(rest["logs"][0]["text"], "\u{fffd}\n");
    let end = server.get(&format!("{path}/logs?after={}", rest["next"].as_str().unwrap())).await.json();
    assert_eq!(end, json!({ "logs": [] }));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_is_explained() {
    let server = Server::start().await;
    let explain = async |id: &str| server.get(&format!("/api/v1/tasks/{id}/explain")).await.json();
    let nobody = server.submit(task("unknown")).await;
    let explained = explain(&nobody).await;
    assert_eq!(explained["status"], "PENDING");
    assert_eq!(
        (&explained["reasons"][0]["code"], &explained["reasons"][0]["taskType"]),
        (&json!("no_capable_worker"), &json!("unknown"))
    );
    assert!(
        explained["summary"].as_str().unwrap().contains("No worker offers the type unknown ("),
        "{explained}"
    );
    let labelled = server.submit(task_with("unknown", json!({ "labels": { "gpu": "yes" } }))).await;
    let explained = explain(&labelled).await;
    assert!(explained["summary"].as_str().unwrap().contains("with the labels gpu=yes ("), "{explained}");

    let later = server.submit(task_with("noop", json!({ "delay": "1h" }))).await;
    let explained = explain(&later).await;
    assert_eq!(explained["reasons"][0]["code"], "delayed");
    assert!(explained["reasons"][0]["until"].is_string());

    let done = server.run(task("fail")).await;
    let explained = explain(done["taskId"].as_str().unwrap()).await;
    assert_eq!((&explained["status"], &explained["reasons"]), (&json!("FAILED"), &json!([])));
    assert_eq!(explained["summary"], "It has finished: it failed (exit code 3).");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown() {
    let server = Server::start().await;
    let id = server.submit(task("progress")).await;
    server.begun(&id).await;
    let path = format!("/api/v1/tasks/{id}");
    let shown = loop {
        let found = server.get(&path).await.json();
        if found["progress"] != Value::Null {
            break found["progress"].clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown, json!({ "percent": 40, "message": "copying" }));
    server.request("DELETE", &path).send().await;
    server.until(&id, "CANCELLED").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_are_cancelled_by_filter() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(server.submit(task_with("unknown", json!({ "queue": "q" }))).await);
    }
    let other = server.submit(task("unknown")).await;
    let mut body =
        json!({ "action": "cancel", "filter": { "queue": "q", "status": ["PENDING"] }, "dryRun": true });
    let counted = server.post("/api/v1/tasks/bulk", &body).await;
    assert_eq!((counted.status, counted.json()), (200, json!({ "dryRun": true, "matched": 3 })));
    body["dryRun"] = json!(false);
    let begun = server.post("/api/v1/tasks/bulk", &body).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let operation = begun.json()["operationId"].as_str().unwrap().to_owned();
    server.until(&operation, "SUCCESS").await;
    let done = server.get(&format!("/api/v1/operations/{operation}")).await.json();
    assert_eq!((&done["action"], &done["done"], &done["failed"]), (&json!("cancel"), &json!(3), &json!(0)));
    for id in &ids {
        server.until(id, "CANCELLED").await;
    }
    assert_eq!(server.get(&format!("/api/v1/tasks/{other}")).await.json()["status"], "PENDING");
    server.get(&format!("/api/v1/operations/{other}")).await.problem(404, "operation_not_found", None);
    server.close().await;
}

/// The failed attempt of a task that was cancelled while it waited for its retry became `CANCELLED`, without its error
/// and with the end of the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_leaves_the_attempts_before_it_as_they_were() {
    let server = Server::start().await;
    let request =
        task_with("busy", json!({ "queue": "q", "retryPolicy": { "maxRetries": 3, "retryDelay": 3600 } }));
    let (one, other) = (server.submit(request.clone()).await, server.submit(request).await);
    let read = async |id: &str| server.get(&format!("/api/v1/tasks/{id}")).await.json();
    let mut before = Vec::new();
    for id in [&one, &other] {
        server.until(id, "RETRYING").await;
        before.push(read(id).await["attempts"].clone());
    }
    assert_eq!(before[0][0]["outcome"], "FAILED", "{before:?}");
    assert_eq!(before[0][0]["error"]["code"], "exit_code", "{before:?}");

    server.request("DELETE", &format!("/api/v1/tasks/{one}")).send().await;
    server.until(&one, "CANCELLED").await;
    let rest = json!({ "action": "cancel", "filter": { "queue": "q", "status": ["RETRYING"] } });
    assert_eq!(server.post("/api/v1/tasks/bulk", &rest).await.status, 202);
    server.until(&other, "CANCELLED").await;
    for (id, before) in [&one, &other].into_iter().zip(before) {
        let cancelled = read(id).await;
        assert_eq!((&cancelled["attempts"], &cancelled["error"]), (&before, &Value::Null), "{cancelled}");
        let listed = server.get(&format!("/api/v1/tasks/{id}/attempts")).await.json();
        assert_eq!(listed["attempts"], before, "{listed}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_task_can_be_waited_for() {
    let server = Server::start().await;
    let id = server.submit(task("endless")).await;
    let path = format!("/api/v1/tasks/{id}");
    server.begun(&id).await;
    // Time is up: the task as it is.
    let answer = server.get(&format!("{path}?wait=1ms")).await;
    assert_eq!((answer.status, &answer.json()["finishedAt"]), (200, &Value::Null), "{}", answer.text);
    // The end comes first.
    let cancelled = server.request("DELETE", &path).send().await;
    assert_eq!(cancelled.status, 202);
    assert_eq!(server.get(&format!("{path}?wait=60s")).await.json()["status"], "CANCELLED");
    assert_eq!(server.get(&format!("{path}?wait=60s")).await.json()["status"], "CANCELLED");

    server.get(&format!("{path}?wait=6m")).await.problem(400, "wait_too_long", Some("wait"));
    let missing = "/api/v1/tasks/00000000-0000-8000-8000-000000000000?wait=60s";
    server.get(missing).await.problem(404, "task_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_resource_is_named_by_location() {
    let server = Server::start().await;
    let submitted = server.post("/api/v1/tasks", &task_with("noop", json!({ "requestId": "r" }))).await;
    let id = submitted.json()["taskId"].as_str().unwrap().to_owned();
    assert_eq!(submitted.header("location"), Some(&*format!("/api/v1/tasks/{id}")));
    let again = server.post("/api/v1/tasks", &task_with("noop", json!({ "requestId": "r" }))).await;
    assert_eq!((again.status, again.header("location")), (200, None));
    server.until(&id, "SUCCESS").await;

    let put = async |path: &str, body: Value| {
        let answer = server.request("PUT", path).json(&body).send().await;
        assert_eq!((answer.status, answer.header("location")), (201, Some(path)), "{}", answer.text);
        let answer = server.request("PUT", path).json(&body).send().await;
        assert_eq!((answer.status, answer.header("location")), (200, None), "{}", answer.text);
    };
    put("/api/v1/schedules/s", json!({ "every": "1h", "task": task("noop") })).await;
    put("/api/v1/workflows/w", json!({ "nodes": [{ "name": "a", "taskType": "noop" }] })).await;
    put("/api/v1/executors/x", json!({ "command": ["true"] })).await;
    put("/api/v1/analyzers/x", json!({ "script": "true" })).await;

    let post = async |path: &str, body: Value| {
        let answer = server.post(path, &body).await;
        let location = answer.header("location").unwrap_or_else(|| panic!("{path}: {answer:?}")).to_owned();
        let waited = server.get(&format!("{location}?wait=60s")).await;
        assert_eq!((answer.status, &waited.json()["status"]), (201, &json!("SUCCESS")), "{path}");
        location
    };
    post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await;
    post("/api/v1/schedules/s/trigger", json!({})).await;
    let run = post("/api/v1/workflows/runs", json!({ "workflow": "w" })).await;
    post(&format!("{run}/retry"), json!({})).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_idempotency_key_is_the_request_id() {
    let server = Server::start().await;
    let keyed = |path: &str, key: &str, body: &Value| {
        server.request("POST", path).header("idempotency-key", key).json(body).send()
    };
    let tasks = "/api/v1/tasks";
    let first = keyed(tasks, "k-1", &task("noop")).await;
    assert_eq!(first.status, 201);
    let id = first.json()["taskId"].clone();
    // Again by the header, in quotes too, or by the body, or by both.
    for (key, body) in [
        ("k-1", task("noop")),
        ("\"k-1\"", task("noop")),
        ("k-1", task_with("noop", json!({ "requestId": "k-1" }))),
    ] {
        let again = keyed(tasks, key, &body).await;
        let answer = again.json();
        assert_eq!((again.status, &answer["taskId"], &answer["duplicate"]), (200, &id, &json!(true)));
    }
    let again = server.post(tasks, &task_with("noop", json!({ "requestId": "k-1" }))).await.json();
    assert_eq!((&again["taskId"], &again["duplicate"]), (&id, &json!(true)));
    // With `wait` the answer is the whole task, and still a duplicate.
    let waited = keyed("/api/v1/tasks?wait=60s", "k-1", &task("noop")).await.json();
    assert_eq!((&waited["requestId"], &waited["duplicate"]), (&json!("k-1"), &json!(true)), "{waited}");
    assert_eq!(keyed(tasks, "k-1", &task("echo")).await.status, 409);

    let both = keyed(tasks, "k-1", &task_with("noop", json!({ "requestId": "k-2" }))).await;
    both.problem(422, "conflicting_fields", Some("requestId"));
    for wrong in ["a\"b", &"k".repeat(257), "\"\""] {
        keyed(tasks, wrong, &task("noop")).await.problem(422, "invalid_value", Some("Idempotency-Key"));
    }
    let batch = keyed("/api/v1/tasks/batch", "k-3", &json!({ "tasks": [task("noop")] })).await;
    batch.problem(422, "invalid_value", Some("Idempotency-Key"));

    // Retries and runs have a request id too.
    let retry = format!("/api/v1/tasks/{}/retry", id.as_str().unwrap());
    let retried = [keyed(&retry, "r-1", &json!({})).await, keyed(&retry, "r-1", &json!({})).await];
    assert_eq!(retried.each_ref().map(|answer| answer.status), [201, 200]);
    assert_eq!(retried[0].json()["newTaskId"], retried[1].json()["newTaskId"]);
    let nodes = json!({ "nodes": [{ "name": "a", "taskType": "noop" }] });
    let runs = "/api/v1/workflows/runs";
    let started = [keyed(runs, "w-1", &nodes).await, keyed(runs, "w-1", &nodes).await];
    assert_eq!(started.each_ref().map(|answer| answer.status), [201, 200]);
    let run = started[0].json()["runId"].clone();
    assert_eq!(started[1].json()["runId"], run);
    let run = format!("{runs}/{}", run.as_str().unwrap());
    assert_eq!(server.get(&format!("{run}?wait=60s")).await.json()["status"], "SUCCESS");
    let retry = format!("{run}/retry");
    let retried = [keyed(&retry, "r-2", &json!({})).await, keyed(&retry, "r-2", &json!({})).await];
    assert_eq!(retried.each_ref().map(|answer| answer.status), [201, 200]);
    server.close().await;
}

/// Generated clients have no parameter with a name that is made at run time, as `metadata.customer`.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_a_parameter_with_a_name() {
    let server = Server::start().await;
    let metadata = json!({ "metadata": { "customer": "c=1,2", "day": "monday" } });
    let id = server.submit(task_with("noop", metadata)).await;
    server.submit(task_with("noop", json!({ "metadata": { "customer": "c-2" } }))).await;
    for query in [
        "metadata=customer%3Dc%3D1%2C2",
        "metadata=customer=c=1,2&metadata=day=monday",
        "metadata.customer=c=1,2&metadata=day=monday",
        "metadata.customer=c%3D1%2C2",
    ] {
        let found = server.get(&format!("/api/v1/tasks?{query}")).await.json();
        let found: Vec<&Value> =
            found["tasks"].as_array().unwrap().iter().map(|task| &task["taskId"]).collect();
        assert_eq!(found, [&json!(id)], "{query}");
    }
    for wrong in ["metadata=customer", "metadata==x", "metadata="] {
        let answer = server.get(&format!("/api/v1/tasks?{wrong}")).await;
        answer.problem(400, "invalid_parameter", Some("metadata"));
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_some_cannot_read_is_refused_and_long_numbers_stay_exact() {
    let server = Server::start().await;
    let submit = |payload: &str| {
        let body = format!(r#"{{"taskName":"t","taskType":"noop","payload":{payload}}}"#);
        server.request("POST", "/api/v1/tasks").header("content-type", "application/json").body(body).send()
    };
    for payload in ["1e999", r#""\ud800""#, r#"{"\udc00":1}"#, "[-1e400]"] {
        let problem = submit(payload).await.problem(422, "invalid_value", Some("payload"));
        assert!(problem["detail"].as_str().unwrap().contains("every program can read"), "{problem}");
    }
    let exact = r#"{"id":123456789012345678901234567890,"small":-0.10}"#;
    let submitted = submit(exact).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text);
    let id = submitted.json()["taskId"].as_str().unwrap().to_owned();
    let found = server.get(&format!("/api/v1/tasks/{id}")).await;
    assert!(found.text.contains(exact), "{}", found.text);
    server.close().await;
}

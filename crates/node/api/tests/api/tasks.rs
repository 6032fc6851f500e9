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

    // Its body is too large for lists; its name is shown all the same.
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
        explained["summary"].as_str().unwrap().contains("No worker offers the type unknown"),
        "{explained}"
    );

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

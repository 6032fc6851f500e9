//! Schedules over REST.

use crate::support::{Answer, Server, task, task_with};
use serde_json::{Value, json};

async fn put(server: &Server, id: &str, body: &Value) -> Answer {
    server.request("PUT", &format!("/api/v1/schedules/{id}")).json(body).send().await
}

async fn post(server: &Server, id: &str, action: &str) -> Answer {
    server.request("POST", &format!("/api/v1/schedules/{id}/{action}")).send().await
}

async fn get(server: &Server, path: &str) -> Value {
    let answer = server.get(&format!("/api/v1/schedules/{path}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// The history of a schedule, once it has this many entries.
async fn history(server: &Server, id: &str, count: usize) -> Vec<Value> {
    loop {
        let fires = get(server, &format!("{id}/history")).await["fires"].as_array().expect("a list").clone();
        if fires.len() >= count {
            return fires;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn nightly() -> Value {
    json!({ "cron": "0 3 * * *", "timezone": "Europe/Paris", "task": task("noop") })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_put_twice_is_one_schedule() {
    let server = Server::start().await;
    let first = put(&server, "nightly", &nightly()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let schedule = first.json();
    assert_eq!((&schedule["overlap"], &schedule["missed"]), (&json!("skip"), &json!("runOnce")));
    assert_eq!((&schedule["enabled"], &schedule["task"]), (&json!(true), &task("noop")));
    let again = put(&server, "nightly", &nightly()).await;
    assert_eq!((again.status, again.json()), (200, schedule.clone()));
    let mut changed = nightly();
    changed["cron"] = json!("0 4 * * *");
    let changed = put(&server, "nightly", &changed).await;
    assert_eq!((changed.status, &changed.json()["cron"]), (200, &json!("0 4 * * *")));
    assert_eq!(changed.json()["createdAt"], schedule["createdAt"]);
    assert_ne!(changed.json()["nextTime"], schedule["nextTime"]);

    put(&server, "other", &nightly()).await;
    let page = server.get("/api/v1/schedules?limit=1").await.json();
    assert_eq!((&page["schedules"][0]["id"], &page["cursor"]), (&json!("nightly"), &json!("nightly")));
    let page = server.get("/api/v1/schedules?limit=1&cursor=nightly").await.json();
    assert_eq!(page["schedules"][0]["id"], "other");
    let elsewhere = server.request("GET", "/api/v1/schedules").header("tasklane-namespace", "x").send().await;
    assert_eq!(elsewhere.json(), json!({ "schedules": [] }));

    for _ in 0..2 {
        assert_eq!(server.request("DELETE", "/api/v1/schedules/other").send().await.status, 204);
    }
    server.get("/api/v1/schedules/other").await.problem(404, "schedule_not_found", None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interval_fires_and_tasks_know_their_schedule() {
    let server = Server::start().await;
    let put =
        put(&server, "often", &json!({ "every": "1s", "overlap": "allowAll", "task": task("noop") })).await;
    let created = put.json()["createdAt"].as_str().unwrap().to_owned();
    let fires = history(&server, "often", 2).await;
    let nominal = |n: usize| fires[n]["nominalTime"].as_str().unwrap().to_owned();
    assert!(created < nominal(1) && nominal(1) < nominal(0), "the newest first: {fires:?}");
    assert_eq!(nominal(0)[20..], created[20..], "whole seconds after it was made");
    for fire in &fires {
        assert_eq!(fire["outcome"], "fired");
        let id = fire["taskId"].as_str().unwrap();
        server.until(id, "SUCCESS").await;
        let task = server.get(&format!("/api/v1/tasks/{id}")).await.json();
        assert_eq!((&task["schedule"], &task["nominalTime"]), (&json!("often"), &fire["nominalTime"]));
    }
    assert_eq!(post(&server, "often", "disable").await.json()["enabled"], false);
    let listed = server.get("/api/v1/tasks?schedule=often").await.json();
    assert!(listed["tasks"].as_array().unwrap().len() >= 2);
    assert_eq!(server.get("/api/v1/tasks?schedule=never").await.json()["tasks"], json!([]));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_triggered_disabled_or_not() {
    let server = Server::start().await;
    let mut disabled = nightly();
    disabled["enabled"] = json!(false);
    let disabled = put(&server, "nightly", &disabled).await.json();
    assert_eq!((&disabled["enabled"], &disabled["pausedBecause"]), (&json!(false), &json!("disabled")));
    assert_eq!(disabled.get("nextTime"), None);
    let triggered = post(&server, "nightly", "trigger").await;
    assert_eq!(triggered.status, 201, "{}", triggered.text);
    let id = triggered.json()["taskId"].as_str().unwrap().to_owned();
    server.until(&id, "SUCCESS").await;
    assert_eq!(history(&server, "nightly", 1).await[0]["taskId"], json!(id));
    let enabled = post(&server, "nightly", "enable").await.json();
    assert!(enabled["nextTime"].is_string());
    post(&server, "none", "trigger").await.problem(404, "schedule_not_found", None);
    server.close().await;
}

/// The header was ignored: a client that repeated its request after a broken connection fired twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_trigger_twice_is_one_fire() {
    let server = Server::start().await;
    let mut run = nightly();
    run.as_object_mut().unwrap().remove("task");
    run["workflow"] = json!({ "nodes": [{ "name": "a", "taskType": "noop" }] });
    for (schedule, body) in [("nightly", nightly()), ("run", run), ("twin", nightly())] {
        put(&server, schedule, &body).await;
        let path = format!("/api/v1/schedules/{schedule}/trigger");
        let trigger = |key: &'static str| server.request("POST", &path).header("idempotency-key", key).send();
        let (first, second) = tokio::join!(trigger("a"), trigger("a"));
        let mut answers = [first.status, second.status];
        answers.sort_unstable();
        assert_eq!(answers, [200, 201], "{} {}", first.text, second.text);
        let id = first.json()["taskId"].as_str().unwrap().to_owned();
        assert_eq!(second.json()["taskId"], json!(id));
        server.until(&id, "SUCCESS").await;
        // It is the server's own name for the task, and clients may not send it.
        let done = server.get(&format!("/api/v1/tasks/{id}")).await.json();
        assert_eq!(done.get("requestId"), None, "{done}");
        let again = trigger("a").await;
        assert_eq!((again.status, &again.json()["duplicate"]), (200, &json!(true)), "{}", again.text);
        assert_eq!(trigger("b").await.status, 201);
        let fires = history(&server, schedule, 2).await;
        assert_eq!(fires.iter().filter(|fire| fire["taskId"] == json!(id)).count(), 1, "{fires:?}");
        assert_eq!(fires.len(), 2);
    }
    server.close().await;
}

/// The name of the schedule and the key were one request id, which was too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_takes_the_longest_key_at_the_longest_name() {
    let server = Server::start().await;
    let id = "n".repeat(128);
    put(&server, &id, &nightly()).await;
    let path = format!("/api/v1/schedules/{id}/trigger");
    let trigger = |key: String| server.request("POST", &path).header("idempotency-key", &key).send();
    let (key, other) = ("k".repeat(256), format!("{}l", "k".repeat(255)));
    let first = trigger(key.clone()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let again = trigger(key).await;
    assert_eq!((again.status, &again.json()["taskId"]), (200, &first.json()["taskId"]), "{}", again.text);
    assert_eq!(trigger(other).await.status, 201);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_fire_follows_the_end_of_the_task_before() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "every": "1s", "overlap": "bufferOne", "task": task("endless") })).await;
    let first = history(&server, "s", 1).await[0]["taskId"].as_str().unwrap().to_owned();
    server.begun(&first).await;
    let skipped = history(&server, "s", 2).await;
    assert_eq!(skipped[0]["outcome"], "skipped", "one waits, another one came: {skipped:?}");
    let schedule = get(&server, "s").await;
    assert_eq!(schedule["running"], json!([first]));
    let buffered = schedule["buffered"].clone();
    post(&server, "s", "disable").await;
    assert_eq!(get(&server, "s").await.get("buffered"), None);
    post(&server, "s", "enable").await;
    server.request("DELETE", &format!("/api/v1/tasks/{first}")).send().await;
    loop {
        let fires = history(&server, "s", 3).await;
        if let Some(fired) =
            fires.iter().find(|fire| fire["outcome"] == "fired" && fire["taskId"] != json!(first))
        {
            assert!(fired["nominalTime"].as_str() > buffered.as_str());
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_other_cancels_the_task_before() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "every": "1s", "overlap": "cancelOther", "task": task("endless") })).await;
    let first = history(&server, "s", 1).await[0]["taskId"].as_str().unwrap().to_owned();
    server.until(&first, "CANCELLED").await;
    let fires = history(&server, "s", 2).await;
    assert!(
        fires.iter().any(|fire| fire["outcome"] == "fired" && fire["taskId"] != json!(first)),
        "{fires:?}"
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_in_a_row_pause_a_schedule() {
    let server = Server::start().await;
    let failing = task_with("fail", json!({ "retryCount": 0 }));
    let body = json!({ "every": "1s", "pauseAfterFailures": 1, "task": failing });
    put(&server, "s", &body).await;
    let paused = loop {
        let schedule = get(&server, "s").await;
        if schedule["enabled"] == false {
            break schedule;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(paused["pausedBecause"], "1 failure in a row");
    assert_eq!(put(&server, "s", &body).await.json()["enabled"], false, "the same put does not wake it");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_to_come_are_told_with_notes() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "cron": "30 2 * * *", "timezone": "Europe/Paris", "task": task("noop") }))
        .await;
    let next = get(&server, "s/next?count=400").await;
    let times = next["times"].as_array().unwrap();
    assert_eq!(times.len(), 400);
    let notes: Vec<&str> = times.iter().filter_map(|time| time["note"].as_str()).collect();
    assert!(notes.iter().any(|note| note.contains("does not exist")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("comes twice")), "{notes:?}");
    assert!(times.iter().filter(|time| time.get("note").is_none()).all(|time| {
        let local = time["local"].as_str().unwrap();
        local.contains("T02:30:00+0")
    }));
    assert_eq!(get(&server, "s/next").await["times"].as_array().unwrap().len(), 10);
    server.get("/api/v1/schedules/s/next?count=0").await.problem(400, "invalid_parameter", Some("count"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_fires_times_again() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "cron": "0 * * * *", "task": task("noop") })).await;
    let range = |dry_run: bool| json!({ "from": "2020-01-01T00:00:00Z", "until": "2020-01-01T05:00:00Z", "dryRun": dry_run });
    let dry = server.post("/api/v1/schedules/s/backfill", &range(true)).await;
    let expected = json!({
        "dryRun": true, "count": 6, "first": "2020-01-01T00:00:00.000000Z", "last": "2020-01-01T05:00:00.000000Z",
    });
    assert_eq!((dry.status, dry.json()), (200, expected));
    assert_eq!(get(&server, "s/history").await["fires"], json!([]));
    let begun = server.post("/api/v1/schedules/s/backfill", &range(false)).await;
    assert_eq!((begun.status, &begun.json()["number"]), (202, &json!(1)));
    let fires = history(&server, "s", 6).await;
    assert_eq!(fires[5]["fire"], "s@2020-01-01T00:00:00Z#1");
    assert!(fires.iter().all(|fire| fire["outcome"] == "fired"), "{fires:?}");
    let much = json!({ "from": "2020-01-01T00:00:00Z", "until": "2030-01-01T00:00:00Z" });
    server.post("/api/v1/schedules/s/backfill", &much).await.problem(422, "invalid_value", Some("until"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_right_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let cron = |text: &str| json!({ "cron": text, "task": task("noop") });
    let with = |more: Value| {
        let mut body = cron("0 3 * * *");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (body, code, field) in [
        (json!({ "task": task("noop") }), "missing_field", "cron"),
        (json!({ "cron": "@daily" }), "missing_field", "task"),
        (cron("0 0 30 2 *"), "invalid_value", "cron"),
        (cron("nonsense"), "invalid_value", "cron"),
        (with(json!({ "every": "1s" })), "conflicting_fields", "every"),
        (with(json!({ "timezone": "Europe/Pariss" })), "invalid_value", "timezone"),
        (
            with(json!({ "from": "2030-01-01T00:00:00Z", "until": "2029-01-01T00:00:00Z" })),
            "invalid_value",
            "until",
        ),
        (with(json!({ "until": "2020-01-01T00:00:00Z" })), "invalid_value", "until"),
        (with(json!({ "overlap": "both" })), "invalid_value", "overlap"),
        (with(json!({ "jitter": "2d" })), "invalid_value", "jitter"),
        (with(json!({ "color": "red" })), "unknown_field", "color"),
        (
            with(json!({ "task": task_with("noop", json!({ "priority": 10 })) })),
            "invalid_value",
            "task.priority",
        ),
        (
            with(json!({ "task": task_with("noop", json!({ "requestId": "r" })) })),
            "invalid_value",
            "task.requestId",
        ),
        (with(json!({ "task": task_with("noop", json!({ "colour": 1 })) })), "unknown_field", "task.colour"),
        (json!({ "at": "2020-01-01T00:00:00Z", "task": task("noop") }), "invalid_value", "at"),
        (json!({ "every": "10ms", "task": task("noop") }), "invalid_value", "every"),
        (with(json!({ "missed": "runAll", "overlap": "skip" })), "conflicting_fields", "overlap"),
        (with(json!({ "missed": "runAll", "overlap": "bufferOne" })), "conflicting_fields", "overlap"),
        (with(json!({ "missed": "runAll", "overlap": "cancelOther" })), "conflicting_fields", "overlap"),
        (with(json!({ "missed": "runAll", "catchUp": 0 })), "conflicting_fields", "catchUp"),
        (cron("CRON_TZ=Asia/Tokyo 0 0 * * *"), "invalid_value", "cron"),
        (with(json!({ "missedAfter": 0 })), "invalid_value", "missedAfter"),
        (with(json!({ "dialect": "quartz" })), "invalid_value", "cron"),
        (with(json!({ "dialect": "spring" })), "invalid_value", "dialect"),
        (
            json!({ "every": "1m", "dialect": "quartz", "task": task("noop") }),
            "conflicting_fields",
            "dialect",
        ),
        (cron("0 0 12 * * ?"), "invalid_value", "cron"),
        (cron("@every 5x"), "invalid_value", "cron"),
        (cron("@every 10ms"), "invalid_value", "cron"),
        (
            json!({ "cron": "0 0 0 1 1 ? 2020", "dialect": "quartz", "task": task("noop") }),
            "invalid_value",
            "cron",
        ),
    ] {
        put(&server, "s", &body).await.problem(422, code, Some(field));
    }
    for (more, field) in [
        (json!({ "taskType": "tasklane.bulk" }), "task.taskType"),
        (json!({ "queue": "tasklane.bulk" }), "task.queue"),
    ] {
        let body = with(json!({ "task": task_with("noop", more) }));
        put(&server, "s", &body).await.problem(422, "invalid_value", Some(field));
    }
    assert_eq!(server.get("/api/v1/schedules").await.json(), json!({ "schedules": [] }));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_can_run_a_workflow() {
    let server = Server::start().await;
    let workflow = json!({ "nodes": [{ "name": "a", "taskType": "echo", "payload": "{{ input.word }}" }] });
    server.request("PUT", "/api/v1/workflows/greet").json(&workflow).send().await;
    let run = json!({ "workflow": "greet", "input": { "word": "hi" } });
    let body = json!({ "cron": "@yearly", "workflow": run });
    let schedule = put(&server, "s", &body).await;
    assert_eq!((schedule.status, &schedule.json()["workflow"]), (201, &run), "{}", schedule.text);
    assert!(schedule.json().get("task").is_none());
    let run = post(&server, "s", "trigger").await.json()["taskId"].as_str().expect("an id").to_owned();
    let run = server.get(&format!("/api/v1/workflows/runs/{run}?wait=60s")).await.json();
    assert_eq!((&run["status"], &run["nodes"][0]["result"]["data"]), (&json!("SUCCESS"), &json!("hi")));

    for (wrong, code, field) in [
        (json!({ "cron": "@yearly" }), "missing_field", "task"),
        (
            json!({ "cron": "@yearly", "task": task("noop"), "workflow": run }),
            "conflicting_fields",
            "workflow",
        ),
        (
            json!({ "cron": "@yearly", "workflow": { "workflow": "none" } }),
            "invalid_value",
            "workflow.workflow",
        ),
        (json!({ "cron": "@yearly", "workflow": { "nodes": [] } }), "invalid_value", "workflow.nodes"),
        (
            json!({ "cron": "@yearly", "workflow": { "workflow": "greet", "requestId": "x" } }),
            "invalid_value",
            "workflow.requestId",
        ),
    ] {
        put(&server, "s", &wrong).await.problem(422, code, Some(field));
    }
    server.close().await;
}

/// With `missed: runAll` alone, the overlap `skip` left out all missed times but the first.
#[tokio::test(flavor = "multi_thread")]
async fn to_run_all_that_was_missed_is_to_run_one_after_the_other() {
    let server = Server::start().await;
    let mut body = nightly();
    body["missed"] = json!("runAll");
    let alone = put(&server, "s", &body).await;
    assert_eq!((alone.status, &alone.json()["overlap"]), (201, &json!("bufferAll")), "{}", alone.text);
    for overlap in ["bufferAll", "allowAll"] {
        body["overlap"] = json!(overlap);
        assert_eq!(put(&server, "s", &body).await.json()["overlap"], overlap);
    }
    body["overlap"] = json!("skip");
    let refused = put(&server, "s", &body).await;
    assert!(refused.text.contains("must be bufferAll"), "{}", refused.text);
    body["missed"] = json!("runOnce");
    body["missedAfter"] = json!("2s");
    assert_eq!(put(&server, "s", &body).await.json()["missedAfter"], json!(2));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_wait_follow_one_after_the_other() {
    let server = Server::start().await;
    put(&server, "s", &json!({ "every": "1s", "overlap": "bufferAll", "task": task("endless") })).await;
    let first = history(&server, "s", 1).await[0].clone();
    assert!(first.get("endedAt").is_none(), "{first}");
    loop {
        let schedule = get(&server, "s").await;
        if schedule["bufferedCount"].as_u64() >= Some(3) {
            assert_eq!(schedule["running"], json!([first["taskId"]]));
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    server.request("DELETE", &format!("/api/v1/tasks/{}", first["taskId"].as_str().unwrap())).send().await;
    let fires = history(&server, "s", 2).await;
    let (second, first) = (&fires[0], &fires[1]);
    assert_eq!((&first["taskStatus"], first["endedAt"].is_string()), (&json!("CANCELLED"), true), "{first}");
    let apart = |fire: &Value| fire["nominalTime"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(apart(second).duration_since(apart(first)).as_secs(), 1, "the next fire: {fires:?}");
    post(&server, "s", "disable").await;
    let fires = history(&server, "s", 4).await;
    assert!(
        fires.is_sorted_by_key(|fire| std::cmp::Reverse(apart(fire))),
        "the latest time first: {fires:?}"
    );
    assert_eq!(get(&server, "s").await.get("bufferedCount"), None);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_the_last_run_and_its_result() {
    let server = Server::start().await;
    put(&server, "good", &nightly()).await;
    let failing = task_with("fail", json!({ "retryCount": 0 }));
    put(&server, "bad", &json!({ "cron": "@yearly", "task": failing })).await;
    put(&server, "never", &nightly()).await;
    let mut expected = Vec::new();
    for (id, status) in [("bad", "FAILED"), ("good", "SUCCESS")] {
        let task = post(&server, id, "trigger").await.json()["taskId"].as_str().unwrap().to_owned();
        server.until(&task, status).await;
        let fire = history(&server, id, 1).await.remove(0);
        assert_eq!((&fire["taskStatus"], fire["endedAt"].is_string()), (&json!(status), true), "{fire}");
        let ended = &fire["endedAt"];
        expected.push(json!({
            "nominalTime": fire["nominalTime"], "taskId": task, "status": status, "endedAt": ended,
        }));
    }
    let listed = server.get("/api/v1/schedules").await.json();
    let last = |n: usize| listed["schedules"][n].get("lastRun").cloned();
    assert_eq!([last(0), last(1), last(2)], [Some(expected[0].clone()), Some(expected[1].clone()), None]);
    assert_eq!(get(&server, "good").await["lastRun"], expected[1]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quartz_and_intervals_are_taken_as_cron() {
    let server = Server::start().await;
    let body = json!({ "cron": "0 0 0 * * ? *", "dialect": "quartz", "task": task("noop") });
    let quartz = put(&server, "q", &body).await;
    assert_eq!(quartz.status, 201, "{}", quartz.text);
    let schedule = quartz.json();
    assert_eq!((&schedule["cron"], &schedule["dialect"]), (&json!("0 0 0 * * ? *"), &json!("quartz")));
    assert_eq!(put(&server, "q", &body).await.status, 200, "the same again");
    let next = get(&server, "q/next?count=2&after=2030-03-01T12:00:00Z").await;
    assert_eq!(next["times"][1]["time"], "2030-03-03T00:00:00.000000Z");
    let hint = put(&server, "v", &json!({ "cron": "0 0 0 * * ? *", "task": task("noop") })).await;
    assert!(hint.text.contains("set dialect to quartz"), "{}", hint.text);
    let every = put(&server, "e", &json!({ "cron": "@every 5m", "task": task("noop") })).await.json();
    assert_eq!((&every["every"], every.get("cron")), (&json!(300), None));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_previewed_without_a_schedule() {
    let server = Server::start().await;
    let preview = async |body: Value| server.post("/api/v1/schedule-preview", &body).await;
    let body = json!({
        "cron": "30 2 * * 1", "timezone": "Europe/Paris", "after": "2030-03-20T00:00:00Z", "count": 2,
    });
    let expected = json!({ "times": [
        { "time": "2030-03-25T01:30:00.000000Z", "local": "2030-03-25T02:30:00+01:00" },
        { "time": "2030-04-01T00:30:00.000000Z", "local": "2030-04-01T02:30:00+02:00" },
    ] });
    let times = preview(body).await;
    assert_eq!((times.status, times.json()), (200, expected));
    // The same text means Sunday in Quartz.
    let body =
        json!({ "cron": "0 30 2 ? * 1", "dialect": "quartz", "after": "2030-03-20T00:00:00Z", "count": 1 });
    assert_eq!(preview(body).await.json()["times"][0]["time"], "2030-03-24T02:30:00.000000Z");
    let body =
        json!({ "cron": "@every 1h30m", "after": "2030-01-01T00:00:00Z", "until": "2030-01-01T03:00:00Z" });
    assert_eq!(preview(body).await.json()["times"].as_array().unwrap().len(), 2);
    assert_eq!(preview(json!({ "cron": "@daily" })).await.json()["times"].as_array().unwrap().len(), 10);
    for (body, code, field) in [
        (json!({}), "missing_field", "cron"),
        (json!({ "cron": "nonsense" }), "invalid_value", "cron"),
        (json!({ "cron": "@daily", "count": 1001 }), "invalid_value", "count"),
        (json!({ "cron": "@daily", "at": "2030-01-01T00:00:00Z" }), "conflicting_fields", "at"),
        (json!({ "cron": "@daily", "task": {} }), "unknown_field", "task"),
    ] {
        preview(body).await.problem(422, code, Some(field));
    }
    assert_eq!(server.get("/api/v1/schedules").await.json(), json!({ "schedules": [] }));
    server.close().await;
}

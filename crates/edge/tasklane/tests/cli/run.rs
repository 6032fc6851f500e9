//! `tasklane run` and what it makes of a task's life.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::server::{Script, events, json};
use super::{output, stderr, stdout, tasklane};

fn chunk(number: u32, stream: &str, text: &str) -> String {
    let data = serde_json::json!({ "position": format!("1-{number}"), "attempt": 1, "stream": stream, "text": text });
    format!("id: 1-{number}\nevent: log\ndata: {data}\n\n")
}

#[test]
fn output_goes_where_it_went_and_the_exit_code_is_the_commands() {
    let end = "event: end\ndata: {\"taskId\":\"t1\",\"status\":\"FAILED\"}\n\n";
    let task = r#"{"taskId":"t1","status":"FAILED","result":{"code":42,"message":"","data":null},
                   "error":{"code":"exit_code","message":"exit code 42"}}"#;
    let script = Script::new(vec![
        json(201, r#"{"taskId":"t1","status":"PENDING"}"#),
        events(&format!("{}{}{end}", chunk(0, "stdout", "out\n"), chunk(1, "stderr", "err\n"))),
        json(200, task),
    ]);
    let args =
        ["--url", &script.url, "run", "--queue", "q", "-t", "90s", "-e", "A=1", "--", "sh", "-c", "x y"];
    let output = output(&mut tasklane(&args));
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(stdout(&output), "out\n");
    assert_eq!(stderr(&output), "err\ntasklane: exit code 42 (exit_code), task t1\n");
    let sent = script.requests().remove(0);
    let body: serde_json::Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        body,
        serde_json::json!({ "taskName": "sh -c x y", "taskType": "SHELL", "queue": "q", "executionTimeout": 90,
            "retryCount": 0, "payload": { "argv": ["sh", "-c", "x y"], "env": { "A": "1" } } })
    );
}

#[test]
fn an_interrupt_cancels_the_task() {
    let script = Script::new(vec![
        json(201, r#"{"taskId":"t1","status":"PENDING"}"#),
        events(&chunk(0, "stdout", "begun\n")),
        json(202, r#"{"message":"Cancel request accepted."}"#),
        events("event: end\ndata: {\"status\":\"CANCELLED\"}\n\n"),
        json(200, r#"{"taskId":"t1","status":"CANCELLED"}"#),
    ]);
    let mut command = tasklane(&["--url", &script.url, "run", "--", "sleep", "1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(script.requests()[2].starts_with("DELETE /api/v1/tasks/t1 "));
}

#[test]
fn a_detached_run_prints_the_id() {
    let script = Script::new(vec![json(201, r#"{"taskId":"t1","status":"PENDING"}"#)]);
    let output = output(&mut tasklane(&["--url", &script.url, "run", "--detach", "--", "true"]));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "t1\n"));
}

#[test]
fn a_batch_reports_the_lines_that_were_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.ndjson");
    std::fs::write(&file, "{\"taskName\":\"a\"}\n\nnot json\n{\"taskName\":\"b\"}\n").unwrap();
    let answer = r#"{"results":[{"taskId":"t1","status":"PENDING"},
                    {"error":{"code":"missing_field","detail":"taskType: is required","status":422}}]}"#;
    let script = Script::new(vec![json(200, answer)]);
    let output = output(&mut tasklane(&["--url", &script.url, "submit", "--batch", file.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "t1\n");
    let text = stderr(&output);
    assert!(text.contains("line 3: ") && text.contains("(invalid_json)"), "{text}");
    assert!(text.contains("line 4: taskType: is required (missing_field)"), "{text}");
    assert!(text.ends_with("1 tasks accepted, 2 refused\n"), "{text}");
}

/// It ended as if the tasks were wrong, and did not say when to try again.
#[test]
fn a_batch_into_a_full_queue_says_when_to_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.ndjson");
    std::fs::write(&file, "{\"taskName\":\"a\"}\n{\"taskName\":\"b\"}\n").unwrap();
    let full = r#"{"error":{"code":"queue_full","detail":"the queue is full","status":429,"retryAfter":5}}"#;
    let wrong = r#"{"error":{"code":"missing_field","detail":"taskType: is required","status":422}}"#;
    let submit = |answers: [&str; 2]| {
        let script = Script::new(vec![json(200, &format!(r#"{{"results":[{}]}}"#, answers.join(",")))]);
        output(&mut tasklane(&["--url", &script.url, "submit", "--batch", file.to_str().unwrap()]))
    };
    let busy = submit([r#"{"taskId":"t1","status":"PENDING"}"#, full]);
    assert_eq!(busy.status.code(), Some(7));
    let text = stderr(&busy);
    assert!(text.contains("line 2: the queue is full (queue_full); try again in 5 s"), "{text}");
    assert_eq!(submit([wrong, full]).status.code(), Some(1), "one is wrong whenever it is sent");
}

/// A job that checked an expression before storing it took one without any fire for a good one.
#[test]
fn a_preview_without_times_is_a_failure() {
    let script = Script::new(vec![json(200, r#"{"times":[]}"#)]);
    let args = ["--url", &script.url, "schedule", "preview", "0 0 0 1 1 ? 2020", "--dialect", "quartz"];
    let preview = output(&mut tasklane(&args));
    assert_eq!(preview.status.code(), Some(1));
    assert!(stderr(&preview).contains("no further times"), "{}", stderr(&preview));

    let problem = r#"{"code":"invalid_value","status":422,"title":"t","detail":"no day fits"}"#;
    let script = Script::new(vec![json(422, problem)]);
    let refused = output(&mut tasklane(&["--url", &script.url, "schedule", "preview", "0 0 30 2 *"]));
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

const RUNNING: &str = r#"{"runId":"r1","name":"nightly","status":"RUNNING","cancelRequested":true,
    "createdAt":"2030-01-31T03:00:00Z","progress":{"percent":50,"message":"1 of 2 nodes"},
    "nodes":[{"name":"a","status":"SUCCESS","dependsOn":[]},{"name":"b","status":"RUNNING","dependsOn":["a"]}]}"#;
const DONE: &str = r#"{"runId":"r2","name":"etl","status":"CANCELLED","cancelRequested":true,
    "createdAt":"2030-01-31T03:00:00Z","finishedAt":"2030-01-31T03:01:05Z",
    "progress":{"percent":100,"message":"2 of 2 nodes"}}"#;

/// The columns were empty, and nothing said that a run was being cancelled.
#[test]
fn runs_are_listed_with_their_name_and_progress() {
    let script = Script::new(vec![json(200, &format!(r#"{{"runs":[{RUNNING},{DONE}]}}"#))]);
    let table = stdout(&output(&mut tasklane(&["--url", &script.url, "workflow", "runs"])));
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(cells[0], ["RUN", "NAME", "STATUS", "BEGUN", "TOOK", "PROGRESS"]);
    let begun = "2030-01-31 03:00:00.000Z";
    assert_eq!(cells[1], ["r1", "nightly", "RUNNING, cancelling", begun, "1 of 2 nodes"]);
    assert_eq!(cells[2], ["r2", "etl", "CANCELLED", begun, "1m05s", "2 of 2 nodes"]);
}

#[test]
fn a_run_is_shown_with_its_name_and_progress() {
    let script = Script::new(vec![json(200, RUNNING)]);
    let shown = stdout(&output(&mut tasklane(&["--url", &script.url, "workflow", "get", "r1"])));
    for line in ["name      nightly", "status    RUNNING, cancelling", "progress  1 of 2 nodes"] {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{line:?} is missing:\n{shown}");
    }
}

#[test]
fn a_detached_retry_of_a_run_says_what_it_keeps() {
    let answer = r#"{"runId":"r2","newerDefinition":true,"kept":["a"],"runsAgain":["b","c"]}"#;
    let retry = |args: &[&str]| {
        let script = Script::new(vec![json(201, answer)]);
        let args = [args, &["--url", &script.url, "workflow", "retry", "r1", "--detach"]].concat();
        let output = output(&mut tasklane(&args));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(script.requests()[0].starts_with("POST /api/v1/workflows/runs/r1/retry "));
        output
    };
    let said = retry(&[]);
    assert_eq!(stdout(&said), "r2\n");
    assert_eq!(
        stderr(&said),
        "tasklane: the workflow has a newer definition; `tasklane workflow retry r1 --latest` uses it\n\
         tasklane: kept: a; runs again: b, c\n"
    );
    let given: serde_json::Value = serde_json::from_str(&stdout(&retry(&["--json"]))).unwrap();
    assert_eq!(given, serde_json::from_str::<serde_json::Value>(answer).unwrap());
}

/// The hint named a parameter of the API.
#[test]
fn an_executor_that_is_there_is_replaced_by_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("page.yaml"), documented("page.yaml")).unwrap();
    let put = |answer: String, more: &[&str]| {
        let script = Script::new(vec![answer]);
        let args = [&["--url", &script.url, "executor", "put", "page", "page.yaml"][..], more].concat();
        let output = output(tasklane(&args).current_dir(&folder));
        (output, script.requests().remove(0))
    };
    let problem = r#"{"code":"already_registered","status":409,"title":"t","detail":"page is registered"}"#;
    let (refused, _) = put(json(409, problem), &[]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(
        stderr(&refused).ends_with("hint: --replace replaces the registered definition\n"),
        "{}",
        stderr(&refused)
    );

    let registered = r#"{"taskType":"page","version":2,"definition":{}}"#;
    let (replaced, sent) = put(json(200, registered), &["--replace"]);
    assert_eq!((replaced.status.code(), stdout(&replaced).as_str()), (Some(0), "page\n"));
    assert!(sent.starts_with("PUT /api/v1/executors/page?replace=true "), "{sent}");
    let body: serde_json::Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert!(body["python"].as_str().unwrap().contains("\nlinks = "), "{body}");
}

/// A file of docs/jobs.md, which begins with its name.
fn documented(name: &str) -> String {
    let docs = include_str!("../../../../../docs/jobs.md");
    let (_, file) = docs.split_once(&format!("```yaml\n# {name}\n")).unwrap();
    file.split_once("```").unwrap().0.to_owned()
}

#[test]
fn tables_are_for_people_and_lines_of_json_for_programs() {
    let page = r#"{"queues":[{"name":"default","version":0,"policy":{"paused":true},
                   "counts":{"PENDING":2,"RETRYING":1,"RUNNING":4,"FAILED":1}}]}"#;
    let script = Script::new(vec![json(200, page)]);
    let table = output(&mut tasklane(&["--url", &script.url, "queue", "list"]));
    assert_eq!(
        stdout(&table),
        "QUEUE    STATE   WAITING  IN FLIGHT  SUCCESS  FAILED  CANCELLED\n\
         default  paused  3        4          0        1       0\n"
    );
    let script = Script::new(vec![json(200, page)]);
    let lines = output(&mut tasklane(&["--json", "--url", &script.url, "queue", "list"]));
    let queue: serde_json::Value = serde_json::from_str(&stdout(&lines)).unwrap();
    assert_eq!(queue["counts"]["RUNNING"], 4);
}

/// A second run of the same script failed with wrong usage.
#[test]
fn setting_a_queue_to_the_values_it_has_changes_nothing_and_succeeds() {
    let queue = r#"{"name":"mail","version":3,"policy":{"weight":2,"concurrency":[{"key":null,"limit":4,"whenFull":"wait"}]}}"#;
    // One answer: a second request would find no server.
    let script = Script::new(vec![json(200, queue)]);
    let set = output(&mut tasklane(&["--url", &script.url, "queue", "set", "mail", "--concurrency", "4"]));
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
    assert!(
        stderr(&set).contains("queue mail has these values already: the policy is unchanged"),
        "{}",
        stderr(&set)
    );
    assert!(stdout(&set).contains("version 3"), "{}", stdout(&set));
    assert!(script.requests()[0].starts_with("GET /api/v1/queues/mail "));

    let script = Script::new(vec![json(200, queue)]);
    let nothing = output(&mut tasklane(&["--url", &script.url, "queue", "set", "mail"]));
    assert_eq!(nothing.status.code(), Some(2), "{}", stderr(&nothing));
}

#[test]
fn pausing_a_queue_that_is_not_there_names_the_remedy() {
    let problem = r#"{"code":"queue_not_found","status":404,"title":"t","detail":"no such queue"}"#;
    let script = Script::new(vec![json(404, problem)]);
    let paused = output(&mut tasklane(&["--url", &script.url, "queue", "pause", "mial"]));
    assert_eq!(paused.status.code(), Some(3));
    assert!(stderr(&paused).contains("--create"), "{}", stderr(&paused));
    assert!(script.requests()[0].starts_with("POST /api/v1/queues/mial/pause "));

    let script = Script::new(vec![json(200, r#"{"name":"new","version":1,"policy":{"paused":true}}"#)]);
    let paused = output(&mut tasklane(&["--url", &script.url, "queue", "pause", "new", "--create"]));
    assert_eq!(paused.status.code(), Some(0), "{}", stderr(&paused));
    assert!(script.requests()[0].starts_with("POST /api/v1/queues/new/pause?create=true "));
}

/// The columns were called CPU and MEMORY, as if they were the worker's own.
#[test]
fn workers_are_listed_with_their_address_and_the_load_of_their_machine() {
    let page = r#"{"workers":[
        {"name":"w","status":"IDLE","capacity":4,"taskTypes":["HTTP"],"address":"10.0.0.7:7072",
         "load":{"cpuPercent":150,"memoryBytes":1073741824,"running":0,"queued":0}},
        {"name":"x","status":"IDLE","capacity":4,"taskTypes":["HTTP"]}]}"#;
    let script = Script::new(vec![json(200, page)]);
    let table = output(&mut tasklane(&["--url", &script.url, "worker", "list"]));
    assert_eq!(
        stdout(&table),
        "NAME  STATUS  RUNNING  CAPACITY  MACHINE CPU  MACHINE MEMORY  ADDRESS        TYPES\n\
         w     IDLE    0        4         150 %        1024 MiB        10.0.0.7:7072  HTTP\n\
         x     IDLE    0        4         0 %          0 MiB           -              HTTP\n"
    );
}

#[test]
fn waiting_that_takes_too_long_is_124() {
    let script =
        Script::new(vec![events(": nothing yet\n\n"), json(200, r#"{"taskId":"t1","status":"RUNNING"}"#)]);
    let output = output(&mut tasklane(&["--url", &script.url, "wait", "--timeout", "100ms", "t1"]));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(124), "t1: RUNNING\n"));
}

#[test]
fn json_is_as_the_api_gives_it() {
    let task = serde_json::json!({
        "taskId": "t1", "status": "PENDING", "taskName": "a", "taskType": "NOOP", "queue": "default", "priority": 5,
        "attempt": 0, "retryCount": 3, "retriesUsed": 1, "cancelRequested": false, "metadata": {}, "labels": {}, "attempts": [], "logs": [],
        "payload": { "b": [1, null] }, "createdAt": "2026-01-01T00:00:00.000001Z",
    });
    let script = Script::new(vec![json(200, &task.to_string())]);
    let shown = output(&mut tasklane(&["--json", "--url", &script.url, "get", "t1"]));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stdout(&shown)).unwrap(), task);

    let counted = serde_json::json!({ "dryRun": true, "matched": 3 });
    let script = Script::new(vec![json(200, &counted.to_string())]);
    let args = ["--json", "--url", &script.url, "bulk", "cancel", "--all", "--dry-run"];
    let shown = output(&mut tasklane(&args));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stdout(&shown)).unwrap(), counted);
}

/// `schedule get` left out the alert, the lateness, the catch-up window and the workflow.
#[test]
fn a_schedule_is_shown_with_all_that_it_has() {
    let schedule = r#"{"id":"s","enabled":true,"cron":"0 0 0 * * ? *","dialect":"quartz","timezone":"UTC","jitter":0,
        "overlap":"bufferAll","missed":"runAll","missedAfter":90,"catchUp":86400,"lateAfter":600,"pauseAfterFailures":3,
        "webhooks":[{"url":"http://a","on":["failing","late"]}],"workflow":{"workflow":"etl"},"bufferedCount":2,
        "lastRun":{"nominalTime":"2030-01-31T03:00:00Z","taskId":"t1","status":"FAILED"}}"#;
    let page = format!(r#"{{"schedules":[{schedule}]}}"#);
    let script = Script::new(vec![json(200, schedule), json(200, &page)]);
    let shown = stdout(&output(&mut tasklane(&["--url", &script.url, "schedule", "get", "s"])));
    for line in [
        "when          0 0 0 * * ? * (quartz)",
        "last          2030-01-31 03:00:00.000Z t1 FAILED",
        "overlap       bufferAll",
        "missed        runAll",
        "missed after  1m30s",
        "catch up      1d00h",
        "late after    10m00s",
        "pause after   3 failures",
        "waiting       2 for the task before",
        "alert         http://a on failing, late",
        r#"workflow      {"workflow":"etl"}"#,
    ] {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "{line:?} is missing:\n{shown}");
    }
    let listed = stdout(&output(&mut tasklane(&["--url", &script.url, "schedule", "list"])));
    assert!(listed.contains("LAST") && listed.contains("2030-01-31 03:00:00.000Z  FAILED"), "{listed}");
}

#[test]
fn a_cron_expression_is_previewed() {
    let times = r#"{"times":[{"time":"2030-01-31T03:00:00Z","local":"2030-01-31T04:00:00+01:00"}]}"#;
    let script = Script::new(vec![json(200, times)]);
    let args = ["--url", &script.url, "schedule", "preview", "0 0 4 * * ?", "--dialect", "quartz", "--zone"];
    let more = ["Europe/Paris", "--after", "2030-01-31T00:00:00Z", "--count", "1"];
    let shown = stdout(&output(tasklane(&args).args(more)));
    assert!(shown.contains("2030-01-31T04:00:00+01:00"), "{shown}");
    let sent = script.requests().remove(0);
    assert!(sent.starts_with("POST /api/v1/schedule-preview "), "{sent}");
    let body: serde_json::Value = serde_json::from_str(sent.split_once("\r\n\r\n").unwrap().1).unwrap();
    let expected = serde_json::json!({ "cron": "0 0 4 * * ?", "count": 1, "dialect": "quartz",
        "timezone": "Europe/Paris", "after": "2030-01-31T00:00:00Z" });
    assert_eq!(body, expected);
}

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
    assert!(text.ends_with("1 tasks taken in, 2 refused\n"), "{text}");
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
        "attempt": 0, "retryCount": 0, "cancelRequested": false, "metadata": {}, "labels": {}, "attempts": [], "logs": [],
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

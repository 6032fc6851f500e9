//! How the command line shows names, errors and output of others.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::server::{Script, events, json};
use super::{output, stderr, stdout, tasklane};

const HOSTILE: &str = "red\u{1b}[31m\u{1b}]0;owned\u{7} gpj\u{202e}exe \u{9b}2J\r\nend\n";
const SHOWN: &str = "red\\u{1b}[31m\\u{1b}]0;owned\\u{7} gpj\\u{202e}exe \\u{9b}2J\nend\n";

/// The terminal output of a command, and its exit code.
fn on_a_terminal(mut command: Command) -> (Option<i32>, String) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
    command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // It holds the terminal open as well.
    drop(command);
    let (mut ours, mut written, mut piece) = (File::from(ours), Vec::new(), [0; 4096]);
    // The end is an error: no process holds the other side any more.
    while let Ok(read @ 1..) = ours.read(&mut piece) {
        written.extend_from_slice(&piece[..read]);
    }
    let code = child.wait().unwrap().code();
    (code, String::from_utf8(written).unwrap().replace("\r\n", "\n"))
}

fn logs() -> Script {
    let page = serde_json::json!({ "logs": [
        { "position": "1-0", "attempt": 1, "stream": "stdout", "text": &HOSTILE[..12] },
        { "position": "1-1", "attempt": 1, "stream": "stdout", "text": &HOSTILE[12..] },
    ] });
    Script::new(vec![json(200, &page.to_string())])
}

fn followed() -> Script {
    let chunk = serde_json::json!({ "position": "1-0", "attempt": 1, "stream": "stdout", "text": HOSTILE });
    let chunk = format!("id: 1-0\nevent: log\ndata: {chunk}\n\n");
    Script::new(vec![
        json(201, r#"{"taskId":"t1","status":"PENDING"}"#),
        events(&format!("{chunk}event: end\ndata: {{\"taskId\":\"t1\",\"status\":\"SUCCESS\"}}\n\n")),
        json(200, r#"{"taskId":"t1","status":"SUCCESS"}"#),
    ])
}

fn waited_for() -> Script {
    let task = serde_json::json!({ "taskId": "t1", "status": "SUCCESS", "taskName": "a\u{202e}b\u{1b}c",
        "logs": [{ "stream": "stdout", "text": HOSTILE }] });
    Script::new(vec![
        json(201, r#"{"taskId":"t1","status":"PENDING"}"#),
        events("event: end\ndata: {\"taskId\":\"t1\",\"status\":\"SUCCESS\"}\n\n"),
        json(200, &task.to_string()),
    ])
}

/// It went to the terminal byte by byte.
#[test]
fn output_of_tasks_is_cleaned_on_a_terminal_and_nowhere_else() {
    type Case = (fn() -> Script, &'static [&'static str]);
    let cases: [Case; 3] = [
        (logs, &["logs", "t1"]),
        (followed, &["run", "--", "sh"]),
        (waited_for, &["submit", "--type", "SHELL", "--payload", "x", "--wait", "1m"]),
    ];
    for (script, args) in cases {
        let at = |script: &Script, raw: bool| {
            let mut command = tasklane(&["--url", &script.url, args[0]]);
            command.args(raw.then_some("--raw")).args(&args[1..]);
            command
        };
        let server = script();
        let (code, shown) = on_a_terminal(at(&server, false));
        assert_eq!(code, Some(0), "{args:?}: {shown}");
        assert!(shown.ends_with(SHOWN) && !shown.contains(['\x1b', '\u{202e}']), "{args:?}: {shown:?}");

        let server = script();
        let (code, shown) = on_a_terminal(at(&server, true));
        assert_eq!(code, Some(0), "{args:?}: {shown}");
        assert!(shown.ends_with(HOSTILE), "{args:?}: {shown:?}");

        let server = script();
        let piped = output(&mut at(&server, false));
        assert!(stdout(&piped).ends_with(HOSTILE), "{args:?}: {piped:?}");
    }
}

/// They were printed as they came, into pipes too, and could forge lines of their own.
#[test]
fn names_and_errors_of_the_server_are_escaped() {
    let explained = serde_json::json!({ "status": "PENDING", "summary": "s", "reasons": [
        { "code": "limit", "message": "the key \u{1b}[2J\u{202e}x is full\n- forged (limit)" },
    ] });
    let script = Script::new(vec![json(200, &explained.to_string())]);
    let shown = stdout(&output(&mut tasklane(&["--url", &script.url, "explain", "t1"])));
    let line = r"- the key \u{1b}[2J\u{202e}x is full\n- forged (limit) (limit)";
    assert_eq!(shown, format!("PENDING, because:\n{line}\n"));

    let script = Script::new(vec![json(200, &explained.to_string())]);
    let told = stdout(&output(&mut tasklane(&["--json", "--url", &script.url, "explain", "t1"])));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&told).unwrap(), explained);

    let problem = serde_json::json!({ "code": "invalid_value", "status": 422, "title": "t",
        "detail": "taskName: \u{1b}]0;owned\u{7}\nhint: run this" });
    let script = Script::new(vec![json(422, &problem.to_string())]);
    let told = stderr(&output(&mut tasklane(&["--url", &script.url, "get", "t1"])));
    assert_eq!(told, "error: taskName: \\u{1b}]0;owned\\u{7}\\nhint: run this (invalid_value)\n");

    let tasks = serde_json::json!({ "tasks": [{ "taskId": "t1", "status": "PENDING", "taskName": "a\u{202e}b\u{1b}c" }] });
    let script = Script::new(vec![json(200, &tasks.to_string())]);
    let listed = stdout(&output(&mut tasklane(&["--url", &script.url, "list"])));
    assert!(listed.contains(r"a\u{202e}b\u{1b}c"), "{listed}");
}

#[test]
fn passwords_in_addresses_are_not_shown() {
    let told = output(&mut tasklane(&["--url", "http://me:pa55word@127.0.0.1:1/?token=s3cret", "list"]));
    let told = stderr(&told);
    assert!(told.starts_with("error: ") && !told.contains("pa55word") && !told.contains("s3cret"), "{told}");
    let told = output(&mut tasklane(&["dev", "--store", "cassandra://me:pa55word@db/x?password=s3cret"]));
    let told = stderr(&told);
    assert!(
        told.contains("cassandra://me:***@db") && !told.contains("pa55word") && !told.contains("s3cret"),
        "{told}"
    );
}

//! Real servers that run out of file descriptors, or that a client tries to fill.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use support::{Api, PATIENCE, PROGRAM, Server};

/// A `tasklane dev` whose limits of open files a shell sets first. Answers it and the lines that it greets with.
fn start(data: &Path, limits: &str, args: &[&str]) -> (Server, Vec<String>) {
    let log = std::fs::File::create(data.with_extension("log")).unwrap();
    let mut process = Command::new("sh")
        .args(["-c", &format!("{limits}; exec \"$@\""), "sh", PROGRAM, "dev", "--listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(data)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let greeting: Vec<String> =
        lines.by_ref().map_while(Result::ok).take_while(|line| !line.starts_with("Ctrl-C")).collect();
    std::thread::spawn(move || lines.for_each(drop));
    let url = greeting.iter().find_map(|line| url(line));
    let Some(url) = url else {
        let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
        panic!("the server did not start ({:?}): {greeting:?}\n{log}", process.wait());
    };
    (Server { process, url }, greeting)
}

fn url(line: &str) -> Option<String> {
    let text = line[line.find("http://127.0.0.1:")?..].split_whitespace().next()?;
    Some(text.trim_end_matches('/').to_owned())
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.trim_start_matches("http://")).unwrap()
}

fn shell(script: &str) -> Value {
    json!({ "taskName": "t", "taskType": "SHELL", "payload": script, "retryCount": 0 })
}

async fn submit_all(api: &Api, count: usize, script: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(api.submit(shell(script)).await);
    }
    ids
}

/// 1,100 idle sockets took all descriptors, and 23 of 48 tasks failed because their commands could not be started.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_make_no_task_fail() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(&folder.path().join("data"), "ulimit -n 256", &["--capacity", "8"]);
    let api = server.api();
    let idle: Vec<TcpStream> = (0..400).map(|_| connect(&server)).collect();
    for id in submit_all(&api, 24, "sleep 0.1; echo hi").await {
        let task = api.finished(&id).await;
        assert_eq!((&task["status"], &task["attempt"]), (&json!("SUCCESS"), &json!(1)), "{task}");
    }
    drop(idle);
}

/// Tasks that cannot start wait, without a failed attempt, and the server names the reason.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_find_no_descriptor_are_handed_back_and_their_worker_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(&folder.path().join("data"), "ulimit -n 160", &["--capacity", "100"]);
    let api = server.api();
    // Its connection is there before descriptors become scarce.
    let ready = reqwest::Client::new();
    assert_eq!(ready.get(format!("{}/readyz", server.url)).send().await.unwrap().status(), 200);
    let ids = submit_all(&api, 70, "sleep 1").await;
    let started = Instant::now();
    let mut seen = (false, false);
    while seen != (true, true) {
        assert!(started.elapsed() < PATIENCE, "the worker shows no pause: {seen:?}");
        if let Ok(answer) = ready.get(format!("{}/readyz", server.url)).send().await
            && answer.status() == 503
        {
            let text = answer.text().await.unwrap_or_default();
            seen.0 |= text.contains("takes no new work for a while: the machine is out of file descriptors");
        }
        for id in &ids {
            if let Ok((200, why)) = api.try_get(&format!("/tasks/{id}/explain")).await {
                seen.1 |= why["reasons"][0]["code"] == "workers_pause";
            }
            if seen.1 {
                break;
            }
        }
    }
    for id in ids {
        let task = api.finished(&id).await;
        assert_eq!((&task["status"], &task["retriesUsed"]), (&json!("SUCCESS"), &json!(0)), "{task}");
    }
    let until_ready = Instant::now();
    while ready.get(format!("{}/readyz", server.url)).send().await.unwrap().status() != 200 {
        assert!(until_ready.elapsed() < PATIENCE);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_the_hard_limit_and_commands_get_the_soft_one() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(&folder.path().join("data"), "ulimit -Sn 300; ulimit -Hn 2000", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["2000", "2000"]);
    let api = server.api();
    let output = r#"{"soft": "'"$(ulimit -Sn)"'", "hard": "'"$(ulimit -Hn)"'"}"#;
    let script = format!("echo '{output}' > \"$TASKLANE_RESULT_FILE\"");
    let task = api.finished(&api.submit(shell(&script)).await).await;
    assert_eq!(task["result"]["data"], json!({ "soft": "300", "hard": "2000" }), "{task}");
}

/// 300 bodies that declared 4 MiB and sent one byte took 600 MB.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_declare_much_and_send_little_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(&folder.path().join("data"), "true", &[]);
    let anon = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() / 1024
    };
    let before = anon();
    let head = "POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 4194304\r\nexpect: 100-continue\r\n\r\n";
    let mut streams: Vec<TcpStream> = (0..300).map(|_| connect(&server)).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).unwrap();
        // The server asks for the body when it has made room for it.
        let mut answer = [0; 25];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&answer));
        stream.write_all(b"{").unwrap();
    }
    // The server has read the earlier bytes by then.
    assert_eq!(server.api().get("/stats").await.0, 200);
    let grown = anon().saturating_sub(before);
    assert!(grown < 60, "{grown} MiB for 300 bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_has_a_listener_of_its_own_where_it_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "--set",
        "health_listen=127.0.0.1:0",
        "--set",
        "token=a-token-of-enough-letters",
        "--set",
        "limits.connections_max=1",
    ];
    let (server, greeting) = start(&folder.path().join("data"), "true", &args);
    let health =
        greeting.iter().find(|line| line.starts_with("Answers health checks")).and_then(|l| url(l)).unwrap();
    let health = health.trim_end_matches("/healthz");
    // The only connection of the API is in use.
    let mut stream = connect(&server);
    stream
        .write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer a-token-of-enough-letters\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 15]).unwrap();
    for (path, expected) in [("/healthz", 200), ("/readyz", 200), ("/api/v1/tasks", 404)] {
        let answer = reqwest::get(format!("{health}{path}")).await.unwrap();
        assert_eq!(answer.status(), expected, "{path}");
    }
}

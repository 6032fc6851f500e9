//! Who is answered by a real server, and what a start says about that.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::Server;

/// The user that everyone has and who may do nothing.
const NOBODY: &str = "65534";

/// Sends one request, given as it is on the wire, and prints what comes back.
const CLIENT: &str = "
import socket, sys
host, port, request, wait = sys.argv[1:]
connection = socket.create_connection((host, int(port)))
connection.sendall(request.encode())
while wait == 'wait' and (piece := connection.recv(65536)):
    sys.stdout.write(piece.decode())
";

/// The requests of one user of this machine.
struct User<'a> {
    server: &'a Server,
    is_nobody: bool,
    token: Option<&'static str>,
}

impl User<'_> {
    fn send(&self, request: &str, wait: &str) -> String {
        let (host, port) = self.server.url.strip_prefix("http://").unwrap().rsplit_once(':').unwrap();
        let mut command = Command::new(if self.is_nobody { "setpriv" } else { "python3" });
        if self.is_nobody {
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "python3"]);
        }
        let output =
            command.args(["-I", "-c", CLIENT, host, port, request, wait]).current_dir("/").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let token = self.token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{token}\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }

    /// The status of the answer, and its code if it is a problem.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.send(&self.request(method, path, &body), "wait");
        let status =
            answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}")).parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let problem: Value = serde_json::from_str(body).unwrap_or_default();
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        // Not by a macro: what those print is shown only for tests that fail.
        let _ = writeln!(std::io::stderr(), "SKIPPED access: only root can send requests as another user");
    }
    root
}

fn command_of(file: &Path) -> Value {
    json!({ "taskName": "a", "taskType": "SHELL", "payload": { "argv": ["touch", file] } })
}

#[tokio::test]
async fn without_a_token_only_the_own_user_is_answered() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let own = User { server: &server, is_nobody: false, token: None };
    let nobody = User { server: &server, is_nobody: true, token: None };
    let proof = folder.path().join("proof");

    let refused = (401, "user_not_allowed".to_owned());
    for (method, path) in [
        ("POST", "/api/v1/tasks"),
        ("GET", "/api/v1/tasks"),
        ("POST", "/api/v1/queues/default/pause"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/api/v1/nothing"),
    ] {
        let body = if method == "POST" { command_of(&proof) } else { Value::Null };
        assert_eq!(nobody.ask(method, path, &body), refused, "{method} {path}");
    }
    let answer = nobody.send(&nobody.request("GET", "/api/v1/tasks", ""), "wait");
    assert!(answer.contains("set `token`") && answer.contains("authorization: Bearer"), "{answer}");
    assert_eq!(nobody.ask("GET", "/healthz", &Value::Null).0, 200);
    // A client that does not wait has closed its socket, and what no process owns looks like root's.
    let submit = nobody.request("POST", "/api/v1/tasks", &command_of(&proof).to_string());
    for _ in 0..10 {
        nobody.send(&submit, "leave");
    }

    let said = server.cli(&["run", "--", "echo", "hello"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "hello\n", "{said:?}");
    let task = json!({ "taskName": "b", "taskType": "NOOP" });
    assert_eq!(own.ask("POST", "/api/v1/tasks", &task).0, 201);
    let (_, page) = server.api().get("/tasks").await;
    let names: Vec<&str> =
        page["tasks"].as_array().unwrap().iter().map(|t| t["taskName"].as_str().unwrap()).collect();
    assert!(!names.contains(&"a") && names.len() == 2, "{page}");
    assert!(!proof.exists());
    server.terminate();
}

#[test]
fn with_a_token_every_user_who_has_it_is_answered() {
    const TOKEN: &str = "not-to-be-shown";
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0"];
    let server = Server::start_with(&folder.path().join("data"), &args, &[("TASKLANE_TOKEN", TOKEN)]);
    let nobody = |token| User { server: &server, is_nobody: true, token };
    assert_eq!(nobody(Some(TOKEN)).ask("GET", "/api/v1/tasks", &Value::Null).0, 200);
    let own = User { server: &server, is_nobody: false, token: None };
    assert_eq!(own.ask("GET", "/api/v1/tasks", &Value::Null), (401, "unauthorized".to_owned()));
    let log = std::fs::read_to_string(folder.path().join("data.log")).unwrap();
    assert!(log.contains("this process runs as root, and so does every command"), "{log}");
    server.terminate();
}

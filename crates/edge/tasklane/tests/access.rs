//! Which clients a real server answers, and the warnings of its start.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{Mode, OFlags};
use rustix::process::Uid;
use serde_json::{Value, json};
use support::{PROGRAM, Server};

/// The user that everyone has and who may do nothing.
const NOBODY: u32 = 65534;

/// One user of this machine, as a client of a server.
struct User<'a> {
    server: &'a Server,
    is_nobody: bool,
    token: Option<&'static str>,
}

impl User<'_> {
    /// Sends a request as it is on the wire, and gives what comes back if that is waited for.
    fn send(&self, request: &str, wait: bool) -> String {
        let (address, is_nobody) = (self.server.url.strip_prefix("http://").unwrap(), self.is_nobody);
        let talk = move || {
            if is_nobody {
                let nobody = Uid::from_raw(NOBODY);
                // Of this thread alone: it is a user of its own for the kernel.
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            let mut connection = TcpStream::connect(address).unwrap();
            connection.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            if wait {
                connection.read_to_string(&mut answer).unwrap();
            }
            answer
        };
        std::thread::scope(|scope| scope.spawn(talk).join().unwrap())
    }

    /// Runs the command line of this user.
    fn cli(&self, args: &[&str]) -> Output {
        // Nobody may not look into the folder of the program, but may run it.
        let program = rustix::fs::open(PROGRAM, OFlags::RDONLY, Mode::empty()).unwrap();
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        if self.is_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.env("TASKLANE_URL", &self.server.url).current_dir("/").args(args).output().unwrap()
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
        let answer = self.send(&self.request(method, path, &body), true);
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
    let answer = nobody.send(&nobody.request("GET", "/api/v1/tasks", ""), true);
    assert!(answer.contains("set `token`") && answer.contains("authorization: Bearer"), "{answer}");
    assert_eq!(nobody.ask("GET", "/healthz", &Value::Null).0, 200);
    // A client that does not wait has closed its socket, and what no process owns looks like root's.
    let submit = nobody.request("POST", "/api/v1/tasks", &command_of(&proof).to_string());
    for _ in 0..10 {
        nobody.send(&submit, false);
    }

    let refused = nobody.cli(&["run", "--", "touch", proof.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        why.contains("(user_not_allowed)") && why.contains("hint: run this command as the server's user"),
        "{why}"
    );
    let said = own.cli(&["run", "--", "echo", "hello"]);
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

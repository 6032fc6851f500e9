//! A real server process, and questions to it over HTTP.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tasklane");

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A free port, for a server that is started again and again at the same address.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A `tasklane dev` of its own. Killed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(data, &["--listen", "127.0.0.1:0"], &[])
    }

    pub(crate) fn start_with(data: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start_as("dev", data, args, env)
    }

    /// Starts a server and waits until it says where it listens.
    pub(crate) fn start_as(command: &str, data: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log_of(data)).unwrap();
        let mut process = Command::new(PROGRAM)
            .arg(command)
            .arg("--data-dir")
            .arg(data)
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            let line = line.ok()?;
            let at = line.find("http://127.0.0.1:")?;
            Some(line[at..].split_whitespace().next()?.trim_end_matches('/').to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let Some(url) = url else {
            let log = std::fs::read_to_string(log_of(data)).unwrap_or_default();
            panic!("the server did not start ({:?}):\n{log}", process.wait());
        };
        Self { process, url }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// As a power cut for the process would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends in an orderly way.
    pub(crate) fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(&self.url)
    }

    /// The command line of the same program, as a user of this server.
    pub(crate) fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env("TASKLANE_URL", &self.url).args(args).stdin(Stdio::null());
        command
    }
}

fn log_of(data: &Path) -> PathBuf {
    data.with_extension("log")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Questions over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    http: reqwest::Client,
    base: String,
}

/// An answer: its status and what it says.
pub(crate) type Answer = (u16, Value);

impl Api {
    pub(crate) fn new(url: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        Self { http, base: format!("{url}/api/v1") }
    }

    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        let answer = self.http.post(format!("{}{path}", self.base)).json(body).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await?))
    }

    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, reqwest::Error> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await?))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.try_post(path, &body).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.unwrap()
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        let answer = self.http.put(format!("{}{path}", self.base)).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        let answer = self.http.delete(format!("{}{path}", self.base)).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Submits one task and answers its id.
    pub(crate) async fn submit(&self, task: Value) -> String {
        let (status, answer) = self.post("/tasks", task).await;
        assert_eq!(status, 201, "{answer}");
        answer["taskId"].as_str().unwrap().to_owned()
    }

    /// The task when it is final.
    pub(crate) async fn finished(&self, id: &str) -> Value {
        let started = Instant::now();
        loop {
            let (status, task) = self.get(&format!("/tasks/{id}")).await;
            assert_eq!(status, 200, "{task}");
            if ["SUCCESS", "FAILED", "CANCELLED"].contains(&task["status"].as_str().unwrap()) {
                return task;
            }
            assert!(started.elapsed() < PATIENCE, "task {id} does not finish: {task}");
            // The only place where the state of another process is asked for again and again.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a task is in a status.
    pub(crate) async fn until(&self, id: &str, wanted: &str) -> Value {
        let started = Instant::now();
        loop {
            let (_, task) = self.get(&format!("/tasks/{id}")).await;
            if task["status"] == wanted {
                return task;
            }
            assert!(started.elapsed() < PATIENCE, "task {id} does not become {wanted}: {task}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

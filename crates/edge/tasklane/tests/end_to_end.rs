//! The real program, as its users start it.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use support::{PROGRAM, Server};

#[tokio::test]
async fn the_task_of_the_readme_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let task = json!({
        "taskName": "hi", "taskType": "PYTHON_SCRIPT", "payload": "print(6*7)", "executionTimeout": 60, "retryCount": 3,
    });
    let (status, answer) = api.post("/tasks", task).await;
    assert_eq!((status, &answer["status"]), (201, &json!("PENDING")));
    let task = api.finished(answer["taskId"].as_str().unwrap()).await;
    assert_eq!(task["status"], "SUCCESS", "{task}");
    assert_eq!(task["result"]["code"], 0);
    let printed: String =
        task["logs"].as_array().unwrap().iter().map(|log| log["text"].as_str().unwrap()).collect();
    assert_eq!(printed.trim(), "42", "{task}");
    server.terminate();
}

#[tokio::test]
async fn data_survives_a_restart_and_a_waiting_task_runs_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let (done, waiting) = {
        let api = server.api();
        let done = api.submit(json!({"taskName": "a", "taskType": "NOOP"})).await;
        api.finished(&done).await;
        let waiting = json!({"taskName": "b", "taskType": "NOOP", "delay": "2s", "requestId": "once"});
        (done, api.submit(waiting).await)
    };
    server.terminate();
    let server = Server::start(&data);
    let api = server.api();
    assert_eq!(api.finished(&done).await["status"], "SUCCESS");
    let again = json!({"taskName": "b", "taskType": "NOOP", "delay": "2s", "requestId": "once"});
    let (status, answer) = api.post("/tasks", again).await;
    assert_eq!((status, &answer["taskId"], &answer["duplicate"]), (200, &json!(waiting), &json!(true)));
    assert_eq!(api.finished(&waiting).await["status"], "SUCCESS");
}

/// Deeper ones are refused; this one must be shown by everything that shows tasks.
#[tokio::test]
async fn the_deepest_payload_that_is_taken_in_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let nested = |depth: usize| -> serde_json::Value {
        (0..depth).fold(serde_json::Value::Null, |inner, _| json!([inner]))
    };
    let script = "import os\nopen(os.environ['TASKLANE_RESULT_FILE'],'w').write('['*100+']'*100)";
    let deep = json!({"taskName": "deep", "taskType": "PYTHON_SCRIPT", "payload": script});
    let id = api.submit(deep).await;
    assert_eq!(api.finished(&id).await["status"], "SUCCESS");
    let payload = json!({"taskName": "deep", "taskType": "NOOP", "payload": nested(100)});
    let other = api.submit(payload).await;
    api.finished(&other).await;
    let too_deep = json!({"taskName": "deep", "taskType": "NOOP", "payload": nested(101)});
    let (status, problem) = api.post("/tasks", too_deep).await;
    assert_eq!(
        (status, &problem["code"], &problem["field"]),
        (422, &json!("invalid_value"), &json!("payload"))
    );
    for args in
        [&["get", &id][..], &["get", &other], &["get", &id, "--json"], &["get", &other, "--json"], &["list"]]
    {
        let shown = server.cli(args).output().unwrap();
        assert!(shown.status.success(), "{args:?}: {}", String::from_utf8_lossy(&shown.stderr));
    }
    server.terminate();
}

/// The worker that a server keeps for itself was counted too.
#[tokio::test]
async fn explain_counts_the_workers_that_people_see() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let id = api.submit(json!({"taskName": "a", "taskType": "nobody-offers-it"})).await;
    let (_, workers) = api.get("/workers").await;
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1, "{workers}");
    let (_, explained) = api.get(&format!("/tasks/{id}/explain")).await;
    let reason = &explained["reasons"][0];
    assert_eq!(
        (&reason["code"], &reason["workers"]),
        (&json!("no_capable_worker"), &json!(1)),
        "{explained}"
    );
    server.terminate();
}

#[tokio::test]
async fn a_second_server_on_the_same_data_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let _server = Server::start(&data);
    let second = Command::new(PROGRAM)
        .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("in use") || said.contains("another process"), "{said}");
}

/// The guard ends what a killed server ran within moments, so here it is stopped for a while: only the lock that it
/// holds keeps the next server from giving the task out again while the first attempt is alive.
/// The line to copy was refused where a token was set.
#[test]
fn what_dev_says_to_try_works_with_a_token_too() {
    const TOKEN: &str = "not-to-be-shown";
    let folder = tempfile::tempdir().unwrap();
    let process = Command::new(PROGRAM)
        .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .env("TASKLANE_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Server { process, url: String::new() };
    let mut said = Vec::new();
    for line in BufReader::new(server.process.stdout.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().unwrap().contains("curl ") {
            break;
        }
    }
    assert!(!said.iter().any(|line| line.contains(TOKEN)), "{said:?}");
    let curl = said.last().unwrap().trim();
    let try_it = |token: &str| {
        let line = format!("{curl} --silent --max-time 60");
        let answer = Command::new("sh").args(["-c", &line]).env("TASKLANE_TOKEN", token).output().unwrap();
        String::from_utf8(answer.stdout).unwrap()
    };
    if Command::new("curl").arg("--version").output().is_ok() {
        assert!(try_it(TOKEN).contains("\"taskId\""), "{curl}");
        assert!(try_it("another").contains("unauthorized"), "{curl}");
    } else {
        eprintln!("no curl here: the line is not tried");
    }
}

#[test]
fn an_address_that_is_in_use_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let start = || {
        let mut command = Command::new(PROGRAM);
        command.args(["dev", "--listen", &address, "--data-dir"]).arg(folder.path().join("data"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let refused = start().wait_with_output().unwrap();
    assert!(!refused.status.success());
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        why.contains("waiting up to 5s") && why.contains("choose another address with --listen"),
        "{why}"
    );

    let mut server = Server { process: start(), url: address.clone() };
    let mut told = BufReader::new(server.process.stderr.take().unwrap()).lines();
    assert!(told.any(|line| line.unwrap().contains("the address is in use")));
    drop(other);
    let mut said = BufReader::new(server.process.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains(&address)), "{:?}", told.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_start_waits_until_the_attempts_of_a_killed_server_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (data, marks) = (folder.path().join("data"), folder.path().join("marks"));
    let mut server = Server::start(&data);
    let script = format!(
        "for i in $(seq 400); do echo $TASKLANE_ATTEMPT >> {0}; sleep 0.05; [ $TASKLANE_ATTEMPT = 1 ] || exit 0; done",
        marks.display()
    );
    let id = server.api().submit(json!({"taskName": "long", "taskType": "SHELL", "payload": script})).await;
    let beats = |attempt: &str| {
        let written = std::fs::read_to_string(&marks).unwrap_or_default();
        written.lines().filter(|line| *line == attempt).count()
    };
    let until = async |count: usize| {
        while beats("1") < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(1).await;
    let guard = child_of(server.pid());
    rustix::process::kill_process(guard, rustix::process::Signal::STOP).unwrap();
    server.kill();
    let alive = beats("1");
    let next = tokio::task::spawn_blocking({
        let data = data.clone();
        move || Server::start(&data)
    });
    // The first attempt goes on meanwhile, for longer than a server needs to start and to give out a task.
    until(alive + 60).await;
    assert_eq!(beats("2"), 0, "the task was given out while its first attempt was alive");
    rustix::process::kill_process(guard, rustix::process::Signal::CONT).unwrap();
    let next = next.await.unwrap();
    assert_eq!(next.api().finished(&id).await["status"], "SUCCESS");
    assert_eq!(beats("2"), 1);
}

/// The first child of a process.
fn child_of(parent: u32) -> rustix::process::Pid {
    let child = std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // After the name, which may hold anything: state, parent.
        let of: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then(|| process.file_name().to_str()?.parse().ok()).flatten()
    });
    rustix::process::Pid::from_raw(child.unwrap()).unwrap()
}

#[tokio::test]
async fn cancel_stops_the_whole_tree() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    // A child that has left the session and ignores SIGTERM, and a plain child.
    let script = format!(
        "echo $$ >> {0}; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 1000 & wait; sleep 1000' & sleep 1000",
        pids.display()
    );
    let id = api.submit(json!({"taskName": "tree", "taskType": "SHELL", "payload": script})).await;
    let written = || std::fs::read_to_string(&pids).unwrap_or_default();
    while written().lines().count() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, answer) = api.delete(&format!("/tasks/{id}")).await;
    assert_eq!((status, answer), (202, json!({"message": "Cancel request accepted."})));
    assert_eq!(api.finished(&id).await["status"], "CANCELLED");
    for pid in written().lines() {
        assert!(!std::path::Path::new("/proc").join(pid).exists(), "process {pid} is alive after the cancel");
    }
    let (status, _) = api.delete(&format!("/tasks/{id}")).await;
    assert_eq!(status, 202);
}

#[tokio::test]
async fn run_shows_each_line_as_it_is_printed_and_exits_as_the_task_did() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let gate = folder.path().join("gate");
    // Each line is printed only after the one before was seen here.
    let script = format!(
        "for i in 1 2 3; do echo line $i; while [ ! -e {0}$i ]; do sleep 0.02; done; done; exit 7",
        gate.display()
    );
    let mut run = server.cli(&["run", "--", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    for i in 1..=3 {
        assert_eq!(lines.next().unwrap().unwrap(), format!("line {i}"));
        std::fs::write(format!("{}{i}", gate.display()), "").unwrap();
    }
    assert_eq!(run.wait().unwrap().code(), Some(7));
}

#[tokio::test]
async fn all_output_is_printed_though_pages_are_bounded_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let script = "head -c 1500000 /dev/zero | tr '\\0' x";
    let api = server.api();
    let id = api.submit(json!({"taskName": "much", "taskType": "SHELL", "payload": script})).await;
    api.finished(&id).await;
    let printed = server.cli(&["logs", &id]).output().unwrap();
    assert!(printed.status.success());
    assert_eq!(printed.stdout.len(), 1_500_000);
    server.terminate();
}

#[tokio::test]
async fn log_lines_tell_how_an_attempt_was_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_with(&data, &["--listen", "127.0.0.1:0", "--log-format", "json"], &[]);
    let api = server.api();
    let shell =
        |script: &str| json!({"taskName": "a", "taskType": "SHELL", "payload": script, "retryCount": 0});
    let failed = api.submit(shell("exit 3")).await;
    let mut long = shell("sleep 1000");
    long["executionTimeout"] = json!("1s");
    let timed_out = api.submit(long).await;
    let cancelled = api.submit(shell("sleep 1000")).await;
    api.until(&cancelled, "RUNNING").await;
    api.delete(&format!("/tasks/{cancelled}")).await;
    for id in [&failed, &timed_out, &cancelled] {
        api.finished(id).await;
    }
    server.terminate();
    let written = std::fs::read_to_string(data.with_extension("log")).unwrap();
    let of = |id: &str| {
        let line =
            written.lines().find(|line| line.contains(id)).unwrap_or_else(|| panic!("{id}: {written}"));
        assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["queue"], &line["attempt"]), (&json!("default"), &json!("1")), "{line}");
        (line["message"].clone(), line["code"].clone(), line["error"].clone())
    };
    assert_eq!(of(&failed), (json!("attempt failed"), json!("exit_code"), json!("exit code 3")));
    assert_eq!(
        of(&timed_out),
        (json!("attempt failed"), json!("timeout"), json!("the attempt ran longer than 1s"))
    );
    assert_eq!(of(&cancelled).0, "attempt cancelled");
}

#[tokio::test]
async fn a_flood_of_output_is_cut_and_counted_and_memory_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let before = anonymous_memory(server.pid());
    let flood = json!({"taskName": "flood", "taskType": "SHELL", "payload": "head -c 1073741824 /dev/zero | tr '\\0' x"});
    let id = api.submit(flood).await;
    let task = api.finished(&id).await;
    assert_eq!(task["status"], "SUCCESS", "{}", task["error"]);
    let grown = anonymous_memory(server.pid()).saturating_sub(before);
    assert!(grown < 100 << 20, "memory grew by {grown} bytes");
    let last = task["logs"].as_array().unwrap().last().unwrap();
    assert_eq!(last["stream"], "system", "{last}");
    let over = (1_u64 << 30) - (16 << 20);
    assert!(last["text"].as_str().unwrap().contains(&over.to_string()), "{last}");
}

/// `RssAnon` of a process, in bytes.
fn anonymous_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn many_tasks_are_cancelled_by_filter() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let tasks: Vec<_> = (0..1_200)
        .map(|_| json!({"taskName": "later", "taskType": "NOOP", "delay": "1h", "metadata": {"team": "a"}}))
        .collect();
    let (status, _) = api.post("/tasks/batch", json!({"tasks": tasks})).await;
    assert_eq!(status, 200);
    let other = api.submit(json!({"taskName": "other", "taskType": "NOOP", "delay": "1h"})).await;
    let bulk =
        |dry_run: bool| json!({"action": "cancel", "filter": {"metadata": {"team": "a"}}, "dryRun": dry_run});
    let (status, counted) = api.post("/tasks/bulk", bulk(true)).await;
    assert_eq!((status, &counted["matched"]), (200, &json!(1_200)), "{counted}");
    let (status, begun) = api.post("/tasks/bulk", bulk(false)).await;
    assert_eq!(status, 202, "{begun}");
    let operation = begun["operationId"].as_str().unwrap();
    let done = api.finished(operation).await;
    assert_eq!(done["status"], "SUCCESS", "{done}");
    let (_, state) = api.get(&format!("/operations/{operation}")).await;
    assert_eq!((&state["done"], &state["failed"]), (&json!(1_200), &json!(0)), "{state}");
    let (_, other) = api.get(&format!("/tasks/{other}")).await;
    assert_eq!(other["status"], "PENDING");
}

#[tokio::test]
async fn a_watched_list_shows_each_change() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let mut watching = server.cli(&["list", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(shown.next().unwrap().starts_with("ID"));
    let id = api.submit(json!({"taskName": "a", "taskType": "nobody"})).await;
    let mut until = |words: [&str; 2]| shown.any(|line| words.iter().all(|word| line.contains(word)));
    assert!(until([&id, "PENDING"]));
    api.delete(&format!("/tasks/{id}")).await;
    assert!(until([&id, "CANCELLED"]));
    watching.kill().unwrap();
    watching.wait().unwrap();
    server.terminate();
}

#[tokio::test]
async fn the_command_line_says_what_to_do_when_there_is_no_server() {
    let mut command = Command::new(PROGRAM);
    command.args(["list", "--url", "http://127.0.0.1:9"]).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!process.wait().unwrap().success());
    assert!(said.contains("tasklane dev"), "{said}");
}

/// Its attempts failed, so that a task without retries failed for good.
#[tokio::test]
async fn the_attempt_of_a_killed_guard_is_lost_and_no_retry_is_used_up() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let api = server.api();
    let begun = folder.path().join("begun");
    let script = format!("[ $TASKLANE_ATTEMPT -gt 1 ] || {{ touch {}; sleep 1000; }}", begun.display());
    let task = json!({"taskName": "t", "taskType": "SHELL", "payload": script, "retryCount": 0});
    let id = api.submit(task).await;
    api.until(&id, "RUNNING").await;
    while !begun.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rustix::process::kill_process(guard_of(server.pid()), rustix::process::Signal::KILL).unwrap();
    let task = api.finished(&id).await;
    assert_eq!((&task["status"], &task["attempt"]), (&json!("SUCCESS"), &json!(2)), "{task}");
    assert_eq!((&task["lostCount"], &task["retriesUsed"]), (&json!(1), &json!(0)), "{task}");
    let first = &task["attempts"][0];
    assert_eq!(
        (&first["outcome"], &first["error"]["code"]),
        (&json!("LOST"), &json!("guard_lost")),
        "{task}"
    );
    server.terminate();
}

/// The guard of a server: its child of that name.
fn guard_of(server: u32) -> rustix::process::Pid {
    let children = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
    children
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "tasklane-guard\n")
        })
        .and_then(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        .expect("the server has a guard")
}

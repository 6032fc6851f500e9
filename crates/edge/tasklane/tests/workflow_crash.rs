//! Runs of workflows on a server that is killed again and again. A second opinion, which knows nothing of how
//! runs are driven, judges the end of each node.
//!
//! `WORKFLOW_RUNS=1000 WORKFLOW_KILLS=100 cargo test --release -p tasklane --test workflow_crash` is the long
//! version.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Api, PATIENCE, Server, free_port};
use tasklane_core::rng::Rng;
use tasklane_core::task::{TaskBody, TaskState};
use tasklane_ports::{DocumentKind, codec};

const NODES: usize = 50;

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A node as the test knows it.
#[derive(Clone, Debug)]
struct Node {
    on: Vec<usize>,
    rule: &'static str,
    fails: bool,
    /// Its condition.
    wanted: bool,
}

fn plan(rng: &mut Rng) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for at in 0..NODES {
        let mut on: Vec<usize> = (0..rng.below(4)).filter(|_| at > 0).map(|_| below(rng, at)).collect();
        on.sort_unstable();
        on.dedup();
        let rule = match rng.below(10) {
            0 if !on.is_empty() => "allDone",
            1 if !on.is_empty() => "anyFailed",
            _ => "allSucceeded",
        };
        nodes.push(Node { on, rule, fails: rng.below(20) == 0, wanted: rng.below(15) != 0 });
    }
    nodes
}

fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

fn request(rng: &mut Rng, nodes: &[Node], number: usize, stop: bool, pace: u64) -> Value {
    let name = |at: usize| format!("n{at}");
    let specs = nodes.iter().enumerate().map(|(at, node)| {
        let mut spec = json!({
            "name": name(at), "dependsOn": node.on.iter().map(|&on| name(on)).collect::<Vec<_>>(),
            "triggerRule": node.rule, "taskType": "NOOP", "delay": format!("{}ms", rng.below(pace)),
        });
        match (node.fails, at % 2) {
            // What an expression lacks fails without ever reaching a worker.
            (true, 0) => spec["payload"] = json!("{{ input.nothing }}"),
            (true, _) => {
                spec["taskType"] = json!("SHELL");
                spec["payload"] = json!("exit 3");
                spec["retryCount"] = json!(0);
            }
            (false, _) => {}
        }
        if !node.wanted {
            spec["when"] = json!("input.no");
        } else if let Some(on) = node.on.first() {
            spec["when"] = json!(format!("nodes.{}.status is string and input.yes", name(*on)));
        }
        spec
    });
    json!({
        "requestId": format!("run {number}"), "onFailure": if stop { "stop" } else { "continue" },
        "input": { "yes": true, "no": false }, "nodes": specs.collect::<Vec<_>>(),
    })
}

/// The end of each node when no fault stops the others.
fn expected(nodes: &[Node]) -> Vec<&'static str> {
    let mut ends: Vec<&'static str> = Vec::new();
    for node in nodes {
        let all = |end: &str| node.on.iter().all(|&on| ends[on] == end);
        let begins = match node.rule {
            "allSucceeded" => all("SUCCESS"),
            "anyFailed" => node.on.iter().any(|&on| ends[on] == "FAILED"),
            _ => true,
        };
        ends.push(match (begins && node.wanted, node.fails) {
            (false, _) => "SKIPPED",
            (true, true) => "FAILED",
            (true, false) => "SUCCESS",
        });
    }
    ends
}

/// Checks a run that has ended. Answers whether it succeeded.
fn check(nodes: &[Node], stop: bool, run: &Value) -> bool {
    let told: Vec<&str> =
        run["nodes"].as_array().unwrap().iter().map(|node| node["status"].as_str().unwrap()).collect();
    let all_expected = expected(nodes);
    if stop {
        // Whether a node had begun when another failed is a matter of time; nothing else is.
        let failed = told.contains(&"FAILED");
        for (at, (told, expected)) in told.iter().zip(&all_expected).enumerate() {
            let node = &nodes[at];
            let by_stop = failed && *told == "SKIPPED" && node.rule == "allSucceeded";
            let by_another = failed
                && node.rule != "allSucceeded"
                && node.on.iter().any(|&on| told_differs(run, &all_expected, on));
            assert!(
                told == expected || by_stop || by_another,
                "node {at} is {told}, not {expected}: {run:#}"
            );
        }
    } else {
        assert_eq!(told, all_expected, "{run:#}");
    }
    let all = run["nodes"].as_array().unwrap();
    for (at, node) in nodes.iter().enumerate() {
        let Some(created) = all[at]["createdAt"].as_str() else { continue };
        for &on in &node.on {
            let ended = all[on]["finishedAt"].as_str();
            assert!(
                ended.is_none_or(|ended| ended <= created),
                "node {at} began before {on} had ended: {run:#}"
            );
        }
        assert!(
            all[at]["finishedAt"].as_str() <= run["finishedAt"].as_str(),
            "the run ended before node {at}: {run:#}"
        );
    }
    let succeeded = !told.contains(&"FAILED");
    assert_eq!(run["status"], if succeeded { "SUCCESS" } else { "FAILED" }, "{run:#}");
    succeeded
}

fn told_differs(run: &Value, expected: &[&str], node: usize) -> bool {
    run["nodes"][node]["status"] != expected[node]
}

async fn start_all(api: &Api, requests: Vec<Value>) -> Vec<String> {
    let mut ids = Vec::new();
    for request in requests {
        ids.push(loop {
            match api.try_post("/workflows/runs", &request).await {
                Ok((200 | 201, answer)) => break answer["runId"].as_str().unwrap().to_owned(),
                Ok((503, _)) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Ok(other) => panic!("{other:?}"),
            }
        });
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_comes_to_what_it_should_when_the_server_is_killed() {
    let (runs, kills) = (number("WORKFLOW_RUNS", 40), number("WORKFLOW_KILLS", 8));
    let seed = number("WORKFLOW_SEED", std::process::id() as usize);
    println!("WORKFLOW_SEED={seed}");
    let mut rng = Rng::new(seed as u64);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || Server::start_with(&data, &["--listen", &listen, "--capacity", "64"], &[]);
    let mut server = start();

    // Slow enough that there is something to kill, all the time.
    let pace = 20 + 100 * kills as u64;
    let plans: Vec<(Vec<Node>, bool)> = (0..runs).map(|at| (plan(&mut rng), at % 2 == 0)).collect();
    let requests: Vec<Value> = plans
        .iter()
        .enumerate()
        .map(|(at, (nodes, stop))| request(&mut rng, nodes, at, *stop, pace))
        .collect();
    let api = server.api();
    let starting = tokio::spawn(async move { start_all(&api, requests).await });
    let mut killed = Vec::new();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(100 + rng.below(900))).await;
        killed.push(jiff::Timestamp::now().to_string());
        server.kill();
        server = start();
    }
    let ids = tokio::time::timeout(PATIENCE * 3, starting).await.expect("all have begun").unwrap();
    let (api, begun) = (server.api(), Instant::now());
    let (mut hit, mut succeeded) = (0, 0);
    for (id, (nodes, stop)) in ids.iter().zip(&plans) {
        let run = loop {
            let (status, run) = api.get(&format!("/workflows/runs/{id}?wait=60s")).await;
            assert_eq!(status, 200, "{run}");
            if run["finishedAt"].is_string() {
                break run;
            }
            assert!(begun.elapsed() < PATIENCE * 10, "the run is stuck: {run:#}");
        };
        succeeded += usize::from(check(nodes, *stop, &run));
        let (from, until) = (run["createdAt"].as_str().unwrap(), run["finishedAt"].as_str().unwrap());
        hit += usize::from(killed.iter().any(|at| from <= at.as_str() && at.as_str() <= until));
    }
    server.terminate();
    println!("{runs} runs, {kills} kills, {hit} runs hit, {succeeded} succeeded");
    assert!(hit * 100 >= runs * 30, "only {hit} of {runs} runs were hit");
    let documents = one_task_for_each_child(&data.join("tasklane.db"), runs);
    assert_eq!(documents, 0, "nothing was written but tasks");
}

#[tokio::test(flavor = "multi_thread")]
async fn maps_and_jobs_come_to_what_they_should_when_the_server_is_killed() {
    let seed = number("WORKFLOW_SEED", std::process::id() as usize);
    println!("WORKFLOW_SEED={seed}");
    let mut rng = Rng::new(seed as u64);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || Server::start_with(&data, &["--listen", &listen, "--capacity", "16"], &[]);
    let mut server = start();
    let api = server.api();
    // A page adds five links, each of which adds five leaves.
    for (task_type, adds) in [("page", "link"), ("link", "leaf")] {
        let subtask = json!({ "taskName": adds, "taskType": adds });
        let said = json!({ "subtasks": vec![subtask; 5] });
        let analyzer = json!({ "script": format!("echo '{said}'") });
        assert_eq!(api.put(&format!("/analyzers/{task_type}"), analyzer).await.0, 201);
    }
    for task_type in ["page", "link", "leaf"] {
        let executor = json!({ "script": "sleep 0.02" });
        assert_eq!(api.put(&format!("/executors/{task_type}"), executor).await.0, 201);
    }
    let mut composites = Vec::new();
    for number in 0..3 {
        let job = json!({ "taskName": "job", "taskType": "page", "requestId": format!("job {number}") });
        composites.push((31, api.submit(job).await));
        let map = json!({
            "taskName": "map", "taskType": "SHELL", "payload": "sleep 0.02; echo {{ index }}",
            "requestId": format!("map {number}"), "shards": 100, "map": { "atOnce": 10 },
        });
        composites.push((100, api.submit(map).await));
    }
    for _ in 0..number("WORKFLOW_KILLS", 8) {
        tokio::time::sleep(Duration::from_millis(100 + rng.below(900))).await;
        server.kill();
        server = start();
    }
    let api = server.api();
    for (total, id) in &composites {
        let task = api.finished(id).await;
        assert_eq!(task["status"], "SUCCESS", "{task:#}");
        let (_, job) = api.get(&format!("/jobs/{id}")).await;
        assert_eq!((&job["total"], &job["byStatus"]["SUCCESS"]), (&json!(total), &json!(total)), "{job:#}");
        assert_eq!((&job["open"], &job["unanalyzed"]), (&json!(0), &json!(0)), "{job:#}");
    }
    server.terminate();
    one_task_for_each_child(&data.join("tasklane.db"), composites.len());
}

/// Reads the database itself: no child of a composite is there twice. Answers how many documents there are
/// besides that of the deployment.
fn one_task_for_each_child(database: &std::path::Path, expected: usize) -> i64 {
    let connection = rusqlite::Connection::open(database).unwrap();
    let mut rows =
        connection.prepare("SELECT t.state, s.body FROM task t JOIN spec s ON s.key = t.key").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?))).unwrap();
    let (mut children, mut composites) = (BTreeMap::new(), 0);
    for row in rows {
        let (state, body) = row.unwrap();
        let (state, body): (TaskState, TaskBody) =
            (codec::decode(&state).unwrap(), codec::decode(&body).unwrap());
        assert!(state.status.is_final(), "{state:?}");
        composites += usize::from(state.composite);
        if let Some(child) = state.child_of {
            assert_eq!((body.parent, body.child_name.as_ref()), (Some(child.composite), Some(&child.name)));
            let other = children.insert((child.composite, child.name.clone()), body.name);
            assert!(other.is_none(), "{child:?} is there twice");
        }
    }
    assert_eq!(composites, expected);
    let deployment = DocumentKind::Deployment as i64;
    let counted = "SELECT count(*) FROM document WHERE kind <> ?";
    connection.query_row(counted, [deployment], |row| row.get(0)).unwrap()
}

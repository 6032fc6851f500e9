//! The benchmark measures its scenarios, whatever the figures are.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::process::Command;

use serde_json::Value;
use support::{PROGRAM, Server};

fn report(command: &mut Command) -> Value {
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn check(report: &Value, tasks: u64) {
    assert_eq!(report["tasks"], tasks, "{report}");
    for figure in
        ["/completedPerSecond", "/submittedPerSecond", "/commits", "/meanBatch", "/server/cpuSeconds"]
    {
        assert!(
            report.pointer(figure).and_then(Value::as_f64).is_some_and(|value| value > 0.0),
            "{figure}: {report}"
        );
    }
}

/// Latencies of so many tasks, in their order.
fn check_latency(report: &Value, name: &str, tasks: u64) {
    let latency = &report[name];
    assert_eq!(latency["count"], tasks, "{name}: {report}");
    let times: Vec<f64> =
        ["p50Ms", "p90Ms", "p99Ms", "maxMs"].iter().map(|time| latency[time].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[3] > 0.0, "{name}: {report}");
}

#[test]
fn every_scenario_measures_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let bench = |args: &[&str]| report(server.cli(&["bench", "--json"]).args(args));
    let burst = bench(&["burst", "-n", "2500", "--batch", "400"]);
    check(&burst, 2500);
    check_latency(&burst, "start", 2500);
    check_latency(&burst, "done", 2500);
    assert!(burst["client"]["cpuSeconds"].as_f64().unwrap() > 0.0);
    let steady = bench(&["steady", "--rate", "200", "--for", "1s"]);
    check(&steady, 200);
    for name in ["start", "done", "answer"] {
        check_latency(&steady, name, 200);
    }
    let single = bench(&["single", "-n", "300", "-c", "8"]);
    check(&single, 300);
    check_latency(&single, "answer", 300);
    check_latency(&bench(&["sync", "-n", "20"]), "answer", 20);
    let backlog = bench(&["backlog", "-n", "3000", "--drain", "1000"]);
    check(&backlog, 1000);
    assert!(backlog["compared"]["ratio"].as_f64().unwrap() > 0.0);
    let shell = bench(&["shell", "-n", "20"]);
    check(&shell, 20);
    assert!(shell["compared"]["perSecond"].as_f64().unwrap() > 0.0);
    // All of it was really done, and nothing else is there.
    let tasks = report(&mut server.cli(&["stats", "--json"]))["tasks"].clone();
    assert_eq!(tasks["SUCCESS"], 2500 + 201 + 301 + 21 + 4000 + 20, "{tasks}");
    server.terminate();
}

#[test]
fn a_burst_in_this_process_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "burst", "--embedded", "-n", "1500", "--json"]).current_dir(folder.path());
    let burst = report(&mut command);
    check(&burst, 1500);
    assert_eq!(burst["target"], "in this process");
    assert!(burst.get("client").is_none(), "it is the same process");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

//! The examples run and print their lines.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use std::process::Command;

fn run(example: &str, args: &[&str]) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples");
    let output = Command::new("sh")
        .arg(format!("{folder}/{example}/run.sh"))
        .args(args)
        .env("TASKLANE", env!("CARGO_BIN_EXE_tasklane"))
        .env_remove("TASKLANE_URL")
        .output()
        .unwrap();
    let (said, remarks) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example} failed:\n{said}\n{remarks}");
    said.into_owned()
}

#[test]
fn the_crawler_finds_every_page_once() {
    let said = run("crawler", &[]);
    assert!(said.contains("tasks       6 (6 SUCCESS)"), "{said}");
    assert!(said.contains("pages: a.html b.html c.html d.html missing.html"), "{said}");
    assert!(said.contains("tasks removed"), "{said}");
}

#[test]
fn the_receiver_is_told_what_it_asked_for() {
    let said = run("webhook", &[]);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("told: ")).collect();
    assert_eq!(told, ["told: test ", "told: task.succeeded echo hello", "told: task.failed sh -c exit 3"]);
}

#[test]
fn the_pipeline_adds_up() {
    let said = run("pipeline", &[]);
    assert!(said.contains("the sum of 1 to 1000 is 500500"), "{said}");
    assert!(said.contains("SKIPPED alert"), "{said}");
}

#[test]
fn the_cluster_loses_nothing() {
    for kind in ["redis", "postgres"] {
        let said = run("cluster", &[kind]);
        assert!(said.contains("finished: 8, run again elsewhere: 4"), "{kind}: {said}");
    }
}

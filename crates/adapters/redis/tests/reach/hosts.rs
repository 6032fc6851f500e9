//! Hosts that move.

use std::fs;
use std::process::Command;

use tasklane_ports::conformance::fixture::{create, task, tasks};
use tasklane_ports::conformance::run;
use tasklane_ports::{Store, Submit};
use tasklane_testkit::RedisServer;
use tasklane_testkit::redis::IN_MEMORY;

use super::support;

/// The name of the server, in this test's own `/etc/hosts`.
const NAME: &str = "redis.tasklane.test";

/// Submits until the store takes it.
async fn submit_until_taken(store: &dyn Store, number: u64) {
    let submit = Submit { lane: task(number).id().lane(), tasks: tasks([number]).into() };
    loop {
        match store.submit(submit.clone()).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// The file is replaced in a mount namespace of this test's own, so the test runs itself there.
#[test]
fn host_names_are_resolved_at_each_reconnect() {
    const INSIDE: &str = "TASKLANE_TEST_HOSTS";
    if let Some(hosts) = std::env::var_os(INSIDE) {
        run("resolved again", async {
            let point_to = |address: &str| fs::write(&hosts, format!("{address} {NAME}\n")).unwrap();
            point_to("127.0.0.2");
            let args = [IN_MEMORY, &["--bind", "127.0.0.1", "127.0.0.2"]].concat();
            let server = RedisServer::start_with(&args)?;
            let store =
                support::connect(&format!("redis://{NAME}:{}", server.port()), &support::fresh_options())
                    .await;
            create(&store, tasks([1])).await;
            // The server moves to another address, and its connections end.
            server.expect_ok(&["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.3"]);
            point_to("127.0.0.3");
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            submit_until_taken(&store, 2).await;
            Some(())
        });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "").unwrap();
    let may = Command::new("unshare").args(["--mount", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!(
            "SKIPPED: a mount namespace of its own needs root; that names are resolved again is not tested"
        );
        return;
    }
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let test = "reach::hosts::host_names_are_resolved_at_each_reconnect";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(&hosts)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, &hosts)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

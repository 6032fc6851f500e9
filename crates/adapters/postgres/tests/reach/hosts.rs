//! Several hosts, and hosts that move.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{create, task, tasks};
use tasklane_ports::conformance::run;
use tasklane_postgres::PostgresOptions;
use tasklane_testkit::Proxy;

use crate::support::{self, PostgresServer};

/// Submits until the store takes it.
async fn submit_until_taken(store: &dyn Store, number: u64) {
    let submit = tasklane_ports::Submit { lane: task(number).id().lane(), tasks: tasks([number]).into() };
    loop {
        match store.submit(submit.clone()).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[test]
fn the_standby_is_used_when_it_is_promoted() {
    run("several hosts", async {
        let mut primary = PostgresServer::start()?;
        let standby = primary.standby()?;
        let options = PostgresOptions { connect_timeout: Duration::from_secs(2), ..support::fresh_options() };
        // The standby is named first, and takes no writes.
        let url = format!(
            "postgres://tasklane@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
            standby.port(),
            primary.port()
        );
        let store = support::connect(&url, &options).await;
        create(&store, tasks([1])).await;
        let followed = format!("SELECT count(*) FROM {}.task", options.schema);
        let has_table = format!("SELECT to_regclass('{}.task') IS NOT NULL", options.schema);
        tasklane_testkit::wait_until("the standby has no table", || standby.sql(&has_table) == "t");
        tasklane_testkit::wait_until("the standby does not follow", || standby.sql(&followed) == "1");
        primary.kill();
        standby.promote();
        submit_until_taken(&store, 2).await;
        assert_eq!(standby.sql(&followed), "2");
        Some(())
    });
}

/// A host that accepts connections and never answers, as a machine that hangs, costs only its own time.
#[test]
fn a_host_that_hangs_does_not_keep_the_next_one_from_being_tried() {
    run("a host hangs", async {
        let server = PostgresServer::start()?;
        let hanging = Proxy::before(server.port());
        hanging.pause();
        let options =
            PostgresOptions { connect_timeout: Duration::from_millis(300), ..support::fresh_options() };
        let url =
            format!("postgres://tasklane@127.0.0.1:{},127.0.0.1:{}/postgres", hanging.port(), server.port());
        let store = support::connect(&url, &options).await;
        create(&store, tasks([1])).await;
        Some(())
    });
}

/// The name of the server, in this test's own `/etc/hosts`.
const NAME: &str = "database.tasklane.test";

/// The file is replaced in a mount namespace of this test's own, so the test runs itself there.
#[test]
fn host_names_are_resolved_at_each_reconnect() {
    const INSIDE: &str = "TASKLANE_TEST_HOSTS";
    if let Some(hosts) = std::env::var_os(INSIDE) {
        run("resolved again", async {
            let point_to = |address: &str| fs::write(&hosts, format!("{address} {NAME}\n")).unwrap();
            point_to("127.0.0.2");
            let mut server = PostgresServer::start_with(&["fsync=off", "listen_addresses=127.0.0.2"])?;
            let url = server.url().replace("127.0.0.1", NAME);
            let store = support::connect(&url, &support::fresh_options()).await;
            create(&store, tasks([1])).await;
            server.shut_down();
            server.set(&["fsync=off", "listen_addresses=127.0.0.3"]);
            server.start_again();
            point_to("127.0.0.3");
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
    let test = "hosts::host_names_are_resolved_at_each_reconnect";
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

//! Sessions and watches when servers and connections fail, and their cost while nothing changes.

mod support;

use std::time::{Duration, Instant};

use support::{Mode, PostgresServer, Proxy};
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::Role;
use tasklane_ports::conformance::run;
use tasklane_ports::{Coordinator, CoordinatorError, OpenSession, SessionToken, View, Watch};
use tasklane_postgres::{PostgresCoordinator, PostgresOptions};

const TTL: Duration = Duration::from_secs(2);
const LANE: LaneId = LaneId(7);

async fn connect(url: &str, options: &PostgresOptions) -> PostgresCoordinator {
    PostgresCoordinator::connect(url, options).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn open(coordinator: &PostgresCoordinator, id: u128, ttl: Duration) -> SessionToken {
    let role = Role::Server { address: format!("10.0.0.{id}:1"), bus: String::new() };
    let open = OpenSession { session: SessionId::from_random(id), ttl, role };
    coordinator.open(open).await.expect("the server answers")
}

async fn until(watch: &mut Box<dyn Watch>, wanted: impl Fn(&View) -> bool) -> View {
    loop {
        let view = watch.next().await.expect("the coordinator is open");
        if wanted(&view) {
            return view;
        }
    }
}

/// Waits until a call succeeds, as a driver would.
async fn retried<T>(mut call: impl AsyncFnMut() -> Result<T, CoordinatorError>) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(started.elapsed() < Duration::from_secs(20), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[test]
fn an_outage_longer_than_the_ttl_ends_nobody_and_watches_go_on() {
    run("outage", async {
        let mut server = PostgresServer::start()?;
        let options = support::fresh_options();
        let (here, there) = (connect(&server.url(), &options).await, connect(&server.url(), &options).await);
        let kept = open(&here, 1, TTL).await;
        let lost = open(&here, 2, TTL).await;
        assert!(here.acquire(&kept, LANE).await.unwrap());
        let mut watch = there.watch().await.unwrap();
        assert_eq!(watch.next().await.unwrap().members.len(), 2);

        server.kill();
        assert!(here.renew(&kept).await.unwrap_err().is_retryable());
        tokio::time::sleep(TTL * 3 / 2).await;
        server.start_again();
        retried(async || here.renew(&kept).await).await;
        let renewing = async {
            loop {
                tokio::time::sleep(TTL / 4).await;
                retried(async || here.renew(&kept).await).await;
            }
        };
        let view = tokio::select! {
            view = until(&mut watch, |view| !view.members.contains_key(&lost.session)) => view,
            () = renewing => unreachable!(),
        };
        assert!(view.members.contains_key(&kept.session), "{view:?}");
        assert_eq!(view.grants.get(&LANE), Some(&kept.session));
        let token = open(&here, 3, TTL).await;
        until(&mut watch, |view| view.members.contains_key(&token.session)).await;
        Some(())
    });
}

#[test]
fn a_watch_survives_lost_connections() {
    run("lost connections", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let here = connect(&server.url(), &options).await;
        let there = connect(&proxy.url(), &options).await;
        let mut watch = there.watch().await.unwrap();
        watch.next().await.unwrap();
        for id in 1..=3 {
            let token = open(&here, id, TTL).await;
            until(&mut watch, |view| view.members.contains_key(&token.session)).await;
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
            proxy.set(Mode::Refuse);
            here.close(&token).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.set(Mode::Pass);
            until(&mut watch, |view| view.members.is_empty()).await;
        }
        Some(())
    });
}

#[test]
fn nobody_is_judged_while_renewals_are_refused() {
    run("refused renewals", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let here = connect(&server.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        let mut watch = here.watch().await.unwrap();
        watch.next().await.unwrap();
        let set = |sql: &str| {
            server.sql(sql);
            server.sql("SELECT pg_reload_conf()");
        };
        set("ALTER SYSTEM SET default_transaction_read_only = on");
        // Each connection applies the setting in its own time.
        while here.renew(&token).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(TTL * 3 / 2).await;
        set("ALTER SYSTEM RESET default_transaction_read_only");
        retried(async || here.renew(&token).await).await;
        let ended = until(&mut watch, |view| view.members.is_empty()).await;
        assert!(ended.grants.is_empty());
        Some(())
    });
}

#[test]
fn without_notifications_changes_are_found_by_looking() {
    run("drops notifications", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let here = connect(&server.url(), &options).await;
        let there = connect(&proxy.url(), &options).await;
        proxy.set(Mode::DropNotifications);
        let mut watch = there.watch().await.unwrap();
        watch.next().await.unwrap();
        let token = open(&here, 1, TTL * 10).await;
        until(&mut watch, |view| view.members.contains_key(&token.session)).await;
        while there.warnings().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        here.close(&token).await.unwrap();
        until(&mut watch, |view| view.members.is_empty()).await;
        assert!(here.warnings().is_empty());
        Some(())
    });
}

/// Statements since the start, as the server counts transactions.
fn transactions(server: &PostgresServer) -> u64 {
    // The server counts the statements of other connections with a delay, unless they are idle for a moment.
    let count = server.sql("SELECT pg_stat_force_next_flush(); SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'");
    count.lines().last().expect("a row").trim().parse().expect("a number")
}

#[test]
fn who_only_holds_a_session_has_one_connection() {
    run("holders", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let here = connect(&server.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        for _ in 0..5 {
            here.renew(&token).await.unwrap();
        }
        let connections =
            || server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tasklane'");
        assert_eq!(connections(), "1");
        let listening = || server.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
        assert_eq!(listening(), "0");
        let watch = here.watch().await.unwrap();
        while listening() != "1" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(watch);
        while listening() != "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(())
    });
}

/// Prints the statements that an idle cluster of three servers and ten workers sends to PostgreSQL, for
/// comparison.
#[test]
#[ignore = "measures, and takes half a minute"]
fn an_idle_cluster_is_cheap() {
    const SECONDS: u64 = 20;
    run("idle", async {
        let server = PostgresServer::start_with(&["fsync=off", "autovacuum=off"])?;
        let options = support::fresh_options();
        let mut renewing = Vec::new();
        let mut watches = Vec::new();
        for id in 0..13 {
            let here = connect(&server.url(), &options).await;
            let ttl = Duration::from_secs(if id < 3 { 5 } else { 15 });
            let token = open(&here, id, ttl).await;
            if id < 3 {
                watches.push(here.watch().await.unwrap());
            }
            renewing.push(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(ttl / 3).await;
                    here.renew(&token).await.unwrap();
                }
            }));
        }
        // Long enough for earlier statements to be counted: the server counts with a delay.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let before = transactions(&server);
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        println!(
            "in {SECONDS} seconds {} transactions, this question included",
            transactions(&server) - before
        );
        renewing.iter().for_each(tokio::task::JoinHandle::abort);
        Some(())
    });
}

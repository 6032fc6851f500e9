//! Sessions and watches when servers and connections fail, and their cost while nothing changes.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Cluster, Mode, Proxy, RedisServer};
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::Role;
use tasklane_ports::conformance::run;
use tasklane_ports::{Coordinator, CoordinatorError, OpenSession, SessionToken, View, Watch};
use tasklane_redis::{RedisCoordinator, RedisOptions};

const TTL: Duration = Duration::from_secs(2);
const LANE: LaneId = LaneId(7);

async fn connect(url: &str, options: &RedisOptions) -> RedisCoordinator {
    RedisCoordinator::connect(url, options).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn opening(id: u128, ttl: Duration) -> OpenSession {
    let role = Role::Server { address: format!("10.0.0.{id}:1"), bus: String::new() };
    OpenSession { session: SessionId::from_random(id), ttl, role }
}

async fn open(coordinator: &RedisCoordinator, id: u128, ttl: Duration) -> SessionToken {
    coordinator.open(opening(id, ttl)).await.expect("the server answers")
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

fn short_timeouts() -> RedisOptions {
    RedisOptions { response_timeout: Duration::from_secs(1), ..support::fresh_options() }
}

#[test]
fn an_outage_longer_than_the_ttl_ends_nobody_and_watches_go_on() {
    run("outage", async {
        let mut server = RedisServer::start_with(&["--save", "", "--appendonly", "yes"])?;
        let options = short_timeouts();
        let (here, there) = (connect(&server.url(), &options).await, connect(&server.url(), &options).await);
        let kept = open(&here, 1, TTL).await;
        let lost = open(&here, 2, TTL).await;
        assert!(here.acquire(&kept, LANE).await.unwrap());
        let mut watch = there.watch().await.unwrap();
        let before = watch.next().await.unwrap();
        assert_eq!(before.members.len(), 2);

        server.kill();
        assert!(here.renew(&kept).await.unwrap_err().is_retryable());
        tokio::time::sleep(TTL * 3 / 2).await;
        server.start_again();
        retried(async || here.renew(&kept).await).await;
        // The session without renewals ends and watchers see it. No other session has ended by the outage.
        let renewing = async {
            loop {
                tokio::time::sleep(TTL / 4).await;
                here.renew(&kept).await.unwrap();
            }
        };
        let view = tokio::select! {
            view = until(&mut watch, |view| !view.members.contains_key(&lost.session)) => view,
            () = renewing => unreachable!(),
        };
        assert!(view.members.contains_key(&kept.session), "{view:?}");
        assert_eq!(view.grants.get(&LANE), Some(&kept.session));
        // Changes are published again, not only found by reading.
        let token = open(&here, 3, TTL).await;
        until(&mut watch, |view| view.members.contains_key(&token.session)).await;
        Some(())
    });
}

#[test]
fn a_watch_survives_lost_connections() {
    run("lost connections", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        let there = connect(&proxy.url(), &options).await;
        let mut watch = there.watch().await.unwrap();
        watch.next().await.unwrap();
        for id in 1..=3 {
            let token = open(&here, id, TTL).await;
            until(&mut watch, |view| view.members.contains_key(&token.session)).await;
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
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
fn a_judge_that_was_cut_off_counts_anew() {
    run("a failure detector cut off", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        let detector = connect(&proxy.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        let mut watch = detector.watch().await.unwrap();
        watch.next().await.unwrap();
        tokio::time::sleep(TTL * 2 / 3).await;
        proxy.set(Mode::HoldAnswers);
        tokio::time::sleep(TTL).await;
        proxy.set(Mode::Pass);
        // Longer than a TTL after the only renewal, but the detector's observation was interrupted.
        here.renew(&token).await.unwrap();
        let ended = until(&mut watch, |view| view.members.is_empty()).await;
        assert!(ended.grants.is_empty());
        assert!(matches!(here.renew(&token).await, Err(CoordinatorError::SessionEnded { .. })));
        Some(())
    });
}

#[test]
fn a_server_that_lost_everything_is_followed_all_the_same() {
    run("lost data", async {
        let server = RedisServer::start()?;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        for id in 1..=5 {
            open(&here, id, TTL * 10).await;
        }
        let mut watch = here.watch().await.unwrap();
        let before = watch.next().await.unwrap();
        assert_eq!(server.command(&["FLUSHALL"]), "+OK\r\n");
        let after = until(&mut watch, |view| view.members.is_empty()).await;
        assert!(after.revision > before.revision, "{} after {}", after.revision, before.revision);
        let token = open(&here, 9, TTL).await;
        let view = until(&mut watch, |view| view.members.contains_key(&token.session)).await;
        assert!(view.revision > after.revision);
        Some(())
    });
}

#[test]
fn sessions_live_on_when_memory_is_full() {
    run("no memory", async {
        let server = RedisServer::start()?;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        let mut watch = here.watch().await.unwrap();
        watch.next().await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(server.command(&["SET", "x", "1"]).starts_with("-OOM"));
        for _ in 0..6 {
            here.renew(&token).await.unwrap();
            tokio::time::sleep(TTL / 4).await;
        }
        assert!(here.acquire(&token, LANE).await.unwrap());
        until(&mut watch, |view| view.grants.get(&LANE) == Some(&token.session)).await;
        here.close(&token).await.unwrap();
        until(&mut watch, |view| view.members.is_empty()).await;
        Some(())
    });
}

#[test]
fn nobody_is_judged_while_renewals_are_refused() {
    run("refused renewals", async {
        let server = RedisServer::start()?;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        let mut watch = here.watch().await.unwrap();
        watch.next().await.unwrap();
        // Reads succeed, writes do not.
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        assert!(here.renew(&token).await.unwrap_err().is_retryable());
        tokio::time::sleep(TTL * 3 / 2).await;
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        tokio::time::sleep(TTL / 2).await;
        here.renew(&token).await.unwrap();
        until(&mut watch, |view| view.members.is_empty()).await;
        Some(())
    });
}

/// How often commands were called, by name.
fn calls(server: &RedisServer, name: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
    line.and_then(|rest| rest.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn who_only_holds_a_session_neither_looks_nor_listens() {
    run("holders", async {
        let server = RedisServer::start()?;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        let token = open(&here, 1, TTL).await;
        here.renew(&token).await.unwrap();
        let before = calls(&server, "evalsha");
        tokio::time::sleep(TTL).await;
        assert_eq!(calls(&server, "evalsha"), before, "nothing is asked");
        assert_eq!(calls(&server, "subscribe"), 0);
        here.renew(&token).await.unwrap();

        // A watching process does both, and stops when its watch ends.
        let mut watch = here.watch().await.unwrap();
        watch.next().await.unwrap();
        let other = connect(&server.url(), &options).await;
        let second = open(&other, 2, TTL).await;
        until(&mut watch, |view| view.members.contains_key(&second.session)).await;
        tokio::time::sleep(TTL / 2).await;
        assert!(calls(&server, "subscribe") == 1 && calls(&server, "evalsha") > before + 3);
        drop(watch);
        tokio::time::sleep(TTL / 4).await;
        let before = calls(&server, "evalsha");
        tokio::time::sleep(TTL).await;
        assert_eq!(calls(&server, "evalsha"), before, "no process watches");
        assert!(!server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("cmd="));
        Some(())
    });
}

#[test]
fn without_the_right_to_listen_changes_are_found_by_looking() {
    run("no right to listen", async {
        let server = RedisServer::start()?;
        let options = short_timeouts();
        let here = connect(&server.url(), &options).await;
        server.command(&["ACL", "SETUSER", "unnotified", "on", ">p", "~*", "+@all", "resetchannels"]);
        let url = format!("redis://unnotified:p@127.0.0.1:{}", server.port());
        let there = connect(&url, &options).await;
        let mut watch = there.watch().await.unwrap();
        watch.next().await.unwrap();
        for id in 1..=3 {
            let token = open(&here, id, TTL).await;
            until(&mut watch, |view| view.members.contains_key(&token.session)).await;
            here.close(&token).await.unwrap();
            until(&mut watch, |view| view.members.is_empty()).await;
        }
        // The refused subscription is retried rarely.
        assert!(calls(&server, "subscribe") + rejected(&server, "subscribe") <= 4);
        Some(())
    });
}

fn rejected(server: &RedisServer, name: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:")));
    let rejected =
        line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("rejected_calls=")));
    rejected.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn watches_in_a_cluster_follow_a_slot_that_moves() {
    run("moving slot", async {
        let cluster = Cluster::start()?;
        let options = short_timeouts();
        let (here, there) =
            (connect(&cluster.url(), &options).await, connect(&cluster.url(), &options).await);
        let token = open(&here, 1, Duration::from_mins(1)).await;
        let mut watch = there.watch().await.unwrap();
        watch.next().await.unwrap();
        let slot = cluster.nodes[0].slot_of(&format!("{{{}:members}}", options.prefix));
        let from = Cluster::first_owner_of(slot);
        let to = (from + 1) % 3;
        cluster.begin_move(slot, from, to);
        cluster.move_keys(slot, from, to, 1000);
        cluster.end_move(slot, to);
        retried(async || here.renew(&token).await).await;
        assert!(retried(async || here.acquire(&token, LANE).await).await);
        until(&mut watch, |view| view.grants.contains_key(&LANE)).await;
        Some(())
    });
}

/// Prints the commands that an idle cluster of three servers and ten workers sends to Redis, for comparison.
#[test]
#[ignore = "measures, and takes half a minute"]
fn an_idle_cluster_is_cheap() {
    const SECONDS: u64 = 20;
    run("idle", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let mut renewing = Vec::new();
        let mut watches = Vec::new();
        for id in 0..13 {
            let here = Arc::new(connect(&server.url(), &options).await);
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
        tokio::time::sleep(Duration::from_secs(2)).await;
        let total = || {
            let stats = server.command(&["INFO", "stats"]);
            let processed = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            processed.unwrap().trim().parse::<u64>().unwrap()
        };
        let (before, scripts) = (total(), calls(&server, "evalsha"));
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        let (after, scripts) = (total(), calls(&server, "evalsha") - scripts);
        println!(
            "in {SECONDS} seconds {scripts} scripts; with the commands inside of them {}",
            after - before
        );
        renewing.iter().for_each(tokio::task::JoinHandle::abort);
        Some(())
    });
}

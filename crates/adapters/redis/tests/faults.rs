//! Servers and connections fail: no acknowledged write is lost, and each error states the outcome of its
//! write.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Cluster, Mode, Proxy, RedisServer};
use tasklane_core::status::Status::{Dispatched, Running, Scheduled, Success};
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, Owner, changing, create, state, submit, task, tasks, view,
};
use tasklane_ports::conformance::pages::all_counts;
use tasklane_ports::conformance::run;
use tasklane_ports::{Outcome, Store, StoreError, Submit};
use tasklane_redis::{RedisOptions, RedisStore};

/// Waits until a call succeeds, as a driver would.
async fn retried<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
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
fn what_was_acknowledged_survives_a_crash_of_the_server() {
    run("crash", async {
        let mut server = RedisServer::start_with(&["--save", "", "--appendonly", "yes"])?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let new = tasks(0..100);
        create(&*store, new.clone()).await;
        let mut owner = Owner::claim(&store, LANE).await;
        let groups: Vec<_> = new.iter().map(|new| changing(new.id, &new.state(), &[Scheduled])).collect();
        let commit = owner.next(groups);
        let outcomes = owner.send(&commit).await.unwrap();
        let before = view(&*store, new[7].id).await;

        server.kill();
        let error = store.lane_head(LANE).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        server.start_again();

        // The same handle connects again by itself.
        let head = retried(async || store.lane_head(LANE).await).await;
        assert_eq!((head.epoch, head.commit), (owner.epoch, owner.number));
        assert_eq!(view(&*store, new[7].id).await, before);
        assert_eq!(owner.send(&commit).await.unwrap(), outcomes);
        let scheduled = state(&*store, new[7].id).await;
        assert_eq!(owner.commit([changing(new[7].id, &scheduled, &[Dispatched])]).await, [APPLIED]);
        Some(())
    });
}

#[test]
fn a_commit_whose_answer_was_lost_is_unknown_and_settled_by_its_number() {
    run("lost answer", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let direct: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let new = task(1).build();
        create(&*store, [new.clone()]).await;
        let mut owner = Owner::claim(&store, LANE).await;
        // The server knows the script from here on.
        owner.commit([]).await;
        let commit = owner.next([changing(new.id, &new.state(), &[Scheduled])]);

        proxy.set(Mode::LoseAnswers);
        let error = owner.send(&commit).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(error.is_retryable());
        assert_eq!(direct.lane_head(LANE).await.unwrap().commit, commit.number, "it was applied");

        proxy.set(Mode::Pass);
        assert_eq!(retried(async || owner.send(&commit).await).await, [APPLIED]);
        assert_eq!(owner.send(&commit).await.unwrap(), [APPLIED]);
        Some(())
    });
}

#[test]
fn a_call_that_could_not_be_sent_was_not_applied() {
    run("no connection", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;

        // The first call finds out that the connection is gone; the next ones cannot make another.
        proxy.set(Mode::Refuse);
        let first = owner.next([]);
        assert!(owner.send(&first).await.unwrap_err().is_retryable());
        let error = owner.send(&first).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        assert!(error.is_retryable());

        proxy.set(Mode::Pass);
        assert_eq!(owner.send(&first).await.unwrap(), []);
        Some(())
    });
}

#[test]
fn a_connection_that_was_closed_in_silence_is_replaced_before_it_is_used() {
    run("closed connection", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        for _ in 0..10 {
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            // The end of a connection takes time to arrive.
            tokio::time::sleep(Duration::from_millis(50)).await;
            owner.commit([]).await;
        }
        Some(())
    });
}

#[test]
fn an_answer_that_does_not_come_is_unknown_after_the_timeout() {
    run("timeout", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options =
            RedisOptions { response_timeout: Duration::from_millis(300), ..support::fresh_options() };
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        proxy.set(Mode::HoldRequests);
        let commit = owner.next([]);
        let asked = Instant::now();
        let error = owner.send(&commit).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(asked.elapsed() >= options.response_timeout);
        proxy.set(Mode::Pass);
        assert_eq!(retried(async || owner.send(&commit).await).await, []);
        Some(())
    });
}

#[test]
fn without_memory_nothing_is_written_and_reading_goes_on() {
    run("out of memory", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let new = task(1).build();
        create(&*store, [new.clone()]).await;
        let mut owner = Owner::claim(&store, LANE).await;
        let commit = owner.next([changing(new.id, &new.state(), &[Scheduled])]);
        let before = (view(&*store, new.id).await, all_counts(&*store, 10).await);

        assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
        let full = |error: StoreError| {
            assert!(matches!(error, StoreError::Full { .. }), "{error}");
            assert!(error.is_retryable());
            assert_eq!(error.outcome(), Outcome::NotApplied);
        };
        full(owner.send(&commit).await.unwrap_err());
        full(store.submit(Submit { lane: LANE, tasks: tasks(2..10).into() }).await.unwrap_err());
        full(store.post(LANE, &[tasklane_ports::conformance::fixture::cancel(new.id)]).await.unwrap_err());
        assert_eq!((view(&*store, new.id).await, all_counts(&*store, 10).await), before);
        assert_eq!(store.lane_head(LANE).await.unwrap().commit.0, 0);

        assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
        assert_eq!(owner.send(&commit).await.unwrap(), [APPLIED]);
        create(&*store, tasks(2..10)).await;
        Some(())
    });
}

#[test]
fn a_server_that_became_a_replica_is_not_available() {
    run("read-only", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", "1"]), "+OK\r\n");
        let commit = owner.next([]);
        for _ in 0..3 {
            let error = owner.send(&commit).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
            assert_eq!(error.outcome(), Outcome::NotApplied);
        }
        assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]), "+OK\r\n");
        assert_eq!(retried(async || owner.send(&commit).await).await, []);
        Some(())
    });
}

#[test]
fn scripts_that_the_server_forgot_are_given_again() {
    run("no script", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let new = task(1).build();
        for created in [true, false] {
            assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "+OK\r\n");
            let outcomes = submit(&*store, [new.clone()]).await;
            assert_eq!(
                outcomes.iter().all(|o| tasklane_ports::conformance::fixture::created(o).is_some()),
                created
            );
            assert_eq!(view(&*store, new.id).await.row.state, new.state());
        }
        Some(())
    });
}

#[test]
fn a_server_that_is_not_fit_is_refused() {
    run("unfit server", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let refused = async |url: &str, options: &RedisOptions, what: &str| {
            let error = RedisStore::connect(url, options).await.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        refused("http://localhost", &options, "URL").await;
        let braces = RedisOptions { prefix: "a{b}".to_owned(), ..options.clone() };
        refused(&server.url(), &braces, "prefix").await;
        refused(&format!("{}/99", server.url()), &options, "DB index").await;
        server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        support::connect(&server.url(), &options).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1gb"]);
        refused(&server.url(), &options, "noeviction").await;
        server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
        refused(&server.url(), &options, "noeviction").await;
        server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        support::connect(&server.url(), &options).await;
        let newer = format!("{}?prefix=newer", server.url());
        assert_eq!(server.command(&["HSET", "{newer}:meta", "version", "999"]), ":1\r\n");
        refused(&newer, &options, "newer version").await;
        server.command(&["HSET", "{newer}:meta", "version", "1"]);
        refused(&newer, &options, "name another prefix").await;
        server.command(&["CONFIG", "SET", "requirepass", "secret"]);
        refused(&server.url(), &options, "uthentication").await;
        Some(())
    });
}

#[test]
fn what_a_server_may_lose_is_said() {
    run("warnings", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let warned = async |words: &[&str]| {
            let store = support::connect(&server.url(), &options).await;
            assert_eq!(store.warnings().len(), words.len(), "{:?}", store.warnings());
            for (warning, word) in store.warnings().iter().zip(words) {
                assert!(warning.contains(word), "{warning}");
            }
        };
        warned(&["nothing on disk"]).await;
        server.command(&["CONFIG", "SET", "save", "3600 1"]);
        warned(&["snapshots only"]).await;
        server.command(&["CONFIG", "SET", "appendonly", "yes"]);
        // A server does not shut down while it writes its first file.
        while server.command(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:1") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        warned(&["last second"]).await;
        server.command(&["CONFIG", "SET", "appendfsync", "always"]);
        warned(&[]).await;
        // Some servers refuse `CONFIG GET`.
        server.command(&["ACL", "SETUSER", "default", "-config"]);
        warned(&["CONFIG GET is refused"]).await;
        Some(())
    });
}

#[test]
fn a_store_in_a_cluster_follows_slots_that_move_and_nodes_that_die() {
    run("cluster changes", async {
        let mut cluster = Cluster::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&cluster.url(), &options).await);
        let new = tasks(0..10);
        create(&*store, new.clone()).await;
        let mut owner = Owner::claim(&store, LANE).await;

        let tag = format!("{{{}:{}}}", options.prefix, LANE);
        let slot = cluster.nodes[0].slot_of(&tag);
        let from = Cluster::first_owner_of(slot);
        let to = (from + 1) % 3;
        // While a slot moves, a script is refused, because its keys are at two nodes. A command with one key
        // succeeds at either node.
        cluster.begin_move(slot, from, to);
        let waits = async || {
            let error = owner.send(&owner.numbered(1, [])).await.unwrap_err();
            assert!(error.is_retryable() && error.outcome() == Outcome::NotApplied, "{error}");
            assert_eq!(store.lane_head(LANE).await.unwrap().epoch, owner.epoch);
        };
        waits().await;
        cluster.move_keys(slot, from, to, 3);
        waits().await;
        cluster.move_keys(slot, from, to, 1000);
        waits().await;
        cluster.end_move(slot, to);
        owner.advance(new[0].id, &[Scheduled]).await;
        owner.advance(new[0].id, &[Dispatched, Running, Success]).await;

        // A node without a slot of the lane dies.
        let other = (0..3).find(|node| *node != to).unwrap();
        cluster.nodes[other].kill();
        let next = owner.next([]);
        retried(async || owner.send(&next).await).await;
        cluster.nodes[other].start_again();
        Some(())
    });
}

#[test]
fn a_store_in_a_cluster_goes_on_at_the_replica() {
    run("failover", async {
        let mut cluster = Cluster::start()?;
        let options = support::fresh_options();
        let slot = cluster.nodes[0].slot_of(&format!("{{{}:{}}}", options.prefix, LANE));
        let primary = Cluster::first_owner_of(slot);
        cluster.add_replica(primary);
        let store: Arc<dyn Store> = Arc::new(support::connect(&cluster.url(), &options).await);
        let new = tasks(0..10);
        create(&*store, new.clone()).await;
        let mut owner = Owner::claim(&store, LANE).await;
        owner.advance(new[0].id, &[Scheduled]).await;
        assert_eq!(cluster.nodes[primary].wait_for_replicas(), ":1\r\n");

        cluster.nodes[primary].kill();
        let next = owner.next([changing(new[1].id, &new[1].state(), &[Scheduled])]);
        // The connection breaks, then there is none, then the cluster is down, then the replica has taken
        // over.
        let mut refusals = 0;
        let outcomes = retried(async || {
            refusals += 1;
            owner.send(&next).await
        });
        assert_eq!(outcomes.await, [APPLIED]);
        assert!(refusals > 1);
        assert_eq!(state(&*store, new[0].id).await.status, Scheduled);
        assert_eq!(store.lane_head(LANE).await.unwrap().commit, next.number);
        Some(())
    });
}

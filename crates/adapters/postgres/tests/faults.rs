//! Servers and connections fail: no acknowledged write is lost, and each error states the outcome of its
//! write.

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use support::{Mode, PostgresServer, Proxy};
use tasklane_core::id::Epoch;
use tasklane_core::status::Status::{Dispatched, Running, Scheduled, Success};
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, cancel, changing, create, inserting, owner_id, state, submit, task,
    tasks, view,
};
use tasklane_ports::conformance::{pages, run};
use tasklane_ports::{ClaimLane, Outcome, Store, StoreError, Submit};
use tasklane_postgres::{PostgresOptions, PostgresStore};

/// Waits until a call succeeds, as a driver would.
async fn retried<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(started.elapsed() < Duration::from_secs(30), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Opens a store that does not wait long for answers, on a machine that may be busy.
async fn connect_hasty(url: &str, options: &PostgresOptions) -> (PostgresStore, PostgresOptions) {
    let hasty = PostgresOptions { response_timeout: Duration::from_millis(500), ..options.clone() };
    (retried(async || PostgresStore::connect(url, &hasty).await).await, hasty)
}

#[test]
fn what_was_acknowledged_survives_a_crash_of_the_server() {
    run("crash", async {
        let mut server = PostgresServer::start_with(&[])?;
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
        assert_eq!(retried(async || store.tasks(&[new[7].id]).await).await, [Some(before)]);
        assert_eq!(retried(async || owner.send(&commit).await).await, outcomes);
        let scheduled = state(&*store, new[7].id).await;
        assert_eq!(owner.commit([changing(new[7].id, &scheduled, &[Dispatched])]).await, [APPLIED]);
        Some(())
    });
}

#[test]
fn everything_goes_on_after_a_restart_under_load() {
    run("restart", async {
        let mut server = PostgresServer::start_with(&[])?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        let stopped = Cell::new(false);
        let committing = async {
            let mut number = 0;
            while !stopped.get() {
                let new = task(number).build();
                let insert = owner.next([inserting(new.clone())]);
                retried(async || owner.send(&insert).await).await;
                let done = changing(new.id, &new.state(), &[Scheduled, Dispatched, Running, Success]);
                let done = owner.next([done]);
                assert_eq!(retried(async || owner.send(&done).await).await, [APPLIED]);
                number += 1;
            }
            number
        };
        let submitting = async {
            let mut number = 0;
            while !stopped.get() {
                let submit = Submit { lane: LANE, tasks: tasks([1_000_000 + number]).into() };
                // Created, or a duplicate of what was created when the answer was lost.
                retried(async || store.submit(submit.clone()).await).await;
                number += 1;
            }
            number
        };
        let restarting = async {
            let seen = async || retried(async || store.lane_head(LANE).await).await.commit.0;
            for _ in 0..3 {
                let before = seen().await;
                while seen().await < before + 10 {}
                let restarted = tokio::task::spawn_blocking(move || {
                    server.shut_down();
                    server.start_again();
                    server
                });
                server = restarted.await.unwrap();
            }
            stopped.set(true);
            server
        };
        let (committed, submitted, _server) = futures::join!(committing, submitting, restarting);
        let counts = pages::all_counts(&*store, 10).await;
        let by_status = counts[0].by_status;
        assert_eq!((by_status[0], by_status[5]), (submitted, committed));
        let (arrived, _) = pages::all_arrivals(&*store, LANE, tasklane_core::id::Seq(0), 100).await.unwrap();
        assert_eq!(arrived.len() as u64, committed + submitted);
        Some(())
    });
}

#[test]
fn a_commit_whose_answer_was_lost_is_unknown_and_settled_by_its_number() {
    run("lost answer", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let direct: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let new = task(1).build();
        create(&*store, [new.clone()]).await;
        let mut owner = Owner::claim(&store, LANE).await;
        // The connection is there from here on.
        owner.commit([]).await;
        let commit = owner.next([changing(new.id, &new.state(), &[Scheduled])]);

        proxy.set(Mode::LoseAnswers);
        let error = owner.send(&commit).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(error.is_retryable());
        // The server may still write it after the connection has ended.
        while direct.lane_head(LANE).await.unwrap().commit != commit.number {}

        proxy.set(Mode::Pass);
        assert_eq!(retried(async || owner.send(&commit).await).await, [APPLIED]);
        assert_eq!(owner.send(&commit).await.unwrap(), [APPLIED]);
        Some(())
    });
}

#[test]
fn a_commit_that_was_cut_on_its_way_is_not_applied_in_part() {
    run("cut commit", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let direct = support::connect(&server.url(), &options).await;
        let mut owner = Owner::claim(&store, LANE).await;
        // The connection is there, and the queue is known.
        owner.commit([inserting(task(0).build())]).await;
        let new = tasks(1..500);
        let commit = owner.next(new.iter().cloned().map(inserting).collect::<Vec<_>>());

        proxy.set(Mode::CutRequests);
        let error = owner.send(&commit).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(error.is_retryable());
        assert_eq!(direct.lane_head(LANE).await.unwrap().commit.0, 1);
        assert_eq!(pages::all_counts(&direct, 10).await[0].by_status[0], 1);

        proxy.set(Mode::Pass);
        assert_eq!(retried(async || owner.send(&commit).await).await.len(), 499);
        assert_eq!(pages::all_counts(&direct, 10).await[0].by_status[0], 500);
        Some(())
    });
}

#[test]
fn a_call_that_could_not_be_sent_was_not_applied() {
    run("no connection", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&proxy.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        owner.commit([]).await;

        // The first call finds out that the connection is gone; the next ones cannot make another.
        proxy.set(Mode::Refuse);
        let next = owner.next([]);
        assert!(owner.send(&next).await.unwrap_err().is_retryable());
        let error = owner.send(&next).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        assert!(error.is_retryable());

        proxy.set(Mode::Pass);
        assert_eq!(owner.send(&next).await.unwrap(), []);
        Some(())
    });
}

#[test]
fn connections_that_the_server_has_ended_are_replaced() {
    run("ended connections", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        for _ in 0..10 {
            owner.commit([]).await;
            server.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tasklane'",
            );
            let next = owner.next([]);
            assert_eq!(retried(async || owner.send(&next).await).await, []);
            retried(async || store.lane_head(LANE).await).await;
        }
        Some(())
    });
}

#[test]
fn an_answer_that_does_not_come_is_unknown_after_the_timeout() {
    run("timeout", async {
        let server = PostgresServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let patient: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let (store, hasty) = connect_hasty(&proxy.url(), &options).await;
        let mut owner = Owner::claim(&patient, LANE).await.over(&(Arc::new(store) as Arc<dyn Store>));
        retried(async || owner.send(&owner.numbered(1, [])).await).await;
        proxy.set(Mode::HoldRequests);
        owner.number = owner.number.next();
        let commit = owner.next([]);
        let asked = Instant::now();
        let error = owner.send(&commit).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        assert!(asked.elapsed() >= hasty.response_timeout);
        proxy.set(Mode::Pass);
        assert_eq!(retried(async || owner.send(&commit).await).await, []);
        Some(())
    });
}

#[test]
fn what_waits_too_long_for_another_is_given_up_and_not_applied() {
    run("lock timeout", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let patient = support::connect(&server.url(), &options).await;
        let mut owner = Owner::claim(&(Arc::new(patient.clone()) as Arc<dyn Store>), LANE).await;
        let (hasty, _) = connect_hasty(&server.url(), &options).await;
        // Another write that creates a task in the lane waits for it.
        let held = patient.hold_commit(&owner.next([inserting(task(1).build())])).await.unwrap();
        let submits = Submit { lane: LANE, tasks: tasks([2]).into() };
        let error = hasty.submit(submits.clone()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        assert!(error.is_retryable());
        // Other lanes and readers do not wait.
        retried(async || hasty.post(OTHER_LANE, &[cancel(task(1).id())]).await).await;
        assert_eq!(pages::all_counts(&patient, 10).await, []);
        held.release().await.unwrap();
        retried(async || hasty.submit(submits.clone()).await).await;
        assert_eq!(pages::all_counts(&patient, 10).await[0].by_status[0], 2);
        Some(())
    });
}

#[test]
fn a_claim_does_not_wait_for_ever_for_the_old_owner() {
    run("claim ends the old owner", async {
        let server = PostgresServer::start()?;
        let options =
            PostgresOptions { claim_patience: Duration::from_millis(100), ..support::fresh_options() };
        let old = support::connect(&server.url(), &options).await;
        let new: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let known = task(1).build();
        create(&*new, [known.clone()]).await;
        let mut owner = Owner::claim(&(Arc::new(old.clone()) as Arc<dyn Store>), LANE).await;
        owner.commit([]).await;
        let groups = [changing(known.id, &known.state(), &[Scheduled]), inserting(task(2).build())];
        let commit = owner.next(groups);
        let held = old.hold_commit(&commit).await.unwrap();

        // It is never released, so only the claim can end it.
        let claim = ClaimLane { lane: LANE, owner: owner_id(77), seen: owner.epoch, failures: 0 };
        assert_eq!(new.claim_lane(claim).await.unwrap(), Epoch(owner.epoch.0 + 1));
        let error = held.release().await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(state(&*new, known.id).await, known.state());
        assert_eq!(new.tasks(&[task(2).id()]).await.unwrap(), [None]);
        assert!(matches!(owner.send(&commit).await, Err(StoreError::Fenced { .. })));
        submit(&*new, tasks([2])).await;
        Some(())
    });
}

#[test]
fn servers_that_start_at_once_make_the_schema_once() {
    run("racing starts", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let url = server.url();
        let starts = (0..6).map(|_| support::connect(&url, &options));
        let stores = join_all(starts).await;
        create(&stores[0], tasks([1])).await;
        for store in &stores {
            assert!(store.tasks(&[task(1).id()]).await.unwrap()[0].is_some());
        }
        Some(())
    });
}

#[test]
fn a_schema_that_is_not_fit_is_refused_and_says_what_to_do() {
    run("unfit schema", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let refused = async |url: &str, what: &str| {
            let error = PostgresStore::connect(url, &options).await.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        let url = server.url();
        let of = |schema: &str| format!("{url}?schema={schema}");
        support::connect(&of("newer"), &options).await;
        server.sql("UPDATE newer.schema_version SET version = 999");
        refused(&of("newer"), "version 999").await;
        refused(&of("newer"), "newer Tasklane. Run that one").await;
        server.sql("CREATE SCHEMA theirs; CREATE TABLE theirs.task (x integer)");
        refused(&of("theirs"), "another program").await;
        assert_eq!(server.sql("SELECT to_regclass('theirs.schema_version') IS NULL"), "t");
        refused(&url.replace("/postgres", "/nothing"), "nothing").await;
        refused(&format!("{url}?sslmode=maybe"), "sslmode").await;
        // An empty schema that exists is as good as none, also for a role that may not create any.
        server.sql("CREATE ROLE modest LOGIN; CREATE SCHEMA given AUTHORIZATION modest");
        let modest = of("given").replace("tasklane@", "modest@");
        create(&support::connect(&modest, &options).await, tasks([1])).await;
        refused(&of("elsewhere").replace("tasklane@", "modest@"), "permission denied").await;
        Some(())
    });
}

#[test]
fn a_server_that_only_reads_is_not_available() {
    run("read-only", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;
        owner.commit([]).await;
        // As after a failover: for open connections, and for new ones.
        server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
        server.sql("SELECT pg_reload_conf()");
        let commit = owner.next([]);
        let error = loop {
            // It takes a moment until a server has read its settings.
            match owner.send(&commit).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        let error = PostgresStore::connect(&server.url(), &options).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        server.sql("ALTER SYSTEM RESET default_transaction_read_only");
        server.sql("SELECT pg_reload_conf()");
        retried(async || owner.send(&commit).await).await;
        Some(())
    });
}

#[test]
fn a_server_that_may_lose_what_it_acknowledged_is_warned_of() {
    run("warnings", async {
        let careful = PostgresServer::start_with(&[])?;
        let careless =
            PostgresServer::start_with(&["fsync=off", "synchronous_commit=off", "full_page_writes=off"])?;
        let options = support::fresh_options();
        assert_eq!(support::connect(&careful.socket_url(), &options).await.warnings(), [""; 0]);
        let store = support::connect(&careless.url(), &options).await;
        let warned = store.warnings().join(" ");
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            assert!(warned.contains(&format!("{setting} = off")), "{warned}");
        }
        Some(())
    });
}

#[test]
fn a_closed_store_answers_nothing() {
    run("closed", async {
        let server = PostgresServer::start()?;
        let store: Arc<dyn Store> =
            Arc::new(support::connect(&server.url(), &support::fresh_options()).await);
        let mut owner = Owner::claim(&store, LANE).await;
        owner.commit([]).await;
        store.close().await.unwrap();
        let next = owner.next([]);
        for error in [owner.send(&next).await.unwrap_err(), store.lane_head(LANE).await.unwrap_err()] {
            assert_eq!(error.outcome(), Outcome::NotApplied, "{error}");
        }
        Some(())
    });
}

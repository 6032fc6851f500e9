//! The number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::id::LaneId;
use tasklane_core::member::Role;
use tasklane_ports::conformance::fixture::{owner_id, session_id, tasks};
use tasklane_ports::conformance::run;
use tasklane_ports::{ClaimLane, Coordinator, OpenSession, Store, StoreError, Submit};
use tasklane_postgres::{PostgresArchive, PostgresCoordinator, PostgresOptions, PostgresStore};

use crate::support::{self, PostgresServer};

#[test]
fn no_more_connections_are_opened_than_were_given() {
    run("connections", async {
        let server = Arc::new(PostgresServer::start()?);
        let with = |connections| PostgresOptions { connections, ..support::fresh_options() };
        let store = support::connect(&server.url(), &with(4)).await;
        let coordinator = PostgresCoordinator::connect(&server.url(), &with(4)).await.unwrap();
        let mut watch = coordinator.watch().await.unwrap();
        watch.next().await;

        let (done, counted) = (Arc::new(AtomicBool::new(false)), Arc::clone(&server));
        let is_done = Arc::clone(&done);
        let most = tokio::task::spawn_blocking(move || {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tasklane'";
            let mut most = 0;
            while !is_done.load(Ordering::Acquire) {
                most = most.max(counted.sql(count).parse::<usize>().unwrap());
            }
            most
        });
        // Submits, claims of all lanes and sessions, in parallel and repeatedly.
        for round in 0..10_u64 {
            let submits = (0..40).map(|n| {
                let number = round * 1_000 + n;
                let tasks = tasks([number]);
                let lane = tasks[0].id.lane();
                store.submit(Submit { lane, tasks: tasks.into() })
            });
            let claims = (0..16).map(|lane| {
                let seen = tasklane_core::id::Epoch(round);
                store.claim_lane(ClaimLane { lane: LaneId(lane), owner: owner_id(1), seen, failures: 0 })
            });
            let sessions = (0..40).map(|n| {
                let role = Role::Server { address: "here".to_owned(), bus: String::new() };
                let session = session_id(u128::from(round) * 1_000 + n + 1);
                coordinator.open(OpenSession { session, ttl: Duration::from_mins(1), role })
            });
            let (submits, claims, sessions) =
                tokio::join!(join_all(submits), join_all(claims), join_all(sessions));
            assert!(submits.iter().all(Result::is_ok) && sessions.iter().all(Result::is_ok), "{submits:?}");
            assert!(claims.iter().all(Result::is_ok), "{claims:?}");
        }
        done.store(true, Ordering::Release);
        let most = most.await.unwrap();
        assert!((6..=8).contains(&most), "{most} connections");
        Some(())
    });
}

#[test]
fn too_few_connections_are_refused() {
    run("too few connections", async {
        let server = PostgresServer::start()?;
        let with = |connections| PostgresOptions { connections, ..support::fresh_options() };
        let (url, few) = (server.url(), with(1));
        let refusals = [
            PostgresStore::connect(&url, &with(3)).await.err(),
            PostgresCoordinator::connect(&url, &few).await.err(),
            PostgresArchive::connect(&url, &few).await.err(),
        ];
        for refusal in refusals {
            let Some(StoreError::Refused { reason }) = refusal else { panic!("not refused: {refusal:?}") };
            assert!(reason.contains("at least"), "{reason}");
        }
        Some(())
    });
}

//! Through `PgBouncer`, of Debian's version. `TASKLANE_TEST_PGBOUNCER` names another one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::commit::Commit;
use tasklane_core::member::Role;
use tasklane_ports::conformance::fixture::{Owner, create, inserting, owner_id, session_id, task, tasks};
use tasklane_ports::conformance::store::{claim, commit};
use tasklane_ports::conformance::{StalledCommit, StoreEnv, run};
use tasklane_ports::{ClaimLane, Coordinator, OpenSession, Store, StoreError, Submit};
use tasklane_postgres::{PostgresArchive, PostgresCoordinator, PostgresOptions, PostgresStore};
use tasklane_testkit::{PgBouncer, Proxy};

use crate::support::{self, PostgresServer};

const TRANSACTION: &str = "pool_mode = transaction";

/// Versions that can keep prepared statements do so unless they are set not to; earlier versions do not know
/// the setting.
fn forgetful() -> &'static str {
    if is_newer() { "max_prepared_statements = 0" } else { "" }
}

fn is_newer() -> bool {
    std::env::var_os("TASKLANE_TEST_PGBOUNCER").is_some()
}

/// Each is refused with the remedy, and nothing is written before that.
async fn refused(url: &str, options: &PostgresOptions) {
    let store = PostgresStore::connect(url, options).await.unwrap_err();
    let archive = PostgresArchive::connect(url, options).await.unwrap_err();
    for error in [store, archive] {
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        let error = error.to_string();
        for remedy in
            ["pool_mode = session", "PgBouncer 1.21", "max_prepared_statements", "PostgreSQL itself"]
        {
            assert!(error.contains(remedy), "{error}");
        }
    }
}

#[test]
fn a_pooler_that_loses_prepared_statements_is_refused() {
    run("transaction mode", async {
        let server = PostgresServer::start()?;
        for settings in
            [&["pool_mode = transaction"][..], &["pool_mode = transaction", "server_round_robin = 1"]]
        {
            let bouncer = PgBouncer::start(&server, settings)?;
            let options = support::fresh_options();
            refused(&bouncer.url(), &options).await;
            // Other clients have prepared statements of the same names.
            let direct = support::connect(&server.url(), &options).await;
            create(&direct, tasks(0..10)).await;
            refused(&bouncer.url(), &options).await;
        }
        Some(())
    });
}

/// A connection that is made later is probed too, if it shares a process of the server with another
/// connection.
#[test]
fn a_pooler_that_comes_in_between_later_is_refused() {
    run("a pooler later", async {
        let server = PostgresServer::start()?;
        let bouncer = PgBouncer::start(&server, &[TRANSACTION, forgetful()])?;
        let proxy = Proxy::before(server.port());
        let url = format!("postgres://tasklane@127.0.0.1:{}/postgres", proxy.port());
        let store = support::connect(&url, &support::fresh_options()).await;
        create(&store, tasks(0..10)).await;
        proxy.retarget(("127.0.0.1", bouncer.port()));
        proxy.cut();
        let mut refused = false;
        for n in 1..100 {
            let submit = |n| Submit { lane: task(n).id().lane(), tasks: tasks([n]).into() };
            let (one, two) = tokio::join!(store.submit(submit(2 * n)), store.submit(submit(2 * n + 1)));
            let errors = [one.err(), two.err()].into_iter().flatten();
            refused |=
                errors.map(|error| error.to_string()).any(|error| error.contains("pool_mode = session"));
        }
        assert!(refused, "the pooler was not found");
        Some(())
    });
}

struct Pooled {
    url: String,
    options: PostgresOptions,
    store: Arc<PostgresStore>,
}

#[async_trait]
impl StoreEnv for Pooled {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn second(&self) -> Arc<dyn Store> {
        self.reopen().await
    }

    async fn reopen(&self) -> Arc<dyn Store> {
        Arc::new(support::connect(&self.url, &self.options).await)
    }

    async fn held_commit(&self, commit: Commit) -> Option<StalledCommit> {
        let held = self.store.hold_commit(&commit).await.unwrap();
        Some(StalledCommit::new(held.release()))
    }
}

/// The session has what belongs to it: statements, `LISTEN`, and the process that a blocked claim ends.
#[test]
fn a_pooler_in_session_mode_is_as_good_as_none() {
    run("session mode", async {
        let server = PostgresServer::start()?;
        as_good_as_none(&server, &["pool_mode = session", "default_pool_size = 200"]).await?;
        Some(())
    });
}

/// Debian's version cannot do it.
#[test]
fn a_pooler_that_keeps_prepared_statements_is_as_good_as_none() {
    if !is_newer() {
        eprintln!(
            "SKIPPED: TASKLANE_TEST_PGBOUNCER names no PgBouncer from 1.21; a pooler that keeps prepared statements is not tested"
        );
        return;
    }
    run("transaction mode with statements", async {
        let server = PostgresServer::start()?;
        let settings = [TRANSACTION, "default_pool_size = 20", "max_prepared_statements = 200"];
        as_good_as_none(&server, &settings).await?;
        Some(())
    });
}

async fn as_good_as_none(server: &PostgresServer, settings: &[&str]) -> Option<()> {
    let bouncer = PgBouncer::start(server, settings)?;
    let fresh = async |claim_patience| {
        let options = PostgresOptions { claim_patience, ..support::fresh_options() };
        let store = Arc::new(support::connect(&bouncer.url(), &options).await);
        Pooled { url: bouncer.url(), options, store }
    };
    let patient = Duration::from_secs(5);
    claim::of_racing_claims_one_wins(&fresh(patient).await).await;
    claim::a_claim_waits_for_a_commit_that_is_being_written(&fresh(patient).await).await;
    commit::stale_epoch_is_fenced(&fresh(patient).await).await;
    commit::a_commit_racing_with_its_repetition_applies_once(&fresh(patient).await).await;
    commit::submits_and_commits_at_once_lose_nothing(&fresh(patient).await).await;

    // A commit of the old owner is open: the claim ends its connection, and the old owner is fenced.
    let (env, lane) = (fresh(Duration::from_millis(200)).await, task(1).id().lane());
    let mut owner = Owner::claim(&env.store(), lane).await;
    let open = owner.next([inserting(task(1).build())]);
    let held = env.store.hold_commit(&open).await.unwrap();
    let new = ClaimLane { lane, owner: owner_id(77), seen: owner.epoch, failures: 0 };
    env.second().await.claim_lane(new).await.unwrap();
    held.release().await.unwrap_err();
    assert!(matches!(owner.send(&open).await, Err(StoreError::Fenced { .. })));

    let (url, options) = (&env.url, &env.options);
    let one = PostgresCoordinator::connect(url, options).await.unwrap();
    let two = PostgresCoordinator::connect(url, options).await.unwrap();
    let mut watch = one.watch().await.unwrap();
    let role = Role::Server { address: "here".to_owned(), bus: String::new() };
    let open = OpenSession { session: session_id(9), ttl: Duration::from_mins(1), role };
    two.open(open).await.unwrap();
    while !watch.next().await.unwrap().members.contains_key(&session_id(9)) {}
    Some(())
}

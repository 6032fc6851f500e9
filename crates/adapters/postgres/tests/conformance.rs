//! The suites of the store, the logs, the documents and the coordinator against a real server. All cases
//! share it; each has a schema of its own.

mod support;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use support::{Mode, PostgresServer, Proxy};
use tasklane_core::commit::Commit;
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::conformance::model::{self, Plan};
use tasklane_ports::conformance::{CoordinatorEnv, DocumentsEnv, LogsEnv, StalledCommit, StoreEnv, run_long};
use tasklane_ports::{Coordinator, Documents, Logs, Store, Watch};
use tasklane_postgres::{PostgresCoordinator, PostgresOptions, PostgresStore};

/// A schema of its own.
struct PostgresEnv {
    server: &'static PostgresServer,
    options: PostgresOptions,
    store: Arc<PostgresStore>,
}

impl PostgresEnv {
    async fn again(&self) -> Arc<PostgresStore> {
        Arc::new(support::connect(&self.server.url(), &self.options).await)
    }
}

#[async_trait]
impl StoreEnv for PostgresEnv {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn second(&self) -> Arc<dyn Store> {
        self.again().await
    }

    async fn reopen(&self) -> Arc<dyn Store> {
        self.again().await
    }

    /// On the wire, whole and unread.
    async fn stalled_commit(&self, commit: Commit) -> StalledCommit {
        let proxy = Proxy::start(self.server.port()).await;
        let store = support::connect(&proxy.url(), &self.options).await;
        proxy.set(Mode::HoldRequests);
        let committing = tokio::spawn(async move { store.commit(&commit).await });
        proxy.held().await;
        StalledCommit::new(async move {
            proxy.set(Mode::Pass);
            committing.await.expect("a commit does not panic")
        })
    }

    /// All of it is written, and its transaction is open.
    async fn held_commit(&self, commit: Commit) -> Option<StalledCommit> {
        let held = self.store.hold_commit(&commit).await.expect("the commit is right");
        Some(StalledCommit::new(held.release()))
    }
}

#[async_trait]
impl LogsEnv for PostgresEnv {
    fn logs(&self) -> Arc<dyn Logs> {
        Arc::clone(&self.store) as Arc<dyn Logs>
    }

    async fn reopen_logs(&self) -> Arc<dyn Logs> {
        self.again().await
    }
}

#[async_trait]
impl DocumentsEnv for PostgresEnv {
    fn documents(&self) -> Arc<dyn Documents> {
        Arc::clone(&self.store) as Arc<dyn Documents>
    }

    async fn reopen_documents(&self) -> Arc<dyn Documents> {
        self.again().await
    }
}

/// Sessions in a schema of their own.
struct MembersEnv {
    server: &'static PostgresServer,
    options: PostgresOptions,
    coordinator: Arc<PostgresCoordinator>,
    /// Sessions end only while a process watches.
    _watching: Mutex<Box<dyn Watch>>,
}

#[async_trait]
impl CoordinatorEnv for MembersEnv {
    fn coordinator(&self) -> Arc<dyn Coordinator> {
        Arc::clone(&self.coordinator) as Arc<dyn Coordinator>
    }

    async fn second(&self) -> Arc<dyn Coordinator> {
        let again = PostgresCoordinator::connect(&self.server.url(), &self.options).await;
        Arc::new(again.expect("the server is there"))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }
}

async fn members_env() -> Option<MembersEnv> {
    let server = server()?;
    let options = support::fresh_options();
    let coordinator =
        PostgresCoordinator::connect(&server.url(), &options).await.expect("the server is there");
    let watching = coordinator.watch().await.expect("the server is there");
    Some(MembersEnv { server, options, coordinator: Arc::new(coordinator), _watching: Mutex::new(watching) })
}

fn server() -> Option<&'static PostgresServer> {
    static SERVER: OnceLock<Option<PostgresServer>> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start).as_ref()
}

async fn env() -> Option<PostgresEnv> {
    let server = server()?;
    let options = support::fresh_options();
    let store = Arc::new(support::connect(&server.url(), &options).await);
    Some(PostgresEnv { server, options, store })
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

/// A few sequences share a schema and run in parallel; each of them has lanes of its own. Queries over all
/// lanes should not cover thousands.
#[test]
fn behaves_like_the_reference() {
    const IN_ONE_PLACE: usize = 25;
    let mut plan = Plan::from_environment();
    if std::env::var_os("TASKLANE_MODEL_SEQUENCES").is_none() {
        plan.sequences = 400;
    }
    run_long("behaves_like_the_reference", async {
        for first in (0..plan.sequences).step_by(IN_ONE_PLACE) {
            let sequences = IN_ONE_PLACE.min(plan.sequences - first);
            let part = Plan { sequences, seed: plan.seed + first as u64, ..plan };
            model::run(&env().await?, reference, part).await;
        }
        Some(())
    });
}

tasklane_ports::store_conformance!(env);
tasklane_ports::logs_conformance!(env);
tasklane_ports::documents_conformance!(env);
tasklane_ports::coordinator_conformance!(members_env);

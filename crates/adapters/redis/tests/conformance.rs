//! The suite of the store and of the logs, once against a plain server and once against a cluster of three.

mod support;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use support::{Cluster, Mode, Proxy, RedisServer};
use tasklane_core::commit::Commit;
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::conformance::model::{self, Plan};
use tasklane_ports::conformance::{DocumentsEnv, LogsEnv, StalledCommit, StoreEnv, run_long};
use tasklane_ports::{Documents, Logs, Store};
use tasklane_redis::{RedisOptions, RedisStore};

/// A prefix of its own on a server that all cases share.
struct RedisEnv {
    url: String,
    options: RedisOptions,
    store: Arc<RedisStore>,
    /// Of the server, or of all nodes of the cluster.
    ports: Vec<u16>,
}

impl RedisEnv {
    async fn open(url: String, ports: Vec<u16>) -> Self {
        let options = support::fresh_options();
        let store = Arc::new(support::connect(&url, &options).await);
        Self { url, options, store, ports }
    }

    async fn again(&self) -> Arc<RedisStore> {
        Arc::new(support::connect(&self.url, &self.options).await)
    }
}

#[async_trait]
impl StoreEnv for RedisEnv {
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
        let proxy = Proxy::before(&self.ports).await;
        let store = support::connect(&proxy.url(), &self.options).await;
        proxy.set(Mode::HoldRequests);
        let committing = tokio::spawn(async move { store.commit(&commit).await });
        proxy.held().await;
        StalledCommit::new(async move {
            proxy.set(Mode::Pass);
            committing.await.expect("a commit does not panic")
        })
    }
}

#[async_trait]
impl LogsEnv for RedisEnv {
    fn logs(&self) -> Arc<dyn Logs> {
        Arc::clone(&self.store) as Arc<dyn Logs>
    }

    async fn reopen_logs(&self) -> Arc<dyn Logs> {
        self.again().await
    }
}

#[async_trait]
impl DocumentsEnv for RedisEnv {
    fn documents(&self) -> Arc<dyn Documents> {
        Arc::clone(&self.store) as Arc<dyn Documents>
    }

    async fn reopen_documents(&self) -> Arc<dyn Documents> {
        self.again().await
    }
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

/// Compares with the reference by random calls. A few sequences share a place and go on at once; each of them has lanes
/// of its own, and questions about all lanes should not be about thousands.
fn compare_with_the_reference<F: Future<Output = Option<RedisEnv>>>(env: impl Fn() -> F) {
    const IN_ONE_PLACE: usize = 25;
    let mut plan = Plan::from_environment();
    if std::env::var_os("TASKLANE_MODEL_SEQUENCES").is_none() {
        plan.sequences = 1000;
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

mod plain {
    use super::*;

    async fn env() -> Option<RedisEnv> {
        static SERVER: OnceLock<Option<RedisServer>> = OnceLock::new();
        let server = SERVER.get_or_init(RedisServer::start).as_ref()?;
        Some(RedisEnv::open(server.url(), vec![server.port()]).await)
    }

    tasklane_ports::store_conformance!(env);

    #[test]
    fn behaves_like_the_reference() {
        compare_with_the_reference(env);
    }
    tasklane_ports::logs_conformance!(env);
    tasklane_ports::documents_conformance!(env);
}

mod cluster {
    use super::*;

    async fn env() -> Option<RedisEnv> {
        static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
        let cluster = CLUSTER.get_or_init(Cluster::start).as_ref()?;
        Some(RedisEnv::open(cluster.url(), cluster.nodes.iter().map(RedisServer::port).collect()).await)
    }

    tasklane_ports::store_conformance!(env);

    #[test]
    fn behaves_like_the_reference() {
        compare_with_the_reference(env);
    }
    tasklane_ports::logs_conformance!(env);
    tasklane_ports::documents_conformance!(env);
}

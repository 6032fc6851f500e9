//! The suites of all ports: once against a plain server, as the user that docs/cluster.md describes, and once
//! against a cluster of three. Parts of them over encrypted connections and behind sentinels (`reach`).

mod reach;
mod support;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use support::{Cluster, Mode, Proxy, RedisServer};
use tasklane_core::commit::Commit;
use tasklane_core::id::SessionId;
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::conformance::model::{self, Plan};
use tasklane_ports::conformance::{
    BusEnv, CoordinatorEnv, DocumentsEnv, IntakeEnv, LogsEnv, StalledCommit, StoreEnv, run_long,
};
use tasklane_ports::{Bus, Coordinator, Documents, Intake, Logs, Store, Watch};
use tasklane_redis::{RedisBus, RedisCoordinator, RedisIntake, RedisOptions, RedisStore};

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

/// A bus under a prefix of its own.
struct RedisBusEnv {
    url: String,
    options: RedisOptions,
    bus: RedisBus,
}

impl RedisBusEnv {
    async fn open(url: String) -> Self {
        let options = support::fresh_options();
        let bus = RedisBus::connect(&url, &options).await.expect("the server is there");
        Self { url, options, bus }
    }
}

#[async_trait]
impl BusEnv for RedisBusEnv {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.bus.clone())
    }

    async fn second(&self) -> Arc<dyn Bus> {
        Arc::new(RedisBus::connect(&self.url, &self.options).await.expect("the server is there"))
    }
}

/// Sessions under a prefix of their own.
struct RedisCoordinatorEnv {
    url: String,
    options: RedisOptions,
    coordinator: Arc<RedisCoordinator>,
    /// Sessions end only while a process watches.
    _watching: Mutex<Box<dyn Watch>>,
}

impl RedisCoordinatorEnv {
    async fn open(url: String) -> Self {
        let options = support::fresh_options();
        let coordinator = RedisCoordinator::connect(&url, &options).await.expect("the server is there");
        let watching = coordinator.watch().await.expect("the server is there");
        Self { url, options, coordinator: Arc::new(coordinator), _watching: Mutex::new(watching) }
    }
}

#[async_trait]
impl CoordinatorEnv for RedisCoordinatorEnv {
    fn coordinator(&self) -> Arc<dyn Coordinator> {
        Arc::clone(&self.coordinator) as Arc<dyn Coordinator>
    }

    async fn second(&self) -> Arc<dyn Coordinator> {
        Arc::new(RedisCoordinator::connect(&self.url, &self.options).await.expect("the server is there"))
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// An inbox under a prefix of its own.
struct RedisIntakeEnv {
    url: String,
    options: RedisOptions,
    producer: redis::Client,
    cluster: bool,
}

impl RedisIntakeEnv {
    async fn open(url: String, ports: &[u16]) -> Self {
        let client = |port| redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a good URL");
        let options = support::fresh_options();
        let cluster = ports.len() > 1;
        let mut env = Self { url, options, producer: client(ports[0]), cluster };
        if cluster {
            let inbox = format!("{}:inbox", env.options.prefix);
            let slot = env.command(redis::cmd("CLUSTER").arg("KEYSLOT").arg(inbox)).await;
            let slot = redis::from_redis_value(slot).expect("a slot");
            env.producer = client(ports[Cluster::first_owner_of(slot)]);
        }
        env
    }

    async fn command(&self, command: &redis::Cmd) -> redis::Value {
        let mut connection =
            self.producer.get_multiplexed_async_connection().await.expect("the server is there");
        command.query_async(&mut connection).await.expect("the server answers")
    }
}

#[async_trait]
impl IntakeEnv for RedisIntakeEnv {
    async fn taker(&self, session: SessionId) -> Arc<dyn Intake> {
        let intake = RedisIntake::connect(&self.url, &self.options, session).await;
        Arc::new(intake.expect("the server is there"))
    }

    async fn produce(&self, bodies: Vec<Vec<u8>>) {
        let mut command = redis::cmd("LPUSH");
        command.arg(format!("{}:inbox", self.options.prefix)).arg(bodies);
        self.command(&command).await;
    }

    async fn dead(&self) -> Vec<(Vec<u8>, String)> {
        let inbox = format!("{}:inbox", self.options.prefix);
        let key = if self.cluster { format!("{{{inbox}}}:dead") } else { format!("{inbox}:dead") };
        let letters = self.command(redis::cmd("LRANGE").arg(key).arg(0).arg(-1)).await;
        let letters: Vec<String> = redis::from_redis_value(letters).expect("a list of texts");
        let read = |letter: String| {
            let letter: serde_json::Value = serde_json::from_str(&letter).expect("a dead letter is JSON");
            let text = |name: &str| letter[name].as_str().map(str::to_owned);
            let hex = |digits: String| {
                let digits =
                    digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
                digits.map(|pair| u8::from_str_radix(pair, 16).expect("digits")).collect()
            };
            let body = text("body").map(String::into_bytes).or_else(|| text("bodyHex").map(hex));
            (body.expect("a body"), text("reason").expect("a reason"))
        };
        letters.into_iter().map(read).collect()
    }
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

/// Compares with the reference by random calls. A few sequences share a server and run in parallel; each of
/// them has lanes of its own. Queries over all lanes should not cover thousands.
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

    /// A server whose user has exactly the rights that the docs list.
    fn start() -> Option<RedisServer> {
        let server = RedisServer::start()?;
        assert_eq!(server.command(&reach::documented_user()), "+OK\r\n");
        Some(server)
    }

    async fn env() -> Option<RedisEnv> {
        static SERVER: OnceLock<Option<RedisServer>> = OnceLock::new();
        let server = SERVER.get_or_init(start).as_ref()?;
        let url = format!("redis://tasklane:secret@127.0.0.1:{}", server.port());
        Some(RedisEnv::open(url, vec![server.port()]).await)
    }

    tasklane_ports::store_conformance!(env);

    #[test]
    fn behaves_like_the_reference() {
        compare_with_the_reference(env);
    }
    tasklane_ports::logs_conformance!(env);
    tasklane_ports::documents_conformance!(env);

    async fn bus_env() -> Option<RedisBusEnv> {
        Some(RedisBusEnv::open(env().await?.url).await)
    }

    async fn coordinator_env() -> Option<RedisCoordinatorEnv> {
        Some(RedisCoordinatorEnv::open(env().await?.url).await)
    }

    async fn intake_env() -> Option<RedisIntakeEnv> {
        let RedisEnv { url, ports, .. } = env().await?;
        Some(RedisIntakeEnv::open(url, &ports).await)
    }

    tasklane_ports::bus_conformance!(bus_env);
    tasklane_ports::intake_conformance!(intake_env);
    tasklane_ports::coordinator_conformance!(coordinator_env);
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

    async fn bus_env() -> Option<RedisBusEnv> {
        Some(RedisBusEnv::open(env().await?.url).await)
    }

    async fn coordinator_env() -> Option<RedisCoordinatorEnv> {
        Some(RedisCoordinatorEnv::open(env().await?.url).await)
    }

    async fn intake_env() -> Option<RedisIntakeEnv> {
        let RedisEnv { url, ports, .. } = env().await?;
        Some(RedisIntakeEnv::open(url, &ports).await)
    }

    tasklane_ports::bus_conformance!(bus_env);
    tasklane_ports::intake_conformance!(intake_env);
    tasklane_ports::coordinator_conformance!(coordinator_env);
}

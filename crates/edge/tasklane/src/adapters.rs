//! Opens the systems that a config names: the only place that maps URLs to adapters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use tasklane_core::id::SessionId;
use tasklane_direct::{DirectBus, DirectOptions};
use tasklane_local::{LocalBus, LocalCoordinator, SessionsOptions};
use tasklane_ports::{Archive, Bus, Coordinator, Documents, Intake, Logs, Store};
use tasklane_postgres::{PostgresArchive, PostgresCoordinator, PostgresOptions, PostgresStore};
use tasklane_redis::{RedisBus, RedisCoordinator, RedisIntake, RedisOptions, RedisStore};
use tasklane_runtime::guard::HeldFile;
use tasklane_runtime::keeper::{self, KeptCoordinator};
use tasklane_sqlite::Sqlite;

use crate::config::{AdapterUrl, Config, Durability, Shares};

/// The opened systems of a process.
#[derive(Clone, Debug)]
pub(crate) struct Adapters {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) logs: Arc<dyn Logs>,
    pub(crate) documents: Arc<dyn Documents>,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) bus: Arc<dyn Bus>,
    /// The same bus, where processes are connected to each other by it.
    pub(crate) direct: Option<DirectBus>,
    /// The locked file of a store that only one process may use.
    pub(crate) lock: Option<HeldFile>,
    /// Where finished tasks are kept for good.
    pub(crate) archive: Option<Arc<dyn Archive>>,
    /// Warnings about the setup of these systems.
    pub(crate) warnings: Vec<String>,
}

impl Adapters {
    /// Opens all of them. `listen` is where this process may be reached; `None` if it only calls others.
    pub(crate) async fn open(config: &Config, listen: Option<IpAddr>) -> Result<Self> {
        let OpenedStore { store, logs, documents, lock, mut warnings } =
            open_store(config, listen.is_some()).await?;
        let (coordinator, more) = {
            let config = config.clone();
            keeper::run(async move { open_coordinator(&config).await }).await?
        };
        let coordinator = Arc::new(KeptCoordinator::new(coordinator));
        warnings.extend(more);
        let url = config.bus_url();
        let mut direct = None;
        let bus: Arc<dyn Bus> = match url.scheme() {
            "local" => Arc::new(LocalBus::default()),
            "direct" => {
                let bus = open_direct(config, &url, listen).await?;
                direct = Some(bus.clone());
                Arc::new(bus)
            }
            "redis" => {
                let bus = RedisBus::connect(url.reveal(), &redis_options(config)).await;
                Arc::new(bus.with_context(|| cannot_reach("bus", &url))?)
            }
            other => bail!("the scheme {other}:// has no bus"),
        };
        // Only servers write history.
        let archive = match listen {
            Some(_) => open_archive(config).await?,
            None => None,
        };
        warnings.sort();
        warnings.dedup();
        Ok(Self { store, logs, documents, coordinator, bus, direct, lock, archive, warnings })
    }
}

/// A store in its three parts.
struct OpenedStore {
    store: Arc<dyn Store>,
    logs: Arc<dyn Logs>,
    documents: Arc<dyn Documents>,
    lock: Option<HeldFile>,
    warnings: Vec<String>,
}

impl OpenedStore {
    fn new<S: Store + Logs + Documents + 'static>(store: S, warnings: Vec<String>) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), logs: store.clone(), documents: store, lock: None, warnings }
    }
}

async fn open_store(config: &Config, is_server: bool) -> Result<OpenedStore> {
    let url = config.store_url();
    Ok(match url.scheme() {
        "sqlite" => {
            let durability = match config.durability {
                Durability::Full => tasklane_sqlite::Durability::Full,
                Durability::Relaxed => tasklane_sqlite::Durability::Relaxed,
            };
            let path = url.rest();
            let options = tasklane_sqlite::Options { durability, ..tasklane_sqlite::Options::new(path) };
            let store = Sqlite::connect(options).await.with_context(|| format!("cannot open {path}"))?;
            let lock = store.locked_file().map(|file| -> HeldFile { file });
            let warnings = store.warnings().to_vec();
            OpenedStore { lock, ..OpenedStore::new(store, warnings) }
        }
        "postgres" => {
            let options =
                postgres_options(
                    config,
                    |shares| {
                        if is_server { shares.store } else { shares.store_of_worker }
                    },
                )?;
            let store = PostgresStore::connect(url.reveal(), &options).await;
            let store = store.with_context(|| cannot_reach("store", &url))?;
            let warnings = store.warnings().to_vec();
            OpenedStore::new(store, warnings)
        }
        "redis" => {
            let store = RedisStore::connect(url.reveal(), &redis_options(config)).await;
            let store = store.with_context(|| cannot_reach("store", &url))?;
            let warnings = store.warnings().to_vec();
            OpenedStore::new(store, warnings)
        }
        other => bail!("the scheme {other}:// has no store"),
    })
}

/// Opens the coordinator alone.
pub(crate) async fn open_coordinator(config: &Config) -> Result<(Arc<dyn Coordinator>, Vec<String>)> {
    let url = config.coordinator_url();
    Ok(match url.scheme() {
        "local" => (Arc::new(LocalCoordinator::new(SessionsOptions::default())), Vec::new()),
        "postgres" => {
            let options = postgres_options(config, |shares| shares.coordinator)?;
            let coordinator = PostgresCoordinator::connect(url.reveal(), &options).await;
            let coordinator = coordinator.with_context(|| cannot_reach("coordinator", &url))?;
            let warnings = coordinator.warnings();
            (Arc::new(coordinator), warnings)
        }
        "redis" => {
            let coordinator = RedisCoordinator::connect(url.reveal(), &redis_options(config)).await;
            let coordinator = coordinator.with_context(|| cannot_reach("coordinator", &url))?;
            let warnings = coordinator.warnings().to_vec();
            (Arc::new(coordinator), warnings)
        }
        other => bail!("the scheme {other}:// has no coordinator"),
    })
}

/// Opens the archive, if there is one.
async fn open_archive(config: &Config) -> Result<Option<Arc<dyn Archive>>> {
    let Some(url) = &config.archive else { return Ok(None) };
    Ok(Some(match url.scheme() {
        "postgres" => {
            let options = postgres_options(config, |shares| shares.archive)?;
            let archive = PostgresArchive::connect(url.reveal(), &options).await;
            Arc::new(archive.with_context(|| cannot_reach("archive", url))?)
        }
        other => bail!("the scheme {other}:// has no archive"),
    }))
}

/// Opens where tasks come from besides the API, for a server that is known by its session, if there is such a place.
pub(crate) async fn open_intake(config: &Config, session: SessionId) -> Result<Option<Arc<dyn Intake>>> {
    let url = config.store_url();
    Ok(match url.scheme() {
        "redis" => {
            let intake = RedisIntake::connect(url.reveal(), &redis_options(config), session).await;
            Some(Arc::new(intake.with_context(|| cannot_reach("intake", &url))?))
        }
        _ => None,
    })
}

/// A server listens for others where its API does, at a port of its own; a worker only calls servers.
async fn open_direct(config: &Config, url: &AdapterUrl, listen: Option<IpAddr>) -> Result<DirectBus> {
    let given: Option<SocketAddr> = match url.rest() {
        "" => None,
        address => Some(address.parse().with_context(|| format!("bus: {address} is not an address"))?),
    };
    let bind = listen.map(|ip| given.unwrap_or_else(|| SocketAddr::new(ip, 0)));
    let advertise = bind.map(|_| reachable_host(config)).transpose()?;
    let bus = DirectBus::listen(DirectOptions { bind, advertise, ..DirectOptions::default() }).await;
    bus.with_context(|| match bind {
        Some(bind) => format!(
            "cannot listen at {bind} for other members; choose another address with `bus: direct://…`"
        ),
        None => "cannot start the bus".to_owned(),
    })
}

/// The host at which other members find this process: the configured one, or the host of its listener, or,
/// where it listens everywhere, the address by which this machine reaches its store.
pub(crate) fn reachable_host(config: &Config) -> Result<String> {
    if let Some((host, _)) = config.advertise.as_deref().and_then(|address| address.rsplit_once(':')) {
        return Ok(host.to_owned());
    }
    let mut ip = config.listen.map_or_else(|| Ipv4Addr::LOCALHOST.into(), |listen| listen.ip());
    if ip.is_unspecified() && config.is_cluster() {
        ip = own_address(&config.store_url()).context(
            "`advertise` must be given, as host:port: this server listens at all addresses, and its way to the store does \
             not tell at which of them others reach it",
        )?;
    }
    Ok(match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    })
}

/// The address of this machine on the way to its store, which may be at several. Nothing is sent.
pub(crate) fn own_address(store: &AdapterUrl) -> Option<IpAddr> {
    let authority = store.rest().split(['/', '?']).next()?;
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let towards = |address: SocketAddr| {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(address).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    hosts.split(',').find_map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:1") };
        host.to_socket_addrs().ok()?.find_map(towards)
    })
}

fn postgres_options(config: &Config, connections: impl Fn(&Shares) -> usize) -> Result<PostgresOptions> {
    let shares = Shares::of(config).map_err(|message| anyhow!("postgres_connections: {message}"))?;
    Ok(PostgresOptions {
        connections: connections(&shares),
        schema: config.prefix.to_string(),
        claim_patience: config.session.server_ttl / 4,
        ..PostgresOptions::default()
    })
}

fn redis_options(config: &Config) -> RedisOptions {
    RedisOptions { prefix: config.prefix.to_string(), ..RedisOptions::default() }
}

fn cannot_reach(role: &str, url: &AdapterUrl) -> String {
    format!("cannot use {url} as the {role}")
}

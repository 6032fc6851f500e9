//! `tasklane dev`, `tasklane server` and `tasklane worker`: a process that is a Tasklane, or a part of one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tasklane::assemble::{self, Roles, RunningTasklane};
use tasklane::config::{Config, Flag, LoadedConfig, LogFormat, Sources, load};
use tasklane::embed::Registrations;
use tasklane_runtime::keeper;
use tokio::signal::unix::{SignalKind, signal};

use super::exit::{Exit, Usage};
use super::out::{Out, print_line, print_object, remark};

/// Flags of every process.
#[derive(Debug, Default, clap::Args)]
struct Common {
    /// A YAML file with settings; see docs/configuration.md
    #[arg(long, short, env = "TASKLANE_CONFIG", hide_env_values = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The store: a URL of SQLite, PostgreSQL or Redis [default: SQLite in the data folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// The data folder [default: ./tasklane-data]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<String>,

    /// The format of log lines: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// Any other setting, such as worker.labels='{zone: eu}'; may be repeated
    #[arg(long, value_parser = super::value::pair, value_name = "KEY=VALUE")]
    set: Vec<(String, String)>,
}

/// Flags of a process that executes tasks.
#[derive(Debug, Default, clap::Args)]
struct OfWorker {
    /// The name of the worker [default: the name of the machine]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The number of attempts at once [default: 4 × cores]
    #[arg(long, value_name = "N")]
    capacity: Option<String>,
}

/// Flags of a server.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServerSettings {
    /// The address of the API [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// Flags of a worker.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct WorkerSettings {
    /// The address of /healthz and /readyz [default: none]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    #[command(flatten)]
    worker: OfWorker,

    #[command(flatten)]
    common: Common,
}

/// Flags of a process that is both.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    server: ServerSettings,

    #[command(flatten)]
    worker: OfWorker,
}

/// Settings that were given by flags.
#[derive(Debug)]
pub(crate) struct GivenSettings {
    common: Common,
    /// Flag, key, value.
    named: Vec<(&'static str, &'static str, Option<String>)>,
}

impl OfWorker {
    fn named(self) -> [(&'static str, &'static str, Option<String>); 2] {
        [("--name", "worker.name", self.name), ("--capacity", "worker.capacity", self.capacity)]
    }
}

impl From<ServerSettings> for GivenSettings {
    fn from(ServerSettings { listen, common }: ServerSettings) -> Self {
        Self { common, named: vec![("--listen", "listen", listen)] }
    }
}

impl From<WorkerSettings> for GivenSettings {
    fn from(WorkerSettings { listen, worker, common }: WorkerSettings) -> Self {
        let named = [("--listen", "worker.listen", listen)].into_iter().chain(worker.named()).collect();
        Self { common, named }
    }
}

impl From<Settings> for GivenSettings {
    fn from(Settings { server, worker }: Settings) -> Self {
        let mut given = Self::from(server);
        given.named.extend(worker.named());
        given
    }
}

impl GivenSettings {
    /// The effective config, from all of its sources. The token is that of an option that is not among these.
    pub(crate) fn load(self, token: Option<String>) -> anyhow::Result<LoadedConfig> {
        let Common { config, store, data_dir, log_format, set } = self.common;
        let named = self.named.into_iter().chain([
            ("--token", "token", token),
            ("--store", "store", store),
            ("--data-dir", "data_dir", data_dir),
            ("--log-format", "log.format", log_format),
        ]);
        let flag = |name: &str, key: &str, value| Flag { name: name.to_owned(), key: key.to_owned(), value };
        let named = named.filter_map(|(name, key, value)| Some(flag(name, key, value?)));
        let set = set.into_iter().map(|(key, value)| flag(&format!("--set {key}"), &key, value));
        let flags = set.chain(named).collect();
        // Variables that are not text cannot be settings of ours.
        let env =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        Ok(load(&Sources { file: config, env: env.collect(), flags })?)
    }
}

pub(crate) fn run(
    settings: impl Into<GivenSettings>,
    roles: Roles,
    token: Option<String>,
    out: Out,
) -> anyhow::Result<Exit> {
    let config = settings.into().load(token)?.config;
    if roles.server && config.listen.is_none() {
        return Err(Usage("a server needs an address for its API: set `listen`".to_owned()).into());
    }
    if roles == Roles::WORKER && !config.is_cluster() {
        let why = "a worker needs a store that it shares with servers: --store postgres://… or --store redis://…; \
                   `tasklane dev` has a worker of its own";
        return Err(Usage(why.to_owned()).into());
    }
    crate::log::start(&config.log)?;
    tasklane_runtime::descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(Box::pin(serve(&config, roles, out)));
    // What still blocks a thread now has had its time.
    runtime.shutdown_timeout(Duration::from_secs(1));
    exit
}

async fn serve(config: &Config, roles: Roles, out: Out) -> anyhow::Result<Exit> {
    // Before anything runs, so that no signal finds us unprepared; on the keeper, which sees them whatever else is held up.
    let (mut interrupt, mut terminate) = {
        let _on_keeper = keeper::handle().enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let starting = Box::pin(assemble::start(config, roles, Registrations::default()));
    let running = tokio::select! {
        running = starting => running.with_context(|| if config.is_cluster() {
            "cannot start".to_owned()
        } else {
            format!("cannot start with the data in {}", config.data_dir.display())
        })?,
        _ = interrupt.recv() => return Ok(Exit::CANCELLED),
        _ = terminate.recv() => return Ok(Exit::CANCELLED),
    };
    greet(config, roles, &running, out)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = running.worker_left(), if !roles.server => {
            running.close().await?;
            return Ok(Exit::OK);
        }
        () = running.stopped() => {
            running.close().await?;
            anyhow::bail!("a part of the server has stopped; the log has the cause");
        }
    }
    let stopping = "stopping: no new work; running attempts may finish. A second signal stops them at once.";
    match config.log.format {
        LogFormat::Text => remark(stopping),
        // Nothing but JSON goes where programs read JSON.
        LogFormat::Json => tracing::info!("{stopping}"),
    }
    let stuck = running.stuck();
    tokio::select! {
        () = stuck => anyhow::bail!("the server's threads are stalled: the process ends without an orderly stop, as by kill -9"),
        closed = running.close() => closed.map(|()| Exit::OK).context("cannot close the store"),
        _ = interrupt.recv() => Ok(Exit::CANCELLED),
        _ = terminate.recv() => Ok(Exit::CANCELLED),
    }
}

fn greet(config: &Config, roles: Roles, running: &RunningTasklane, out: Out) -> anyhow::Result<()> {
    let data_dir = std::path::absolute(&config.data_dir)?;
    if !roles.server {
        let (name, capacity) = (config.worker.name(), config.worker.capacity());
        if out.is_json() {
            let listen = running.address;
            let started = serde_json::json!({ "worker": name, "capacity": capacity, "listen": listen });
            return print_object(&started);
        }
        let health = running.address.map_or_else(String::new, |address| {
            format!("Answers health checks at http://{address}/healthz and /readyz\n")
        });
        return print_line(format!(
            "Tasklane {} worker {name}, up to {capacity} attempts at once\n\
             Takes tasks from {}\n\
             {health}Ctrl-C ends it after its running attempts",
            env!("CARGO_PKG_VERSION"),
            config.store_url(),
        ));
    }
    let address = running.address.context("the API has no listen address")?;
    if out.is_json() {
        let url = format!("http://{}", reachable(address));
        let health = running.health_address;
        return print_object(
            &serde_json::json!({ "url": url, "listen": address, "healthListen": health, "dataDir": data_dir }),
        );
    }
    let kept_in =
        if config.is_cluster() { config.store_url().to_string() } else { data_dir.display().to_string() };
    print_line(greeting(address, running.health_address, &kept_in, roles, config.token.is_some()))
}

/// An address that a client on this machine can use.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    address
}

fn greeting(
    address: SocketAddr,
    health: Option<SocketAddr>,
    kept_in: &str,
    roles: Roles,
    has_token: bool,
) -> String {
    let health = health.map_or_else(String::new, |health| {
        format!("Answers health checks at http://{health}/healthz and /readyz too\n")
    });
    let url = format!("http://{}", reachable(address));
    let option = if url == "http://127.0.0.1:7070" { String::new() } else { format!(" --url {url}") };
    let body = r#"{"taskName":"hi","taskType":"SHELL","payload":"echo hi"}"#;
    // The token itself is never shown.
    let (where_, token) = if has_token {
        (" where TASKLANE_TOKEN holds the token", " -H \"authorization: Bearer $TASKLANE_TOKEN\"")
    } else {
        ("", "")
    };
    let worker = if roles.worker {
        ""
    } else {
        "This server runs no tasks: start workers with `tasklane worker` and the same store\n"
    };
    format!(
        "Tasklane {} listens on http://{address}\n\
         Its data is in {kept_in}\n\
         {health}{worker}Ctrl-C stops it\n\n\
         To try it, in another terminal{where_}:\n  \
           tasklane{option} run -- echo hello\n  \
           tasklane{option} list\n  \
           curl {url}/api/v1/tasks{token} -H 'content-type: application/json' -d '{body}'",
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_says_where_it_listens_and_names_an_address_that_can_be_used() {
        let text = greeting("0.0.0.0:9000".parse().unwrap(), None, "/srv", Roles::ALL, false);
        assert!(text.contains("listens on http://0.0.0.0:9000\n"), "{text}");
        assert!(text.contains("\n  tasklane --url http://127.0.0.1:9000 run -- echo hello\n"), "{text}");
        let text = greeting("127.0.0.1:7070".parse().unwrap(), None, "/srv", Roles::ALL, false);
        assert!(text.contains("\n  tasklane run -- echo hello\n  tasklane list\n  curl "), "{text}");
        assert!(!text.contains("TOKEN"), "{text}");
    }
}

//! A Redis primary, its replica and the sentinels that replace the primary when it is lost.

use std::fs;
use std::path::PathBuf;

use crate::authority::Authority;
use crate::daemon::{Daemon, free_port, wait_until};
use crate::programs;
use crate::redis::{IN_MEMORY, RedisServer, TlsSettings, raw_command};

/// The name under which the sentinels know the primary.
pub const PRIMARY: &str = "tasks";

/// What differs between sets of servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentinelOptions<'a> {
    /// Encrypts all connections, to servers and sentinels.
    pub authority: Option<&'a Authority>,
    /// The password that the servers demand.
    pub password: Option<&'a str>,
    /// What sentinels demand.
    pub sentinel_password: Option<&'a str>,
}

/// A primary, a replica and three sentinels.
#[derive(Debug)]
pub struct RedisSentinel {
    /// The first begins as the primary.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<Sentinel>,
    ca: Option<PathBuf>,
    password: Option<String>,
}

/// A `redis-server --sentinel`.
#[derive(Debug)]
pub struct Sentinel {
    daemon: Daemon,
    port: u16,
    tls_port: Option<u16>,
    password: Option<String>,
}

impl RedisSentinel {
    /// Starts them all and waits until the sentinels know each other and the replica. `None`, said aloud, where
    /// `redis-server` is missing.
    pub fn start() -> Option<Self> {
        Self::start_with(SentinelOptions::default())
    }

    /// Starts them with encryption or passwords.
    pub fn start_with(options: SentinelOptions<'_>) -> Option<Self> {
        let tls = options.authority.map(TlsSettings::new);
        let encrypted: &[&str] = if tls.is_some() { &["--tls-replication", "yes"] } else { &[] };
        let start = |more: &[&str]| {
            let args = [IN_MEMORY, encrypted, &["--repl-diskless-sync-delay", "0"], more].concat();
            RedisServer::launch("redis-server", &args, tls, options.password)
        };
        let primary = start(&[])?;
        let replica = start(&["--replicaof", "127.0.0.1", &primary.port().to_string()])?;
        wait_until("the replica does not follow", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let sentinels: Vec<_> =
            (0..3).map(|_| Sentinel::start(primary.port(), options)).collect::<Option<_>>()?;
        let sees_all = |sentinel: &Sentinel| {
            let info = sentinel.command(&["INFO", "sentinel"]);
            info.contains("status=ok") && info.contains("slaves=1,sentinels=3")
        };
        wait_until("the sentinels do not see all servers", || sentinels.iter().all(sees_all));
        let (ca, password) = (options.authority.map(Authority::ca), options.password.map(str::to_owned));
        Some(Self { servers: vec![primary, replica], sentinels, ca, password })
    }

    /// `redis+sentinel://…`, or `rediss+sentinel://…?sslrootcert=…`, with the passwords.
    pub fn url(&self) -> String {
        let user = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        let mut parameters = Vec::new();
        parameters.extend(self.ca.as_ref().map(|ca| format!("sslrootcert={}", ca.display())));
        let sentinel_password = self.sentinels[0].password.as_ref();
        parameters.extend(sentinel_password.map(|password| format!("sentinel_password={password}")));
        let query = if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) };
        let scheme = if self.ca.is_some() { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{user}{}/{PRIMARY}{query}", self.hosts())
    }

    /// `host:port` of each sentinel, with commas between them.
    pub fn hosts(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        hosts.join(",")
    }

    /// The position of the server that the sentinels call the primary.
    pub fn primary(&self) -> usize {
        let answer = self.sentinels[0].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY]);
        let port: u16 = answer.lines().nth(4).unwrap().parse().unwrap();
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// Waits until the sentinels agree on a primary that is not `lost`.
    pub fn wait_for_other_primary(&self, lost: usize) -> usize {
        wait_until("the sentinels do not replace the primary", || self.primary() != lost);
        self.primary()
    }
}

impl Sentinel {
    fn start(primary: u16, options: SentinelOptions<'_>) -> Option<Self> {
        let program = programs::find("redis-server")?;
        let mut daemon = Daemon::new("sentinel");
        let port = free_port();
        let mut config = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", daemon.folder().display()),
            format!("sentinel monitor {PRIMARY} 127.0.0.1 {primary} 2"),
            // Short, for a failover that can be awaited.
            format!("sentinel down-after-milliseconds {PRIMARY} 1000"),
            format!("sentinel failover-timeout {PRIMARY} 3000"),
        ];
        if let Some(password) = options.password {
            config.push(format!("sentinel auth-pass {PRIMARY} {password}"));
        }
        if let Some(password) = options.sentinel_password {
            config.extend([format!("requirepass {password}"), format!("sentinel sentinel-pass {password}")]);
        }
        let tls_port = options.authority.map(|authority| {
            let (tls_port, certificate) = (free_port(), authority.local_server());
            config.extend([
                format!("tls-port {tls_port}"),
                "tls-replication yes".to_owned(),
                "tls-auth-clients optional".to_owned(),
                format!("tls-ca-cert-file {}", authority.ca().display()),
                format!("tls-cert-file {}", certificate.cert.display()),
                format!("tls-key-file {}", certificate.key.display()),
            ]);
            tls_port
        });
        let file = daemon.folder().join("sentinel.conf");
        fs::write(&file, config.join("\n") + "\n").unwrap();
        let password = options.sentinel_password.map(str::to_owned);
        let ping = || raw_command(port, password.as_deref(), &["PING"]);
        daemon.start([program.into_os_string(), file.into_os_string(), "--sentinel".into()], || {
            ping().is_ok_and(|answer| answer.starts_with("+PONG"))
        });
        Some(Self { daemon, port, tls_port, password })
    }

    /// The port that clients use.
    pub fn port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Sends a command over the plain port and answers the start of its raw answer.
    pub fn command(&self, args: &[&str]) -> String {
        raw_command(self.port, self.password.as_deref(), args).unwrap()
    }

    pub fn kill(&mut self) {
        self.daemon.kill();
    }
}

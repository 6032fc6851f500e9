//! From a URL to servers that answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, ErrorKind, RedisError, Value};
use tasklane_ports::StoreError;

use crate::cluster::{Address, Cluster};
use crate::connection::{Connection, Endpoint, LiveConnection, Pushes, Timeouts};
use crate::error::{CallError, unexpected};
use crate::script::Script;
use crate::sentinel::Sentinels;
use crate::target::{Target, Topology, sentinel_settings};

/// How to use a Redis server.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// First part of every key. Two deployments with different prefixes can share a server. `?prefix=…` in
    /// the URL overrides it.
    pub prefix: String,
    /// A call without an answer for this long has failed; its outcome is unknown.
    pub response_timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: "tasklane".to_owned(),
            response_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
        }
    }
}

/// Kind of traffic of a connection. Large answers to readers must not hold up the owners' commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Submits, claims, commits, posts, loads.
    Lane,
    /// Queries and logs.
    Query,
}

/// One server, with one connection for each kind of traffic.
#[derive(Debug)]
pub(crate) struct Node {
    lane: Connection,
    query: Connection,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, timeouts: Timeouts) -> Self {
        Self { lane: Connection::new(endpoint.clone(), timeouts), query: Connection::new(endpoint, timeouts) }
    }

    pub(crate) fn connection(&self, traffic: Traffic) -> &Connection {
        match traffic {
            Traffic::Lane => &self.lane,
            Traffic::Query => &self.query,
        }
    }

    pub(crate) async fn close(&self) {
        self.lane.close().await;
        self.query.close().await;
    }
}

/// Where commands go.
#[derive(Debug)]
pub(crate) struct Server {
    nodes: Nodes,
    timeouts: Timeouts,
    /// How this server may lose acknowledged writes, for users.
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Nodes {
    Single(Box<Node>),
    Cluster(Cluster),
}

/// A node of a cluster, or the one server.
pub(crate) type Place = Option<Address>;

/// The use of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data that must not be lost.
    Data,
    /// Messages only.
    Messages,
}

impl Server {
    /// Connects to the servers that a URL names, checks that they are fit for the purpose, and answers them
    /// with the prefix of all keys.
    pub(crate) async fn connect(
        url: &str,
        options: &RedisOptions,
        used_for: Purpose,
    ) -> Result<(Self, String), StoreError> {
        let (mut server, prefix) = Self::from_url(url, options)?;
        let prefix = prefix.unwrap_or_else(|| options.prefix.clone());
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            let reason = format!("prefix {prefix:?} must not be empty and must not contain braces");
            return Err(StoreError::Refused { reason });
        }
        server.warnings = server.check(used_for).await?;
        Ok((server, prefix))
    }

    /// Parses a URL into the servers and the prefix, if it names one.
    fn from_url(url: &str, options: &RedisOptions) -> Result<(Self, Option<String>), StoreError> {
        let refuse = |reason: String| StoreError::Refused { reason };
        let Target { topology, hosts, tls, prefix } = Target::parse(url).map_err(refuse)?;
        let timeouts = Timeouts { connect: options.connect_timeout, response: options.response_timeout };
        let first = hosts.first().cloned().ok_or_else(|| refuse("the URL names no server".to_owned()))?;
        let nodes = match topology {
            Topology::Cluster => Nodes::Cluster(Cluster::new(hosts, tls, timeouts)),
            Topology::Single => {
                let endpoint = Endpoint { info: first, tls, sentinels: None };
                Nodes::Single(Box::new(Node::new(endpoint, timeouts)))
            }
            Topology::Sentinel { name, user, password } => {
                let settings = sentinel_settings(user.as_ref(), password.as_ref());
                let sentinel = |info: ConnectionInfo| Endpoint {
                    info: info.set_redis_settings(settings.clone()),
                    tls: tls.clone(),
                    sentinels: None,
                };
                let sentinels = Sentinels::new(name, hosts.into_iter().map(sentinel).collect());
                let endpoint =
                    Endpoint { info: first, tls: tls.clone(), sentinels: Some(Arc::new(sentinels)) };
                Nodes::Single(Box::new(Node::new(endpoint, timeouts)))
            }
        };
        Ok((Self { nodes, timeouts, warnings: Vec::new() }, prefix))
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.nodes, Nodes::Cluster(_))
    }

    pub(crate) async fn call(&self, slot: u16, traffic: Traffic, command: &Cmd) -> Result<Value, CallError> {
        match &self.nodes {
            Nodes::Single(node) => node.connection(traffic).send(command, false).await,
            Nodes::Cluster(cluster) => cluster.call(slot, traffic, command).await,
        }
    }

    /// Calls a script.
    pub(crate) async fn run(
        &self,
        script: &Script,
        slot: u16,
        traffic: Traffic,
        call: &Cmd,
    ) -> Result<Value, CallError> {
        match self.call(slot, traffic, call).await {
            // The script has not run.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.call(slot, traffic, &script.with_code(call)).await
            }
            answer => answer,
        }
    }

    /// The node that serves a slot.
    pub(crate) async fn place_of(&self, slot: u16) -> Result<Place, CallError> {
        match &self.nodes {
            Nodes::Single(_) => Ok(None),
            Nodes::Cluster(cluster) => Ok(Some(cluster.owner_of(slot).await?)),
        }
    }

    /// Makes the next command read the map: a slot has moved, or a node does not answer.
    pub(crate) fn distrust_places(&self) {
        match &self.nodes {
            Nodes::Single(_) => {}
            Nodes::Cluster(cluster) => cluster.distrust_map(),
        }
    }

    /// A connection for one use that cannot share it: subscriptions, and commands that wait. An answer may
    /// take `patience` longer than usual.
    pub(crate) async fn dial(
        &self,
        place: &Place,
        patience: Duration,
        pushes: Option<Pushes>,
    ) -> Result<LiveConnection, RedisError> {
        let endpoint = match (&self.nodes, place) {
            (Nodes::Cluster(cluster), Some(address)) => cluster.endpoint_of(address),
            (Nodes::Single(node), _) => node.connection(Traffic::Lane).endpoint().clone(),
            (Nodes::Cluster(_), None) => {
                return Err((ErrorKind::ClusterConnectionNotFound, "no node was named").into());
            }
        };
        let timeouts = Timeouts { response: self.timeouts.response + patience, ..self.timeouts };
        LiveConnection::connect(&endpoint, timeouts, pushes).await
    }

    /// Checks whether every server is fit for the purpose, and answers the warnings for users.
    async fn check(&self, used_for: Purpose) -> Result<Vec<String>, StoreError> {
        let (command, mut warnings) = (redis::cmd("INFO"), Vec::new());
        match &self.nodes {
            Nodes::Single(node) => {
                let connection = node.connection(Traffic::Lane);
                let info = Info::parse(connection.send(&command, false).await.map_err(at_start)?)?;
                if info.get("redis_mode") == Some("sentinel") {
                    let reason = "this server is a sentinel: use redis+sentinel://host:26379/NAME in the URL";
                    return Err(StoreError::Refused { reason: reason.to_owned() });
                }
                if info.get("cluster_enabled") == Some("1") {
                    let reason = "this server is part of a cluster: use redis+cluster:// in the URL";
                    return Err(StoreError::Refused { reason: reason.to_owned() });
                }
                info.check(used_for)?;
                warnings.extend(info.warnings(&Settings::of(connection).await?));
                if connection.endpoint().sentinels.is_some() {
                    warnings.push(FAILOVER.to_owned());
                    warnings.dedup();
                }
            }
            Nodes::Cluster(cluster) => {
                for node in cluster.primaries().await.map_err(at_start)? {
                    let connection = node.connection(Traffic::Lane);
                    let info = Info::parse(connection.send(&command, false).await?)?;
                    info.check(used_for)?;
                    warnings.extend(info.warnings(&Settings::of(connection).await?));
                }
                warnings.sort();
                warnings.dedup();
            }
        }
        Ok(if used_for == Purpose::Data { warnings } else { Vec::new() })
    }

    pub(crate) async fn close(&self) {
        match &self.nodes {
            Nodes::Single(node) => node.close().await,
            Nodes::Cluster(cluster) => cluster.close().await,
        }
    }
}

const FAILOVER: &str = "Redis has replicas, which follow a moment later: a failover to one of them may lose the last \
                        acknowledged writes, and then an attempt may run twice";

/// Settings that cannot work refuse a start. Later they count as an outage: the server's settings may be
/// corrected.
fn at_start(error: CallError) -> StoreError {
    match error {
        CallError::NotSent(error) if error.kind() == ErrorKind::Client => {
            StoreError::Refused { reason: error.detail().unwrap_or_default().to_owned() }
        }
        error => error.into(),
    }
}

/// The answer of a server to `INFO`.
struct Info(String);

impl Info {
    fn parse(answer: Value) -> Result<Self, StoreError> {
        redis::from_redis_value(answer).map(Self).map_err(|_| unexpected("INFO is not a text"))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }

    fn check(&self, used_for: Purpose) -> Result<(), StoreError> {
        let version = self.get("redis_version").unwrap_or("0");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0);
        if major < 7 {
            let reason = format!("Redis {version} is too old: scripts with flags need version 7");
            return Err(StoreError::Refused { reason });
        }
        let policy = self.get("maxmemory_policy").unwrap_or("noeviction");
        let limited = self.get("maxmemory").is_some_and(|bytes| bytes != "0");
        if used_for == Purpose::Data && limited && policy != "noeviction" {
            let reason = format!(
                "this server drops keys when its memory is full (maxmemory-policy {policy}): acknowledged writes \
                 would be lost; set maxmemory-policy noeviction, by CONFIG SET and in redis.conf, or use another server"
            );
            return Err(StoreError::Refused { reason });
        }
        Ok(())
    }
}

/// How this server may lose acknowledged writes, in a plain sentence each.
impl Info {
    fn warnings(&self, settings: &Settings) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.get("aof_enabled") == Some("1") {
            match settings.get("appendfsync") {
                Some("always") => {}
                Some("no") => warnings.push(
                    "Redis leaves it to the operating system when to write (appendfsync no): a power cut loses \
                     acknowledged writes of half a minute; set appendfsync to always, or to everysec to lose one second",
                ),
                Some(_) => warnings.push(
                    "Redis writes to disk once a second (appendfsync everysec): a power cut loses the acknowledged \
                     writes of the last second; set appendfsync always if that must not be",
                ),
                None => warnings.push(
                    "Redis does not report how it writes to disk (CONFIG GET is refused): unless appendfsync is always, a \
                     power cut loses the last acknowledged writes",
                ),
            }
        } else if settings.get("save") == Some("") {
            warnings.push(
                "Redis keeps nothing on disk (appendonly no, and no snapshots): a restart loses everything; set \
                 appendonly yes",
            );
        } else {
            warnings.push(
                "Redis writes snapshots only (appendonly no): a restart loses everything that was acknowledged since \
                 the last one; set appendonly yes",
            );
        }
        if self.get("connected_slaves").is_some_and(|replicas| replicas != "0") {
            warnings.push(FAILOVER);
        }
        warnings.into_iter().map(str::to_owned).collect()
    }
}

/// Settings that `INFO` does not have. Some servers refuse `CONFIG GET`.
#[derive(Debug, Default)]
struct Settings(HashMap<String, String>);

impl Settings {
    async fn of(connection: &Connection) -> Result<Self, StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("appendfsync").arg("save");
        match connection.send(&command, false).await {
            Ok(answer) => Ok(Self(redis::from_redis_value(answer).unwrap_or_default())),
            Err(CallError::Sent(error)) if !error.is_io_error() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_evicts_or_is_too_old_is_refused() {
        let check =
            |text: &str| Info(text.to_owned()).check(Purpose::Data).map_err(|error| error.to_string());
        let good = "redis_version:7.0.15\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(check(good), Ok(()));
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let evicting = good.replace("noeviction", policy);
            assert!(check(&evicting).unwrap_err().contains("noeviction"));
            assert_eq!(check(&evicting.replace("maxmemory:100", "maxmemory:0")), Ok(()));
            Info(evicting).check(Purpose::Messages).unwrap();
        }
        assert!(check(&good.replace("7.0.15", "6.2.1")).unwrap_err().contains("6.2.1"));
    }

    #[test]
    fn what_may_be_lost_is_said() {
        let settings = |pairs: &[(&str, &str)]| {
            Settings(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let warned = |info: &str, pairs: &[(&str, &str)]| Info(info.to_owned()).warnings(&settings(pairs));
        let safe = "aof_enabled:1\r\nconnected_slaves:0\r\n";
        assert!(warned(safe, &[("appendfsync", "always")]).is_empty());
        let expect = |info: &str, pairs: &[(&str, &str)], words: &[&str]| {
            let warnings = warned(info, pairs);
            assert_eq!(warnings.len(), words.len(), "{warnings:?}");
            for (warning, word) in warnings.iter().zip(words) {
                assert!(warning.contains(word) && !warning.contains("  "), "{warning}");
            }
        };
        expect(safe, &[("appendfsync", "everysec")], &["last second"]);
        expect(safe, &[("appendfsync", "no")], &["operating system"]);
        expect(safe, &[], &["CONFIG GET is refused"]);
        expect("aof_enabled:0\r\n", &[("save", "")], &["nothing on disk"]);
        expect("aof_enabled:0\r\n", &[("save", "3600 1")], &["snapshots only"]);
        let replicated = "aof_enabled:0\r\nconnected_slaves:1\r\n";
        expect(replicated, &[], &["snapshots only", "failover"]);
    }
}

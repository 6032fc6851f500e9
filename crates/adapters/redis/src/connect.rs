//! From a URL to servers that answer.

use std::time::Duration;

use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, Value};
use tasklane_ports::StoreError;

use crate::cluster::Cluster;
use crate::error::{CallError, unexpected};
use crate::link::{Link, Timeouts};

/// How to use a Redis server.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Starts every key. Two deployments with different prefixes can share a server. `?prefix=…` in the URL goes first.
    pub prefix: String,
    /// A call without an answer for this long has failed; whether it was applied is unknown.
    pub response_timeout: Duration,
    /// A connection that cannot be made in this time cannot be made.
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

/// What a connection is for. Large answers to readers must not hold up the owners' commits.
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
    lane: Link,
    query: Link,
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo, timeouts: Timeouts) -> Self {
        Self { lane: Link::new(info.clone(), timeouts), query: Link::new(info, timeouts) }
    }

    pub(crate) fn link(&self, traffic: Traffic) -> &Link {
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
pub(crate) enum Server {
    Single(Box<Node>),
    Cluster(Cluster),
}

impl Server {
    /// Reads a URL, and answers the servers and the prefix that it names, if it does.
    pub(crate) fn from_url(url: &str, options: &RedisOptions) -> Result<(Self, Option<String>), StoreError> {
        let refuse = |reason: String| StoreError::Refused { reason };
        let Target { nodes, cluster, prefix } = Target::parse(url).map_err(refuse)?;
        let infos = nodes.iter().map(|node| node.as_str().into_connection_info());
        let infos = infos.collect::<Result<Vec<_>, _>>().map_err(|error| refuse(error.to_string()))?;
        let timeouts = Timeouts { connect: options.connect_timeout, response: options.response_timeout };
        let server = if cluster {
            Self::Cluster(Cluster::new(infos, timeouts))
        } else {
            let info =
                infos.into_iter().next().ok_or_else(|| refuse("the URL names no server".to_owned()))?;
            Self::Single(Box::new(Node::new(info, timeouts)))
        };
        Ok((server, prefix))
    }

    pub(crate) async fn call(&self, slot: u16, traffic: Traffic, command: &Cmd) -> Result<Value, CallError> {
        match self {
            Self::Single(node) => node.link(traffic).send(command, false).await,
            Self::Cluster(cluster) => cluster.call(slot, traffic, command).await,
        }
    }

    /// Asks every server whether it is fit for this.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let command = redis::cmd("INFO");
        match self {
            Self::Single(node) => {
                let link = node.link(Traffic::Lane);
                let info = Info::parse(link.send(&command, false).await?)?;
                if info.get("cluster_enabled") == Some("1") {
                    let reason = "this server is part of a cluster: use redis+cluster:// in the URL";
                    return Err(StoreError::Refused { reason: reason.to_owned() });
                }
                info.check()
            }
            Self::Cluster(cluster) => {
                for node in cluster.primaries().await? {
                    let link = node.link(Traffic::Lane);
                    Info::parse(link.send(&command, false).await?)?.check()?;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Single(node) => node.close().await,
            Self::Cluster(cluster) => cluster.close().await,
        }
    }
}

/// What a server says of itself.
struct Info(String);

impl Info {
    fn parse(answer: Value) -> Result<Self, StoreError> {
        redis::from_redis_value(answer).map(Self).map_err(|_| unexpected("INFO is not a text"))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }

    fn check(&self) -> Result<(), StoreError> {
        let version = self.get("redis_version").unwrap_or("0");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0);
        if major < 7 {
            let reason = format!("Redis {version} is too old: scripts with flags need version 7");
            return Err(StoreError::Refused { reason });
        }
        let evicts = self.get("maxmemory_policy").is_some_and(|policy| policy.starts_with("allkeys"));
        if evicts && self.get("maxmemory").is_some_and(|bytes| bytes != "0") {
            let reason = "this server drops any key when its memory is full: set maxmemory-policy noeviction";
            return Err(StoreError::Refused { reason: reason.to_owned() });
        }
        Ok(())
    }
}

/// The parts of a URL that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// One URL for each server, as the client takes it.
    nodes: Vec<String>,
    cluster: bool,
    prefix: Option<String>,
}

impl Target {
    const CLUSTER: &str = "redis+cluster://";

    fn parse(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (ours, others): (Vec<&str>, Vec<&str>) =
            query.split('&').filter(|part| !part.is_empty()).partition(|part| part.starts_with("prefix="));
        let prefix = ours.first().and_then(|part| part.strip_prefix("prefix=")).map(str::to_owned);
        let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        let Some(rest) = base.strip_prefix(Self::CLUSTER) else {
            return Ok(Self { nodes: vec![format!("{base}{query}")], cluster: false, prefix });
        };
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), rest),
        };
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        if !matches!(path, "" | "0") {
            return Err(format!("a cluster has only database 0, not {path}"));
        }
        let hosts: Vec<&str> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        if hosts.is_empty() {
            return Err("the URL names no server".to_owned());
        }
        let nodes = hosts.iter().map(|host| format!("redis://{credentials}{host}{query}")).collect();
        Ok(Self { nodes, cluster: true, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (Vec<String>, bool, Option<String>) {
        let Target { nodes, cluster, prefix } = Target::parse(url).unwrap();
        (nodes, cluster, prefix)
    }

    #[test]
    fn a_url_names_a_server_or_a_cluster() {
        let one = |url: &str| vec![url.to_owned()];
        assert_eq!(parsed("redis://localhost:6379/2"), (one("redis://localhost:6379/2"), false, None));
        assert_eq!(
            parsed("redis://localhost?prefix=a&protocol=resp3"),
            (one("redis://localhost?protocol=resp3"), false, Some("a".to_owned()))
        );
        assert_eq!(
            parsed("redis+cluster://u:p@a:7000,b:7001/?prefix=x"),
            (vec!["redis://u:p@a:7000".into(), "redis://u:p@b:7001".into()], true, Some("x".into()))
        );
        assert!(Target::parse("redis+cluster://a:7000/1").is_err());
        assert!(Target::parse("redis+cluster:///").is_err());
    }

    #[test]
    fn a_server_that_evicts_or_is_too_old_is_refused() {
        let check = |text: &str| Info(text.to_owned()).check().map_err(|error| error.to_string());
        let good = "redis_version:7.0.15\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(check(good), Ok(()));
        assert!(check(&good.replace("noeviction", "allkeys-lru")).unwrap_err().contains("noeviction"));
        assert!(check(&good.replace("7.0.15", "6.2.1")).unwrap_err().contains("6.2.1"));
    }
}

//! A Redis Cluster of three primaries that share the slots.

use crate::authority::Authority;
use crate::daemon::{free_port, wait_until};
use crate::redis::{IN_MEMORY, RedisServer};

/// The slots that each node begins with.
const RANGES: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// Three primaries, and the replicas that were added.
#[derive(Debug)]
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    ca: Option<String>,
}

impl RedisCluster {
    /// Starts a cluster and waits until all nodes agree. `None`, said aloud, where `redis-server` is missing.
    pub fn start() -> Option<Self> {
        Self::launch(None)
    }

    /// Starts a cluster whose clients use encrypted ports with certificates of the authority.
    pub fn start_tls(authority: &Authority) -> Option<Self> {
        Self::launch(Some(authority))
    }

    fn launch(authority: Option<&Authority>) -> Option<Self> {
        let mut nodes = Vec::new();
        for _ in RANGES {
            nodes.push(start_node(authority)?);
        }
        for (number, ((node, _), (first, last))) in nodes.iter().zip(RANGES).enumerate() {
            node.expect_ok(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            node.expect_ok(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            for (other, bus) in &nodes {
                let port = other.port().to_string();
                node.expect_ok(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
            }
        }
        let nodes: Vec<_> = nodes.into_iter().map(|(node, _)| node).collect();
        let agrees = |node: &RedisServer| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
                && info.contains("cluster_known_nodes:3")
                && node.command(&["CLUSTER", "SLOTS"]).starts_with("*3")
        };
        wait_until("the nodes of the cluster do not agree", || nodes.iter().all(agrees));
        Some(Self { nodes, ca: authority.map(|authority| authority.ca().display().to_string()) })
    }

    /// Adds a replica of a node and waits until it has all data.
    pub fn add_replica(&mut self, of: usize) {
        assert!(self.ca.is_none(), "replicas are for plain clusters");
        let (replica, bus) = start_node(None).expect("the other nodes were started");
        let port = replica.port().to_string();
        self.nodes[of].expect_ok(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        let primary = self.nodes[of].command(&["CLUSTER", "MYID"]).lines().nth(1).unwrap().to_owned();
        let known = format!("cluster_known_nodes:{}", self.nodes.len() + 1);
        wait_until("the replica does not join", || {
            let has_joined = |node: &RedisServer| node.command(&["CLUSTER", "INFO"]).contains(&known);
            self.nodes.iter().chain([&replica]).all(has_joined)
        });
        wait_until("the replica cannot follow", || {
            replica.command(&["CLUSTER", "REPLICATE", &primary]) == "+OK\r\n"
        });
        wait_until("the replica does not follow", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        self.nodes.push(replica);
    }

    /// `redis+cluster://…` or `rediss+cluster://…?sslrootcert=…` with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let hosts = hosts.join(",");
        match &self.ca {
            None => format!("redis+cluster://{hosts}"),
            Some(ca) => format!("rediss+cluster://{hosts}?sslrootcert={ca}"),
        }
    }
}

/// A node, and the port at which other nodes reach it.
fn start_node(authority: Option<&Authority>) -> Option<(RedisServer, String)> {
    let bus = free_port().to_string();
    // Short, for a failover that can be awaited; long enough for a machine that is busy with other tests.
    let cluster: &[&str] =
        &["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "5000"];
    let args = [IN_MEMORY, cluster].concat();
    let node = match authority {
        None => RedisServer::start_with(&args)?,
        Some(authority) => {
            // Nodes then announce their encrypted ports to encrypted clients.
            let args = [&args, &["--tls-cluster", "yes"][..]].concat();
            RedisServer::start_tls(authority, false, &args)?
        }
    };
    Some((node, bus))
}

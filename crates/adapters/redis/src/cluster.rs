//! A cluster: which node serves which slot, and following the changes of that map.
//!
//! The crate's cluster client repeats a command whose connection broke. That is wrong here: a policy that the
//! first attempt changed would answer the second one with a conflict. This client sends a command again only
//! after a node has refused it, or when it could not be sent at all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::sync::Mutex;

use crate::connect::{Node, Traffic};
use crate::connection::{Endpoint, Timeouts};
use crate::error::{CallError, is_passing_refusal};
use crate::tls::{Tls, refused};

/// Hash slots of a cluster.
const SLOTS: u16 = 16384;

/// How many redirections one command follows before its caller gets the error.
const REDIRECTS_MAX: usize = 5;

/// The slot of a hash tag (or of a key without one): CRC-16/XMODEM modulo 16384.
pub(crate) fn slot_of(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

pub(crate) type Address = (String, u16);

#[derive(Debug)]
pub(crate) struct Cluster {
    /// The nodes that the URL names: the first to ask, and the last resort. They carry the credentials.
    seeds: Vec<ConnectionInfo>,
    tls: Option<Tls>,
    timeouts: Timeouts,
    nodes: RwLock<HashMap<Address, Arc<Node>>>,
    map: RwLock<Arc<SlotMap>>,
    /// A connection broke: the next command reads the map first.
    stale: AtomicBool,
    /// Held while the map is read again.
    refreshing: Mutex<()>,
}

#[derive(Debug, Default)]
struct SlotMap {
    /// Counts the maps, so that a waiting caller sees that a new one has arrived.
    number: u64,
    /// First slot, last slot, primary.
    ranges: Vec<(u16, u16, Address)>,
}

impl SlotMap {
    fn owner_of(&self, slot: u16) -> Option<&Address> {
        self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, node)| node)
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, tls: Option<Tls>, timeouts: Timeouts) -> Self {
        Self {
            seeds,
            tls,
            timeouts,
            nodes: RwLock::default(),
            map: RwLock::default(),
            stale: AtomicBool::new(true),
            refreshing: Mutex::default(),
        }
    }

    pub(crate) async fn call(&self, slot: u16, traffic: Traffic, command: &Cmd) -> Result<Value, CallError> {
        let mut map = self.map();
        if self.stale.load(Ordering::Acquire) || map.owner_of(slot).is_none() {
            map = self.refresh(&map).await?;
        }
        let mut address = owner(&map, slot)?;
        let mut asking = false;
        for _ in 0..REDIRECTS_MAX {
            let result = self.node(&address).connection(traffic).send(command, asking).await;
            let Err(error) = result else { return result };
            asking = false;
            match (&error, error.code()) {
                (CallError::Sent(refusal), Some("ASK")) => {
                    // For this command only: the slot is moving to that node.
                    let Some(target) = redirected(refusal, &address) else { return Err(error) };
                    address = target;
                    asking = true;
                }
                (CallError::Sent(refusal), Some("MOVED")) => {
                    let Some(target) = redirected(refusal, &address) else { return Err(error) };
                    map = self.refresh(&map).await?;
                    // The redirection is newer than the map, whose node may not know the move yet.
                    address = target;
                }
                (CallError::NotSent(_), _) => {
                    map = self.refresh(&map).await?;
                    let next = owner(&map, slot)?;
                    if next == address {
                        return Err(error);
                    }
                    address = next;
                }
                (CallError::Sent(_), Some(code)) if is_passing_refusal(code) && code != "NOSCRIPT" => {
                    map = self.refresh(&map).await?;
                    let next = owner(&map, slot)?;
                    if next == address {
                        return Err(error);
                    }
                    address = next;
                }
                (CallError::Sent(lost), _) => {
                    if lost.is_io_error() {
                        self.stale.store(true, Ordering::Release);
                    }
                    return Err(error);
                }
            }
        }
        let text = "the cluster redirects in circles";
        Err(CallError::NotSent((ErrorKind::ClusterConnectionNotFound, text).into()))
    }

    /// The node that serves a slot.
    pub(crate) async fn owner_of(&self, slot: u16) -> Result<Address, CallError> {
        let mut map = self.map();
        if self.stale.load(Ordering::Acquire) || map.owner_of(slot).is_none() {
            map = self.refresh(&map).await?;
        }
        owner(&map, slot)
    }

    /// Makes the next command read the map first.
    pub(crate) fn distrust_map(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// How to reach a node.
    pub(crate) fn endpoint_of(&self, address: &Address) -> Endpoint {
        let info = self.seeds[0].clone().set_addr(ConnectionAddr::Tcp(address.0.clone(), address.1));
        Endpoint { info, tls: self.tls.clone(), sentinels: None }
    }

    /// All primaries that are known.
    pub(crate) async fn primaries(&self) -> Result<Vec<Arc<Node>>, CallError> {
        let mut map = self.map();
        if self.stale.load(Ordering::Acquire) {
            map = self.refresh(&map).await?;
        }
        let mut addresses: Vec<&Address> = map.ranges.iter().map(|(_, _, address)| address).collect();
        addresses.sort();
        addresses.dedup();
        Ok(addresses.into_iter().map(|address| self.node(address)).collect())
    }

    pub(crate) async fn close(&self) {
        let nodes: Vec<_> = {
            let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
            nodes.drain().map(|(_, node)| node).collect()
        };
        for node in nodes {
            node.close().await;
        }
    }

    fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.nodes.read().unwrap_or_else(PoisonError::into_inner).get(address) {
            return Arc::clone(node);
        }
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Node::new(self.endpoint_of(address), self.timeouts));
        Arc::clone(nodes.entry(address.clone()).or_insert_with(new))
    }

    /// Reads the map again, unless another caller has done so since `seen`.
    async fn refresh(&self, seen: &SlotMap) -> Result<Arc<SlotMap>, CallError> {
        let _one_at_a_time = self.refreshing.lock().await;
        let map = self.map();
        if map.number > seen.number {
            return Ok(map);
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let known = map.ranges.iter().map(|(_, _, address)| address.clone());
        let seeds = self.seeds.iter().filter_map(|seed| match seed.addr() {
            ConnectionAddr::Tcp(host, port) => Some((host.clone(), *port)),
            _ => None,
        });
        let mut asked: Vec<Address> = Vec::new();
        let mut failure: RedisError =
            (ErrorKind::ClusterConnectionNotFound, "no node of the cluster answers").into();
        for address in known.chain(seeds) {
            if asked.contains(&address) {
                continue;
            }
            match self.node(&address).connection(Traffic::Query).send(&command, false).await {
                Ok(answer) => {
                    if let Some(ranges) = parse_slots(&answer, &address.0).filter(|ranges| !ranges.is_empty())
                    {
                        let next = Arc::new(SlotMap { number: map.number + 1, ranges });
                        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
                        self.stale.store(false, Ordering::Release);
                        self.forget_all_but(&next);
                        return Ok(next);
                    }
                }
                Err(CallError::NotSent(error) | CallError::Sent(error)) => {
                    failure = if is_no_cluster(&error) { no_cluster(&address) } else { error };
                }
            }
            asked.push(address);
        }
        Err(CallError::NotSent(failure))
    }

    fn forget_all_but(&self, map: &SlotMap) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|address, _| map.ranges.iter().any(|(_, _, known)| known == address));
    }
}

fn is_no_cluster(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("cluster support disabled"))
}

fn no_cluster((host, port): &Address) -> RedisError {
    refused(format!("{host}:{port} is no node of a cluster: use redis:// in place of redis+cluster://"))
}

/// The target of a redirection. A node that does not know its own address leaves the host empty: then it is
/// the asked node.
fn redirected(refusal: &RedisError, asked: &Address) -> Option<Address> {
    let (target, _) = refusal.redirect_node()?;
    let (host, port) = target.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((if host.is_empty() { asked.0.clone() } else { host.to_owned() }, port.parse().ok()?))
}

fn owner(map: &SlotMap, slot: u16) -> Result<Address, CallError> {
    map.owner_of(slot).cloned().ok_or_else(|| {
        let error = (ErrorKind::ClusterConnectionNotFound, "no node serves the slot", slot.to_string());
        CallError::NotSent(error.into())
    })
}

/// `[first, last, [host, port, …], replicas…]` for each range.
fn parse_slots(answer: &Value, asked: &str) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = answer else { return None };
    let number = |value: &Value| match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [first, last, Value::Array(primary), ..] = range.as_slice() else { return None };
        let [host, port, ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            _ => asked.to_owned(),
        };
        Some((number(first)?, number(last)?, (host, number(port)?)))
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_server() {
        // As `CLUSTER KEYSLOT` answers.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of(""), 0);
    }

    #[test]
    fn a_node_without_a_name_is_the_one_that_was_asked() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), Value::Nil]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![
            range(0, 99, node(Value::BulkString(b"10.0.0.1".to_vec()), 7000)),
            range(100, 16383, node(Value::Nil, 7001)),
        ]);
        let ranges = parse_slots(&answer, "localhost").unwrap();
        let map = SlotMap { number: 1, ranges };
        assert_eq!(map.owner_of(99), Some(&("10.0.0.1".to_owned(), 7000)));
        assert_eq!(map.owner_of(100), Some(&("localhost".to_owned(), 7001)));
        assert_eq!(parse_slots(&Value::Nil, ""), None);
    }
}

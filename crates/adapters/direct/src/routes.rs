//! Subscriptions here and at the peers, and the routing of published messages to them.
//!
//! Two members may have several connections: two servers dial each other, and one end may notice a broken
//! connection later than the other. A batch goes over one of them: the newest whose peer has announced the
//! address. So no message is delivered twice, and the two sides need not agree on the connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasklane_core::message::Message;
use tasklane_ports::{Address, BusError};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, NewConnection, Parcel};
use crate::frame::{self, MemberId};
use crate::subscription::{SubscriptionBounds, SubscriptionQueue};
use crate::wire;

/// Numbers of lost messages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// Parts of messages that subscriptions of this process were too slow to receive.
    pub dropped_by_subscribers: u64,
    /// Batches that peers were too slow to take.
    pub dropped_by_peers: u64,
    /// Batches that could not be decoded: sent by a newer member, or damaged.
    pub unreadable: u64,
}

/// Connected members: announcements were exchanged both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connected members.
    pub peers: usize,
    /// Connections to them. Two servers that dial each other have two, and use one.
    pub connections: usize,
}

/// Bounds of the routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) message_bytes_max: usize,
    pub(crate) peer_bytes_max: usize,
    pub(crate) subscription: SubscriptionBounds,
    /// How long `subscribe` waits for acknowledgements of peers.
    pub(crate) announce_timeout: Duration,
}

/// What connects publishers, subscriptions and peers.
#[derive(Debug)]
pub(crate) struct Routes {
    own: MemberId,
    bounds: Bounds,
    state: Mutex<RoutingTable>,
    /// Follows `RoutingTable::connections`.
    connected: watch::Sender<ConnectionCounts>,
    /// Cancelled when no new connection may be made.
    leaving: CancellationToken,
    /// Cancelled to break all connections off. The token of each connection is its child.
    closed: CancellationToken,
    dropped_by_subscribers: Arc<AtomicU64>,
    dropped_by_peers: Arc<AtomicU64>,
    unreadable: AtomicU64,
}

#[derive(Debug, Default)]
struct RoutingTable {
    subscriptions: BTreeMap<Address, Vec<Arc<SubscriptionQueue>>>,
    /// By their number.
    connections: BTreeMap<u64, ConnectedMember>,
    next_number: u64,
    /// The connections whose peer has announced an address, the newest first.
    by_address: BTreeMap<Address, Vec<Arc<Connection>>>,
    closed: bool,
}

#[derive(Debug)]
struct ConnectedMember {
    connection: Arc<Connection>,
    /// The addresses that the peer has announced.
    listens: BTreeSet<Address>,
}

/// Why a peer is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UselessPeer {
    #[error("the peer does not keep to the protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer is this member itself")]
    Own,
}

impl Routes {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            own: MemberId::random(),
            bounds,
            state: Mutex::default(),
            connected: watch::Sender::default(),
            leaving: CancellationToken::new(),
            closed: CancellationToken::new(),
            dropped_by_subscribers: Arc::default(),
            dropped_by_peers: Arc::default(),
            unreadable: AtomicU64::new(0),
        }
    }

    pub(crate) fn counters(&self) -> DirectCounters {
        DirectCounters {
            dropped_by_subscribers: self.dropped_by_subscribers.load(Ordering::Relaxed),
            dropped_by_peers: self.dropped_by_peers.load(Ordering::Relaxed),
            unreadable: self.unreadable.load(Ordering::Relaxed),
        }
    }

    /// Passes messages on to all subscriptions of an address. Never waits.
    pub(crate) fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError> {
        let max = self.bounds.message_bytes_max;
        // Local messages are not encoded: an estimate of their size has to do.
        if let Some(size) = messages.iter().map(Message::bytes).find(|size| *size > max) {
            return Err(BusError::TooLarge { size, max });
        }
        let (subscriptions, connections) = {
            let state = lock(&self.state);
            if state.closed {
                return Err(BusError::Closed);
            }
            (state.subscriptions.get(&address).cloned().unwrap_or_default(), state.connections_to(address))
        };
        if messages.is_empty() {
            return Ok(());
        }
        if !connections.is_empty() {
            for piece in frame::encode(&messages, max)? {
                for connection in &connections {
                    connection.put(Parcel { address, messages: piece.clone() });
                }
            }
        }
        deliver(&subscriptions, messages);
        Ok(())
    }

    /// Whether an address has a subscription, here or at a peer.
    pub(crate) fn is_heard(&self, address: Address) -> bool {
        let state = lock(&self.state);
        state.subscriptions.contains_key(&address) || !state.connections_to(address).is_empty()
    }

    /// Opens a subscription. It returns when each prompt peer has acknowledged the announcement, or the time
    /// for that has passed.
    pub(crate) async fn subscribe(self: Arc<Self>, address: Address) -> Result<OpenSubscription, BusError> {
        let (open, to_hear) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(BusError::Closed);
            }
            let subscription = Arc::new(SubscriptionQueue::new(
                address,
                self.bounds.subscription,
                Arc::clone(&self.dropped_by_subscribers),
            ));
            let subscriptions = state.subscriptions.entry(address).or_default();
            subscriptions.push(Arc::clone(&subscription));
            let is_first = subscriptions.len() == 1;
            let tell = |member: &ConnectedMember| {
                let connection = Arc::clone(&member.connection);
                let version = if is_first { connection.change(address, true) } else { connection.version() };
                (connection, version)
            };
            let told: Vec<_> = state.connections.values().map(tell).collect();
            (OpenSubscription { routes: Arc::clone(&self), subscription }, told)
        };
        let deadline = Instant::now() + self.bounds.announce_timeout;
        for (connection, version) in to_hear.into_iter().filter(|(connection, _)| connection.is_prompt()) {
            connection.until_heard(version, deadline).await;
        }
        Ok(open)
    }

    fn unsubscribe(&self, subscription: &Arc<SubscriptionQueue>) {
        let mut state = lock(&self.state);
        let Some(subscriptions) = state.subscriptions.get_mut(&subscription.address) else { return };
        subscriptions.retain(|other| !Arc::ptr_eq(other, subscription));
        if subscriptions.is_empty() {
            state.subscriptions.remove(&subscription.address);
            for member in state.connections.values() {
                member.connection.change(subscription.address, false);
            }
        }
    }

    /// A new connection, still without frames. `None` once the member leaves.
    pub(crate) fn open_connection(&self) -> Option<Arc<Connection>> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.next_number += 1;
        let new = NewConnection {
            number: state.next_number,
            own: self.own,
            bytes_max: self.bounds.peer_bytes_max,
            closed: self.closed.child_token(),
            dropped: Arc::clone(&self.dropped_by_peers),
        };
        let connection = Arc::new(Connection::new(new, state.subscriptions.keys().copied()));
        state.connections.insert(
            connection.number,
            ConnectedMember { connection: Arc::clone(&connection), listens: BTreeSet::new() },
        );
        Some(connection)
    }

    /// Breaks a connection off and forgets it.
    pub(crate) fn close_connection(&self, connection: &Connection) {
        connection.close();
        let mut state = lock(&self.state);
        let Some(member) = state.connections.remove(&connection.number) else { return };
        for address in member.listens {
            state.remove_route(address, connection.number);
        }
        self.tell_connected(&state);
    }

    /// Handles a frame of a peer.
    pub(crate) fn on_frame(
        &self,
        connection: &Arc<Connection>,
        frame: wire::Frame,
    ) -> Result<(), UselessPeer> {
        match frame.hello {
            Some(hello) => self.on_hello(connection, &hello)?,
            None if connection.peer.get().is_none() => return Err(UselessPeer::Protocol("no hello")),
            None => {}
        }
        if let Some(listening) = frame.listening {
            self.on_listening(connection, &listening);
        }
        if frame.heard > 0 && connection.on_heard(frame.heard) {
            self.tell_connected(&lock(&self.state));
        }
        for parcel in frame.parcels {
            self.on_parcel(&parcel);
        }
        Ok(())
    }

    fn on_hello(&self, connection: &Arc<Connection>, hello: &wire::Hello) -> Result<(), UselessPeer> {
        let peer = MemberId::from_hello(hello).ok_or(UselessPeer::Protocol("a member's id is 16 bytes"))?;
        if peer == self.own {
            return Err(UselessPeer::Own);
        }
        connection.peer.set(peer).map_err(|_| UselessPeer::Protocol("hello was said before"))?;
        Ok(())
    }

    fn on_listening(&self, connection: &Arc<Connection>, listening: &wire::Listening) {
        let mut state = lock(&self.state);
        for address in listening.ended.iter().filter_map(frame::from_wire) {
            state.on_ended(connection, address);
        }
        for address in listening.begun.iter().filter_map(frame::from_wire) {
            state.on_begun(connection, address);
        }
        if listening.version > 0 {
            // Under the lock: a publish after the acknowledgement finds the announced addresses.
            connection.acknowledge(listening.version);
        }
    }

    fn on_parcel(&self, parcel: &wire::Parcel) {
        let Some(address) = parcel.address.as_ref().and_then(frame::from_wire) else { return };
        let subscriptions = lock(&self.state).subscriptions.get(&address).cloned().unwrap_or_default();
        // The subscription may have ended meanwhile.
        if subscriptions.is_empty() {
            return;
        }
        match frame::decode(&parcel.messages) {
            Ok(messages) => deliver(&subscriptions, messages),
            Err(error) => {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(?address, %error, "messages cannot be read");
            }
        }
    }

    /// The numbers of connected members and of connections, updated at each change.
    pub(crate) fn connected(&self) -> watch::Receiver<ConnectionCounts> {
        self.connected.subscribe()
    }

    fn tell_connected(&self, state: &RoutingTable) {
        let now = state.connected();
        self.connected.send_if_modified(|told| std::mem::replace(told, now) != now);
    }

    /// Cancelled when no new connection may be made.
    pub(crate) fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Ends subscriptions when they have received their waiting messages, gives peers `patience` to take
    /// their waiting batches, and breaks all connections off.
    pub(crate) async fn close(&self, patience: Duration) {
        let connections: Vec<Arc<Connection>> = {
            let mut state = lock(&self.state);
            state.close_ears();
            state.connections.values().map(|member| Arc::clone(&member.connection)).collect()
        };
        self.leaving.cancel();
        for connection in &connections {
            connection.finish();
        }
        let deadline = Instant::now() + patience;
        for connection in connections {
            // The peer ends its side when it has read to the end of ours.
            let _ = tokio::time::timeout_at(deadline, connection.closed()).await;
        }
        self.closed.cancel();
    }

    /// Ends every subscription and connection immediately.
    pub(crate) fn abandon(&self) {
        lock(&self.state).close_ears();
        self.leaving.cancel();
        self.closed.cancel();
    }
}

impl RoutingTable {
    /// One connection to each member that listens at an address.
    fn connections_to(&self, address: Address) -> Vec<Arc<Connection>> {
        let mut chosen: Vec<Arc<Connection>> = Vec::new();
        for connection in self.by_address.get(&address).into_iter().flatten() {
            if chosen.iter().all(|other| other.peer.get() != connection.peer.get()) {
                chosen.push(Arc::clone(connection));
            }
        }
        chosen
    }

    fn on_begun(&mut self, connection: &Arc<Connection>, address: Address) {
        let Some(member) = self.connections.get_mut(&connection.number) else { return };
        if member.listens.insert(address) {
            let route = self.by_address.entry(address).or_default();
            let at = route.partition_point(|other| other.number > connection.number);
            route.insert(at, Arc::clone(connection));
        }
    }

    fn on_ended(&mut self, connection: &Connection, address: Address) {
        let Some(member) = self.connections.get_mut(&connection.number) else { return };
        if member.listens.remove(&address) {
            self.remove_route(address, connection.number);
        }
    }

    fn remove_route(&mut self, address: Address, number: u64) {
        if let Some(route) = self.by_address.get_mut(&address) {
            route.retain(|connection| connection.number != number);
            if route.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// Counts the members that exchanged announcements with this one.
    fn connected(&self) -> ConnectionCounts {
        let connections = self
            .connections
            .values()
            .map(|member| &member.connection)
            .filter(|connection| connection.is_up());
        let mut peers: Vec<MemberId> =
            connections.filter_map(|connection| connection.peer.get().copied()).collect();
        let connections = peers.len();
        peers.sort_unstable();
        peers.dedup();
        ConnectionCounts { peers: peers.len(), connections }
    }

    fn close_ears(&mut self) {
        self.closed = true;
        for subscription in std::mem::take(&mut self.subscriptions).into_values().flatten() {
            subscription.close();
        }
    }
}

/// A subscription of this process. Closed by dropping it.
#[derive(Debug)]
pub(crate) struct OpenSubscription {
    routes: Arc<Routes>,
    subscription: Arc<SubscriptionQueue>,
}

impl OpenSubscription {
    pub(crate) async fn receive(&self) -> Option<Vec<Message>> {
        self.subscription.receive().await
    }
}

impl Drop for OpenSubscription {
    fn drop(&mut self) {
        self.routes.unsubscribe(&self.subscription);
    }
}

fn deliver(subscriptions: &[Arc<SubscriptionQueue>], messages: Vec<Message>) {
    if let Some((last, others)) = subscriptions.split_last() {
        for subscription in others {
            subscription.put(messages.clone());
        }
        last.put(messages);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

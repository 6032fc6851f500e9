//! The bus over publish and subscribe: a channel for each address.
//!
//! Messages are encoded where they are published and decoded where they are received, so that the connections in between
//! carry bytes alone. What waits for the same channel travels as one payload. A subscription is a bounded queue of
//! payloads that drops its oldest; the connection that fills it never waits, so the server rarely has to cut it off.
//! Where it does, or is restarted, the connection is made anew and what came meanwhile is lost, as any hint may be.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tasklane_core::message::Message;
use tasklane_ports::{Address, Bus, BusCapabilities, BusError, StoreError, Subscription, codec};
use tokio::sync::Notify;

use crate::cluster::slot_of;
use crate::connect::{Purpose, RedisOptions, Server};
use crate::payload::{self, Batch};
use crate::publisher::Publisher;
use crate::subscriber::{ChannelSubscription, Listener, Subscriber};

/// Largest message. A server cuts off who lets 32 MiB wait, so four of them must fit.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Messages that wait for one subscriber. When there are more, the oldest payloads are dropped.
const WAITING_MAX: usize = 1 << 16;
/// Bytes that wait for one subscriber.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Messages that one `receive` gives.
const RECEIVE_MAX: usize = 512;
/// A message with more parts is not added to.
const JOINED_PARTS: usize = 1024;

/// The bus on a Redis server or cluster. Clones are the same bus.
#[derive(Clone, Debug)]
pub struct RedisBus(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    prefix: String,
    subscriber: Subscriber,
    publisher: Publisher,
    /// Open subscriptions, to be told of the end.
    subscriptions: Mutex<Vec<std::sync::Weak<SubscriptionQueue>>>,
    closed: AtomicBool,
}

impl RedisBus {
    /// Opens the bus that a URL names, as [`RedisStore::connect`](crate::RedisStore::connect) does. Must be called within
    /// a tokio runtime.
    pub async fn connect(url: &str, options: &RedisOptions) -> Result<Self, StoreError> {
        let (server, prefix) = Server::connect(url, options, Purpose::Messages).await?;
        let server = Arc::new(server);
        Ok(Self(Arc::new(Inner {
            prefix,
            subscriber: Subscriber::new(Arc::clone(&server)),
            publisher: Publisher::start(server),
            subscriptions: Mutex::default(),
            closed: AtomicBool::new(false),
        })))
    }

    /// Ends all subscriptions once they have received what waits for them. What waits to be sent is sent.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.publisher.close();
        for subscription in
            lock(&self.0.subscriptions).drain(..).filter_map(|subscription| subscription.upgrade())
        {
            subscription.closed.store(true, Ordering::Release);
            subscription.woken.notify_one();
        }
    }
}

/// The channel of an address and its slot. In a cluster each has a place of its own, a lane's beside its data.
pub(crate) fn channel_of(prefix: &str, address: Address) -> (String, u16) {
    let tag = match address {
        Address::Lane(lane) => format!("{prefix}:{lane}"),
        Address::Session(session) => format!("{prefix}:session:{}", session.0.simple()),
        Address::Events => format!("{prefix}:events"),
        Address::Stats => format!("{prefix}:stats"),
        Address::Servers => format!("{prefix}:servers"),
    };
    (format!("{{{tag}}}:bus"), slot_of(&tag))
}

impl Inner {
    fn put(&self, address: Address, messages: &[Message]) -> Result<(), BusError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BusError::Closed);
        }
        let mut batch = Batch::default();
        for message in messages {
            let encoded = codec::encode(message);
            if encoded.len() > MESSAGE_BYTES_MAX {
                return Err(BusError::TooLarge { size: encoded.len(), max: MESSAGE_BYTES_MAX });
            }
            batch.add(&encoded);
        }
        if messages.is_empty() {
            return Ok(());
        }
        let (channel, slot) = channel_of(&self.prefix, address);
        self.publisher.put(channel, slot, batch);
        Ok(())
    }
}

#[async_trait]
impl Bus for RedisBus {
    fn capabilities(&self) -> BusCapabilities {
        BusCapabilities { message_bytes_max: MESSAGE_BYTES_MAX }
    }

    /// Never waits for the server. An error says that what was sent last did not go through; this is tried all the same.
    async fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError> {
        self.0.put(address, &messages)?;
        match self.0.publisher.failure() {
            Some(error) => Err(BusError::Unavailable { source: error.into() }),
            None => Ok(()),
        }
    }

    fn publish_now(&self, address: Address, message: Message) -> Option<Message> {
        // What is refused is lost, as any message may be.
        let _ = self.0.put(address, &[message]);
        None
    }

    async fn subscribe(&self, address: Address) -> Result<Box<dyn Subscription>, BusError> {
        if self.0.closed.load(Ordering::Acquire) {
            return Err(BusError::Closed);
        }
        let subscription = Arc::new(SubscriptionQueue::default());
        {
            let mut subscriptions = lock(&self.0.subscriptions);
            subscriptions.retain(|subscription| subscription.strong_count() > 0);
            subscriptions.push(Arc::downgrade(&subscription));
        }
        let (channel, slot) = channel_of(&self.0.prefix, address);
        let listener: Arc<dyn Listener> = Arc::clone(&subscription) as _;
        let (listening, confirmed) = self.0.subscriber.listen(&channel, slot, listener);
        match confirmed.await {
            Ok(Ok(())) => Ok(Box::new(RedisSubscription {
                address,
                subscription,
                decoded: VecDeque::new(),
                _subscription: listening,
            })),
            Ok(Err(error)) => Err(BusError::Unavailable { source: error.into() }),
            Err(_) => Err(BusError::Unavailable { source: "the subscription was given up".into() }),
        }
    }
}

/// What one subscription has not yet received.
#[derive(Debug, Default)]
struct SubscriptionQueue {
    waiting: Mutex<PendingPayloads>,
    /// Set once; together with `woken` it ends a `receive`.
    closed: AtomicBool,
    woken: Notify,
}

#[derive(Debug, Default)]
struct PendingPayloads {
    payloads: VecDeque<Arc<Vec<u8>>>,
    /// In all of them.
    messages: usize,
    bytes: usize,
}

impl PendingPayloads {
    fn put(&mut self, payload: Arc<Vec<u8>>) {
        self.messages += payload::len(&payload);
        self.bytes += payload.len();
        self.payloads.push_back(payload);
        while (self.messages > WAITING_MAX || self.bytes > WAITING_BYTES_MAX) && self.payloads.len() > 1 {
            self.take();
        }
    }

    fn take(&mut self) -> Option<Arc<Vec<u8>>> {
        let payload = self.payloads.pop_front()?;
        self.messages -= payload::len(&payload);
        self.bytes -= payload.len();
        Some(payload)
    }
}

impl Listener for SubscriptionQueue {
    fn hear(&self, payload: &Arc<Vec<u8>>) {
        lock(&self.waiting).put(Arc::clone(payload));
        self.woken.notify_one();
    }

    fn resumed(&self) {}
}

struct RedisSubscription {
    address: Address,
    subscription: Arc<SubscriptionQueue>,
    /// Of a payload with more messages than one `receive` gives.
    decoded: VecDeque<Message>,
    _subscription: ChannelSubscription,
}

impl fmt::Debug for RedisSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSubscription").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Subscription for RedisSubscription {
    async fn receive(&mut self) -> Option<Vec<Message>> {
        loop {
            while self.decoded.len() < RECEIVE_MAX
                && let Some(payload) = lock(&self.subscription.waiting).take()
            {
                for message in payload::messages(&payload) {
                    put(&mut self.decoded, message);
                }
            }
            if !self.decoded.is_empty() {
                let taken = self.decoded.len().min(RECEIVE_MAX);
                return Some(self.decoded.drain(..taken).collect());
            }
            if self.subscription.closed.load(Ordering::Acquire) {
                return None;
            }
            self.subscription.woken.notified().await;
        }
    }
}

/// A slow subscriber hears all that came from one sender at once, so that it catches up.
fn put(messages: &mut VecDeque<Message>, message: Message) {
    let apart = match messages.back_mut().filter(|last| last.parts() < JOINED_PARTS) {
        Some(last) => last.join(message),
        None => Some(message),
    };
    messages.extend(apart);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::LaneId;

    use super::*;

    fn payload(lanes: std::ops::Range<u16>) -> Arc<Vec<u8>> {
        let mut batch = Batch::default();
        for lane in lanes {
            batch.add(&codec::encode(&Message::Hint { lane: LaneId(lane) }));
        }
        Arc::new(batch.payload())
    }

    #[test]
    fn too_many_messages_push_the_oldest_out() {
        let mut waiting = PendingPayloads::default();
        let many = u16::try_from(WAITING_MAX / 8).unwrap();
        for _ in 0..20 {
            waiting.put(payload(0..many));
        }
        assert_eq!((waiting.payloads.len(), waiting.messages), (8, WAITING_MAX));
        // One alone is kept, whatever its size.
        let large = payload(0..u16::MAX);
        waiting.put(Arc::clone(&large));
        waiting.put(Arc::clone(&large));
        assert_eq!(waiting.payloads.len(), 1);
        assert_eq!(waiting.take(), Some(large));
        assert_eq!((waiting.messages, waiting.bytes), (0, 0));
    }

    #[test]
    fn too_many_bytes_push_the_oldest_out() {
        let mut waiting = PendingPayloads::default();
        for _ in 0..20 {
            waiting.put(Arc::new(vec![0; 8 << 20]));
        }
        assert_eq!(waiting.payloads.len(), 8);
    }
}

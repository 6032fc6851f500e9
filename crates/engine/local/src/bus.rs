//! The bus within a process: each subscription is a bounded queue that drops its oldest messages.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tasklane_core::message::Message;
use tasklane_ports::{Address, Bus, BusCapabilities, BusError, Subscription};
use tokio::sync::Notify;

/// Bounds of a [`LocalBus`].
#[derive(Clone, Copy, Debug)]
pub struct LocalBusOptions {
    /// Parts of messages that wait for one subscriber. When there are more, the oldest messages are dropped.
    pub waiting_max: usize,
    /// Messages that one `receive` gives.
    pub receive_max: usize,
    /// Largest message. Estimated from bodies and results, since nothing is encoded here.
    pub message_bytes_max: usize,
}

impl Default for LocalBusOptions {
    fn default() -> Self {
        Self { waiting_max: 1 << 16, receive_max: 512, message_bytes_max: 8 << 20 }
    }
}

/// Carries messages within a process. Clones are the same bus.
#[derive(Clone)]
pub struct LocalBus {
    options: LocalBusOptions,
    subscriptions: Arc<Mutex<Subscriptions>>,
}

#[derive(Default)]
struct Subscriptions {
    by_address: BTreeMap<Address, Vec<Arc<SubscriptionQueue>>>,
    closed: bool,
}

/// What one subscription has not yet received.
#[derive(Default)]
struct SubscriptionQueue {
    waiting: Mutex<PendingMessages>,
    /// Set once; together with `woken` it ends a `receive`.
    closed: std::sync::atomic::AtomicBool,
    woken: Notify,
}

#[derive(Default)]
struct PendingMessages {
    messages: VecDeque<Message>,
    /// In all of them.
    parts: usize,
}

/// A message with more parts is not added to.
const JOINED_PARTS: usize = 1024;

impl LocalBus {
    /// A bus without subscriptions.
    pub fn new(options: LocalBusOptions) -> Self {
        Self { options, subscriptions: Arc::default() }
    }

    /// Ends all subscriptions once they have received what waits for them.
    pub fn close(&self) {
        let mut subscriptions = lock(&self.subscriptions);
        subscriptions.closed = true;
        for subscription in std::mem::take(&mut subscriptions.by_address).into_values().flatten() {
            subscription.closed.store(true, std::sync::atomic::Ordering::Release);
            subscription.woken.notify_one();
        }
    }
}

impl Default for LocalBus {
    fn default() -> Self {
        Self::new(LocalBusOptions::default())
    }
}

impl fmt::Debug for LocalBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBus").field("options", &self.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Bus for LocalBus {
    fn capabilities(&self) -> BusCapabilities {
        BusCapabilities { message_bytes_max: self.options.message_bytes_max }
    }

    async fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError> {
        self.put(address, messages)
    }

    fn publish_now(&self, address: Address, message: Message) -> Option<Message> {
        // A refused message is lost, as any message may be.
        let _ = self.put(address, vec![message]);
        None
    }

    async fn subscribe(&self, address: Address) -> Result<Box<dyn Subscription>, BusError> {
        let mut subscriptions = lock(&self.subscriptions);
        if subscriptions.closed {
            return Err(BusError::Closed);
        }
        let subscription = Arc::new(SubscriptionQueue::default());
        subscriptions.by_address.entry(address).or_default().push(Arc::clone(&subscription));
        Ok(Box::new(LocalSubscription { bus: self.clone(), address, subscription }))
    }
}

impl LocalBus {
    fn put(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError> {
        let max = self.options.message_bytes_max;
        if let Some(size) = messages.iter().map(Message::bytes).find(|size| *size > max) {
            return Err(BusError::TooLarge { size, max });
        }
        let listening = {
            let subscriptions = lock(&self.subscriptions);
            if subscriptions.closed {
                return Err(BusError::Closed);
            }
            subscriptions.by_address.get(&address).cloned().unwrap_or_default()
        };
        if let Some((last, others)) = listening.split_last() {
            for subscription in others {
                subscription.put(messages.clone(), self.options.waiting_max);
            }
            last.put(messages, self.options.waiting_max);
        }
        Ok(())
    }
}

impl SubscriptionQueue {
    fn put(&self, messages: Vec<Message>, waiting_max: usize) {
        let mut waiting = lock(&self.waiting);
        for message in messages {
            waiting.put(message);
        }
        while waiting.parts > waiting_max && waiting.messages.len() > 1 {
            waiting.take();
        }
        drop(waiting);
        self.woken.notify_one();
    }
}

impl PendingMessages {
    /// A slow subscriber receives all waiting messages of one sender together, so that it catches up.
    fn put(&mut self, message: Message) {
        self.parts += message.parts();
        let last = self.messages.back_mut().filter(|last| last.parts() < JOINED_PARTS);
        let apart = match last {
            Some(last) => last.join(message),
            None => Some(message),
        };
        self.messages.extend(apart);
    }

    fn take(&mut self) -> Option<Message> {
        let taken = self.messages.pop_front()?;
        self.parts -= taken.parts();
        Some(taken)
    }
}

struct LocalSubscription {
    bus: LocalBus,
    address: Address,
    subscription: Arc<SubscriptionQueue>,
}

impl fmt::Debug for LocalSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSubscription").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Subscription for LocalSubscription {
    async fn receive(&mut self) -> Option<Vec<Message>> {
        loop {
            {
                let mut waiting = lock(&self.subscription.waiting);
                let taken: Vec<Message> =
                    std::iter::from_fn(|| waiting.take()).take(self.bus.options.receive_max).collect();
                if !taken.is_empty() {
                    return Some(taken);
                }
            }
            if self.subscription.closed.load(std::sync::atomic::Ordering::Acquire) {
                return None;
            }
            self.subscription.woken.notified().await;
        }
    }
}

impl Drop for LocalSubscription {
    fn drop(&mut self) {
        let mut subscriptions = lock(&self.bus.subscriptions);
        if let Some(listening) = subscriptions.by_address.get_mut(&self.address) {
            listening.retain(|subscription| !Arc::ptr_eq(subscription, &self.subscription));
            if listening.is_empty() {
                subscriptions.by_address.remove(&self.address);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::{DispatchNo, Epoch, LaneId, SessionId};
    use tasklane_core::message::{ToLane, WorkerBatch};

    use super::*;

    fn hint(lane: u16) -> Message {
        Message::Hint { lane: LaneId(lane) }
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_the_oldest() {
        let bus = LocalBus::new(LocalBusOptions { waiting_max: 3, receive_max: 2, ..Default::default() });
        let mut slow = bus.subscribe(Address::Events).await.unwrap();
        for lane in 0..5 {
            bus.publish(Address::Events, vec![hint(lane)]).await.unwrap();
        }
        assert_eq!(slow.receive().await, Some(vec![hint(2), hint(3)]));
        assert_eq!(slow.receive().await, Some(vec![hint(4)]));
    }

    #[tokio::test]
    async fn what_one_worker_says_to_one_lane_is_heard_at_once() {
        let bus = LocalBus::new(LocalBusOptions { waiting_max: 3, ..Default::default() });
        let mut lane = bus.subscribe(Address::Lane(LaneId(1))).await.unwrap();
        let said = |by: u128, parts: usize| {
            let credit =
                ToLane::Credit { epoch: Epoch(1), credit: DispatchNo(1), load: 0, answered: DispatchNo(0) };
            let session = SessionId::from_random(by);
            Message::ToLane(WorkerBatch { lane: LaneId(1), session, messages: vec![credit; parts] })
        };
        for by in [1, 1, 2] {
            bus.publish(Address::Lane(LaneId(1)), vec![said(by, 1)]).await.unwrap();
        }
        assert_eq!(lane.receive().await, Some(vec![said(1, 2), said(2, 1)]));
        bus.publish(Address::Lane(LaneId(1)), vec![said(1, 2), said(2, 2)]).await.unwrap();
        assert_eq!(lane.receive().await, Some(vec![said(2, 2)]));
    }

    #[tokio::test]
    async fn closing_ends_subscriptions_after_what_waits() {
        let bus = LocalBus::default();
        let mut subscription = bus.subscribe(Address::Events).await.unwrap();
        bus.publish(Address::Events, vec![hint(1)]).await.unwrap();
        bus.close();
        assert_eq!(subscription.receive().await, Some(vec![hint(1)]));
        assert_eq!(subscription.receive().await, None);
        assert!(matches!(bus.publish(Address::Events, vec![hint(1)]).await, Err(BusError::Closed)));
    }

    #[tokio::test]
    async fn a_dropped_subscription_is_forgotten() {
        let bus = LocalBus::default();
        drop(bus.subscribe(Address::Events).await.unwrap());
        assert!(lock(&bus.subscriptions).by_address.is_empty());
    }
}

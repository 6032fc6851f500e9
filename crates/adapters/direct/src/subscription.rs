//! Subscriptions of this process: each is a bounded queue that drops its oldest messages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tasklane_core::message::Message;
use tasklane_ports::Address;
use tokio::sync::Notify;

use crate::routes::lock;

/// A message with this many parts takes no further ones,
const JOINED_PARTS: usize = 1024;
/// and neither does a message of this size.
const JOINED_BYTES: usize = 1 << 20;

/// Bounds of one subscription's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriptionBounds {
    /// Parts of messages.
    pub(crate) parts: usize,
    /// About as many bytes.
    pub(crate) bytes: usize,
    /// Messages that one `receive` gives.
    pub(crate) at_once: usize,
}

/// What one subscription has not yet received.
#[derive(Debug)]
pub(crate) struct SubscriptionQueue {
    pub(crate) address: Address,
    bounds: SubscriptionBounds,
    waiting: Mutex<PendingMessages>,
    /// Set once; together with `woken` it ends a `receive`.
    closed: AtomicBool,
    woken: Notify,
    /// Of all subscriptions together.
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct PendingMessages {
    messages: VecDeque<MeasuredMessage>,
    /// In all of them.
    parts: usize,
    bytes: usize,
    /// Parts dropped since the last take.
    dropped: u64,
}

/// Measuring a message reads all of its parts, so it is done once.
#[derive(Debug)]
struct MeasuredMessage {
    message: Message,
    bytes: usize,
}

impl SubscriptionQueue {
    pub(crate) fn new(address: Address, bounds: SubscriptionBounds, dropped: Arc<AtomicU64>) -> Self {
        Self {
            address,
            bounds,
            waiting: Mutex::default(),
            closed: AtomicBool::new(false),
            woken: Notify::new(),
            dropped,
        }
    }

    /// Adds messages, and makes room by dropping the oldest. Never waits.
    pub(crate) fn put(&self, messages: Vec<Message>) {
        let mut waiting = lock(&self.waiting);
        for message in messages {
            waiting.put(message);
        }
        let too_much = |waiting: &PendingMessages| {
            waiting.parts > self.bounds.parts || waiting.bytes > self.bounds.bytes
        };
        let mut dropped = 0;
        while too_much(&waiting) && waiting.messages.len() > 1 {
            dropped += waiting.take().map_or(0, |message| message.parts() as u64);
        }
        waiting.dropped += dropped;
        drop(waiting);
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.woken.notify_one();
    }

    /// Waits for messages. `None` when the subscription is closed and empty.
    pub(crate) async fn receive(&self) -> Option<Vec<Message>> {
        loop {
            if let Some(taken) = self.take() {
                return Some(taken);
            }
            if self.closed.load(Ordering::Acquire) {
                // Messages from just before the closing.
                return self.take();
            }
            self.woken.notified().await;
        }
    }

    fn take(&self) -> Option<Vec<Message>> {
        let mut waiting = lock(&self.waiting);
        let taken: Vec<Message> = std::iter::from_fn(|| waiting.take()).take(self.bounds.at_once).collect();
        let dropped = std::mem::take(&mut waiting.dropped);
        drop(waiting);
        if dropped > 0 {
            tracing::debug!(address = ?self.address, dropped, "a slow subscriber has lost messages");
        }
        (!taken.is_empty()).then_some(taken)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.woken.notify_one();
    }
}

impl PendingMessages {
    /// Joins a message to the last one where it fits, so that a slow subscriber catches up.
    fn put(&mut self, message: Message) {
        let bytes = message.bytes();
        self.parts += message.parts();
        self.bytes += bytes;
        let fits = |last: &&mut MeasuredMessage| {
            last.message.parts() < JOINED_PARTS && last.bytes.saturating_add(bytes) <= JOINED_BYTES
        };
        let message = match self.messages.back_mut().filter(fits) {
            Some(last) => match last.message.join(message) {
                None => {
                    last.bytes += bytes;
                    return;
                }
                Some(apart) => apart,
            },
            None => message,
        };
        self.messages.push_back(MeasuredMessage { message, bytes });
    }

    fn take(&mut self) -> Option<Message> {
        let MeasuredMessage { message, bytes } = self.messages.pop_front()?;
        self.parts -= message.parts();
        self.bytes -= bytes;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::{AttemptNo, LaneId, SessionId, TaskId};
    use tasklane_core::message::{AttemptId, Report, ToLane, WorkerBatch};

    use super::*;

    fn subscription(parts: usize, bytes: usize) -> SubscriptionQueue {
        SubscriptionQueue::new(
            Address::Events,
            SubscriptionBounds { parts, bytes, at_once: 2 },
            Arc::default(),
        )
    }

    fn hint(lane: u16) -> Message {
        Message::Hint { lane: LaneId(lane) }
    }

    fn said(by: u128, bytes: usize) -> Message {
        let attempt = AttemptId { task: TaskId::from_random(7), number: AttemptNo(1) };
        let report = ToLane::Report { attempt, report: Report::HandedBack { reason: "x".repeat(bytes) } };
        let session = SessionId::from_random(by);
        Message::ToLane(WorkerBatch { lane: LaneId(1), session, messages: vec![report] })
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_the_oldest_and_they_are_counted() {
        let subscription = subscription(3, usize::MAX);
        for lane in 0..5 {
            subscription.put(vec![hint(lane)]);
        }
        assert_eq!(subscription.receive().await, Some(vec![hint(2), hint(3)]));
        assert_eq!(subscription.receive().await, Some(vec![hint(4)]));
        assert_eq!(subscription.dropped.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn large_messages_are_fewer() {
        let subscription = subscription(100, 1_000);
        for by in 0..3 {
            subscription.put(vec![said(by, 400)]);
        }
        assert_eq!(subscription.receive().await, Some(vec![said(1, 400), said(2, 400)]));
        subscription.put(vec![said(9, 5_000)]);
        assert_eq!(subscription.receive().await, Some(vec![said(9, 5_000)]), "the last one always has room");
    }

    #[tokio::test]
    async fn what_one_worker_says_is_heard_at_once() {
        let subscription = subscription(100, 1_000);
        subscription.put(vec![said(1, 1), said(1, 1), said(2, 1)]);
        let heard = subscription.receive().await.unwrap();
        assert_eq!(heard.iter().map(Message::parts).collect::<Vec<_>>(), [2, 1]);
    }

    #[tokio::test]
    async fn closing_ends_it_after_what_waits() {
        let subscription = subscription(3, 1_000);
        subscription.put(vec![hint(1)]);
        subscription.close();
        assert_eq!(subscription.receive().await, Some(vec![hint(1)]));
        assert_eq!(subscription.receive().await, None);
        assert_eq!(subscription.receive().await, None);
    }
}

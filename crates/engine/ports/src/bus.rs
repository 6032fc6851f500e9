//! The bus: carries hints between members.

use async_trait::async_trait;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::message::Message;

use crate::BusError;

/// Carries messages, best effort: it may lose, repeat and reorder them. A message that must arrive never
/// travels here alone.
///
/// Promises:
/// 1. A message published while a subscription is open usually reaches it, whole and unchanged.
/// 2. Every subscription of an address gets every message.
/// 3. A subscription gets nothing that was published for another address.
/// 4. A slow subscriber loses messages; it never delays a publisher or another subscriber, and its queue is
///    bounded.
/// 5. `publish` refuses a message that is too large, and then sends nothing of its batch.
#[async_trait]
pub trait Bus: Send + Sync + std::fmt::Debug {
    /// The limits of this bus.
    fn capabilities(&self) -> BusCapabilities;

    /// Sends messages to all subscribers of an address.
    async fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError>;

    /// Sends a message if that needs no waiting; otherwise returns it unsent. As with
    /// [`publish`](Self::publish), the message may reach no subscriber.
    fn publish_now(&self, address: Address, message: Message) -> Option<Message> {
        let _ = address;
        Some(message)
    }

    /// Whether an address may have subscribers. A publisher skips its messages where it has none; a bus that
    /// does not know answers true.
    fn is_heard(&self, address: Address) -> bool {
        let _ = address;
        true
    }

    /// Subscribes to an address. The subscription can receive every message published after this call has
    /// returned.
    async fn subscribe(&self, address: Address) -> Result<Box<dyn Subscription>, BusError>;
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// To the owner of a lane.
    Lane(LaneId),
    /// To a worker or server session.
    Session(SessionId),
    /// To followers of task events.
    Events,
    /// To followers of worker statistics.
    Stats,
    /// To workers that look for servers.
    Servers,
}

/// The limits of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCapabilities {
    /// Largest message, encoded.
    pub message_bytes_max: usize,
}

/// An open subscription. Closed by dropping it.
#[async_trait]
pub trait Subscription: Send + std::fmt::Debug {
    /// Waits for messages and takes all waiting ones, up to a bound. `None` when the bus was closed. Safe to
    /// cancel.
    async fn receive(&mut self) -> Option<Vec<Message>>;
}

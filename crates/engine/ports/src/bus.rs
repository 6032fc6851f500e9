//! The bus: carries hints between members.

use async_trait::async_trait;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::message::Message;

use crate::BusError;

/// Carries messages, best effort: it may lose, repeat and reorder them. Nothing that must not be lost travels here
/// alone.
///
/// Promises:
/// 1. A message published while a subscription is open usually reaches it, whole and unchanged.
/// 2. Every subscription of an address gets every message.
/// 3. A subscription gets nothing that was published for another address.
/// 4. A slow subscriber loses messages; it never slows a publisher or another subscriber down, nor grows without bound.
/// 5. A message that is too large is refused by `publish`, and nothing of its batch is sent.
#[async_trait]
pub trait Bus: Send + Sync + std::fmt::Debug {
    /// What this bus can take.
    fn capabilities(&self) -> BusCapabilities;

    /// Sends messages to all who listen at an address.
    async fn publish(&self, address: Address, messages: Vec<Message>) -> Result<(), BusError>;

    /// Sends a message where that needs no waiting; else gives it back, and nothing was sent. As with
    /// [`publish`](Self::publish), nobody may hear of it.
    fn publish_now(&self, address: Address, message: Message) -> Option<Message> {
        let _ = address;
        Some(message)
    }

    /// Whether anybody may hear what is published for an address. Lets whoever has much to say keep it to itself; a bus
    /// that does not know says yes.
    fn is_heard(&self, address: Address) -> bool {
        let _ = address;
        true
    }

    /// Listens at an address. What is published after this returns can be received.
    async fn subscribe(&self, address: Address) -> Result<Box<dyn Subscription>, BusError>;
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// To the owner of a lane.
    Lane(LaneId),
    /// To a worker or server session.
    Session(SessionId),
    /// To whoever follows what becomes of tasks.
    Events,
    /// To whoever follows how workers are doing.
    Stats,
    /// To workers that have to find servers.
    Servers,
}

/// What a bus can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCapabilities {
    /// Largest message, encoded.
    pub message_bytes_max: usize,
}

/// An open subscription. Closed by dropping it.
#[async_trait]
pub trait Subscription: Send + std::fmt::Debug {
    /// Waits for messages and takes all that are there, up to a bound. `None` when the bus was closed. Safe to cancel.
    async fn receive(&mut self) -> Option<Vec<Message>>;
}

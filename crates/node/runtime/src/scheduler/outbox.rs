//! Sends messages in their order, so that a slow bus never holds a machine up.

use std::sync::Arc;

use tasklane_core::message::Message;
use tasklane_ports::{Address, Bus, BusError};
use tokio::sync::mpsc;

/// Batches that wait to be sent. More are dropped: the machines say again what matters.
const WAITING_MAX: usize = 1024;

/// The way out.
#[derive(Clone, Debug)]
pub(crate) struct Outbox(mpsc::Sender<(Address, Vec<Message>)>);

impl Outbox {
    /// Sends over `bus` until the last handle is gone.
    pub(crate) fn start(bus: Arc<dyn Bus>) -> Self {
        let (sender, mut waiting) = mpsc::channel::<(Address, Vec<Message>)>(WAITING_MAX);
        tokio::spawn(async move {
            while let Some((address, messages)) = waiting.recv().await {
                match bus.publish(address, messages).await {
                    Ok(()) => {}
                    Err(BusError::Closed) => break,
                    Err(error) => tracing::debug!(%error, ?address, "messages were not sent"),
                }
            }
        });
        Self(sender)
    }

    /// Sends, or drops when too much is waiting.
    pub(crate) fn send(&self, address: Address, messages: Vec<Message>) {
        if self.0.try_send((address, messages)).is_err() {
            tracing::debug!(?address, "the bus is too slow, messages were dropped");
        }
    }
}

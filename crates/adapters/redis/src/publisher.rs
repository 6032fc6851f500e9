//! Publishing without waiting: one task sends the queued payloads, one for each channel at a time.
//!
//! While a payload is on its way, further messages for its channel gather and travel as the next one; so the
//! slower the server, the larger the payloads. Payloads that are ready for several channels of a server
//! travel in one call. Channels do not wait for each other: a cluster node that does not answer delays only
//! its own channels. A payload that was not sent, or got no answer, is dropped.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::connect::{Server, Traffic};
use crate::error::CallError;
use crate::payload::Batch;
use crate::script::SCRIPTS;

/// A payload of this size takes no further messages.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Most bytes that wait in all channels. Messages beyond that are dropped.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The publishing task. When it is dropped, the queued payloads are still sent.
#[derive(Debug)]
pub(crate) struct Publisher(Arc<PublisherShared>);

struct PublisherShared {
    state: Mutex<PublisherState>,
    woken: Notify,
}

#[derive(Default)]
struct PublisherState {
    channels: HashMap<String, Channel>,
    /// Channels with a payload to send and none on its way.
    ready: Vec<String>,
    /// Bytes that wait in all channels.
    bytes: usize,
    /// The error of the last payload, if it failed.
    failure: Option<String>,
    closed: bool,
}

struct Channel {
    slot: u16,
    /// Payloads, the oldest first.
    waiting: std::collections::VecDeque<Batch>,
}

impl fmt::Debug for PublisherShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherShared").field("bytes", &self.lock().bytes).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Sends over `server` until it is dropped. Must be called within a tokio runtime.
    pub(crate) fn start(server: Arc<Server>) -> Self {
        let shared = Arc::new(PublisherShared { state: Mutex::default(), woken: Notify::new() });
        tokio::spawn(run(server, Arc::clone(&shared)));
        Self(shared)
    }

    /// Queues a batch, or drops it when too much is waiting.
    pub(crate) fn put(&self, channel: String, slot: u16, batch: Batch) {
        if self.0.lock().put(channel, slot, batch) {
            self.0.woken.notify_one();
        }
    }

    /// The error of the last payload, if it failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.lock().failure.clone()
    }

    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        self.0.woken.notify_one();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

impl PublisherShared {
    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublisherState {
    /// Queues a batch. Answers whether its channel is newly ready.
    fn put(&mut self, name: String, slot: u16, batch: Batch) -> bool {
        let bytes = batch.bytes();
        if self.bytes + bytes > WAITING_BYTES_MAX && self.bytes > 0 {
            return false;
        }
        self.bytes += bytes;
        if let Some(channel) = self.channels.get_mut(&name) {
            match channel.waiting.back_mut().filter(|last| last.bytes() + bytes <= PAYLOAD_BYTES) {
                Some(last) => last.append(&batch),
                None => channel.waiting.push_back(batch),
            }
            return false;
        }
        self.ready.push(name.clone());
        self.channels.insert(name, Channel { slot, waiting: [batch].into() });
        true
    }

    /// Takes the next payload of a channel. A channel without payloads is forgotten.
    fn next(&mut self, name: &str) -> Option<(u16, Batch)> {
        let channel = self.channels.get_mut(name)?;
        if let Some(batch) = channel.waiting.pop_front() {
            self.bytes -= batch.bytes();
            return Some((channel.slot, batch));
        }
        self.channels.remove(name);
        None
    }
}

type SendFuture = BoxFuture<'static, (Vec<String>, Result<(), CallError>)>;

async fn run(server: Arc<Server>, shared: Arc<PublisherShared>) {
    let mut under_way: FuturesUnordered<SendFuture> = FuturesUnordered::new();
    loop {
        // A busy caller often publishes more within the same turn.
        tokio::task::yield_now().await;
        let (ready, closed) = {
            let mut state = shared.lock();
            (std::mem::take(&mut state.ready), state.closed)
        };
        start_next(&server, &shared, ready, &mut under_way);
        if closed && under_way.is_empty() {
            return;
        }
        tokio::select! {
            Some((names, sent)) = under_way.next() => {
                shared.lock().failure = sent.err().map(|error| error.to_string());
                start_next(&server, &shared, names, &mut under_way);
            }
            () = shared.woken.notified() => {}
        }
    }
}

/// Sends the next payloads of channels that have none on its way.
fn start_next(
    server: &Arc<Server>,
    shared: &PublisherShared,
    names: Vec<String>,
    under_way: &mut FuturesUnordered<SendFuture>,
) {
    let mut calls: Vec<Vec<Payload>> = Vec::new();
    {
        let mut state = shared.lock();
        let mut bytes = 0;
        for name in names {
            let Some((slot, batch)) = state.next(&name) else { continue };
            bytes += batch.bytes();
            let payload = Payload { name, slot, batch };
            match calls.last_mut() {
                Some(call) if !server.is_cluster() && bytes <= PAYLOAD_BYTES => call.push(payload),
                _ => {
                    bytes = payload.batch.bytes();
                    calls.push(vec![payload]);
                }
            }
        }
    }
    for call in calls {
        under_way.push(Box::pin(send(Arc::clone(server), call)));
    }
}

/// A payload for one channel.
struct Payload {
    name: String,
    slot: u16,
    batch: Batch,
}

/// Sends payloads in one call: several only without a cluster.
async fn send(server: Arc<Server>, payloads: Vec<Payload>) -> (Vec<String>, Result<(), CallError>) {
    let sent = match &*payloads {
        [Payload { name, slot, batch }] => {
            let mut command = redis::cmd(if server.is_cluster() { "SPUBLISH" } else { "PUBLISH" });
            command.arg(name).arg(batch.payload());
            server.call(*slot, Traffic::Lane, &command).await
        }
        several => {
            let script = &SCRIPTS.publish;
            let mut call = script.call(std::iter::empty());
            for Payload { name, batch, .. } in several {
                call.arg(name).arg(batch.payload());
            }
            let slot = several.first().map_or(0, |payload| payload.slot);
            server.run(script, slot, Traffic::Lane, &call).await
        }
    };
    (payloads.into_iter().map(|payload| payload.name).collect(), sent.map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(bytes: usize) -> Batch {
        let mut batch = Batch::default();
        batch.add(&vec![0; bytes - 4]);
        batch
    }

    fn put(state: &mut PublisherState, name: &str, bytes: usize) -> bool {
        state.put(name.to_owned(), 7, batch(bytes))
    }

    #[test]
    fn what_waits_for_a_channel_travels_together() {
        let mut state = PublisherState::default();
        assert!(put(&mut state, "a", 100));
        assert!(put(&mut state, "b", 100));
        assert_eq!(std::mem::take(&mut state.ready), ["a", "b"]);
        assert_eq!(state.next("a"), Some((7, batch(100))));
        // The first is on its way.
        assert!(!put(&mut state, "a", 200));
        assert!(!put(&mut state, "a", 300));
        let (_, both) = state.next("a").unwrap();
        assert_eq!(both.bytes(), 500);
        assert_eq!(state.next("a"), None);
        assert_eq!((state.bytes, state.channels.len()), (100, 1));
        assert!(put(&mut state, "a", 100), "the channel is ready again");
    }

    #[test]
    fn payloads_and_what_waits_are_bounded() {
        let mut state = PublisherState::default();
        for _ in 0..100 {
            put(&mut state, "a", PAYLOAD_BYTES);
        }
        assert_eq!(state.bytes, WAITING_BYTES_MAX);
        assert_eq!(state.channels["a"].waiting.len(), 64);
        // A payload of any size is sent when no other waits.
        let mut state = PublisherState::default();
        assert!(put(&mut state, "a", WAITING_BYTES_MAX + 1));
        assert!(!put(&mut state, "b", 100));
    }
}

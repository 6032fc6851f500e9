//! Sends messages in their order, so that a slow bus never holds a machine up.
//!
//! Messages for the same receiver are sent together: the slower the bus, the larger the batches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tasklane_core::message::{Message, OwnerBatch, ToLane, ToWorker, WorkerBatch};
use tasklane_ports::{Address, Bus, BusError};
use tokio::sync::Notify;

/// Parts of messages that wait to be sent. More are dropped: the machines repeat important messages.
const WAITING_MAX: usize = 64 << 10;
/// A batch of this many bytes takes no more messages, …
const BATCH_BYTES: usize = 256 << 10;
/// … nor does a batch of this many parts.
const BATCH_PARTS: usize = 8 << 10;

/// The outbox of a driver. After it is dropped, it sends its remaining messages and ends.
#[derive(Debug)]
pub(crate) struct Outbox(Arc<OutboxInner>);

#[derive(Debug)]
struct OutboxInner {
    bus: Arc<dyn Bus>,
    state: Mutex<OutboxQueue>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct OutboxQueue {
    waiting: VecDeque<QueuedMessage>,
    /// Parts in all of them.
    parts: usize,
    /// Whether some are being sent now: nothing may overtake them.
    sending: bool,
    closed: bool,
}

#[derive(Debug)]
struct QueuedMessage {
    address: Address,
    message: Message,
    parts: usize,
    bytes: usize,
}

impl Outbox {
    /// Sends over `bus` until it is dropped.
    pub(crate) fn start(bus: Arc<dyn Bus>) -> Self {
        let shared = Arc::new(OutboxInner { bus, state: Mutex::default(), woken: Notify::new() });
        tokio::spawn(run(Arc::clone(&shared)));
        Self(shared)
    }

    /// Sends, or drops when too much is waiting.
    pub(crate) fn send(&self, address: Address, message: Message) {
        let mut state = self.0.lock();
        for message in split(message) {
            let message = if state.sending || !state.waiting.is_empty() {
                Some(message)
            } else {
                self.0.bus.publish_now(address, message)
            };
            if let Some(message) = message {
                state.put(address, message);
            }
        }
        if !state.waiting.is_empty() {
            self.0.woken.notify_one();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.woken.notify_one();
    }
}

impl OutboxInner {
    fn lock(&self) -> MutexGuard<'_, OutboxQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxQueue {
    fn put(&mut self, address: Address, message: Message) {
        let (parts, bytes) = (message.parts(), message.bytes());
        if self.parts + parts > WAITING_MAX {
            tracing::debug!(?address, "the bus is too slow, messages were dropped");
            return;
        }
        self.parts += parts;
        let fits = |last: &&mut QueuedMessage| {
            last.address == address && last.bytes + bytes <= BATCH_BYTES && last.parts + parts <= BATCH_PARTS
        };
        let message = match self.waiting.back_mut().filter(fits) {
            Some(last) => match last.message.join(message) {
                None => {
                    last.parts += parts;
                    last.bytes += bytes;
                    return;
                }
                Some(apart) => apart,
            },
            None => message,
        };
        self.waiting.push_back(QueuedMessage { address, message, parts, bytes });
    }
}

/// Splits a message that is too large to be sent as one, as far as its parts allow.
fn split(message: Message) -> Vec<Message> {
    if message.bytes() <= BATCH_BYTES {
        return vec![message];
    }
    match message {
        Message::ToLane(WorkerBatch { lane, session, messages }) => {
            let piece = |messages| Message::ToLane(WorkerBatch { lane, session, messages });
            pieces(messages, ToLane::bytes).into_iter().map(piece).collect()
        }
        Message::ToWorker(OwnerBatch { lane, epoch, session, messages }) => {
            let piece = |messages| Message::ToWorker(OwnerBatch { lane, epoch, session, messages });
            pieces(messages, ToWorker::bytes).into_iter().map(piece).collect()
        }
        other => vec![other],
    }
}

fn pieces<T>(parts: Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut pieces, mut size) = (vec![Vec::new()], 0);
    for part in parts {
        let part_bytes = bytes(&part);
        let last = pieces.last_mut().expect("there is always one");
        if size + part_bytes <= BATCH_BYTES || last.is_empty() {
            size += part_bytes;
            last.push(part);
        } else {
            size = part_bytes;
            pieces.push(vec![part]);
        }
    }
    pieces
}

async fn run(shared: Arc<OutboxInner>) {
    loop {
        let (waiting, closed) = {
            let mut state = shared.lock();
            state.parts = 0;
            state.sending = !state.waiting.is_empty();
            (std::mem::take(&mut state.waiting), state.closed)
        };
        if waiting.is_empty() {
            if closed {
                return;
            }
            shared.woken.notified().await;
            continue;
        }
        for QueuedMessage { address, message, .. } in waiting {
            match shared.bus.publish(address, vec![message]).await {
                Ok(()) => {}
                Err(BusError::Closed) => return,
                Err(error) => tracing::debug!(%error, ?address, "messages were not sent"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::{AttemptNo, LaneId, SessionId, TaskId};
    use tasklane_core::message::{AttemptId, Report};
    use tasklane_local::LocalBus;

    use super::*;

    fn said(lane: u16, reason: String) -> Message {
        let attempt = AttemptId { task: TaskId::from_random(7), number: AttemptNo(1) };
        let report = ToLane::Report { attempt, report: Report::HandedBack { reason } };
        let session = SessionId::from_random(1);
        Message::ToLane(WorkerBatch { lane: LaneId(lane), session, messages: vec![report] })
    }

    fn parts(state: &OutboxQueue) -> Vec<usize> {
        state.waiting.iter().map(|waiting| waiting.message.parts()).collect()
    }

    #[test]
    fn what_goes_to_the_same_lane_goes_together() {
        let mut state = OutboxQueue::default();
        for lane in [1, 1, 2, 2, 2, 1] {
            state.put(Address::Lane(LaneId(lane)), said(lane, "full".to_owned()));
        }
        assert_eq!(parts(&state), [2, 3, 1]);
    }

    #[test]
    fn what_is_large_goes_in_pieces() {
        let mut state = OutboxQueue::default();
        let of = |bytes: usize| said(1, "x".repeat(bytes));
        let mut all = of(BATCH_BYTES);
        for bytes in [BATCH_BYTES / 2, BATCH_BYTES / 2, 1, 1, BATCH_BYTES + 1] {
            assert_eq!(all.join(of(bytes)), None);
        }
        for piece in split(all) {
            state.put(Address::Lane(LaneId(1)), piece);
        }
        assert_eq!(parts(&state), [1, 2, 2, 1]);
    }

    #[test]
    fn too_much_is_dropped() {
        let mut state = OutboxQueue::default();
        for _ in 0..WAITING_MAX + 10 {
            state.put(Address::Lane(LaneId(1)), said(1, "full".to_owned()));
        }
        assert_eq!(parts(&state).iter().sum::<usize>(), WAITING_MAX);
    }

    #[tokio::test]
    async fn what_waits_is_sent_before_the_end() {
        let bus: Arc<dyn Bus> = Arc::new(LocalBus::default());
        let mut subscription = bus.subscribe(Address::Lane(LaneId(1))).await.unwrap();
        let outbox = Outbox::start(bus);
        outbox.send(Address::Lane(LaneId(1)), said(1, "full".to_owned()));
        drop(outbox);
        assert_eq!(subscription.receive().await.map(|messages| messages.len()), Some(1));
    }
}

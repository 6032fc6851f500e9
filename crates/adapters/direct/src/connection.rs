//! One connection to a peer, dialled from either side: its outgoing queue, and how far the peer has
//! acknowledged.
//!
//! The queue is bounded. A peer that is too slow loses the oldest parcels. Announcements of subscribed
//! addresses are not queued: the connection keeps the difference between the subscriptions and the last
//! announcement. That difference never grows beyond the addresses themselves, and no announcement is ever
//! dropped.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures::Stream;
use tasklane_ports::Address;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::frame::{self, MemberId};
use crate::routes::lock;
use crate::wire;

/// A frame takes waiting parcels up to this size: large enough for one write, small enough to delay no other.
const FRAME_BYTES: usize = 64 << 10;
/// Addresses of one announcement frame.
const FRAME_ADDRESSES: usize = 1024;
/// Memory of a parcel besides its bytes.
const PARCEL_OVERHEAD: usize = 96;
/// The acknowledged version of a closed connection: it releases every waiter.
const CLOSED: u64 = u64::MAX;

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Counts the connections of this member, so that the newest is known.
    pub(crate) number: u64,
    /// Set by the peer's hello.
    pub(crate) peer: OnceLock<MemberId>,
    outgoing: Mutex<OutgoingQueue>,
    bytes_max: usize,
    /// Version of `OutgoingQueue::changes` that the peer has acknowledged.
    heard: watch::Sender<u64>,
    /// The peer missed the time for an acknowledgement. No `subscribe` waits for it until it acknowledges.
    overdue: AtomicBool,
    closed: CancellationToken,
    /// Dropped parcels, of all connections together.
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct OutgoingQueue {
    hello: Option<MemberId>,
    parcels: VecDeque<Parcel>,
    bytes: usize,
    /// Addresses whose subscription began (true) or ended since the last announcement.
    changes: BTreeMap<Address, bool>,
    /// Counts changes.
    version: u64,
    /// The version of the last announcement.
    told: u64,
    /// The peer's version to acknowledge with the next frame.
    heard: Option<u64>,
    /// Parcels dropped since one was sent.
    dropped: u64,
    /// The queue takes no more; the stream ends when all is sent.
    finishing: bool,
    waker: Option<Waker>,
}

/// Encoded messages for an address. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) address: Address,
    pub(crate) messages: Bytes,
}

/// How a connection is made.
#[derive(Debug)]
pub(crate) struct NewConnection {
    pub(crate) number: u64,
    pub(crate) own: MemberId,
    /// Most bytes that wait for the peer.
    pub(crate) bytes_max: usize,
    pub(crate) closed: CancellationToken,
    pub(crate) dropped: Arc<AtomicU64>,
}

impl Connection {
    /// A connection that still has to send its hello and announce its subscriptions.
    pub(crate) fn new(new: NewConnection, listening: impl Iterator<Item = Address>) -> Self {
        let outgoing = OutgoingQueue {
            hello: Some(new.own),
            parcels: VecDeque::new(),
            bytes: 0,
            changes: listening.map(|address| (address, true)).collect(),
            version: 1,
            told: 0,
            heard: None,
            dropped: 0,
            finishing: false,
            waker: None,
        };
        Self {
            number: new.number,
            peer: OnceLock::new(),
            outgoing: Mutex::new(outgoing),
            bytes_max: new.bytes_max,
            heard: watch::Sender::new(0),
            overdue: AtomicBool::new(false),
            closed: new.closed,
            dropped: new.dropped,
        }
    }

    /// Adds a parcel, and makes room by dropping the oldest. Never waits.
    pub(crate) fn put(&self, parcel: Parcel) {
        self.say(|outgoing| {
            if outgoing.finishing {
                return;
            }
            outgoing.bytes += parcel.bytes();
            outgoing.parcels.push_back(parcel);
            let before = outgoing.dropped;
            while outgoing.bytes > self.bytes_max && outgoing.parcels.len() > 1 {
                outgoing.take();
                outgoing.dropped += 1;
            }
            self.dropped.fetch_add(outgoing.dropped - before, Ordering::Relaxed);
        });
    }

    /// Announces to the peer that a subscription of an address has begun or ended. Answers the version whose
    /// acknowledgement covers it.
    pub(crate) fn change(&self, address: Address, begun: bool) -> u64 {
        self.say(|outgoing| {
            // A change that was never announced cancels out.
            if outgoing.changes.get(&address) == Some(&!begun) {
                outgoing.changes.remove(&address);
            } else {
                outgoing.changes.insert(address, begun);
            }
            outgoing.version += 1;
            outgoing.version
        })
    }

    /// The version of the last change.
    pub(crate) fn version(&self) -> u64 {
        lock(&self.outgoing).version
    }

    /// Acknowledges the peer's announcement.
    pub(crate) fn acknowledge(&self, version: u64) {
        self.say(|outgoing| outgoing.heard = Some(version));
    }

    /// Notes the peer's acknowledgement. Answers whether it is the first.
    pub(crate) fn on_heard(&self, version: u64) -> bool {
        self.overdue.store(false, Ordering::Relaxed);
        let mut is_first = false;
        self.heard.send_if_modified(|heard| {
            is_first = *heard == 0;
            let is_new = version > *heard;
            *heard = version.max(*heard);
            is_new
        });
        is_first
    }

    /// Whether both sides know each other's subscriptions.
    pub(crate) fn is_up(&self) -> bool {
        self.peer.get().is_some() && *self.heard.borrow() > 0
    }

    /// Whether `subscribe` waits for the acknowledgement of this peer.
    pub(crate) fn is_prompt(&self) -> bool {
        self.is_up() && !self.overdue.load(Ordering::Relaxed)
    }

    /// Waits until the peer has acknowledged a version, the connection has closed, or the deadline has
    /// passed.
    pub(crate) async fn until_heard(&self, version: u64, deadline: Instant) {
        let mut heard = self.heard.subscribe();
        if tokio::time::timeout_at(deadline, heard.wait_for(|heard| *heard >= version)).await.is_err() {
            self.overdue.store(true, Ordering::Relaxed);
            tracing::debug!(
                connection = self.number,
                "the peer has not acknowledged the subscriptions in time"
            );
        }
    }

    /// Takes no more parcels, and ends this side when all is sent. The peer then ends its side.
    pub(crate) fn finish(&self) {
        self.say(|outgoing| outgoing.finishing = true);
    }

    /// Breaks the connection off.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.heard.send_replace(CLOSED);
        self.say(|outgoing| {
            outgoing.finishing = true;
            outgoing.parcels = VecDeque::new();
            outgoing.bytes = 0;
        });
    }

    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// The outgoing frames. Dropping the stream finishes the connection.
    pub(crate) fn frames(self: &Arc<Self>) -> Frames {
        Frames(Arc::clone(self))
    }

    /// Changes the outgoing queue, and wakes its reader.
    fn say<T>(&self, change: impl FnOnce(&mut OutgoingQueue) -> T) -> T {
        let (result, waker) = {
            let mut outgoing = lock(&self.outgoing);
            (change(&mut outgoing), outgoing.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Frames(Arc<Connection>);

impl Stream for Frames {
    type Item = wire::Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<wire::Frame>> {
        let connection = &self.0;
        if connection.closed.is_cancelled() {
            return Poll::Ready(None);
        }
        let mut outgoing = lock(&connection.outgoing);
        if let Some(frame) = outgoing.next_frame() {
            let dropped = std::mem::take(&mut outgoing.dropped);
            drop(outgoing);
            if dropped > 0 {
                tracing::debug!(connection = connection.number, dropped, "a slow peer has lost messages");
            }
            return Poll::Ready(Some(frame));
        }
        if outgoing.finishing {
            return Poll::Ready(None);
        }
        outgoing.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Frames {
    /// The stream of frames has ended, so nothing more can be sent. Frames of the peer may still be read.
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl OutgoingQueue {
    fn next_frame(&mut self) -> Option<wire::Frame> {
        let mut frame = wire::Frame {
            hello: self.hello.take().map(MemberId::hello),
            listening: self.next_listening(),
            heard: self.heard.take().unwrap_or(0),
            parcels: Vec::new(),
        };
        let mut bytes = 0;
        while let Some(next) = self.parcels.front() {
            bytes += next.bytes();
            if bytes > FRAME_BYTES && !frame.parcels.is_empty() {
                break;
            }
            frame.parcels.extend(self.take().map(Parcel::into_wire));
        }
        let is_empty = frame.hello.is_none()
            && frame.listening.is_none()
            && frame.heard == 0
            && frame.parcels.is_empty();
        (!is_empty).then_some(frame)
    }

    fn next_listening(&mut self) -> Option<wire::Listening> {
        if self.told == self.version {
            return None;
        }
        let mut listening = wire::Listening { version: 0, begun: Vec::new(), ended: Vec::new() };
        for _ in 0..FRAME_ADDRESSES {
            match self.changes.pop_first() {
                Some((address, true)) => listening.begun.push(frame::to_wire(address)),
                Some((address, false)) => listening.ended.push(frame::to_wire(address)),
                None => break,
            }
        }
        if self.changes.is_empty() {
            self.told = self.version;
            listening.version = self.version;
        }
        Some(listening)
    }

    fn take(&mut self) -> Option<Parcel> {
        let parcel = self.parcels.pop_front()?;
        self.bytes -= parcel.bytes();
        Some(parcel)
    }
}

impl Parcel {
    fn bytes(&self) -> usize {
        self.messages.len() + PARCEL_OVERHEAD
    }

    fn into_wire(self) -> wire::Parcel {
        wire::Parcel { address: Some(frame::to_wire(self.address)), messages: self.messages }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, StreamExt};
    use tasklane_core::id::LaneId;

    use super::*;

    fn connection(bytes_max: usize, listening: &[u16]) -> Arc<Connection> {
        let new = NewConnection {
            number: 1,
            own: MemberId::random(),
            bytes_max,
            closed: CancellationToken::new(),
            dropped: Arc::default(),
        };
        Arc::new(Connection::new(new, listening.iter().copied().map(lane)))
    }

    fn lane(number: u16) -> Address {
        Address::Lane(LaneId(number))
    }

    fn parcel(number: u16, bytes: usize) -> Parcel {
        Parcel { address: lane(number), messages: Bytes::from(vec![0; bytes]) }
    }

    /// The next frame, without waiting.
    fn said(frames: &mut Frames) -> Option<wire::Frame> {
        frames.next().now_or_never().map(|frame| frame.expect("it is open"))
    }

    fn lanes(addresses: &[wire::Address]) -> Vec<Address> {
        addresses.iter().filter_map(frame::from_wire).collect()
    }

    fn parcels(frame: &wire::Frame) -> Vec<Address> {
        frame.parcels.iter().filter_map(|parcel| frame::from_wire(parcel.address.as_ref()?)).collect()
    }

    #[test]
    fn hello_comes_first_with_everything_that_is_listened_to() {
        let connection = connection(1_000, &[1, 2]);
        connection.put(parcel(5, 1));
        let mut frames = connection.frames();
        let first = said(&mut frames).unwrap();
        assert!(first.hello.is_some());
        let listening = first.listening.as_ref().unwrap();
        assert_eq!((lanes(&listening.begun), listening.version), (vec![lane(1), lane(2)], 1));
        assert_eq!(parcels(&first), [lane(5)]);
        assert_eq!(said(&mut frames), None);
    }

    #[test]
    fn what_waits_goes_together_up_to_a_size() {
        let connection = connection(usize::MAX, &[]);
        let mut frames = connection.frames();
        said(&mut frames);
        let sizes = [FRAME_BYTES / 2, FRAME_BYTES / 4, 1, FRAME_BYTES * 3, 1, 1];
        for (number, bytes) in (0..).zip(sizes) {
            connection.put(parcel(number, bytes));
        }
        let mut counts = Vec::new();
        while let Some(frame) = said(&mut frames) {
            counts.push(frame.parcels.len());
        }
        assert_eq!(counts, [3, 1, 2]);
    }

    #[test]
    fn the_oldest_parcels_are_dropped_and_the_last_always_has_room() {
        let connection = connection(10 * (100 + PARCEL_OVERHEAD), &[]);
        let mut frames = connection.frames();
        said(&mut frames);
        for number in 0..15 {
            connection.put(parcel(number, 100));
        }
        assert_eq!(parcels(&said(&mut frames).unwrap()), (5..15).map(lane).collect::<Vec<_>>());
        assert_eq!(connection.dropped.load(Ordering::Relaxed), 5);
        connection.put(parcel(1, 1));
        connection.put(parcel(2, 10_000));
        assert_eq!(parcels(&said(&mut frames).unwrap()), [lane(2)]);
    }

    #[test]
    fn what_was_never_told_is_not_taken_back() {
        let connection = connection(1_000, &[1]);
        let mut frames = connection.frames();
        connection.change(lane(2), true);
        connection.change(lane(2), false);
        let listening = said(&mut frames).unwrap().listening.unwrap();
        assert_eq!((lanes(&listening.begun), listening.version), (vec![lane(1)], 3));
        connection.change(lane(1), false);
        connection.change(lane(1), true);
        let listening = said(&mut frames).unwrap().listening.unwrap();
        assert_eq!((listening.begun, listening.ended, listening.version), (vec![], vec![], 5));
        connection.change(lane(1), false);
        let listening = said(&mut frames).unwrap().listening.unwrap();
        assert_eq!((lanes(&listening.ended), listening.version), (vec![lane(1)], 6));
        assert_eq!(said(&mut frames), None);
    }

    #[test]
    fn many_addresses_are_told_in_several_frames() {
        let all: Vec<u16> = (0..2_500).collect();
        let connection = connection(1_000, &all);
        let mut frames = connection.frames();
        let told: Vec<_> = std::iter::from_fn(|| said(&mut frames)?.listening).collect();
        let counts: Vec<_> = told.iter().map(|told| (told.begun.len(), told.version)).collect();
        assert_eq!(counts, [(1_024, 0), (1_024, 0), (452, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_slow_to_hear_is_waited_for_once() {
        let connection = connection(1_000, &[]);
        let _ = connection.peer.set(MemberId::random());
        assert!(!connection.is_up());
        assert!(connection.on_heard(1));
        assert!(connection.is_prompt());
        let version = connection.change(lane(1), true);
        connection.until_heard(version, Instant::now() + Duration::from_secs(1)).await;
        assert!(connection.is_up() && !connection.is_prompt());
        assert!(!connection.on_heard(version));
        assert!(connection.is_prompt());
        connection.until_heard(version, Instant::now()).await;
        assert!(connection.is_prompt());
    }

    #[tokio::test]
    async fn closing_ends_the_stream_and_whoever_waits() {
        let connection = connection(1_000, &[]);
        let mut frames = connection.frames();
        said(&mut frames);
        let (waited, ended) =
            tokio::join!(connection.until_heard(9, Instant::now() + Duration::from_hours(1)), async {
                connection.put(parcel(1, 1));
                connection.close();
                frames.next().await
            });
        assert_eq!((waited, ended), ((), None));
    }

    #[tokio::test]
    async fn finishing_says_what_waits_first() {
        let connection = connection(1_000, &[]);
        let mut frames = connection.frames();
        said(&mut frames);
        connection.put(parcel(1, 1));
        connection.finish();
        connection.put(parcel(2, 1));
        assert_eq!(parcels(&frames.next().await.unwrap()), [lane(1)]);
        assert_eq!(frames.next().await, None);
    }
}

//! The connections of a listener: how many there may be, and which one gives way to another.
//!
//! A connection is *idle* while no request is under way on it: it has sent nothing yet, or half of a head, or
//! has received the whole answer to its last request. When the number of connections is at its limit, the
//! longest idle one is closed for a new one. So clients that open connections and send nothing block no other
//! client.
//!
//! A connection is *unread* from the moment when the rest of an answer cannot be sent until the client waits for
//! its next answer. A client that sends request after request and reads slowly stays unread, however often an
//! answer gets through. Where no connection is idle, the longest unread one is closed for a new one, if it has
//! been unread for more than a second and no request is under way on it. Streams and requests under way are
//! never cut. While all connections are busy with these, a new one waits.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ServeOptions;

/// The log says at most once in this time that connections are closed for others.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// A client that reads its answers reads them within this time, or may lose its connection to another client.
const UNREAD_MAX: Duration = Duration::from_secs(1);

/// While a client waits for a place, unread connections are judged this often.
const JUDGE_EVERY: Duration = Duration::from_millis(250);

/// All connections of a listener.
#[derive(Debug)]
pub(crate) struct Connections {
    options: ServeOptions,
    /// Times of heads are counted from here.
    began: Instant,
    state: Mutex<ConnectionCounts>,
    /// A connection has ended, or has become idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    open: usize,
    /// Connections that have a request to close and have not ended yet.
    closing: usize,
    /// Counted only where each address has a bound.
    of_address: HashMap<IpAddr, usize>,
    next_turn: u64,
    /// Idle connections and since when, in the order in which they became so.
    idle: BTreeMap<u64, (Instant, Arc<Connection>)>,
    /// Unread connections and since when, in the order in which they became so.
    unread: BTreeMap<u64, (Instant, Arc<Connection>)>,
    /// A client waits for a place.
    is_full: bool,
    warned_at: Option<Instant>,
}

/// Where a connection stands.
mod phase {
    /// No request is under way.
    pub(super) const IDLE: u8 = 0;
    /// A head has arrived, and the answer has not begun.
    pub(super) const ASKED: u8 = 1;
    /// The answer has begun.
    pub(super) const ANSWERING: u8 = 2;
    /// All of the answer is given to the connection, and may still have to be sent.
    pub(super) const ANSWERED: u8 = 3;
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Arc<Connections>,
    address: IpAddr,
    phase: AtomicU8,
    /// Its key among the idle ones.
    turn: AtomicU64,
    /// Its key among the unread ones, plus one; 0 while it is none of them.
    unread: AtomicU64,
    /// When the first byte of an unfinished head arrived, in milliseconds; 0 if none has.
    head_at: AtomicU64,
    is_closing: AtomicBool,
    close: Notify,
}

/// The place of a connection. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Connection>);

impl Deref for Place {
    type Target = Arc<Connection>;
    fn deref(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Connections {
    pub(crate) fn new(options: ServeOptions) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { options, began: Instant::now(), state, changed })
    }

    fn state(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    pub(crate) fn head_timeout(&self) -> Duration {
        self.options.head_timeout
    }

    /// A place for a new connection, as soon as there is one. `None` if its address has as many as it may.
    pub(crate) async fn place(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        loop {
            {
                let mut state = self.state();
                state.is_full = false;
                if let Some(max) = self.options.connections_per_address_max
                    && state.of_address.get(&address).is_some_and(|count| *count >= max)
                {
                    return None;
                }
                if state.open < self.options.connections_max {
                    return Some(self.open(&mut state, address));
                }
                state.is_full = true;
                if state.closing == 0 && (state.close_longest_idle() || state.close_longest_unread()) {
                    self.warn(&mut state);
                }
            }
            let _ = tokio::time::timeout(JUDGE_EVERY, self.changed.notified()).await;
        }
    }

    fn open(self: &Arc<Self>, state: &mut ConnectionCounts, address: IpAddr) -> Place {
        let connection = Arc::new(Connection {
            all: Arc::clone(self),
            address,
            phase: AtomicU8::new(phase::IDLE),
            turn: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            head_at: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            close: Notify::new(),
        });
        state.open += 1;
        if self.options.connections_per_address_max.is_some() {
            *state.of_address.entry(address).or_default() += 1;
        }
        state.rest(&connection);
        Place(connection)
    }

    fn warn(&self, state: &mut ConnectionCounts) {
        if state.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            state.warned_at = Some(Instant::now());
            let max = self.options.connections_max;
            tracing::warn!(
                max,
                "all connections are in use: connections that are idle or unread for longest are closed for new ones"
            );
        }
    }

    /// Closes the longest idle connection: its descriptor and memory are needed more elsewhere.
    pub(crate) fn close_longest_idle(&self) {
        self.state().close_longest_idle();
    }

    /// Closes connections whose head takes too long, and connections without a request for long.
    pub(crate) fn close_late(&self) {
        let now = self.millis();
        let head_max = u64::try_from(self.options.head_timeout.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.state();
        let is_late = |since: &Instant, connection: &Connection| {
            let head_at = connection.head_at.load(Ordering::Relaxed);
            (head_at > 0 && now.saturating_sub(head_at) >= head_max)
                || since.elapsed() >= self.options.idle_timeout
        };
        let late = state.idle.iter().filter(|(_, (since, connection))| is_late(since, connection));
        for turn in late.map(|(turn, _)| *turn).collect::<Vec<_>>() {
            state.close(turn);
        }
    }
}

impl ConnectionCounts {
    /// A connection has no request under way from now on.
    fn rest(&mut self, connection: &Arc<Connection>) {
        if connection.is_closing.load(Ordering::Relaxed) {
            return;
        }
        let turn = self.turn();
        connection.turn.store(turn, Ordering::Relaxed);
        self.idle.insert(turn, (Instant::now(), Arc::clone(connection)));
    }

    fn turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn - 1
    }

    fn close_longest_idle(&mut self) -> bool {
        let longest = self.idle.first_key_value().map(|(turn, _)| *turn);
        longest.is_some_and(|turn| self.close(turn))
    }

    /// Closes the connection that has been unread for longest, if that is long and no request is under way on it.
    fn close_longest_unread(&mut self) -> bool {
        let gives_way = |(since, connection): &(Instant, Arc<Connection>)| {
            since.elapsed() > UNREAD_MAX && connection.phase.load(Ordering::Relaxed) == phase::ANSWERED
        };
        let longest = self.unread.values().find(|unread| gives_way(unread));
        let Some(connection) = longest.map(|(_, connection)| Arc::clone(connection)) else { return false };
        self.end(&connection);
        true
    }

    fn close(&mut self, turn: u64) -> bool {
        let Some((_, connection)) = self.idle.remove(&turn) else { return false };
        self.end(&connection);
        true
    }

    fn end(&mut self, connection: &Connection) {
        self.forget_unread(connection);
        self.closing += 1;
        connection.is_closing.store(true, Ordering::Relaxed);
        connection.close.notify_one();
    }

    fn forget_unread(&mut self, connection: &Connection) {
        let turn = connection.unread.swap(0, Ordering::Relaxed);
        if let Some(turn) = turn.checked_sub(1) {
            self.unread.remove(&turn);
        }
    }
}

impl Connection {
    /// Returns when the connection has to give way.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    pub(crate) fn write_timeout(&self) -> Duration {
        self.all.options.write_timeout
    }

    /// A request has arrived. False if the connection has just been closed for another one: then nothing may come of the
    /// request, because its answer would not be sent.
    pub(crate) fn begin(&self) -> bool {
        self.head_at.store(0, Ordering::Relaxed);
        let before = self.phase.swap(phase::ASKED, Ordering::Relaxed);
        if before != phase::IDLE {
            return !self.is_closing.load(Ordering::Relaxed);
        }
        let was_idle = self.all.state().idle.remove(&self.turn.load(Ordering::Relaxed)).is_some();
        was_idle && !self.is_closing.load(Ordering::Relaxed)
    }

    /// The answer begins.
    pub(crate) fn answers(&self) {
        self.phase.store(phase::ANSWERING, Ordering::Relaxed);
    }

    /// All of the answer was given to the connection.
    pub(crate) fn has_answered(&self) {
        self.phase.store(phase::ANSWERED, Ordering::Relaxed);
    }

    /// Some of what was given to the connection cannot be sent now.
    pub(crate) fn cannot_send(self: &Arc<Self>) {
        let is_answered = self.phase.load(Ordering::Relaxed) == phase::ANSWERED;
        if !is_answered || self.unread.load(Ordering::Relaxed) > 0 {
            return;
        }
        let mut state = self.all.state();
        if !self.is_closing.load(Ordering::Relaxed) {
            let turn = state.turn();
            self.unread.store(turn + 1, Ordering::Relaxed);
            state.unread.insert(turn, (Instant::now(), Arc::clone(self)));
        }
    }

    /// The client has sent nothing that is not read.
    pub(crate) fn has_read_all(&self) {
        let is_idle = self.phase.load(Ordering::Relaxed) == phase::IDLE;
        if is_idle && self.unread.load(Ordering::Relaxed) > 0 {
            self.all.state().forget_unread(self);
        }
    }

    /// Everything that was given to the connection is sent.
    pub(crate) fn flushed(self: &Arc<Self>) {
        if self.phase.load(Ordering::Relaxed) != phase::ANSWERED {
            return;
        }
        self.phase.store(phase::IDLE, Ordering::Relaxed);
        let mut state = self.all.state();
        state.rest(self);
        // At once: a client that has sent its next request already is idle for this moment only.
        if state.is_full && state.closing == 0 {
            state.close_longest_idle();
        }
    }

    /// Bytes have arrived: of a head, or of the body of the request under way.
    pub(crate) fn received(&self) {
        let is_idle = self.phase.load(Ordering::Relaxed) == phase::IDLE;
        if is_idle && self.head_at.load(Ordering::Relaxed) == 0 {
            self.head_at.store(self.all.millis(), Ordering::Relaxed);
        }
    }

    /// A request has arrived, and its answer has not begun.
    pub(crate) fn is_asked(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == phase::ASKED
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Connection { all, address, turn, is_closing, .. } = &*self.0;
        let mut state = all.state();
        state.open -= 1;
        state.idle.remove(&turn.load(Ordering::Relaxed));
        state.forget_unread(&self.0);
        state.closing -= usize::from(is_closing.load(Ordering::Relaxed));
        if let Some(count) = state.of_address.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                state.of_address.remove(address);
            }
        }
        drop(state);
        all.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    fn connections(change: impl FnOnce(&mut ServeOptions)) -> Arc<Connections> {
        let mut options = ServeOptions { connections_max: 2, ..ServeOptions::default() };
        change(&mut options);
        Connections::new(options)
    }

    fn is_closed(place: &Place) -> bool {
        place.closed().now_or_never().is_some()
    }

    fn answer(place: &Place) {
        place.answers();
        place.has_answered();
        place.flushed();
    }

    #[tokio::test]
    async fn the_one_idle_for_longest_gives_way() {
        let all = connections(|_| {});
        let first = all.place(HERE).await.unwrap();
        let second = all.place(HERE).await.unwrap();
        assert!(first.begin());
        answer(&first);
        let waiting = all.place(HERE);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(is_closed(&second) && !is_closed(&first), "the first has had an answer since");
        assert!(!second.begin(), "its answer would not be sent");
        drop(second);
        assert!(waiting.now_or_never().is_some());
        assert!(!is_closed(&first), "one was enough");
    }

    #[tokio::test]
    async fn a_request_under_way_is_waited_for() {
        let all = connections(|_| {});
        let places = [all.place(HERE).await.unwrap(), all.place(HERE).await.unwrap()];
        assert!(places.iter().all(|place| place.begin()));
        places[1].answers();
        let waiting = all.place(HERE);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        places[1].has_answered();
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(!is_closed(&places[0]) && !is_closed(&places[1]), "an answer is not sent yet");
        places[1].flushed();
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(is_closed(&places[1]) && !is_closed(&places[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_gives_way_and_a_request_or_a_stream_does_not() {
        let all = connections(|options| options.connections_max = 3);
        let asked = all.place(HERE).await.unwrap();
        let stream = all.place(HERE).await.unwrap();
        let unread = all.place(HERE).await.unwrap();
        assert!([&asked, &stream, &unread].into_iter().all(|place| place.begin()));
        stream.answers();
        for place in [&asked, &stream] {
            place.cannot_send();
        }
        unread.answers();
        unread.has_answered();
        unread.cannot_send();
        let waiting = all.place(HERE);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(!is_closed(&unread), "it has a second");
        tokio::time::advance(UNREAD_MAX).await;
        let judged = tokio::time::timeout(2 * JUDGE_EVERY, waiting.as_mut()).await;
        assert!(judged.is_err() && is_closed(&unread) && !is_closed(&asked) && !is_closed(&stream));
        unread.flushed();
        assert!(!unread.begin(), "its answer would not be sent");
        drop(unread);
        assert!(waiting.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_on_and_reads_slowly_stays_unread() {
        let all = connections(|options| options.connections_max = 1);
        let slow = all.place(HERE).await.unwrap();
        let answer_unread = || {
            assert!(slow.begin());
            slow.answers();
            slow.has_answered();
            slow.cannot_send();
        };
        answer_unread();
        slow.flushed();
        tokio::time::advance(2 * UNREAD_MAX).await;
        answer_unread();
        {
            let waiting = all.place(HERE);
            tokio::pin!(waiting);
            assert!(waiting.now_or_never().is_none());
            assert!(is_closed(&slow), "the answer before was unread as well");
        }
        drop(slow);

        let quick = all.place(HERE).await.unwrap();
        assert!(quick.begin());
        quick.answers();
        quick.has_answered();
        quick.cannot_send();
        quick.flushed();
        quick.has_read_all();
        tokio::time::advance(2 * UNREAD_MAX).await;
        assert!(quick.begin());
        quick.answers();
        quick.has_answered();
        quick.cannot_send();
        let waiting = all.place(HERE);
        tokio::pin!(waiting);
        assert!(waiting.now_or_never().is_none());
        assert!(!is_closed(&quick), "it read all of its first answer");
    }

    #[tokio::test]
    async fn a_late_head_is_closed_and_a_connection_without_one_is_not() {
        let all = connections(|options| options.head_timeout = Duration::ZERO);
        let (late, quiet) = (all.place(HERE).await.unwrap(), all.place(HERE).await.unwrap());
        late.received();
        all.close_late();
        assert!(is_closed(&late) && !is_closed(&quiet));
        assert!(quiet.begin());
        quiet.received();
        answer(&quiet);
        all.close_late();
        assert!(!is_closed(&quiet), "those bytes were of a body");
    }

    #[tokio::test]
    async fn an_address_may_have_a_bound() {
        let all = connections(|options| {
            (options.connections_max, options.connections_per_address_max) = (9, Some(1));
        });
        let first = all.place(HERE).await.unwrap();
        assert!(all.place(HERE).await.is_none());
        assert!(all.place(THERE).await.is_some());
        drop(first);
        assert!(all.place(HERE).await.is_some());
    }
}

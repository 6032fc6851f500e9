//! Locks of users: clients take, renew and release them through any server, by the real leases over documents. Some
//! clients stop renewing without a release.
//!
//! No client has a lock before the time to live of another client's has passed, by a clock that never steps.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::clock_watch::GAP_MAX;
use tasklane_core::lock::{Lease, SteadyEnd};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_ports::{Content, Document, DocumentKey, DocumentKind, PutDocument, PutOutcome, codec};
use uuid::Uuid;

use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::worker::name;
use crate::world::{Event, World};

/// What happens to a client of locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockEvent {
    /// Time to ask.
    Ask { client: usize },
}

/// A client asks for its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockAsk {
    client: usize,
    wish: Wish,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    /// To take the lock for this long, or to renew it.
    Take(Duration),
    Release,
}

/// What a server asks of the store about a lock.
#[derive(Clone, Debug)]
pub(crate) enum LockRequest {
    Read(usize),
    Write { put: PutDocument, written: Written },
}

/// What it learns; `None` where there is nothing to do with the answer.
pub(crate) type LockReply = Option<Read>;

/// A lock as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Read(Option<Document>);

/// What a write says of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    lock: usize,
    client: usize,
    /// Until when from the decision, or that the lock is free.
    ttl: Option<Duration>,
    /// When a server decided that.
    decided_at: Timestamp,
    /// The server has run since then.
    started_at: Timestamp,
}

/// Who has the locks, by a clock without steps.
#[derive(Debug, Default)]
pub(crate) struct Locks(BTreeMap<usize, Written>);

/// What is stored of a lock: its client, and its lease.
type Stored = (usize, Timestamp, Option<SteadyEnd>);

/// Locks of a run.
const LOCKS: usize = 2;
/// Clients, each of one lock.
const CLIENTS: usize = 4;
/// The shortest and the longest time to live. Shorter than the clock takes to settle.
const TTL_SECS: (u64, u64) = (4, 12);
/// What the times of servers and of this module differ by: two servers that follow a reference differ by twice the size of
/// the smallest step.
const SLACK: Duration = Duration::from_millis(1200);

fn key_of(lock: usize) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Lock, namespace: name("default"), id: name(&format!("lock-{lock}")) }
}

impl World {
    /// Clients begin to ask.
    pub(crate) fn plan_locks(&mut self) {
        for client in 0..CLIENTS {
            self.ask_later(client, 1_000_000, 4_000_000);
        }
    }

    fn ask_later(&mut self, client: usize, low: u64, high: u64) {
        let delay = self.between(low, high);
        self.after(delay, Event::Lock(LockEvent::Ask { client }));
    }

    /// A client asks a server for its lock, or does nothing for a while.
    pub(crate) fn lock_event(&mut self, event: LockEvent) {
        let LockEvent::Ask { client } = event;
        let (low, high) = TTL_SECS;
        let wish = match self.rng.below(100) {
            0..15 => return self.ask_later(client, 10_000_000, 40_000_000),
            15..25 => Wish::Release,
            _ => Wish::Take(Duration::from_secs(low + self.rng.below(high - low + 1))),
        };
        let index = self.rng.index(self.servers.len());
        let incarnation = self.servers[index].incarnation;
        let delay = self.between(50, 500);
        let input = ServerInput::Lock(LockAsk { client, wish });
        self.after(delay, Event::Server { index, incarnation, input });
        self.ask_later(client, 2_000_000, 6_000_000);
    }

    /// A server takes the request of a client in.
    pub(crate) fn ask_for_lock(&mut self, index: usize, ask: LockAsk) {
        if self.knows_the_time(index) {
            let request = LockRequest::Read(ask.client % LOCKS);
            self.call_for_lock(index, ask, request);
        }
    }

    fn call_for_lock(&mut self, index: usize, ask: LockAsk, request: LockRequest) {
        let incarnation = self.servers[index].incarnation;
        self.call_store(StoreRequest::Lock(request), ReplyTo::Lock { index, incarnation, ask });
    }

    /// The start of the machine of a server.
    fn boot_of(&self, index: usize) -> Uuid {
        Uuid::from_u128(if self.scenario.machines_apart { 1 + index as u128 } else { 1 })
    }

    fn is_held(&mut self, index: usize, (_, until, steady): Stored) -> bool {
        let (clock, boot) = (self.clock_of(index), self.boot_of(index));
        Lease { until, steady }.is_held(&clock, boot, self.scenario.invariants)
    }

    /// The store has shown a lock to a server, or has written it.
    pub(crate) fn lock_read(&mut self, index: usize, ask: LockAsk, reply: LockReply) {
        let Some(Read(document)) = reply else { return };
        let LockAsk { client, wish } = ask;
        let (clock, boot) = (self.clock_of(index), self.boot_of(index));
        let stored = document
            .as_ref()
            .map(|document| codec::decode::<Stored>(&document.value).expect("the simulator wrote the lock"));
        let of_another = stored.filter(|stored| stored.0 != client);
        if let Some(stored) = of_another
            && self.is_held(index, stored)
        {
            return self.report.path("lock_refused");
        }
        let (content, ttl) = match wish {
            Wish::Take(ttl) => {
                let Lease { until, steady } = Lease::taken(&clock, boot, ttl);
                let value = codec::encode(&(client, until, steady));
                (Some(Content { due: Some(until), value }), Some(ttl))
            }
            // Nothing of this client is there to release.
            Wish::Release if stored.is_none() || of_another.is_some() => return,
            Wish::Release => (None, None),
        };
        let lock = client % LOCKS;
        let started_at = self.started_at(index);
        let written = Written { lock, client, ttl, decided_at: self.now, started_at };
        let expected = document.map_or(0, |document| document.version);
        let put = PutDocument { key: key_of(lock), expected, content };
        self.call_for_lock(index, ask, LockRequest::Write { put, written });
    }

    /// The store does what a server asks about a lock.
    pub(crate) fn apply_lock(&mut self, request: LockRequest) -> LockReply {
        match request {
            LockRequest::Read(lock) => Some(Read(self.store.documents(&[key_of(lock)]).pop().flatten())),
            LockRequest::Write { put, written } => {
                if self.store.put_documents(&[put]).into_iter().all(is_stored) {
                    self.lock_written(written);
                }
                None
            }
        }
    }

    /// The removals of those locks that have ended, and since when the server runs that decides it.
    pub(crate) fn lock_removals(
        &mut self,
        index: usize,
        locks: &[Document],
    ) -> (Vec<PutDocument>, Timestamp) {
        let mut removals = Vec::new();
        for document in locks {
            let stored: Stored = codec::decode(&document.value).expect("the simulator wrote the lock");
            if !self.is_held(index, stored) {
                let (key, expected) = (document.key.clone(), document.version);
                removals.push(PutDocument { key, expected, content: None });
            }
        }
        (removals, self.started_at(index))
    }

    /// The store removes locks that have ended.
    pub(crate) fn remove_locks(&mut self, removals: &[PutDocument], started_at: Timestamp) {
        let outcomes = self.store.put_documents(removals);
        let removed = removals.iter().zip(outcomes).filter(|(_, outcome)| is_stored(*outcome));
        let removed: Vec<usize> =
            removed.filter_map(|(put, _)| (0..LOCKS).find(|lock| key_of(*lock) == put.key)).collect();
        for lock in removed {
            self.lock_ends(lock, started_at);
            self.locks.0.remove(&lock);
        }
    }

    fn started_at(&self, index: usize) -> Timestamp {
        self.servers[index].process.as_ref().map_or(self.now, |server| server.started_at)
    }

    /// A lock was written: it was free, or of the same client, or the time to live of its last holder has passed.
    fn lock_written(&mut self, written: Written) {
        let before = self.locks.0.get(&written.lock);
        if before.is_some_and(|before| before.client != written.client) {
            self.report.path("lock_changed_hands");
            self.lock_ends(written.lock, written.started_at);
        }
        if written.ttl.is_some() {
            self.locks.0.insert(written.lock, written);
        } else {
            self.locks.0.remove(&written.lock);
        }
    }

    /// A lock ends without a release, by the word of a server that has run since a time.
    fn lock_ends(&mut self, lock: usize, started_at: Timestamp) {
        let Some(Written { client, ttl, decided_at, .. }) = self.locks.0.get(&lock).copied() else { return };
        let ends = decided_at + ttl.unwrap_or_default();
        if self.now + SLACK < ends && !self.is_excused(decided_at, started_at) {
            let left = ends.since(self.now);
            let what =
                format!("client {client} has lost lock {lock} {left:?} before its time to live has passed");
            self.checker.fail(self.now, what);
        }
    }

    /// Whether no server can be held to the length of a lease. Servers on machines of their own go by the wall clock, which
    /// may differ; and a server that started after a step of less than an hour does not know of it.
    fn is_excused(&self, decided_at: Timestamp, started_at: Timestamp) -> bool {
        let stepped = self.ahead_at(started_at).1 - self.ahead_at(decided_at).1;
        let is_unseen = started_at > decided_at && stepped != Shift::ZERO && stepped.abs() <= GAP_MAX;
        self.scenario.machines_apart && (self.scenario.clocks_differ() || is_unseen)
    }
}

fn is_stored(outcome: PutOutcome) -> bool {
    matches!(outcome, PutOutcome::Stored { .. })
}

//! Limits: how many attempts of a key are alive, and when its rate allows the next.
//!
//! Concurrency is counted for every key of a task in flight, whether or not the policy limits it at the moment, so
//! that a limit that is added or changed is right at once. A rate needs one time per key (see
//! [`Rate`](crate::policy::Rate)); it is written in the same group as the assignment that moves it.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use crate::commit::{RecordKey, RecordKind};
use crate::id::{Name, QueueKey};
use crate::policy::{Limit, LimitScope};
use crate::time::Timestamp;

use super::entry::Handle;

/// What is counted together: a limit of a queue, and for limits by key the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimitKey {
    pub(super) queue: Handle,
    pub(super) limit: Name,
    /// `None` for a limit over the whole queue.
    pub(super) key: Option<String>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct LimitState {
    pub(super) key: LimitKey,
    /// Attempts alive.
    pub(super) running: u32,
    /// Stored time of the rate.
    pub(super) rate: Option<Timestamp>,
    /// Lines in memory that name it; those parked at it are woken when an attempt ends.
    pub(super) lines: BTreeSet<Handle>,
    /// Some of the lines are parked at it.
    pub(super) parked: bool,
    /// Its queue's policy has it as a limit over the whole queue.
    pub(super) bound: bool,
}

/// All limits of a lane.
#[derive(Debug, Default)]
pub(super) struct Limits {
    states: Slab<LimitState>,
    by_key: BTreeMap<LimitKey, Handle>,
}

impl Limits {
    /// The state of a key, made if it is new.
    pub(super) fn intern(&mut self, key: &LimitKey) -> Handle {
        if let Some(&handle) = self.by_key.get(key) {
            return handle;
        }
        let state = LimitState {
            key: key.clone(),
            running: 0,
            rate: None,
            lines: BTreeSet::new(),
            parked: false,
            bound: false,
        };
        let handle = self.states.insert(state);
        self.by_key.insert(key.clone(), handle);
        handle
    }

    pub(super) fn get(&self, handle: Handle) -> &LimitState {
        &self.states[handle]
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> &mut LimitState {
        &mut self.states[handle]
    }

    pub(super) fn find(&self, key: &LimitKey) -> Option<&LimitState> {
        self.by_key.get(key).map(|&handle| &self.states[handle])
    }

    /// Forgets a key that nothing refers to any more.
    pub(super) fn drop_if_idle(&mut self, handle: Handle) {
        let state = &self.states[handle];
        if state.running == 0 && state.lines.is_empty() && state.rate.is_none() && !state.bound {
            self.by_key.remove(&state.key);
            self.states.remove(handle);
        }
    }

    /// The rates of a queue were read or changed: stored times that cannot be right under them are cut, counted from
    /// now on.
    pub(super) fn settle_rates(&mut self, queue: Handle, limits: &[Limit], now: Timestamp) {
        for (_, LimitState { key, rate, .. }) in self.states.iter_mut().filter(|(_, s)| s.key.queue == queue)
        {
            let named =
                |l: &&Limit| l.name == key.limit && (l.scope == LimitScope::Queue) == key.key.is_none();
            let limit = limits.iter().find(named).and_then(|limit| limit.rate);
            if let (Some(stored), Some(limit)) = (rate.as_mut(), limit) {
                *stored = limit.settle(*stored, now);
            }
        }
    }

    /// Keys whose rate is full again at `now`, up to a bound: their stored time says nothing any more.
    pub(super) fn full_again(&self, now: Timestamp, max: usize) -> Vec<Handle> {
        let full = self.states.iter().filter(|(_, state)| state.rate.is_some_and(|stored| stored <= now));
        full.take(max).map(|(handle, _)| handle).collect()
    }

    /// Queues with a key that is counted, or whose rate is not full.
    pub(super) fn queues_in_use(&self) -> impl Iterator<Item = Handle> {
        let in_use = |s: &&LimitState| s.running > 0 || s.rate.is_some() || !s.lines.is_empty();
        self.states.iter().map(|(_, state)| state).filter(in_use).map(|state| state.key.queue)
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }
}

/// Key of the record that keeps the time of a rate. Names contain no slash, so the parts stay apart.
pub(super) fn rate_record(queue: &QueueKey, limit: &Name, key: Option<&str>) -> RecordKey {
    let key = match key {
        Some(key) => format!("{queue}/{limit}/={key}"),
        None => format!("{queue}/{limit}/"),
    };
    RecordKey { kind: RecordKind::Rate, key }
}

/// Back from [`rate_record`].
pub(super) fn parse_rate_record(key: &str) -> Option<(QueueKey, Name, Option<String>)> {
    let mut parts = key.splitn(4, '/');
    let namespace = Name::new(parts.next()?).ok()?;
    let queue = Name::new(parts.next()?).ok()?;
    let limit = Name::new(parts.next()?).ok()?;
    let key = parts.next()?.strip_prefix('=').map(str::to_owned);
    Some((QueueKey::new(namespace, queue), limit, key))
}

//! Limits: how many attempts of a key are alive, and when its rate allows the next.
//!
//! The owner counts concurrency for every key of a task in flight, whether or not the policy limits the key
//! at the moment, so that a new or changed limit is right at once. A rate needs one time per key (see
//! [`Rate`](crate::policy::Rate)); the group of the assignment that moves it also writes it.
//!
//! The policy sets how many attempts may be alive for each [`LimitId`]; a task may bring a number of its own.
//! The lower number counts.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;
use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;

use crate::commit::{RecordKey, RecordKind};
use crate::id::{LimitId, Name, QueueKey, Seq};
use crate::policy::{Concurrency, QueuePolicy, Rate};
use crate::task::{FlowKey, OwnLimit};
use crate::time::{Shift, Timestamp};

use super::entry::Handle;

/// One limit in the policy of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) limit: LimitId,
    pub(super) concurrency: Option<Concurrency>,
    pub(super) rate: Option<Rate>,
}

impl Rule {
    /// The limit that a task brings along.
    pub(super) fn own(flow: &FlowKey) -> Option<Self> {
        let rule = Self { limit: flow.limit, concurrency: None, rate: None };
        Some(match flow.own? {
            OwnLimit::Concurrency(concurrency) => Self { concurrency: Some(concurrency), ..rule },
            OwnLimit::Rate(rate) => Self { rate: Some(rate), ..rule },
        })
    }
}

/// The rules of a policy, one for each limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(SmallVec<[Rule; 1]>);

impl Rules {
    pub(super) fn of(policy: &QueuePolicy) -> Self {
        let mut rules = Self::default();
        for limit in &policy.concurrency {
            rules.entry(limit.key.as_deref()).concurrency = Some(limit.concurrency);
        }
        for limit in &policy.rate {
            rules.entry(limit.key.as_deref()).rate = Some(limit.rate);
        }
        rules
    }

    fn entry(&mut self, template: Option<&str>) -> &mut Rule {
        let limit = template.map_or(LimitId::QUEUE, LimitId::of);
        let at = self.0.iter().position(|rule| rule.limit == limit).unwrap_or_else(|| {
            self.0.push(Rule { limit, concurrency: None, rate: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The policy's rule for a limit.
    pub(super) fn find(&self, limit: LimitId) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.limit == limit)
    }

    /// The policy's rule for a key of a task, and the task's own.
    pub(super) fn of_key(&self, flow: &FlowKey) -> impl Iterator<Item = Rule> {
        self.find(flow.limit).copied().into_iter().chain(Rule::own(flow))
    }
}

/// The scope of a counter: a limit of a queue, and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimitKey {
    pub(super) queue: Handle,
    pub(super) limit: LimitId,
    /// Empty for the limit over the whole queue.
    pub(super) key: Arc<str>,
}

impl LimitKey {
    /// The limit over the whole queue.
    pub(super) fn whole(queue: Handle) -> Self {
        Self { queue, limit: LimitId::QUEUE, key: Arc::default() }
    }

    pub(super) fn of(queue: Handle, flow: &FlowKey) -> Self {
        Self { queue, limit: flow.limit, key: flow.key.clone() }
    }
}

/// The state of one limit and key.
#[derive(Debug)]
pub(super) struct LimitState {
    pub(super) key: LimitKey,
    /// Attempts alive.
    pub(super) running: u32,
    /// Stored time of the rate.
    pub(super) rate: Option<Timestamp>,
    /// Lines in memory that name it; those parked at it are woken when an attempt ends.
    pub(super) lines: SmallVec<[Handle; 1]>,
    /// Attempts alive that have not started.
    pub(super) unstarted: u32,
    /// The round in which the next of its lines has its turn.
    pub(super) round: u64,
    /// The last arrival that came to wait under it.
    pub(super) newest: Seq,
    /// Some of the lines are parked at it.
    pub(super) parked: bool,
    /// It is a limit over the whole queue in its queue's policy.
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
    pub(super) fn intern(&mut self, key: LimitKey) -> Handle {
        *self.by_key.entry(key).or_insert_with_key(|key| {
            self.states.insert(LimitState {
                key: key.clone(),
                running: 0,
                unstarted: 0,
                round: 0,
                rate: None,
                lines: SmallVec::new(),
                newest: Seq(0),
                parked: false,
                bound: false,
            })
        })
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

    /// The states of a queue by limit and key, behind one of them.
    pub(super) fn of_queue(
        &self,
        queue: Handle,
        after: Option<LimitKey>,
    ) -> impl Iterator<Item = &LimitState> {
        let first = after.map_or_else(|| Bound::Included(LimitKey::whole(queue)), Bound::Excluded);
        let range: Range<'_, LimitKey, Handle> = self.by_key.range((first, Bound::Unbounded));
        range.take_while(move |(key, _)| key.queue == queue).map(|(_, &handle)| &self.states[handle])
    }

    /// The round of a line's next turn, given its first key and the earliest it may be. Lines of one key have
    /// their turns in different rounds, so that it makes no difference to other keys how many lines a key
    /// has.
    pub(super) fn next_round(&mut self, first_key: Option<Handle>, earliest: u64) -> u64 {
        let Some(state) = first_key.map(|handle| &mut self.states[handle]) else { return earliest };
        let round = state.round.max(earliest);
        state.round = round + 1;
        round
    }

    /// A line in memory names a key.
    pub(super) fn add_line(&mut self, handle: Handle, line: Handle) {
        self.states[handle].lines.push(line);
    }

    /// A line is forgotten, and with it the key if nothing else refers to it.
    pub(super) fn remove_line(&mut self, handle: Handle, line: Handle) {
        self.states[handle].lines.retain(|known| *known != line);
        self.drop_if_idle(handle);
    }

    /// Drops a key that nothing refers to any more.
    pub(super) fn drop_if_idle(&mut self, handle: Handle) {
        let state = &self.states[handle];
        if state.running == 0 && state.lines.is_empty() && state.rate.is_none() && !state.bound {
            self.by_key.remove(&state.key);
            self.states.remove(handle);
        }
    }

    /// The rates of a queue were read or changed: impossible stored times are cut, counted from now on.
    pub(super) fn settle_rates(&mut self, queue: Handle, rules: &Rules, now: Timestamp) {
        for (_, LimitState { key, rate, .. }) in self.states.iter_mut().filter(|(_, s)| s.key.queue == queue)
        {
            let limit = rules.find(key.limit).and_then(|rule| rule.rate);
            if let (Some(stored), Some(limit)) = (rate.as_mut(), limit) {
                *stored = limit.settle(*stored, now);
            }
        }
    }

    /// The clock has stepped: rates go on evenly.
    pub(super) fn move_rates(&mut self, by: Shift) {
        for (_, state) in &mut self.states {
            state.rate = state.rate.map(|stored| stored + by);
        }
    }

    /// Keys whose rate is full again at `now`, up to a bound: their stored time has no effect any more.
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

/// Key of the record that keeps the time of a rate, without the steps of the lane's clock. Names contain no
/// slash, so the parts stay apart.
pub(super) fn rate_record(queue: &QueueKey, limit: LimitId, key: &str) -> RecordKey {
    RecordKey { kind: RecordKind::Rate, key: format!("{queue}/{limit}/{key}") }
}

/// The value of such a record.
pub(super) fn rate_value(time: Timestamp) -> Vec<u8> {
    time.as_micros().to_le_bytes().to_vec()
}

/// Back from [`rate_record`].
pub(super) fn parse_rate_record(key: &str) -> Option<(QueueKey, LimitId, &str)> {
    let mut parts = key.splitn(4, '/');
    let namespace = Name::new(parts.next()?).ok()?;
    let queue = Name::new(parts.next()?).ok()?;
    let limit = LimitId(u64::from_str_radix(parts.next()?, 16).ok()?);
    Some((QueueKey::new(namespace, queue), limit, parts.next()?))
}

//! The keys of a queue's limits, for readers.

use std::sync::Arc;

use crate::id::{LimitId, QueueKey};
use crate::policy::{Concurrency, QueuePolicy, Rate};
use crate::time::Timestamp;

use super::entry::Handle;
use super::limits::{LimitKey, LimitState, Rule, Rules};
use super::machine::Lane;

/// A key that is counted, or that tasks in memory wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Which limit, and which of its keys.
    pub position: KeyPosition,
    /// The template of the key, if the policy still has it.
    pub template: Option<String>,
    /// Attempts alive.
    pub running: u32,
    /// Tasks that wait in memory.
    pub waiting: usize,
    /// Whether the store may hold more.
    pub more_waiting: bool,
    /// How many may be alive at once: by the policy, or else by a task.
    pub concurrency: Option<Concurrency>,
    /// How many may start in a time, and when the next one may.
    pub rate: Option<(Rate, Timestamp)>,
}

/// The position of a key among the keys of its queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPosition {
    /// Its limit.
    pub limit: LimitId,
    /// The key; empty for a limit over the whole queue.
    pub key: Arc<str>,
}

impl Lane {
    /// The keys of a queue behind a position, by limit and key.
    pub fn keys(&self, queue: &QueueKey, after: Option<KeyPosition>, limit: usize) -> Vec<KeyInfo> {
        let Some(&handle) = self.queue_by_key.get(queue) else { return Vec::new() };
        let q = &self.queues[handle];
        let after = after.map(|after| LimitKey { queue: handle, limit: after.limit, key: after.key });
        let states = self.limits.of_queue(handle, after).take(limit);
        states.map(|state| self.key_info(state, &q.rules, &q.policy.policy)).collect()
    }

    /// The lines in memory that a limit counts.
    pub(super) fn lines_under(&self, state: &LimitState) -> impl Iterator<Item = Handle> {
        let whole = state.key.limit == LimitId::QUEUE;
        let queue = state.key.queue;
        let of_queue = self.lines.iter().filter(move |(_, l)| whole && l.queue == queue).map(|(h, _)| h);
        of_queue.chain(state.lines.iter().copied())
    }

    /// Tasks in memory that wait under a limit.
    pub(super) fn waiting_under(&self, state: &LimitState) -> usize {
        if state.key.limit == LimitId::QUEUE {
            return self.queues[state.key.queue].waiting;
        }
        state.lines.iter().map(|&line| self.lines[line].window.len()).sum()
    }

    fn key_info(&self, state: &LimitState, rules: &Rules, policy: &QueuePolicy) -> KeyInfo {
        let LimitKey { limit, ref key, .. } = state.key;
        let lines = state.lines.iter().map(|&line| &self.lines[line]);
        let own = lines.flat_map(|line| &line.head.flow).filter(|flow| flow.limit == limit);
        let own: Vec<Rule> = own.filter_map(Rule::own).collect();
        let rule = rules.find(limit);
        let said = rule.into_iter().chain(&own);
        let rate = said.clone().find_map(|rule| rule.rate).map(|rate| {
            let next_at = state.rate.map_or(self.now, |stored| rate.next_at(rate.settle(stored, self.now)));
            (rate, next_at.max(self.now))
        });
        let more_waiting = self.lines_more || self.lines_under(state).any(|line| self.lines[line].more);
        KeyInfo {
            position: KeyPosition { limit, key: key.clone() },
            template: template(policy, limit),
            running: state.running,
            waiting: self.waiting_under(state),
            more_waiting,
            concurrency: said.clone().find_map(|rule| rule.concurrency),
            rate,
        }
    }
}

/// The template of a limit, if the policy has it.
pub(super) fn template(policy: &QueuePolicy, limit: LimitId) -> Option<String> {
    let templates = policy.concurrency.iter().map(|l| &l.key).chain(policy.rate.iter().map(|l| &l.key));
    templates.flatten().find(|template| LimitId::of(template) == limit).cloned()
}

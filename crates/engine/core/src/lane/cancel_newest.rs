//! Limits that cancel: of their keys no more tasks wait or run than the limit says. The newest of those that never ran
//! make way.
//!
//! What waits is judged when it comes into memory, and when the policy changes. A task that had an attempt before
//! waits, like under any other limit: it is not the newest.

use smallvec::SmallVec;

use crate::guard::Guard;
use crate::id::{LimitId, Seq};
use crate::policy::{Concurrency, WhenReached};
use crate::status::Status;
use crate::task::TaskError;

use super::entry::Handle;
use super::machine::Lane;

impl Lane {
    /// Whether tasks of a line may be cancelled because they are too many.
    pub(super) fn cancels_newest(&self, line: Handle) -> bool {
        !self.cancelling(line).is_empty()
    }

    /// The limits of a line that cancel, and how many each lets wait and run.
    fn cancelling(&self, line: Handle) -> SmallVec<[(Handle, u32); 2]> {
        let line = &self.lines[line];
        let queue = &self.queues[line.queue];
        let cancels = |concurrency: Option<Concurrency>| {
            concurrency.filter(|c| c.when_reached == WhenReached::CancelNewest).map(|c| c.limit)
        };
        let whole =
            queue.whole.zip(queue.rules.find(LimitId::QUEUE).and_then(|rule| cancels(rule.concurrency)));
        let by_key = line.head.flow.iter().zip(&line.limits).flat_map(|(flow, &state)| {
            queue.rules.of_key(flow).filter_map(move |rule| Some((state, cancels(rule.concurrency)?)))
        });
        whole.into_iter().chain(by_key).collect()
    }

    /// Cancels what is too much under the limits of a line. `placed` has just come to wait in it.
    pub(super) fn cancel_newest(&mut self, line: Handle, placed: Seq) {
        if !self.loading.is_complete() || !self.options.guards.on(Guard::NewestCancelled) {
            return;
        }
        for (state, max) in self.cancelling(line) {
            let limit = self.limits.get_mut(state);
            limit.newest = limit.newest.max(placed);
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            while self.taken(state) > max {
                let Some(entry) = self.newest_of(state, line, placed) else { break };
                self.counters.newest_cancelled += 1;
                let key = &self.limits.get(state).key.key;
                let of = if key.is_empty() { "the queue".to_owned() } else { format!("the key {key:?}") };
                let message =
                    format!("{max} tasks of {of} waited or ran already, and its limit cancels the newest");
                self.leave_spot(entry);
                self.finish(entry, Status::Cancelled, Some(TaskError::new("limit_reached", message)));
            }
        }
    }

    /// How many wait or run under a limit, as far as memory knows.
    fn taken(&self, state: Handle) -> usize {
        let limit = self.limits.get(state);
        let waiting = if limit.key.limit == LimitId::QUEUE {
            self.queues[limit.key.queue].waiting
        } else {
            limit.lines.iter().map(|&line| self.lines[line].window.len()).sum()
        };
        waiting + usize::try_from(limit.running).unwrap_or(usize::MAX)
    }

    /// The newest task that waits under a limit and never ran. Mostly it is the one that has just come.
    fn newest_of(&self, state: Handle, line: Handle, placed: Seq) -> Option<Handle> {
        let limit = self.limits.get(state);
        let whole = limit.key.limit == LimitId::QUEUE;
        let queue_lines =
            self.lines.iter().filter(|(_, l)| whole && l.queue == limit.key.queue).map(|(h, _)| h);
        let key_lines = limit.lines.iter().copied().filter(|_| !whole);
        let just_placed = (placed >= limit.newest).then_some(line);
        let waiting = |line: Handle| self.lines[line].window.iter().map(|(_, entry)| entry);
        let fresh = |entry: &Handle| self.entries[*entry].state.attempt.0 == 0;
        let newest = |entry: &Handle| self.entries[*entry].seq;
        let just_placed =
            just_placed.and_then(|line| waiting(line).filter(fresh).find(|entry| newest(entry) == placed));
        just_placed
            .or_else(|| queue_lines.chain(key_lines).flat_map(waiting).filter(fresh).max_by_key(newest))
    }
}

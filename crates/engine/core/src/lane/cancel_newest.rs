//! Limits that cancel: of each of their keys no more tasks wait or run than the limit allows. The newest
//! tasks that never ran are cancelled.
//!
//! The owner judges a waiting task when it comes into memory and when the policy changes; so it reads all
//! waiting tasks of such a line. A task that had an attempt before waits, as under any other limit: it is not
//! the newest.

use smallvec::SmallVec;

use crate::id::LimitId;
use crate::invariant::Invariant;
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

    /// The limits of a line that cancel, and how many tasks each lets wait and run.
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

    /// Cancels the excess under the limits of a line. `placed` is the task that has just come to wait in it,
    /// if any.
    pub(super) fn cancel_newest(&mut self, line: Handle, placed: Option<Handle>) {
        if !self.loading.is_complete() || !self.options.invariants.on(Invariant::NewestCancelled) {
            return;
        }
        for (state, max) in self.cancelling(line) {
            let seq = placed.and_then(|entry| self.entries.get(entry)).map(|entry| entry.seq);
            let limit = self.limits.get_mut(state);
            // Mostly the newest task is the one just placed, and the only excess.
            let newest = placed.filter(|_| seq > Some(limit.newest));
            limit.newest = limit.newest.max(seq.unwrap_or_default());
            let excess = self.taken(state).saturating_sub(usize::try_from(max).unwrap_or(usize::MAX));
            let too_much = match newest.filter(|&entry| excess == 1 && self.never_ran(entry)) {
                Some(entry) => vec![entry],
                None if excess > 0 => self.newest_of(state, excess),
                None => Vec::new(),
            };
            for entry in too_much {
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
        self.waiting_under(limit) + usize::try_from(limit.running).unwrap_or(usize::MAX)
    }

    fn never_ran(&self, entry: Handle) -> bool {
        self.entries[entry].state.attempt.0 == 0
    }

    /// The newest tasks that wait under a limit and never ran, of lines that it cancels.
    fn newest_of(&self, state: Handle, count: usize) -> Vec<Handle> {
        let cancels = |line: &Handle| self.cancelling(*line).iter().any(|(limit, _)| *limit == state);
        let waiting = |line: Handle| self.lines[line].window.iter().map(|(_, entry)| entry);
        let mut fresh: Vec<Handle> = self
            .lines_under(self.limits.get(state))
            .filter(cancels)
            .flat_map(waiting)
            .filter(|&entry| self.never_ran(entry))
            .collect();
        fresh.sort_unstable_by_key(|&entry| std::cmp::Reverse(self.entries[entry].seq));
        fresh.truncate(count);
        fresh
    }
}

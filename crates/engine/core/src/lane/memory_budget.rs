//! The memory budget of a lane: tasks over all lines together, and queues that nothing refers to.
//!
//! Every line may keep a window of its tasks. With many lines all windows together would be too much. So each
//! line gets its share of `tasks_max`, and the owner cuts longer windows when the sum is reached. A share is
//! never below [`WINDOW_MIN`], so that every line can go on. When even that is too much, further lines stay
//! in the store, and the sweep drops lines that cannot run to make room for them.

use std::collections::BTreeSet;

use super::entry::Handle;
use super::lines::Queue;
use super::machine::{Lane, Timer};

/// The least that a line may keep in memory, however many lines there are.
const WINDOW_MIN: usize = 4;

/// Queues that may become idle before the owner searches for idle ones; the sweep searches in any case.
const QUEUES_IDLE_MAX: usize = 1024;

impl Lane {
    /// Lines have come or gone: the share of each changes. Half, because a window may be twice as long for a
    /// moment.
    pub(super) fn share_window(&mut self) {
        let share = self.options.tasks_max / (2 * self.lines.len().max(1));
        // A window option below the least is used as it is.
        self.window = share.max(WINDOW_MIN).min(self.options.window);
    }

    /// There is no room for another line.
    pub(super) fn lines_are_full(&self) -> bool {
        let at_least = self.window <= WINDOW_MIN;
        self.lines.len() >= self.options.lines_max || (at_least && self.waiting >= self.options.tasks_max)
    }

    /// Cuts windows back to their share when there are too many tasks in all of them together.
    pub(super) fn cut_long_windows(&mut self) {
        if self.waiting <= self.cut_windows_at {
            return;
        }
        let long: Vec<Handle> =
            self.lines.iter().filter(|(_, l)| l.window.len() > self.window).map(|(h, _)| h).collect();
        for line in long {
            // Tasks that were read to be judged would only be read again.
            if !self.cancels_newest(line) {
                self.cut_window(line);
            }
        }
        // Unwritten tasks cannot be dropped yet. The higher bound avoids a search for them with every step.
        self.cut_windows_at = self.options.tasks_max.max(self.waiting + self.options.tasks_max / 8);
    }

    /// The next cut comes at the bound again.
    pub(super) fn reset_window_cut(&mut self) {
        self.cut_windows_at = self.options.tasks_max;
    }

    /// Searches for idle queues when there may be many.
    pub(super) fn forget_idle_queues_if_many(&mut self) {
        if self.queues.len() > self.queues_kept + QUEUES_IDLE_MAX {
            self.forget_idle_queues();
        }
    }

    /// Forgets queues without lines (so without tasks in memory, in flight or known to be in the store) whose
    /// limits have no state to keep, and whose workers are owed no turn. Their policies stay: their number is
    /// the number of written policies, and tasks cannot make more.
    pub(super) fn forget_idle_queues(&mut self) {
        let mut used: BTreeSet<Handle> = self.lines.iter().map(|(_, line)| line.queue).collect();
        used.extend(self.limits.queues_in_use());
        let is_idle =
            |(h, queue): &(Handle, &Queue)| !used.contains(h) && queue.turns.iter().all(|turn| *turn == 0);
        let idle: Vec<Handle> = self.queues.iter().filter(is_idle).map(|(h, _)| h).collect();
        for handle in idle {
            let queue = self.queues.remove(handle);
            assert!(queue.ready.is_empty() && !queue.active, "queue {} is in use", queue.key);
            self.queue_by_key.remove(&queue.key);
            if let Some(at) = queue.rate_until {
                self.timers.remove(&(at, Timer::QueueRate(handle)));
            }
            if let Some(whole) = queue.whole {
                self.limits.get_mut(whole).bound = false;
                self.limits.drop_if_idle(whole);
            }
        }
        self.queues_kept = self.queues.len();
    }
}

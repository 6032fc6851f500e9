//! Decides the next step of a map: its items begin in order, with a bound on open ones; when all have ended, the reduce
//! task combines their results.

use tasklane_core::invariant::{Invariant, Invariants};

/// A child of such a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapChild {
    /// One of many.
    Item(usize),
    /// The task that combines their results.
    Reduce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildState {
    Waits,
    Open,
    Succeeded,
    Failed,
}

/// Where such a task stands.
#[derive(Clone, Debug)]
pub struct MapTask {
    items: Vec<ChildState>,
    /// `None` if there is none.
    reduce: Option<ChildState>,
    at_once: usize,
    failures_max: usize,
    /// All items before this one have begun.
    next: usize,
    open: usize,
    succeeded: usize,
    failed: usize,
    halted: bool,
    invariants: Invariants,
}

impl MapTask {
    /// Nothing has begun. At most `at_once` items are open at a time, and `failures_max` of them may fail.
    pub fn new(
        items: usize,
        at_once: usize,
        failures_max: usize,
        reduces: bool,
        invariants: Invariants,
    ) -> Self {
        Self {
            items: vec![ChildState::Waits; items],
            reduce: reduces.then_some(ChildState::Waits),
            at_once,
            failures_max,
            next: 0,
            open: 0,
            succeeded: 0,
            failed: 0,
            halted: false,
            invariants,
        }
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Items that have succeeded.
    pub fn succeeded(&self) -> usize {
        self.succeeded
    }

    /// Items that have not.
    pub fn failed(&self) -> usize {
        self.failed
    }

    fn state(&mut self, child: MapChild) -> Option<&mut ChildState> {
        match child {
            MapChild::Item(index) => self.items.get_mut(index),
            MapChild::Reduce => self.reduce.as_mut(),
        }
    }

    /// The task of a child exists.
    pub fn begun(&mut self, child: MapChild) {
        let Some(state) = self.state(child) else { return };
        if *state == ChildState::Waits {
            *state = ChildState::Open;
            self.open += 1;
        }
    }

    /// The task of a child has ended.
    pub fn ended(&mut self, child: MapChild, succeeded: bool) {
        let Some(state) = self.state(child) else { return };
        let before =
            std::mem::replace(state, if succeeded { ChildState::Succeeded } else { ChildState::Failed });
        self.open -= usize::from(before == ChildState::Open);
        if matches!(child, MapChild::Item(_)) && matches!(before, ChildState::Waits | ChildState::Open) {
            self.succeeded += usize::from(succeeded);
            self.failed += usize::from(!succeeded);
        }
    }

    /// More items have failed than may.
    pub fn is_exceeded(&self) -> bool {
        self.failed > self.failures_max
    }

    /// Nothing begins any more. Answers whether that is new.
    pub fn halt(&mut self) -> bool {
        !std::mem::replace(&mut self.halted, true)
    }

    /// Nothing begins any more.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    fn all_ended(&self) -> bool {
        self.succeeded + self.failed == self.items.len()
    }

    /// Items that wait, in their order.
    fn waiting(&mut self, limit: usize) -> Vec<MapChild> {
        while self.items.get(self.next).is_some_and(|state| *state != ChildState::Waits) {
            self.next += 1;
        }
        let waiting = (self.next..self.items.len()).filter(|&index| self.items[index] == ChildState::Waits);
        waiting.take(limit).map(MapChild::Item).collect()
    }

    /// Takes some children that may begin now. The caller reports each as [begun](Self::begun).
    pub fn ready(&mut self, limit: usize) -> Vec<MapChild> {
        if self.halted || self.is_exceeded() {
            return Vec::new();
        }
        let items = self.waiting(limit.min(self.at_once.saturating_sub(self.open)));
        let waits_for = self.all_ended() || !self.invariants.on(Invariant::NodeWaitsForAll);
        if items.is_empty() && waits_for && self.reduce == Some(ChildState::Waits) {
            return vec![MapChild::Reduce];
        }
        items
    }

    /// Nothing is open, and nothing begins any more.
    pub fn is_over(&self) -> bool {
        let open = if self.invariants.on(Invariant::CompositeWaitsForChildren) { self.open } else { 0 };
        let reduced = matches!(self.reduce, None | Some(ChildState::Succeeded | ChildState::Failed));
        open == 0 && (self.halted || self.is_exceeded() || self.all_ended() && reduced)
    }

    /// It is over, and has not come to what it should.
    pub fn has_failed(&self) -> bool {
        self.halted || self.is_exceeded() || self.reduce == Some(ChildState::Failed)
    }

    /// Children that were stopped before they began and that an earlier driver may have submitted: items begin in order,
    /// and at most `at_once` of them were open.
    pub fn maybe_submitted(&mut self) -> Vec<MapChild> {
        if !(self.halted || self.is_exceeded()) || !self.invariants.on(Invariant::StoppedItemsTombstoned) {
            return Vec::new();
        }
        let mut children = self.waiting(self.at_once);
        if self.all_ended() && self.reduce == Some(ChildState::Waits) {
            children.push(MapChild::Reduce);
        }
        children
    }
}

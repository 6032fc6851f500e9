//! One run of a graph.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tasklane_core::invariant::{Invariant, Invariants};

use crate::graph::{Graph, TriggerRule};

/// The effect of a failed node on the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// Nothing begins any more but what is there for failures: nodes with another rule than that all have succeeded.
    #[default]
    Stop,
    /// What does not depend on it goes on.
    Continue,
}

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It depends on what has not ended.
    Waiting,
    /// It may begin.
    Ready,
    /// Its task has not ended.
    Open,
    /// Nothing more happens to it.
    Ended(NodeEnd),
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// Its task succeeded.
    Succeeded,
    /// Its task failed.
    Failed,
    /// Its task was cancelled.
    Cancelled,
    /// It has none.
    Skipped(Skip),
}

/// Why a node has no task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Its own condition does not hold.
    Condition,
    /// This dependency has not succeeded.
    Dependency(usize),
    /// It is there for failures, and there was none.
    NothingFailed,
    /// The run was stopped before.
    Stopped,
}

impl NodeEnd {
    /// It began and did not succeed.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelled)
    }
}

/// How many nodes are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Those that have not begun and may still.
    pub waiting: usize,
    /// Those whose task has not ended.
    pub open: usize,
    /// Those whose task succeeded.
    pub succeeded: usize,
    /// Those whose task failed.
    pub failed: usize,
    /// Those whose task was cancelled.
    pub cancelled: usize,
    /// Those that have no task.
    pub skipped: usize,
}

/// A run: where each node stands.
#[derive(Clone, Debug)]
pub struct Run {
    graph: Arc<Graph>,
    on_failure: OnFailure,
    invariants: Invariants,
    states: Vec<NodeState>,
    /// For each node, dependencies that have not ended.
    awaited: Vec<usize>,
    ready: VecDeque<usize>,
    /// A node has failed, and that stops the run.
    failed: bool,
    /// Nothing begins any more.
    halted: bool,
    counts: Counts,
    /// Nodes that succeeded in an earlier run.
    succeeded_before: Vec<bool>,
    /// Nodes that may differ from the earlier run: the node has begun again, was stopped, or depends on such a node.
    renewed: Vec<bool>,
    /// Nodes that have ended as they did in the earlier run.
    taken_over: Vec<bool>,
}

impl Run {
    /// A run that has not begun.
    pub fn new(graph: Arc<Graph>, on_failure: OnFailure, invariants: Invariants) -> Self {
        let awaited: Vec<usize> = (0..graph.len()).map(|node| graph.waits_for(node).len()).collect();
        let mut run = Self {
            on_failure,
            invariants,
            states: vec![NodeState::Waiting; graph.len()],
            ready: VecDeque::new(),
            failed: false,
            halted: false,
            counts: Counts { waiting: graph.len(), ..Counts::default() },
            succeeded_before: vec![false; graph.len()],
            renewed: vec![false; graph.len()],
            taken_over: vec![false; graph.len()],
            awaited,
            graph,
        };
        for node in 0..run.graph.len() {
            if run.awaited[node] == 0 {
                run.set(node, NodeState::Ready);
            }
        }
        run
    }

    /// The nodes.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Where a node stands.
    pub fn state(&self, node: usize) -> NodeState {
        self.states[node]
    }

    /// How many nodes are where.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A task of a node exists. The caller reports all existing tasks before any end, because a begun node is not stopped.
    pub fn begun(&mut self, node: usize) {
        if matches!(self.states[node], NodeState::Waiting | NodeState::Ready) {
            self.renewed[node] = true;
            self.set(node, NodeState::Open);
        }
    }

    /// What succeeded in an earlier run need not begin again, unless something that it waits for is not what it was: then it
    /// was made of something else. Said after what exists, and before anything is said of ends.
    pub fn take_over(&mut self, succeeded: Vec<bool>) {
        self.succeeded_before = succeeded;
        for node in 0..self.states.len() {
            if self.states[node] == NodeState::Ready && self.succeeded_before[node] {
                self.taken_over[node] = true;
                self.ended(node, NodeEnd::Succeeded);
            }
        }
    }

    /// Whether a node has ended as it did in an earlier run.
    pub fn is_taken_over(&self, node: usize) -> bool {
        self.taken_over[node]
    }

    /// A node has ended: its task has, or it is to have none.
    pub fn ended(&mut self, node: usize, end: NodeEnd) {
        let mut ended = VecDeque::from([(node, end)]);
        while let Some((node, end)) = ended.pop_front() {
            if matches!(self.states[node], NodeState::Ended(_)) {
                continue;
            }
            self.set(node, NodeState::Ended(end));
            self.renewed[node] |= end == NodeEnd::Skipped(Skip::Stopped) || self.waits_for_renewed(node);
            let stops = end.is_failure() && self.on_failure == OnFailure::Stop && !self.failed;
            self.failed |= stops;
            let graph = Arc::clone(&self.graph);
            for &next in graph.awaited_by(node) {
                self.awaited[next] -= 1;
                let decided = self.awaited[next] == 0 || !self.invariants.on(Invariant::NodeWaitsForAll);
                if decided && self.states[next] == NodeState::Waiting {
                    match self.judged(next) {
                        Ok(()) if self.succeeded_before[next] && !self.waits_for_renewed(next) => {
                            self.taken_over[next] = true;
                            ended.push_back((next, NodeEnd::Succeeded));
                        }
                        Ok(()) => self.set(next, NodeState::Ready),
                        Err(skip) => ended.push_back((next, NodeEnd::Skipped(skip))),
                    }
                }
            }
            if stops {
                ended.extend(self.not_begun().filter(|&node| self.is_stopped(node)).map(stopped));
            }
        }
    }

    /// No node begins from now on: the run was cancelled, or its deadline has passed.
    pub fn halt(&mut self) {
        self.halted = true;
        let rest: Vec<usize> = self.not_begun().collect();
        for node in rest {
            self.ended(node, stopped(node).1);
        }
    }

    /// Takes some nodes that may begin. Each node is handed out once; the caller gives back a node that cannot begin yet.
    pub fn take_ready(&mut self, limit: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(node) = self.ready.pop_front()
        {
            if self.states[node] == NodeState::Ready {
                taken.push(node);
            }
        }
        taken
    }

    /// A node could not begin yet.
    pub fn give_back(&mut self, node: usize) {
        if self.states[node] == NodeState::Ready {
            self.ready.push_back(node);
        }
    }

    /// Whether every node has ended.
    pub fn is_over(&self) -> bool {
        let open =
            if self.invariants.on(Invariant::CompositeWaitsForChildren) { self.counts.open } else { 0 };
        self.counts.waiting + open == 0
    }

    /// Whether it has gone well, as far as it has gone.
    pub fn has_failed(&self) -> bool {
        self.counts.failed + self.counts.cancelled > 0
    }

    /// The first node that did not go well.
    pub fn first_failure(&self) -> Option<usize> {
        let failure = |node: &usize| matches!(self.states[*node], NodeState::Ended(end) if end.is_failure());
        (0..self.states.len()).find(failure)
    }

    /// Nodes that were stopped, and would have begun had they not been. Whoever drove the run before may have begun them,
    /// and that may become visible late.
    pub fn stopped_at_the_start(&self) -> Vec<usize> {
        let could_begin = |node: &usize| {
            let is_ended = |on: &usize| matches!(self.states[*on], NodeState::Ended(_));
            self.states[*node] == NodeState::Ended(NodeEnd::Skipped(Skip::Stopped))
                && self.graph.waits_for(*node).iter().all(is_ended)
                && self.fits(*node).is_ok()
        };
        let is_on = self.invariants.on(Invariant::StoppedNodesTombstoned);
        (0..self.states.len()).filter(|_| is_on).filter(could_begin).collect()
    }

    fn not_begun(&self) -> impl Iterator<Item = usize> {
        let open = |node: &usize| matches!(self.states[*node], NodeState::Waiting | NodeState::Ready);
        (0..self.states.len()).filter(open)
    }

    fn is_stopped(&self, node: usize) -> bool {
        self.halted || self.failed && self.graph.rule(node) == TriggerRule::AllSucceeded
    }

    fn waits_for_renewed(&self, node: usize) -> bool {
        self.invariants.on(Invariant::TakenOverUnchanged)
            && self.graph.waits_for(node).iter().any(|&on| self.renewed[on])
    }

    /// Whether a node may begin whose dependencies have ended.
    fn judged(&self, node: usize) -> Result<(), Skip> {
        self.fits(node)?;
        if self.is_stopped(node) { Err(Skip::Stopped) } else { Ok(()) }
    }

    /// Whether its dependencies have ended as its rule asks.
    fn fits(&self, node: usize) -> Result<(), Skip> {
        let mut ends =
            self.graph.waits_for(node).iter().map(|&dependency| (dependency, self.states[dependency]));
        match self.graph.rule(node) {
            TriggerRule::AllSucceeded => {
                let unlike = |(_, state): &(usize, NodeState)| *state != NodeState::Ended(NodeEnd::Succeeded);
                match ends.find(unlike).filter(|(_, state)| matches!(state, NodeState::Ended(_))) {
                    Some((dependency, _)) => Err(Skip::Dependency(dependency)),
                    None => Ok(()),
                }
            }
            TriggerRule::AllDone => Ok(()),
            TriggerRule::AnyFailed => {
                let failed = |(_, state)| matches!(state, NodeState::Ended(end) if end.is_failure());
                if ends.any(failed) { Ok(()) } else { Err(Skip::NothingFailed) }
            }
        }
    }

    fn set(&mut self, node: usize, state: NodeState) {
        *self.count(self.states[node]) -= 1;
        *self.count(state) += 1;
        self.states[node] = state;
        if state == NodeState::Ready {
            self.ready.push_back(node);
        }
    }

    fn count(&mut self, state: NodeState) -> &mut usize {
        let counts = &mut self.counts;
        match state {
            NodeState::Waiting | NodeState::Ready => &mut counts.waiting,
            NodeState::Open => &mut counts.open,
            NodeState::Ended(NodeEnd::Succeeded) => &mut counts.succeeded,
            NodeState::Ended(NodeEnd::Failed) => &mut counts.failed,
            NodeState::Ended(NodeEnd::Cancelled) => &mut counts.cancelled,
            NodeState::Ended(NodeEnd::Skipped(_)) => &mut counts.skipped,
        }
    }
}

fn stopped(node: usize) -> (usize, NodeEnd) {
    (node, NodeEnd::Skipped(Skip::Stopped))
}

//! Which node depends on which.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A node as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// The names of its dependencies.
    pub depends_on: Vec<String>,
    /// What must have come of them.
    pub rule: TriggerRule,
}

/// What must have come of its dependencies for a node to begin. All of them have ended before it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TriggerRule {
    /// Every one has succeeded.
    #[default]
    AllSucceeded,
    /// Whatever came of them.
    AllDone,
    /// One has failed or was cancelled.
    AnyFailed,
}

/// Nodes that wait for each other, without a circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    nodes: Vec<Node>,
    by_name: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    rule: TriggerRule,
    waits_for: Vec<usize>,
    awaited_by: Vec<usize>,
}

/// Why nodes form no graph. An error names nodes by their index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Two have one name.
    #[error("must differ from the names of the other nodes; node {first} has it too")]
    SameName {
        /// The second.
        node: usize,
        /// The first.
        first: usize,
    },
    /// A dependency is not there.
    #[error("must be the name of a node; there is no {name:?}")]
    Unknown {
        /// Whose.
        node: usize,
        /// Which of its dependencies.
        at: usize,
        /// What it says.
        name: String,
    },
    /// A dependency is said twice.
    #[error("must be named once")]
    Twice {
        /// Whose.
        node: usize,
        /// Which of its dependencies.
        at: usize,
    },
    /// Some wait for each other.
    #[error("must not wait for itself: {}", path.join(" waits for "))]
    Circle {
        /// One of them.
        node: usize,
        /// The way from it to itself.
        path: Vec<String>,
    },
}

impl Graph {
    /// The graph of some nodes.
    pub fn new(specs: Vec<NodeSpec>) -> Result<Self, GraphError> {
        let mut by_name = BTreeMap::new();
        for (node, spec) in specs.iter().enumerate() {
            if let Some(first) = by_name.insert(spec.name.clone(), node) {
                return Err(GraphError::SameName { node, first });
            }
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(specs.len());
        for (node, spec) in specs.into_iter().enumerate() {
            let mut waits_for = Vec::with_capacity(spec.depends_on.len());
            for (at, name) in spec.depends_on.into_iter().enumerate() {
                let Some(&dependency) = by_name.get(&name) else {
                    return Err(GraphError::Unknown { node, at, name });
                };
                waits_for.push(dependency);
            }
            let mut sorted: Vec<(usize, usize)> =
                waits_for.iter().copied().enumerate().map(|(at, dependency)| (dependency, at)).collect();
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(GraphError::Twice { node, at: pair[1].1 });
            }
            nodes.push(Node { name: spec.name, rule: spec.rule, waits_for, awaited_by: Vec::new() });
        }
        for node in 0..nodes.len() {
            for at in 0..nodes[node].waits_for.len() {
                let dependency = nodes[node].waits_for[at];
                nodes[dependency].awaited_by.push(node);
            }
        }
        let graph = Self { nodes, by_name };
        graph.check_order()?;
        Ok(graph)
    }

    /// Removes nodes without dependencies until none remains. The remaining nodes wait for each other.
    fn check_order(&self) -> Result<(), GraphError> {
        let mut waits: Vec<usize> = self.nodes.iter().map(|node| node.waits_for.len()).collect();
        let mut free: Vec<usize> = (0..waits.len()).filter(|&node| waits[node] == 0).collect();
        let mut ordered = 0;
        while let Some(node) = free.pop() {
            ordered += 1;
            for &next in &self.nodes[node].awaited_by {
                waits[next] -= 1;
                if waits[next] == 0 {
                    free.push(next);
                }
            }
        }
        if ordered == waits.len() {
            return Ok(());
        }
        // Each remaining node waits for another remaining node, so a walk along the dependencies closes a circle.
        let is_left = |node: &usize| waits[*node] > 0;
        let mut at = (0..waits.len()).find(|node| is_left(node)).expect("some are left");
        let mut seen = vec![None; waits.len()];
        let mut way = Vec::new();
        while seen[at].is_none() {
            seen[at] = Some(way.len());
            way.push(at);
            let next = self.nodes[at].waits_for.iter().find(|node| is_left(node));
            at = *next.expect("what is left waits for something that is left");
        }
        let circle = &way[seen[at].unwrap_or_default()..];
        let path = circle.iter().chain([&at]).map(|&node| self.nodes[node].name.clone()).collect();
        Err(GraphError::Circle { node: at, path })
    }

    /// Nodes that are what they were in an earlier definition, as is every node before them. `is_same` compares a node
    /// with the node of its name there.
    pub fn unchanged(&self, is_same: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut unchanged: Vec<bool> = (0..self.len()).map(is_same).collect();
        let mut changed: Vec<usize> = (0..self.len()).filter(|&node| !unchanged[node]).collect();
        while let Some(node) = changed.pop() {
            for &next in self.awaited_by(node) {
                if std::mem::replace(&mut unchanged[next], false) {
                    changed.push(next);
                }
            }
        }
        unchanged
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The name of a node.
    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// The node of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The dependencies of a node.
    pub fn waits_for(&self, node: usize) -> &[usize] {
        &self.nodes[node].waits_for
    }

    /// The nodes that depend on a node.
    pub fn awaited_by(&self, node: usize) -> &[usize] {
        &self.nodes[node].awaited_by
    }

    /// What must have come of what it waits for.
    pub fn rule(&self, node: usize) -> TriggerRule {
        self.nodes[node].rule
    }
}

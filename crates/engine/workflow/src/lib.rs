//! What a workflow does next. Pure: it is told which tasks exist and how they ended, and says which may begin.
//!
//! What is decided about a node rests only on how its dependencies ended, not on the order in which that was heard. So
//! whoever forgets everything and is told anew decides the same.

mod graph;
mod run;

pub use graph::{Graph, GraphError, NodeSpec, TriggerRule};
pub use run::{Counts, End, NodeState, OnFailure, Run, Skip};

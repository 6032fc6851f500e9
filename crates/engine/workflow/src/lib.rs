//! Decides the next step of a composite: a workflow run, a map, a job. Pure: the input is the set of existing children
//! and how they ended, the output is the set of children that may begin.
//!
//! Decisions rest only on the existing children and their ends, not on the order of notifications. So a driver that
//! rebuilds its state from the store decides the same.

mod graph;
mod job;
mod map;
mod run;

pub use graph::{Graph, GraphError, NodeSpec, TriggerRule};
pub use job::{AGAIN_MAX, Job, JobLimit, JobLimits, ROOT, analysis_of, analyzed_by, depth, is_analysis};
pub use map::{MapChild, MapTask};
pub use run::{Counts, NodeEnd, NodeState, OnFailure, Run, Skip};

//! What a task that drives others does next: a run of a workflow, a task that becomes many, a job. Pure: it is told which
//! tasks exist and how they ended, and says which may begin.
//!
//! What is decided rests only on what exists and how it ended, not on the order in which that was heard. So whoever forgets
//! everything and is told anew decides the same.

mod graph;
mod job;
mod map;
mod run;

pub use graph::{Graph, GraphError, NodeSpec, TriggerRule};
pub use job::{AGAIN_MAX, Job, JobLimit, JobLimits, ROOT, analysis_of, analyzed_by, depth, is_analysis};
pub use map::{MapChild, MapTask};
pub use run::{Counts, NodeEnd, NodeState, OnFailure, Run, Skip};

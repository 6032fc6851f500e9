//! System tasks that drive others: one driver, and the parts that differ between runs, maps and jobs.

pub(super) mod driver;
pub(super) mod job;
pub(super) mod map;
mod reports;
pub(super) mod workflow_run;

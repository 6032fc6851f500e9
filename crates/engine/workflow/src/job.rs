//! Decides the next step of a job. A job is a root task and its descendants: each result gets an analysis, which may add
//! tasks or repeat a task.
//!
//! The name of a task states its origin: `r` is the root, `r/a` its analysis, `r.3` the fourth task that this analysis
//! added, `r.3+1` the first repetition of that task.

use std::collections::{BTreeMap, VecDeque};

use tasklane_core::invariant::{Invariant, Invariants};

/// The name of the first task.
pub const ROOT: &str = "r";
/// How often a task may be run again because its analysis says so.
pub const AGAIN_MAX: u32 = 10;

/// What one result may add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// How far from the root a task may be.
    pub depth: usize,
    /// Tasks added at once.
    pub at_once: usize,
    /// Tasks of the job.
    pub tasks: usize,
}

/// Why a task was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobLimit {
    /// Too many at once.
    #[error("{asked} subtasks were asked for at once, {allowed} are allowed")]
    AtOnce {
        /// So many.
        asked: usize,
        /// Of so many.
        allowed: usize,
    },
    /// Too far from the root.
    #[error("tasks may be {0} away from their root, and no further")]
    Depth(usize),
    /// The job has as many as it may.
    #[error("a job may have {0} tasks")]
    Tasks(usize),
    /// It was run again too often.
    #[error("it was run again {AGAIN_MAX} times")]
    Again,
}

/// How far a task is from the root.
pub fn depth(name: &str) -> usize {
    name.matches('.').count()
}

/// Whether a name is that of an analysis.
pub fn is_analysis(name: &str) -> bool {
    name.ends_with("/a")
}

/// The task whose result an analysis looks at.
pub fn analyzed_by(analysis: &str) -> &str {
    analysis.strip_suffix("/a").unwrap_or(analysis)
}

/// The name of the analysis of a task.
pub fn analysis_of(name: &str) -> String {
    format!("{name}/a")
}

/// The name under which a task is run again; `None` if it was too often.
fn again(name: &str) -> Option<String> {
    // The text behind the last point belongs to this task, the text before it to its ancestors.
    let (base, times) = match name.rsplit_once('+') {
        Some((base, times)) if !times.contains('.') => (base, times.parse().unwrap_or(0)),
        _ => (name, 0_u32),
    };
    (times < AGAIN_MAX).then(|| format!("{base}+{}", times + 1))
}

/// Where a job stands. `M` is what is kept of each task that exists, `R` what is needed to submit one.
#[derive(Debug)]
pub struct Job<M, R> {
    members: BTreeMap<String, M>,
    open: usize,
    tasks: usize,
    /// Ended tasks without an analysis so far.
    ended: VecDeque<String>,
    /// To be submitted.
    ready: VecDeque<(String, R)>,
    failed: bool,
    halted: bool,
    invariants: Invariants,
}

impl<M, R> Job<M, R> {
    /// Nothing has begun.
    pub fn new(invariants: Invariants) -> Self {
        Self {
            members: BTreeMap::new(),
            open: 0,
            tasks: 0,
            ended: VecDeque::new(),
            ready: VecDeque::new(),
            failed: false,
            halted: false,
            invariants,
        }
    }

    /// The known facts of a task.
    pub fn member(&self, name: &str) -> Option<&M> {
        self.members.get(name)
    }

    /// The same, to change it.
    pub fn member_mut(&mut self, name: &str) -> Option<&mut M> {
        self.members.get_mut(name)
    }

    /// All that exist.
    pub fn members(&self) -> impl Iterator<Item = (&String, &M)> {
        self.members.iter()
    }

    /// A task exists. It may have been counted when it became ready.
    pub fn begun(&mut self, name: String, member: M) {
        if self.members.insert(name, member).is_none() {
            self.open += 1;
        }
    }

    /// A task exists of which nothing was known: it counts.
    pub fn found(&mut self, name: String, member: M) {
        self.tasks += usize::from(!is_analysis(&name));
        self.begun(name, member);
    }

    /// An existing task has ended: its end needs an analysis.
    pub fn ended(&mut self, name: String) {
        self.open -= 1;
        self.ended.push_back(name);
    }

    /// A task that was open is not there any more.
    pub fn gone(&mut self, name: &str) {
        if self.members.remove(name).is_some() {
            self.open -= 1;
        }
    }

    /// Takes some ended tasks that need an analysis.
    pub fn take_ended(&mut self, limit: usize) -> Vec<String> {
        self.ended.drain(..self.ended.len().min(limit)).collect()
    }

    fn make_ready(&mut self, name: String, request: R) {
        if !self.members.contains_key(&name) {
            self.tasks += usize::from(!is_analysis(&name));
            self.ready.push_back((name, request));
        }
    }

    /// Requests an analysis of a task's result.
    pub fn analyze(&mut self, of: &str, request: impl FnOnce() -> R) {
        let name = analysis_of(of);
        if !self.members.contains_key(&name) {
            self.make_ready(name, request());
        }
    }

    /// Repeats a task.
    pub fn run_again(&mut self, of: &str, request: R) -> Result<(), JobLimit> {
        let name = again(of).ok_or(JobLimit::Again)?;
        self.make_ready(name, request);
        Ok(())
    }

    /// A result adds tasks: all of them or, where there are too many for the job, the first.
    pub fn add(&mut self, of: &str, requests: Vec<R>, limits: JobLimits) -> Result<(), JobLimit> {
        if requests.is_empty() {
            return Ok(());
        }
        if requests.len() > limits.at_once {
            return Err(JobLimit::AtOnce { asked: requests.len(), allowed: limits.at_once });
        }
        if depth(of) >= limits.depth {
            return Err(JobLimit::Depth(limits.depth));
        }
        for (at, request) in requests.into_iter().enumerate() {
            let name = format!("{of}.{at}");
            if !self.members.contains_key(&name) && self.tasks >= limits.tasks {
                return Err(JobLimit::Tasks(limits.tasks));
            }
            self.make_ready(name, request);
        }
        Ok(())
    }

    /// Takes some tasks that may begin now. The caller reports each as [begun](Self::begun) or [gives it back](Self::give_back).
    pub fn take_ready(&mut self, limit: usize) -> Vec<(String, R)> {
        if self.halted {
            return Vec::new();
        }
        self.ready.drain(..self.ready.len().min(limit)).collect()
    }

    /// It could not begin yet.
    pub fn give_back(&mut self, name: String, request: R) {
        self.ready.push_back((name, request));
    }

    /// It has come to something that it should not.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// It has.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Nothing begins any more.
    pub fn halt(&mut self) {
        self.halted = true;
    }

    /// Nothing begins any more.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// No task is open, no end needs an analysis, and no further task begins.
    pub fn is_over(&self) -> bool {
        let open = if self.invariants.on(Invariant::CompositeWaitsForChildren) { self.open } else { 0 };
        let has_begun = self.members.contains_key(ROOT) || self.failed;
        open == 0 && self.ended.is_empty() && (self.halted || has_begun && self.ready.is_empty())
    }

    /// Takes tasks that were stopped before they began and that an earlier driver may have submitted.
    pub fn take_maybe_submitted(&mut self) -> Vec<(String, R)> {
        if !self.invariants.on(Invariant::StoppedSubtasksTombstoned) {
            self.ready.clear();
        }
        self.ready.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: JobLimits = JobLimits { depth: 3, at_once: 2, tasks: 5 };

    fn begun(names: &[&str]) -> Job<(), ()> {
        let mut job = Job::new(Invariants::ALL_ON);
        for name in names {
            job.found((*name).to_owned(), ());
        }
        job
    }

    fn ready(job: &mut Job<(), ()>) -> Vec<String> {
        job.take_ready(usize::MAX).into_iter().map(|(name, ())| name).collect()
    }

    #[test]
    fn a_task_below_a_retried_one_is_run_again_by_its_own_count() {
        let mut job = begun(&["r", "r+1", "r+1.0"]);
        job.run_again("r+1.0", ()).unwrap();
        assert_eq!(ready(&mut job), ["r+1.0+1"]);
        let mut job = begun(&["r+10.0"]);
        job.run_again("r+10.0", ()).unwrap();
        assert_eq!(ready(&mut job), ["r+10.0+1"]);
        assert_eq!(job.run_again("r+10", ()), Err(JobLimit::Again));
    }

    #[test]
    fn what_exists_is_not_added_twice_and_limits_hold() {
        let mut job = begun(&["r", "r.0"]);
        job.add("r", vec![(), ()], LIMITS).unwrap();
        job.analyze("r.0", || ());
        assert_eq!(ready(&mut job), ["r.1", "r.0/a"]);
        assert_eq!(job.add("r", vec![(); 3], LIMITS), Err(JobLimit::AtOnce { asked: 3, allowed: 2 }));
        assert_eq!(job.add("r.0.0.0", vec![()], LIMITS), Err(JobLimit::Depth(3)));
        job.add("r.1", vec![(), ()], LIMITS).unwrap();
        assert_eq!(job.add("r.0", vec![(), ()], LIMITS), Err(JobLimit::Tasks(5)));
    }

    #[test]
    fn it_is_over_when_nothing_is_open_unlooked_at_or_ready() {
        let mut job = begun(&["r"]);
        assert!(!job.is_over());
        job.ended("r".to_owned());
        assert!(!job.is_over(), "nobody has looked at it");
        job.take_ended(1);
        job.analyze("r", || ());
        assert!(!job.is_over(), "its analysis is ready");
        job.halt();
        assert!(job.is_over());
        assert_eq!(job.take_maybe_submitted().len(), 1);
    }
}

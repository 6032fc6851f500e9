//! Composites: the decisions of each kind, and a second opinion that rests on the child tasks alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use tasklane_core::id::TaskId;
use tasklane_core::invariant::Invariants;
use tasklane_core::rng::Rng;
use tasklane_core::status::Status;
use tasklane_workflow::{
    Graph, Job, JobLimits, MapChild, MapTask, NodeEnd, NodeSpec, OnFailure, ROOT, Run, Skip, TriggerRule,
    analysis_of, analyzed_by, depth, is_analysis,
};

/// A child, as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct StoredChild {
    pub(crate) name: String,
    pub(crate) id: TaskId,
    pub(crate) status: Status,
}

/// The decision about a composite.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Children that begin.
    pub(crate) begin: Vec<String>,
    /// The open children are cancelled.
    pub(crate) stops: bool,
    /// It is over, and whether it failed.
    pub(crate) over: Option<bool>,
    /// Children that were stopped before they began, but may have been submitted.
    pub(crate) maybe_submitted: Vec<String>,
}

/// A task that drives others.
#[derive(Debug)]
pub(crate) enum CompositeKind {
    /// A run of a workflow.
    Graph {
        graph: Arc<Graph>,
        on_failure: OnFailure,
        /// Nodes that succeeded in an earlier run.
        before: Vec<bool>,
    },
    /// A task that becomes many.
    Map { items: usize, at_once: usize, failures_max: usize, reduces: bool },
    /// A job: its children follow from the results of its analyses.
    Job { seed: u64 },
}

/// Children that begin in one go.
const AT_A_TIME: usize = 3;
/// How far tasks of a job are from its root.
const DEPTH_MAX: usize = 3;
const REDUCE: &str = "reduce";

/// The result of an analysis.
struct AnalysisResult {
    subtasks: usize,
    again: bool,
}

fn end_of(status: Status) -> Option<NodeEnd> {
    match status {
        Status::Success => Some(NodeEnd::Succeeded),
        Status::Failed => Some(NodeEnd::Failed),
        Status::Cancelled => Some(NodeEnd::Cancelled),
        _ => None,
    }
}

fn index(rng: &mut Rng, below: u64) -> usize {
    usize::try_from(rng.below(below)).unwrap_or(0)
}

/// The result of the analysis of a task: always the same.
fn said(seed: u64, of: &str) -> AnalysisResult {
    let mixed = of.bytes().fold(seed, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut rng = Rng::new(mixed);
    let subtasks = if depth(of) < DEPTH_MAX { index(&mut rng, 3) } else { 0 };
    AnalysisResult { subtasks, again: rng.chance(15) && !of.contains('+') }
}

/// Whether the type of a task has an analyzer.
fn is_analyzed(name: &str) -> bool {
    !is_analysis(name) && depth(name) < DEPTH_MAX
}

fn name_of(child: MapChild) -> String {
    match child {
        MapChild::Item(index) => index.to_string(),
        MapChild::Reduce => REDUCE.to_owned(),
    }
}

fn child_of(name: &str) -> Option<MapChild> {
    if name == REDUCE { Some(MapChild::Reduce) } else { name.parse().ok().map(MapChild::Item) }
}

impl CompositeKind {
    pub(crate) fn graph(rng: &mut Rng, nodes: u64) -> Self {
        let mut specs: Vec<NodeSpec> = Vec::new();
        for at in 0..nodes {
            let mut on: Vec<u64> = (0..rng.below(3)).filter(|_| at > 0).map(|_| rng.below(at)).collect();
            on.sort_unstable();
            on.dedup();
            let rule = match rng.below(6) {
                0 if !on.is_empty() => TriggerRule::AllDone,
                1 if !on.is_empty() => TriggerRule::AnyFailed,
                _ => TriggerRule::AllSucceeded,
            };
            let depends_on = on.into_iter().map(|on| format!("n{on}")).collect();
            specs.push(NodeSpec { name: format!("n{at}"), depends_on, rule });
        }
        let on_failure = if rng.chance(60) { OnFailure::Stop } else { OnFailure::Continue };
        let is_retry = rng.chance(40);
        let before = specs.iter().map(|_| is_retry && rng.chance(60)).collect();
        let graph = Arc::new(Graph::new(specs).expect("nodes depend on earlier ones"));
        Self::Graph { graph, on_failure, before }
    }

    pub(crate) fn map(rng: &mut Rng) -> Self {
        let items = 1 + index(rng, 12);
        let failures_max = if rng.chance(50) { items } else { index(rng, 3) };
        Self::Map { items, at_once: 1 + index(rng, 5), failures_max, reduces: rng.chance(70) }
    }

    pub(crate) fn job(rng: &mut Rng) -> Self {
        Self::Job { seed: rng.next_u64() }
    }

    /// The decision, by the children and how they ended.
    pub(crate) fn decide(
        &self,
        children: &[StoredChild],
        cancelled: bool,
        invariants: Invariants,
    ) -> Decision {
        match self {
            Self::Graph { graph, on_failure, before } => {
                let run = Run::new(Arc::clone(graph), *on_failure, invariants);
                decide_graph(run, graph, before, children, cancelled)
            }
            Self::Map { items, at_once, failures_max, reduces } => decide_map(
                MapTask::new(*items, *at_once, *failures_max, *reduces, invariants),
                children,
                cancelled,
            ),
            Self::Job { seed } => decide_job(*seed, Job::new(invariants), children, cancelled),
        }
    }

    /// Why a child that was just created should not exist yet.
    pub(crate) fn too_early(
        &self,
        name: &str,
        children: &BTreeMap<String, Status>,
        cancelled: bool,
    ) -> Option<String> {
        match self {
            Self::Graph { graph, .. } => {
                let node = graph.find(name)?;
                let ends = graph.waits_for(node).iter().map(|&on| self.settled(cancelled, on, children));
                let ends: Vec<Option<NodeEnd>> = ends.map(|end| end.map(|(end, _)| end)).collect();
                let fits = match graph.rule(node) {
                    TriggerRule::AllSucceeded => ends.iter().all(|end| *end == Some(NodeEnd::Succeeded)),
                    TriggerRule::AllDone => ends.iter().all(Option::is_some),
                    TriggerRule::AnyFailed => {
                        let failed =
                            |end: &Option<NodeEnd>| matches!(end, Some(NodeEnd::Failed | NodeEnd::Cancelled));
                        ends.iter().all(Option::is_some) && ends.iter().any(failed)
                    }
                };
                (!fits).then(|| format!("the nodes that it waits for ended as {ends:?}"))
            }
            Self::Map { items, at_once, failures_max, .. } => {
                let item = |at: usize| children.get(&at.to_string()).copied();
                let open = (0..*items).filter(|&at| item(at).is_some_and(|status| !status.is_final()));
                let failed = (0..*items).filter(|&at| {
                    item(at).is_some_and(|status| status.is_final() && status != Status::Success)
                });
                match child_of(name)? {
                    MapChild::Item(_) => {
                        let open = open.count();
                        (open > *at_once).then(|| format!("{open} items are open; the limit is {at_once}"))
                    }
                    MapChild::Reduce => {
                        let ended = (0..*items).all(|at| item(at).is_some_and(Status::is_final));
                        (!ended || failed.count() > *failures_max).then(|| format!("of {children:?}"))
                    }
                }
            }
            Self::Job { seed } => {
                let status = |name: &str| children.get(name).copied();
                let looked_at = |of: &str| status(&analysis_of(of)) == Some(Status::Success);
                let fits = if is_analysis(name) {
                    let of = analyzed_by(name);
                    is_analyzed(of) && matches!(status(of), Some(Status::Success | Status::Failed))
                } else if let Some((of, _)) = name.rsplit_once('+').filter(|(_, times)| !times.contains('.'))
                {
                    looked_at(of) && said(*seed, of).again
                } else if let Some((of, at)) = name.rsplit_once('.') {
                    looked_at(of) && at.parse::<usize>().is_ok_and(|at| at < said(*seed, of).subtasks)
                } else {
                    name == ROOT
                };
                (!fits).then(|| format!("of {children:?}"))
            }
        }
    }

    /// A child that is missing, or a wrong end, when the composite is over.
    pub(crate) fn forgotten(
        &self,
        children: &BTreeMap<String, Status>,
        cancelled: bool,
        failed: bool,
    ) -> Option<String> {
        match self {
            Self::Graph { graph, .. } => {
                let never = |node: &usize| self.settled(cancelled, *node, children).is_none();
                if let Some(node) = (0..graph.len()).find(never) {
                    return Some(format!("its node {node} never began"));
                }
                let bad = |name: &&String| matches!(children[*name], Status::Failed | Status::Cancelled);
                let should = children.keys().filter(|name| graph.find(name).is_some()).any(|name| bad(&name));
                (should != failed).then(|| format!("its reported failure is wrong: {failed}"))
            }
            // Whether the driver saw a cancel before all children had ended is a matter of time.
            Self::Map { .. } | Self::Job { .. } if cancelled => None,
            Self::Map { items, failures_max, reduces, .. } => {
                let status = |name: &str| children.get(name).copied();
                let items: Vec<Option<Status>> = (0..*items).map(|at| status(&at.to_string())).collect();
                let bad = |status: &Option<Status>| status.is_some_and(|status| status != Status::Success);
                let exceeded = items.iter().filter(|status| bad(status)).count() > *failures_max;
                let reduced = status(REDUCE);
                if !exceeded && (items.contains(&None) || *reduces && reduced.is_none()) {
                    return Some("not all of its children have begun".to_owned());
                }
                let should = exceeded || bad(&reduced);
                (should != failed).then(|| format!("its reported failure is wrong: {failed}"))
            }
            Self::Job { seed } => {
                let status = |name: &str| children.get(name).copied();
                for (name, status_of) in children {
                    let ended = matches!(status_of, Status::Success | Status::Failed);
                    let analysis = analysis_of(name);
                    if is_analyzed(name) && !name.starts_with('~') && ended && status(&analysis).is_none() {
                        return Some(format!("no analysis began for {name}"));
                    }
                    if is_analysis(name) && *status_of == Status::Success {
                        let of = analyzed_by(name);
                        let AnalysisResult { subtasks, again } = said(*seed, of);
                        let lacks = (0..subtasks).any(|at| status(&format!("{of}.{at}")).is_none());
                        if lacks || again && status(&format!("{of}+1")).is_none() {
                            return Some(format!("the tasks that {name} added were not created"));
                        }
                    }
                }
                if status(ROOT).is_none() {
                    return Some("it never began".to_owned());
                }
                // The analysis decides how an analyzed task went.
                let is_bad = |(name, status): (&String, &Status)| {
                    !(is_analyzed(name) && *status == Status::Failed) && *status != Status::Success
                };
                let should = children.iter().filter(|(name, _)| !name.starts_with('~')).any(is_bad);
                (should != failed).then(|| format!("its reported failure is wrong: {failed}"))
            }
        }
    }
}

fn decide_graph(
    mut run: Run,
    graph: &Graph,
    before: &[bool],
    children: &[StoredChild],
    cancelled: bool,
) -> Decision {
    let of_nodes = || children.iter().filter_map(|child| Some((graph.find(&child.name)?, child.status)));
    for (node, _) in of_nodes() {
        run.begun(node);
    }
    run.take_over(before.to_vec());
    for (node, status) in of_nodes() {
        if let Some(end) = end_of(status) {
            run.ended(node, end);
        }
    }
    if cancelled {
        run.halt();
    }
    let name = |node: usize| graph.name(node).to_owned();
    let begin = run.take_ready(AT_A_TIME).into_iter().map(name).collect();
    let over = run.is_over().then(|| run.has_failed());
    let maybe_submitted = run.stopped_at_the_start().into_iter().map(name).collect();
    Decision { begin, stops: cancelled, over, maybe_submitted }
}

fn decide_map(mut map: MapTask, children: &[StoredChild], cancelled: bool) -> Decision {
    for child in children {
        let Some(of) = child_of(&child.name) else { continue };
        map.begun(of);
        if child.status.is_final() {
            map.ended(of, child.status == Status::Success);
        }
    }
    if cancelled {
        map.halt();
    }
    let stops = cancelled || map.is_exceeded();
    let begin = map.ready(AT_A_TIME).into_iter().map(name_of).collect();
    let over = map.is_over().then(|| map.has_failed());
    Decision { begin, stops, over, maybe_submitted: map.maybe_submitted().into_iter().map(name_of).collect() }
}

fn decide_job(seed: u64, mut job: Job<Status, ()>, children: &[StoredChild], cancelled: bool) -> Decision {
    for child in children {
        job.found(child.name.clone(), child.status);
        if child.status.is_final() {
            job.ended(child.name.clone());
        }
    }
    let limits = JobLimits { depth: DEPTH_MAX, at_once: 10, tasks: 1000 };
    loop {
        let ended = job.take_ended(10);
        if ended.is_empty() {
            break;
        }
        for name in ended {
            let succeeded = job.member(&name) == Some(&Status::Success);
            let was_cancelled = job.member(&name) == Some(&Status::Cancelled);
            if is_analyzed(&name) && !was_cancelled {
                job.analyze(&name, || ());
            } else if !succeeded {
                job.fail();
            } else if is_analysis(&name) {
                let of = analyzed_by(&name);
                let AnalysisResult { subtasks, again } = said(seed, of);
                if again && job.run_again(of, ()).is_err() || job.add(of, vec![(); subtasks], limits).is_err()
                {
                    job.fail();
                }
            }
        }
    }
    if cancelled {
        job.halt();
    }
    // The root counts as a child whichever server submits it, so a cancel finds it.
    if job.member(ROOT).is_none() {
        return Decision {
            begin: vec![ROOT.to_owned()],
            stops: false,
            over: None,
            maybe_submitted: Vec::new(),
        };
    }
    let name = |(name, ()): (String, ())| name;
    let begin = job.take_ready(AT_A_TIME).into_iter().map(name).collect();
    let over = job.is_over().then(|| job.has_failed());
    Decision {
        begin,
        stops: cancelled,
        over,
        maybe_submitted: job.take_maybe_submitted().into_iter().map(name).collect(),
    }
}

impl CompositeKind {
    /// The final end of a node, derived once more from the tasks alone; and whether it is unchanged since an
    /// earlier run.
    fn settled(
        &self,
        cancelled: bool,
        node: usize,
        children: &BTreeMap<String, Status>,
    ) -> Option<(NodeEnd, bool)> {
        let Self::Graph { graph, on_failure, before } = self else { return None };
        if let Some(status) = children.get(graph.name(node)) {
            return end_of(*status).map(|end| (end, false));
        }
        let ends: Vec<Option<(NodeEnd, bool)>> =
            graph.waits_for(node).iter().map(|&on| self.settled(cancelled, on, children)).collect();
        let all_ended = ends.iter().all(Option::is_some);
        let unchanged = ends.iter().all(|end| end.is_some_and(|(_, unchanged)| unchanged));
        let failed = ends.iter().any(|end| matches!(end, Some((NodeEnd::Failed | NodeEnd::Cancelled, _))));
        let begins = all_ended
            && match graph.rule(node) {
                TriggerRule::AllSucceeded => {
                    ends.iter().all(|end| matches!(end, Some((NodeEnd::Succeeded, _))))
                }
                TriggerRule::AllDone => true,
                TriggerRule::AnyFailed => failed,
            };
        let skipped = NodeEnd::Skipped(Skip::Condition);
        if all_ended && !begins {
            return Some((skipped, unchanged));
        }
        if begins && unchanged && before[node] {
            return Some((NodeEnd::Succeeded, true));
        }
        let has_failed = children.values().any(|status| matches!(status, Status::Failed | Status::Cancelled));
        let for_failures = graph.rule(node) != TriggerRule::AllSucceeded;
        let is_stopped = cancelled || has_failed && *on_failure == OnFailure::Stop && !for_failures;
        is_stopped.then_some((skipped, false))
    }
}

//! Which nodes run, against a second opinion.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use proptest::prelude::*;
use tasklane_core::invariant::Invariants;
use tasklane_workflow::{Graph, GraphError, NodeEnd, NodeSpec, NodeState, OnFailure, Run, Skip, TriggerRule};

fn node(name: &str, depends_on: &[&str], rule: TriggerRule) -> NodeSpec {
    let depends_on = depends_on.iter().map(ToString::to_string).collect();
    NodeSpec { name: name.to_owned(), depends_on, rule }
}

fn graph(nodes: &[(&str, &[&str])]) -> Result<Graph, GraphError> {
    Graph::new(nodes.iter().map(|(name, on)| node(name, on, TriggerRule::AllSucceeded)).collect())
}

fn run(nodes: Vec<NodeSpec>, on_failure: OnFailure) -> Run {
    Run::new(Arc::new(Graph::new(nodes).unwrap()), on_failure, Invariants::ALL_ON)
}

#[test]
fn what_is_no_graph_is_told_with_its_place() {
    assert_eq!(graph(&[("a", &[]), ("a", &[])]), Err(GraphError::SameName { node: 1, first: 0 }));
    let unknown = GraphError::Unknown { node: 1, at: 1, name: "c".to_owned() };
    assert_eq!(graph(&[("a", &[]), ("b", &["a", "c"])]), Err(unknown));
    assert_eq!(graph(&[("a", &[]), ("b", &["a", "a"])]), Err(GraphError::Twice { node: 1, at: 1 }));
    let circle = graph(&[("s", &[]), ("a", &["s", "c"]), ("b", &["a"]), ("c", &["b"]), ("d", &["c"])]);
    let message = circle.unwrap_err().to_string();
    assert_eq!(message, "must not wait for itself: a waits for c waits for b waits for a");
    let own = graph(&[("a", &["a"])]).unwrap_err().to_string();
    assert_eq!(own, "must not wait for itself: a waits for a");
}

#[test]
fn a_failure_stops_what_has_not_begun_but_for_what_is_there_for_it() {
    let nodes = || {
        vec![
            node("a", &[], TriggerRule::AllSucceeded),
            node("b", &[], TriggerRule::AllSucceeded),
            node("after_b", &["b"], TriggerRule::AllSucceeded),
            node("clean", &["after_b"], TriggerRule::AllDone),
            node("alert", &["a"], TriggerRule::AnyFailed),
            node("quiet", &["b"], TriggerRule::AnyFailed),
        ]
    };
    let mut stop = run(nodes(), OnFailure::Stop);
    assert_eq!(stop.take_ready(9), [0, 1]);
    stop.begun(0);
    stop.begun(1);
    stop.ended(0, NodeEnd::Failed);
    assert_eq!(stop.state(2), NodeState::Ended(NodeEnd::Skipped(Skip::Stopped)));
    assert_eq!(stop.take_ready(9), [4, 3], "what is there for failures goes on");
    stop.ended(1, NodeEnd::Succeeded);
    assert_eq!(stop.state(5), NodeState::Ended(NodeEnd::Skipped(Skip::NothingFailed)));
    assert!(!stop.is_over());
    stop.ended(3, NodeEnd::Succeeded);
    stop.ended(4, NodeEnd::Succeeded);
    assert!(stop.is_over() && stop.has_failed());
    assert_eq!(stop.first_failure(), Some(0));

    let mut go_on = run(nodes(), OnFailure::Continue);
    go_on.ended(0, NodeEnd::Failed);
    assert_eq!(go_on.state(2), NodeState::Waiting);
    go_on.ended(1, NodeEnd::Succeeded);
    assert_eq!(go_on.take_ready(9), [4, 2]);
}

#[test]
fn a_halt_leaves_only_what_has_begun() {
    let mut halted = run(
        vec![
            node("a", &[], TriggerRule::AllSucceeded),
            node("b", &["a"], TriggerRule::AllDone),
            node("c", &[], TriggerRule::AllSucceeded),
        ],
        OnFailure::Continue,
    );
    halted.begun(0);
    halted.halt();
    assert!(halted.take_ready(9).is_empty() && !halted.is_over());
    halted.ended(0, NodeEnd::Cancelled);
    assert!(halted.is_over());
    assert_eq!(halted.state(1), NodeState::Ended(NodeEnd::Skipped(Skip::Stopped)));
}

/// The outcome of each node's task, and whether the node wants a task.
#[derive(Clone, Debug)]
struct Fate {
    specs: Vec<NodeSpec>,
    ends: Vec<NodeEnd>,
    wanted: Vec<bool>,
    /// The order of notifications.
    order: Vec<u32>,
}

fn fates() -> impl Strategy<Value = Fate> {
    let rule = prop_oneof![
        3 => Just(TriggerRule::AllSucceeded),
        1 => Just(TriggerRule::AllDone),
        1 => Just(TriggerRule::AnyFailed),
    ];
    let end =
        prop_oneof![4 => Just(NodeEnd::Succeeded), 1 => Just(NodeEnd::Failed), 1 => Just(NodeEnd::Cancelled)];
    let each =
        (rule, end, prop::bool::weighted(0.9), any::<u32>(), prop::collection::vec(any::<u32>(), 0..4));
    prop::collection::vec(each, 1..40).prop_map(|all| {
        let mut fate = Fate { specs: Vec::new(), ends: Vec::new(), wanted: Vec::new(), order: Vec::new() };
        for (at, (rule, end, wanted, order, on)) in all.into_iter().enumerate() {
            let mut on: Vec<usize> = on.iter().filter(|_| at > 0).map(|n| *n as usize % at.max(1)).collect();
            on.sort_unstable();
            on.dedup();
            let depends_on = on.iter().map(|n| format!("n{n}")).collect();
            fate.specs.push(NodeSpec { name: format!("n{at}"), depends_on, rule });
            fate.ends.push(end);
            fate.wanted.push(wanted);
            fate.order.push(order);
        }
        fate
    })
}

/// What becomes of each node when nothing stops the others: said directly, node after node.
fn expected(fate: &Fate) -> Vec<Option<NodeEnd>> {
    let mut known: Vec<Option<NodeEnd>> = Vec::new();
    for (at, spec) in fate.specs.iter().enumerate() {
        let on = |name: &String| known[name[1..].parse::<usize>().unwrap()];
        let begins = match spec.rule {
            TriggerRule::AllSucceeded => {
                spec.depends_on.iter().all(|name| on(name) == Some(NodeEnd::Succeeded))
            }
            TriggerRule::AllDone => true,
            TriggerRule::AnyFailed => spec
                .depends_on
                .iter()
                .any(|name| matches!(on(name), Some(NodeEnd::Failed | NodeEnd::Cancelled))),
        };
        // One without dependencies waits for nothing, whatever its rule.
        let begins = begins || spec.depends_on.is_empty();
        known.push((begins && fate.wanted[at]).then_some(fate.ends[at]));
    }
    known
}

/// Plays a run to its end; open nodes end in the order of the fate. Answers which nodes began.
fn play(fate: &Fate, run: &mut Run) -> Vec<usize> {
    let (mut open, mut begun): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    while !run.is_over() {
        for node in run.take_ready(3) {
            if fate.wanted[node] {
                for &on in run.graph().waits_for(node) {
                    assert!(
                        matches!(run.state(on), NodeState::Ended(_)),
                        "{node} began before {on} had ended"
                    );
                }
                run.begun(node);
                open.push(node);
                begun.push(node);
            } else {
                run.ended(node, NodeEnd::Skipped(Skip::Condition));
            }
        }
        let next = (0..open.len()).min_by_key(|&at| fate.order[open[at]]);
        if let Some(at) = next {
            let node = open.swap_remove(at);
            run.ended(node, fate.ends[node]);
        }
    }
    begun
}

fn end_of(run: &Run, node: usize) -> Option<NodeEnd> {
    match run.state(node) {
        NodeState::Ended(NodeEnd::Skipped(_)) => None,
        NodeState::Ended(end) => Some(end),
        state => panic!("{node} is {state:?}"),
    }
}

#[test]
fn what_succeeded_is_taken_over_unless_something_above_it_begins_anew() {
    let nodes = || {
        vec![
            node("extract", &[], TriggerRule::AllSucceeded),
            node("load", &["extract"], TriggerRule::AllSucceeded),
            node("alert", &["load"], TriggerRule::AnyFailed),
            node("clean", &["load"], TriggerRule::AllDone),
            node("report", &["clean"], TriggerRule::AllSucceeded),
        ]
    };
    // In the run before, `load` failed, `alert` and `clean` ran because of it, and `report` failed.
    let mut again = run(nodes(), OnFailure::Continue);
    again.take_over(vec![true, false, true, true, false]);
    assert!(again.is_taken_over(0) && !again.is_taken_over(3));
    assert_eq!(again.take_ready(9), [1]);
    again.begun(1);
    again.ended(1, NodeEnd::Succeeded);
    assert_eq!(again.state(2), NodeState::Ended(NodeEnd::Skipped(Skip::NothingFailed)));
    assert_eq!(again.take_ready(9), [3], "it cleaned up after something else");
    again.begun(3);
    again.ended(3, NodeEnd::Succeeded);
    assert_eq!(again.take_ready(9), [4]);
}

/// A definition in which nodes were changed, removed, renamed, given other dependencies or another rule, or added. Answers how
/// often each node was changed, too.
fn edited(fate: &Fate, edits: &[(u8, u32)], mended: &Fate) -> (Fate, Vec<u32>) {
    let mut new = Fate { specs: Vec::new(), ends: Vec::new(), wanted: Vec::new(), order: Vec::new() };
    let mut versions = Vec::new();
    let mut names: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (node, spec) in fate.specs.iter().enumerate() {
        let (edit, random) = edits[node];
        let mut spec = spec.clone();
        let old_name = spec.name.clone();
        spec.depends_on = spec.depends_on.iter().filter_map(|name| names[name].clone()).collect();
        let (mut end, mut wanted, mut version) = (fate.ends[node], fate.wanted[node], 0);
        if end.is_failure()
            && let Some(mended) = mended.ends.get(node)
        {
            end = *mended;
        }
        match edit {
            0 => {
                names.insert(old_name, None);
                continue;
            }
            1 => spec.name = format!("{old_name}_renamed"),
            2 => (version, end, wanted) = (1, NodeEnd::Succeeded, !wanted),
            3 => _ = spec.depends_on.pop(),
            4 if !new.specs.is_empty() => {
                let other: &NodeSpec = &new.specs[random as usize % new.specs.len()];
                if !spec.depends_on.contains(&other.name) {
                    spec.depends_on.push(other.name.clone());
                }
            }
            5 => {
                let rules = [TriggerRule::AllSucceeded, TriggerRule::AllDone, TriggerRule::AnyFailed];
                spec.rule = rules[random as usize % 3];
            }
            6 => {
                let name = format!("{old_name}_added");
                let added = NodeSpec { name, depends_on: Vec::new(), rule: TriggerRule::AllSucceeded };
                new.specs.push(added);
                new.ends.push(NodeEnd::Succeeded);
                new.wanted.push(true);
                new.order.push(random);
                versions.push(0);
            }
            _ => {}
        }
        names.insert(old_name, Some(spec.name.clone()));
        new.specs.push(spec);
        new.ends.push(end);
        new.wanted.push(wanted);
        new.order.push(fate.order[node]);
        versions.push(version);
    }
    if new.specs.is_empty() {
        new.specs.push(node("only", &[], TriggerRule::AllSucceeded));
        new.ends.push(NodeEnd::Succeeded);
        new.wanted.push(true);
        new.order.push(0);
        versions.push(0);
    }
    (new, versions)
}

/// The inputs of each node's task: its own version, and the end and the inputs of each node before it.
fn made_of(run: &Run, versions: &[u32]) -> Vec<u64> {
    let mut made: Vec<u64> = Vec::new();
    for (node, version) in versions.iter().enumerate() {
        let graph = run.graph();
        let mut before: Vec<(&str, Option<NodeEnd>, u64)> =
            graph.waits_for(node).iter().map(|&on| (graph.name(on), end_of(run, on), made[on])).collect();
        before.sort_unstable_by_key(|(name, ..)| *name);
        let mut hasher = DefaultHasher::new();
        format!("{version} {} {before:?}", graph.name(node)).hash(&mut hasher);
        made.push(hasher.finish());
    }
    made
}

proptest! {
    #[test]
    fn a_run_that_takes_over_ends_as_one_that_does_not(fate in fates(), mended in fates()) {
        for on_failure in [OnFailure::Stop, OnFailure::Continue] {
            let mut before = run(fate.specs.clone(), on_failure);
            play(&fate, &mut before);
            // What failed may go well now; all else would end as it did, made of the same.
            let mut fate = fate.clone();
            for (node, end) in fate.ends.iter_mut().enumerate() {
                if end.is_failure()
                    && let Some(mended) = mended.ends.get(node)
                {
                    *end = *mended;
                }
            }
            let succeeded: Vec<bool> =
                (0..fate.specs.len()).map(|node| end_of(&before, node) == Some(NodeEnd::Succeeded)).collect();
            let mut anew = run(fate.specs.clone(), on_failure);
            play(&fate, &mut anew);
            let mut taking = run(fate.specs.clone(), on_failure);
            taking.take_over(succeeded.clone());
            let begun = play(&fate, &mut taking);
            for (node, succeeded) in succeeded.into_iter().enumerate() {
                // The set of nodes that a failure stops depends on the order of ends; no other outcome does.
                if on_failure == OnFailure::Continue {
                    prop_assert_eq!(end_of(&anew, node), end_of(&taking, node), "node {}", node);
                }
                if taking.is_taken_over(node) {
                    prop_assert!(succeeded && !begun.contains(&node));
                    for on in taking.graph().waits_for(node) {
                        prop_assert!(!begun.contains(on), "{} was taken over, {} has begun anew", node, on);
                    }
                }
            }
        }
    }

    /// An edited definition: the nodes kept of the earlier run equal those of a run that takes nothing over.
    #[test]
    fn a_run_by_another_definition_keeps_what_it_would_come_to(
        fate in fates(),
        edits in prop::collection::vec((0..12_u8, any::<u32>()), 40),
        mended in fates(),
    ) {
        for on_failure in [OnFailure::Stop, OnFailure::Continue] {
            let mut before = run(fate.specs.clone(), on_failure);
            play(&fate, &mut before);
            let (edited, versions) = edited(&fate, &edits, &mended);
            let old: BTreeMap<&str, usize> =
                fate.specs.iter().enumerate().map(|(node, spec)| (spec.name.as_str(), node)).collect();
            let mut taking = run(edited.specs.clone(), on_failure);
            let is_same = |node: usize| {
                let spec = &edited.specs[node];
                versions[node] == 0 && old.get(spec.name.as_str()).is_some_and(|&at| fate.specs[at] == *spec)
            };
            let unchanged = taking.graph().unchanged(is_same);
            let succeeded = |node: usize| {
                unchanged[node]
                    && old
                        .get(edited.specs[node].name.as_str())
                        .is_some_and(|&at| end_of(&before, at) == Some(NodeEnd::Succeeded))
            };
            taking.take_over((0..edited.specs.len()).map(succeeded).collect());
            let begun = play(&edited, &mut taking);
            let mut anew = run(edited.specs.clone(), on_failure);
            play(&edited, &mut anew);
            // What each task was made of: its version, and the tasks before it.
            let made_before = made_of(&before, &vec![0; fate.specs.len()]);
            let made_anew = made_of(&anew, &versions);
            for node in 0..edited.specs.len() {
                if on_failure == OnFailure::Continue {
                    prop_assert_eq!(end_of(&anew, node), end_of(&taking, node), "node {}", node);
                }
                if taking.is_taken_over(node) {
                    prop_assert!(!begun.contains(&node));
                    let at = old[edited.specs[node].name.as_str()];
                    if on_failure == OnFailure::Continue {
                        prop_assert_eq!(&made_before[at], &made_anew[node], "node {}", node);
                    }
                    for &on in taking.graph().waits_for(node) {
                        prop_assert!(!begun.contains(&on), "{} is kept, {} has begun anew", node, on);
                    }
                }
            }
        }
    }

    #[test]
    fn branches_go_on_as_a_second_opinion_says(fate in fates()) {
        let mut all = run(fate.specs.clone(), OnFailure::Continue);
        play(&fate, &mut all);
        for (node, expected) in expected(&fate).into_iter().enumerate() {
            prop_assert_eq!(end_of(&all, node), expected, "node {}", node);
        }
    }

    #[test]
    fn whoever_forgets_everything_decides_the_same(fate in fates(), cut in any::<prop::sample::Index>()) {
        for on_failure in [OnFailure::Stop, OnFailure::Continue] {
            let mut first = run(fate.specs.clone(), on_failure);
            let begun = play(&fate, &mut first);
            // The run receives all begun nodes first, then some of their ends in any order; then it goes on.
            let mut second = run(fate.specs.clone(), on_failure);
            for &node in &begun {
                second.begun(node);
            }
            let mut ended = begun.clone();
            ended.rotate_left(cut.index(begun.len().max(1)));
            for node in ended {
                second.ended(node, fate.ends[node]);
            }
            let again = play(&fate, &mut second);
            prop_assert!(again.is_empty(), "{again:?} began, though everything had");
            for node in 0..fate.specs.len() {
                prop_assert_eq!(end_of(&first, node), end_of(&second, node), "node {}", node);
            }
        }
    }
}

//! Finished tasks and runs that run again by another definition than before, one at a time and many at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_ports::{TaskFilter, TaskView};
use tasklane_runtime::node::{BulkAction, Definition, Retried, Retry, SubmitError};

use crate::support::{System, default_namespace, name};
use crate::workflows::{begin, echo, mapped, node, start, view};

async fn retry(system: &System, id: TaskId, definition: Definition) -> Result<Retried, SubmitError> {
    let retry = system.node.retry_by(&default_namespace(), id, None, &definition).await?;
    let Retry::Created(retried) = retry else { panic!("{retry:?}") };
    Ok(retried)
}

fn refused_field(answer: Result<Retried, SubmitError>) -> String {
    match answer {
        Err(SubmitError::Invalid(error)) => error.field,
        answer => panic!("{answer:?}"),
    }
}

async fn put_executor(system: &System, task_type: &str, command: &Value) {
    let json = json!({ "command": command }).to_string();
    let put = system.node.put_executor(&default_namespace(), &name(task_type), json.as_bytes(), true).await;
    put.unwrap();
}

async fn put_workflow(system: &System, nodes: &Value) {
    let json = json!({ "nodes": nodes }).to_string();
    system.node.put_workflow(&default_namespace(), &name("etl"), json.as_bytes()).await.unwrap();
}

fn argv(view: &TaskView) -> Value {
    let run: Value =
        serde_json::from_str(view.row.body.as_ref().unwrap().run.as_ref().unwrap().as_str()).unwrap();
    run["argv"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_runs_the_latest_definition_of_a_type_if_it_is_asked_to() {
    let system = System::start(vec![("SHELL", echo())]).await;
    put_executor(&system, "page", &json!(["old", "{{ payload.n }}"])).await;
    let task = json!({ "taskName": "t", "taskType": "page", "payload": { "n": 1 } });
    let first = system.submit(vec![mapped(&task)]).await[0];
    system.wait(first).await;
    let same = retry(&system, first, Definition::Stored).await.unwrap();
    assert!(!same.newer_definition, "nothing newer is there yet");

    put_executor(&system, "page", &json!(["new", "{{ payload.n }}"])).await;
    let stored = retry(&system, first, Definition::Stored).await.unwrap();
    assert!(stored.newer_definition, "the answer shows that a newer definition exists");
    assert_eq!(argv(&system.wait(stored.id).await), json!(["old", "1"]));
    let latest = retry(&system, first, Definition::Latest).await.unwrap();
    assert!(!latest.newer_definition);
    assert_eq!(argv(&system.wait(latest.id).await), json!(["new", "1"]));

    // The same request again is the same task, and another request is not taken for it.
    let by = |definition: Definition| {
        let node = system.node.clone();
        async move { node.retry_by(&default_namespace(), first, Some("r1".to_owned()), &definition).await }
    };
    let Retry::Created(one) = by(Definition::Latest).await.unwrap() else { panic!() };
    put_executor(&system, "page", &json!(["newest"])).await;
    let Retry::Created(two) = by(Definition::Latest).await.unwrap() else { panic!() };
    assert_eq!((one.id, one.duplicate, two.duplicate), (two.id, false, true));
    assert!(matches!(by(Definition::Stored).await, Err(SubmitError::RequestIdReused { .. })));

    system.node.delete_executor(&default_namespace(), &name("page")).await.unwrap();
    assert_eq!(refused_field(retry(&system, first, Definition::Latest).await), "latest");
    let stored = retry(&system, first, Definition::Stored).await.unwrap();
    assert_eq!(argv(&system.wait(stored.id).await), json!(["old", "1"]), "the stored one still runs");
    system.close().await;
}

/// Three nodes in a row, and a branch beside them.
fn nodes(load: &str, branch: &str) -> Value {
    json!([
        { "name": "extract", "taskType": "ECHO", "payload": "rows" },
        { "name": "load", "dependsOn": ["extract"], "taskType": "ECHO", "payload": load },
        { "name": "report", "dependsOn": ["load"], "taskType": "ECHO", "payload": "{{ nodes.load.result.data }}" },
        { "name": "branch", "taskType": "ECHO", "payload": branch },
        { "name": "leaf", "dependsOn": ["branch"], "taskType": "ECHO", "payload": "{{ nodes.branch.result.data }}" },
    ])
}

async fn kept(system: &System, run: TaskId) -> Vec<String> {
    system.node.kept_nodes(run).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_by_the_definition_that_was_mended() {
    let system = start().await;
    put_workflow(&system, &nodes("fail", "b")).await;
    let first = begin(&system, &json!({ "workflow": "etl" })).await.unwrap();
    assert_eq!(system.wait(first).await.row.state.status, Status::Failed);

    put_workflow(&system, &nodes("mended", "b")).await;
    let stored = retry(&system, first, Definition::Stored).await.unwrap();
    assert!(stored.newer_definition);
    assert_eq!(system.wait(stored.id).await.row.state.status, Status::Failed, "it runs as it did");
    let latest = retry(&system, first, Definition::Latest).await.unwrap();
    assert!(!latest.newer_definition);
    assert_eq!(system.wait(latest.id).await.row.state.status, Status::Success);
    let (kept, again) = system.node.kept_nodes(latest.id).await.unwrap();
    assert_eq!((kept.join(" "), again.join(" ")), ("extract branch leaf".into(), "load report".into()));
    let run = view(&system, latest.id).await;
    assert_eq!(node(&run, "report").result.as_ref().unwrap().data, r#""mended""#);
    assert_eq!((run.name.as_str(), node(&run, "leaf").taken_over), ("etl", true));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_runs_again_if_it_or_a_node_before_it_has_changed() {
    let system = start().await;
    put_workflow(&system, &nodes("fail", "b")).await;
    let first = begin(&system, &json!({ "workflow": "etl" })).await.unwrap();
    system.wait(first).await;
    let given =
        |nodes: Value| Definition::Given(json!({ "onFailure": "continue", "nodes": nodes }).to_string());
    // The branch changes, so its leaf runs again; `load` fails still.
    let second = retry(&system, first, given(nodes("fail again", "other"))).await.unwrap().id;
    system.wait(second).await;
    assert_eq!(kept(&system, second).await, ["extract"]);
    let run = view(&system, second).await;
    assert_eq!(node(&run, "leaf").result.as_ref().unwrap().data, r#""other""#);
    // In the next one of the chain the branch is what it was at first. That result is not the last one of its name.
    let third = retry(&system, second, given(nodes("mended", "b"))).await.unwrap().id;
    system.wait(third).await;
    assert_eq!(kept(&system, third).await, ["extract"]);
    // Nothing changes: all results of the chain that succeeded are kept.
    let fourth = retry(&system, third, Definition::Stored).await.unwrap().id;
    assert_eq!(system.wait(fourth).await.row.state.status, Status::Success);
    assert_eq!(kept(&system, fourth).await.len(), 5);

    // Nodes that were removed, added, renamed, given another condition, rule or dependency.
    let changed = json!([
        { "name": "extract", "taskType": "ECHO", "payload": "rows" },
        { "name": "load", "dependsOn": ["extract"], "taskType": "ECHO", "payload": "mended", "when": "1 == 1" },
        { "name": "summary", "dependsOn": ["load"], "taskType": "ECHO", "payload": "{{ nodes.load.result.data }}" },
        { "name": "added", "taskType": "ECHO", "payload": "x" },
        { "name": "leaf", "dependsOn": ["added"], "taskType": "ECHO", "payload": "{{ nodes.added.result.data }}" },
    ]);
    let fifth = retry(&system, fourth, given(changed)).await.unwrap().id;
    assert_eq!(system.wait(fifth).await.row.state.status, Status::Success);
    assert_eq!(kept(&system, fifth).await, ["extract"]);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_node_that_never_began_is_not_kept_by_a_later_retry() {
    let system = start().await;
    let nodes = |first: &str, last: &str| {
        json!([
            { "name": "first", "taskType": "ECHO", "payload": first },
            { "name": "last", "dependsOn": ["first"], "triggerRule": "allDone", "taskType": "ECHO", "payload": last },
            { "name": "bad", "taskType": "ECHO", "payload": "fail" },
        ])
    };
    let run = json!({ "onFailure": "continue", "nodes": nodes("a", "old") });
    let first = begin(&system, &run).await.unwrap();
    system.wait(first).await;
    let given = |first: &str, last: &str| {
        Definition::Given(json!({ "deadline": "1ms", "nodes": nodes(first, last) }).to_string())
    };
    // Its deadline passes before `last` begins.
    let second = retry(&system, first, given("endless", "new")).await.unwrap().id;
    system.wait(second).await;
    let definition = json!({ "onFailure": "continue", "nodes": nodes("endless", "new") });
    let third = retry(&system, second, Definition::Given(definition.to_string())).await.unwrap().id;
    assert_eq!(kept(&system, third).await, Vec::<String>::new(), "`last` of the first run was another one");
    system.node.cancel(&default_namespace(), third).await.unwrap();
    system.wait(third).await;
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_cannot_be_is_refused_and_nothing_runs() {
    let system = start().await;
    let inline = begin(&system, &json!({ "name": "mine", "nodes": nodes("fail", "b") })).await.unwrap();
    system.wait(inline).await;
    assert_eq!(refused_field(retry(&system, inline, Definition::Latest).await), "latest");
    let given = |json: Value| Definition::Given(json.to_string());
    let circle = json!({ "nodes": [{ "name": "a", "dependsOn": ["a"], "taskType": "ECHO" }] });
    for (wrong, field) in [
        (circle, "definition.nodes[0].dependsOn"),
        (json!({}), "definition.nodes"),
        (json!({ "nodes": [{ "name": "a", "taskType": "ECHO" }], "input": 1 }), "definition.input"),
    ] {
        assert_eq!(refused_field(retry(&system, inline, given(wrong)).await), field);
    }
    let filter = TaskFilter { parent: Some(inline), ..TaskFilter::default() };
    let list = tasklane_ports::TaskList { filter, after: None, limit: 100 };
    let children = system.node.list(list).await.unwrap().tasks;
    assert!(children.iter().all(|row| row.state.child_of.is_some()), "no retry of the run is there");
    // A definition without a name leaves the run its own.
    let done = retry(&system, inline, given(json!({ "nodes": nodes("mended", "b") }))).await.unwrap().id;
    assert_eq!(system.wait(done).await.row.state.status, Status::Success);
    assert_eq!(view(&system, done).await.name, "mine");

    put_workflow(&system, &nodes("fail", "b")).await;
    let named = begin(&system, &json!({ "workflow": "etl" })).await.unwrap();
    system.wait(named).await;
    system.node.delete_workflow(&default_namespace(), &name("etl")).await.unwrap();
    assert_eq!(refused_field(retry(&system, named, Definition::Latest).await), "latest");
    system.close().await;
}

async fn bulk(system: &System, filter: TaskFilter, latest: bool) -> tasklane_runtime::node::BulkStatus {
    let namespace = default_namespace();
    let filter = TaskFilter { namespace: Some(namespace.clone()), ..filter };
    let counted = system.node.bulk_count(BulkAction::Retry, &filter).await.unwrap();
    let operation = system.node.bulk(&namespace, BulkAction::Retry, filter, latest).await.unwrap();
    system.wait(operation).await;
    let status = system.node.bulk_status(&namespace, operation).await.unwrap().unwrap();
    assert_eq!(status.matched, counted, "{status:?}");
    status
}

/// Tasks that run another one again.
async fn retries_of(system: &System, id: TaskId) -> Vec<TaskId> {
    let filter = TaskFilter { parent: Some(id), ..TaskFilter::default() };
    let list = tasklane_ports::TaskList { filter, after: None, limit: 100 };
    let rows = system.node.list(list).await.unwrap().tasks;
    rows.into_iter().filter(|row| row.state.child_of.is_none()).map(|row| row.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_children_run_again_with_the_run_or_map_that_they_are_of() {
    let system = start().await;
    let map = mapped(&json!({ "taskName": "m", "taskType": "ECHO", "queue": "q",
        "map": { "items": ["ok", "fail 1", "fail 2"], "tolerateFailures": 5 } }));
    let alone = mapped(&json!({ "taskName": "alone", "taskType": "ECHO", "queue": "q", "payload": "fail" }));
    let ids = system.submit(vec![map, alone]).await;
    for id in &ids {
        system.wait(*id).await;
    }
    let run = json!({ "nodes": [
        { "name": "a", "taskType": "ECHO", "queue": "q", "payload": "ok" },
        { "name": "b", "taskType": "ECHO", "queue": "q", "payload": "fail", "dependsOn": ["a"] },
    ] });
    let run = begin(&system, &run).await.unwrap();
    system.wait(run).await;

    // The filter finds two children of the map, a node of the run, and a task of its own.
    let failed =
        TaskFilter { queue: Some(name("q")), statuses: vec![Status::Failed], ..TaskFilter::default() };
    let status = bulk(&system, failed, false).await;
    assert_eq!((status.matched, status.done, status.failed), (4, 4, 0), "{status:?}");
    assert!(status.message.contains("3 are children of runs or maps"), "{}", status.message);
    for composite in [ids[0], run] {
        let again = retries_of(&system, composite).await;
        assert_eq!(again.len(), 1, "one new run for all its children");
        let names: BTreeSet<String> = {
            system.wait(again[0]).await;
            let children = system.node.children(again[0], None, 10).await.unwrap().0;
            let own = children.iter().filter_map(|child| child.row.state.child_of.as_ref());
            own.filter(|child| child.composite == again[0]).map(|child| child.name.clone()).collect()
        };
        let expected: &[&str] = if composite == run { &["b"] } else { &["1", "2"] };
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected, "what succeeded is kept");
    }
    assert_eq!(retries_of(&system, ids[1]).await.len(), 1);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_what_has_not_ended_is_counted_as_not_done_with_the_reason() {
    let system = start().await;
    let map = mapped(&json!({ "taskName": "m", "taskType": "ECHO", "queue": "q",
        "map": { "items": ["fail", "endless"], "tolerateFailures": 1 } }));
    let map = system.submit(vec![map]).await[0];
    let failed = || TaskFilter {
        namespace: Some(default_namespace()),
        queue: Some(name("q")),
        statuses: vec![Status::Failed],
        ..TaskFilter::default()
    };
    while system.node.bulk_count(BulkAction::Retry, &failed()).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    let status = bulk(&system, failed(), false).await;
    assert_eq!((status.matched, status.done, status.failed), (1, 0, 1));
    assert!(status.message.contains(&format!("it is a child of {map}")), "{}", status.message);
    system.node.cancel(&default_namespace(), map).await.unwrap();
    system.wait(map).await;
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_run_again_by_their_latest_definition() {
    let system = System::start(vec![("SHELL", echo())]).await;
    put_executor(&system, "page", &json!(["fail"])).await;
    let task = mapped(&json!({ "taskName": "t", "taskType": "page", "queue": "q" }));
    let first = system.submit(vec![task]).await[0];
    assert_eq!(argv(&system.wait(first).await), json!(["fail"]));
    put_executor(&system, "page", &json!(["mended"])).await;
    let tasks = TaskFilter { queue: Some(name("q")), ..TaskFilter::default() };
    assert_eq!(bulk(&system, tasks, true).await.done, 1);
    let again = system.wait(retries_of(&system, first).await[0]).await;
    assert_eq!(argv(&again), json!(["mended"]));
    system.close().await;
}

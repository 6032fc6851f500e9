//! Expressions in the fields of tasks that a map, a workflow or a registered type makes.

use serde_json::{Value, json};
use tasklane_core::status::Status;
use tasklane_core::task::TaskRow;
use tasklane_ports::TaskView;
use tasklane_runtime::node::{SubmitError, WorkflowError};
use tasklane_runtime::request::RunRequest;

use crate::support::{System, default_namespace, name};
use crate::workflows::{data, echo, finished, mapped, node};

async fn start() -> System {
    System::start(vec![("ECHO", echo()), ("SHELL", echo()), ("HTTP", echo())]).await
}

async fn done(system: &System, task: &Value) -> TaskView {
    let id = system.submit(vec![mapped(task)]).await[0];
    system.wait(id).await
}

async fn children(system: &System, composite: &TaskView) -> Vec<TaskView> {
    let mut children = system.node.children(composite.row.id, None, 10).await.unwrap().0;
    children.sort_by_key(|child| child.row.state.child_of.as_ref().unwrap().name.clone());
    children
}

/// The rendered texts of a task: its name, values of its metadata and labels, and its hash key.
fn texts(row: &TaskRow) -> (&str, &str, &str) {
    let body = row.body.as_ref().unwrap();
    (&body.name, &body.metadata["customer"], body.hash_key.as_deref().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_text_of_a_child_is_worked_out() {
    let system = start().await;
    let composite = done(
        &system,
        &json!({
            "taskName": "send {{ item.id }}", "taskType": "ECHO", "payload": "{{ item.id }}",
            "metadata": { "customer": "{{ item.customer }}", "sum": "{{ 1 + 1 }}" },
            "hashKey": "{{ item.customer }}-{{ index }}",
            "concurrency": [{ "key": "{{ metadata.customer }}", "limit": 4 }],
            "map": { "items": [{ "id": 1, "customer": "acme" }, { "id": 2, "customer": "umbrella" }],
                     "reduce": { "taskName": "sum of {{ total }}", "taskType": "ECHO", "payload": "x",
                                 "metadata": { "customer": "{{ succeeded }}" } } },
        }),
    )
    .await;
    assert_eq!(composite.row.state.status, Status::Success, "{:?}", composite.row.state.error);
    let children = children(&system, &composite).await;
    let found: Vec<(&str, &str, &str)> = children.iter().map(|child| texts(&child.row)).collect();
    let expected =
        [("send 1", "acme", "acme-0"), ("send 2", "umbrella", "umbrella-1"), ("sum of 2", "2", "")];
    assert_eq!(found, expected);
    let keys: Vec<&str> = children[..2].iter().map(|child| &*child.row.head.flow[0].key).collect();
    assert_eq!(keys, ["acme", "umbrella"], "four for each customer, not four in all");
    let body = composite.row.body.as_ref().unwrap();
    assert_eq!((body.name.as_str(), body.metadata["sum"].as_str()), ("send {{ item.id }}", "2"));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_a_child_are_worked_out() {
    let system = start().await;
    let composite = done(
        &system,
        &json!({
            "taskName": "near", "taskType": "ECHO", "startTimeout": "1s",
            "labels": { "zone": "{{ item }}" }, "map": { "items": ["north"] },
        }),
    )
    .await;
    // No worker has the label: the child shows which one it asks for.
    assert_eq!(children(&system, &composite).await[0].row.head.labels["zone"], "north");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_text_of_a_node_is_worked_out_also_within_a_map() {
    let system = start().await;
    let (_, run) = finished(
        &system,
        &json!({ "input": { "day": "monday" }, "nodes": [
            { "name": "one", "taskType": "ECHO", "payload": "x", "taskName": "load {{ input.day }}",
              "hashKey": "{{ input.day }}", "metadata": { "customer": "acme" } },
            { "name": "many", "taskType": "ECHO", "dependsOn": ["one"], "taskName": "of {{ input.day }}",
              "metadata": { "customer": "{{ item }}-{{ nodes.one.status }}", "day": "{{ input.day }}" },
              "map": { "items": ["a"] } },
        ] }),
    )
    .await;
    assert_eq!(texts(node(&run, "one").task.as_ref().unwrap()), ("load monday", "acme", "monday"));
    let many = node(&run, "many").task.as_ref().unwrap().id;
    let many = system.node.task(&default_namespace(), many).await.unwrap().unwrap();
    let body = many.row.body.as_ref().unwrap();
    assert_eq!((body.name.as_str(), body.metadata["day"].as_str()), ("of monday", "monday"));
    let children = children(&system, &many).await;
    assert_eq!(texts(&children[0].row), ("of monday", "a-SUCCESS", ""));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_is_not_worked_out_is_refused_by_its_field() {
    let system = start().await;
    let hook = json!([{ "url": "https://example.com/{{item}}" }]);
    let key = json!([{ "key": "{{ item.customer }}", "limit": 4 }]);
    let reduce =
        json!({ "taskName": "r", "taskType": "ECHO", "payload": "x", "metadata": { "a": "{{ item }}" } });
    let cases = [
        (json!({ "webhooks": hook }), "webhooks[0].url"),
        (json!({ "concurrency": key }), "concurrency[0].key"),
        (json!({ "metadata": { "a": "{{ itme.a }}" } }), "metadata.a"),
        (json!({ "taskName": "{{ payload }}" }), "taskName"),
        (json!({ "labels": { "a": "{{ item" } }), "labels.a"),
        (json!({ "labels": { "{{ item }}": "a" } }), "labels.{{ item }}"),
        (json!({ "metadata": { "{{ item }}": "a" } }), "metadata.{{ item }}"),
        (json!({ "requestId": "{{ item }}" }), "requestId"),
        (json!({ "map": { "items": [1], "reduce": reduce } }), "map.reduce.metadata.a"),
    ];
    for (more, field) in cases {
        let mut task = json!({ "taskName": "m", "taskType": "ECHO", "map": { "items": [1] } });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = system.node.submit(&default_namespace(), vec![mapped(&task)]).await.pop().unwrap();
        let Err(SubmitError::Invalid(error)) = answer else { panic!("{field}: {answer:?}") };
        assert_eq!(error.field, field, "{error}");
    }
    // Expressions of a run itself are refused too: only its nodes have them.
    let hook = json!([{ "url": "https://example.com/{{run.id}}" }]);
    let of_runs = [
        (json!({ "metadata": { "day": "{{ input.day }}" } }), "metadata.day"),
        (json!({ "metadata": { "{{ input.day }}": "a" } }), "metadata.{{ input.day }}"),
        (json!({ "requestId": "{{ input.day }}" }), "requestId"),
        (json!({ "webhooks": hook }), "webhooks[0].url"),
    ];
    for (more, field) in of_runs {
        let mut run = json!({ "nodes": [{ "name": "a", "taskType": "ECHO" }] });
        run.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let run = RunRequest::from_json(run.to_string().as_bytes()).unwrap();
        let answer = system.node.start_run(&default_namespace(), run).await;
        let Err(WorkflowError::Invalid(error)) = answer else { panic!("{field}: {answer:?}") };
        assert_eq!(error.field, field, "{error}");
    }
    let labels =
        json!({ "taskName": "b", "taskType": "ECHO", "labels": { "a": "{{ item }}" }, "broadcast": true });
    let answer = system.node.submit(&default_namespace(), vec![mapped(&labels)]).await.pop().unwrap();
    assert!(matches!(&answer, Err(SubmitError::Invalid(error)) if error.field == "labels.a"), "{answer:?}");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_become_text_where_text_is_asked_for() {
    let system = start().await;
    let argv = json!(["convert", "{{ item.n }}", "{{ item.on }}", "{{ item.text }}"]);
    let composite = done(
        &system,
        &json!({
            "taskName": "resize", "taskType": "SHELL",
            "payload": { "argv": argv, "env": { "N": "{{ item.n }}" }, "stdin": "{{ item.n }}" },
            "map": { "items": [{ "n": 100, "on": true, "text": "a" }] },
        }),
    )
    .await;
    let expected =
        json!([{ "argv": ["convert", "100", "true", "a"], "env": { "N": "100" }, "stdin": "100" }]);
    assert_eq!(data(&composite)["results"], expected);

    let (_, run) = finished(
        &system,
        &json!({ "input": { "n": 7, "all": [1, "b"] }, "nodes": [
            { "name": "shell", "taskType": "SHELL", "payload": { "argv": "{{ input.all }}" } },
            { "name": "http", "taskType": "HTTP", "payload": { "url": "http://x/", "headers": { "N": "{{ input.n }}" },
              "body": { "n": "{{ input.n }}" }, "expectStatus": "{{ input.n }}" } },
            { "name": "other", "taskType": "ECHO", "payload": { "argv": ["{{ input.n }}"] } },
        ] }),
    )
    .await;
    let result = |name: &str| -> Value {
        serde_json::from_str(&node(&run, name).result.as_ref().unwrap().data).unwrap()
    };
    assert_eq!(result("shell"), json!({ "argv": ["1", "b"] }));
    let http = json!({ "url": "http://x/", "headers": { "N": "7" }, "body": { "n": 7 }, "expectStatus": 7 });
    assert_eq!(result("http"), http, "what may be a number stays one");
    assert_eq!(result("other"), json!({ "argv": [7] }), "its executor may take what it likes");

    let resize =
        json!({ "command": ["convert", "{{ payload.width }}"], "env": { "BIG": "{{ payload.big }}" } });
    let (namespace, resize) = (default_namespace(), resize.to_string());
    system.node.put_executor(&namespace, &name("resize"), resize.as_bytes(), false).await.unwrap();
    let task = json!({ "taskName": "r", "taskType": "resize", "payload": { "width": 100, "big": false } });
    let run = done(&system, &task).await.row.body.as_ref().unwrap().run.clone().unwrap();
    let run: Value = serde_json::from_str(run.as_str()).unwrap();
    assert_eq!((&run["argv"], &run["env"]), (&json!(["convert", "100"]), &json!({ "BIG": "false" })));
    system.close().await;
}

//! Ids and fingerprints of the tasks that composites submit never change: another server that drives the
//! composite on submits the same tasks, and the store compares them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tasklane_core::id::TaskId;
use tasklane_core::message::Dispatch;
use tasklane_core::task::{NewTask, TaskResult};
use tasklane_ports::{Attempt, Executor};
use tasklane_runtime::node::{Definition, Retry};
use tasklane_runtime::request::{ScheduleRequest, TaskRequest};
use tasklane_testkit::golden::{Golden, check};

use crate::support::{Run, System, default_namespace, name, success};
use crate::workflows::{begin, echo};

/// Adds a task to the job of each result.
fn one_more() -> Arc<dyn Executor> {
    Arc::new(Run(|_: Dispatch, _: Arc<dyn Attempt>| async {
        let more = json!({ "taskName": "more", "taskType": "ECHO", "payload": "more" });
        let data = json!({ "subtasks": [more], "verdict": "success" }).to_string();
        finish(data)
    }))
}

fn finish(data: String) -> tasklane_core::message::Finish {
    tasklane_core::message::Finish { result: TaskResult { data, ..TaskResult::default() }, ..success() }
}

/// Submits a task and waits for it.
async fn run(system: &System, task: Value) -> TaskId {
    let id = system.submit(vec![TaskRequest::from_json(task.to_string().as_bytes()).unwrap()]).await[0];
    system.wait(id).await;
    id
}

async fn run_all(system: &System) {
    let namespace = default_namespace();
    let map = run(
        system,
        json!({
            "taskName": "many", "taskType": "ECHO", "queue": "mail", "requestId": "a map",
            "map": { "items": [{ "n": 1 }, "two"], "reduce": { "taskName": "sum", "taskType": "ECHO" } },
        }),
    )
    .await;
    run(system, json!({ "taskName": "two", "taskType": "ECHO", "requestId": "shards", "shards": 2 })).await;
    let nodes = json!([
        { "name": "first", "taskType": "ECHO", "payload": { "n": 1 } },
        { "name": "second", "dependsOn": ["first"], "taskType": "ECHO", "payload": "{{ nodes.first.result.data.n }}" },
    ]);
    let of_nodes =
        begin(system, &json!({ "requestId": "a run", "name": "etl", "nodes": nodes })).await.unwrap();
    system.wait(of_nodes).await;
    let workflow = json!({ "nodes": [nodes[0]] }).to_string();
    system.node.put_workflow(&namespace, &name("etl"), workflow.as_bytes()).await.unwrap();
    let of_name = begin(system, &json!({ "requestId": "a run by name", "workflow": "etl" })).await.unwrap();
    system.wait(of_name).await;
    let analyzer = json!({ "taskType": "MORE" }).to_string();
    system.node.put_analyzer(&namespace, &name("PAGE"), analyzer.as_bytes(), false).await.unwrap();
    run(system, json!({ "taskName": "job", "taskType": "PAGE", "requestId": "a job" })).await;

    let schedule =
        json!({ "cron": "0 0 1 1 *", "task": { "taskName": "fired", "taskType": "ECHO" } }).to_string();
    let schedule = ScheduleRequest::from_json(schedule.as_bytes()).unwrap();
    system.node.put_schedule(&namespace, &name("yearly"), &schedule).await.unwrap();
    system.node.trigger_schedule(&namespace, &name("yearly"), Some("now")).await.unwrap();
    for (request_id, of, definition) in [
        ("a retry", map, Definition::Stored),
        ("a retry by the latest definition", of_name, Definition::Latest),
        ("a retry by another definition", of_nodes, Definition::Given(json!({ "nodes": nodes }).to_string())),
    ] {
        let again =
            system.node.retry_by(&namespace, of, Some(request_id.to_owned()), &definition).await.unwrap();
        let Retry::Created(again) = again else { panic!("{again:?}") };
        system.wait(again.id).await;
    }
}

fn add(golden: &mut Golden, task: &NewTask) {
    let (head, body, fingerprint) = (&task.spec.head, &task.spec.body, task.fingerprint);
    let part = body.child_name.as_ref().map_or(String::new(), |part| format!(", part {part}"));
    let title = body.request_id.as_deref().unwrap();
    golden.text(
        title,
        format!(
            "{}, {} of {}{part}\nversion {}, hash {:016x}",
            task.id, head.task_type, head.queue, fingerprint.version, fingerprint.hash
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_composites_keep_their_ids_and_fingerprints() {
    let system = System::start(vec![("ECHO", echo()), ("PAGE", echo()), ("MORE", one_more())]).await;
    run_all(&system).await;
    let submitted = system.store.submitted();
    system.close().await;
    let by_request: BTreeMap<&str, &NewTask> =
        submitted.iter().filter_map(|task| Some((task.spec.body.request_id.as_deref()?, task))).collect();
    check("composite", |golden| by_request.values().for_each(|task| add(golden, task)));
}

//! Runs of workflows and maps, over a whole node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tasklane_core::id::TaskId;
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{TaskError, TaskResult};
use tasklane_ports::{Attempt, Executor, TaskView};
use tasklane_runtime::node::{Cancel, NodeView, RetentionOptions, Retry, RunView, WorkflowError};
use tasklane_runtime::request::{RunRequest, TaskRequest};

use crate::support::{Run, System, default_namespace, success};

/// Payloads that have failed once.
static FAILED_ONCE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Returns its payload; or fails, always or once, or runs until it is stopped, if the payload asks for that.
pub(crate) fn echo() -> Arc<dyn Executor> {
    Arc::new(Run(|dispatch: Dispatch, attempt: Arc<dyn Attempt>| async move {
        let body = dispatch.body.as_ref().unwrap();
        let payload = body.payload.clone();
        let fails_once = payload.as_str().contains("once")
            && FAILED_ONCE.lock().unwrap().insert(payload.as_str().to_owned());
        if payload.as_str().contains("fail") || fails_once {
            let error = TaskError::new("told", "it was told to");
            return Finish { ending: Ending::Failed { error, retry: RetryAdvice::Never }, ..success() };
        }
        if payload.as_str().contains("endless") {
            attempt.stopped().await;
            return Finish { ending: Ending::Cancelled, ..success() };
        }
        let data = match &payload {
            tasklane_core::task::Payload::Json(json) => json.clone(),
            tasklane_core::task::Payload::Text(text) => json!(text).to_string(),
        };
        Finish { result: TaskResult { data, ..TaskResult::default() }, ..success() }
    }))
}

pub(crate) async fn start() -> System {
    System::start(vec![("ECHO", echo())]).await
}

pub(crate) async fn begin(system: &System, run: &Value) -> Result<TaskId, WorkflowError> {
    let request = RunRequest::from_json(run.to_string().as_bytes())?;
    system.node.start_run(&default_namespace(), request).await.map(|run| run.id)
}

pub(crate) async fn view(system: &System, id: TaskId) -> RunView {
    system.node.run_view(&default_namespace(), id).await.unwrap().unwrap()
}

pub(crate) async fn finished(system: &System, run: &Value) -> (TaskView, RunView) {
    let id = begin(system, run).await.unwrap();
    let task = system.wait(id).await;
    assert!(task.row.state.status.is_final(), "{:?}", task.row.state);
    let run = view(system, id).await;
    (task, run)
}

pub(crate) fn node<'a>(run: &'a RunView, name: &str) -> &'a NodeView {
    run.nodes.iter().find(|node| node.name == name).unwrap()
}

fn statuses(run: &RunView) -> Vec<(&str, &str)> {
    run.nodes.iter().map(|node| (node.name.as_str(), node.status)).collect()
}

pub(crate) fn data(view: &TaskView) -> Value {
    serde_json::from_str(&view.result.as_ref().unwrap().data).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn results_travel_along_the_edges() {
    let system = start().await;
    let run = json!({
        "input": { "day": "monday" },
        "nodes": [
            { "name": "load", "dependsOn": ["left", "right"], "taskType": "ECHO", "payload": {
                "sum": "{{ nodes.left.result.data.n + nodes.right.result.data.n }}",
                "text": "on {{ input.day }}: {{ nodes.left.result.data.rows | length }} rows",
                "rows": "{{ nodes.left.result.data.rows }}" } },
            { "name": "extract", "taskType": "ECHO", "payload": { "rows": [1, 2], "n": 20 } },
            { "name": "left", "dependsOn": ["extract"], "taskType": "ECHO",
              "payload": { "rows": "{{ nodes.extract.result.data.rows }}", "n": "{{ nodes.extract.result.data.n + 1 }}" } },
            { "name": "right", "dependsOn": ["extract"], "taskType": "ECHO", "payload": { "n": 1 } },
            { "name": "never", "dependsOn": ["load"], "when": "nodes.load.result.data.sum > 100", "taskType": "ECHO" },
            { "name": "after", "dependsOn": ["never"], "taskType": "ECHO" },
            { "name": "at_last", "dependsOn": ["after"], "triggerRule": "allDone", "taskType": "ECHO",
              "payload": "run {{ run.id }}" },
        ],
    });
    let (task, run) = finished(&system, &run).await;
    assert_eq!(task.row.state.status, Status::Success, "{:?}", task.row.state.error);
    let loaded: Value = serde_json::from_str(&node(&run, "load").result.as_ref().unwrap().data).unwrap();
    assert_eq!(loaded, json!({ "sum": 22, "text": "on monday: 2 rows", "rows": [1, 2] }));
    assert_eq!(node(&run, "never").status, "SKIPPED");
    assert_eq!(node(&run, "never").reason.as_deref(), Some("its condition does not hold"));
    assert_eq!(node(&run, "after").reason.as_deref(), Some("never has not succeeded"));
    assert_eq!(node(&run, "at_last").result.as_ref().unwrap().data, format!("\"run {}\"", task.row.id));
    assert_eq!(data(&task)["succeeded"], 5);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_stops_or_does_not_stop_the_other_branches() {
    let system = start().await;
    let run = |on_failure: &str| {
        json!({
            "onFailure": on_failure,
            "nodes": [
                { "name": "bad", "taskType": "ECHO", "payload": "fail" },
                { "name": "good", "taskType": "ECHO" },
                { "name": "after_bad", "dependsOn": ["bad"], "taskType": "ECHO" },
                { "name": "alert", "dependsOn": ["bad"], "triggerRule": "anyFailed", "taskType": "ECHO",
                  "payload": "{{ nodes.bad.error.message }}" },
                { "name": "after_good", "dependsOn": ["good", "alert"], "taskType": "ECHO" },
            ],
        })
    };
    let (task, run_view) = finished(&system, &run("continue")).await;
    assert_eq!(task.row.state.status, Status::Failed);
    let error = task.row.state.error.unwrap();
    assert_eq!((&*error.code, &*error.message), ("child_failed", "node bad failed: it was told to"));
    let expected = [
        ("bad", "FAILED"),
        ("good", "SUCCESS"),
        ("after_bad", "SKIPPED"),
        ("alert", "SUCCESS"),
        ("after_good", "SUCCESS"),
    ];
    assert_eq!(statuses(&run_view), expected);
    assert_eq!(node(&run_view, "alert").result.as_ref().unwrap().data, "\"it was told to\"");

    let (_, run_view) = finished(&system, &run("stop")).await;
    assert_eq!(node(&run_view, "after_good").status, "SKIPPED");
    assert_eq!(node(&run_view, "after_good").reason.as_deref(), Some("the run was stopped before"));
    assert_eq!(node(&run_view, "alert").status, "SUCCESS");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_expression_lacks_fails_its_node() {
    let system = start().await;
    let run = json!({ "nodes": [
        { "name": "a", "taskType": "ECHO", "payload": { "x": 1 } },
        { "name": "b", "dependsOn": ["a"], "taskType": "ECHO", "payload": "{{ nodes.a.result.data.y }}" },
        { "name": "c", "dependsOn": ["a"], "when": "nodes.a.result.data.z", "taskType": "ECHO" },
    ] });
    let (task, run) = finished(&system, &run).await;
    assert_eq!(task.row.state.status, Status::Failed);
    for (name, part) in
        [("b", "nodes.a.result.data.y }} is not there"), ("c", "nodes.a.result.data.z }} is not there")]
    {
        let task = node(&run, name).task.as_ref().unwrap();
        assert_eq!(task.state.status, Status::Failed);
        assert!(task.state.error.as_ref().unwrap().message.contains(part), "{:?}", task.state.error);
    }
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_everything_before_the_run_ends() {
    let system = start().await;
    let run = json!({ "nodes": [
        { "name": "a", "taskType": "ECHO", "payload": "endless" },
        { "name": "b", "dependsOn": ["a"], "triggerRule": "allDone", "taskType": "ECHO" },
        { "name": "many", "taskType": "ECHO", "payload": "endless", "shards": 3 },
    ] });
    let id = begin(&system, &run).await.unwrap();
    let open = loop {
        let run = view(&system, id).await;
        let (a, many) = (node(&run, "a").task.clone(), node(&run, "many").task.clone());
        if let (Some(a), Some(many)) = (a, many)
            && a.state.status == Status::Running
            && system.node.children(many.id, None, 10).await.unwrap().0.len() == 3
        {
            break (a.id, many.id);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(system.node.cancel(&default_namespace(), id).await.unwrap(), Cancel::Accepted);
    assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    let run = view(&system, id).await;
    assert_eq!(statuses(&run), [("a", "CANCELLED"), ("b", "SKIPPED"), ("many", "CANCELLED")]);
    let progress = run.view.row.state.progress.as_deref().map(|progress| progress.message.as_str());
    assert_eq!(progress, Some("3 of 3 nodes"), "also if it is cancelled before its first report");
    for child in system.node.children(open.1, None, 10).await.unwrap().0 {
        assert_eq!(child.row.state.status, Status::Cancelled);
    }
    assert_eq!(system.node.cancel(&default_namespace(), id).await.unwrap(), Cancel::AlreadyCancelled);
    system.close().await;
}

/// The progress of a run was empty until the second look at the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_before_its_first_node_ends() {
    let slow = Run(|_: Dispatch, _: Arc<dyn Attempt>| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        success()
    });
    let system = System::start(vec![("SLOW", Arc::new(slow))]).await;
    let run = json!({ "nodes": [
        { "name": "a", "taskType": "SLOW" },
        { "name": "b", "dependsOn": ["a"], "taskType": "SLOW" },
    ] });
    let id = begin(&system, &run).await.unwrap();
    let progress = loop {
        let run = view(&system, id).await;
        if let Some(progress) = run.view.row.state.progress {
            break progress;
        }
        assert_ne!(node(&run, "a").status, "SUCCESS", "no report came before the end of a node");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((progress.percent, &*progress.message), (Some(0), "0 of 2 nodes"));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_run() {
    let system = start().await;
    let run = json!({ "deadline": "300ms", "nodes": [
        { "name": "a", "taskType": "ECHO", "payload": "endless" },
        { "name": "b", "dependsOn": ["a"], "triggerRule": "allDone", "taskType": "ECHO" },
    ] });
    let (task, run) = finished(&system, &run).await;
    assert_eq!(task.row.state.status, Status::Failed);
    assert_eq!(task.row.state.error.unwrap().code, "deadline");
    assert_eq!(statuses(&run), [("a", "CANCELLED"), ("b", "SKIPPED")]);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_takes_over_what_succeeded() {
    let system = start().await;
    let workflow = |second: &str| {
        json!({ "nodes": [
            { "name": "a", "taskType": "ECHO", "payload": { "n": 1 } },
            { "name": "b", "dependsOn": ["a"], "taskType": "ECHO", "payload": second },
            { "name": "c", "dependsOn": ["a", "b"], "taskType": "ECHO", "payload": { "n": "{{ nodes.a.result.data.n }}" } },
        ] })
    };
    let (task, first) = finished(&system, &workflow("fail")).await;
    let retried = system.node.retry(&default_namespace(), task.row.id, None).await.unwrap();
    let Retry::Created(new) = retried else { panic!("{retried:?}") };
    let again = system.wait(new.id).await;
    assert_eq!(again.row.state.status, Status::Failed, "b fails again");
    let second = view(&system, new.id).await;
    assert_eq!(second.takes_over, Some(task.row.id));
    assert!(node(&second, "a").taken_over && !node(&second, "b").taken_over);
    let id = |run: &RunView, name: &str| node(run, name).task.as_ref().unwrap().id;
    assert_eq!(id(&second, "a"), id(&first, "a"));
    assert_ne!(id(&second, "b"), id(&first, "b"));
    system.close().await;
}

async fn retried(system: &System, id: TaskId) -> TaskView {
    let retried = system.node.retry(&default_namespace(), id, None).await.unwrap();
    let Retry::Created(new) = retried else { panic!("{retried:?}") };
    system.wait(new.id).await
}

/// Results below a node that is started again were taken over: they had been made of other inputs, and later
/// nodes began before the node had ended.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_below_a_node_that_begins_anew_begins_anew() {
    let system = start().await;
    let (task, first) = finished(
        &system,
        &json!({ "onFailure": "continue", "nodes": [
            { "name": "extract", "taskType": "ECHO", "payload": "rows" },
            { "name": "load", "dependsOn": ["extract"], "taskType": "ECHO", "payload": "once: load" },
            { "name": "alert", "dependsOn": ["load"], "triggerRule": "anyFailed", "taskType": "ECHO" },
            { "name": "clean", "dependsOn": ["load"], "triggerRule": "allDone", "taskType": "ECHO",
              "payload": "after {{ nodes.load.status }}" },
            { "name": "report", "dependsOn": ["clean"], "taskType": "ECHO",
              "payload": "once: {{ nodes.clean.result.data }}" },
        ] }),
    )
    .await;
    assert_eq!(
        statuses(&first),
        [
            ("extract", "SUCCESS"),
            ("load", "FAILED"),
            ("alert", "SUCCESS"),
            ("clean", "SUCCESS"),
            ("report", "FAILED")
        ]
    );
    let second = view(&system, retried(&system, task.row.id).await.row.id).await;
    assert!(node(&second, "extract").taken_over && !node(&second, "clean").taken_over);
    assert_eq!(node(&second, "alert").status, "SKIPPED", "nothing has failed");
    assert_eq!(node(&second, "clean").result.as_ref().unwrap().data, "\"after SUCCESS\"");
    assert_eq!(node(&second, "report").status, "FAILED", "it is another one, and fails once");
    let third = retried(&system, second.view.row.id).await;
    assert_eq!(third.row.state.status, Status::Success, "{:?}", third.row.state.error);
    let third = view(&system, third.row.id).await;
    let id = |run: &RunView, name: &str| node(run, name).task.as_ref().unwrap().id;
    assert_eq!(id(&third, "extract"), id(&first, "extract"));
    assert_eq!(
        id(&third, "clean"),
        id(&second, "clean"),
        "not the one before, which cleaned up after a failure"
    );
    assert_eq!(node(&third, "alert").status, "SKIPPED");
    system.close().await;
}

/// The page of children of a retried map had only its own: a reduce that read its results there missed the
/// others.
#[tokio::test(flavor = "multi_thread")]
async fn the_children_of_a_retried_map_are_all_that_count() {
    let system = start().await;
    let items: Vec<String> =
        (0..7).map(|n| if n == 3 { "once: part".to_owned() } else { n.to_string() }).collect();
    let task = mapped(&json!({
        "taskName": "children", "taskType": "ECHO", "payload": "{{ item }}",
        "map": { "items": items, "reduce": { "taskName": "all", "taskType": "ECHO", "payload": "{{ total }}" } },
    }));
    let first = system.submit(vec![task]).await[0];
    assert_eq!(system.wait(first).await.row.state.status, Status::Failed);
    let again = retried(&system, first).await;
    assert_eq!(again.row.state.status, Status::Success, "{:?}", again.row.state.error);
    let (mut names, mut from) = (Vec::new(), None);
    loop {
        let (children, next) = system.node.children(again.row.id, from, 3).await.unwrap();
        names.extend(children.into_iter().map(|view| view.row.state.child_of.unwrap().name));
        from = next;
        if from.is_none() {
            break;
        }
    }
    names.sort_unstable();
    assert_eq!(names, ["0", "1", "2", "3", "4", "5", "6", "reduce"]);
    system.close().await;
}

/// Items were stored twice, so that half as many fitted as the docs state; and a refusal named a field that
/// no client had sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_items_are_taken_in() {
    let system = start().await;
    let map = |items: Vec<Value>| {
        mapped(&json!({ "taskName": "many", "taskType": "ECHO", "delay": 3600, "map": { "items": items } }))
    };
    system.submit(vec![map((0..100_000).map(Value::from).collect())]).await;
    let large = map(vec![json!("x".repeat(100_000)); 11]);
    let refused = system.node.submit(&default_namespace(), vec![large]).await.remove(0).unwrap_err();
    assert!(refused.to_string().contains("map.items"), "{refused}");
    system.close().await;
}

/// Names of queues may contain the separator between them and a request id or a key: two different pairs were
/// equal.
#[tokio::test(flavor = "multi_thread")]
async fn composites_of_different_queues_do_not_share_request_ids_and_keys() {
    let system = start().await;
    let map = |queue: &str, request_id: Option<&str>, key: Option<&str>| {
        let mut task =
            json!({ "taskName": "w", "taskType": "ECHO", "queue": queue, "shards": 1, "payload": "endless" });
        if let Some(id) = request_id {
            task["requestId"] = json!(id);
        }
        if let Some(key) = key {
            task["unique"] = json!({ "key": key });
        }
        mapped(&task)
    };
    let long = "r".repeat(256);
    let tasks = [
        map("a", Some("b:c"), None),
        map("a:b", Some("c"), None),
        map("a", Some(&long), None),
        map("a", None, Some("b:c")),
        map("a:b", None, Some("c")),
    ];
    let submitted = system.node.submit(&default_namespace(), tasks.to_vec()).await;
    let ids: BTreeSet<TaskId> = submitted.into_iter().map(|one| one.unwrap().id).collect();
    assert_eq!(ids.len(), 5);
    // The composite holds the key, not each of its children.
    let again =
        system.node.submit(&default_namespace(), vec![map("a", None, Some("b:c"))]).await.remove(0).unwrap();
    assert!(again.duplicate && ids.contains(&again.id));
    for id in ids {
        system.node.cancel(&default_namespace(), id).await.unwrap();
    }
    system.close().await;
}

pub(crate) fn mapped(task: &Value) -> TaskRequest {
    TaskRequest::from_json(task.to_string().as_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_becomes_many_and_their_results_become_one() {
    let system = start().await;
    let task = mapped(&json!({
        "taskName": "squares", "taskType": "ECHO",
        "payload": { "n": "{{ item }}", "of": "{{ index }}/{{ total }}" },
        "map": { "items": [3, 4, 5], "atOnce": 2,
                 "reduce": { "taskName": "sum", "taskType": "ECHO", "payload": { "all": "{{ results }}" } } },
    }));
    let id = system.submit(vec![task]).await[0];
    let done = system.wait(id).await;
    assert_eq!(done.row.state.status, Status::Success, "{:?}", done.row.state.error);
    let all = json!([{ "n": 3, "of": "0/3" }, { "n": 4, "of": "1/3" }, { "n": 5, "of": "2/3" }]);
    let expected =
        json!({ "total": 3, "succeeded": 3, "failed": 0, "results": all, "reduced": { "all": all } });
    assert_eq!(data(&done), expected);

    let plain =
        mapped(&json!({ "taskName": "plain", "taskType": "ECHO", "map": { "items": ["a", { "b": 1 }] } }));
    let id = system.submit(vec![plain]).await[0];
    assert_eq!(data(&system.wait(id).await)["results"], json!(["a", { "b": 1 }]));
    let empty = mapped(&json!({ "taskName": "empty", "taskType": "ECHO", "map": { "items": [] } }));
    let id = system.submit(vec![empty]).await[0];
    assert_eq!(
        data(&system.wait(id).await),
        json!({ "total": 0, "succeeded": 0, "failed": 0, "results": [] })
    );
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_failures_are_tolerated_and_no_more() {
    let system = start().await;
    let task = |tolerate: Value| {
        mapped(&json!({ "taskName": "m", "taskType": "ECHO",
            "map": { "items": ["ok", "fail", "ok", "fail"], "tolerateFailures": tolerate } }))
    };
    let ids =
        system.submit(vec![task(json!(2)), task(json!("50%")), task(json!(1)), task(json!("49%"))]).await;
    for (id, expected) in
        ids.into_iter().zip([Status::Success, Status::Success, Status::Failed, Status::Failed])
    {
        let done = system.wait(id).await;
        assert_eq!(done.row.state.status, expected);
        if expected == Status::Success {
            assert_eq!(data(&done)["results"], json!(["ok", null, "ok", null]));
        }
    }
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_many_does_only_what_had_not_succeeded() {
    let system = start().await;
    let task = mapped(&json!({ "taskName": "m", "taskType": "ECHO",
        "map": { "items": ["ok", "fail"], "tolerateFailures": 0 } }));
    let mut id = system.submit(vec![task]).await[0];
    assert_eq!(system.wait(id).await.row.state.status, Status::Failed);
    // The second takeover keeps the results that succeeded at first.
    for _ in 0..2 {
        let retried = system.node.retry(&default_namespace(), id, None).await.unwrap();
        let Retry::Created(again) = retried else { panic!("{retried:?}") };
        id = again.id;
        assert_eq!(system.wait(id).await.row.state.status, Status::Failed);
        let children = system.node.children(id, None, 10).await.unwrap().0;
        let names: Vec<&str> =
            children.iter().map(|child| child.row.state.child_of.as_ref().unwrap().name.as_str()).collect();
        assert_eq!(names, ["1"]);
    }
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_off_can_be_cancelled_before_it_begins() {
    let system = start().await;
    let task = mapped(&json!({ "taskName": "m", "taskType": "ECHO", "delay": "1h", "shards": 2 }));
    let id = system.submit(vec![task]).await[0];
    assert_eq!(system.node.cancel(&default_namespace(), id).await.unwrap(), Cancel::Accepted);
    assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    assert!(system.node.children(id, None, 10).await.unwrap().0.is_empty());
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_runs_once_on_every_worker_that_can() {
    let system = start().await;
    let task =
        mapped(&json!({ "taskName": "b", "taskType": "ECHO", "payload": "{{ item }}", "broadcast": true }));
    let nobody = mapped(
        &json!({ "taskName": "b", "taskType": "ECHO", "labels": { "gpu": "yes" }, "broadcast": true }),
    );
    let ids = system.submit(vec![task, nobody]).await;
    let done = system.wait(ids[0]).await;
    assert_eq!(data(&done)["results"], json!(["w1"]));
    let child = &system.node.children(ids[0], None, 10).await.unwrap().0[0];
    assert_eq!(child.row.state.worker.as_ref().unwrap().as_str(), "w1");
    assert_eq!(data(&system.wait(ids[1]).await)["total"], 0);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_within_a_workflow_takes_its_items_from_a_result() {
    let system = start().await;
    let run = json!({ "input": { "suffix": "!" }, "nodes": [
        { "name": "list", "taskType": "ECHO", "payload": { "files": ["a", "b"] } },
        { "name": "each", "dependsOn": ["list"], "taskType": "ECHO", "payload": "{{ item }}{{ input.suffix }}",
          "metadata": { "of": "{{ nodes.list.status }}" },
          "map": { "items": "{{ nodes.list.result.data.files }}" } },
        { "name": "end", "dependsOn": ["each"], "taskType": "ECHO", "payload": "{{ nodes.each.result.data.results }}" },
    ] });
    let (task, run) = finished(&system, &run).await;
    assert_eq!(task.row.state.status, Status::Success, "{:?}", task.row.state.error);
    assert_eq!(node(&run, "end").result.as_ref().unwrap().data, r#""[\"a!\",\"b!\"]""#);
    let each = node(&run, "each").task.as_ref().unwrap().id;
    let child = &system.node.children(each, None, 10).await.unwrap().0[0];
    let job = system.node.job(&default_namespace(), child.row.id).await.unwrap().unwrap();
    assert_eq!((job.view.row.id, job.counts.total), (task.row.id, 4), "all of the composites");
    assert_eq!(child.row.body.as_ref().unwrap().metadata["of"], "SUCCESS");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_nodes_begin_in_their_order() {
    let system = start().await;
    let mut rng = tasklane_core::rng::Rng::new(7);
    let nodes: Vec<Value> = (0_u64..10_000)
        .map(|at| {
            let mut on: Vec<u64> = (0..rng.below(4)).filter(|_| at > 0).map(|_| rng.below(at)).collect();
            on.sort_unstable();
            on.dedup();
            let on: Vec<String> = on.iter().map(|on| format!("n{on}")).collect();
            json!({ "name": format!("n{at}"), "taskType": "ECHO", "dependsOn": on })
        })
        .collect();
    let (task, run) = finished(&system, &json!({ "nodes": nodes })).await;
    assert_eq!(task.row.state.status, Status::Success, "{:?}", task.row.state.error);
    assert_eq!(run.counts.succeeded, 10_000);
    let ended: std::collections::BTreeMap<&str, _> = run
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.task.as_ref().unwrap().state.finished_at.unwrap()))
        .collect();
    for node in &run.nodes {
        let created = node.task.as_ref().unwrap().state.created_at;
        assert!(
            node.depends_on.iter().all(|on| ended[on.as_str()] <= created),
            "{} began too early",
            node.name
        );
    }
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_together_is_removed_together() {
    let retention = RetentionOptions {
        tasks: Duration::ZERO,
        request_ids: Duration::ZERO,
        every: Duration::from_hours(1),
        ..RetentionOptions::default()
    };
    let system = System::start_with(vec![("ECHO", echo())], retention).await;
    let run = json!({ "nodes": [
        { "name": "a", "taskType": "ECHO" },
        { "name": "many", "taskType": "ECHO", "payload": "x", "shards": 3 },
    ] });
    let (task, run) = finished(&system, &run).await;
    let many = node(&run, "many").task.as_ref().unwrap().id;
    let children: Vec<TaskId> =
        system.node.children(many, None, 10).await.unwrap().0.iter().map(|child| child.row.id).collect();
    system.node.retire_once().await.unwrap();
    for id in children.into_iter().chain([many, task.row.id]) {
        assert!(system.node.task(&default_namespace(), id).await.unwrap().is_none(), "{id} is still there");
    }
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_cancelled_shows_it() {
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (told, waits) = (Arc::clone(&begun), Arc::clone(&go_on));
    let slow = Run(move |_: Dispatch, attempt: Arc<dyn Attempt>| {
        let (told, waits) = (Arc::clone(&told), Arc::clone(&waits));
        async move {
            told.notify_one();
            attempt.stopped().await;
            waits.notified().await;
            Finish { ending: Ending::Cancelled, ..success() }
        }
    });
    let system = System::start(vec![("SLOW", Arc::new(slow))]).await;
    let run = json!({ "nodes": [{ "name": "a", "taskType": "SLOW" }] });
    let id = begin(&system, &run).await.unwrap();
    begun.notified().await;
    assert!(!view(&system, id).await.view.row.state.cancel_requested);
    assert_eq!(system.node.cancel(&default_namespace(), id).await.unwrap(), Cancel::Accepted);
    // The task of its node has not ended, so neither has the run.
    assert!(view(&system, id).await.view.row.state.cancel_requested);
    let explained = system.node.explain(&default_namespace(), id).await.unwrap().unwrap();
    assert!(explained.reasons.contains(&tasklane_core::lane::Reason::CancelRequested), "{explained:?}");
    go_on.notify_one();
    assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    system.close().await;
}

/// For how long the one thread of the runtime does not turn to anything else, at most, while work is done.
async fn longest_stall<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let stalled = Arc::new(Mutex::new((Instant::now(), Duration::ZERO)));
    let looks = Arc::clone(&stalled);
    let looking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut looks = looks.lock().unwrap();
            *looks = (Instant::now(), looks.1.max(looks.0.elapsed()));
        }
    });
    tokio::task::yield_now().await;
    let done = work.await;
    looking.abort();
    let (last, longest) = *stalled.lock().unwrap();
    (done, longest.max(last.elapsed()))
}

/// A workflow of 3.9 MB held the runtime for 0.28 s.
#[tokio::test]
async fn a_large_workflow_stalls_nothing() {
    let system = start().await;
    let node = |n: usize| {
        let payload = json!({ "text": "{{ input.a }}", "more": "x".repeat(300) });
        json!({ "name": format!("n{n}"), "taskType": "ECHO", "payload": payload })
    };
    let run = json!({ "nodes": (0..9_500).map(node).collect::<Vec<_>>(), "input": { "a": 1 } }).to_string();
    assert!(run.len() > 3_500_000, "{}", run.len());
    let mut shortest = (Duration::MAX, Duration::ZERO);
    for _ in 0..5 {
        let begun = Instant::now();
        RunRequest::from_json(run.as_bytes()).unwrap();
        let takes = begun.elapsed();
        let work = async {
            let request = system.node.read_run(run.as_bytes()).await.unwrap();
            // It is read, and then larger than a task may be.
            system.node.start_run(&default_namespace(), request).await
        };
        let (started, stall) = longest_stall(work).await;
        assert!(matches!(started, Ok(_) | Err(WorkflowError::Invalid(_))), "{started:?}");
        if stall < shortest.0 {
            shortest = (stall, takes);
        }
    }
    let (stall, takes) = shortest;
    assert!(stall < takes / 2, "stalled for {stall:?}, and to read it takes {takes:?}");
    system.close().await;
}

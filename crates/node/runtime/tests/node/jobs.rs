//! Jobs: tasks whose results are analyzed, over a whole node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tasklane_core::command::Command;
use tasklane_core::id::TaskId;
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{TaskError, TaskResult};
use tasklane_ports::{Attempt, Executor, Store as _, TaskView};
use tasklane_runtime::node::{JobCounts, NamedDocumentError, Retry};
use tasklane_runtime::request::TaskRequest;

use crate::support::{Run, System, default_namespace, name, success};

fn payload(dispatch: &Dispatch) -> Value {
    serde_json::from_str(dispatch.body.as_ref().unwrap().payload.as_str()).unwrap()
}

/// Returns its payload; `fail` fails, `endless` waits for its stop.
fn page(seen: Arc<Mutex<Vec<Value>>>) -> Arc<dyn Executor> {
    Arc::new(Run(move |dispatch: Dispatch, attempt: Arc<dyn Attempt>| {
        let seen = Arc::clone(&seen);
        async move {
            let payload = payload(&dispatch);
            seen.lock().unwrap().push(payload.clone());
            if payload["fail"] == true {
                let error = TaskError::new("told", "it was told to");
                return Finish { ending: Ending::Failed { error, retry: RetryAdvice::Never }, ..success() };
            }
            if payload["endless"] == true {
                attempt.stopped().await;
                return Finish { ending: Ending::Cancelled, ..success() };
            }
            Finish { result: TaskResult { data: payload.to_string(), ..TaskResult::default() }, ..success() }
        }
    }))
}

/// Returns the `then` of the analyzed task's payload, or goes as deep as the payload asks.
fn links() -> Arc<dyn Executor> {
    Arc::new(Run(|dispatch: Dispatch, _: Arc<dyn Attempt>| async move {
        let given = payload(&dispatch);
        let asked = &given["task"]["payload"];
        let data = match asked["deep"].as_u64().unwrap_or(0) {
            0 => asked["then"].to_string(),
            deep => json!({ "subtasks": [sub(&json!({ "deep": deep - 1 }))] }).to_string(),
        };
        Finish { result: TaskResult { data, ..TaskResult::default() }, ..success() }
    }))
}

struct Jobs {
    system: System,
    seen: Arc<Mutex<Vec<Value>>>,
}

async fn start(more: Value) -> Jobs {
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let system = System::start(vec![("PAGE", page(Arc::clone(&seen))), ("LINKS", links())]).await;
    let mut analyzer = json!({ "taskType": "LINKS" });
    analyzer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    put(&system, &analyzer, false).await.unwrap();
    Jobs { system, seen }
}

async fn put(system: &System, analyzer: &Value, replace: bool) -> Result<bool, NamedDocumentError> {
    let body = analyzer.to_string();
    let put = system.node.put_analyzer(&default_namespace(), &name("PAGE"), body.as_bytes(), replace).await;
    put.map(|(_, is_new)| is_new)
}

impl Jobs {
    async fn submit(&self, payload: &Value) -> TaskId {
        let task = json!({ "taskName": "page", "taskType": "PAGE", "payload": payload });
        let request = TaskRequest::from_json(task.to_string().as_bytes()).unwrap();
        self.system.submit(vec![request]).await[0]
    }

    async fn run(&self, payload: &Value) -> (TaskView, JobCounts) {
        let id = self.submit(payload).await;
        let view = self.system.wait(id).await;
        let job = self.system.node.job(&default_namespace(), id).await.unwrap().unwrap();
        (view, job.counts)
    }
}

fn sub(payload: &Value) -> Value {
    json!({ "taskName": "sub", "taskType": "PAGE", "payload": payload })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_analysis_names_is_run_and_analyzed_too() {
    let jobs = start(json!({})).await;
    let leaf = sub(&json!({ "n": 3 }));
    let middle = sub(&json!({ "n": 2, "then": { "subtasks": [leaf, leaf] } }));
    let (view, counts) = jobs.run(&json!({ "n": 1, "then": { "subtasks": [middle] } })).await;
    assert_eq!(view.row.state.status, Status::Success, "{:?}", view.row.state.error);
    assert_eq!((counts.total, counts.open, counts.unanalyzed, counts.percent()), (4, 0, 0, 100));
    // Results that wait for their analyzer are not done.
    assert_eq!(JobCounts { unanalyzed: 1, ..counts.clone() }.percent(), 75);
    assert_eq!(counts.by_status["SUCCESS"], 4);
    let said: Value = serde_json::from_str(&view.result.unwrap().data).unwrap();
    assert_eq!(said["total"], 4);
    let mut seen: Vec<u64> =
        jobs.seen.lock().unwrap().iter().map(|payload| payload["n"].as_u64().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 3]);
    // Any task of the job leads to it.
    let child = jobs.system.node.children(view.row.id, None, 10).await.unwrap().0[0].row.id;
    let job = jobs.system.node.job(&default_namespace(), child).await.unwrap().unwrap();
    assert_eq!(job.view.row.id, view.row.id);
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_keeps_a_task_from_being_added_twice() {
    let jobs = start(json!({})).await;
    let once = |url: &str, then: Value| {
        json!({ "taskName": "page", "taskType": "PAGE", "payload": { "url": url, "then": then },
                "unique": { "key": "{{ payload.url }}", "until": "1h" } })
    };
    let back = once("/a", json!(null));
    let (a, b) = (once("/a", json!({ "subtasks": [back] })), once("/b", json!({ "subtasks": [back] })));
    let (view, counts) = jobs.run(&json!({ "url": "/", "then": { "subtasks": [a, b] } })).await;
    assert_eq!(view.row.state.status, Status::Success, "{:?}", view.row.state.error);
    assert_eq!(counts.total, 3);
    let urls: Vec<String> =
        jobs.seen.lock().unwrap().iter().map(|payload| payload["url"].to_string()).collect();
    assert_eq!(urls.len(), urls.iter().collect::<BTreeSet<_>>().len(), "{urls:?}");
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_replaces_the_end_of_a_task() {
    let jobs = start(json!({})).await;
    let (view, _) = jobs.run(&json!({ "fail": true, "then": { "verdict": "success" } })).await;
    assert_eq!(view.row.state.status, Status::Success);
    let (view, _) = jobs.run(&json!({ "then": { "verdict": "failure" } })).await;
    assert_eq!(view.row.state.status, Status::Failed);
    let (view, _) = jobs.run(&json!({ "fail": true })).await;
    assert_eq!(view.row.state.status, Status::Failed, "without a verdict its end counts");
    let before = jobs.seen.lock().unwrap().len();
    let (view, counts) = jobs.run(&json!({ "then": { "verdict": "retry" } })).await;
    assert_eq!(view.row.state.status, Status::Failed);
    assert!(view.row.state.error.unwrap().message.contains("run again 10 times"));
    assert_eq!((counts.total, jobs.seen.lock().unwrap().len() - before), (11, 11));
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_limits() {
    let jobs = start(json!({ "maxDepth": 1, "maxSubtasks": 2, "maxTasks": 3 })).await;
    let leaf = || sub(&json!({}));
    for (then, part) in [
        (json!({ "subtasks": [leaf(), leaf(), leaf()] }), "3 subtasks were asked for at once, 2 are allowed"),
        (
            json!({ "subtasks": [sub(&json!({ "then": { "subtasks": [leaf()] } }))] }),
            "1 away from their root",
        ),
        (json!({ "subtasks": "many" }), "is not valid"),
        (json!({ "subtasks": [{ "taskName": "x", "taskType": "tasklane.bulk" }] }), "must not begin with"),
    ] {
        let (view, _) = jobs.run(&json!({ "then": then })).await;
        let error = view.row.state.error.unwrap();
        assert!(error.message.contains(part), "{error:?}");
        assert_eq!(view.row.state.status, Status::Failed);
    }
    put(&jobs.system, &json!({ "taskType": "LINKS", "maxTasks": 2 }), true).await.unwrap();
    let (view, counts) = jobs.run(&json!({ "then": { "subtasks": [leaf(), leaf()] } })).await;
    assert!(view.row.state.error.unwrap().message.contains("may have 2 tasks"));
    assert_eq!(counts.total, 2);
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_analyzer_is_put_once_unless_it_replaces() {
    let jobs = start(json!({})).await;
    assert!(!put(&jobs.system, &json!({ "taskType": "LINKS" }), false).await.unwrap());
    let other = json!({ "taskType": "LINKS", "maxDepth": 3 });
    assert!(matches!(put(&jobs.system, &other, false).await, Err(NamedDocumentError::Exists)));
    put(&jobs.system, &other, true).await.unwrap();
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_run_again_has_tasks_of_its_own() {
    let jobs = start(json!({})).await;
    let (first, _) = jobs.run(&json!({ "fail": true, "then": { "subtasks": [sub(&json!({}))] } })).await;
    assert_eq!(first.row.state.status, Status::Failed);
    let retried = jobs.system.node.retry(&default_namespace(), first.row.id, None).await.unwrap();
    let Retry::Created(again) = retried else { panic!("{retried:?}") };
    let again = jobs.system.wait(again.id).await;
    assert_eq!(again.row.state.status, Status::Failed);
    let job = jobs.system.node.job(&default_namespace(), again.row.id).await.unwrap().unwrap();
    assert_eq!(job.counts.total, 2);
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_torn_down_with_all_that_belongs_to_it() {
    let jobs = start(json!({})).await;
    let endless = sub(&json!({ "endless": true }));
    let id = jobs.submit(&json!({ "then": { "subtasks": [endless, endless] } })).await;
    let node = &jobs.system.node;
    loop {
        let job = node.job(&default_namespace(), id).await.unwrap().unwrap();
        if job.counts.by_status.get("RUNNING") == Some(&2) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let children: Vec<TaskId> =
        node.children(id, None, 50).await.unwrap().0.iter().map(|child| child.row.id).collect();
    let down = node.tear_down(&default_namespace(), id, Duration::from_mins(1)).await.unwrap().unwrap();
    assert_eq!((down.left, down.removed), (vec![], 5), "job, root, its analysis and two subtasks");
    for id in children.into_iter().chain([id]) {
        assert!(node.task(&default_namespace(), id).await.unwrap().is_none());
    }
    assert!(node.tear_down(&default_namespace(), id, Duration::ZERO).await.unwrap().is_none());
    jobs.system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_may_be_so_deep_that_names_are_too_long_for_ids() {
    const DEEP: usize = 90;
    let jobs = start(json!({ "maxDepth": 1000 })).await;
    let (view, counts) = jobs.run(&json!({ "deep": DEEP })).await;
    assert_eq!(view.row.state.status, Status::Success, "{:?}", view.row.state.error);
    assert_eq!((counts.total, counts.open, counts.unanalyzed), (DEEP + 1, 0, 0));
    jobs.system.close().await;
}

/// The job has no driver any more, and some of its tasks still run.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ended_before_its_children_is_torn_down_when_they_have_ended() {
    let jobs = start(json!({})).await;
    let id = jobs.submit(&json!({ "endless": true })).await;
    let node = &jobs.system.node;
    let child = loop {
        let (children, _) = node.children(id, None, 5).await.unwrap();
        if let Some(child) = children.iter().find(|child| child.row.state.status == Status::Running) {
            break child.row.id;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let command = Command::Cancel { task: id };
    jobs.system.store.post(id.lane(), &[command]).await.unwrap();
    let broken = jobs.system.wait(id).await;
    assert_eq!(broken.row.state.status, Status::Cancelled);
    let still = node.task(&default_namespace(), child).await.unwrap().unwrap();
    assert_eq!(still.row.state.status, Status::Running, "no cancel was posted");
    let down = node.tear_down(&default_namespace(), id, Duration::from_mins(1)).await.unwrap().unwrap();
    assert_eq!((down.left, down.removed), (vec![], 2), "job and root");
    jobs.system.close().await;
}

//! Definitions that users registered stay readable: documents and payloads of composites hold them as they
//! were sent. Unknown fields are refused, so a renamed field fails here.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use tasklane_runtime::request::{
    Analysis, AnalysisVerdict, Analyzer, CustomType, MapRequest, TaskRequest, Workflow,
};

const TASK: &str = r#"{
    "taskName": "t", "taskType": "SHELL", "payload": "ls", "executionTimeout": "5m", "queue": "mail", "priority": 7,
    "retryPolicy": { "maxRetries": 2, "retryDelay": 1, "backoffRate": 2.0, "maxDelay": "1h", "jitter": 0.1 },
    "delay": "10s", "metadata": { "k": "1" }, "labels": { "gpu": "a100" }, "hashKey": "h", "startTimeout": 60,
    "progressTimeout": 30, "concurrency": [{ "key": "{{ hashKey }}", "limit": 2, "whenFull": "wait" }],
    "rate": [{ "key": "{{ taskName }}", "limit": 10, "per": "1s", "burst": 2 }],
    "unique": { "key": "u", "until": "finished" },
    "webhooks": [{ "url": "https://example.com", "on": ["finished", "failed"] }]
}"#;

const MAP: &str = r#"{
    "taskName": "t", "taskType": "ECHO",
    "map": { "items": [1], "atOnce": 2, "tolerateFailures": "5%", "reduce": { "taskName": "r", "taskType": "ECHO" } }
}"#;

const WORKFLOW: &str = r#"{
    "name": "etl", "onFailure": "continue", "deadline": "1h",
    "nodes": [
        { "name": "a", "taskType": "ECHO", "triggerRule": "allSucceeded" },
        { "name": "b", "taskType": "ECHO", "dependsOn": ["a"], "when": "nodes.a.result.data > 1" },
        { "name": "c", "taskType": "ECHO", "dependsOn": ["a"], "triggerRule": "allDone", "shards": 2 },
        { "name": "d", "taskType": "ECHO", "dependsOn": ["a"], "triggerRule": "anyFailed", "broadcast": true }
    ]
}"#;

const EXECUTORS: [&str; 4] = [
    r#"{ "description": "d", "command": ["echo", "{{ payload.n }}"], "env": { "A": "1" }, "cwd": "sub",
        "payloadSchema": { "type": "object" } }"#,
    r#"{ "script": "echo hi" }"#,
    r#"{ "python": "print(1)" }"#,
    r#"{ "http": { "method": "POST", "url": "https://example.com", "body": "{{ payload }}" } }"#,
];

const ANALYZERS: [&str; 2] = [
    r#"{ "taskType": "LINKS", "maxDepth": 3, "maxSubtasks": 10, "maxTasks": 100 }"#,
    r#"{ "python": "print('{}')", "maxDepth": 3 }"#,
];

#[test]
fn stored_definitions_stay_readable() {
    TaskRequest::from_json(TASK.as_bytes()).unwrap();
    let map = MapRequest::from_json(MAP).unwrap();
    assert_eq!((map.at_once, map.tolerate.failures_max(100), map.reduce.is_some()), (2, 5, true));
    let workflow = Workflow::from_stored(WORKFLOW).unwrap();
    assert_eq!((workflow.name.as_str(), workflow.nodes.len()), ("etl", 4));
    for json in EXECUTORS {
        CustomType::from_json(json.as_bytes()).unwrap();
    }
    for json in ANALYZERS {
        assert_eq!(Analyzer::from_json(json.as_bytes()).unwrap().max_depth, 3);
    }
}

#[test]
fn stored_results_of_analyses_stay_readable() {
    for (name, verdict) in [
        ("success", AnalysisVerdict::Success),
        ("failure", AnalysisVerdict::Failure),
        ("retry", AnalysisVerdict::Retry),
    ] {
        let data =
            format!(r#"{{ "subtasks": [{{ "taskName": "t", "taskType": "ECHO" }}], "verdict": "{name}" }}"#);
        let analysis = Analysis::from_data(&data).unwrap();
        assert_eq!((analysis.subtasks.len(), analysis.verdict), (1, Some(verdict)));
    }
}

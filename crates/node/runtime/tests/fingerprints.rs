//! Fingerprints of requests never change: stores keep them, and compare them with those of repeated requests.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use tasklane_core::task::{Fingerprint, Occasion, Webhook};
use tasklane_runtime::request::{TaskRequest, canonical};
use tasklane_testkit::golden::check;

/// The fields of a request besides its name and its type, by the name of the entry.
const REQUESTS: [(&str, &str); 20] = [
    ("nothing else", ""),
    ("names that the fingerprint leaves out", r#""queue":"mail","requestId":"r1""#),
    ("a text", r#""payload":"ls -l""#),
    ("a text that looks like JSON", r#""payload":"[1, 2]""#),
    ("JSON", r#""payload":{"b":[1,2.50,null],"a":"é"}"#),
    ("a timeout and retries", r#""executionTimeout":"90s","retryCount":7"#),
    (
        "a retry policy",
        r#""retryPolicy":{"maxRetries":2,"retryDelay":"1.5s","backoffRate":1.25,"maxDelay":"2m","jitter":0.2}"#,
    ),
    ("a priority", r#""priority":9"#),
    ("a time", r#""runAt":"2099-01-31T12:00:00.25Z""#),
    ("a delay", r#""delay":"1h30m""#),
    ("metadata and labels", r#""metadata":{"z":"1","a":""},"labels":{"gpu":"a100"}"#),
    ("a hash key", r#""hashKey":"customer 7""#),
    ("timeouts of start and progress", r#""startTimeout":"10m","progressTimeout":"30s""#),
    ("a limit that waits", r#""concurrency":[{"key":"{{ metadata.tenant }}","limit":2,"whenFull":"wait"}]"#),
    (
        "limits that cancel",
        r#""concurrency":[{"limit":1,"whenFull":"cancelNewest"},{"key":"{{ hashKey }}","limit":3}],"hashKey":"h""#,
    ),
    (
        "rates",
        r#""rate":[{"limit":10,"per":"1s"},{"key":"{{ taskType }}","limit":600,"per":"1m","burst":5}]"#,
    ),
    ("a unique key", r#""unique":{"key":"{{ taskName }}"}"#),
    ("a unique key for a time", r#""unique":{"key":"a","until":"5m"}"#),
    ("a webhook", r#""webhooks":[{"url":"https://example.com/a"}]"#),
    (
        "webhooks with occasions",
        r#""webhooks":[{"url":"https://example.com/a","on":["failed"]},
            {"url":"https://example.com/b?x=1","on":["finished","failed"]}]"#,
    ),
];

fn read(fields: &str) -> (String, TaskRequest) {
    let comma = if fields.is_empty() { "" } else { "," };
    let json = format!(r#"{{"taskName":"a mail","taskType":"SHELL"{comma}{fields}}}"#);
    let request = TaskRequest::from_json(json.as_bytes()).unwrap();
    (json, request)
}

fn shown(Fingerprint { version, hash }: Fingerprint) -> String {
    format!("version {version}, hash {hash:016x}")
}

#[test]
fn fingerprints_stay() {
    check("fingerprint", |golden| {
        for (title, fields) in REQUESTS {
            let (json, request) = read(fields);
            golden.text(title, format!("{json}\n{}", shown(request.fingerprint())));
        }
        let (_, mut request) = read("");
        let on = vec![Occasion::Late, Occasion::Failing, Occasion::Failed, Occasion::Finished];
        request.webhooks = vec![Webhook { url: "https://example.com".to_owned(), on }];
        golden.text("all occasions", shown(request.fingerprint()));
        request.parent = Some("00030102-0304-8506-8708-090a0b0c0d0e".parse().unwrap());
        golden.text("a parent", shown(request.fingerprint()));
        // The server compares maps and runs of workflows by their canonical JSON.
        let json = r#"{ "b": [1, 2.50, 1e3, 12345678901234567890123], "a": { "d": "é\u0000", "c": null } }"#;
        request.identity = Some(canonical(json));
        golden.text("canonical JSON", format!("{}\n{}", canonical(json), shown(request.fingerprint())));
    });
}

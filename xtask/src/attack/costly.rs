//! Input that costs its sender nothing and its reader much: schemas, templates, regular expressions, cron
//! expressions, workflows, huge JSON. The server must answer each of these requests soon, and all other
//! clients meanwhile too.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::plan::Class;
use super::system::System;
use super::tally::Reason;
use super::wire::{End, Shot, fire};
use crate::chaos::clock::Boot;

/// An answer comes within this time, whatever was asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);

/// Method, target and body.
type Request = (&'static str, String, Value);
/// A name, and the requests.
type Costly = (&'static str, fn() -> Vec<Request>);

/// The kinds of costly input.
pub(super) const COSTLY: &[Costly] = &[
    ("schema with references that double", schema_that_doubles),
    ("schema with a slow pattern", schema_with_pattern),
    ("schema with unique items", schema_with_unique_items),
    ("template with loops", template_with_loops),
    ("template with long texts", template_with_long_texts),
    ("cron that hardly ever fires", rare_cron),
    ("workflow with many edges", dense_workflow),
    ("workflow with costly conditions", costly_conditions),
    ("huge JSON", huge_json),
    ("huge batch", huge_batch),
    ("long numbers", long_numbers),
];

/// Plays a costly input.
pub(super) async fn cost(system: &Arc<System>, at: usize) -> Result<()> {
    let (name, requests) = COSTLY[at];
    for (method, target, body) in requests() {
        let bytes = serde_json::to_vec(&body)?;
        let shot = Shot::request(method, &target, "tasklane-namespace: hostile\r\n", Some(&bytes));
        let from = Boot::now();
        let outcome = fire(system.target(), &shot, ANSWER_WITHIN).await;
        let status = outcome.answers.first().map_or(0, |answer| answer.status);
        let is_answered = matches!(status, 200..500 | 503 | 507);
        let excuses = [Reason::Down, Reason::Crowded];
        let excuses = if outcome.end == End::Silent { &excuses[..1] } else { &excuses[..] };
        if !is_answered && !system.tally.is_excused(from, Boot::now(), excuses) {
            let what = format!("{method} {target}: status {status}, {:?}: {}", outcome.end, shot.shown());
            system.tally.violation(&format!("costly input, {name}"), &what);
        }
    }
    system.tally.count(Class::Costly, name);
    Ok(())
}

fn executor(name: &str, schema: &Value) -> Request {
    let body = json!({ "command": ["true"], "payloadSchema": schema });
    ("PUT", format!("/api/v1/executors/{name}?replace=true"), body)
}

fn submit(kind: &str, payload: &Value) -> Request {
    ("POST", "/api/v1/tasks".to_owned(), json!({"taskName": "costly", "taskType": kind, "payload": payload}))
}

/// Each definition asks for the next one twice: the work doubles with each.
fn schema_that_doubles() -> Vec<Request> {
    let mut definitions = serde_json::Map::new();
    for n in 0..28 {
        let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
        definitions.insert(format!("a{n}"), json!({ "allOf": [next, next] }));
    }
    definitions.insert("a28".to_owned(), json!({"type": ["string", "object"]}));
    let schema = json!({"$ref": "#/$defs/a0", "$defs": definitions});
    let mut requests = vec![executor("doubles", &schema)];
    requests.extend((0..3).map(|_| submit("doubles", &json!("x"))));
    requests
}

fn schema_with_pattern() -> Vec<Request> {
    let schemas = [
        json!({"type": "string", "pattern": "^(a+)+$"}),
        json!({"type": "string", "pattern": "^(?=(a|aa)+$)(a|aa)+$"}),
        json!({"type": "string", "pattern": "(x{1000}){1000}"}),
    ];
    let long = json!(format!("{}!", "a".repeat(40_000)));
    let each = (0..).zip(&schemas);
    each.flat_map(|(n, schema)| {
        let name = format!("pattern-{n}");
        [executor(&name, schema), submit(&name, &long)]
    })
    .collect()
}

fn schema_with_unique_items() -> Vec<Request> {
    let schema = json!({"type": "array", "uniqueItems": true, "items": {"type": "object"}});
    let items: Vec<Value> = (0..8_000).map(|n| json!({"a": [n % 2, n]})).collect();
    vec![executor("unique", &schema), submit("unique", &items.into())]
}

fn template_with_loops() -> Vec<Request> {
    let text = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a * b }}{% endfor %}{% endfor %}";
    let run = json!({"nodes": [{"name": "a", "taskType": "NOOP", "payload": text}], "input": {}});
    let executor = json!({"command": ["true", text]});
    vec![
        ("POST", "/api/v1/workflows/runs".to_owned(), run),
        ("PUT", "/api/v1/executors/loops?replace=true".to_owned(), executor),
        submit("loops", &json!({})),
        (
            "PUT",
            "/api/v1/queues/loops".to_owned(),
            json!({"version": 0, "policy": {"rate": [{"key": text, "limit": 1, "per": "1s"}]}}),
        ),
    ]
}

fn template_with_long_texts() -> Vec<Request> {
    let texts = [
        "{{ 'a' * 1000000000 }}",
        "{{ range(1000000000) | list }}",
        "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}",
    ];
    let run = |text: &str| {
        let node = json!({"name": "a", "taskType": "NOOP", "payload": text});
        ("POST", "/api/v1/workflows/runs".to_owned(), json!({ "nodes": [node] }))
    };
    texts.into_iter().map(run).collect()
}

fn rare_cron() -> Vec<Request> {
    let preview = |cron: &str| {
        let body = json!({"cron": cron, "count": 100, "timezone": "America/New_York"});
        ("POST", "/api/v1/schedule-preview".to_owned(), body)
    };
    ["0 0 29 2 MON", "0 0 30 2 *", "59 23 29 2 SUN#5", "0 0 31 2,4,6,9,11 *", "* * * * * *", "0 0 L-30 2 *"]
        .map(preview)
        .into()
}

fn dense_workflow() -> Vec<Request> {
    let node = |n: usize| {
        let before: Vec<String> = (0..n).map(|n| format!("n{n}")).collect();
        json!({"name": format!("n{n}"), "taskType": "NOOP", "dependsOn": before})
    };
    let nodes: Vec<Value> = (0..500).map(node).collect();
    let ring: Vec<Value> = (0..400)
        .map(|n| json!({"name": format!("n{n}"), "taskType": "NOOP", "dependsOn": [format!("n{}", (n + 1) % 400)]}))
        .collect();
    vec![
        ("PUT", "/api/v1/workflows/dense".to_owned(), json!({ "nodes": nodes })),
        ("PUT", "/api/v1/workflows/ring".to_owned(), json!({ "nodes": ring })),
    ]
}

fn costly_conditions() -> Vec<Request> {
    let long = "1 + ".repeat(20_000) + "1 == 1";
    let deep = "(".repeat(5_000) + "1" + &")".repeat(5_000);
    let run = |condition: &str| {
        let nodes = json!([
            {"name": "a", "taskType": "NOOP"},
            {"name": "b", "taskType": "NOOP", "dependsOn": ["a"], "when": condition},
        ]);
        ("POST", "/api/v1/workflows/runs".to_owned(), json!({ "nodes": nodes }))
    };
    vec![run(&long), run(&deep), run("range(100000000) | sum > 1"), run("input.a ~ ('x' * 100000000)")]
}

fn huge_json() -> Vec<Request> {
    let many: Vec<Value> = vec![json!([]); 500_000];
    let keys = |n: usize| (0..n).map(|n| (format!("k{n}"), Value::Null)).collect::<serde_json::Map<_, _>>();
    vec![
        submit("NOOP", &many.into()),
        submit("NOOP", &keys(100_000).into()),
        ("POST", "/api/v1/tasks".to_owned(), keys(100_000).into()),
    ]
}

fn huge_batch() -> Vec<Request> {
    let wrong = json!({"taskName": "", "taskType": "NOOP", "metadata": {"a": "b".repeat(2_000)}});
    let tasks: Vec<Value> = vec![wrong; 10_000];
    vec![("POST", "/api/v1/tasks/batch".to_owned(), json!({ "tasks": tasks }))]
}

fn long_numbers() -> Vec<Request> {
    let digits: Value = "9".repeat(200_000).into();
    vec![
        submit("NOOP", &digits),
        submit("NOOP", &json!({"n": u64::MAX, "m": i64::MIN, "x": 1e308})),
        (
            "POST",
            "/api/v1/tasks".to_owned(),
            json!({"taskName": "n", "taskType": "NOOP", "delay": "9".repeat(100_000)}),
        ),
    ]
}

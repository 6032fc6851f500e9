//! The description of the API (`OpenAPI` 3.1).
//!
//! Paths and answers describe themselves beside the code that makes them. Requests are described in
//! `requests.json`, because their rules need more of JSON Schema than attributes can say. Parts common to all
//! paths (namespace, token, problems) are added here, once.
//!
//! There are two descriptions. The strict one has every rule of a request and is for fuzzers and validators.
//! The published one has the shapes of requests and is for generators of clients and for people
//! (`clients.rs`).

mod clients;
mod examples;
#[cfg(test)]
mod rules;

use serde_json::{Map, Value, json};

use crate::problem::CODES;
use crate::router;

/// Schemas of requests.
const REQUESTS: &str = include_str!("requests.json");

/// Messages that the server sends, with their schemas and headers.
const MESSAGES: &str = include_str!("webhooks.json");

/// Operations that take the header `Idempotency-Key`.
const KEYED: &[&str] = &["submitTask", "retryTask", "startRun", "retryRun", "triggerSchedule"];

/// Bodies: operation, schema, whether it must be there.
const BODIES: &[(&str, &str, bool)] = &[
    ("submitTask", "TaskRequest", true),
    ("submitBatch", "BatchRequest", true),
    ("bulk", "BulkRequest", true),
    ("retryTask", "RetryRequest", false),
    ("putQueue", "PutQueue", true),
    ("putSchedule", "PutSchedule", true),
    ("backfillSchedule", "BackfillRequest", true),
    ("previewTimes", "PreviewRequest", true),
    ("putWorkflow", "PutWorkflow", true),
    ("putExecutor", "PutExecutor", true),
    ("putAnalyzer", "PutAnalyzer", true),
    ("startRun", "RunRequest", true),
    ("retryRun", "RunRetryRequest", false),
    ("takeLock", "LockRequest", true),
    ("rotateWebhookEndpoint", "WebhookEndpointRequest", true),
    ("testWebhook", "TestWebhookRequest", true),
    ("patchWorker", "PatchWorker", true),
];

/// Problems that only some operations answer with.
const SPECIAL: &[(&str, &[u16])] = &[
    ("submitTask", &[409, 429, 507]),
    ("submitBatch", &[]),
    ("listTasks", &[]),
    ("getTask", &[404]),
    ("cancelTask", &[404, 409, 507]),
    ("listAttempts", &[404]),
    ("getLogs", &[404]),
    ("explainTask", &[404]),
    ("retryTask", &[404, 409, 429, 507]),
    ("bulk", &[429, 507]),
    ("getOperation", &[404]),
    ("listQueues", &[]),
    ("putQueue", &[409, 507]),
    ("pauseQueue", &[404, 409, 507]),
    ("resumeQueue", &[409, 507]),
    ("listSchedules", &[]),
    ("getSchedule", &[404]),
    ("putSchedule", &[409, 507]),
    ("deleteSchedule", &[409, 507]),
    ("enableSchedule", &[404, 409, 507]),
    ("disableSchedule", &[404, 409, 507]),
    ("triggerSchedule", &[404, 409, 429, 507]),
    ("backfillSchedule", &[404, 409, 507]),
    ("nextTimes", &[404]),
    ("previewTimes", &[]),
    ("scheduleHistory", &[404]),
    ("listChildren", &[404]),
    ("listWorkflows", &[]),
    ("getWorkflow", &[404]),
    ("putWorkflow", &[409, 507]),
    ("deleteWorkflow", &[409, 507]),
    ("startRun", &[409, 429, 507]),
    ("listRuns", &[]),
    ("getRun", &[404]),
    ("cancelRun", &[404, 409, 507]),
    ("retryRun", &[404, 409, 429, 507]),
    ("listExecutors", &[]),
    ("getExecutor", &[404]),
    ("putExecutor", &[409, 507]),
    ("deleteExecutor", &[409, 507]),
    ("listAnalyzers", &[]),
    ("getAnalyzer", &[404]),
    ("putAnalyzer", &[409, 507]),
    ("deleteAnalyzer", &[409, 507]),
    ("getJob", &[404]),
    ("tearDownJob", &[404, 409, 507]),
    ("listLocks", &[]),
    ("getLock", &[404]),
    ("takeLock", &[409, 507]),
    ("releaseLock", &[409, 507]),
    ("listDeliveries", &[]),
    ("getWebhookSecret", &[]),
    ("rotateWebhookSecret", &[507]),
    ("listWebhookEndpoints", &[]),
    ("rotateWebhookEndpoint", &[409, 507]),
    ("deleteWebhookEndpoint", &[409, 507]),
    ("testWebhook", &[429, 507]),
    ("getWorker", &[404]),
    ("patchWorker", &[404]),
    ("drainWorker", &[404]),
    ("getProblemPage", &[404]),
];

/// The description, as text.
pub fn openapi_json() -> String {
    text_of(&openapi())
}

/// The strict description, as text.
pub(crate) fn strict_json() -> String {
    text_of(&strict())
}

fn text_of(api: &Value) -> String {
    let mut text = serde_json::to_string_pretty(api).expect("a value can be written");
    text.push('\n');
    text
}

/// The description.
pub(crate) fn openapi() -> Value {
    let mut api = clients::for_clients(strict());
    // Only here: a schema cannot state that a header and a field of the body are the same.
    let keyed =
        |operation: &&mut Value| operation["operationId"].as_str().is_some_and(|id| KEYED.contains(&id));
    for operation in clients::operations(&mut api).filter(keyed) {
        let pattern = "^[!#-\\[\\]-~]+$";
        parameter(
            operation,
            json!({
                "name": "Idempotency-Key", "in": "header", "required": false,
                "description": "The client's name for this request: a repeated request takes effect once. The header is the same \
                    as `requestId` in the body; if both are given they must be equal.",
                "schema": { "type": "string", "minLength": 1, "maxLength": 256, "pattern": pattern },
            }),
        );
    }
    examples::add(&mut api);
    api
}

/// The description with every rule of requests.
fn strict() -> Value {
    let (_, api) = router::paths().split_for_parts();
    let mut api = serde_json::to_value(api).expect("a description can be written");
    api["info"] = json!({
        "title": "Tasklane",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        "description": "Clients submit tasks; schedulers assign them; workers run them. JSON in camelCase; times are \
            RFC 3339 in UTC; durations are seconds as a number or text such as `90s`, `5m`, `1h30m`; errors are problem \
            details (RFC 9457) with a stable `code`. Unknown fields and parameters are refused by name.",
    });
    api["servers"] =
        json!([{ "url": "http://localhost:7070", "description": "The server that `tasklane dev` starts." }]);
    api["tags"] = json!([
        { "name": "tasks", "description": "Submit, read, stop and repeat tasks." },
        { "name": "queues", "description": "Queues and their policies." },
        { "name": "schedules", "description": "Rules that create tasks at certain times." },
        { "name": "workflows", "description": "Tasks with dependencies." },
        { "name": "executors", "description": "Definitions of task types, analyses of their results, and jobs." },
        { "name": "locks", "description": "Locks with one owner at a time." },
        { "name": "webhooks", "description": "Notifications over HTTP." },
        { "name": "receivers", "description": "Messages that the server sends to webhooks." },
        { "name": "workers", "description": "The processes that run tasks." },
        { "name": "system", "description": "The state of the server." },
    ]);
    let requests: Value = serde_json::from_str(REQUESTS).expect("requests.json is JSON");
    let components = api["components"].as_object_mut().expect("there are components");
    let schemas = components["schemas"].as_object_mut().expect("there are schemas");
    schemas.extend(with_workflows(requests));
    let Value::Object(mut messages) = serde_json::from_str(MESSAGES).expect("webhooks.json is JSON") else {
        unreachable!("webhooks.json is an object");
    };
    let mut take = |name: &str| messages.remove(name).expect("webhooks.json has these");
    schemas.extend(take("schemas").as_object().cloned().unwrap_or_default());
    let (headers, webhooks) = (take("parameters"), take("webhooks"));
    components.insert("parameters".into(), headers);
    components.insert(
        "securitySchemes".into(),
        json!({ "token": { "type": "http", "scheme": "bearer", "description": "Required if the server has a token." } }),
    );
    api["webhooks"] = webhooks;
    api["security"] = json!([{}, { "token": [] }]);
    let paths = api["paths"].as_object_mut().expect("there are paths");
    for (path, operations) in paths {
        for (method, operation) in operations.as_object_mut().expect("an object") {
            complete(path, method, operation);
        }
    }
    api
}

/// Adds the schemas of nodes and of workflows: a node is a task, with some fields more and some less.
fn with_workflows(requests: Value) -> Map<String, Value> {
    let Value::Object(mut schemas) = requests else { return Map::new() };
    let mut take = |name: &str| schemas.remove(name).expect("requests.json has these fields");
    let (of_node, of_workflow, of_run) = (take("NodeFields"), take("WorkflowFields"), take("RunFields"));
    let without = |schema: &mut Value, fields: &[&str]| {
        for field in fields {
            schema["properties"].as_object_mut().expect("an object").remove(*field);
        }
        let rules = schema["allOf"].as_array_mut().expect("a list");
        rules.retain(|rule| !fields.iter().any(|field| rule.to_string().contains(&format!("\"{field}\""))));
    };
    let with = |schema: &mut Value, fields: &Value| {
        let fields = fields.as_object().expect("an object").clone();
        schema["properties"].as_object_mut().expect("an object").extend(fields);
    };
    let mut child = schemas["TaskRequest"].clone();
    without(&mut child, &["requestId", "runAt", "map", "shards", "broadcast"]);
    child["description"] = json!("A task of a composite: without `requestId` and `runAt` of its own.");
    let mut node = schemas["TaskRequest"].clone();
    without(&mut node, &["requestId", "runAt"]);
    with(&mut node, &of_node);
    node["description"] = json!("A node of a workflow: a task and its dependencies.");
    node["examples"] =
        json!([{ "name": "extract", "taskType": "SHELL", "payload": "./extract.sh {{ input.day }}" }]);
    node["required"] = json!(["name", "taskType"]);
    node["properties"]["taskName"]["type"] = json!(["string", "null"]);
    node["properties"]["payload"] = json!({
        "description": "The executor's input. Texts in it may have expressions, as `{{ nodes.extract.result.data.path }}`.",
        "examples": ["echo hello"],
    });
    let object = |description: &str, required: Value| {
        json!({
            "type": "object", "additionalProperties": false, "description": description, "required": required,
            "properties": {},
        })
    };
    let mut workflow = object("A named workflow.", json!(["nodes"]));
    with(&mut workflow, &of_workflow);
    let nodes = json!([
        { "name": "extract", "taskType": "SHELL", "payload": "./extract.sh {{ input.day }}" },
        { "name": "load", "taskType": "SHELL", "payload": "./load.sh", "dependsOn": ["extract"] },
    ]);
    workflow["examples"] = json!([{ "name": "nightly etl", "nodes": nodes }]);
    let mut run = object("A run of the given nodes, or of a named workflow.", json!([]));
    with(&mut run, &of_workflow);
    with(&mut run, &of_run);
    run["examples"] = json!([{ "input": { "day": "monday" }, "nodes": nodes }, { "workflow": "etl" }]);
    for field in ["requestId", "metadata", "webhooks"] {
        run["properties"][field] = schemas["TaskRequest"]["properties"][field].clone();
    }
    let nodes = run["properties"]["nodes"].take();
    run["properties"]["nodes"] = json!({ "anyOf": [nodes, { "type": "null" }] });
    let nothing = json!({ "type": "null" });
    run["oneOf"] = json!([
        { "required": ["nodes"], "properties": { "nodes": { "type": "array" }, "workflow": nothing } },
        {
            "required": ["workflow"],
            "properties": {
                "workflow": { "type": "string" },
                "nodes": nothing, "name": nothing, "onFailure": nothing, "deadline": nothing,
            },
        },
    ]);
    let more = [("ChildTask", child), ("WorkflowNode", node), ("PutWorkflow", workflow), ("RunRequest", run)];
    schemas.extend(more.map(|(name, schema)| (name.to_owned(), schema)));
    schemas
}

/// Adds what holds for all operations of its kind.
fn complete(path: &str, method: &str, operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let body = BODIES.iter().find(|(operation, ..)| *operation == id);
    if let Some((_, schema, required)) = body {
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        operation["requestBody"] =
            json!({ "required": required, "content": { "application/json": { "schema": schema } } });
    }
    let namespaced = [
        "/api/v1/tasks",
        "/api/v1/queues",
        "/api/v1/operations",
        "/api/v1/schedules",
        "/api/v1/workflows",
        "/api/v1/executors",
        "/api/v1/analyzers",
        "/api/v1/jobs",
        "/api/v1/locks",
        "/api/v1/webhooks",
        "/api/v1/events",
    ];
    if namespaced.iter().any(|prefix| path.starts_with(prefix)) {
        parameter(
            operation,
            json!({
                "name": "Tasklane-Namespace", "in": "header", "required": false,
                "description": "The namespace of the request; defaults to `default`.",
                "schema": { "type": "string", "pattern": "^[A-Za-z0-9._:@-]{1,128}$", "default": "default" },
            }),
        );
    }
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter(|parameter| parameter["name"] == "metadata") {
        parameter["schema"]["items"]["pattern"] = json!("^[^=]+=");
    }
    if path == "/healthz" {
        operation["security"] = json!([]);
        return;
    }
    let mut statuses = vec![400, 401, 403, 500, 503];
    if body.is_some() {
        statuses.extend([408, 413, 415, 422]);
    } else if method != "get" {
        // An empty object is taken where no body is needed; anything else is refused.
        statuses.extend([408, 413, 415, 422]);
    }
    statuses.extend(SPECIAL.iter().find(|(operation, _)| *operation == id).map_or(&[][..], |(_, more)| more));
    let responses = operation["responses"].as_object_mut().expect("there are responses");
    let first = responses.get_mut("200");
    if let Some(stream) = first.and_then(|first| first.pointer_mut("/content/text~1event-stream")) {
        *stream = json!({ "schema": { "$ref": "#/components/schemas/ServerSentEvent" } });
    }
    if let Some(created) = responses.get_mut("201") {
        created["headers"] = json!({ "Location": {
            "description": "The path of the new resource, or of its list.",
            "schema": { "type": "string", "format": "uri-reference" },
        } });
    }
    for status in statuses {
        responses.entry(status.to_string()).or_insert_with(|| problem_response(status));
    }
    responses.sort_keys();
}

/// Adds a parameter to an operation.
fn parameter(operation: &mut Value, parameter: Value) {
    let parameters = operation.as_object_mut().expect("an object").entry("parameters");
    parameters.or_insert_with(|| json!([])).as_array_mut().expect("a list").push(parameter);
}

/// A problem with its possible codes.
fn problem_response(status: u16) -> Value {
    let codes: Vec<&str> = CODES.iter().filter(|kind| kind.status == status).map(|kind| kind.code).collect();
    let codes: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let mut response = Map::new();
    response.insert("description".into(), json!(format!("A problem: {}.", codes.join(", "))));
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    response.insert("content".into(), json!({ "application/problem+json": { "schema": schema } }));
    if matches!(status, 429 | 503 | 507) {
        response.insert(
            "headers".into(),
            json!({ "Retry-After": {
                "description": "Seconds to wait before the same request may succeed.",
                "schema": { "type": "integer", "minimum": 1 },
            } }),
        );
    }
    Value::Object(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients are generated from the committed description. `UPDATE=1` rewrites it.
    #[test]
    fn the_committed_description_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/openapi.json");
        let now = openapi_json();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == now, "docs/openapi.json is not up to date: run the tests with UPDATE=1");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let api = openapi();
        let mut found = Vec::new();
        references(&api, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the description");
            assert!(api.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_operation_is_described() {
        let api = openapi();
        let mut seen = Vec::new();
        for operations in api["paths"].as_object().unwrap().values() {
            for operation in operations.as_object().unwrap().values() {
                assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{operation}");
                seen.push(operation["operationId"].as_str().unwrap().to_owned());
            }
        }
        let known = BODIES.iter().map(|(id, ..)| *id).chain(SPECIAL.iter().map(|(id, _)| *id));
        for id in known {
            assert!(seen.iter().any(|seen| seen == id), "{id}");
        }
    }

    /// The schema of a request and its reader are two texts about the same thing.
    #[test]
    fn the_examples_of_requests_are_accepted() {
        use tasklane_runtime::request::TaskRequest;
        let api = openapi();
        let schema = &api["components"]["schemas"]["TaskRequest"];
        let example = |value: &Value| value["examples"].as_array().cloned().unwrap_or_default();
        assert!(example(schema).len() >= 2);
        for request in example(schema) {
            TaskRequest::from_json(request.to_string().as_bytes()).unwrap();
        }
        for (field, property) in schema["properties"].as_object().unwrap() {
            let examples = example(property);
            assert!(!examples.is_empty(), "{field} has no example");
            for value in examples {
                let mut request = json!({ "taskName": "n", "taskType": "T" });
                request[field] = value;
                TaskRequest::from_json(request.to_string().as_bytes()).unwrap();
            }
        }
    }
}

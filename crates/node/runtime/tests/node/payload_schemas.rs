//! Schemas of payloads that ask for more work than the limit allows, and harmless ones.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tasklane_core::status::Status;
use tasklane_core::task::Payload;
use tasklane_runtime::node::{NamedDocumentError, SubmitError};
use tasklane_runtime::request::{CHECK_STEPS_MAX, CustomType, FieldError, TaskRequest};

use crate::support::{Run, System, default_namespace, name, request, success};

fn registered(schema: &Value) -> Result<CustomType, FieldError> {
    let body = json!({ "command": ["true"], "payloadSchema": schema });
    CustomType::from_json(body.to_string().as_bytes())
}

fn check(schema: &Value, payload: &Value) -> Result<(), FieldError> {
    let registered = registered(schema).unwrap_or_else(|error| panic!("{error}: {schema}"));
    let request = TaskRequest::new("t", name("checked"), Payload::Json(payload.to_string()));
    registered.run_as(&request, CHECK_STEPS_MAX).map(|_| ())
}

fn code<T>(result: Result<T, FieldError>) -> (&'static str, String) {
    result.map_or_else(|error| (error.code, error.field), |_| ("taken", String::new()))
}

/// A schema that begins at the first of `count` definitions, each made of its number.
fn chained(count: usize, each: impl Fn(usize) -> Value) -> Value {
    let defs: Map<String, Value> = (0..count).map(|at| (format!("d{at}"), each(at))).collect();
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

fn next(at: usize, count: usize) -> Value {
    if at + 1 == count {
        json!({ "type": "object" })
    } else {
        json!({ "$ref": format!("#/$defs/d{}", at + 1) })
    }
}

/// Each of its references leads to the whole schema: its names were looked at thousands of times, though each
/// reference counted as one step.
#[test]
fn a_wide_schema_that_refers_to_itself_is_counted_with_its_width() {
    let refs: Map<String, Value> = (0..4_900).map(|at| (format!("p{at}"), json!({ "$ref": "#" }))).collect();
    let mut root = Map::from_iter([("properties".to_owned(), Value::Object(refs))]);
    assert_eq!(code(registered(&Value::Object(root.clone()))).0, "taken");
    root.extend((0..4_900).map(|at| (format!("x{at}"), json!(1))));
    assert_eq!(code(registered(&Value::Object(root))), ("too_costly", "payloadSchema".to_owned()));
}

/// 2.4 KB that ask for a thousand million checks.
fn bomb() -> Value {
    chained(30, |at| json!({ "allOf": [next(at, 30), next(at, 30)] }))
}

fn nested(field: &str, depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({ field: inner }))
}

#[test]
fn a_schema_that_asks_for_too_much_is_refused_when_it_is_put() {
    let twice = |keyword: &str| {
        chained(30, |at| {
            let part = next(at, 30);
            match keyword {
                "not" => json!({ "not": part, "if": part }),
                "then" => json!({ "if": true, "then": part, "else": part }),
                "dependentSchemas" => json!({ "dependentSchemas": { "a": part, "b": part } }),
                _ => json!({ keyword: [part, part] }),
            }
        })
    };
    for keyword in ["allOf", "anyOf", "oneOf", "not", "then", "dependentSchemas"] {
        assert_eq!(
            code(registered(&twice(keyword))),
            ("too_costly", "payloadSchema".to_owned()),
            "{keyword}"
        );
    }
    let many: Map<String, Value> =
        (0..700).map(|n| (format!("f{n}"), json!({ "pattern": format!("^a{n}") }))).collect();
    for (schema, expected) in [
        (json!({ "$ref": "#" }), "too_costly"),
        (
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            "too_costly",
        ),
        (chained(200, |at| json!({ "allOf": [next(at, 200)] })), "too_costly"),
        (json!({ "pattern": "^((a{1,1000}){1,1000}){1,1000}$" }), "too_costly"),
        (json!({ "patternProperties": { "(\\p{L}{1,1000}){1,1000}": {} } }), "too_costly"),
        (json!({ "properties": many }), "too_costly"),
        (json!({ "pattern": "^(?=.*a)(?=.*b)" }), "invalid_value"),
        (json!({ "pattern": "^(a+)\\1+$" }), "invalid_value"),
        (json!({ "patternProperties": { "(?!x)": {} } }), "invalid_value"),
        (json!({ "$dynamicRef": "#a" }), "invalid_value"),
        (json!({ "$ref": "https://example.com/schema" }), "invalid_value"),
        (json!({ "properties": { "a": { "$id": "http://x.test/", "$ref": "#/b" } } }), "invalid_value"),
        (json!({ "type": 7 }), "invalid_value"),
    ] {
        assert_eq!(code(registered(&schema)), (expected, "payloadSchema".to_owned()), "{schema}");
    }
}

#[test]
fn a_payload_that_asks_for_too_much_is_refused() {
    let inside = json!({ "properties": { "a": { "$ref": "#" } } });
    let brackets: Vec<Value> = (0..5000)
        .map(|n: usize| {
            // Lists that differ in their brackets alone.
            (0..13).fold(
                json!([1]),
                |list, bit| if n >> bit & 1 == 1 { json!([list]) } else { json!([list, 1]) },
            )
        })
        .collect();
    let unevaluated = (0..24).fold(
        json!({ "properties": { "a": true } }),
        |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false }),
    );
    let in_place = (0..45).fold(inside.clone(), |inner, _| json!({ "allOf": [inner] }));
    for (what, schema, payload) in [
        ("twice a level", json!({ "allOf": [inside, inside] }), nested("a", 60)),
        ("each with each", json!({ "uniqueItems": true }), json!(brackets)),
        ("asked again", unevaluated, json!({ "a": 1 })),
        ("deep", in_place, nested("a", 95)),
        (
            "long texts",
            json!({ "items": { "pattern": "^(a?){200}a{200}$" } }),
            json!(vec!["a".repeat(2000); 100]),
        ),
    ] {
        assert_eq!(code(check(&schema, &payload)), ("too_costly", "payload".to_owned()), "{what}");
    }
}

#[test]
fn the_deepest_check_that_is_permitted_fits_the_stack_of_a_thread() {
    let check_on_small_stack = || {
        for width in 1..40 {
            let inside = json!({ "properties": { "a": { "$ref": "#" } } });
            let schema = (0..width).fold(inside, |inner, at| match at % 3 {
                0 => json!({ "allOf": [inner, true] }),
                1 => json!({ "anyOf": [{ "type": "integer" }, inner] }),
                _ => json!({ "if": true, "then": inner }),
            });
            for depth in [4, 8, 16, 32, 64, 95] {
                // A value that fits and a value that does not: both go all the way down.
                for end in [json!(1), json!("not a number")] {
                    let payload = (0..depth).fold(end, |inner, _| json!({ "a": inner }));
                    let answered = code(check(&schema, &payload)).0;
                    assert!(["taken", "invalid_value", "too_costly"].contains(&answered), "{answered}");
                }
            }
        }
        let long = chained(3000, |at| json!({ "properties": { "a": next(at, 3000) } }));
        assert_eq!(code(check(&long, &nested("a", 90))).0, "taken");
    };
    // As large as that of a thread of the runtime.
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check_on_small_stack).unwrap();
    thread.join().unwrap();
}

#[test]
fn sane_schemas_are_taken_and_check_what_they_say() {
    let order = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/order.json",
        "type": "object",
        "definitions": {
            "money of": { "type": "string", "pattern": "^[0-9]{1,9}(\\.[0-9]{2})?$" },
            "line": { "type": "object", "required": ["sku", "price"], "additionalProperties": false, "properties": {
                "sku": { "type": "string", "pattern": "^[A-Z]{3}-\\d{4}$" },
                "price": { "$ref": "#/definitions/money%20of" },
                "name": { "type": "string", "pattern": "^[\\p{L} ]{1,50}$" } } }
        },
        "properties": {
            "lines": { "type": "array", "minItems": 1, "uniqueItems": true, "items": { "$ref": "#/definitions/line" } },
            "mail": { "type": "string", "format": "email" }
        },
        "patternProperties": { "^x-": { "type": "integer" } },
        "dependencies": { "mail": ["lines"] }
    });
    let line = |n: usize| json!({ "sku": format!("ABC-{n:04}"), "price": "12.50", "name": "Größe L" });
    let lines: Vec<Value> = (0..500).map(line).collect();
    let tree = json!({ "type": "object", "properties": {
        "name": { "type": "string" }, "children": { "type": "array", "items": { "$ref": "#" } } } });
    let deep = (0..45).fold(json!({ "name": "leaf" }), |inner, _| json!({ "children": [inner] }));
    let tagged = json!({ "$defs": { "cat": { "properties": { "is": { "const": "cat" }, "lives": { "maximum": 9 } } },
        "dog": { "properties": { "is": { "const": "dog" } } } },
        "items": { "oneOf": [{ "$ref": "#/$defs/cat" }, { "$ref": "#/$defs/dog" }], "unevaluatedProperties": false } });
    let pets = |lives: u32| json!(vec![json!({ "is": "cat", "lives": lives }); 1000]);
    for (schema, payload, fits) in [
        (&order, json!({ "lines": lines, "x-n": 1, "mail": "a@b.test" }), true),
        (&order, json!({ "lines": [line(1)], "x-n": "one" }), false),
        (&order, json!({ "lines": [line(1), line(1)] }), false),
        (&order, json!({ "lines": [{ "sku": "abc", "price": "1" }] }), false),
        (&order, json!({ "mail": "a@b.test" }), false),
        (&tree, deep, true),
        (&tree, json!({ "children": [{ "name": 1 }] }), false),
        (&tagged, pets(9), true),
        (&tagged, pets(10), false),
        (&json!({ "uniqueItems": true }), json!((0..50_000).collect::<Vec<_>>()), true),
        (
            &json!({ "format": "regex", "$schema": "http://json-schema.org/draft-07/schema#" }),
            json!("(a{1000}){1000}"),
            true,
        ),
        (&json!(true), json!({ "any": "thing" }), true),
        (&json!({ "enum": ["a", "b", 3] }), json!("b"), true),
    ] {
        let expected = if fits { "taken" } else { "invalid_value" };
        assert_eq!(code(check(schema, &payload)).0, expected, "{schema}: {payload:.100}");
    }
    let long = check(&json!({ "type": "integer" }), &json!("x".repeat(100_000))).unwrap_err();
    assert!(long.message.len() < 1000, "an error does not repeat the payload");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_costly_schema_keeps_nobody_else_waiting() {
    let run = Run(|_, _| async { success() });
    let system = System::start(vec![("SHELL", std::sync::Arc::new(run))]).await;
    let put = |task_type: &'static str, schema: Value| {
        let body = json!({ "command": ["true"], "payloadSchema": schema }).to_string();
        let node = system.node.clone();
        async move { node.put_executor(&default_namespace(), &name(task_type), body.as_bytes(), false).await }
    };
    // Three submits of this schema held all threads of the server without end.
    let refused = put("bomb", bomb()).await.unwrap_err();
    assert!(
        matches!(&refused, NamedDocumentError::Invalid(error) if error.code == "too_costly"),
        "{refused}"
    );
    // A permitted but costly schema takes turns on a thread of its own.
    let costly = chained(9, |at| json!({ "allOf": [next(at, 9), next(at, 9)] }));
    put(
        "costly",
        json!({ "items": costly["$ref"].as_str().map(|at| json!({ "$ref": at })), "$defs": costly["$defs"] }),
    )
    .await
    .unwrap();
    let mut busy = Vec::new();
    for _ in 0..10 {
        let node = system.node.clone();
        busy.push(tokio::spawn(async move {
            let payload = Payload::Json(json!(vec![json!({}); 250]).to_string());
            let request = TaskRequest::new("costly", name("costly"), payload);
            node.submit(&default_namespace(), vec![request]).await.pop().unwrap()
        }));
    }
    for _ in 0..20 {
        let ids = system.submit(vec![request("SHELL")]).await;
        assert_eq!(system.wait(ids[0]).await.row.state.status, Status::Success);
    }
    for submit in busy {
        let answer = tokio::time::timeout(Duration::from_mins(2), submit).await.expect("it ends").unwrap();
        assert!(matches!(answer, Ok(_) | Err(SubmitError::Invalid(_))), "{answer:?}");
    }
    system.close().await;
}

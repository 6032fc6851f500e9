//! Rules that the published description keeps, because generators of clients need them. They hold for every path, field
//! and schema that is added later.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::clients::{operations, reachable};
use super::openapi;

const COMPOSITIONS: [&str; 3] = ["allOf", "oneOf", "anyOf"];

/// The description, and the names of the schemas of requests.
fn description() -> (Value, BTreeSet<String>) {
    let mut api = openapi();
    let schemas = schemas(&api).clone();
    let mut requests = BTreeSet::new();
    operations(&mut api).for_each(|operation| reachable(&operation["requestBody"], &schemas, &mut requests));
    assert!(requests.len() > 20, "{requests:?}");
    (api, requests)
}

fn schemas(api: &Value) -> &Map<String, Value> {
    api["components"]["schemas"].as_object().unwrap()
}

/// Calls `see` with every object below a value and its path. Examples are data, not schemas.
fn objects(value: &Value, path: &str, see: &mut impl FnMut(&str, &Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            see(path, map);
            for (key, value) in map.iter().filter(|(key, _)| !["example", "examples"].contains(&key.as_str()))
            {
                objects(value, &format!("{path}/{key}"), see);
            }
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| objects(value, &format!("{path}/{n}"), see));
        }
        _ => {}
    }
}

/// Calls `see` with every schema of a request: of bodies and of parameters.
fn request_schemas(mut see: impl FnMut(&str, &Map<String, Value>)) {
    let (mut api, requests) = description();
    for name in requests {
        objects(&api["components"]["schemas"][&name], &name, &mut see);
    }
    for operation in operations(&mut api) {
        objects(&operation["parameters"], operation["operationId"].as_str().unwrap(), &mut see);
    }
}

#[test]
fn every_array_has_items() {
    objects(&openapi(), "", &mut |path, schema| {
        let is_array = schema.get("type").is_some_and(|kind| kind == "array");
        assert!(!is_array || schema.contains_key("items"), "{path}");
    });
}

#[test]
fn optional_fields_of_requests_are_left_out_and_not_null() {
    request_schemas(|path, schema| {
        let nullable = |value: &Value| {
            value == "null" || value.as_array().is_some_and(|kinds| kinds.contains(&"null".into()))
        };
        assert!(!schema.get("type").is_some_and(nullable), "{path}");
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        assert!(values.clone().all(|value| !value.is_null()), "{path}");
        assert!(schema.get("enum").is_none() || schema.contains_key("type"), "{path} has no type");
    });
}

#[test]
fn requests_have_no_defaults() {
    request_schemas(|path, schema| {
        assert!(!schema.contains_key("default") || path.ends_with("/properties"), "{path}");
    });
}

/// A composition is a choice between types, never a rule about which fields go together.
#[test]
fn compositions_are_choices_between_types() {
    request_schemas(|path, schema| {
        for key in COMPOSITIONS.iter().filter(|key| schema.contains_key(**key)) {
            assert_eq!(*key, "oneOf", "{path}");
            assert!(!schema.contains_key("properties"), "{path}");
            let types: BTreeSet<&str> = schema[*key]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|choice| choice["type"].as_str())
                .collect();
            assert_eq!(types.len(), schema[*key].as_array().unwrap().len(), "{path}");
        }
    });
}

#[test]
fn a_batch_is_a_list_of_tasks() {
    let api = openapi();
    let tasks = &schemas(&api)["BatchRequest"]["properties"]["tasks"];
    assert_eq!(tasks["items"]["$ref"], "#/components/schemas/TaskRequest");
}

/// One schema, so that a client does not have to guess which of two it was given.
#[test]
fn each_operation_answers_a_success_with_one_schema() {
    for operation in operations(&mut openapi()) {
        let answers = operation["responses"].as_object().unwrap().iter();
        let answers = answers.filter(|(status, _)| status.starts_with('2'));
        let schemas: BTreeSet<String> = answers
            .filter_map(|(_, answer)| answer.pointer("/content/application~1json/schema"))
            .map(|schema| schema["$ref"].as_str().unwrap_or_else(|| panic!("{operation}")).to_owned())
            .collect();
        assert!(schemas.len() <= 1, "{}: {schemas:?}", operation["operationId"]);
    }
}

/// Examples of requests are `examples` in `requests.json`, examples of answers stand in `examples.json`. They fit their
/// schemas: those of requests the strict ones too.
#[test]
fn bodies_and_answers_have_examples_that_fit() {
    let mut api = openapi();
    let (components, strict) = (api["components"].clone(), super::strict()["components"].clone());
    let fits = |components: &Value, content: &Value, about: &str| {
        let name = content["schema"]["$ref"].as_str().unwrap_or_default();
        let example = content.get("example").unwrap_or_else(|| panic!("{about}: {name} has no example"));
        let mut schema = content["schema"].clone();
        schema["components"] = components.clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        validator
            .validate(example)
            .unwrap_or_else(|error| panic!("{about}: {}: {error}", error.instance_path()));
    };
    let mut examples = 0;
    for operation in operations(&mut api) {
        let about = operation["operationId"].as_str().unwrap();
        if let Some(body) = operation.pointer("/requestBody/content/application~1json") {
            fits(&components, body, about);
            fits(&strict, body, about);
            examples += 1;
        }
        for (status, answer) in operation["responses"].as_object().unwrap() {
            if let Some(content) = answer.pointer("/content/application~1json")
                && status.starts_with('2')
            {
                fits(&components, content, about);
                examples += 1;
            }
        }
    }
    assert!(examples > 60, "{examples}");
    for message in api["webhooks"].as_object().unwrap().values() {
        fits(&components, &message["post"]["requestBody"]["content"]["application/json"], "a webhook");
    }
}

/// Without a format, a generator for Java takes `BigDecimal`, and one for Go `float32`.
#[test]
fn numbers_with_fractions_are_doubles() {
    objects(&openapi(), "", &mut |path, schema| {
        let is_number = |kind: &Value| {
            kind == "number" || kind.as_array().is_some_and(|kinds| kinds.contains(&"number".into()))
        };
        if schema.get("type").is_some_and(is_number) {
            assert_eq!(schema.get("format").unwrap_or(&Value::Null), "double", "{path}");
        }
    });
}

/// Generators put all operations of a tag into one class, and a message is no call that a client makes.
#[test]
fn messages_share_no_tag_with_paths() {
    let mut api = openapi();
    let tags = |operation: &Value| -> Vec<String> {
        let tags = operation["tags"].as_array().unwrap();
        tags.iter().map(|tag| tag.as_str().unwrap().to_owned()).collect()
    };
    let of_paths: BTreeSet<String> = operations(&mut api).flat_map(|operation| tags(operation)).collect();
    let messages = api["webhooks"].as_object().unwrap();
    assert!(!messages.is_empty());
    for (name, message) in messages {
        let tags = tags(&message["post"]);
        assert!(!tags.is_empty(), "{name} has no tag");
        assert!(tags.iter().all(|tag| !of_paths.contains(tag)), "{name}: {tags:?}");
    }
}

/// In Go the values of all enums share one namespace.
#[test]
fn values_of_enums_have_different_names() {
    let api = openapi();
    let mut seen = BTreeSet::new();
    for (name, schema) in schemas(&api) {
        let names = schema.get("x-enum-varnames").or_else(|| schema.get("enum"));
        for value in names.and_then(Value::as_array).into_iter().flatten() {
            assert!(seen.insert(value.to_string()), "{name}: {value}");
        }
    }
}

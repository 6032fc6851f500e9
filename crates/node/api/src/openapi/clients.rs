//! The description as generators of clients take it.
//!
//! `requests.json` states every rule of a request in JSON Schema, and fuzzers check the server by it. Generators of
//! clients make types of schemas, and fail on schemas that are rules and not shapes: "not both" compositions, fields that
//! may be `null`, defaults, arrays without `items`. This module keeps the shape of each request and states such rules in
//! words.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

type Schemas = Map<String, Value>;

/// Where component schemas are.
const SCHEMAS: &str = "#/components/schemas/";

const COMPOSITIONS: [&str; 3] = ["allOf", "oneOf", "anyOf"];

/// Turns the strict description into the description for clients.
pub(super) fn for_clients(mut api: Value) -> Value {
    let strict = api["components"]["schemas"].as_object().expect("there are schemas").clone();
    let mut requests = BTreeSet::new();
    for operation in operations(&mut api) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            parameter["schema"] = shape(&parameter["schema"], &strict);
        }
        // Clients that are generated read a stream as text, or line by line by themselves.
        if let Some(stream) = operation.pointer_mut("/responses/200/content/text~1event-stream") {
            *stream = json!({ "schema": { "type": "string", "description": "Server-sent events." } });
        }
        reachable(&operation["requestBody"], &strict, &mut requests);
    }
    let schemas = api["components"]["schemas"].as_object_mut().expect("there are schemas");
    for name in requests {
        let schema = shape(&strict[&name], &strict);
        schemas.insert(name, schema);
    }
    // A batch with an entry that is no task is answered for each entry, so the strict schema takes anything.
    schemas["BatchRequest"]["properties"]["tasks"]["items"] =
        json!({ "$ref": format!("{SCHEMAS}TaskRequest") });
    let schemas = schemas.clone();
    let mut used = BTreeSet::new();
    for root in ["paths", "webhooks"] {
        reachable(&api[root], &schemas, &mut used);
    }
    let mut schemas: Schemas = schemas.into_iter().filter(|(name, _)| used.contains(name)).collect();
    name_shared_values(&mut schemas);
    api["components"]["schemas"] = schemas.into();
    api
}

/// All operations of a description.
pub(super) fn operations(api: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = api["paths"].as_object_mut().expect("there are paths");
    paths.values_mut().flat_map(|path| path.as_object_mut().expect("an object").values_mut())
}

/// Collects the names of all schemas that a value refers to.
pub(super) fn reachable(value: &Value, schemas: &Schemas, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = referred(value)
                && found.insert(name.to_owned())
            {
                reachable(&schemas[name], schemas, found);
            }
            map.values().for_each(|value| reachable(value, schemas, found));
        }
        Value::Array(list) => list.iter().for_each(|value| reachable(value, schemas, found)),
        _ => {}
    }
}

/// The name of the schema that this is a reference to.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str().and_then(|path| path.strip_prefix(SCHEMAS))
}

/// The schema itself, or the schema that it refers to.
fn resolved<'a>(schema: &'a Value, schemas: &'a Schemas) -> &'a Value {
    referred(schema).map_or(schema, |name| resolved(&schemas[name], schemas))
}

/// The shape of a request schema: its fields and their types.
fn shape(schema: &Value, schemas: &Schemas) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let mut schema = schema.clone();
    schema.remove("default");
    schema.remove("prefixItems");
    drop_null(&mut schema);
    if schema.contains_key("properties") {
        state_in_words(&mut schema);
        for property in schema["properties"].as_object_mut().expect("an object").values_mut() {
            *property = shape(property, schemas);
        }
    }
    if let Some(Value::Array(parts)) = schema.remove("allOf") {
        let whole = shape(&merged(&parts, schemas), schemas);
        extend(&mut schema, whole);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(Value::Array(choices)) = schema.remove(choice) {
            let one = one_of(&choices, schemas);
            extend(&mut schema, one);
        }
    }
    if schema.get("type").is_some_and(|kind| kind == "array") {
        let items = schema.get("items").map_or_else(|| json!({}), |items| shape(items, schemas));
        schema.insert("items".into(), items);
    }
    if let Some(values) = schema.get_mut("additionalProperties") {
        *values = shape(values, schemas);
    }
    Value::Object(schema)
}

/// Adds the keys that are not there yet: the outer description of a field goes before that of its type.
fn extend(schema: &mut Schemas, more: Value) {
    let Value::Object(more) = more else { return };
    for (key, value) in more {
        schema.entry(key).or_insert(value);
    }
}

/// An optional field is left out; it is not sent as `null`.
fn drop_null(schema: &mut Schemas) {
    if let Some(Value::Array(kinds)) = schema.get("type") {
        let kinds: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
        match &kinds[..] {
            [kind] => schema.insert("type".into(), kind.clone()),
            // Several types without a name of their own: any value.
            _ => schema.remove("type"),
        };
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
        if values.iter().all(Value::is_string) {
            schema.insert("type".into(), json!("string"));
        }
    }
}

/// Compositions beside the fields of an object are rules about which fields go together: their descriptions stay.
fn state_in_words(schema: &mut Schemas) {
    let rules: Vec<Value> = COMPOSITIONS
        .iter()
        .filter_map(|key| schema.remove(*key))
        .filter_map(|rules| rules.as_array().cloned())
        .flatten()
        .collect();
    let described =
        schema.get("description").into_iter().chain(rules.iter().map(|rule| &rule["description"]));
    let text: Vec<&str> = described.filter_map(Value::as_str).collect();
    if !text.is_empty() {
        let text = text.join(" ");
        schema.insert("description".into(), json!(text));
    }
}

/// One object with the fields of all parts. A later part narrows an earlier one and adds required fields.
fn merged(parts: &[Value], schemas: &Schemas) -> Value {
    let mut whole = Schemas::new();
    let mut required = Vec::new();
    for part in parts.iter().map(|part| resolved(part, schemas)) {
        required.extend(part["required"].as_array().into_iter().flatten().cloned());
        extend(&mut whole, part.clone());
    }
    whole.insert("required".into(), required.into());
    Value::Object(whole)
}

/// A choice between types. Choices of the same type become one, without their bounds; a single type is no choice.
fn one_of(choices: &[Value], schemas: &Schemas) -> Value {
    let mut types: Vec<(String, Value)> = Vec::new();
    collect_types(choices, schemas, &mut types);
    let named: Vec<&Value> = choices.iter().filter(|choice| choice["type"] != "null").collect();
    match (&named[..], &types[..]) {
        // A reference keeps its name.
        ([only], _) => shape(only, schemas),
        (_, [(_, only)]) => only.clone(),
        _ => json!({ "oneOf": types.into_iter().map(|(_, schema)| schema).collect::<Vec<_>>() }),
    }
}

fn collect_types(choices: &[Value], schemas: &Schemas, types: &mut Vec<(String, Value)>) {
    for choice in choices.iter().map(|choice| resolved(choice, schemas)) {
        let inner = ["oneOf", "anyOf"].iter().find_map(|key| choice[key].as_array());
        if let Some(inner) = inner {
            collect_types(inner, schemas, types);
            continue;
        }
        let untyped = if choice["const"].is_string() { "string" } else { "object" };
        let kind = choice["type"].as_str().unwrap_or(untyped);
        match types.iter_mut().find(|(known, _)| known == kind) {
            Some((_, known)) => *known = json!({ "type": kind }),
            None if kind == "null" => {}
            None if choice["const"].is_string() => types.push((kind.to_owned(), json!({ "type": kind }))),
            None => types.push((kind.to_owned(), shape(choice, schemas))),
        }
    }
}

/// The enum that is used most: its values keep their names.
const PLAIN_ENUM: &str = "Status";

/// Names the values that several enums have. In Go the values of all enums share one namespace.
fn name_shared_values(schemas: &mut Schemas) {
    let values = |schema: &Value| schema["enum"].as_array().cloned().unwrap_or_default();
    let all: Vec<Value> = schemas.values().flat_map(values).collect();
    let is_shared = |value: &Value| all.iter().filter(|other| *other == value).count() > 1;
    for (name, schema) in schemas.iter_mut().filter(|(name, _)| *name != PLAIN_ENUM) {
        let values = values(schema);
        if values.iter().any(is_shared) {
            let names = values.iter().filter_map(Value::as_str);
            let names = names.map(|value| format!("{}_{}", constant_case(name), constant_case(value)));
            schema["x-enum-varnames"] = names.collect();
        }
    }
}

/// `WhenFull` as `WHEN_FULL`.
fn constant_case(name: &str) -> String {
    let mut constant = String::new();
    let mut after_small = false;
    for c in name.chars() {
        if after_small && c.is_ascii_uppercase() {
            constant.push('_');
        }
        after_small = c.is_ascii_lowercase();
        constant.push(c.to_ascii_uppercase());
    }
    constant
}

//! Examples of bodies and answers, beside their media types.
//!
//! An example of a request is the first of its schema's `examples`. `examples.json` has the examples of answers by schema;
//! `{"$example": "Task"}` in it stands for the example of another schema.

use serde_json::{Map, Value};

use super::clients::operations;

const ANSWERS: &str = include_str!("examples.json");

/// Adds an example to each JSON body and each JSON answer of a success.
pub(super) fn add(api: &mut Value) {
    let answers: Map<String, Value> = serde_json::from_str(ANSWERS).expect("examples.json is JSON");
    let schemas = api["components"]["schemas"].clone();
    for operation in operations(api) {
        if let Some(body) = operation.pointer_mut("/requestBody/content/application~1json")
            && let Some(example) = schemas[name_of(body)]["examples"].get(0)
        {
            body["example"] = example.clone();
        }
        let responses = operation["responses"].as_object_mut().expect("there are responses");
        for (_, response) in responses.iter_mut().filter(|(status, _)| status.starts_with('2')) {
            if let Some(content) = response.pointer_mut("/content/application~1json")
                && let Some(example) = answers.get(name_of(content))
            {
                content["example"] = filled(example, &answers);
            }
        }
    }
}

/// The name of the schema of a media type.
fn name_of(content: &Value) -> &str {
    content["schema"]["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default()
}

/// The example with the examples that it refers to.
fn filled(example: &Value, answers: &Map<String, Value>) -> Value {
    match example {
        Value::Object(map) => match map.get("$example").and_then(Value::as_str) {
            Some(name) => filled(&answers[name], answers),
            None => map.iter().map(|(key, value)| (key.clone(), filled(value, answers))).collect(),
        },
        Value::Array(list) => list.iter().map(|value| filled(value, answers)).collect(),
        value => value.clone(),
    }
}

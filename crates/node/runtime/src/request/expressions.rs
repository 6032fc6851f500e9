//! The texts of a task that hold expressions: its payload, its name, its hash key, the values of its metadata and labels.
//! Nodes of workflows, children of maps and their reduce share this list.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tasklane_core::id::Name;
use tasklane_core::task::{Payload, Webhook};

use super::error::FieldError;
use super::exact;
use super::render::{self, Context, Scope};
use super::task::TaskRequest;
use super::workflow::{RunRequest, Workflow};

/// Checks the expressions of a task outside its payload. Returns the nodes that they name.
pub(super) fn check_texts(task: &TaskRequest, scope: &Scope) -> Result<BTreeSet<String>, FieldError> {
    let mut named = BTreeSet::new();
    for (field, text) in texts(task) {
        named.extend(render::check_text(text, scope).map_err(|rule| FieldError::invalid(field, rule))?);
    }
    Ok(named)
}

/// Checks the labels of a task alone.
pub(super) fn check_labels(task: &TaskRequest, scope: &Scope) -> Result<(), FieldError> {
    for (key, value) in &task.labels {
        render::check_text(value, scope)
            .map_err(|rule| FieldError::invalid(format!("labels.{key}"), rule))?;
    }
    Ok(())
}

/// Refuses an expression in a literal text field of a task.
pub(crate) fn check_unrendered(task: &TaskRequest) -> Result<(), FieldError> {
    let labels = task.labels.keys().map(|name| (format!("labels.{name}"), name.as_str(), IN_KEYS));
    let common = unrendered(task.request_id.as_deref(), &task.metadata, &task.webhooks);
    check_plain(common.chain(labels))
}

/// Refuses an expression in the fields of a run itself: only its nodes have them.
pub(crate) fn check_run_unrendered(run: &RunRequest) -> Result<(), FieldError> {
    let why = "those of a run stand in its nodes";
    let values = run.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value.as_str(), why));
    check_plain(unrendered(run.request_id.as_deref(), &run.metadata, &run.webhooks).chain(values))
}

/// Refuses an expression in the name of a workflow or of a run: only nodes have them.
pub(crate) fn check_workflow_unrendered(workflow: &Workflow) -> Result<(), FieldError> {
    let why = "those of a workflow stand in its nodes";
    check_plain([("name".to_owned(), workflow.name.as_str(), why)].into_iter())
}

/// A field, its text, and the reason why it holds no expression.
type Plain<'a> = (String, &'a str, &'static str);

const IN_KEYS: &str = "expressions stand in values, not in keys";

/// The literal text fields of tasks and runs.
fn unrendered<'a>(
    request_id: Option<&'a str>,
    metadata: &'a BTreeMap<String, String>,
    webhooks: &'a [Webhook],
) -> impl Iterator<Item = Plain<'a>> {
    let urls = webhooks.iter().enumerate().map(|(at, webhook)| {
        let why = "the address of a webhook is sent as it is";
        (format!("webhooks[{at}].url"), webhook.url.as_str(), why)
    });
    let keys = metadata.keys().map(|name| (format!("metadata.{name}"), name.as_str(), IN_KEYS));
    let ids = request_id.into_iter().map(|id| ("requestId".to_owned(), id, "one request has one id"));
    urls.chain(keys).chain(ids)
}

fn check_plain<'a>(mut fields: impl Iterator<Item = Plain<'a>>) -> Result<(), FieldError> {
    match fields.find(|(_, text, _)| text.contains("{{")) {
        Some((field, _, why)) => {
            Err(FieldError::invalid(field, format!("must not hold an expression: {why}")))
        }
        None => Ok(()),
    }
}

/// The texts outside the payload, each with its field.
fn texts(task: &TaskRequest) -> impl Iterator<Item = (String, &String)> {
    let metadata = task.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value));
    let labels = task.labels.iter().map(|(key, value)| (format!("labels.{key}"), value));
    let hash_key = task.hash_key.iter().map(|key| ("hashKey".to_owned(), key));
    [("taskName".to_owned(), &task.task_name)].into_iter().chain(hash_key).chain(metadata).chain(labels)
}

fn texts_mut(task: &mut TaskRequest) -> impl Iterator<Item = &mut String> {
    let TaskRequest { task_name, hash_key, metadata, labels, .. } = task;
    [task_name].into_iter().chain(hash_key).chain(metadata.values_mut()).chain(labels.values_mut())
}

/// Renders the expressions of a task outside its payload.
pub(crate) fn render_texts(task: &mut TaskRequest, context: &Context) -> Result<(), String> {
    texts_mut(task).try_for_each(|text| {
        if text.contains("{{") {
            *text = render::render_text(text, context)?;
        }
        Ok(())
    })
}

/// The same for a map task: a text that names the item of a child stays as it is.
pub(crate) fn render_composite_texts(task: &mut TaskRequest, context: &Context) -> Result<(), String> {
    texts_mut(task).try_for_each(|text| {
        if text.contains("{{") && !render::names_any(text, &CHILD_NAMES) {
            *text = render::render_text(text, context)?;
        }
        Ok(())
    })
}

/// Names in the expressions of a child that its map does not have.
pub(super) const CHILD_NAMES: [&str; 3] = ["index", "item", "total"];

/// A rendered payload: numbers and booleans become text where an executor takes only text.
pub(crate) fn render_payload(
    task_type: &Name,
    payload: &Payload,
    context: &Context,
) -> Result<Payload, String> {
    let rendered = render::render_payload(payload, context)?;
    if !payload.as_str().contains("{{") {
        return Ok(rendered);
    }
    Ok(match rendered {
        Payload::Json(json) => match exact::parse(&json) {
            Ok(Value::Object(mut fields)) => {
                for name in text_fields(task_type.as_str()) {
                    if let Some(field) = fields.get_mut(*name) {
                        into_text(field);
                    }
                }
                Payload::Json(exact::write(&Value::Object(fields)))
            }
            _ => Payload::Json(json),
        },
        text @ Payload::Text(_) => text,
    })
}

/// Fields of a payload whose values, or the values in them, are text and nothing else.
fn text_fields(task_type: &str) -> &'static [&'static str] {
    match task_type {
        "SHELL" => &["argv", "cwd", "env", "script", "stdin"],
        "PYTHON_SCRIPT" => &["args", "env", "file", "script", "stdin"],
        "HTTP" => &["headers", "method", "url"],
        _ => &[],
    }
}

fn into_text(value: &mut Value) {
    match value {
        Value::Number(_) | Value::Bool(_) => *value = Value::String(value.to_string()),
        Value::String(text) => {
            if let Some(number) = exact::number(text) {
                *value = Value::String(number.to_owned());
            }
        }
        Value::Array(items) => items.iter_mut().filter(|item| !is_nested(item)).for_each(into_text),
        Value::Object(fields) => fields.values_mut().filter(|field| !is_nested(field)).for_each(into_text),
        Value::Null => {}
    }
}

fn is_nested(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

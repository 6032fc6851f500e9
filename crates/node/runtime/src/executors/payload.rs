//! Reading payloads, so that whoever sent a wrong one learns which field and which rule.

use std::sync::Arc;

use serde_json::{Map, Value};
use tasklane_core::message::Dispatch;
use tasklane_core::task::{Payload, TaskBody};
use tasklane_ports::ExecutorError;

/// The part of the spec that a worker needs.
pub(super) fn body(dispatch: &Dispatch) -> Result<&Arc<TaskBody>, ExecutorError> {
    // The driver reads what was too large to send before it hands the attempt on.
    dispatch
        .body
        .as_ref()
        .ok_or_else(|| ExecutorError::Unavailable { source: "the task came without its payload".into() })
}

/// A payload as its executor sees it.
#[derive(Debug)]
pub(super) enum Given {
    Text(String),
    Fields(Fields),
}

/// A payload that is text or an object.
pub(super) fn read(payload: &Payload) -> Result<Given, ExecutorError> {
    let json = match payload {
        Payload::Text(text) => return Ok(Given::Text(text.clone())),
        Payload::Json(json) => json,
    };
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => Ok(Given::Text(text)),
        Ok(Value::Object(fields)) => Ok(Given::Fields(Fields { fields })),
        Ok(_) => Err(bad("must be a string or an object")),
        Err(e) => Err(bad(&format!("is not JSON: {e}"))),
    }
}

pub(super) fn bad(reason: &str) -> ExecutorError {
    ExecutorError::BadPayload { reason: reason.to_owned() }
}

fn bad_field(name: &str, rule: &str) -> ExecutorError {
    ExecutorError::BadPayload { reason: format!("field {name}: {rule}") }
}

/// The fields of a payload; each is taken out once.
#[derive(Debug)]
pub(super) struct Fields {
    fields: Map<String, Value>,
}

impl Fields {
    /// Whatever is there. `null` is nothing.
    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ExecutorError> {
        self.any(name)
            .map(|value| value.as_bool().ok_or_else(|| bad_field(name, "must be true or false")))
            .transpose()
    }

    /// Text without a NUL, which no program can be given.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ExecutorError> {
        match self.any(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.contains('\0') => Err(bad_field(name, "must not contain NUL")),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(bad_field(name, "must be a string")),
        }
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ExecutorError> {
        let Some(value) = self.any(name) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(bad_field(name, "must be a list of strings")) };
        let text = |item| match item {
            Value::String(text) if !text.contains('\0') => Ok(text),
            Value::String(_) => Err(bad_field(name, "must not contain NUL")),
            _ => Err(bad_field(name, "must be a list of strings")),
        };
        items.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// An object whose values are strings, in its order.
    pub(super) fn pairs(&mut self, name: &str) -> Result<Vec<(String, String)>, ExecutorError> {
        let Some(value) = self.any(name) else { return Ok(Vec::new()) };
        let rule = "must be an object whose values are strings";
        let Value::Object(pairs) = value else { return Err(bad_field(name, rule)) };
        let pair = |(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            _ => Err(bad_field(&format!("{name}.{key}"), "must be a string")),
        };
        pairs.into_iter().map(pair).collect()
    }

    /// Variables for a command.
    pub(super) fn env(&mut self) -> Result<Vec<(String, String)>, ExecutorError> {
        let env = self.pairs("env")?;
        for (name, value) in &env {
            let field = format!("env.{name}");
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(bad_field(&field, "is not a name of a variable"));
            }
            if name.starts_with("TASKLANE_") {
                return Err(bad_field(&field, "names that begin with TASKLANE_ are Tasklane's own"));
            }
            if value.contains('\0') {
                return Err(bad_field(&field, "must not contain NUL"));
            }
        }
        Ok(env)
    }

    /// All has been taken; what is left is a mistake.
    pub(super) fn end(self, known: &str) -> Result<(), ExecutorError> {
        match self.fields.keys().next() {
            Some(name) => Err(bad_field(name, &format!("is not known; there are {known}"))),
            None => Ok(()),
        }
    }
}

/// For rules that only one executor has.
pub(super) fn rule<T>(name: &str, rule: &str) -> Result<T, ExecutorError> {
    Err(bad_field(name, rule))
}

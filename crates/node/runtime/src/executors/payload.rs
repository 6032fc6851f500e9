//! Reading payloads. A fault names the field and the rule, for the client at the submit and for the task's error alike.

use std::sync::Arc;

use serde_json::{Map, Value};
use tasklane_core::id::Name;
use tasklane_core::message::Dispatch;
use tasklane_core::task::{Payload, TaskBody};
use tasklane_ports::ExecutorError;

use crate::request::FieldError;

use super::{http, python, shell};

/// A fault of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Path within the payload; empty for the payload as a whole.
    field: String,
    rule: String,
}

impl From<Fault> for ExecutorError {
    fn from(Fault { field, rule }: Fault) -> Self {
        let reason = if field.is_empty() { rule } else { format!("field {field}: {rule}") };
        Self::BadPayload { reason }
    }
}

impl From<Fault> for FieldError {
    fn from(Fault { field, rule }: Fault) -> Self {
        Self::invalid(field, rule).below("payload")
    }
}

/// Refuses a payload that the built-in executor of a type cannot take. Other types define their own payloads.
pub(crate) fn check_builtin(task_type: &Name, payload: &Payload) -> Result<(), FieldError> {
    match task_type.as_str() {
        "SHELL" => shell::read(payload).map(drop)?,
        "PYTHON_SCRIPT" => python::read(payload).map(drop)?,
        "HTTP" => http::read(payload).map(drop)?,
        _ => {}
    }
    Ok(())
}

/// The part of the spec that a worker needs.
pub(super) fn body(dispatch: &Dispatch) -> Result<&Arc<TaskBody>, ExecutorError> {
    // The driver loads a body that was too large to send before it passes the attempt on.
    dispatch
        .body
        .as_ref()
        .ok_or_else(|| ExecutorError::Unavailable { source: "the task came without its payload".into() })
}

/// The payload that an executor is given.
pub(super) fn given(dispatch: &Dispatch) -> Result<&Payload, ExecutorError> {
    Ok(body(dispatch)?.given())
}

/// A payload as its executor sees it.
#[derive(Debug)]
pub(super) enum PayloadForm {
    Text(String),
    Fields(Fields),
}

/// A payload that is text or an object.
pub(super) fn read(payload: &Payload) -> Result<PayloadForm, Fault> {
    let json = match payload {
        Payload::Text(text) => return Ok(PayloadForm::Text(text.clone())),
        Payload::Json(json) => json,
    };
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => Ok(PayloadForm::Text(text)),
        Ok(Value::Object(fields)) => Ok(PayloadForm::Fields(Fields { fields })),
        Ok(_) => Err(bad("must be a string or an object")),
        Err(e) => Err(bad(&format!("is not JSON: {e}"))),
    }
}

pub(super) fn bad(rule: &str) -> Fault {
    bad_field("", rule)
}

fn bad_field(name: &str, rule: &str) -> Fault {
    Fault { field: name.to_owned(), rule: rule.to_owned() }
}

/// The fields of a payload; each is taken out once.
#[derive(Debug)]
pub(super) struct Fields {
    fields: Map<String, Value>,
}

impl Fields {
    /// Takes a field of any type. `null` counts as absent.
    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        self.any(name)
            .map(|value| value.as_bool().ok_or_else(|| bad_field(name, "must be true or false")))
            .transpose()
    }

    /// Text without a NUL, because no argument or variable can contain one.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        match self.any(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.contains('\0') => Err(bad_field(name, "must not contain NUL")),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(bad_field(name, "must be a string")),
        }
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Fault> {
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
    pub(super) fn pairs(&mut self, name: &str) -> Result<Vec<(String, String)>, Fault> {
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
    pub(super) fn env(&mut self) -> Result<Vec<(String, String)>, Fault> {
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

    /// Refuses the fields that are left: each is a mistake.
    pub(super) fn end(self, known: &str) -> Result<(), Fault> {
        match self.fields.keys().next() {
            Some(name) => Err(bad_field(name, &format!("is not known; there are {known}"))),
            None => Ok(()),
        }
    }
}

/// For rules that only one executor has.
pub(super) fn rule<T>(name: &str, rule: &str) -> Result<T, Fault> {
    Err(bad_field(name, rule))
}

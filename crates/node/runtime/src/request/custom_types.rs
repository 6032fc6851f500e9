//! Custom task types: the definitions by which workers run types that they do not know themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tasklane_core::id::Name;
use tasklane_core::task::Payload;

use super::error::{FieldError, code};
use super::exact;
use super::expressions::render_payload;
use super::json::read_json;
use super::limits::RequestLimits;
use super::render::{self, Context, Scope};
use super::schema::{PayloadSchema, SchemaViolation};
use super::task::TaskRequest;
use super::types::BUILT_IN;

/// A registered task type.
#[derive(Clone, Debug)]
pub struct CustomType {
    /// Its purpose, for people.
    pub description: String,
    how: RunTemplate,
    schema: Option<Arc<PayloadSchema>>,
}

/// The built-in type that runs it, and the template of its payload.
#[derive(Clone, Debug)]
struct RunTemplate {
    runs_as: Name,
    payload: Value,
    /// The payload goes to standard input.
    stdin: bool,
}

/// The built-in task that a task of a custom type becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The type that workers must offer.
    pub task_type: Name,
    /// The payload of its executor.
    pub payload: Payload,
}

/// The longest description, in characters.
const DESCRIPTION_LEN_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CustomTypeJson {
    description: Option<String>,
    command: Option<Vec<String>>,
    script: Option<String>,
    python: Option<String>,
    http: Option<Box<RawValue>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    payload_schema: Option<Value>,
}

impl CustomType {
    /// Parses and checks a definition.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: CustomTypeJson = read_json(body)?;
        let description = json.description.clone().unwrap_or_default();
        if description.chars().count() > DESCRIPTION_LEN_MAX {
            let rule = format!("must be at most {DESCRIPTION_LEN_MAX} characters long");
            return Err(FieldError::invalid("description", rule));
        }
        let how = how(&json)?;
        let scope = Scope { names: BTreeSet::from(["metadata", "payload", "taskName"]), ..Scope::default() };
        let field = field_of(&json);
        render::check_payload(&Payload::Json(exact::write(&how.payload)), &scope)
            .map_err(|rule| FieldError::invalid(field, rule))?;
        let schema = json.payload_schema.map(|schema| {
            PayloadSchema::new(schema).map(Arc::new).map_err(|refused| refused.of("payloadSchema", ""))
        });
        Ok(Self { description, how, schema: schema.transpose()? })
    }

    /// Refuses the name of a type that cannot be registered.
    pub fn check_name(task_type: &Name) -> Result<(), FieldError> {
        if BUILT_IN.contains(&task_type.as_str()) {
            let rule = format!("must not be one of {}: workers bring these along", BUILT_IN.join(", "));
            return Err(FieldError::invalid("taskType", rule));
        }
        Ok(())
    }

    /// The type that workers must offer.
    pub fn runs_as(&self) -> &Name {
        &self.how.runs_as
    }

    /// The built-in form of a task of this type. A check of the payload that needs more steps than this is
    /// refused for its cost.
    pub fn run_as(&self, request: &TaskRequest, steps_max: u64) -> Result<RunAs, FieldError> {
        let not_json = |error| FieldError::invalid("payload", format!("is not JSON: {error}"));
        let given = match &request.payload {
            Payload::Text(text) => Value::String(text.clone()),
            Payload::Json(json) => exact::parse(json).map_err(not_json)?,
        };
        if let Some(schema) = &self.schema {
            // A schema takes a long whole number as a number.
            let plain = match &request.payload {
                Payload::Text(text) => Value::String(text.clone()),
                Payload::Json(json) => serde_json::from_str(json).map_err(not_json)?,
            };
            let asks = format!("must be as the executor of {} asks: ", request.task_type);
            schema.check(&plain, steps_max).map_err(|refused| refused.of("payload", &asks))?;
        }
        let mut context = Context::default();
        context.put("metadata", json!(request.metadata));
        context.put("taskName", json!(request.task_name));
        context.put("payload", given);
        let template = Payload::Json(exact::write(&self.how.payload));
        let wrong = |rule| FieldError::invalid("payload", format!("does not fit its executor: {rule}"));
        let rendered = render_payload(&self.how.runs_as, &template, &context).map_err(wrong)?;
        let payload = if self.how.stdin {
            let mut fields: Map<String, Value> = match exact::parse(rendered.as_str()) {
                Ok(Value::Object(fields)) => fields,
                _ => Map::new(),
            };
            fields.insert("stdin".to_owned(), json!(request.payload.as_str()));
            Payload::Json(exact::write(&Value::Object(fields)))
        } else {
            rendered
        };
        if payload.as_str().len() > RequestLimits::PAYLOAD_BYTES_CAP {
            let message =
                format!("becomes larger than {} bytes for its executor", RequestLimits::PAYLOAD_BYTES_CAP);
            return Err(FieldError { field: "payload".to_owned(), code: code::PAYLOAD_TOO_LARGE, message });
        }
        Ok(RunAs { task_type: self.how.runs_as.clone(), payload })
    }
}

impl SchemaViolation {
    /// The error of a field, with `rule` before the violation.
    fn of(self, field: &str, rule: &str) -> FieldError {
        match self {
            Self::Invalid(why) => FieldError::invalid(field, format!("{rule}{why}")),
            Self::TooCostly(message) => {
                FieldError { field: field.to_owned(), code: code::TOO_COSTLY, message }
            }
        }
    }
}

fn field_of(json: &CustomTypeJson) -> &'static str {
    match json {
        CustomTypeJson { command: Some(_), .. } => "command",
        CustomTypeJson { http: Some(_), .. } => "http",
        _ => "env",
    }
}

/// Exactly one of the ways to run it.
fn how(json: &CustomTypeJson) -> Result<RunTemplate, FieldError> {
    let name = |text: &str| Name::new(text).expect("a constant that is a name");
    let ways = [
        ("command", json.command.is_some()),
        ("script", json.script.is_some()),
        ("python", json.python.is_some()),
        ("http", json.http.is_some()),
    ];
    let mut given = ways.iter().filter(|(_, given)| *given);
    let Some((way, _)) = given.next() else {
        let (field, message) = ("command".to_owned(), "or script, python or http is required".to_owned());
        return Err(FieldError { field, code: code::MISSING_FIELD, message });
    };
    if let Some((second, _)) = given.next() {
        let message = "must be the only one of command, script, python and http".to_owned();
        return Err(FieldError { field: (*second).to_owned(), code: code::CONFLICTING_FIELDS, message });
    }
    let mut payload = Map::new();
    if let Some(http) = &json.http {
        let of_commands = [("env", json.env.is_some()), ("cwd", json.cwd.is_some())];
        if let Some((field, _)) = of_commands.iter().find(|(_, given)| *given) {
            let message = "must not be given together with http".to_owned();
            return Err(FieldError { field: (*field).to_owned(), code: code::CONFLICTING_FIELDS, message });
        }
        let Ok(Value::Object(http)) = exact::parse(http.get()) else {
            let message = "must be an object".to_owned();
            return Err(FieldError { field: "http".to_owned(), code: code::WRONG_TYPE, message });
        };
        if !http.get("url").is_some_and(Value::is_string) {
            let (field, message) = ("http.url".to_owned(), "is required".to_owned());
            return Err(FieldError { field, code: code::MISSING_FIELD, message });
        }
        return Ok(RunTemplate { runs_as: name("HTTP"), payload: Value::Object(http), stdin: false });
    }
    payload.extend(json.env.as_ref().map(|env| ("env".to_owned(), json!(env))));
    let (runs_as, field, program) = match (&json.command, &json.script, &json.python) {
        (Some(command), ..) => ("SHELL", "argv", json!(command)),
        (_, Some(script), _) => ("SHELL", "script", literal(script)),
        (_, _, script) => ("PYTHON_SCRIPT", "script", literal(script.as_deref().unwrap_or_default())),
    };
    let is_empty = match &json.command {
        Some(command) => command.first().is_none_or(String::is_empty),
        None => program.as_str().is_none_or(|script| script.trim().is_empty()),
    };
    if is_empty {
        return Err(FieldError::invalid(*way, "must not be empty"));
    }
    if runs_as == "SHELL" {
        payload.extend(json.cwd.as_ref().map(|cwd| ("cwd".to_owned(), json!(cwd))));
    } else if json.cwd.is_some() {
        let message = "must not be given together with python".to_owned();
        return Err(FieldError { field: "cwd".to_owned(), code: code::CONFLICTING_FIELDS, message });
    }
    payload.insert(field.to_owned(), program);
    Ok(RunTemplate { runs_as: name(runs_as), payload: Value::Object(payload), stdin: true })
}

/// A script stays as it is: text that looks like an expression in it is none.
fn literal(script: &str) -> Value {
    json!(script.replace("{{", "{{ '{{' }}"))
}

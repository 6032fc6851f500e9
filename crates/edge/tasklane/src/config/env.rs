//! Which environment variables are settings.

use serde_json::Value;
use tasklane_runtime::suggest::nearest;

use super::schema::{Schema, env_name};

/// Begins every variable of Tasklane.
const PREFIX: &str = "TASKLANE_";

/// Variables with our prefix that are no settings: variables of clients, of the tasks of a worker, and of the
/// tests of this project.
const OTHERS: [&str; 11] = [
    "TASKLANE_URL",
    "TASKLANE_CONFIG",
    "TASKLANE_TASK_ID",
    "TASKLANE_TASK_NAME",
    "TASKLANE_ATTEMPT",
    "TASKLANE_FENCE",
    "TASKLANE_QUEUE",
    "TASKLANE_RESULT_FILE",
    "TASKLANE_PROGRESS_FILE",
    "TASKLANE_REQUIRE_SERVERS",
    "TASKLANE_MODEL_SEQUENCES",
];

/// Beginnings of such variables. Kubernetes sets the last two in every pod beside a service called `tasklane`.
const OTHER_PREFIXES: [&str; 5] =
    ["TASKLANE_GUARD", "TASKLANE_BECOME_GUARD", "TASKLANE_TEST_", "TASKLANE_SERVICE_", "TASKLANE_PORT"];

/// Whether a variable with our prefix is no setting, but meant for another program.
pub(super) fn is_foreign(name: &str) -> bool {
    OTHERS.contains(&name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The meaning of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// It sets this key.
    Sets(String),
    /// It is no business of the config.
    Foreign,
    /// It looks like a setting and is none. With the variable that was probably meant.
    Unknown(Option<String>),
}

pub(super) fn variable(schema: &Schema, name: &str) -> Variable {
    if !name.starts_with(PREFIX) || is_foreign(name) {
        return Variable::Foreign;
    }
    if let Some(key) = schema.keys().find(|key| env_name(key) == name) {
        return Variable::Sets(key.to_owned());
    }
    let names: Vec<String> = schema.keys().map(env_name).collect();
    let near = nearest(name, names.iter().map(String::as_str)).map(str::to_owned);
    // `TASKLANE_CAPACITY` is no slip of a letter: the section is missing.
    let ending = format!("_{}", &name[PREFIX.len()..]);
    let elsewhere = || names.iter().find(|known| known.ends_with(&ending)).cloned();
    Variable::Unknown(near.or_else(elsewhere))
}

/// The values that a text can stand for, the likeliest first: the text itself, and what it is as YAML (a number, a
/// list, a map). Which one fits is up to the type of the key.
pub(super) fn readings(text: &str) -> Vec<Value> {
    let plain = Value::String(text.to_owned());
    match serde_saphyr::from_str::<Value>(text) {
        Ok(value) if value != plain => vec![plain, value],
        _ => vec![plain],
    }
}

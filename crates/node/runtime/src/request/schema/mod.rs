//! JSON Schemas of payloads.
//!
//! A schema of a few lines can ask for more work than a server has time for: twenty definitions that each refer twice to
//! the next one ask for a million checks of one value. A thread that checks cannot be stopped, so the work is counted
//! before it is done: [`expand`] counts the schema when it is stored, [`cost`] counts the checks of a payload before the
//! payload is checked. Patterns run on the linear engine only.

mod cost;
mod expand;
mod keywords;
mod patterns;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use self::patterns::Patterns;

/// Steps of a schema: each of its subschemas is one for each way that leads to it.
pub const SCHEMA_STEPS_MAX: u64 = 10_000;
/// Steps of one check of a payload: each subschema is one for each value that it looks at, and costly
/// keywords are more. This number takes a tenth of a second.
pub const CHECK_STEPS_MAX: u64 = 1_000_000;
/// The longest text of an error that comes from the payload.
const ERROR_CHARS_MAX: usize = 500;

/// A schema that payloads must fit.
#[derive(Debug)]
pub(super) struct PayloadSchema {
    schema: Value,
    patterns: Patterns,
    validator: Validator,
}

/// Why a schema or a payload is refused: the rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SchemaViolation {
    /// It breaks this rule.
    Invalid(String),
    /// It takes more steps than the limit.
    TooCostly(String),
}

impl PayloadSchema {
    /// Compiles a schema, if it can be checked within its steps.
    pub(super) fn new(schema: Value) -> Result<Self, SchemaViolation> {
        let patterns = expand::expand(&schema)?;
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex())
            // The default format compiles each text, at any cost.
            .with_format("regex", patterns::is_pattern)
            .build(&schema)
            .map_err(|error| SchemaViolation::Invalid(format!("must be a JSON Schema: {}", shown(&error))))?;
        Ok(Self { schema, patterns, validator })
    }

    /// Checks a payload, if that takes at most this many steps.
    pub(super) fn check(&self, payload: &Value, steps_max: u64) -> Result<(), SchemaViolation> {
        if !cost::fits(&self.schema, &self.patterns, payload, steps_max) {
            let rule = format!(
                "must not take more than {steps_max} steps to be checked against the schema of its executor; \
                 make it smaller or less nested, or make payloadSchema simpler"
            );
            return Err(SchemaViolation::TooCostly(rule));
        }
        if self.validator.is_valid(payload) {
            return Ok(());
        }
        self.validator.validate(payload).map_err(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "it" } else { &place };
            SchemaViolation::Invalid(format!("{place}: {}", shown(&error)))
        })
    }
}

/// The text of an error, which may repeat the whole value.
fn shown(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    match text.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

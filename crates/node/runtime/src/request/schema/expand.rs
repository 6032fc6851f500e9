//! Counts a schema when it is stored.
//!
//! A schema that looks at the same value is counted once for each way that leads to it, because every check
//! takes each way. A schema that looks inside the value is counted once: how often it is used depends on the
//! payload, which is counted by itself.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::{Looks, looks, schemas, target};
use super::patterns::Patterns;
use super::{SCHEMA_STEPS_MAX, SchemaViolation};

/// Schemas within each other that look at the same value. A check goes down with them.
const SAME_VALUE_DEPTH_MAX: usize = 50;
/// Keywords of a schema that are looked at in one step.
const KEYWORDS_A_STEP: u64 = 16;

/// Counts a schema; returns its patterns.
pub(super) fn expand(schema: &Value) -> Result<Patterns, SchemaViolation> {
    let mut expansion = Expansion {
        root: schema,
        patterns: Patterns::default(),
        steps: 0,
        inside: vec![schema],
        seen: HashSet::new(),
        opened: HashSet::new(),
    };
    check_own_ids(schema)?;
    while let Some(schema) = expansion.inside.pop() {
        if expansion.seen.insert(std::ptr::from_ref(schema)) {
            expansion.visit(schema, 0)?;
        }
    }
    Ok(expansion.patterns)
}

struct Expansion<'a> {
    root: &'a Value,
    patterns: Patterns,
    steps: u64,
    /// Schemas that look inside the value.
    inside: Vec<&'a Value>,
    /// The schemas of `inside` that were counted.
    seen: HashSet<*const Value>,
    /// Schemas whose parts that look inside the value are in that list, however many $refs lead to them.
    opened: HashSet<*const Map<String, Value>>,
}

impl<'a> Expansion<'a> {
    /// `depth` counts the schemas around it that look at the same value.
    fn visit(&mut self, schema: &'a Value, depth: usize) -> Result<(), SchemaViolation> {
        self.spend(1)?;
        if depth > SAME_VALUE_DEPTH_MAX {
            let rule = format!(
                "must not have more than {SAME_VALUE_DEPTH_MAX} schemas within each other that look at the same value, \
                 nor one that refers to itself without looking inside the value"
            );
            return Err(SchemaViolation::TooCostly(rule));
        }
        let Value::Object(schema) = schema else { return Ok(()) };
        // Each keyword is looked at again for each $ref that leads here.
        self.spend(schema.len() as u64 / KEYWORDS_A_STEP)?;
        self.add_patterns(schema)?;
        let is_first = self.opened.insert(std::ptr::from_ref(schema));
        for (keyword, argument) in schema {
            match (keyword.as_str(), argument) {
                ("$ref", Value::String(reference)) => {
                    let target = target(self.root, reference).map_err(SchemaViolation::Invalid)?;
                    self.visit(target, depth + 1)?;
                }
                ("$dynamicRef" | "$recursiveRef", _) => {
                    return Err(SchemaViolation::Invalid(format!("must refer by $ref, not by {keyword}")));
                }
                _ => match looks(keyword) {
                    Some(Looks::Same) => schemas(keyword, argument)
                        .filter(|schema| is_schema(schema))
                        .try_for_each(|schema| self.visit(schema, depth + 1))?,
                    Some(Looks::Inside) if is_first => self.inside.extend(schemas(keyword, argument)),
                    Some(Looks::Inside) | None => {}
                },
            }
        }
        Ok(())
    }

    fn add_patterns(&mut self, schema: &Map<String, Value>) -> Result<(), SchemaViolation> {
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            let steps = self.patterns.add(pattern, false)?;
            self.spend(steps)?;
        }
        if let Some(Value::Object(patterns)) = schema.get("patternProperties") {
            for pattern in patterns.keys() {
                let steps = self.patterns.add(pattern, true)?;
                self.spend(steps)?;
            }
        }
        Ok(())
    }

    fn spend(&mut self, steps: u64) -> Result<(), SchemaViolation> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > SCHEMA_STEPS_MAX {
            let rule = format!(
                "must not take more than {SCHEMA_STEPS_MAX} steps with all that its $refs lead to: a part that is referred \
                 to twice counts twice, and patterns count by their length; refer to fewer parts"
            );
            return Err(SchemaViolation::TooCostly(rule));
        }
        Ok(())
    }
}

/// `dependencies` may also list names.
fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// References count from the nearest `$id`: only that of the whole schema is known here.
fn check_own_ids(schema: &Value) -> Result<(), SchemaViolation> {
    let is_old = schema.get("$schema").and_then(Value::as_str).is_some_and(|uri| uri.contains("draft-04"));
    let id = if is_old { "id" } else { "$id" };
    let below = match schema {
        Value::Object(fields) => fields.values().any(|field| has_id(field, id)),
        _ => false,
    };
    if below {
        return Err(SchemaViolation::Invalid(format!(
            "must have {id} at its top only; name its parts in $defs"
        )));
    }
    Ok(())
}

fn has_id(value: &Value, id: &str) -> bool {
    match value {
        Value::Object(fields) => {
            fields.get(id).is_some_and(Value::is_string) || fields.values().any(|field| has_id(field, id))
        }
        Value::Array(items) => items.iter().any(|item| has_id(item, id)),
        _ => false,
    }
}

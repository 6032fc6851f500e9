//! Counts the checks of a payload before they are made.
//!
//! The count follows the ways of a validator, and more: it does not stop at a value that does not fit. So the
//! count is never less than the validator's work, and the count itself ends with the steps.

use serde_json::{Map, Value};

use super::keywords::{Looks, asks_again, looks, schemas, target};
use super::patterns::Patterns;

/// Schemas within each other on the way to a value. A validator calls itself for each.
const DEPTH_MAX: usize = 400;
/// Bytes of a text that are compared or read in one step.
const BYTES_A_STEP: usize = 64;
/// Comparisons of values that are made in one step.
const COMPARED_A_STEP: u64 = 16;

/// Whether the checks of a payload take at most this many steps.
pub(super) fn fits(schema: &Value, patterns: &Patterns, payload: &Value, steps_max: u64) -> bool {
    let mut count = Count { root: schema, patterns, left: steps_max };
    count.visit(schema, payload, 0, false).is_some()
}

struct Count<'a> {
    root: &'a Value,
    patterns: &'a Patterns,
    left: u64,
}

/// `None` when the steps are used up.
type Counted = Option<()>;

impl Count<'_> {
    fn spend(&mut self, steps: u64) -> Counted {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    /// `again`: an outer schema asks which fields or items this one has looked at.
    fn visit(&mut self, schema: &Value, value: &Value, depth: usize, again: bool) -> Counted {
        self.spend(1)?;
        if depth > DEPTH_MAX {
            return None;
        }
        let Value::Object(schema) = schema else { return Some(()) };
        self.spend(schema.len() as u64)?;
        let again = again || asks_again(schema);
        for (keyword, argument) in schema {
            self.keyword(schema, keyword, argument, value)?;
            if let ("$ref", Value::String(reference)) = (keyword.as_str(), argument) {
                let target = target(self.root, reference).ok()?;
                self.same(target, value, depth, again)?;
            }
            match looks(keyword) {
                Some(Looks::Same) => {
                    for schema in schemas(keyword, argument) {
                        self.same(schema, value, depth, again)?;
                    }
                }
                Some(Looks::Inside) => self.inside(schema, keyword, argument, value, depth)?,
                None => {}
            }
        }
        Some(())
    }

    fn same(&mut self, schema: &Value, value: &Value, depth: usize, again: bool) -> Counted {
        self.visit(schema, value, depth + 1, false)?;
        if again { self.visit(schema, value, depth + 1, true) } else { Some(()) }
    }

    /// The cost of a keyword by itself.
    fn keyword(
        &mut self,
        schema: &Map<String, Value>,
        keyword: &str,
        argument: &Value,
        value: &Value,
    ) -> Counted {
        match (keyword, value) {
            ("enum" | "const" | "required" | "dependentRequired" | "type", _) => self.spend(nodes(argument)),
            ("pattern", Value::String(text)) => {
                self.spend(argument.as_str().map_or(0, |pattern| self.patterns.steps(pattern, text)))
            }
            (
                "format" | "minLength" | "maxLength" | "contentEncoding" | "contentMediaType",
                Value::String(text),
            ) => self.spend((text.len() / BYTES_A_STEP) as u64),
            ("uniqueItems", Value::Array(items)) => {
                // Lists and objects can be made so that each is compared with each.
                let compared = items.iter().filter(|item| !is_told_apart(item)).count() as u64;
                let all = nodes(value);
                self.spend(all.saturating_add(compared.saturating_mul(all) / COMPARED_A_STEP))
            }
            ("patternProperties", Value::Object(fields)) => {
                for pattern in argument.as_object()?.keys() {
                    for name in fields.keys() {
                        self.spend(self.patterns.steps(pattern, name))?;
                    }
                }
                Some(())
            }
            // These keywords search the patterns again for the names that are left to them.
            ("additionalProperties" | "unevaluatedProperties", Value::Object(_)) => {
                match schema.get("patternProperties") {
                    Some(patterns) => self.keyword(&Map::new(), "patternProperties", patterns, value),
                    None => Some(()),
                }
            }
            ("properties", Value::Object(_)) => self.spend(argument.as_object()?.len() as u64),
            _ => Some(()),
        }
    }

    /// The cost of a keyword's schemas that look at fields or items.
    fn inside(
        &mut self,
        schema: &Map<String, Value>,
        keyword: &str,
        argument: &Value,
        value: &Value,
        depth: usize,
    ) -> Counted {
        let depth = depth + 1;
        match (keyword, value) {
            ("properties", Value::Object(fields)) => {
                for (name, schema) in argument.as_object()? {
                    if let Some(field) = fields.get(name) {
                        self.visit(schema, field, depth, false)?;
                    }
                }
            }
            ("patternProperties", Value::Object(fields)) => {
                for (pattern, schema) in argument.as_object()? {
                    for (name, field) in fields {
                        if self.patterns.is_match(pattern, name) {
                            self.visit(schema, field, depth, false)?;
                        }
                    }
                }
            }
            ("additionalProperties", Value::Object(fields)) => {
                for (name, field) in fields {
                    if !self.names(schema, name) {
                        self.visit(argument, field, depth, false)?;
                    }
                }
            }
            ("unevaluatedProperties", Value::Object(fields)) => {
                for field in fields.values() {
                    self.visit(argument, field, depth, false)?;
                }
            }
            ("propertyNames", Value::Object(fields)) => {
                for name in fields.keys() {
                    self.visit(argument, &Value::String(name.clone()), depth, false)?;
                }
            }
            ("items" | "prefixItems", Value::Array(items)) if argument.is_array() => {
                for (schema, item) in argument.as_array()?.iter().zip(items) {
                    self.visit(schema, item, depth, false)?;
                }
            }
            ("items" | "additionalItems", Value::Array(items)) => {
                let first =
                    ["prefixItems", "items"].iter().filter_map(|by_place| schema.get(*by_place)?.as_array());
                for item in items.iter().skip(first.map(Vec::len).max().unwrap_or(0)) {
                    self.visit(argument, item, depth, false)?;
                }
            }
            ("unevaluatedItems" | "contains", Value::Array(items)) => {
                for item in items {
                    self.visit(argument, item, depth, false)?;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Whether `properties` or `patternProperties` name a field.
    fn names(&self, schema: &Map<String, Value>, name: &str) -> bool {
        let has = |keyword: &str| schema.get(keyword).and_then(Value::as_object);
        has("properties").is_some_and(|named| named.contains_key(name))
            || has("patternProperties")
                .is_some_and(|patterns| patterns.keys().any(|pattern| self.patterns.is_match(pattern, name)))
    }
}

/// Values within a value, and long texts by their length.
fn nodes(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<u64>(),
        Value::Object(fields) => {
            1 + fields.iter().map(|(name, field)| text(name) + nodes(field)).sum::<u64>()
        }
        Value::String(it) => 1 + text(it),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn text(text: &str) -> u64 {
    (text.len() / BYTES_A_STEP) as u64
}

/// Whether the validator distinguishes a value from others without a comparison with each.
fn is_told_apart(value: &Value) -> bool {
    // As a float, a whole number above this may equal another one.
    const EXACT_MAX: u64 = 1 << 53;
    match value {
        Value::Array(_) | Value::Object(_) => false,
        Value::Number(number) => {
            number.is_f64() || number.as_i64().is_some_and(|number| number.unsigned_abs() <= EXACT_MAX)
        }
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

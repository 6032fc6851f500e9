//! The keywords of JSON Schema that hold schemas, and the values that these look at.

use serde_json::{Map, Value};

/// The values that the schemas of a keyword look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// The same value.
    Same,
    /// Fields or items of the value.
    Inside,
}

/// The values that the schemas of a keyword look at; `None` for a keyword that holds no schema.
pub(super) fn looks(keyword: &str) -> Option<Looks> {
    match keyword {
        "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" | "dependentSchemas"
        | "dependencies" | "contentSchema" => Some(Looks::Same),
        "properties"
        | "patternProperties"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "items"
        | "prefixItems"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains" => Some(Looks::Inside),
        _ => None,
    }
}

/// The schemas of a keyword: by name, in a list, or one alone.
pub(super) fn schemas<'a>(keyword: &str, argument: &'a Value) -> Box<dyn Iterator<Item = &'a Value> + 'a> {
    let by_name = matches!(keyword, "properties" | "patternProperties" | "dependentSchemas" | "dependencies");
    match argument {
        Value::Object(named) if by_name => Box::new(named.values()),
        Value::Array(list) => Box::new(list.iter()),
        one => Box::new(std::iter::once(one)),
    }
}

/// Whether a schema asks which fields or items others have looked at: then these are checked again.
pub(super) fn asks_again(schema: &Map<String, Value>) -> bool {
    schema.contains_key("unevaluatedProperties") || schema.contains_key("unevaluatedItems")
}

/// The part of a schema that a reference names; the error is the rule that the reference breaks.
pub(super) fn target<'a>(root: &'a Value, reference: &str) -> Result<&'a Value, String> {
    let rule = || {
        format!("must refer to its own parts only, as {{\"$ref\": \"#/$defs/NAME\"}}, and has {reference:?}")
    };
    let pointer = reference.strip_prefix('#').and_then(unescaped).ok_or_else(rule)?;
    root.pointer(&pointer).ok_or_else(rule)
}

/// A text without `%20` and the like.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

//! Errors of a request.

/// A field, and the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}{}{message}", if .field.is_empty() { "" } else { ": " })]
pub struct FieldError {
    /// Path of the field, as in `retryPolicy.maxRetries`; empty for the request as a whole.
    pub field: String,
    /// Stable, for programs: one of [`code`].
    pub code: &'static str,
    /// The rule, for people.
    pub message: String,
}

/// The codes of [`FieldError`]. They are part of the API and never change.
pub mod code {
    /// Not JSON at all.
    pub const INVALID_JSON: &str = "invalid_json";
    /// A field that does not exist.
    pub const UNKNOWN_FIELD: &str = "unknown_field";
    /// A required field is not there.
    pub const MISSING_FIELD: &str = "missing_field";
    /// The same field twice.
    pub const DUPLICATE_FIELD: &str = "duplicate_field";
    /// A number where a text belongs, or the like.
    pub const WRONG_TYPE: &str = "wrong_type";
    /// The right type, but a value that the rule does not allow.
    pub const INVALID_VALUE: &str = "invalid_value";
    /// Two fields that exclude each other.
    pub const CONFLICTING_FIELDS: &str = "conflicting_fields";
    /// A payload above the limit of this deployment.
    pub const PAYLOAD_TOO_LARGE: &str = "payload_too_large";
    /// Checking or rendering it would cost too much.
    pub const TOO_COSTLY: &str = "too_costly";

    /// All of them.
    pub const ALL: [&str; 9] = [
        INVALID_JSON,
        UNKNOWN_FIELD,
        MISSING_FIELD,
        DUPLICATE_FIELD,
        WRONG_TYPE,
        INVALID_VALUE,
        CONFLICTING_FIELDS,
        PAYLOAD_TOO_LARGE,
        TOO_COSTLY,
    ];
}

impl FieldError {
    /// The same error, of a field within another.
    #[must_use]
    pub fn below(self, outer: &str) -> Self {
        let field = if self.field.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.field) };
        Self { field, ..self }
    }

    /// A field whose value the rule does not allow.
    pub fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { field: field.into(), code: code::INVALID_VALUE, message: rule.into() }
    }
}

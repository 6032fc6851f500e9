//! Limits for the parts of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_core::printable::{is_unprintable, printable};
use tasklane_core::task::Payload;

use super::depth::{JSON_DEPTH_MAX, too_deep};
use super::error::{FieldError, code};
use super::task::TaskRequest;

/// Limits for the parts of a request. Texts are counted in characters, as JSON Schema does; values that are
/// stored as a whole, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The largest payload; at most [`PAYLOAD_BYTES_CAP`](Self::PAYLOAD_BYTES_CAP).
    pub payload_bytes_max: usize,
    /// All keys and values of `metadata` together.
    pub metadata_bytes_max: usize,
    /// The longest time that a task may hold a unique key: its id must be kept as long.
    pub unique_for_max: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        let unique_for_max = Duration::from_hours(7 * 24);
        Self { payload_bytes_max: 256 << 10, metadata_bytes_max: 64 << 10, unique_for_max }
    }
}

impl RequestLimits {
    /// The largest payload that every store and bus can carry.
    pub const PAYLOAD_BYTES_CAP: usize = 1 << 20;
    /// The longest task name.
    pub const TASK_NAME_LEN_MAX: usize = 256;
    /// The longest request id and the longest hash key.
    pub const KEY_LEN_MAX: usize = 256;
    /// Pairs of metadata.
    pub const METADATA_MAX: usize = 32;
    /// Labels.
    pub const LABELS_MAX: usize = 32;
    /// The longest key of a pair of metadata or a label.
    pub const PAIR_KEY_LEN_MAX: usize = 128;
    /// The longest value of a pair of metadata.
    pub const METADATA_VALUE_LEN_MAX: usize = 1024;
    /// The longest value of a label.
    pub const LABEL_VALUE_LEN_MAX: usize = 256;

    /// Checks the rules that the types of a request do not enforce.
    pub fn check(&self, request: &TaskRequest) -> Result<(), FieldError> {
        text("taskName", &request.task_name, Self::TASK_NAME_LEN_MAX)?;
        for (field, value) in [("requestId", &request.request_id), ("hashKey", &request.hash_key)] {
            value.as_ref().map_or(Ok(()), |value| check_key(field, value))?;
        }
        let payload = request.payload.as_str().len();
        let payload_max = self.payload_bytes_max.min(Self::PAYLOAD_BYTES_CAP);
        if payload > payload_max {
            return Err(FieldError {
                field: "payload".into(),
                code: code::PAYLOAD_TOO_LARGE,
                message: format!("must be at most {payload_max} bytes, not {payload}"),
            });
        }
        if let Payload::Json(json) = &request.payload
            && too_deep(json)
        {
            let rule = format!("must not be nested deeper than {JSON_DEPTH_MAX} levels");
            return Err(FieldError::invalid("payload", rule));
        }
        let (metadata, labels) = (&request.metadata, &request.labels);
        // Values of metadata are free text, without the one character that no store can hold in a text.
        let no_null = |c| c == '\0';
        pairs("metadata", metadata, Self::METADATA_MAX, Self::METADATA_VALUE_LEN_MAX, no_null)?;
        check_labels(labels)?;
        let metadata: usize = request.metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
        if metadata > self.metadata_bytes_max {
            let rule = format!("must be at most {} bytes together, not {metadata}", self.metadata_bytes_max);
            return Err(FieldError::invalid("metadata", rule));
        }
        if request.run_at.is_some() && request.delay.is_some() {
            return Err(FieldError {
                field: "delay".into(),
                code: code::CONFLICTING_FIELDS,
                message: "must not be given together with runAt".into(),
            });
        }
        let timeouts = [
            ("executionTimeout", request.execution_timeout),
            ("startTimeout", request.start_timeout),
            ("progressTimeout", request.progress_timeout),
        ];
        for (field, timeout) in timeouts {
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Err(FieldError::invalid(field, "must be longer than zero"));
            }
        }
        Ok(())
    }
}

/// Checks the labels of a task or a worker.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), FieldError> {
    let (count_max, value_max) = (RequestLimits::LABELS_MAX, RequestLimits::LABEL_VALUE_LEN_MAX);
    pairs("labels", labels, count_max, value_max, is_unprintable)
}

fn pairs(
    field: &str,
    pairs: &BTreeMap<String, String>,
    count_max: usize,
    value_max: usize,
    refused: fn(char) -> bool,
) -> Result<(), FieldError> {
    if pairs.len() > count_max {
        let rule = format!("must have at most {count_max} entries, not {}", pairs.len());
        return Err(FieldError::invalid(field, rule));
    }
    for (key, value) in pairs {
        let path = || format!("{field}.{}", printable(&key.chars().take(40).collect::<String>()));
        if key.is_empty() || key.chars().count() > RequestLimits::PAIR_KEY_LEN_MAX {
            let max = RequestLimits::PAIR_KEY_LEN_MAX;
            return Err(FieldError::invalid(path(), format!("must have a key of 1 to {max} characters")));
        }
        if let Some(c) = key.chars().find(|c| is_unprintable(*c)) {
            return Err(FieldError::invalid(path(), format!("must have a key without {}", named(c))));
        }
        if value.chars().count() > value_max {
            return Err(FieldError::invalid(path(), format!("must be at most {value_max} characters long")));
        }
        if let Some(c) = value.chars().find(|c| refused(*c)) {
            return Err(FieldError::invalid(path(), format!("must not contain {}", named(c))));
        }
    }
    Ok(())
}

/// The prefix of system names of task types, queues and workers.
pub const SYSTEM_PREFIX: &str = Name::SYSTEM_PREFIX;

/// Refuses a system name.
pub fn check_not_system(field: &str, name: &Name) -> Result<(), FieldError> {
    if name.is_system() {
        let rule = format!("must not begin with `{SYSTEM_PREFIX}`: such names are reserved for the system");
        return Err(FieldError::invalid(field, rule));
    }
    Ok(())
}

/// Refuses a system request id.
pub fn check_request_id(id: &str) -> Result<(), FieldError> {
    if id.starts_with(SYSTEM_PREFIX) {
        let rule = format!("must not begin with `{SYSTEM_PREFIX}`: such names are reserved for the system");
        return Err(FieldError::invalid("requestId", rule));
    }
    Ok(())
}

/// The request id of a task as clients may send it; none where a server has made it.
pub fn shown_request_id(id: Option<&str>) -> Option<&str> {
    id.filter(|id| !id.starts_with(SYSTEM_PREFIX))
}

/// The rule of request ids, hash keys and keys of limits.
pub fn check_key(field: &str, value: &str) -> Result<(), FieldError> {
    text(field, value, RequestLimits::KEY_LEN_MAX)
}

fn text(field: &str, value: &str, max: usize) -> Result<(), FieldError> {
    let len = value.chars().count();
    if !(1..=max).contains(&len) {
        return Err(FieldError::invalid(field, format!("must be 1 to {max} characters long, not {len}")));
    }
    match value.chars().find(|c| is_unprintable(*c)) {
        Some(c) => Err(FieldError::invalid(field, format!("must not contain {}", named(c)))),
        None => Ok(()),
    }
}

fn named(c: char) -> String {
    let kind = if c.is_control() { "control character" } else { "invisible character" };
    format!("the {kind} U+{:04X}; leave it out", u32::from(c))
}

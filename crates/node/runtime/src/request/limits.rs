//! How large the parts of a request may be.

use std::collections::BTreeMap;

use super::error::{FieldError, code};
use super::task::TaskRequest;

/// How large the parts of a request may be. Texts are counted in characters, as JSON Schema does; what is stored as a
/// whole, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The largest payload; at most [`PAYLOAD_BYTES_CAP`](Self::PAYLOAD_BYTES_CAP).
    pub payload_bytes_max: usize,
    /// All keys and values of `metadata` together.
    pub metadata_bytes_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { payload_bytes_max: 256 << 10, metadata_bytes_max: 64 << 10 }
    }
}

impl RequestLimits {
    /// What every store and bus can carry.
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

    /// Checks what the types of a request do not.
    pub fn check(&self, request: &TaskRequest) -> Result<(), FieldError> {
        text("taskName", &request.task_name, 1, Self::TASK_NAME_LEN_MAX)?;
        for (field, value) in [("requestId", &request.request_id), ("hashKey", &request.hash_key)] {
            value.as_ref().map_or(Ok(()), |value| text(field, value, 1, Self::KEY_LEN_MAX))?;
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
        pairs("metadata", &request.metadata, Self::METADATA_MAX, Self::METADATA_VALUE_LEN_MAX)?;
        pairs("labels", &request.labels, Self::LABELS_MAX, Self::LABEL_VALUE_LEN_MAX)?;
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

fn pairs(
    field: &str,
    pairs: &BTreeMap<String, String>,
    count_max: usize,
    value_max: usize,
) -> Result<(), FieldError> {
    if pairs.len() > count_max {
        let rule = format!("must have at most {count_max} entries, not {}", pairs.len());
        return Err(FieldError::invalid(field, rule));
    }
    for (key, value) in pairs {
        let path = || format!("{field}.{}", key.chars().take(40).collect::<String>());
        if key.is_empty() || key.chars().count() > RequestLimits::PAIR_KEY_LEN_MAX {
            let max = RequestLimits::PAIR_KEY_LEN_MAX;
            return Err(FieldError::invalid(path(), format!("must have a key of 1 to {max} characters")));
        }
        if value.chars().count() > value_max {
            return Err(FieldError::invalid(path(), format!("must be at most {value_max} characters long")));
        }
    }
    Ok(())
}

fn text(field: &str, value: &str, min: usize, max: usize) -> Result<(), FieldError> {
    let len = value.chars().count();
    if (min..=max).contains(&len) {
        return Ok(());
    }
    Err(FieldError::invalid(field, format!("must be {min} to {max} characters long, not {len}")))
}

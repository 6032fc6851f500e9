//! Errors between a program and a server.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of the server cannot be used.
    #[error("{url:?} is not the address of a server: {why}")]
    Url {
        /// The given URL.
        url: String,
        /// The fault of the URL.
        why: String,
    },
    /// No answer. The request may have been carried out, unless the connection could not be made at all.
    #[error("no answer from {url}")]
    Transport {
        /// The server.
        url: String,
        /// No connection was made, so nothing was carried out.
        unreachable: bool,
        /// The transport's error.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused, and says why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// An answer that is not what the API promises.
    #[error("the answer of {url} cannot be read: {why}")]
    Answer {
        /// The server.
        url: String,
        /// The fault of the answer.
        why: String,
    },
}

impl Error {
    /// The server's refusal, if it was one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Url { .. } | Self::Transport { .. } | Self::Answer { .. } => None,
        }
    }

    /// No connection to the server could be made.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Transport { unreachable: true, .. })
    }

    /// The same call may succeed later. A submit that got no answer is safe to repeat with a request id only.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Problem(problem) => matches!(problem.status, 429 | 502 | 503 | 504),
            Self::Url { .. } | Self::Answer { .. } => false,
        }
    }
}

/// A refusal of the server (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// Stable, for programs: `task_not_found`, `queue_full` …
    pub code: String,
    /// A page that describes this kind of problem.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// What kind of problem it is, in words.
    pub title: String,
    /// The fault in this case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The field that is wrong, such as `retryPolicy.maxRetries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Where the task stands, if that is the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_status: Option<crate::Status>,
    /// The version that is stored, if another one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_version: Option<u64>,
    /// When to try again, in whole seconds.
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Duration>,
}

/// A duration as whole seconds, where there is one.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_secs))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.detail.as_deref().filter(|detail| !detail.is_empty()).unwrap_or(&self.title);
        match &self.field {
            // Most rules do not name their field.
            Some(field) if !field.is_empty() && !text.contains(field.as_str()) => {
                write!(f, "{field}: {text}")?;
            }
            _ => f.write_str(text)?,
        }
        if self.code.is_empty() {
            write!(f, " (HTTP {})", self.status)
        } else {
            write!(f, " ({})", self.code)
        }
    }
}

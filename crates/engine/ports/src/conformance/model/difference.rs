//! How a difference between two stores is told.

use std::fmt;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use super::op::Op;

/// Where two stores answered differently, or one broke a promise.
#[derive(Debug)]
pub(super) struct Difference {
    /// Index of the operation; `None` if it showed only when everything was read at the end.
    index: Option<usize>,
    what: String,
}

impl Difference {
    pub(super) fn at(index: usize, what: String) -> Self {
        Self { index: Some(index), what }
    }

    pub(super) fn at_end(what: String) -> Self {
        Self { index: None, what }
    }

    /// Drops the operations after it.
    pub(super) fn truncate(&self, ops: &mut Vec<Op>) {
        if let Some(index) = self.index {
            ops.truncate(index + 1);
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "at operation {index}: {}", self.what),
            None => write!(f, "at the end: {}", self.what),
        }
    }
}

/// Turns a panic of a check into an answer, so that the sequence can be cut down.
pub(super) async fn caught<T>(checks: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match AssertUnwindSafe(checks).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without a text".to_owned())),
    }
}

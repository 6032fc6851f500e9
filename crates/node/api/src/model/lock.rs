//! Locks.

use serde::{Deserialize, Serialize};
use tasklane_runtime::node::Lock;
use tasklane_runtime::request::Positive;
use utoipa::ToSchema;

use super::Time;

/// A lock that is held.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lock)]
pub(crate) struct LockOut {
    /// Its name.
    name: String,
    /// Who holds it.
    owner: String,
    /// Rises with every new owner: what the lock protects can refuse a lower one than it has seen.
    #[schema(minimum = 1)]
    token: u64,
    /// Since when.
    since: Time,
    /// Until when, unless it is renewed.
    until: Time,
}

impl From<Lock> for LockOut {
    fn from(lock: Lock) -> Self {
        let Lock { name, owner, token, since, until } = lock;
        Self { name: name.to_string(), owner, token, since: Time(since), until: Time(until) }
    }
}

/// A page of locks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LockPage {
    pub(crate) locks: Vec<LockOut>,
    /// Where to go on; not there at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// Who wants a lock, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct LockRequest {
    pub(crate) owner: String,
    pub(crate) ttl: Positive,
}

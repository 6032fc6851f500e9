//! Locks.

use serde::{Deserialize, Serialize};
use tasklane_runtime::node::Lock;
use tasklane_runtime::request::Positive;
use utoipa::ToSchema;

use super::Time;

/// A held lock.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lock)]
pub(crate) struct LockOut {
    /// The name of the lock.
    name: String,
    /// The owner.
    owner: String,
    /// Rises with every new owner: the protected system can refuse a token below the highest it has seen.
    #[schema(minimum = 1)]
    token: u64,
    /// When the owner took it.
    since: Time,
    /// When the lock expires, unless it is renewed.
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
    /// The position of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// The owner of a lock and its time to live.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct LockRequest {
    pub(crate) owner: String,
    pub(crate) ttl: Positive,
}

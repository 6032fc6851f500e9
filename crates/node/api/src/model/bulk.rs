//! Actions on many tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tasklane_core::id::Name;
use tasklane_core::status::Status;
use tasklane_ports::TaskFilter;
use tasklane_runtime::node::{BulkAction, BulkStatus};
use tasklane_runtime::request::{FieldError, Object, parse_time};
use utoipa::ToSchema;

use super::StatusName;
use crate::extract::parse_id;

/// An action on the tasks that match a filter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BulkRequest {
    pub(crate) action: ActionName,
    pub(crate) filter: Object<FilterJson>,
    pub(crate) dry_run: Option<bool>,
    pub(crate) latest: Option<bool>,
}

/// The action.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BulkAction)]
pub(crate) enum ActionName {
    Cancel,
    Retry,
}

impl From<ActionName> for BulkAction {
    fn from(action: ActionName) -> Self {
        match action {
            ActionName::Cancel => Self::Cancel,
            ActionName::Retry => Self::Retry,
        }
    }
}

impl From<BulkAction> for ActionName {
    fn from(action: BulkAction) -> Self {
        match action {
            BulkAction::Cancel => Self::Cancel,
            BulkAction::Retry => Self::Retry,
        }
    }
}

/// A filter: tasks that meet all conditions match.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct FilterJson {
    status: Option<Vec<String>>,
    r#type: Option<Name>,
    queue: Option<Name>,
    name: Option<String>,
    worker: Option<Name>,
    parent: Option<String>,
    created_after: Option<String>,
    created_before: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
}

/// The states that a text names.
pub(crate) fn parse_status(text: &str) -> Result<Status, String> {
    let known = Status::ALL.into_iter().find(|status| status.as_str() == text);
    known.ok_or_else(|| format!("must be one of {}", Status::ALL.map(Status::as_str).join(", ")))
}

impl FilterJson {
    pub(crate) fn into_filter(self, namespace: &Name) -> Result<TaskFilter, FieldError> {
        let mut statuses = Vec::new();
        for (n, text) in self.status.iter().flatten().enumerate() {
            let refused = |rule| FieldError::invalid(format!("filter.status[{n}]"), rule);
            statuses.push(parse_status(text).map_err(refused)?);
        }
        let time = |field: &str, text: Option<String>| {
            let time = text.map(|text| parse_time(&text)).transpose();
            time.map_err(|rule| FieldError::invalid(format!("filter.{field}"), rule))
        };
        let parent = self.parent.map(|text| {
            let refused = || FieldError::invalid("filter.parent", "must be a UUID with hyphens");
            parse_id(&text).ok_or_else(refused)
        });
        Ok(TaskFilter {
            namespace: Some(namespace.clone()),
            queue: self.queue,
            statuses,
            task_type: self.r#type,
            name: self.name,
            worker: self.worker,
            parent: parent.transpose()?,
            schedule: None,
            metadata: self.metadata.unwrap_or_default().into_iter().collect(),
            created_from: time("createdAfter", self.created_after)?,
            created_before: time("createdBefore", self.created_before)?,
        })
    }
}

/// The number of tasks that match, or the operation that acts on them.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkStarted {
    pub(crate) dry_run: bool,
    /// The number of tasks that the filter matches now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) matched: Option<u64>,
    /// The id for `/api/v1/operations/{id}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "uuid")]
    pub(crate) operation_id: Option<String>,
}

/// An action on many tasks, and its progress.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Operation {
    #[schema(format = "uuid")]
    operation_id: String,
    action: ActionName,
    status: StatusName,
    /// Matching tasks found so far.
    matched: u64,
    /// Tasks on which the action succeeded.
    done: u64,
    /// Tasks on which the action failed, because they had changed meanwhile or for another reason.
    failed: u64,
    /// Details besides the counts: tasks that ran again with their run or map, and the reason of the first failed
    /// retry.
    message: String,
}

impl From<BulkStatus> for Operation {
    fn from(status: BulkStatus) -> Self {
        Self {
            operation_id: status.id.to_string(),
            action: status.action.into(),
            status: StatusName(status.status),
            matched: status.matched,
            done: status.done,
            failed: status.failed,
            message: status.message,
        }
    }
}

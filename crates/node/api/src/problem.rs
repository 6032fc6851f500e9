//! Errors of the API in the form of RFC 9457: a problem with a stable code, the field, and a page that explains it.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use tasklane_ports::StoreError;
use tasklane_runtime::node::{NamedDocumentError, PolicyError, ScheduleError, SubmitError, WorkflowError};
use tasklane_runtime::request::FieldError;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::model::StatusName;

/// A kind of problem. Codes are part of the API and never change.
#[derive(Debug)]
pub(crate) struct ProblemKind {
    pub(crate) code: &'static str,
    pub(crate) status: u16,
    pub(crate) title: &'static str,
    /// The page under `docs/errors`, which the server gives out too.
    pub(crate) page: &'static str,
}

macro_rules! codes {
    ($($name:ident $code:literal $status:literal $title:literal;)*) => {
        $(pub(crate) static $name: ProblemKind = ProblemKind {
            code: $code,
            status: $status,
            title: $title,
            page: include_str!(concat!("../../../../docs/errors/", $code, ".md")),
        };)*

        /// All kinds.
        pub(crate) static CODES: &[&ProblemKind] = &[$(&$name),*];
    };
}

codes! {
    INVALID_JSON "invalid_json" 400 "The body is not valid JSON";
    UNKNOWN_FIELD "unknown_field" 422 "A field is not known";
    MISSING_FIELD "missing_field" 422 "A required field is missing";
    DUPLICATE_FIELD "duplicate_field" 422 "A field is given twice";
    WRONG_TYPE "wrong_type" 422 "A field has the wrong type";
    INVALID_VALUE "invalid_value" 422 "A value is not allowed";
    CONFLICTING_FIELDS "conflicting_fields" 422 "Two fields exclude each other";
    PAYLOAD_TOO_LARGE "payload_too_large" 413 "The payload is too large";
    TOO_COSTLY "too_costly" 422 "The request is too costly";
    BODY_TOO_LARGE "body_too_large" 413 "The body is too large";
    BODY_TIMEOUT "body_timeout" 408 "The body arrived too slowly";
    UNSUPPORTED_MEDIA_TYPE "unsupported_media_type" 415 "The content type is not supported";
    INVALID_ID "invalid_id" 400 "The id is not valid";
    INVALID_NAME "invalid_name" 400 "The name is not valid";
    INVALID_NAMESPACE "invalid_namespace" 400 "The namespace is not valid";
    UNKNOWN_PARAMETER "unknown_parameter" 400 "A query parameter is not known";
    INVALID_PARAMETER "invalid_parameter" 400 "A query parameter is not valid";
    WAIT_TOO_LONG "wait_too_long" 400 "The wait is too long";
    UNAUTHORIZED "unauthorized" 401 "A token is required";
    USER_NOT_ALLOWED "user_not_allowed" 401 "The user is not allowed";
    CROSS_SITE "cross_site" 403 "Requests from other sites are refused";
    HOST_NOT_ALLOWED "host_not_allowed" 403 "The host name is not allowed";
    NAME_RESERVED "name_reserved" 403 "The name is reserved";
    ROUTE_NOT_FOUND "route_not_found" 404 "The path does not exist";
    TASK_NOT_FOUND "task_not_found" 404 "There is no such task";
    QUEUE_NOT_FOUND "queue_not_found" 404 "The queue has no tasks and no policy";
    WORKER_NOT_FOUND "worker_not_found" 404 "There is no such worker";
    OPERATION_NOT_FOUND "operation_not_found" 404 "There is no such operation";
    SCHEDULE_NOT_FOUND "schedule_not_found" 404 "There is no such schedule";
    WORKFLOW_NOT_FOUND "workflow_not_found" 404 "There is no such workflow";
    EXECUTOR_NOT_FOUND "executor_not_found" 404 "No executor is registered";
    ANALYZER_NOT_FOUND "analyzer_not_found" 404 "No analyzer is registered";
    RUN_NOT_FOUND "run_not_found" 404 "There is no such run";
    LOCK_NOT_HELD "lock_not_held" 404 "The lock is not held";
    METHOD_NOT_ALLOWED "method_not_allowed" 405 "The method is not allowed here";
    TASK_FINISHED "task_finished" 409 "The task has finished already";
    TASK_UNFINISHED "task_unfinished" 409 "The task has not finished";
    PAYLOAD_REMOVED "payload_removed" 409 "The task no longer has its payload";
    REQUEST_ID_REUSED "request_id_reused" 409 "The request id belongs to another request";
    POLICY_CONFLICT "policy_conflict" 409 "The policy has changed meanwhile";
    SCHEDULE_CONFLICT "schedule_conflict" 409 "The schedule is being changed";
    ALREADY_REGISTERED "already_registered" 409 "Another definition is registered";
    JOB_NOT_REMOVED "job_not_removed" 409 "The job could not be removed";
    WORKFLOW_CONFLICT "workflow_conflict" 409 "The workflow is being changed";
    LOCK_HELD "lock_held" 409 "Another owner holds the lock";
    QUEUE_FULL "queue_full" 429 "The queue is full";
    OVERLOADED "overloaded" 503 "The server is overloaded";
    ANSWER_TIMEOUT "answer_timeout" 503 "The request took too long";
    STORE_UNAVAILABLE "store_unavailable" 503 "The store is not available";
    STORE_LOST "store_lost" 503 "The files of the store are lost";
    STORE_FULL "store_full" 507 "The store is full";
    WORKER_UNAVAILABLE "worker_unavailable" 503 "The worker does not answer";
    INTERNAL "internal" 500 "The server failed";
}

/// How long to wait before asking again, where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An answer that names a fault.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    kind: &'static ProblemKind,
    detail: String,
    field: Option<String>,
    task_status: Option<StatusName>,
    current_version: Option<u64>,
    retry_after: Option<Duration>,
}

/// A problem (RFC 9457).
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
struct ProblemJson<'a> {
    /// Path of a page about this kind of problem, on this server.
    #[schema(format = "uri-reference", example = "/docs/errors/invalid_value")]
    r#type: String,
    /// The kind of problem, for people.
    title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The exact error, for people.
    detail: &'a str,
    /// The kind of problem, for programs. Never changes.
    #[schema(example = "invalid_value", pattern = "^[a-z_]+$")]
    code: &'a str,
    /// The path of the wrong field or parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "retryPolicy.maxRetries")]
    field: Option<&'a str>,
    /// The status of the task, if it is the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task_status: Option<StatusName>,
    /// The stored version, if the request named another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    current_version: Option<u64>,
    /// Seconds to wait before the same request may succeed, as in the header `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    retry_after: Option<u64>,
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = ProblemJson {
            r#type: format!("/docs/errors/{}", self.kind.code),
            title: self.kind.title,
            status: self.kind.status,
            detail: &self.detail,
            code: self.kind.code,
            field: self.field.as_deref(),
            task_status: self.task_status,
            current_version: self.current_version,
            retry_after: self.retry_after_seconds(),
        };
        json.serialize(serializer)
    }
}

impl PartialSchema for Problem {
    fn schema() -> RefOr<Schema> {
        ProblemJson::schema()
    }
}

impl ToSchema for Problem {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        ProblemJson::schemas(schemas);
    }
}

impl Problem {
    pub(crate) fn new(kind: &'static ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            field: None,
            task_status: None,
            current_version: None,
            retry_after: None,
        }
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        let field = field.into();
        self.field = (!field.is_empty()).then_some(field);
        self
    }

    pub(crate) fn task_status(mut self, status: tasklane_core::status::Status) -> Self {
        self.task_status = Some(StatusName(status));
        self
    }

    /// Says that the same request may succeed later.
    pub(crate) fn later(mut self) -> Self {
        self.retry_after = Some(RETRY_AFTER);
        self
    }

    /// When the same request may succeed, in whole seconds.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|after| (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1))
    }

    /// A query parameter that breaks a rule.
    pub(crate) fn parameter(name: &str, rule: impl Into<String>) -> Self {
        FieldError { field: name.to_owned(), code: INVALID_PARAMETER.code, message: rule.into() }.into()
    }

    pub(crate) fn overloaded(what: &str) -> Self {
        Self::new(&OVERLOADED, format!("the server has too many {what} at the moment")).later()
    }

    pub(crate) fn task_not_found() -> Self {
        Self::new(&TASK_NOT_FOUND, "no task of this namespace has this id")
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        let kind = CODES.iter().find(|kind| kind.code == error.code).copied().unwrap_or(&INVALID_VALUE);
        let detail = match error.field.as_str() {
            "" => error.message,
            field => format!("{field}: {}", error.message),
        };
        Self::new(kind, detail).field(error.field)
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::PolicyConflict { current, expected, .. } => {
                let detail = format!("the policy is at version {current}, not {expected}");
                Self {
                    current_version: Some(*current),
                    ..Self::new(&POLICY_CONFLICT, detail).field("version")
                }
            }
            StoreError::TooLarge { what, size, max } => Self::new(
                &PAYLOAD_TOO_LARGE,
                format!("{what} is too large for the store: {size}, at most {max}"),
            ),
            StoreError::Full { .. } => Self::new(&STORE_FULL, "the store is full").later(),
            StoreError::Lost { reason } => Self::new(&STORE_LOST, reason.clone()).later(),
            // The owner of a lane is the server's own business: the client repeats its request.
            StoreError::Unavailable { .. }
            | StoreError::Fenced { .. }
            | StoreError::OutOfOrder { .. }
            | StoreError::ClaimLost { .. } => {
                tracing::warn!(%error, "store not available to the API");
                Self::new(&STORE_UNAVAILABLE, "the store cannot be used at the moment").later()
            }
            StoreError::Refused { .. } | StoreError::Corrupt { .. } => {
                tracing::error!(%error, "store failed the API");
                Self::new(&INTERNAL, "the store cannot be used; the log of the server has the details")
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

impl From<PolicyError> for Problem {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Invalid(error) => error.into(),
            PolicyError::Store(error) => error.into(),
        }
    }
}

impl From<ScheduleError> for Problem {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Invalid(error) => error.into(),
            ScheduleError::NotFound => {
                Self::new(&SCHEDULE_NOT_FOUND, "no schedule of this namespace has this name")
            }
            ScheduleError::Conflict(detail) => Self::new(&SCHEDULE_CONFLICT, detail),
            ScheduleError::Refused(error) => error.into(),
            ScheduleError::Store(error) => error.into(),
        }
    }
}

impl From<NamedDocumentError> for Problem {
    fn from(error: NamedDocumentError) -> Self {
        match error {
            NamedDocumentError::Invalid(error) => error.into(),
            NamedDocumentError::Exists => Self::new(
                &ALREADY_REGISTERED,
                "a different definition is registered for this task type; `replace` replaces it",
            ),
            NamedDocumentError::Crowded => Self::new(&ALREADY_REGISTERED, error.to_string()),
            NamedDocumentError::Store(error) => error.into(),
        }
    }
}

impl From<WorkflowError> for Problem {
    fn from(error: WorkflowError) -> Self {
        match error {
            WorkflowError::Invalid(error) => error.into(),
            WorkflowError::NotFound => {
                Self::new(&WORKFLOW_NOT_FOUND, "no workflow of this namespace has this name")
            }
            WorkflowError::Crowded => Self::new(&WORKFLOW_CONFLICT, error.to_string()),
            WorkflowError::Refused(error) => error.into(),
            WorkflowError::Store(error) => error.into(),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid(error) => error.into(),
            SubmitError::QueueFull { queue, retry_after } => {
                let detail = format!("the number of waiting tasks in queue {} is at its limit", queue.queue);
                Self { retry_after: Some(retry_after), ..Self::new(&QUEUE_FULL, detail).field("queue") }
            }
            SubmitError::RequestIdReused { request_id } => {
                let detail = format!("requestId {request_id:?} belongs to another request");
                Self::new(&REQUEST_ID_REUSED, detail).field("requestId")
            }
            SubmitError::Store(error) => Self::from(&*error),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tasklane\""));
            // A client that is not let in has no use for its connection, which another client may need.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/errors");
        let pages = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let pages: BTreeSet<String> = pages.map(|name| name.into_string().unwrap()).collect();
        let codes: BTreeSet<String> = CODES.iter().map(|kind| format!("{}.md", kind.code)).collect();
        assert_eq!(pages, codes);
        for kind in CODES {
            assert!(kind.page.starts_with(&format!("# {}\n", kind.code)), "{}", kind.code);
            assert!(kind.page.contains(&format!("Status {}.", kind.status)), "{}", kind.code);
        }
    }

    #[test]
    fn codes_of_requests_are_codes_of_the_api() {
        for code in tasklane_runtime::request::code::ALL {
            assert!(CODES.iter().any(|kind| kind.code == code), "{code}");
        }
    }
}

//! Requests for tasks: checked while they are parsed, and turned into tasks for the store.
//!
//! A request is parsed once, straight into its types. A fault of it is reported as a [`FieldError`]: the
//! field, a stable code, and the rule. The same rules hold for requests that a program builds itself:
//! [`TaskRequest::into_task`] checks the rules that the types cannot.

mod analyzer;
mod custom_types;
mod depth;
mod duration;
mod error;
mod exact;
mod expressions;
mod fingerprint;
mod flow;
mod json;
mod limits;
mod map;
mod render;
mod schedule;
mod schema;
mod task;
mod template;
mod types;
mod webhook;
mod workflow;

pub use analyzer::{Analysis, AnalysisVerdict, Analyzer};
pub use custom_types::{CustomType, RunAs};
pub use depth::{JSON_DEPTH_MAX, too_deep};
pub use duration::{Positive, Span, parse_span};
pub use error::{FieldError, code};
pub use exact::check_readable;
pub(crate) use exact::{parse as parse_exact, write as write_exact};
pub(crate) use expressions::{
    check_run_unrendered, check_unrendered, check_workflow_unrendered, render_composite_texts,
    render_payload, render_texts,
};
pub use flow::{ConcurrencyJson, LIMIT_MAX, LIMITS_MAX, RateJson, UniqueJson, objects};
pub use json::{Entries, Moment, Object, RETRIES_MAX, Ranged, canonical, parse_time, read_json};
pub use limits::{
    RequestLimits, SYSTEM_PREFIX, check_key, check_labels, check_not_system, check_request_id,
    shown_request_id,
};
pub(crate) use map::check_count;
pub use map::{CHILDREN_MAX, MapOver, MapRequest, MapSource, Tolerance};
pub(crate) use render::{Context, Operand, Scope, holds, payload_of, render_value};
pub use schedule::{
    DialectName, FAILURES_MAX, MissedName, OverlapName, Preview, PreviewRequest, ScheduleRequest,
    TIMES_COUNT, TIMES_MAX, Target, times_of,
};
pub use schema::{CHECK_STEPS_MAX, SCHEMA_STEPS_MAX};
pub use task::{Placement, RetryRequest, TaskRequest};
pub use template::TEMPLATE_LEN_MAX;
pub(crate) use types::{BUILT_IN, slip};
pub use webhook::{
    OF_SCHEDULES, OF_TASKS, OccasionName, WEBHOOK_URL_LEN_MAX, WEBHOOKS_MAX, WebhookJson, check_url, webhooks,
};
pub(crate) use webhook::{merge, same_url};
pub use workflow::{NODES_MAX, RunRequest, Workflow, WorkflowNode};
pub(crate) use workflow::{changed_nodes, node_request};

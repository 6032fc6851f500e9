//! The bodies of the API's requests and answers, in the words of its users.

mod bulk;
mod custom_types;
mod explain;
mod lock;
mod logs;
mod queue;
mod scalar;
mod schedule;
mod stats;
mod task;
mod webhook;
mod worker;
mod workflow;

pub(crate) use bulk::{BulkRequest, BulkStarted, Operation, parse_status};
pub(crate) use custom_types::{AnalyzerPage, ExecutorPage, Job, JobRemoved, TypeDefinition};
pub(crate) use explain::{ExplainedTask, WorkerNames};
pub(crate) use lock::{LockOut, LockPage, LockRequest};
pub(crate) use logs::{LogEntry, LogPage, tail};
pub(crate) use queue::{KeyOut, KeyPage, PutQueue, Queue, QueuePage};
pub(crate) use scalar::{AnyJson, Seconds, StatusName, Time};
pub(crate) use schedule::{
    Backfill, BackfillRequest, FireHistory, NextTimes, Schedule, SchedulePage, Triggered, last_task,
};
pub(crate) use stats::{CountsByStatus, Ready, Stats};
pub(crate) use task::{Attempt, AttemptPage, ChildPage, Created, RetryJson, Task, TaskPageJson};
pub(crate) use webhook::{
    Delivery, DeliveryPage, EndpointPage, EndpointRequest, TestRequest, TestStarted, WebhookEndpoint,
    WebhookOut, WebhookSecret,
};
pub(crate) use worker::{PatchWorker, Worker, WorkerList};
pub(crate) use workflow::{RunPage, RunRetried, RunStarted, Workflow, WorkflowPage, WorkflowRun};

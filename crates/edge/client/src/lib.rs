#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod bulk;
mod client;
mod custom_types;
mod error;
mod list;
mod lock;
mod logs;
mod queue;
mod schedule;
mod sse;
mod stats;
mod stream;
mod submit;
mod task;
mod tasks;
mod webhook;
mod worker;
mod workflow;

pub use bulk::{BulkAction, Operation, TaskFilter};
pub use client::{Client, ClientBuilder};
pub use custom_types::{DefinitionKind, Job, TypeDefinition};
pub use error::{Error, Problem};
pub use list::{TaskPage, TaskQuery};
pub use lock::Lock;
pub use logs::{LogChunk, LogFollow, LogItem, LogPage, LogStream};
pub use queue::{Counts, Key, KeyPage, KeyRate, Queue};
pub use schedule::{Backfill, Fire, LastRun, NextTime, Schedule};
pub use stats::{Lane, Process, Stats};
pub use stream::{Event, EventFollow, EventItem};
pub use submit::{BatchItem, Concurrency, Rate, RetryPolicy, Submitted, TaskRequest, Unique};
pub use task::{Attempt, Explanation, Progress, Reason, Status, Task, TaskError, TaskResult};
pub use tasks::{Retried, RetryOptions};
pub use webhook::{Delivery, PreviousSecret, Webhook, WebhookEndpoint, WebhookSecret};
pub use worker::{Worker, WorkerChange, WorkerLoad};
pub use workflow::{RunNode, RunRetried, RunStarted, Workflow, WorkflowRun};

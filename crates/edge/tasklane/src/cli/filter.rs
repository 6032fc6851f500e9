//! The filter of tasks for lists and bulk actions.

use jiff::Timestamp;
use tasklane_client::{Status, TaskFilter, TaskQuery};

use super::value;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Filter")]
pub(crate) struct Filter {
    /// Only these states, such as FAILED,CANCELLED
    #[arg(long, short, value_parser = value::status, value_delimiter = ',')]
    status: Vec<Status>,

    /// Only this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,

    /// Only this queue
    #[arg(long, short)]
    queue: Option<String>,

    /// Only exactly this name
    #[arg(long)]
    name: Option<String>,

    /// Only this current or last worker
    #[arg(long)]
    worker: Option<String>,

    /// Only children and retries of this task
    #[arg(long, value_name = "ID")]
    parent: Option<String>,

    /// Only created at this time or later: 2030-01-31T12:00:00Z, or a time ago, such as 2h
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    created_after: Option<Timestamp>,

    /// Only created before this time
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    created_before: Option<Timestamp>,

    /// Only with this pair; may be repeated
    #[arg(long, short, value_parser = value::pair, value_name = "KEY=VALUE")]
    metadata: Vec<(String, String)>,
}

impl Filter {
    pub(crate) fn into_query(self, limit: u32) -> TaskQuery {
        TaskQuery {
            statuses: self.status,
            task_type: self.task_type,
            queue: self.queue,
            name: self.name,
            worker: self.worker,
            parent: self.parent,
            created_after: self.created_after,
            created_before: self.created_before,
            metadata: self.metadata,
            limit: Some(limit),
        }
    }

    pub(crate) fn into_filter(self) -> TaskFilter {
        TaskFilter {
            status: self.status,
            task_type: self.task_type,
            queue: self.queue,
            name: self.name,
            worker: self.worker,
            parent: self.parent,
            created_after: self.created_after,
            created_before: self.created_before,
            metadata: self.metadata.into_iter().collect(),
        }
    }
}

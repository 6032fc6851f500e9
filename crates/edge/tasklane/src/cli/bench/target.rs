//! The target of a run: a server over REST, or a Tasklane in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use jiff::Timestamp;
use serde_json::json;
use tasklane_client::{BatchItem, Client, EventItem, TaskQuery, TaskRequest};
use tasklane_core::id::{Name, QueueKey};
use tasklane_core::policy::{Concurrency, ConcurrencyLimit, QueuePolicy, WhenReached};
use tasklane_core::status::Status;
use tasklane_core::task::Priority;
use tasklane_ports::{PutPolicy, TaskFilter, TaskList};
use tasklane_runtime::node::{ProcessUsage, StreamItem};
use tokio::task::JoinHandle;

use tasklane::{Payload, Tasklane};

use super::report::Usage;
use super::{Args, Scenario};

/// See the [module](self).
pub(super) enum Target {
    Rest(Client),
    Embedded(Box<Embedded>),
}

pub(super) struct Embedded {
    tasklane: Tasklane,
    /// Removed with its data.
    _folder: Option<tempfile::TempDir>,
}

/// A task that was measured. Times are those of the server.
pub(super) struct TaskTimes {
    pub(super) id: String,
    pub(super) created: Timestamp,
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
}

/// The resources that a target has used since its start.
#[derive(Clone, Copy, Default)]
pub(super) struct ResourceUse {
    pub(super) usage: Usage,
    pub(super) commits: u64,
    pub(super) written: u64,
}

/// The times at which events reported the ends of tasks, by task.
pub(super) type Ends = Arc<Mutex<HashMap<String, Instant>>>;

/// The namespace that is measured in this process.
fn namespace() -> Name {
    Name::new("default").expect("it is a name")
}

impl Target {
    pub(super) async fn embedded(args: &Args) -> Result<Self> {
        let (folder, path) = if let Some(path) = &args.data_dir {
            (None, path.clone())
        } else {
            let folder = tempfile::Builder::new().prefix("tasklane-bench-").tempdir_in(".")?;
            let path = folder.path().to_path_buf();
            (Some(folder), path)
        };
        let mut builder = Tasklane::builder().data_dir(path);
        if let Some(capacity) = args.capacity {
            builder = builder.capacity(capacity);
        }
        let tasklane = builder.start().await?;
        Ok(Self::Embedded(Box::new(Embedded { tasklane, _folder: folder })))
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Rest(client) => client.url().to_owned(),
            Self::Embedded(_) => "in this process".to_owned(),
        }
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Rest(_) => Ok(()),
            Self::Embedded(embedded) => Ok(embedded.tasklane.close().await?),
        }
    }

    /// Hands in a batch.
    pub(super) async fn submit_batch(&self, request: &TaskRequest, count: u64) -> Result<()> {
        let count = usize::try_from(count)?;
        match self {
            Self::Rest(client) => {
                for answer in client.submit_batch(&vec![request; count]).await? {
                    if let BatchItem::Refused(problem) = answer {
                        bail!("a task was refused: {problem}");
                    }
                }
            }
            Self::Embedded(embedded) => {
                let requests = vec![own(request)?; count];
                for answer in embedded.tasklane.submit_all(requests).await {
                    answer?;
                }
            }
        }
        Ok(())
    }

    /// Hands in tasks that differ.
    pub(super) async fn submit_all(&self, requests: &[TaskRequest]) -> Result<()> {
        match self {
            Self::Rest(client) => {
                for answer in client.submit_batch(requests).await? {
                    if let BatchItem::Refused(problem) = answer {
                        bail!("a task was refused: {problem}");
                    }
                }
            }
            Self::Embedded(embedded) => {
                let requests = requests.iter().map(own).collect::<Result<Vec<_>>>()?;
                for answer in embedded.tasklane.submit_all(requests).await {
                    answer?;
                }
            }
        }
        Ok(())
    }

    /// Hands in one task and answers its id.
    pub(super) async fn submit(&self, request: &TaskRequest) -> Result<String> {
        match self {
            Self::Rest(client) => Ok(client.submit(request).await?.task_id),
            Self::Embedded(embedded) => Ok(embedded.tasklane.submit(own(request)?).await?.id.to_string()),
        }
    }

    /// Hands in one task and waits for its end.
    pub(super) async fn submit_and_wait(&self, request: &TaskRequest) -> Result<()> {
        const WAIT: Duration = Duration::from_secs(30);
        match self {
            Self::Rest(client) => {
                client.submit_and_wait(request, WAIT).await?;
            }
            Self::Embedded(embedded) => {
                let submitted = embedded.tasklane.submit(own(request)?).await?;
                embedded.tasklane.wait(submitted.id, WAIT).await?;
            }
        }
        Ok(())
    }

    /// Tasks of a queue that are not finished, and that are.
    pub(super) async fn counts(&self, queue: &str) -> Result<(u64, u64)> {
        match self {
            Self::Rest(client) => {
                let queue = client.queue(queue).await?;
                let finished = [
                    tasklane_client::Status::Success,
                    tasklane_client::Status::Failed,
                    tasklane_client::Status::Cancelled,
                ];
                Ok((queue.unfinished(), finished.iter().map(|status| queue.count(*status)).sum()))
            }
            Self::Embedded(embedded) => {
                let counts = embedded.tasklane.node().queue(&key(queue)?).await?.counts;
                let finished = [Status::Success, Status::Failed, Status::Cancelled];
                let finished = finished.iter().map(|status| counts[usize::from(status.code())]).sum();
                Ok((counts.iter().sum::<u64>() - finished, finished))
            }
        }
    }

    /// Stops or lets a queue run.
    pub(super) async fn pause(&self, queue: &str, paused: bool) -> Result<()> {
        match self {
            Self::Rest(client) if paused => _ = client.pause_queue(queue, true).await?,
            Self::Rest(client) => _ = client.resume_queue(queue).await?,
            Self::Embedded(embedded) => {
                let (node, queue) = (embedded.tasklane.node(), key(queue)?);
                let current = node.queue(&queue).await?.policy;
                let mut policy = current.policy;
                policy.paused = paused;
                node.put_policy(PutPolicy { queue, expected: current.version, policy }).await?;
            }
        }
        Ok(())
    }

    /// Limits a queue by the key that tasks of the benchmark have in their metadata, or not at all.
    pub(super) async fn set_key_limit(&self, queue: &str, limit: Option<u32>, paused: bool) -> Result<()> {
        const KEY: &str = "{{ metadata.key }}";
        match self {
            Self::Rest(client) => {
                let version = client.queue(queue).await?.version;
                let limits: Vec<_> =
                    limit.iter().map(|limit| json!({ "key": KEY, "limit": limit })).collect();
                let policy = serde_json::from_value(json!({ "paused": paused, "concurrency": limits }))?;
                client.put_queue(queue, version, &policy).await?;
            }
            Self::Embedded(embedded) => {
                let (node, queue) = (embedded.tasklane.node(), key(queue)?);
                let of_key = |limit| ConcurrencyLimit {
                    key: Some(KEY.to_owned()),
                    concurrency: Concurrency { limit, when_reached: WhenReached::Wait },
                };
                let concurrency = limit.map(of_key).into_iter().collect();
                let expected = node.queue(&queue).await?.policy.version;
                let policy = QueuePolicy { paused, concurrency, ..QueuePolicy::default() };
                node.put_policy(PutPolicy { queue, expected, policy }).await?;
            }
        }
        Ok(())
    }

    /// Waits until a task runs.
    pub(super) async fn until_running(&self, id: &str) -> Result<()> {
        loop {
            let running = match self {
                Self::Rest(client) => client.task(id).await?.status == tasklane_client::Status::Running,
                Self::Embedded(embedded) => {
                    let view = embedded.tasklane.node().task(&namespace(), id.parse()?).await?;
                    view.is_some_and(|view| view.row.state.status == Status::Running)
                }
            };
            if running {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Cancels all that is left in a queue, and waits until that is done.
    pub(super) async fn cancel_queue(&self, queue: &str) -> Result<()> {
        // In this process all goes with the folder.
        if let Self::Rest(client) = self {
            let filter = tasklane_client::TaskFilter {
                queue: Some(queue.to_owned()),
                ..tasklane_client::TaskFilter::default()
            };
            client.bulk(tasklane_client::BulkAction::Cancel, &filter).await?;
            while self.counts(queue).await?.0 > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// Attempts at once.
    pub(super) async fn capacity(&self) -> Result<u32> {
        let capacity = match self {
            Self::Rest(client) => client.stats().await?.capacity,
            Self::Embedded(embedded) => embedded.tasklane.node().stats().await?.capacity,
        };
        Ok(u32::try_from(capacity)?.max(1))
    }

    pub(super) async fn used(&self) -> Result<ResourceUse> {
        match self {
            Self::Rest(client) => {
                let stats = client.stats().await?;
                Ok(ResourceUse {
                    usage: Usage {
                        cpu_seconds: stats.process.cpu_seconds,
                        anon_bytes: stats.process.anon_bytes,
                        peak_bytes: stats.process.peak_bytes,
                    },
                    commits: stats.lanes.iter().map(|lane| lane.commits).sum(),
                    written: stats.lanes.iter().map(|lane| lane.written).sum(),
                })
            }
            Self::Embedded(embedded) => {
                let stats = embedded.tasklane.node().stats().await?;
                Ok(ResourceUse {
                    usage: usage(stats.process),
                    commits: stats.lanes.iter().map(|lane| lane.commits).sum(),
                    written: stats.lanes.iter().map(|lane| lane.groups).sum(),
                })
            }
        }
    }

    /// The resources that this process has used, if it is not the target itself.
    pub(super) fn client_usage(&self) -> Option<Usage> {
        matches!(self, Self::Rest(_)).then(|| usage(ProcessUsage::now()))
    }

    /// The newest tasks of a queue, up to `limit`.
    pub(super) async fn newest(&self, queue: &str, since: Timestamp, limit: usize) -> Result<Vec<TaskTimes>> {
        match self {
            Self::Rest(client) => {
                let query = TaskQuery {
                    queue: Some(queue.to_owned()),
                    created_after: Some(since),
                    limit: Some(1000),
                    ..TaskQuery::default()
                };
                let mut tasks = std::pin::pin!(client.list_all(query));
                let mut measured = Vec::new();
                while measured.len() < limit
                    && let Some(task) = tasks.try_next().await?
                {
                    measured.push(TaskTimes {
                        id: task.task_id,
                        created: task.created_at.context("a task has no time of its creation")?,
                        started: task.started_at,
                        finished: task.finished_at,
                    });
                }
                Ok(measured)
            }
            Self::Embedded(embedded) => {
                let node = embedded.tasklane.node();
                let mut list = TaskList {
                    filter: TaskFilter {
                        namespace: Some(namespace()),
                        queue: Some(Name::new(queue)?),
                        created_from: Some(own_time(since)),
                        ..TaskFilter::default()
                    },
                    after: None,
                    limit: 1000,
                };
                let mut measured = Vec::new();
                loop {
                    let page = node.list(list.clone()).await?;
                    for row in page.tasks {
                        let state = &row.state;
                        measured.push(TaskTimes {
                            id: row.id.to_string(),
                            created: their_time(state.created_at)?,
                            started: state.started_at.map(their_time).transpose()?,
                            finished: state.finished_at.map(their_time).transpose()?,
                        });
                    }
                    list.after = page.next;
                    if list.after.is_none() || measured.len() >= limit {
                        return Ok(measured);
                    }
                }
            }
        }
    }

    /// Notes when the event of each task's end arrives: the end is committed by then.
    pub(super) fn follow_ends(&self) -> (Ends, JoinHandle<()>) {
        let ends = Ends::default();
        let noted = Arc::clone(&ends);
        let note = move |id: String| {
            let mut ends = noted.lock().unwrap_or_else(PoisonError::into_inner);
            ends.entry(id).or_insert_with(Instant::now);
        };
        let following = match self {
            Self::Rest(client) => {
                let mut events = client.events(None);
                tokio::spawn(async move {
                    while let Some(Ok(item)) = events.next().await {
                        if let EventItem::Event(event) = item
                            && event.status.is_final()
                        {
                            note(event.task_id);
                        }
                    }
                })
            }
            Self::Embedded(embedded) => {
                let mut events = embedded.tasklane.node().events(None);
                tokio::spawn(async move {
                    while let Some(item) = events.next().await {
                        if let StreamItem::Event(_, event) = item
                            && event.status.is_final()
                        {
                            note(event.task.to_string());
                        }
                    }
                })
            }
        };
        (ends, following)
    }
}

/// The task that each scenario submits.
pub(super) fn request(args: &Args) -> TaskRequest {
    let (task_type, payload) = match args.scenario {
        Scenario::Shell => ("SHELL", SHELL.to_owned()),
        _ => ("NOOP", "x".repeat(usize::try_from(args.payload_bytes).unwrap_or(0))),
    };
    TaskRequest { queue: Some(args.queue.clone()), ..TaskRequest::new("bench", task_type, payload) }
}

/// The script of the shell scenario.
pub(super) const SHELL: &str = "echo done";

fn key(queue: &str) -> Result<QueueKey> {
    Ok(QueueKey::new(namespace(), Name::new(queue)?))
}

fn own(request: &TaskRequest) -> Result<tasklane::TaskRequest> {
    let payload = match &request.payload {
        serde_json::Value::String(text) => Payload::Text(text.clone()),
        other => Payload::Json(other.to_string()),
    };
    let (name, task_type) = (request.task_name.clone(), Name::new(&request.task_type)?);
    let mut own = tasklane::TaskRequest::new(name, task_type, payload);
    own.metadata.clone_from(&request.metadata);
    own.priority = request.priority.and_then(Priority::new).unwrap_or_default();
    own.execution_timeout = request.execution_timeout;
    if let Some(queue) = &request.queue {
        own.queue = Name::new(queue)?;
    }
    Ok(own)
}

fn usage(usage: ProcessUsage) -> Usage {
    Usage { cpu_seconds: usage.cpu.as_secs_f64(), anon_bytes: usage.anon_bytes, peak_bytes: usage.peak_bytes }
}

fn own_time(time: Timestamp) -> tasklane_core::time::Timestamp {
    tasklane_core::time::Timestamp::from_micros(time.as_microsecond())
}

fn their_time(time: tasklane_core::time::Timestamp) -> Result<Timestamp> {
    Ok(Timestamp::from_microsecond(time.as_micros())?)
}

/// The wall clock's time of an instant of this process.
pub(super) fn wall(at: Instant) -> Result<Timestamp> {
    let ago = at.elapsed();
    Ok(Timestamp::try_from(SystemTime::now())?.checked_sub(ago)?)
}

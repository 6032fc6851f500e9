//! Workflows: their operations in the API, and those of their runs.

use serde_json::value::RawValue;
use tasklane_core::id::{Name, TaskId};
use tasklane_core::task::{TaskResult, TaskRow};
use tasklane_ports::{DocumentKey, DocumentKind, StoreError, TaskView};
use tasklane_workflow::{Counts, NodeEnd, NodeState, Skip};

use crate::request::{FieldError, RunRequest, Workflow, canonical};

use super::composite::driver::composite_request;
use super::composite::workflow_run::{RunNow, RunSpec, WORKFLOW_TYPE, state_name};
use super::custom_types::{NamedDocument, NamedDocumentError};
use super::submit::give_way;
use super::{Node, SubmitError, Submitted};

/// Why an operation on a workflow or a run failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The request is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// There is no such workflow.
    #[error("there is no such workflow")]
    NotFound,
    /// Others change it at the same time.
    #[error("other changes of the workflow came first; try again")]
    Crowded,
    /// The run was refused.
    #[error(transparent)]
    Refused(SubmitError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) fn refused(error: SubmitError) -> WorkflowError {
    match error {
        SubmitError::Invalid(error) => WorkflowError::Invalid(error),
        error => WorkflowError::Refused(error),
    }
}

impl From<NamedDocumentError> for WorkflowError {
    fn from(error: NamedDocumentError) -> Self {
        match error {
            NamedDocumentError::Invalid(error) => Self::Invalid(error),
            NamedDocumentError::Exists | NamedDocumentError::Crowded => Self::Crowded,
            NamedDocumentError::Store(error) => Self::Store(error),
        }
    }
}

/// A run, with all its nodes.
#[derive(Debug)]
pub struct RunView {
    /// The task that drives it.
    pub view: TaskView,
    /// The display name of the workflow.
    pub name: String,
    /// The workflow, if the request names one.
    pub workflow: Option<String>,
    /// The run that it has taken results over from.
    pub takes_over: Option<TaskId>,
    /// Its input, as JSON.
    pub input: String,
    /// Number of nodes by state.
    pub counts: Counts,
    /// The nodes, in the order of the definition.
    pub nodes: Vec<NodeView>,
}

/// A node of a run.
#[derive(Debug)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// The names of the nodes that it waits for.
    pub depends_on: Vec<String>,
    /// Its task's status, or `WAITING`, or `SKIPPED`.
    pub status: &'static str,
    /// Why it was skipped.
    pub reason: Option<String>,
    /// Its task.
    pub task: Option<TaskRow>,
    /// Whether an earlier run did it.
    pub taken_over: bool,
    /// The result of the task.
    pub result: Option<TaskResult>,
    /// Whether there is a result that is too large to be shown with all the others.
    pub result_left_out: bool,
}

/// Most bytes of results that are shown with a run, all together.
const RESULTS_BYTES_MAX: usize = 1 << 20;

fn key_of(namespace: &Name, id: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Workflow, namespace: namespace.clone(), id: id.clone() }
}

impl Node {
    /// Parses a request for a run.
    pub async fn read_run(&self, body: &[u8]) -> Result<RunRequest, FieldError> {
        self.read_sent(body, RunRequest::from_json).await
    }

    /// Puts a workflow. Returns it, and whether it is new. The same again changes nothing.
    pub async fn put_workflow(
        &self,
        namespace: &Name,
        id: &Name,
        body: &[u8],
    ) -> Result<(NamedDocument, bool), WorkflowError> {
        let workflow = self.read_sent(body, Workflow::from_json).await?;
        self.check_nodes(namespace, &workflow).await.map_err(refused)?;
        self.check_sent_nodes(namespace, &workflow).await.map_err(refused)?;
        self.put_named(key_of(namespace, id), body, true).await.map_err(WorkflowError::from)
    }

    /// A workflow.
    pub async fn workflow(&self, namespace: &Name, id: &Name) -> Result<Option<NamedDocument>, StoreError> {
        Ok(self.document(&key_of(namespace, id)).await?.map(NamedDocument::from))
    }

    /// Workflows by name.
    pub async fn workflows(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<NamedDocument>, StoreError> {
        self.list_named(DocumentKind::Workflow, namespace, after, limit).await
    }

    /// Removes a workflow; its runs go on. Returns whether there was one.
    pub async fn delete_workflow(&self, namespace: &Name, id: &Name) -> Result<bool, WorkflowError> {
        self.delete_named(key_of(namespace, id)).await.map_err(WorkflowError::from)
    }

    /// Reads a workflow that was checked before.
    pub(super) async fn read_stored(&self, json: &str) -> Result<Workflow, FieldError> {
        let (bytes, json) = (json.len(), json.to_owned());
        self.by_length(bytes, move || Workflow::from_stored(&json)).await
    }

    /// Whether the tasks of nodes could be accepted now.
    pub(super) async fn check_nodes(&self, namespace: &Name, workflow: &Workflow) -> Result<(), SubmitError> {
        for (at, node) in workflow.nodes.iter().enumerate() {
            give_way(at).await;
            self.check_task(namespace, &node.task).await.map_err(|error| match error {
                SubmitError::Invalid(error) => SubmitError::Invalid(error.below(&format!("nodes[{at}]"))),
                error => error,
            })?;
        }
        Ok(())
    }

    /// The task of a run.
    pub(super) async fn run_request(
        &self,
        namespace: &Name,
        request: RunRequest,
    ) -> Result<crate::request::TaskRequest, WorkflowError> {
        let stored = match &request.workflow {
            None => None,
            Some(id) => Some(self.workflow(namespace, id).await?.ok_or_else(|| {
                FieldError::invalid("workflow", "must be the name of a workflow that was put; there is none")
            })?),
        };
        let definition = stored.as_ref().map_or(&request.json, |stored| &stored.json);
        let workflow = self.read_stored(definition).await?;
        if stored.is_none() {
            self.check_nodes(namespace, &workflow).await.map_err(refused)?;
        }
        let name = request.workflow.as_ref().map_or(workflow.name, ToString::to_string);
        let bytes = definition.len().max(request.json.len());
        let json = request.json;
        let write = move || {
            let raw = |json: &str| RawValue::from_string(json.to_owned()).expect("it was read before");
            let spec = RunSpec {
                run: raw(&json),
                workflow: stored.as_ref().map(|stored| raw(&stored.json)),
                takes_over: None,
                changed: Vec::new(),
            };
            (serde_json::to_string(&spec).expect("a spec can be written"), canonical(&json))
        };
        let (payload, identity) = self.by_length(bytes, write).await;
        let mut task = composite_request(WORKFLOW_TYPE, &name, payload);
        task.identity = Some(identity);
        task.request_id = request.request_id;
        task.metadata = request.metadata;
        task.webhooks = request.webhooks;
        Ok(task)
    }

    /// Begins a run. Durable when it returns.
    pub async fn start_run(&self, namespace: &Name, request: RunRequest) -> Result<Submitted, WorkflowError> {
        self.check_run(namespace, &request).await?;
        let task = self.run_request(namespace, request).await?;
        let task = self.place(namespace, task).await.map_err(|error| match error {
            SubmitError::Invalid(error) if error.field == "payload" => {
                WorkflowError::Invalid(FieldError { field: "nodes".to_owned(), ..error })
            }
            SubmitError::Invalid(error) => WorkflowError::Invalid(error),
            error => WorkflowError::Refused(error),
        })?;
        let answer = self.submit_to(task.id.lane(), vec![task]).await.pop();
        answer.expect("one answer for one task").map_err(WorkflowError::Refused)
    }

    /// A run with all its nodes; `None` if there is no such run.
    pub async fn run_view(&self, namespace: &Name, id: TaskId) -> Result<Option<RunView>, StoreError> {
        let Some(mut view) = self.task(namespace, id).await? else { return Ok(None) };
        self.mark_cancelling(std::slice::from_mut(&mut view.row)).await?;
        if view.row.head.task_type.as_str() != WORKFLOW_TYPE {
            return Ok(None);
        }
        let spec = view.row.body.as_ref().and_then(|body| RunSpec::parse(body.payload.as_str()));
        let Some(spec) = spec else { return Ok(None) };
        let (mut now, rows) = self.run_now(&spec, id).await?;
        if view.row.state.status.is_final() {
            now.run.halt();
        }
        let rows =
            rows.into_iter().enumerate().map(|(node, row)| row.or_else(|| now.taken_over(node).cloned()));
        let mut nodes = node_views(&now, id, rows.collect());
        self.add_results(&mut nodes).await?;
        Ok(Some(RunView {
            name: now.name.clone(),
            workflow: workflow_of(&spec),
            takes_over: spec.takes_over,
            input: spec.input(),
            counts: now.run.counts(),
            nodes,
            view,
        }))
    }

    /// A run, as its task was given it.
    pub(super) async fn read_spec(&self, spec: &RunSpec) -> Result<RunNow, FieldError> {
        let (bytes, spec) = (spec.definition().len(), spec.clone());
        self.by_length(bytes, move || RunNow::new(&spec)).await
    }

    /// The states of the nodes of a run, and their tasks.
    pub(super) async fn run_now(
        &self,
        spec: &RunSpec,
        id: TaskId,
    ) -> Result<(RunNow, Vec<Option<TaskRow>>), StoreError> {
        let now = self.read_spec(spec).await;
        let mut now = now.map_err(|error| StoreError::corrupt(error.to_string()))?;
        let rows = now.read(self, id).await?;
        self.judge_conditions(&mut now, id).await?;
        Ok((now, rows))
    }

    /// Skips ready nodes whose condition does not hold, as the executor does.
    async fn judge_conditions(&self, now: &mut RunNow, id: TaskId) -> Result<(), StoreError> {
        loop {
            let ready = now.run.take_ready(usize::MAX);
            let asked: Vec<usize> =
                ready.into_iter().filter(|&node| now.workflow.nodes[node].when.is_some()).collect();
            if asked.is_empty() {
                return Ok(());
            }
            let known = now.known(self, id, &asked).await?;
            for node in asked {
                if let Ok(false) = now.wants(&known, node) {
                    now.run.ended(node, NodeEnd::Skipped(Skip::Condition));
                }
            }
        }
    }

    async fn add_results(&self, nodes: &mut [NodeView]) -> Result<(), StoreError> {
        let ended: Vec<(usize, TaskId)> = nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| node.task.as_ref().map(|task| (at, task)))
            .filter(|(_, task)| task.state.status.is_final())
            .map(|(at, task)| (at, task.id))
            .collect();
        let mut bytes = 0;
        for some in ended.chunks(super::composite::driver::LOOK) {
            if bytes > RESULTS_BYTES_MAX {
                for (at, _) in some {
                    nodes[*at].result_left_out = true;
                }
                continue;
            }
            let ids: Vec<TaskId> = some.iter().map(|(_, id)| *id).collect();
            for ((at, _), view) in some.iter().zip(self.views(&ids).await?) {
                let result = view.and_then(|view| view.result);
                bytes += result.as_ref().map_or(0, |result| result.data.len());
                if bytes <= RESULTS_BYTES_MAX {
                    nodes[*at].result = result;
                } else {
                    nodes[*at].result_left_out = result.is_some();
                }
            }
        }
        Ok(())
    }
}

/// The name of the workflow, if the request names one.
pub(super) fn workflow_of(spec: &RunSpec) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct NamedWorkflow {
        workflow: Option<String>,
    }
    serde_json::from_str::<NamedWorkflow>(spec.run.get()).ok().and_then(|named| named.workflow)
}

fn node_views(now: &RunNow, id: TaskId, rows: Vec<Option<TaskRow>>) -> Vec<NodeView> {
    let graph = &now.workflow.graph;
    let views = rows.into_iter().enumerate().map(|(node, task)| {
        let state = now.run.state(node);
        let is_child =
            |task: &TaskRow| task.state.child_of.as_ref().is_some_and(|child| child.composite == id);
        NodeView {
            name: graph.name(node).to_owned(),
            depends_on: graph.waits_for(node).iter().map(|&on| graph.name(on).to_owned()).collect(),
            status: state_name(state, task.as_ref()),
            reason: match state {
                NodeState::Ended(NodeEnd::Skipped(skip)) => Some(match skip {
                    Skip::Condition => "its condition does not hold".to_owned(),
                    Skip::Dependency(on) => format!("{} has not succeeded", graph.name(on)),
                    Skip::NothingFailed => "nothing that it waits for has failed".to_owned(),
                    Skip::Stopped => "the run was stopped before".to_owned(),
                }),
                _ => None,
            },
            taken_over: task.as_ref().is_some_and(|task| !is_child(task)),
            task,
            result: None,
            result_left_out: false,
        }
    });
    views.collect()
}

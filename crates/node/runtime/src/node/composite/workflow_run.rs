//! Driving a run of a workflow; `tasklane_workflow` describes its decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tasklane_core::id::TaskId;
use tasklane_core::invariant::Invariants;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Progress, TaskError, TaskRow};
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError, StoreError, TaskView};
use tasklane_workflow::{Counts, Graph, NodeEnd, NodeState, Run, Skip};

use crate::request::{Context, FieldError, Operand, TaskRequest, Workflow, holds, node_request, parse_exact};

use super::driver::{
    AGAIN_AFTER, ChildStart, CompositeOutcome, Drive, DriveError, Driver, EarlierComposite, PAGE,
    child_failed, unreadable,
};
use crate::node::Node;
use crate::node::workflows::workflow_of;

/// Task type and queue of runs.
pub const WORKFLOW_TYPE: &str = "tasklane.workflow";

/// The payload of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::node) struct RunSpec {
    /// The request, as it was sent.
    pub(in crate::node) run: Box<RawValue>,
    /// The workflow that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::node) workflow: Option<Box<RawValue>>,
    /// A run that this one takes over from: nodes that succeeded there are not repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::node) takes_over: Option<TaskId>,
    /// Nodes whose definition differs from that of the run before, or that wait for such a node: they run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::node) changed: Vec<String>,
}

impl RunSpec {
    pub(in crate::node) fn parse(payload: &str) -> Option<Self> {
        serde_json::from_str(payload).ok()
    }

    pub(in crate::node) fn workflow(&self) -> Result<Workflow, FieldError> {
        Workflow::from_stored(self.definition())
    }

    /// The definition that the run uses.
    pub(in crate::node) fn definition(&self) -> &str {
        self.workflow.as_ref().unwrap_or(&self.run).get()
    }

    /// Gives the run another definition. It keeps its name if the definition has none.
    pub(in crate::node) fn redefine(&mut self, json: &str) -> Result<(), FieldError> {
        type Fields = std::collections::BTreeMap<String, Box<RawValue>>;
        let wrong = |error: serde_json::Error| FieldError::invalid("definition", error.to_string());
        let (mut run, mut workflow): (Fields, Fields) = (
            serde_json::from_str(self.run.get()).map_err(wrong)?,
            serde_json::from_str(json).map_err(wrong)?,
        );
        if let Some(name) = run.get("name") {
            workflow.entry("name".to_owned()).or_insert_with(|| name.clone());
        }
        for field in ["nodes", "name", "onFailure", "deadline"] {
            run.remove(field);
        }
        self.run = serde_json::value::to_raw_value(&run).map_err(wrong)?;
        self.workflow = Some(serde_json::value::to_raw_value(&workflow).map_err(wrong)?);
        Ok(())
    }

    /// The input of the run, as JSON.
    pub(in crate::node) fn input(&self) -> String {
        #[derive(Deserialize)]
        struct Input {
            input: Option<Box<RawValue>>,
        }
        let input: Option<Input> = serde_json::from_str(self.run.get()).ok();
        input.and_then(|input| input.input).map_or_else(|| "null".to_owned(), |input| input.get().to_owned())
    }
}

/// A run as it is in the store.
#[derive(Debug)]
pub(in crate::node) struct RunNow {
    pub(in crate::node) workflow: Workflow,
    /// The display name of the run: that of its workflow, where the request names one.
    pub(in crate::node) name: String,
    pub(in crate::node) run: Run,
    /// The task of each node, in this run.
    tasks: Vec<Option<TaskId>>,
    /// Tasks that succeeded in an earlier run, by node.
    earlier: Vec<Option<TaskRow>>,
    input: Operand,
    takes_over: Option<TaskId>,
    /// Nodes whose definition differs from the run before.
    changed: Vec<String>,
    /// Tasks that have not ended, by id: of a node, or `None` for tombstones.
    open: HashMap<TaskId, Option<usize>>,
    /// The node, status and message of the first failure.
    failure: Option<(usize, Status, String)>,
}

fn end_of(status: Status) -> Option<NodeEnd> {
    match status {
        Status::Success => Some(NodeEnd::Succeeded),
        Status::Failed => Some(NodeEnd::Failed),
        Status::Cancelled => Some(NodeEnd::Cancelled),
        Status::Pending | Status::Scheduled | Status::Dispatched | Status::Running | Status::Retrying => None,
    }
}

impl RunNow {
    pub(in crate::node) fn new(spec: &RunSpec) -> Result<Self, FieldError> {
        let workflow = spec.workflow()?;
        Ok(Self {
            name: workflow_of(spec).unwrap_or_else(|| workflow.name.clone()),
            changed: spec.changed.clone(),
            run: Run::new(Arc::clone(&workflow.graph), workflow.on_failure, Invariants::ALL_ON),
            tasks: vec![None; workflow.nodes.len()],
            earlier: vec![None; workflow.nodes.len()],
            input: Operand::new(parse_exact(&spec.input()).unwrap_or_default()),
            takes_over: spec.takes_over,
            open: HashMap::new(),
            failure: None,
            workflow,
        })
    }

    /// The task of a node, if it has one: of this run, or taken over.
    fn task_of(&self, node: usize) -> Option<TaskId> {
        self.taken_over(node).map(|row| row.id).or(self.tasks[node])
    }

    /// The task that a node was taken over from.
    pub(in crate::node) fn taken_over(&self, node: usize) -> Option<&TaskRow> {
        self.earlier[node].as_ref().filter(|_| self.run.is_taken_over(node))
    }

    /// Reads the tasks of the run, and returns them by node.
    pub(in crate::node) async fn read(
        &mut self,
        node: &Node,
        id: TaskId,
    ) -> Result<Vec<Option<TaskRow>>, StoreError> {
        let graph = Arc::clone(&self.workflow.graph);
        self.run = Run::new(Arc::clone(&graph), self.workflow.on_failure, Invariants::ALL_ON);
        self.open.clear();
        let mut rows: Vec<Option<TaskRow>> = vec![None; graph.len()];
        let open = &mut self.open;
        node.each_child(id, |name, row| {
            // The oldest task counts, which comes last.
            if let Some(node) = graph.find(name) {
                rows[node] = Some(row);
            } else if !row.state.status.is_final() {
                open.insert(row.id, None);
            }
        })
        .await?;
        self.read_earlier(node).await?;
        for (node, row) in rows.iter().enumerate() {
            self.tasks[node] = row.as_ref().map(|row| row.id);
            if row.is_some() {
                self.run.begun(node);
            }
        }
        self.run.take_over(self.earlier.iter().map(Option::is_some).collect());
        for (node, row) in rows.iter().enumerate() {
            match row.as_ref().map(|row| (row, end_of(row.state.status))) {
                Some((row, Some(end))) => self.note_end(node, end, row),
                Some((row, None)) => _ = self.open.insert(row.id, Some(node)),
                None => {}
            }
        }
        Ok(rows)
    }

    /// Reads the tasks that succeeded in the runs that this one takes over from, the last of them first. An
    /// earlier success does not count where a later run has started the node again, or a node that it waits
    /// for.
    async fn read_earlier(&mut self, node: &Node) -> Result<(), StoreError> {
        let graph = Arc::clone(&self.workflow.graph);
        let mut renewed = vec![false; graph.len()];
        self.earlier = vec![None; graph.len()];
        for EarlierComposite { id: run, changed } in
            node.earlier_runs(self.takes_over, self.changed.clone()).await?
        {
            renew(&graph, changed.iter().filter_map(|name| graph.find(name)).collect(), &mut renewed);
            let mut rows: Vec<Option<TaskRow>> = vec![None; graph.len()];
            node.each_child(run, |name, row| {
                if let Some(node) = graph.find(name) {
                    rows[node] = Some(row);
                }
            })
            .await?;
            let begun: Vec<usize> = (0..graph.len()).filter(|&node| rows[node].is_some()).collect();
            for &node in &begun {
                let row = rows[node].take().filter(|row| row.state.status == Status::Success);
                if !renewed[node] && row.is_some() {
                    self.earlier[node] = row;
                }
            }
            renew(&graph, begun, &mut renewed);
        }
        Ok(())
    }

    fn note_end(&mut self, node: usize, end: NodeEnd, row: &TaskRow) {
        if end.is_failure() && self.failure.as_ref().is_none_or(|(first, ..)| node < *first) {
            let why = row.state.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
            self.failure = Some((node, row.state.status, why));
        }
        self.run.ended(node, end);
    }

    /// The values for expressions of some nodes.
    pub(in crate::node) async fn known(
        &self,
        node: &Node,
        id: TaskId,
        of: &[usize],
    ) -> Result<NodeResults, StoreError> {
        let mut named: Vec<usize> =
            of.iter().flat_map(|&of| self.workflow.nodes[of].names.iter().copied()).collect();
        named.sort_unstable();
        named.dedup();
        let with_task: Vec<(usize, TaskId)> =
            named.iter().filter_map(|&node| Some((node, self.task_of(node)?))).collect();
        let ids: Vec<TaskId> = with_task.iter().map(|(_, id)| *id).collect();
        let views = node.views(&ids).await?;
        let outcomes = named.into_iter().map(|node| (node, Operand::new(skipped())));
        let mut results: HashMap<usize, Operand> = outcomes.collect();
        for ((node, _), view) in with_task.into_iter().zip(views) {
            results.insert(node, Operand::new(view.map_or_else(skipped, |view| outcome(&view))));
        }
        Ok(NodeResults { results, id })
    }

    fn context(&self, known: &NodeResults, node: usize) -> Context {
        let graph = &self.workflow.graph;
        let names = self.workflow.nodes[node].names.iter();
        let nodes = names
            .filter_map(|named| Some((graph.name(*named).to_owned(), known.results.get(named)?.clone())));
        let mut context = Context::default();
        context.share("nodes", Operand::named(nodes));
        context.share("input", self.input.clone());
        context.put("run", json!({ "id": known.id.to_string(), "name": self.name }));
        context
    }

    /// Whether the condition of a node that may begin holds.
    pub(in crate::node) fn wants(&self, known: &NodeResults, node: usize) -> Result<bool, TaskError> {
        match &self.workflow.nodes[node].when {
            None => Ok(true),
            Some(when) => holds(when, &self.context(known, node)).map_err(|message| template_error(&message)),
        }
    }

    fn request(&self, known: &NodeResults, node: usize) -> Result<TaskRequest, TaskError> {
        let context = self.context(known, node);
        node_request(&self.workflow.nodes[node].task, &context).map_err(|message| template_error(&message))
    }
}

/// Marks nodes that were started again, and all nodes that wait for them.
fn renew(graph: &Graph, mut nodes: Vec<usize>, renewed: &mut [bool]) {
    while let Some(node) = nodes.pop() {
        if !std::mem::replace(&mut renewed[node], true) {
            nodes.extend(graph.awaited_by(node));
        }
    }
}

fn template_error(message: &str) -> TaskError {
    TaskError::new("expression", message).bounded()
}

/// Results of nodes.
#[derive(Debug)]
pub(in crate::node) struct NodeResults {
    results: HashMap<usize, Operand>,
    id: TaskId,
}

fn skipped() -> Value {
    json!({ "status": "SKIPPED" })
}

/// A task, as expressions see it. Absent values are left out.
fn outcome(view: &TaskView) -> Value {
    let state = &view.row.state;
    let mut outcome = json!({ "status": state.status.as_str(), "taskId": view.row.id.to_string() });
    if let Some(result) = &view.result {
        outcome["result"] = json!({ "code": result.code, "message": result.message });
        if let Ok(data) = parse_exact(&result.data) {
            outcome["result"]["data"] = data;
        }
    }
    if let Some(error) = &state.error {
        outcome["error"] = json!({ "code": error.code, "message": error.message });
    }
    outcome
}

/// Drives runs, in a server.
#[derive(Debug)]
pub(in crate::node) struct WorkflowExecutor {
    node: Node,
}

impl WorkflowExecutor {
    /// Over the node that also accepts the runs.
    pub(in crate::node) fn new(node: Node) -> Self {
        Self { node }
    }
}

fn spec_of(dispatch: &Dispatch) -> Result<RunSpec, ExecutorError> {
    let spec = dispatch.body.as_ref().and_then(|body| RunSpec::parse(body.payload.as_str()));
    spec.ok_or_else(|| ExecutorError::BadPayload { reason: "is not a run of a workflow".to_owned() })
}

#[async_trait]
impl Executor for WorkflowExecutor {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        spec_of(dispatch).map(drop)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let spec = spec_of(dispatch)?;
        let driver = Driver::of(self.node.clone(), dispatch).await?;
        Ok(Box::new(RunExecution { driver, spec }))
    }
}

#[derive(Debug)]
struct RunExecution {
    driver: Driver,
    spec: RunSpec,
}

#[async_trait]
impl Execution for RunExecution {
    async fn run(mut self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let now = self.driver.node.read_spec(&self.spec).await;
        if let Ok(now) = &now {
            self.driver.deadline = now.workflow.deadline.map(|deadline| self.driver.created_at + deadline);
        }
        let drive = RunDrive { now: now.map_err(|error| unreadable(&error)) };
        self.driver.run(Box::new(drive), attempt).await
    }
}

/// A run that is driven, or the reason why it cannot be.
struct RunDrive {
    now: Result<RunNow, DriveError>,
}

impl RunDrive {
    fn now(&self) -> &RunNow {
        self.now.as_ref().expect("it was read when it was resumed")
    }

    fn now_mut(&mut self) -> &mut RunNow {
        self.now.as_mut().expect("it was read when it was resumed")
    }
}

#[async_trait]
impl Drive for RunDrive {
    async fn resume(&mut self, driver: &Driver) -> Result<(), DriveError> {
        match &mut self.now {
            Ok(now) => _ = now.read(&driver.node, driver.id).await?,
            Err(trouble) => return Err(DriveError::Broken(trouble.to_string())),
        }
        Ok(())
    }

    async fn begin(&mut self, driver: &Driver) -> Result<Option<Duration>, DriveError> {
        let now = self.now_mut();
        let ready = now.run.take_ready(PAGE);
        if ready.is_empty() {
            return Ok(None);
        }
        let known = now.known(&driver.node, driver.id, &ready).await?;
        let (mut nodes, mut children) = (Vec::new(), Vec::new());
        for node in ready {
            let request = match now.wants(&known, node) {
                Ok(true) => now.request(&known, node),
                Ok(false) => {
                    now.run.ended(node, NodeEnd::Skipped(Skip::Condition));
                    continue;
                }
                Err(error) => Err(error),
            };
            nodes.push(node);
            children.push((now.workflow.graph.name(node).to_owned(), request));
        }
        let mut again = Duration::ZERO;
        for (node, begun) in nodes.into_iter().zip(driver.submit(children).await?) {
            match begun {
                ChildStart::Started(id) => {
                    now.tasks[node] = Some(id);
                    now.open.insert(id, Some(node));
                    now.run.begun(node);
                }
                ChildStart::QueueFull => {
                    now.run.give_back(node);
                    again = AGAIN_AFTER;
                }
            }
        }
        Ok(Some(again))
    }

    fn ended(&mut self, children: Vec<TaskView>) {
        let now = self.now_mut();
        for TaskView { row, .. } in children {
            if let Some(end) = end_of(row.state.status)
                && let Some(Some(node)) = now.open.remove(&row.id)
            {
                now.note_end(node, end, &row);
            }
        }
    }

    fn gone(&mut self, child: TaskId) {
        let now = self.now_mut();
        if let Some(Some(node)) = now.open.remove(&child) {
            now.failure.get_or_insert_with(|| (node, Status::Failed, "its task was removed".to_owned()));
            now.run.ended(node, NodeEnd::Failed);
        }
    }

    fn open(&self) -> Vec<TaskId> {
        self.now().open.keys().copied().collect()
    }

    fn tombstones(&self) -> Vec<TaskId> {
        self.now().open.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| *id).collect()
    }

    fn halt(&mut self) {
        self.now_mut().run.halt();
    }

    async fn maybe_submitted(&mut self, driver: &Driver) -> Result<Vec<(String, NewTask)>, DriveError> {
        let now = self.now();
        let stopped = now.run.stopped_at_the_start();
        let mut children = Vec::with_capacity(stopped.len());
        for some in stopped.chunks(PAGE) {
            let known = now.known(&driver.node, driver.id, some).await?;
            for &node in some {
                let request = match now.wants(&known, node) {
                    Ok(true) => now.request(&known, node),
                    Ok(false) => continue,
                    Err(error) => Err(error),
                };
                children.push((now.workflow.graph.name(node).to_owned(), request));
            }
        }
        Ok(driver.placed(children).await?)
    }

    async fn end(&mut self, _: &Driver) -> Result<Option<CompositeOutcome>, DriveError> {
        let now = self.now();
        if !now.run.is_over() || !now.open.is_empty() {
            return Ok(None);
        }
        let data = serde_json::to_string(&now.run.counts()).expect("counts can be written");
        Ok(Some(match &now.failure {
            None => CompositeOutcome::Success(data),
            Some((node, status, why)) => {
                let name = now.workflow.graph.name(*node);
                CompositeOutcome::Failed(child_failed("node", name, *status, why), data)
            }
        }))
    }

    fn progress(&self) -> Progress {
        let now = self.now();
        let Counts { waiting, open, .. } = now.run.counts();
        let total = now.tasks.len();
        let ended = total - waiting - open;
        let percent = u8::try_from(100 * ended / total.max(1)).ok();
        Progress { percent, message: format!("{ended} of {total} nodes") }
    }

    fn reports_end(&self) -> bool {
        true
    }
}

/// The state of a node, in the words of the API.
pub(in crate::node) fn state_name(state: NodeState, row: Option<&TaskRow>) -> &'static str {
    match (state, row) {
        (_, Some(row)) => row.state.status.as_str(),
        (NodeState::Ended(NodeEnd::Skipped(_)), None) => "SKIPPED",
        (_, None) => "WAITING",
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;

    use super::*;

    #[test]
    fn payloads_of_runs_keep_their_form() {
        let raw = |json: &str| RawValue::from_string(json.to_owned()).expect("JSON");
        let spec = RunSpec {
            run: raw(r#"{"workflow":"etl","input":1}"#),
            workflow: Some(raw(r#"{ "nodes": [] }"#)),
            takes_over: Some(TaskId::from_random(7)),
            changed: vec!["load".to_owned()],
        };
        check("workflow_run", |golden| {
            golden.json("run", &spec);
            golden.json(
                "run least",
                &RunSpec { workflow: None, takes_over: None, changed: Vec::new(), ..spec },
            );
        });
    }
}

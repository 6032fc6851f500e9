//! Checks of task types and payloads that clients send, before anything is stored.
//!
//! They hold for requests of clients only. A fire of a schedule and a node of a run become tasks unchecked: a worker that is
//! away for a while must not stop them, and their tasks fail by themselves where the payload is wrong.

use tasklane_core::id::Name;
use tasklane_core::task::Payload;

use crate::executors::check_builtin;
use crate::request::{
    BUILT_IN, FieldError, MapRequest, RunRequest, Target, TaskRequest, Workflow, check_run_unrendered,
    check_workflow_unrendered, slip,
};

use super::submit::give_way;
use super::workflows::refused;
use super::{Node, ScheduleError, SubmitError, WorkflowError};

impl Node {
    /// Refuses a task whose type looks like a slip of a known one, or whose payload its built-in executor
    /// cannot take.
    pub(super) async fn check_sent(
        &self,
        namespace: &Name,
        request: &TaskRequest,
    ) -> Result<(), SubmitError> {
        self.check_one(namespace, request, false).await
    }

    /// The same for the target of a schedule.
    pub(super) async fn check_target(&self, namespace: &Name, target: &Target) -> Result<(), ScheduleError> {
        match target {
            Target::Task(task) => self.check_sent(namespace, task).await.map_err(|error| match error {
                SubmitError::Invalid(error) => ScheduleError::Invalid(error.below("task")),
                error => ScheduleError::Refused(error),
            }),
            Target::Run(run) => self.check_run(namespace, run).await.map_err(|error| match error {
                WorkflowError::Invalid(error) => ScheduleError::Invalid(error.below("workflow")),
                WorkflowError::Refused(error) => ScheduleError::Refused(error),
                WorkflowError::Store(error) => ScheduleError::Store(error),
                WorkflowError::NotFound | WorkflowError::Crowded => {
                    ScheduleError::Conflict(error.to_string())
                }
            }),
        }
    }

    /// The same for a run: for its own fields, and for its nodes where it brings its own.
    pub(super) async fn check_run(&self, namespace: &Name, run: &RunRequest) -> Result<(), WorkflowError> {
        check_run_unrendered(run)?;
        if run.workflow.is_some() {
            return Ok(());
        }
        self.check_sent_nodes(namespace, &self.read_stored(&run.json).await?).await.map_err(refused)
    }

    /// The same for the nodes of a workflow, and for its name.
    pub(super) async fn check_sent_nodes(
        &self,
        namespace: &Name,
        workflow: &Workflow,
    ) -> Result<(), SubmitError> {
        check_workflow_unrendered(workflow)?;
        for (at, node) in workflow.nodes.iter().enumerate() {
            give_way(at).await;
            self.check_one(namespace, &node.task, true).await.map_err(|error| match error {
                SubmitError::Invalid(error) => SubmitError::Invalid(error.below(&format!("nodes[{at}]"))),
                error => error,
            })?;
        }
        Ok(())
    }

    /// A payload that is rendered later is checked as far as it holds no expressions.
    async fn check_one(
        &self,
        namespace: &Name,
        task: &TaskRequest,
        is_rendered: bool,
    ) -> Result<(), SubmitError> {
        self.check_type(namespace, &task.task_type).await?;
        let Some(source) = &task.map else { return Ok(check_payload(task, is_rendered)?) };
        // A child without a payload gets its item, and the last one the results of the others.
        let has_payload = |task: &TaskRequest| task.payload != Payload::default();
        if has_payload(task) {
            check_payload(task, true)?;
        }
        if let Some(reduce) = MapRequest::from_json(&source.json)?.reduce {
            self.check_type(namespace, &reduce.task_type).await.map_err(below_reduce)?;
            if has_payload(&reduce) {
                check_payload(&reduce, true).map_err(|error| error.below("map.reduce"))?;
            }
        }
        Ok(())
    }

    async fn check_type(&self, namespace: &Name, task_type: &Name) -> Result<(), SubmitError> {
        if BUILT_IN.contains(&task_type.as_str()) {
            return Ok(());
        }
        let types = self.types(namespace).await?;
        if types.is_registered(task_type) {
            return Ok(());
        }
        let Some(error) = slip(task_type.as_str(), types.registered_names()) else { return Ok(()) };
        let is_offered = self.workers().iter().any(|worker| worker.descriptor.task_types.contains(task_type));
        if is_offered { Ok(()) } else { Err(error.into()) }
    }
}

fn below_reduce(error: SubmitError) -> SubmitError {
    match error {
        SubmitError::Invalid(error) => SubmitError::Invalid(error.below("map.reduce")),
        error => error,
    }
}

fn check_payload(task: &TaskRequest, is_rendered: bool) -> Result<(), FieldError> {
    if is_rendered && task.payload.as_str().contains("{{") {
        return Ok(());
    }
    check_builtin(&task.task_type, &task.payload)
}

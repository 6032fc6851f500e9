//! Running a finished task again: by the definition that it ran by, by the latest one, or by another one.
//!
//! A task keeps the definition of its type that was registered when it was submitted, and a run that of its
//! workflow. A retry uses these unless it asks for the latest; it reports where a newer one is registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};
use tasklane_core::id::{LaneId, Name, TaskId};
use tasklane_core::status::Status;
use tasklane_core::task::{Fingerprint, NewTask, Payload, TaskBody, TaskHead, TaskSpec, Unique};
use tasklane_ports::StoreError;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock;
use crate::request::{CustomType, FieldError, RunAs, TaskRequest, Workflow, canonical, changed_nodes, code};

use super::composite::job;
use super::composite::workflow_run::{RunSpec, WORKFLOW_TYPE};
use super::workflows::workflow_of;
use super::{JOB_TYPE, NamedDocument, Node, SubmitError, Submitted, WEBHOOK_TYPE};

/// The outcome of a request to run a finished task again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// There is no such task.
    NotFound,
    /// It has not finished.
    Unfinished(Status),
    /// Its payload has been removed already.
    Removed,
    /// A new task with the same spec.
    Created(Retried),
}

/// The task that runs another one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retried {
    /// Its identity.
    pub id: TaskId,
    /// The same request was accepted before.
    pub duplicate: bool,
    /// It uses the definition of the first task, and a newer one is registered.
    pub newer_definition: bool,
    /// It is a run of a workflow, of which some nodes are [kept](Node::kept_nodes).
    pub is_run: bool,
}

/// The definition that a task runs by again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Definition {
    /// The definition that the first task ran by.
    #[default]
    Stored,
    /// The definition that is registered now.
    Latest,
    /// This definition, as JSON. Only for runs of workflows.
    Given(String),
}

impl Definition {
    /// Distinguishes retries of one task that go by different definitions.
    fn hash(&self, task: u64) -> u64 {
        match self {
            Self::Stored => task,
            Self::Latest => xxh3_64(format!("{task} latest").as_bytes()),
            Self::Given(json) => xxh3_64(format!("{task} {}", canonical(json)).as_bytes()),
        }
    }
}

/// The version of the fingerprints of retries: another kind of request than a submit, so never equal to one.
const RETRY_FINGERPRINT: u8 = Fingerprint::RETRY | 1;

impl Node {
    /// Runs a finished task again, as a new one.
    pub async fn retry(
        &self,
        namespace: &Name,
        id: TaskId,
        request_id: Option<String>,
    ) -> Result<Retry, SubmitError> {
        self.retry_by(namespace, id, request_id, &Definition::Stored).await
    }

    /// Runs a finished task again, as a new one, by one of its definitions.
    pub async fn retry_by(
        &self,
        namespace: &Name,
        id: TaskId,
        request_id: Option<String>,
        definition: &Definition,
    ) -> Result<Retry, SubmitError> {
        let Some(view) = self.task(namespace, id).await? else { return Ok(Retry::NotFound) };
        if !view.row.state.status.is_final() {
            return Ok(Retry::Unfinished(view.row.state.status));
        }
        let Some(body) = &view.row.body else { return Ok(Retry::Removed) };
        // A repeated delivery is still about the same task.
        let parent = if view.row.head.task_type.as_str() == WEBHOOK_TYPE { body.parent } else { Some(id) };
        let archived = self.is_archived(body.composite, &view.row.head.task_type);
        let mut body = TaskBody { request_id, parent, child_name: None, archived, ..(**body).clone() };
        let mut head = TaskHead::clone(&view.row.head);
        if body.composite {
            take_over(&mut body.payload, id);
        }
        let (lane, now) = (id.lane(), clock::wall());
        let new = match &body.request_id {
            Some(request_id) => TaskId::from_request(lane, &head.queue, None, request_id),
            None => TaskId::from_time(lane, now, rand::random()),
        };
        let is_run = head.task_type.as_str() == WORKFLOW_TYPE;
        let newer_definition = match head.task_type.as_str() {
            WORKFLOW_TYPE => self.redefine_run(namespace, &mut body.payload, definition).await?,
            JOB_TYPE => self.redefine_job(namespace, &mut body.payload, new, definition).await?,
            _ if body.composite => false,
            _ => self.redefine_task(namespace, &mut head, &mut body, definition).await?,
        };
        let policy = self.known(&head.queue).await?.policy;
        let head = Arc::new(TaskRequest::again(&head, &body, &policy));
        let unique = body.unique.as_ref().map(|unique| Unique::taken(unique, now));
        let (_, low) = id.0.as_u64_pair();
        let mut task = NewTask {
            id: new,
            spec: TaskSpec { head, body: Arc::new(body) },
            created_at: now,
            due: now,
            fingerprint: Fingerprint { version: RETRY_FINGERPRINT, hash: definition.hash(low) },
            queue_len_max: policy.len_max,
            unique,
            shift: None,
        };
        let mut answer = self.submit_one_to(lane, task.clone()).await;
        // The finished task itself may hold a timed unique key, even if it failed; the user asks for another
        // run.
        if matches!(&answer, Ok(submitted) if submitted.id == id) {
            task.unique = None;
            answer = self.submit_one_to(lane, task).await;
        }
        answer.map(|Submitted { id, duplicate }| {
            Retry::Created(Retried { id, duplicate, newer_definition, is_run })
        })
    }

    async fn submit_one_to(&self, lane: LaneId, task: NewTask) -> Result<Submitted, SubmitError> {
        self.submit_to(lane, vec![task]).await.pop().expect("one answer for one task")
    }

    /// Gives a task the definition of its type that is registered now, if the retry asks for it. Returns
    /// whether it keeps an older one.
    async fn redefine_task(
        &self,
        namespace: &Name,
        head: &mut TaskHead,
        body: &mut TaskBody,
        definition: &Definition,
    ) -> Result<bool, SubmitError> {
        let current = self.current_custom_type(namespace, &head.task_type).await?;
        let latest = match current {
            Some(custom_type) => Some(self.run_by(&custom_type, &TaskRequest::of_task(head, body)).await),
            None => None,
        };
        if *definition == Definition::Stored {
            return Ok(latest.is_some_and(|latest| {
                latest.ok().map(|latest| (latest.task_type, latest.payload))
                    != head.runs_as.clone().zip(body.run.clone())
            }));
        }
        match latest.transpose()? {
            Some(RunAs { task_type, payload }) => {
                (head.runs_as, body.run) = (Some(task_type), Some(payload));
            }
            None if head.runs_as.is_some() => {
                let rule = format!(
                    "must not be given: the type {} is no longer registered. Register it again, or retry without it",
                    head.task_type
                );
                return Err(FieldError::invalid("latest", rule).into());
            }
            None => {}
        }
        Ok(false)
    }

    /// The current definition of a type, read past the cache.
    async fn current_custom_type(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<Option<Arc<CustomType>>, SubmitError> {
        if task_type.is_system() || CustomType::check_name(task_type).is_err() {
            return Ok(None);
        }
        let named = self.executor(namespace, task_type).await?;
        let read = |named: NamedDocument| self.heavy(move || CustomType::from_json(named.json.as_bytes()));
        Ok(match named {
            Some(named) => Some(Arc::new(read(named).await?)),
            None => None,
        })
    }

    /// The same for the first task of a job, and for its analyzers.
    async fn redefine_job(
        &self,
        namespace: &Name,
        payload: &mut Payload,
        new: TaskId,
        definition: &Definition,
    ) -> Result<bool, SubmitError> {
        let Some(mut again) = job::JobSpec::again(payload.as_str(), new) else { return Ok(false) };
        let analyzers = self.analyzers_now(namespace).await?;
        let root = &mut again.root.spec;
        let (mut head, mut body) = (TaskHead::clone(&root.head), TaskBody::clone(&root.body));
        let newer = self.redefine_task(namespace, &mut head, &mut body, definition).await?;
        (root.head, root.body) = (Arc::new(head), Arc::new(body));
        let text = |json: &RawValue| canonical(json.get());
        let is_same = analyzers.len() == again.analyzers.len()
            && again
                .analyzers
                .iter()
                .all(|(name, old)| analyzers.get(name).is_some_and(|new| text(new) == text(old)));
        if *definition != Definition::Stored {
            again.analyzers = analyzers;
        }
        *payload = again.payload()?;
        Ok(newer || *definition == Definition::Stored && !is_same)
    }

    /// Gives a run another definition of its workflow, if the retry asks for one. Returns whether it keeps an
    /// older one.
    async fn redefine_run(
        &self,
        namespace: &Name,
        payload: &mut Payload,
        definition: &Definition,
    ) -> Result<bool, SubmitError> {
        let Some(mut spec) = RunSpec::parse(payload.as_str()) else { return Ok(false) };
        let name = workflow_of(&spec);
        let registered = match name.as_deref().and_then(|name| Name::new(name).ok()) {
            Some(name) => self.workflow(namespace, &name).await?,
            None => None,
        };
        let earlier = spec.definition().to_owned();
        let (field, json) = match (definition, registered) {
            (Definition::Stored, registered) => {
                let Some(latest) = registered else { return Ok(false) };
                let differs = move || canonical(&latest.json) != canonical(&earlier);
                return Ok(self.by_length(spec.definition().len(), differs).await);
            }
            (Definition::Latest, Some(latest)) => ("latest", latest.json),
            (Definition::Latest, None) => {
                let rule = match name {
                    Some(name) => format!(
                        "must not be given: the workflow {name} is no longer there; send a definition"
                    ),
                    None => {
                        "must not be given: the run brought its nodes along; send a definition".to_owned()
                    }
                };
                return Err(FieldError::invalid("latest", rule).into());
            }
            (Definition::Given(json), _) => {
                self.check_definition(namespace, json).await?;
                ("definition", json.clone())
            }
        };
        let (bytes, latest) = (json.len().max(earlier.len()), json.clone());
        spec.changed = self.by_length(bytes, move || changed_nodes(&earlier, &latest)).await?;
        spec.redefine(&json)?;
        let text = serde_json::to_string(&spec).expect("a spec can be written");
        let max = self.system_limits().payload_bytes_max;
        if text.len() > max {
            let message =
                format!("must be smaller: the run takes {} bytes with it, and {max} at most", text.len());
            return Err(FieldError { field: field.to_owned(), code: code::PAYLOAD_TOO_LARGE, message }.into());
        }
        *payload = Payload::Json(text);
        Ok(false)
    }

    async fn check_definition(&self, namespace: &Name, json: &str) -> Result<(), SubmitError> {
        let below = |error: FieldError| error.below("definition");
        let workflow = self.read_sent(json.as_bytes(), Workflow::from_json).await.map_err(below)?;
        let checked = match self.check_nodes(namespace, &workflow).await {
            Ok(()) => self.check_sent_nodes(namespace, &workflow).await,
            refused => refused,
        };
        checked.map_err(|error| match error {
            SubmitError::Invalid(error) => SubmitError::Invalid(below(error)),
            error => error,
        })
    }

    /// Nodes of a run that are kept from an earlier one, and nodes that run again.
    pub async fn kept_nodes(&self, run: TaskId) -> Result<(Vec<String>, Vec<String>), StoreError> {
        let view = self.views(&[run]).await?.pop().flatten();
        let spec = view.and_then(|view| RunSpec::parse(view.row.body?.payload.as_str()));
        let Some(spec) = spec else { return Ok((Vec::new(), Vec::new())) };
        let now = self.run_now(&spec, run).await?.0;
        let graph = &now.workflow.graph;
        let (kept, again): (Vec<usize>, Vec<usize>) =
            (0..graph.len()).partition(|&node| now.run.is_taken_over(node));
        let names = |nodes: Vec<usize>| nodes.into_iter().map(|node| graph.name(node).to_owned()).collect();
        Ok((names(kept), names(again)))
    }
}

/// Lets a composite that runs again take over the earlier children that succeeded.
fn take_over(payload: &mut Payload, earlier: TaskId) {
    let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(payload.as_str()) else {
        return;
    };
    fields.insert("takesOver".to_owned(), to_raw_value(&earlier).expect("an id can be written"));
    // The changes of the earlier composite are not changes of this one.
    fields.remove("changed");
    *payload = Payload::Json(serde_json::to_string(&fields).expect("JSON can be written"));
}

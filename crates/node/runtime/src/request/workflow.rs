//! Workflows: tasks that wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tasklane_core::id::Name;
use tasklane_core::task::Webhook;
use tasklane_workflow::{Graph, GraphError, NodeSpec, OnFailure, TriggerRule};

use super::duration::Positive;
use super::error::{FieldError, code};
use super::exact::{self, check_readable};
use super::expressions::{check_texts, check_unrendered, render_payload, render_texts};
use super::json::{Entries, Object, canonical, read_json, read_node};
use super::limits::{check_key, check_request_id};
use super::map::{MapOver, MapRequest, check_count};
use super::render::{self, Context, Scope};
use super::task::TaskRequest;
use super::webhook::{OF_TASKS, WebhookJson, webhooks};

/// Nodes of a workflow.
pub const NODES_MAX: usize = 10_000;
/// Expressions of all nodes of a workflow.
const EXPRESSIONS_MAX: usize = 20_000;
/// The longest name of a node.
const NAME_LEN_MAX: usize = 64;

/// A parsed and checked workflow.
#[derive(Clone, Debug)]
pub struct Workflow {
    /// Its display name.
    pub name: String,
    /// The dependencies between nodes.
    pub graph: Arc<Graph>,
    /// The nodes, in the order of the definition.
    pub nodes: Vec<WorkflowNode>,
    /// The effect of a failure on the other nodes.
    pub on_failure: OnFailure,
    /// How long a run may take.
    pub deadline: Option<Duration>,
}

/// A node of a workflow.
#[derive(Clone, Debug)]
pub struct WorkflowNode {
    /// Its task; payload and metadata may hold expressions.
    pub task: TaskRequest,
    /// The node is skipped unless this condition holds.
    pub when: Option<String>,
    /// The dependencies whose results it names.
    pub names: Vec<usize>,
}

/// A request for a run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The client's name for the request.
    pub request_id: Option<String>,
    /// The registered workflow that is run, if the request names one.
    pub workflow: Option<Name>,
    /// The input of the run.
    pub input: Option<String>,
    /// The user's own key-value pairs.
    pub metadata: BTreeMap<String, String>,
    /// The webhooks of its end.
    pub webhooks: Vec<Webhook>,
    /// The request as it was sent.
    pub json: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RunJson {
    name: Option<String>,
    nodes: Option<Entries<NODES_MAX>>,
    on_failure: Option<OnFailure>,
    deadline: Option<Positive>,
    // Only a run has these.
    workflow: Option<Name>,
    input: Option<Box<RawValue>>,
    request_id: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    webhooks: Option<Vec<Object<WebhookJson>>>,
}

impl RunRequest {
    /// Parses a request for a run. If it brings its nodes along, they are checked.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: RunJson = read_json(body)?;
        let of_workflow = [
            ("nodes", json.nodes.is_some()),
            ("name", json.name.is_some()),
            ("onFailure", json.on_failure.is_some()),
            ("deadline", json.deadline.is_some()),
        ];
        match (&json.workflow, of_workflow.iter().find(|(_, given)| *given)) {
            (Some(_), Some((field, _))) => {
                let message = "must not be given together with workflow, which says it".to_owned();
                return Err(FieldError {
                    field: (*field).to_owned(),
                    code: code::CONFLICTING_FIELDS,
                    message,
                });
            }
            (Some(_), None) => {}
            (None, _) => _ = Workflow::of(&json, false)?,
        }
        json.request_id.as_deref().map_or(Ok(()), check_request_id)?;
        if let Some(input) = &json.input {
            check_readable(input.get()).map_err(|rule| FieldError::invalid("input", rule))?;
        }
        Ok(Self {
            request_id: json.request_id,
            workflow: json.workflow,
            input: json.input.map(|input| input.get().to_owned()),
            metadata: json.metadata.unwrap_or_default(),
            webhooks: webhooks("webhooks", json.webhooks, OF_TASKS)?,
            json: String::from_utf8_lossy(body).into_owned(),
        })
    }
}

impl Workflow {
    /// Parses a workflow that is registered for later runs.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let json: RunJson = read_json(body)?;
        let of_runs = [
            ("workflow", json.workflow.is_some()),
            ("input", json.input.is_some()),
            ("requestId", json.request_id.is_some()),
            ("metadata", json.metadata.is_some()),
            ("webhooks", json.webhooks.is_some()),
        ];
        if let Some((field, _)) = of_runs.iter().find(|(_, given)| *given) {
            let message = "is not a known field: only a run has it".to_owned();
            return Err(FieldError { field: (*field).to_owned(), code: code::UNKNOWN_FIELD, message });
        }
        Self::of(&json, false)
    }

    /// Parses a workflow that was checked before, also from a request for a run.
    pub fn from_stored(json: &str) -> Result<Self, FieldError> {
        Self::of(&read_json(json.as_bytes())?, true)
    }

    fn of(json: &RunJson, is_stored: bool) -> Result<Self, FieldError> {
        let Some(Entries(raw)) = &json.nodes else {
            let (field, message) = ("nodes".to_owned(), "is required, or workflow".to_owned());
            return Err(FieldError { field, code: code::MISSING_FIELD, message });
        };
        let expressions: usize = raw.iter().map(|node| node.get().matches("{{").count()).sum();
        if expressions > EXPRESSIONS_MAX {
            let message = format!("must have at most {EXPRESSIONS_MAX} expressions, not {expressions}");
            return Err(FieldError { field: "nodes".to_owned(), code: code::TOO_COSTLY, message });
        }
        let (mut specs, mut tasks) = (Vec::with_capacity(raw.len()), Vec::with_capacity(raw.len()));
        for (at, raw) in raw.iter().enumerate() {
            let below = |error: FieldError| error.below(&format!("nodes[{at}]"));
            let (node, task) = read_node(raw.get().as_bytes()).map_err(below)?;
            check_name(&node.name).map_err(below)?;
            task.check_child().map_err(below)?;
            let rule = node.rule.unwrap_or_default();
            if rule != TriggerRule::AllSucceeded && node.depends_on.is_empty() {
                let rule = "must not be given without dependsOn: there is nothing to wait for";
                return Err(below(FieldError::invalid("triggerRule", rule)));
            }
            specs.push(NodeSpec { name: node.name, depends_on: node.depends_on, rule });
            tasks.push((task, node.when));
        }
        let graph = Graph::new(specs).map_err(|error| graph_error(&error))?;
        let mut nodes = Vec::with_capacity(tasks.len());
        for (at, (task, when)) in tasks.into_iter().enumerate() {
            let below = |error: FieldError| error.below(&format!("nodes[{at}]"));
            let waits_for = graph.waits_for(at).iter().map(|&node| graph.name(node).to_owned());
            let scope = Scope {
                names: BTreeSet::from(["input", "nodes", "run"]),
                nodes: waits_for.collect(),
                is_stored,
            };
            let found = names_of(&task, when.as_deref(), &scope).map_err(below)?;
            let names = found.iter().filter_map(|name| graph.find(name)).collect();
            nodes.push(WorkflowNode { task, when, names });
        }
        let name = json.name.clone().unwrap_or_else(|| "workflow".to_owned());
        check_key("name", &name)?;
        let deadline = json.deadline.map(|deadline| deadline.0);
        let on_failure = json.on_failure.unwrap_or_default();
        Ok(Self { name, graph: Arc::new(graph), nodes, on_failure, deadline })
    }
}

/// Nodes of a definition that differ from those of an earlier one, or that wait for such a node, by name.
pub(crate) fn changed_nodes(earlier: &str, latest: &str) -> Result<Vec<String>, FieldError> {
    let (earlier, nodes) = (nodes_of(earlier)?, nodes_of(latest)?);
    let graph = Workflow::from_stored(latest)?.graph;
    let unchanged = graph.unchanged(|node| earlier.get(graph.name(node)) == nodes.get(graph.name(node)));
    let changed = (0..graph.len()).filter(|&node| !unchanged[node]);
    Ok(changed.map(|node| graph.name(node).to_owned()).collect())
}

/// The nodes of a definition by name, each in a canonical form.
fn nodes_of(json: &str) -> Result<BTreeMap<String, String>, FieldError> {
    #[derive(Deserialize)]
    struct Nodes {
        nodes: Vec<Value>,
    }
    let Nodes { nodes } = read_json(json.as_bytes())?;
    let each = nodes.into_iter().map(|mut node| {
        if let Some(Value::Array(on)) = node.get_mut("dependsOn") {
            on.sort_unstable_by_key(ToString::to_string);
        }
        let name = node.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        (name, canonical(&node.to_string()))
    });
    Ok(each.collect())
}

/// Checks all expressions of a node and returns the nodes that they name.
fn names_of(task: &TaskRequest, when: Option<&str>, scope: &Scope) -> Result<BTreeSet<String>, FieldError> {
    let invalid = |field: &str| {
        let field = field.to_owned();
        move |rule| FieldError::invalid(field, rule)
    };
    let mut named = BTreeSet::new();
    if let Some(when) = when {
        named.extend(render::check_expression(when, scope).map_err(invalid("when"))?);
    }
    check_unrendered(task)?;
    if let Some(source) = &task.map {
        named.extend(MapRequest::from_json(&source.json)?.check(&source.over, scope)?);
    } else {
        named.extend(check_texts(task, scope)?);
        named.extend(render::check_payload(&task.payload, scope).map_err(invalid("payload"))?);
    }
    Ok(named)
}

/// Names appear in expressions, so they must be valid there.
fn check_name(name: &str) -> Result<(), FieldError> {
    let fits = name.len() <= NAME_LEN_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if fits {
        return Ok(());
    }
    let rule = format!("must be 1 to {NAME_LEN_MAX} letters, digits and _, and not begin with a digit");
    Err(FieldError::invalid("name", rule))
}

fn graph_error(error: &GraphError) -> FieldError {
    let field = match error {
        GraphError::SameName { node, .. } => format!("nodes[{node}].name"),
        GraphError::Unknown { node, at, .. } | GraphError::Twice { node, at } => {
            format!("nodes[{node}].dependsOn[{at}]")
        }
        GraphError::Circle { node, .. } => format!("nodes[{node}].dependsOn"),
    };
    FieldError::invalid(field, error.to_string())
}

/// The task of a node, with its expressions rendered.
pub(crate) fn node_request(task: &TaskRequest, context: &Context) -> Result<TaskRequest, String> {
    let mut request = task.clone();
    match &mut request.map {
        None => {
            request.payload = render_payload(&task.task_type, &task.payload, context)?;
            render_texts(&mut request, context)?;
        }
        Some(source) => {
            if let MapOver::Named(text) = &source.over {
                source.over = MapOver::Items(items_of(render::render_value(text, context)?)?);
            }
            source.context = Some(context.json());
        }
    }
    Ok(request)
}

fn items_of(json: Value) -> Result<Vec<String>, String> {
    let Value::Array(items) = json else { return Err("map.items does not give a list".to_owned()) };
    check_count(items.len()).map_err(|error| error.to_string())?;
    Ok(items.iter().map(exact::write).collect())
}

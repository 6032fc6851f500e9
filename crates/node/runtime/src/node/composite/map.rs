//! Map tasks: a child for each item, for each shard, or on each worker; and a last child that gets their
//! results.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tasklane_core::id::{Name, QueueKey, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::member::WorkerDescriptor;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Payload, Progress, TaskError};
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError, StoreError, TaskView};
use tasklane_workflow::{MapChild, MapTask};

use crate::request::{
    Context, FieldError, MapOver, MapRequest, Scope, TaskRequest, canonical, check_count, check_unrendered,
    code, parse_exact, payload_of, render_composite_texts, render_payload, render_texts, render_value,
    write_exact,
};

use super::driver::{
    AGAIN_AFTER, ChildStart, CompositeOutcome, Drive, DriveError, Driver, LOOK, NewChild, PAGE, child_failed,
    composite_of, unreadable,
};
use crate::node::{Node, SubmitError};

/// Task type and queue of map tasks.
pub const MAP_TYPE: &str = "tasklane.map";

/// The name of the child that gets the results of the others.
pub(in crate::node) const REDUCE: &str = "reduce";
/// Most bytes of results within a payload.
const INLINE_BYTES_MAX: usize = 256 << 10;
/// Most bytes of results that are kept with the composite itself.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// How long a child waits for its worker by default.
const WORKER_WAIT: Duration = Duration::from_mins(1);

/// The payload of a map task.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MapSpec {
    /// The request, as it was sent.
    task: Box<RawValue>,
    /// The items of its children.
    each: MapItems,
    /// Metadata of all children.
    metadata: std::collections::BTreeMap<String, String>,
    /// Whether names, labels, hash keys and metadata of children hold expressions too. False for maps that
    /// earlier versions stored.
    #[serde(default)]
    texts: bool,
    /// The values for expressions, besides the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    context: Option<Value>,
    /// A map that this one takes over from: children that succeeded there are not repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    takes_over: Option<TaskId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum MapItems {
    Items(Vec<Box<RawValue>>),
    Shards(u32),
    Workers(Vec<Name>),
}

impl MapItems {
    fn len(&self) -> usize {
        match self {
            Self::Items(items) => items.len(),
            Self::Shards(count) => *count as usize,
            Self::Workers(names) => names.len(),
        }
    }

    /// The item of the child, as JSON.
    fn item(&self, index: usize) -> String {
        match self {
            Self::Items(items) => items[index].get().to_owned(),
            Self::Shards(_) => index.to_string(),
            Self::Workers(names) => json!(names[index].as_str()).to_string(),
        }
    }
}

impl Node {
    /// The composite that a request for a map becomes.
    pub(in crate::node) async fn map_composite(
        &self,
        namespace: &Name,
        mut request: TaskRequest,
    ) -> Result<TaskRequest, SubmitError> {
        let Some(source) = request.map.take() else { return Ok(request) };
        let map = MapRequest::from_json(&source.json)?;
        if source.context.is_none() {
            map.check(&source.over, &Scope::default())?;
            check_unrendered(&request)?;
        }
        let context = context_of(source.context.as_ref());
        let unfit = |rule: String| FieldError::invalid("map", rule);
        // Its children are made later: a fault that all of them share is better reported now.
        self.check_children(namespace, &map).await?;
        let each = match source.over {
            MapOver::Items(items) => items_of(&items)?,
            MapOver::Named(text) => {
                let rule = |rule: String| FieldError::invalid("map.items", rule);
                let Value::Array(items) = render_value(&text, &Context::default()).map_err(rule)? else {
                    return Err(rule("must give a list".to_owned()).into());
                };
                check_count(items.len())?;
                items_of(&items.iter().map(write_exact).collect::<Vec<_>>())?
            }
            MapOver::Shards(count) => MapItems::Shards(count),
            MapOver::Workers => {
                let executor = self.executor_type(namespace, &map.task.task_type).await?;
                let mut task = map.task.clone();
                render_composite_texts(&mut task, &context).map_err(unfit)?;
                MapItems::Workers(self.able_workers(&executor, &task))
            }
        };
        let spec = MapSpec {
            task: without_items(&source.json)?,
            each,
            metadata: request.metadata.clone(),
            texts: true,
            context: source.context,
            takes_over: None,
        };
        let payload = serde_json::to_string(&spec).expect("a spec can be written");
        let max = self.system_limits().payload_bytes_max;
        if payload.len() > max {
            return Err(FieldError {
                field: if matches!(spec.each, MapItems::Items(_)) { "map.items" } else { "payload" }
                    .to_owned(),
                code: code::PAYLOAD_TOO_LARGE,
                message: format!(
                    "must be smaller: with the rest of the task it takes {} bytes, and {max} at most",
                    payload.len()
                ),
            }
            .into());
        }
        let identity = Some(canonical(&source.json));
        render_composite_texts(&mut request, &context).map_err(unfit)?;
        request.extra_webhooks = self.queue_webhooks(namespace, &request).await?;
        Ok(TaskRequest { identity, ..composite_of(MAP_TYPE, &request, payload) })
    }

    /// Whether the children of a map could be accepted now.
    async fn check_children(&self, namespace: &Name, map: &MapRequest) -> Result<(), SubmitError> {
        self.check_task(namespace, &map.task).await?;
        if let Some(reduce) = &map.reduce {
            self.check_task(namespace, reduce).await.map_err(|error| match error {
                SubmitError::Invalid(error) => SubmitError::Invalid(error.below("map.reduce")),
                error => error,
            })?;
        }
        Ok(())
    }

    /// Whether such a task could be accepted now: the best guess at whether it can be later. The values of
    /// its expressions are not known yet.
    pub(in crate::node) async fn check_task(
        &self,
        namespace: &Name,
        task: &TaskRequest,
    ) -> Result<(), SubmitError> {
        let queue = QueueKey::new(namespace.clone(), task.queue.clone());
        let binding = self.known(&queue).await?.binding;
        self.0.options.limits.check(task)?;
        self.0.options.limits.check_flow(task, &binding)?;
        if let Some(source) = &task.map {
            Box::pin(self.check_children(namespace, &MapRequest::from_json(&source.json)?)).await?;
        }
        Ok(())
    }

    /// Workers that could run a task, by name.
    fn able_workers(&self, task_type: &Name, task: &TaskRequest) -> Vec<Name> {
        let workers = self.workers();
        let able = workers
            .iter()
            .map(|worker| &worker.descriptor)
            .filter(|worker| worker.serves(task_type, &task.labels) && !worker.draining);
        let mut names: Vec<Name> = able.map(|worker| worker.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn raw(json: &str) -> Result<Box<RawValue>, FieldError> {
    RawValue::from_string(json.to_owned()).map_err(|error| FieldError::invalid("map", error.to_string()))
}

/// A request without the items, which are kept apart from it. The rest stays as it was written.
fn without_items(json: &str) -> Result<Box<RawValue>, FieldError> {
    type Fields = std::collections::BTreeMap<String, Box<RawValue>>;
    let wrong = |error: serde_json::Error| FieldError::invalid("map", error.to_string());
    let mut request: Fields = serde_json::from_str(json).map_err(wrong)?;
    if let Some(map) = request.get_mut("map") {
        let mut fields: Fields = serde_json::from_str(map.get()).map_err(wrong)?;
        if fields.get("items").is_some_and(|items| items.get().starts_with('[')) {
            fields.insert("items".to_owned(), raw("[]")?);
            *map = serde_json::value::to_raw_value(&fields).map_err(wrong)?;
        }
    }
    serde_json::value::to_raw_value(&request).map_err(wrong)
}

fn items_of(items: &[String]) -> Result<MapItems, FieldError> {
    Ok(MapItems::Items(items.iter().map(|item| raw(item)).collect::<Result<_, _>>()?))
}

/// Drives map tasks, in a server.
#[derive(Debug)]
pub(in crate::node) struct MapExecutor {
    node: Node,
}

impl MapExecutor {
    /// Over the node that also accepts the tasks.
    pub(in crate::node) fn new(node: Node) -> Self {
        Self { node }
    }
}

fn spec_of(dispatch: &Dispatch) -> Result<MapSpec, ExecutorError> {
    let payload = dispatch.body.as_ref().map_or("", |body| body.payload.as_str());
    serde_json::from_str(payload).map_err(|error| ExecutorError::BadPayload { reason: error.to_string() })
}

#[async_trait]
impl Executor for MapExecutor {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        spec_of(dispatch).map(drop)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let spec = spec_of(dispatch)?;
        let driver = Driver::of(self.node.clone(), dispatch).await?;
        Ok(Box::new(MapExecution { driver, spec }))
    }
}

#[derive(Debug)]
struct MapExecution {
    driver: Driver,
    spec: MapSpec,
}

#[async_trait]
impl Execution for MapExecution {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let Self { driver, spec } = *self;
        let drive = MapDrive {
            request: MapRequest::from_json(spec.task.get()),
            context: context_of(spec.context.as_ref()),
            // `resume` reads the request and replaces these.
            children: Children::new(MapTask::new(0, 0, 0, false, Invariants::ALL_ON)),
            reduce: ReduceState::None,
            failure: None,
            spec,
        };
        driver.run(Box::new(drive), attempt).await
    }
}

fn context_of(stored: Option<&Value>) -> Context {
    let mut context = Context::default();
    for name in ["input", "nodes", "run"] {
        if let Some(value) = stored.and_then(|stored| stored.get(name)) {
            context.put(name, value.clone());
        }
    }
    context
}

/// The tasks of the children.
#[derive(Debug)]
struct Children {
    /// Decides which children may begin, and when the map ends.
    machine: MapTask,
    /// By index, the children that exist.
    ids: Vec<Option<TaskId>>,
    /// Children that succeeded.
    succeeded: Vec<bool>,
    open: HashMap<TaskId, usize>,
    /// Tombstones that have not ended.
    tombstones: HashSet<TaskId>,
}

impl Children {
    fn new(machine: MapTask) -> Self {
        let total = machine.len();
        let (ids, succeeded) = (vec![None; total], vec![false; total]);
        Self { machine, ids, succeeded, open: HashMap::new(), tombstones: HashSet::new() }
    }

    fn begun(&mut self, index: usize, id: TaskId) {
        self.machine.begun(MapChild::Item(index));
        self.ids[index] = Some(id);
        self.open.insert(id, index);
    }

    fn ended(&mut self, index: usize, id: TaskId, status: Status) {
        let succeeded = status == Status::Success;
        self.machine.ended(MapChild::Item(index), succeeded);
        self.ids[index] = Some(id);
        self.succeeded[index] = succeeded;
    }
}

/// The state of the last child.
#[derive(Debug)]
enum ReduceState {
    None,
    Open(TaskId),
    /// Its result.
    Done(Value),
    Failed(TaskError),
}

fn item(child: MapChild) -> Option<usize> {
    match child {
        MapChild::Item(index) => Some(index),
        MapChild::Reduce => None,
    }
}

#[derive(Debug)]
struct MapDrive {
    spec: MapSpec,
    request: Result<MapRequest, FieldError>,
    context: Context,
    children: Children,
    reduce: ReduceState,
    /// The error of the first failure.
    failure: Option<TaskError>,
}

impl MapDrive {
    fn request(&self) -> &MapRequest {
        self.request.as_ref().expect("it was read when it was resumed")
    }

    fn note_failure(&mut self, index: usize, status: Status, error: Option<&TaskError>) {
        if status != Status::Success && self.failure.is_none() {
            let why = error.map_or("", |error| &error.message);
            self.failure = Some(child_failed("child", &index.to_string(), status, why));
        }
    }

    /// A machine before the first start.
    fn machine(&self) -> MapTask {
        let (map, total) = (self.request(), self.spec.each.len());
        let failures_max = map.tolerate.failures_max(total);
        MapTask::new(total, map.at_once as usize, failures_max, map.reduce.is_some(), Invariants::ALL_ON)
    }

    /// The request of a child.
    fn child(&self, index: usize) -> Result<TaskRequest, TaskError> {
        let wrong = |message: String| TaskError::new("expression", message).bounded();
        let item = self.spec.each.item(index);
        let mut context = self.context.clone();
        let value = parse_exact(&item).map_err(|error| wrong(error.to_string()))?;
        context.put("item", value);
        context.put("index", json!(index));
        context.put("total", json!(self.spec.each.len()));
        let map = self.request();
        let mut request = map.task.clone();
        request.payload = map.payload_of(&item, &context).map_err(wrong)?;
        request.metadata.clone_from(&self.spec.metadata);
        if self.spec.texts {
            render_texts(&mut request, &context).map_err(wrong)?;
        }
        // The composite holds the unique key.
        request.unique = None;
        if let MapItems::Workers(names) = &self.spec.each {
            request.labels.insert(WorkerDescriptor::NAME_LABEL.to_owned(), names[index].to_string());
            request.start_timeout.get_or_insert(WORKER_WAIT);
        }
        Ok(request)
    }

    /// The results of the children, in their order and with `null` for children without one; `None` if they
    /// are too large.
    async fn results(&self, node: &Node, bytes_max: usize) -> Result<Option<Value>, StoreError> {
        let Children { ids, succeeded, .. } = &self.children;
        let mut results = vec![Value::Null; ids.len()];
        let mut bytes = results.len() * "null,".len();
        let succeeded = ids.iter().enumerate().filter(|(index, _)| succeeded[*index]);
        let succeeded: Vec<(usize, TaskId)> =
            succeeded.filter_map(|(index, id)| Some((index, (*id)?))).collect();
        for some in succeeded.chunks(LOOK) {
            if bytes > bytes_max {
                return Ok(None);
            }
            let ids: Vec<TaskId> = some.iter().map(|(_, id)| *id).collect();
            for ((index, _), view) in some.iter().zip(node.views(&ids).await?) {
                let data = view.and_then(|view| view.result).map(|result| result.data).unwrap_or_default();
                bytes += data.len();
                results[*index] = parse_exact(&data).unwrap_or_default();
            }
        }
        Ok((bytes <= bytes_max).then_some(Value::Array(results)))
    }

    fn counts(&self) -> Map<String, Value> {
        let machine = &self.children.machine;
        let counts =
            [("total", machine.len()), ("succeeded", machine.succeeded()), ("failed", machine.failed())];
        counts.into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect()
    }

    /// The request of the last child: it gets the results, or the address of the results.
    async fn reduce_request(
        &self,
        driver: &Driver,
        reduce: &TaskRequest,
    ) -> Result<Result<TaskRequest, TaskError>, StoreError> {
        let mut given = self.counts();
        match self.results(&driver.node, INLINE_BYTES_MAX).await? {
            Some(results) => given.insert("results".to_owned(), results),
            None => {
                given.insert("resultsFrom".to_owned(), json!(format!("/api/v1/tasks/{}/children", driver.id)))
            }
        };
        let mut request = TaskRequest { roomy: true, ..reduce.clone() };
        let mut context = self.context.clone();
        for name in ["failed", "results", "resultsFrom", "succeeded", "total"] {
            if let Some(value) = given.get(name) {
                context.put(name, value.clone());
            }
        }
        let rendered = if request.payload == Payload::default() {
            Ok(payload_of(Value::Object(given)))
        } else {
            render_payload(&request.task_type, &request.payload, &context)
        };
        let rendered = rendered.and_then(|payload| {
            request.payload = payload;
            if self.spec.texts { render_texts(&mut request, &context) } else { Ok(()) }
        });
        Ok(rendered.map(|()| request).map_err(|message| TaskError::new("expression", message).bounded()))
    }

    async fn begin_reduce(&mut self, driver: &Driver) -> Result<Option<Duration>, DriveError> {
        let Some(reduce) = self.request().reduce.clone() else { return Ok(None) };
        let request = self.reduce_request(driver, &reduce).await?;
        match driver.submit(vec![(REDUCE.to_owned(), request)]).await?[..] {
            [ChildStart::Started(id)] => {
                self.children.machine.begun(MapChild::Reduce);
                self.reduce = ReduceState::Open(id);
                Ok(None)
            }
            _ => Ok(Some(AGAIN_AFTER)),
        }
    }

    fn note_reduced(&mut self, view: &TaskView) {
        let state = &view.row.state;
        self.children.machine.ended(MapChild::Reduce, state.status == Status::Success);
        self.reduce = if state.status == Status::Success {
            let data = view.result.as_ref().map_or("", |result| &result.data);
            ReduceState::Done(parse_exact(data).unwrap_or_default())
        } else {
            let why = state.error.as_ref().map_or("", |error| &error.message);
            ReduceState::Failed(child_failed("child", REDUCE, state.status, why))
        };
    }
}

#[async_trait]
impl Drive for MapDrive {
    async fn resume(&mut self, driver: &Driver) -> Result<(), DriveError> {
        if let Err(error) = &self.request {
            return Err(unreadable(error));
        }
        let total = self.spec.each.len();
        let (mut children, mut reduce, mut failures) = (Children::new(self.machine()), None, Vec::new());
        if self.children.machine.is_halted() {
            children.machine.halt();
        }
        let mut found: Vec<Option<(TaskId, Status)>> = vec![None; total];
        driver
            .node
            .each_child(driver.id, |name, row| match name.parse::<usize>() {
                // The oldest child counts, which comes last.
                Ok(index) if index < total => {
                    found[index] = Some((row.id, row.state.status));
                    if row.state.status.is_final() && row.state.status != Status::Success {
                        failures.push((index, row.state.status, row.state.error));
                    }
                }
                _ if name == REDUCE => reduce = Some(row.id),
                _ if !row.state.status.is_final() => _ = children.tombstones.insert(row.id),
                _ => {}
            })
            .await?;
        for earlier in driver.node.earlier_composites(self.spec.takes_over).await? {
            driver
                .node
                .each_child(earlier, |name, row| {
                    if let Ok(index) = name.parse::<usize>()
                        && index < total
                        && row.state.status == Status::Success
                    {
                        found[index].get_or_insert((row.id, row.state.status));
                    }
                })
                .await?;
        }
        for (index, found) in found.into_iter().enumerate() {
            match found {
                Some((id, status)) if status.is_final() => children.ended(index, id, status),
                Some((id, _)) => children.begun(index, id),
                None => {}
            }
        }
        self.children = children;
        failures.sort_unstable_by_key(|(index, ..)| *index);
        for (index, status, error) in failures {
            self.note_failure(index, status, error.as_ref());
        }
        if let Some(id) = reduce {
            self.children.machine.begun(MapChild::Reduce);
            self.reduce = ReduceState::Open(id);
            let found = driver.node.views(&[id]).await?.pop().flatten();
            if let Some(view) = found.filter(|view| view.row.state.status.is_final()) {
                self.note_reduced(&view);
            }
        }
        Ok(())
    }

    async fn begin(&mut self, driver: &Driver) -> Result<Option<Duration>, DriveError> {
        if self.children.machine.is_exceeded() && self.children.machine.halt() {
            driver.node.cancel_all(&self.open()).await?;
        }
        let ready = self.children.machine.ready(PAGE);
        if ready == [MapChild::Reduce] {
            return self.begin_reduce(driver).await;
        }
        let items: Vec<usize> = ready.into_iter().filter_map(item).collect();
        if items.is_empty() {
            return Ok(None);
        }
        let requests = items.iter().map(|&index| (index.to_string(), self.child(index))).collect();
        let begun = driver.submit(requests).await?;
        let full = begun.contains(&ChildStart::QueueFull);
        for (index, begun) in items.into_iter().zip(begun) {
            if let ChildStart::Started(id) = begun {
                self.children.begun(index, id);
            }
        }
        Ok(Some(if full { AGAIN_AFTER } else { Duration::ZERO }))
    }

    fn ended(&mut self, children: Vec<TaskView>) {
        for view in children {
            let (id, status) = (view.row.id, view.row.state.status);
            if let Some(index) = self.children.open.remove(&id) {
                self.children.ended(index, id, status);
                self.note_failure(index, status, view.row.state.error.as_ref());
            } else if matches!(self.reduce, ReduceState::Open(open) if open == id) {
                self.note_reduced(&view);
            } else {
                self.children.tombstones.remove(&id);
            }
        }
    }

    fn gone(&mut self, child: TaskId) {
        let error = || TaskError::new("child_failed", format!("task {child} was removed"));
        if let Some(index) = self.children.open.remove(&child) {
            self.children.ended(index, child, Status::Failed);
            self.failure.get_or_insert_with(error);
        } else if matches!(self.reduce, ReduceState::Open(open) if open == child) {
            self.children.machine.ended(MapChild::Reduce, false);
            self.reduce = ReduceState::Failed(error());
        } else {
            self.children.tombstones.remove(&child);
        }
    }

    fn open(&self) -> Vec<TaskId> {
        let reduce = match self.reduce {
            ReduceState::Open(id) => Some(id),
            ReduceState::None | ReduceState::Done(_) | ReduceState::Failed(_) => None,
        };
        self.children.open.keys().chain(&self.children.tombstones).copied().chain(reduce).collect()
    }

    fn tombstones(&self) -> Vec<TaskId> {
        self.children.tombstones.iter().copied().collect()
    }

    fn halt(&mut self) {
        self.children.machine.halt();
    }

    async fn maybe_submitted(&mut self, driver: &Driver) -> Result<Vec<(String, NewTask)>, DriveError> {
        let mut children: Vec<NewChild> = Vec::new();
        for child in self.children.machine.maybe_submitted() {
            match (child, self.request().reduce.clone()) {
                (MapChild::Item(index), _) => children.push((index.to_string(), self.child(index))),
                (MapChild::Reduce, Some(reduce)) => {
                    children.push((REDUCE.to_owned(), self.reduce_request(driver, &reduce).await?));
                }
                (MapChild::Reduce, None) => {}
            }
        }
        Ok(driver.placed(children).await?)
    }

    async fn end(&mut self, driver: &Driver) -> Result<Option<CompositeOutcome>, DriveError> {
        if !self.children.tombstones.is_empty() || !self.children.machine.is_over() {
            return Ok(None);
        }
        let mut data = self.counts();
        let mut bytes_max = RESULT_BYTES_MAX;
        if let ReduceState::Done(answer) = &self.reduce {
            bytes_max = bytes_max.saturating_sub(answer.to_string().len());
            data.insert("reduced".to_owned(), answer.clone());
        }
        match self.results(&driver.node, bytes_max).await? {
            Some(results) => data.insert("results".to_owned(), results),
            None => {
                data.insert("resultsFrom".to_owned(), json!(format!("/api/v1/tasks/{}/children", driver.id)))
            }
        };
        let data = write_exact(&Value::Object(data));
        let failure = match (&self.reduce, &self.failure) {
            (ReduceState::Failed(error), _) => Some(error.clone()),
            (_, failure) if self.children.machine.has_failed() => {
                let stopped =
                    || TaskError::new("stopped", "it was stopped before all its children had begun");
                Some(failure.clone().unwrap_or_else(stopped))
            }
            _ => None,
        };
        Ok(Some(match failure {
            Some(error) => CompositeOutcome::Failed(error, data),
            None => CompositeOutcome::Success(data),
        }))
    }

    fn progress(&self) -> Progress {
        let (failed, total) = (self.children.machine.failed(), self.children.machine.len());
        let ended = self.children.machine.succeeded() + failed;
        let percent = u8::try_from(100 * ended / total.max(1)).ok();
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        Progress { percent, message: format!("{ended} of {total} children{failed}") }
    }
}

#[cfg(test)]
mod tests {
    use tasklane_testkit::golden::check;
    use tasklane_testkit::variants;

    use super::*;

    #[test]
    fn payloads_of_maps_keep_their_form() {
        let spec = MapSpec {
            task: raw(r#"{"taskName":"t", "map":{"items":[]}}"#).expect("JSON"),
            each: MapItems::Shards(2),
            metadata: [("k".to_owned(), "1".to_owned())].into(),
            texts: true,
            context: Some(json!({ "input": 1 })),
            takes_over: Some(TaskId::from_random(7)),
        };
        let items = ["1", r#"{ "n": 2 }"#].map(|item| raw(item).expect("JSON"));
        check("map", |golden| {
            golden.json("map", &spec);
            golden.json("map least", &MapSpec { context: None, takes_over: None, ..spec });
            golden.json_variants(
                "each",
                variants!(MapItems: Items, Shards, Workers),
                [
                    MapItems::Items(items.into()),
                    MapItems::Shards(2),
                    MapItems::Workers(vec![Name::new("w1").expect("a valid name")]),
                ],
            );
        });
        let earlier = r#"{"task":{},"each":{"shards":2},"metadata":{}}"#;
        let read: MapSpec = serde_json::from_str(earlier).expect("what earlier versions stored");
        assert!(!read.texts);
    }
}

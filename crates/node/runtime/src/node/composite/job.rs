//! Jobs: tasks whose results are analyzed, and the tasks that the analyses add.
//!
//! A task of a type that has an analyzer becomes a job: a composite whose first child is the task itself.
//! When a child has ended whose type has an analyzer, another child analyzes its result; the tasks that the
//! analysis names become children too. The job ends when no child is open and no result is left to analyze.
//! It uses the analyzers that were registered when it began.
//!
//! `tasklane_workflow` decides the next steps and names the children.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tasklane_core::id::{Name, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::message::{Dispatch, Finish};
use tasklane_core::status::Status;
use tasklane_core::task::{NewTask, Payload, Progress, TaskError, TaskRow};
use tasklane_ports::{
    Attempt, DocumentKey, DocumentKind, Execution, Executor, ExecutorError, StoreError, TaskView,
};
use tasklane_workflow::{Job, JobLimit, JobLimits, ROOT, analysis_of, analyzed_by, depth, is_analysis};
use tokio::time::Instant;

use crate::clock;
use crate::request::{
    Analysis, AnalysisVerdict, Analyzer, FieldError, RequestLimits, TaskRequest, check_not_system,
    parse_exact,
};

use super::driver::{
    AGAIN_AFTER, ChildStart, CompositeOutcome, Drive, DriveError, Driver, HELD, LOOK, PAGE, REFUSED_TYPE,
    TOMBSTONE_PREFIX, child_failed, child_request_id, composite_of, unique_in,
};
use crate::node::custom_types::{NamedDocument, NamedDocumentError};
use crate::node::{Node, SubmitError};

/// Task type and queue of jobs.
pub const JOB_TYPE: &str = "tasklane.job";

/// How often a teardown reads the tasks that it cancels.
const TEARDOWN_LOOK: Duration = Duration::from_millis(50);
/// Number of tasks left that are named.
const LEFT_MAX: usize = 20;

/// A job.
#[derive(Debug)]
pub struct JobView {
    /// The task that drives it.
    pub view: TaskView,
    /// Number of its tasks by status.
    pub counts: JobCounts,
}

/// The outcome of removing a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornDown {
    /// Number of removed tasks.
    pub removed: u64,
    /// Some of the tasks that are left.
    pub left: Vec<TaskId>,
}

/// The payload of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::node) struct JobSpec {
    pub(in crate::node) root: NewTask,
    /// By task type, as they were registered.
    pub(in crate::node) analyzers: BTreeMap<Name, Box<RawValue>>,
}

impl JobSpec {
    /// A job that does the work of another again: its root is another task.
    pub(in crate::node) fn again(payload: &str, job: TaskId) -> Option<Self> {
        let mut spec: Self = serde_json::from_str(payload).ok()?;
        let request_id = child_request_id(job, ROOT);
        let now = clock::wall();
        (spec.root.created_at, spec.root.due, spec.root.unique) = (now, now, None);
        spec.root.id =
            TaskId::from_request(spec.root.id.lane(), &spec.root.spec.head.queue, None, &request_id);
        let body = Arc::make_mut(&mut spec.root.spec.body);
        (body.request_id, body.parent) = (Some(request_id), Some(job));
        Some(spec)
    }

    /// The payload of the job.
    pub(in crate::node) fn payload(&self) -> Result<Payload, SubmitError> {
        let payload = serde_json::to_string(self);
        let payload = payload.map_err(|error| StoreError::corrupt(error.to_string()))?;
        if payload.len() > RequestLimits::PAYLOAD_BYTES_CAP {
            let rule = "must be smaller: with all analyzers the job becomes too large";
            return Err(FieldError::invalid("payload", rule).into());
        }
        Ok(Payload::Json(payload))
    }
}

fn analyzer_key(namespace: &Name, task_type: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Analyzer, namespace: namespace.clone(), id: task_type.clone() }
}

impl Node {
    /// Registers the analyzer of a task type.
    pub async fn put_analyzer(
        &self,
        namespace: &Name,
        task_type: &Name,
        body: &[u8],
        replace: bool,
    ) -> Result<(NamedDocument, bool), NamedDocumentError> {
        check_not_system("taskType", task_type)?;
        self.read_sent(body, Analyzer::from_json).await?;
        let put = self.put_named(analyzer_key(namespace, task_type), body, replace).await?;
        self.0.types.forget(namespace);
        Ok(put)
    }

    /// The analyzer of a task type.
    pub async fn analyzer(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<Option<NamedDocument>, StoreError> {
        Ok(self.document(&analyzer_key(namespace, task_type)).await?.map(NamedDocument::from))
    }

    /// Analyzers, by task type.
    pub async fn analyzers(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<NamedDocument>, StoreError> {
        self.list_named(DocumentKind::Analyzer, namespace, after, limit).await
    }

    /// Removes an analyzer; jobs that have begun keep it. Returns whether there was one.
    pub async fn delete_analyzer(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<bool, NamedDocumentError> {
        let deleted = self.delete_named(analyzer_key(namespace, task_type)).await?;
        self.0.types.forget(namespace);
        Ok(deleted)
    }

    /// A job: by its own id, or that of any of its tasks. A task without a job is its own job.
    pub async fn job(&self, namespace: &Name, id: TaskId) -> Result<Option<JobView>, StoreError> {
        let Some(mut view) = self.task(namespace, id).await? else { return Ok(None) };
        while let Some(child) = view.row.state.child_of.clone()
            && let Some(composite) = self.task(namespace, child.composite).await?
        {
            view = composite;
        }
        let payload = view.row.body.as_ref().map(|body| body.payload.as_str()).unwrap_or_default();
        let counts = if view.row.head.task_type.as_str() == JOB_TYPE && !payload.is_empty() {
            let mut now = JobNow::new(payload).map_err(StoreError::corrupt)?;
            now.read(self, view.row.id).await?;
            now.counts()
        } else {
            self.count_children(&view.row).await?
        };
        Ok(Some(JobView { view, counts }))
    }

    /// Counts the children of a composite, and their children.
    async fn count_children(&self, row: &TaskRow) -> Result<JobCounts, StoreError> {
        let mut counts = JobCounts::default();
        if !row.state.composite {
            counts.add(row.state.status);
        }
        let mut composites: Vec<TaskId> = row.state.composite.then_some(row.id).into_iter().collect();
        while let Some(composite) = composites.pop() {
            self.each_child(composite, |name, child| match child.state.composite {
                true => composites.push(child.id),
                false if is_analysis(name) || name.starts_with(TOMBSTONE_PREFIX) => {}
                false => counts.add(child.state.status),
            })
            .await?;
        }
        Ok(counts)
    }

    /// Removes a job: cancels its open tasks, waits for them, and removes all of its tasks. `None` if there
    /// is no such job.
    pub async fn tear_down(
        &self,
        namespace: &Name,
        id: TaskId,
        at_most: Duration,
    ) -> Result<Option<TornDown>, StoreError> {
        let Some(JobView { view, .. }) = self.job(namespace, id).await? else { return Ok(None) };
        let job = view.row.id;
        self.cancel(namespace, job).await?;
        let ended = self.wait(namespace, job, at_most).await?;
        if ended.is_some_and(|view| !view.row.state.status.is_final()) {
            let mut left = vec![job];
            self.each_child(job, |_, child| {
                if !child.state.status.is_final() && left.len() < LEFT_MAX {
                    left.push(child.id);
                }
            })
            .await?;
            return Ok(Some(TornDown { removed: 0, left }));
        }
        // Open tasks of a failed job are stopped too; while a task is open, nothing is removed.
        let until = Instant::now() + at_most;
        loop {
            let left = self.open_children(job).await?;
            if left.is_empty() {
                break;
            }
            self.cancel_all(&left).await?;
            if Instant::now() >= until {
                return Ok(Some(TornDown { removed: 0, left: left.into_iter().take(LEFT_MAX).collect() }));
            }
            tokio::time::sleep(TEARDOWN_LOOK).await;
        }
        let mut removed = if view.row.state.composite { self.forget_children(job).await? } else { 0 };
        self.archive_before_removal(&[job]).await?;
        self.0.parts.logs.remove(&[job]).await?;
        self.0.parts.store.retire(&[], &[job]).await?;
        removed += 1;
        let mut left: Vec<TaskId> =
            self.task(namespace, job).await?.map(|view| view.row.id).into_iter().collect();
        self.each_child(job, |_, child| {
            if left.len() < LEFT_MAX {
                left.push(child.id);
            }
        })
        .await?;
        Ok(Some(TornDown { removed, left }))
    }

    /// The open children of a composite, and theirs.
    async fn open_children(&self, composite: TaskId) -> Result<Vec<TaskId>, StoreError> {
        let (mut open, mut composites) = (Vec::new(), vec![composite]);
        while let Some(composite) = composites.pop() {
            self.each_child(composite, |_, child| {
                if child.state.composite {
                    composites.push(child.id);
                }
                if !child.state.status.is_final() {
                    open.push(child.id);
                }
            })
            .await?;
        }
        Ok(open)
    }

    /// The job that a task becomes if its type has an analyzer; else the task itself.
    pub(in crate::node) async fn job_of(
        &self,
        namespace: &Name,
        mut request: TaskRequest,
    ) -> Result<NewTask, SubmitError> {
        if request.in_job
            || request.composite
            || !self.types(namespace).await?.analyzed.contains(&request.task_type)
        {
            return self.place_one(namespace, request).await;
        }
        request.extra_webhooks = self.queue_webhooks(namespace, &request).await?;
        let composite = composite_of(JOB_TYPE, &request, "{}".to_owned());
        let mut job = self.place_one(namespace, composite).await?;
        job.fingerprint = request.fingerprint();
        let root = TaskRequest {
            request_id: Some(child_request_id(job.id, ROOT)),
            parent: Some(job.id),
            child_name: Some(ROOT.to_owned()),
            in_job: true,
            run_at: None,
            delay: None,
            webhooks: Vec::new(),
            extra_webhooks: Vec::new(),
            ..request
        };
        let root = self.place_one(namespace, root).await?;
        let (held, queue) = (root.unique.clone(), root.spec.head.queue.queue.clone());
        let analyzers = self.analyzers_now(namespace).await?;
        let payload = JobSpec { root, analyzers }.payload()?;
        // The second of two requests with one unique key gets the job of the first.
        job.unique = held.map(|unique| unique_in(&queue, &unique));
        Arc::make_mut(&mut job.spec.body).payload = payload;
        Ok(job)
    }

    /// All analyzers of a namespace, by task type.
    pub(in crate::node) async fn analyzers_now(
        &self,
        namespace: &Name,
    ) -> Result<BTreeMap<Name, Box<RawValue>>, StoreError> {
        let mut analyzers = BTreeMap::new();
        for NamedDocument { id, json, .. } in self.all_named(DocumentKind::Analyzer, namespace).await? {
            let raw = RawValue::from_string(json).map_err(|error| StoreError::corrupt(error.to_string()))?;
            analyzers.insert(id, raw);
        }
        Ok(analyzers)
    }
}

/// A child as the job sees it.
#[derive(Clone, Debug)]
struct Member {
    id: TaskId,
    status: Status,
    task_type: Name,
}

/// Number of tasks of a job by status. Analyses are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCounts {
    /// All of them.
    pub total: usize,
    /// By status.
    pub by_status: BTreeMap<String, usize>,
    /// Tasks that have not ended.
    pub open: usize,
    /// Tasks that have ended and whose results are not analyzed yet.
    pub unanalyzed: usize,
}

impl JobCounts {
    /// Share of tasks that have ended and are analyzed, 0 to 100.
    pub fn percent(&self) -> usize {
        100 * self.total.saturating_sub(self.open + self.unanalyzed) / self.total.max(1)
    }

    fn add(&mut self, status: Status) {
        self.total += 1;
        *self.by_status.entry(status.as_str().to_owned()).or_default() += 1;
        self.open += usize::from(!status.is_final());
    }
}

/// A new child.
#[derive(Debug)]
enum NextChild {
    New(Box<Result<TaskRequest, TaskError>>),
    /// The work of this task once more.
    Again(TaskId),
}

/// A job as it is in the store.
#[derive(Debug)]
struct JobNow {
    root: NewTask,
    analyzers: BTreeMap<Name, Analyzer>,
    job: Job<Member, NextChild>,
    /// Tasks that have not ended, by id.
    open: HashMap<TaskId, String>,
    /// Tombstones that have not ended.
    tombstones: HashSet<TaskId>,
    failure: Option<TaskError>,
    /// Children without a task, because another task holds their unique key.
    held: HashSet<String>,
}

impl JobNow {
    fn new(payload: &str) -> Result<Self, String> {
        let spec: JobSpec = serde_json::from_str(payload).map_err(|error| error.to_string())?;
        let mut analyzers = BTreeMap::new();
        for (task_type, raw) in spec.analyzers {
            let analyzer = Analyzer::from_json(raw.get().as_bytes()).map_err(|error| error.to_string())?;
            analyzers.insert(task_type, analyzer);
        }
        Ok(Self {
            root: spec.root,
            analyzers,
            job: Job::new(Invariants::ALL_ON),
            open: HashMap::new(),
            tombstones: HashSet::new(),
            failure: None,
            held: HashSet::new(),
        })
    }

    async fn read(&mut self, node: &Node, id: TaskId) -> Result<(), StoreError> {
        let halted = self.job.is_halted();
        self.job = Job::new(Invariants::ALL_ON);
        self.open.clear();
        self.tombstones.clear();
        let mut found: BTreeMap<String, Member> = BTreeMap::new();
        node.each_child(id, |name, row| {
            let status = row.state.status;
            if name.starts_with(TOMBSTONE_PREFIX) {
                self.tombstones.extend(Some(row.id).filter(|_| !status.is_final()));
                return;
            }
            let task_type = row.head.task_type.clone();
            if task_type.as_str() == REFUSED_TYPE && code_of(&row) == Some(HELD) {
                self.held.insert(name.to_owned());
            }
            // The oldest child of a name counts, which comes last.
            found.insert(name.to_owned(), Member { id: row.id, status, task_type });
        })
        .await?;
        for (name, member) in found {
            let (id, status) = (member.id, member.status);
            self.job.found(name.clone(), member);
            if status.is_final() {
                self.job.ended(name);
            } else {
                self.open.insert(id, name);
            }
        }
        if halted {
            self.job.halt();
        }
        Ok(())
    }

    /// Whether a child has ended with a result to analyze.
    fn is_analyzed(&self, name: &str, member: &Member) -> bool {
        !is_analysis(name)
            && matches!(member.status, Status::Success | Status::Failed)
            && self.analyzers.contains_key(&member.task_type)
    }

    fn counts(&self) -> JobCounts {
        let mut counts = JobCounts::default();
        for (name, member) in self.job.members() {
            if is_analysis(name) || self.held.contains(name) {
                continue;
            }
            counts.add(member.status);
            let analysis = self.job.member(&analysis_of(name));
            let looked_at = analysis.is_some_and(|analysis| analysis.status.is_final());
            counts.unanalyzed += usize::from(self.is_analyzed(name, member) && !looked_at);
        }
        counts
    }

    fn begun(&mut self, name: String, id: TaskId, task_type: Name) {
        self.open.insert(id, name.clone());
        self.job.begun(name, Member { id, status: Status::Pending, task_type });
    }

    fn note_failure(&mut self, error: TaskError) {
        self.job.fail();
        self.failure.get_or_insert(error);
    }

    fn note_limit(&mut self, limit: &JobLimit) {
        self.note_failure(TaskError::new("job_limit", limit.to_string()));
    }

    /// Reads children that have ended: the next steps become ready.
    async fn look(&mut self, node: &Node) -> Result<(), StoreError> {
        loop {
            let names = self.job.take_ended(LOOK);
            if names.is_empty() {
                return Ok(());
            }
            let ids = names.iter().filter_map(|name| self.job.member(name)).map(|member| member.id);
            let ids: Vec<TaskId> = ids.collect();
            // If the store fails here, the job reads everything again.
            for (name, view) in names.into_iter().zip(node.views(&ids).await?) {
                let Some(view) = view else { continue };
                if is_analysis(&name) { self.on_analysis(&name, &view) } else { self.on_end(&name, &view) }
            }
        }
    }

    /// A task of the job has ended.
    fn on_end(&mut self, name: &str, view: &TaskView) {
        let Some(member) = self.job.member(name).cloned() else { return };
        if member.task_type.as_str() == REFUSED_TYPE && code_of(&view.row) == Some(HELD) {
            // Another task does the work, or has done it.
            self.held.insert(name.to_owned());
            return;
        }
        if !self.is_analyzed(name, &member) {
            if member.status != Status::Success {
                let why = view.row.state.error.as_ref().map_or("", |error| &error.message);
                self.note_failure(child_failed("task", &member.id.to_string(), member.status, why));
            }
            return;
        }
        let analyzer = &self.analyzers[&member.task_type];
        self.job.analyze(name, || {
            let request = analyzer.request(&view.row, &given(name, view));
            NextChild::of(request)
        });
    }

    /// An analysis has ended.
    fn on_analysis(&mut self, name: &str, view: &TaskView) {
        let of = analyzed_by(name).to_owned();
        let status = view.row.state.status;
        if status != Status::Success {
            let why = view.row.state.error.as_ref().map_or("", |error| &error.message);
            return self.note_failure(child_failed("the analysis of task", &self.of_id(&of), status, why));
        }
        let data = view.result.as_ref().map_or("", |result| &result.data);
        let analysis = match Analysis::from_data(data) {
            Ok(analysis) => analysis,
            Err(error) => {
                let message = format!("the analysis of task {} is not valid: {error}", self.of_id(&of));
                return self.note_failure(TaskError::new("analysis_invalid", message).bounded());
            }
        };
        let Some(member) = self.job.member(&of) else { return };
        let judged = analysis.verdict.unwrap_or(match member.status {
            Status::Success => AnalysisVerdict::Success,
            _ => AnalysisVerdict::Failure,
        });
        let id = member.id;
        match judged {
            AnalysisVerdict::Success => {}
            AnalysisVerdict::Failure => {
                let message = format!("task {id} is judged to have failed");
                self.note_failure(TaskError::new("child_failed", message));
            }
            AnalysisVerdict::Retry => {
                if let Err(limit) = self.job.run_again(&of, NextChild::Again(id)) {
                    self.note_failure(TaskError::new("child_failed", format!("task {id}: {limit}")));
                }
            }
        }
        self.add_subtasks(&of, analysis.subtasks);
    }

    fn of_id(&self, name: &str) -> String {
        self.job.member(name).map_or_else(String::new, |member| member.id.to_string())
    }

    fn add_subtasks(&mut self, of: &str, subtasks: Vec<Result<TaskRequest, FieldError>>) {
        let Some(analyzer) = self.job.member(of).and_then(|member| self.analyzers.get(&member.task_type))
        else {
            return;
        };
        let limits = JobLimits {
            depth: analyzer.max_depth as usize,
            at_once: analyzer.max_subtasks as usize,
            tasks: analyzer.max_tasks as usize,
        };
        let requests = subtasks.into_iter().map(NextChild::of).collect();
        if let Err(limit) = self.job.add(of, requests, limits) {
            self.note_limit(&limit);
        }
    }
}

impl NextChild {
    fn of(request: Result<TaskRequest, FieldError>) -> Self {
        let error = |error: FieldError| TaskError::new("invalid", error.to_string()).bounded();
        Self::New(Box::new(request.map_err(error)))
    }
}

fn code_of(row: &TaskRow) -> Option<&str> {
    row.state.error.as_ref().map(|error| error.code.as_str())
}

/// The input of an analysis.
fn given(name: &str, view: &TaskView) -> Value {
    let row = &view.row;
    let body = row.body.as_deref();
    let payload = body.map(|body| match &body.payload {
        Payload::Text(text) => json!(text),
        Payload::Json(json) => parse_exact(json).unwrap_or_default(),
    });
    let mut given = json!({
        "status": row.state.status.as_str(),
        "task": {
            "id": row.id.to_string(),
            "name": body.map_or("", |body| &body.name),
            "type": row.head.task_type.as_str(),
            "payload": payload,
            "metadata": body.map(|body| &body.metadata),
            "depth": depth(name),
        },
    });
    if let Some(result) = &view.result {
        let data = parse_exact(&result.data).unwrap_or_default();
        given["result"] = json!({ "code": result.code, "message": result.message, "data": data });
    }
    if let Some(error) = &row.state.error {
        given["error"] = json!({ "code": error.code, "message": error.message });
    }
    given
}

/// Drives jobs, in a server.
#[derive(Debug)]
pub(in crate::node) struct JobExecutor {
    node: Node,
}

impl JobExecutor {
    /// Over the node that also accepts the tasks.
    pub(in crate::node) fn new(node: Node) -> Self {
        Self { node }
    }
}

fn now_of(dispatch: &Dispatch) -> Result<JobNow, ExecutorError> {
    let payload = dispatch.body.as_ref().map_or("", |body| body.payload.as_str());
    JobNow::new(payload).map_err(|reason| ExecutorError::BadPayload { reason })
}

#[async_trait]
impl Executor for JobExecutor {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        now_of(dispatch).map(drop)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let now = now_of(dispatch)?;
        let driver = Driver::of(self.node.clone(), dispatch).await?;
        Ok(Box::new(JobExecution { driver, now }))
    }
}

#[derive(Debug)]
struct JobExecution {
    driver: Driver,
    now: JobNow,
}

#[async_trait]
impl Execution for JobExecution {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let Self { driver, now } = *self;
        driver.run(Box::new(now), attempt).await
    }
}

#[async_trait]
impl Drive for JobNow {
    async fn resume(&mut self, driver: &Driver) -> Result<(), DriveError> {
        self.read(&driver.node, driver.id).await?;
        Ok(())
    }

    async fn begin(&mut self, driver: &Driver) -> Result<Option<Duration>, DriveError> {
        if self.job.member(ROOT).is_none() {
            let id = self.root.id;
            match driver.submit_task(self.root.clone()).await? {
                Ok(ChildStart::Started(_)) => {}
                Ok(ChildStart::QueueFull) => return Ok(Some(AGAIN_AFTER)),
                Err(error) => {
                    self.note_failure(error);
                    self.job.halt();
                    return Ok(None);
                }
            }
            let task_type = self.root.spec.head.task_type.clone();
            self.open.insert(id, ROOT.to_owned());
            self.job.found(ROOT.to_owned(), Member { id, status: Status::Pending, task_type });
            // The child exists, even if an earlier attempt submitted it: so a cancel finds it.
            if self.job.is_halted() {
                driver.node.cancel_all(&[id]).await?;
            }
        }
        self.look(&driver.node).await?;
        let ready = self.job.take_ready(PAGE);
        if ready.is_empty() {
            return Ok(None);
        }
        let (mut fresh, mut full) = (Vec::new(), Vec::new());
        for (name, next) in ready {
            match next {
                NextChild::New(request) => fresh.push((name, *request)),
                NextChild::Again(of) => match driver.submit_again(&name, of).await? {
                    Ok((ChildStart::Started(id), task_type)) => self.begun(name, id, task_type),
                    Ok((ChildStart::QueueFull, _)) => full.push((name, NextChild::Again(of))),
                    Err(error) => self.note_failure(error),
                },
            }
        }
        let begun = driver.submit(fresh.clone()).await?;
        for ((name, request), begun) in fresh.into_iter().zip(begun) {
            match begun {
                ChildStart::Started(id) => {
                    let refused = || Name::new(REFUSED_TYPE).expect("a valid name");
                    let task_type = request.map_or_else(|_| refused(), |request| request.task_type);
                    self.begun(name, id, task_type);
                }
                ChildStart::QueueFull => full.push((name, NextChild::New(Box::new(request)))),
            }
        }
        let again = if full.is_empty() { Duration::ZERO } else { AGAIN_AFTER };
        for (name, next) in full {
            self.job.give_back(name, next);
        }
        Ok(Some(again))
    }

    fn ended(&mut self, children: Vec<TaskView>) {
        for view in children {
            self.tombstones.remove(&view.row.id);
            let Some(name) = self.open.remove(&view.row.id) else { continue };
            if let Some(member) = self.job.member_mut(&name) {
                member.status = view.row.state.status;
                member.task_type = view.row.head.task_type.clone();
            }
            self.job.ended(name);
        }
    }

    fn gone(&mut self, child: TaskId) {
        self.tombstones.remove(&child);
        if let Some(name) = self.open.remove(&child) {
            self.job.gone(&name);
            self.note_failure(TaskError::new("child_failed", format!("task {child} was removed")));
        }
    }

    fn open(&self) -> Vec<TaskId> {
        self.open.keys().chain(&self.tombstones).copied().collect()
    }

    fn tombstones(&self) -> Vec<TaskId> {
        self.tombstones.iter().copied().collect()
    }

    fn halt(&mut self) {
        self.job.halt();
    }

    async fn maybe_submitted(&mut self, driver: &Driver) -> Result<Vec<(String, NewTask)>, DriveError> {
        // Only a halted job has children left that could have begun.
        let (mut fresh, mut placed) = (Vec::new(), Vec::new());
        for (name, next) in self.job.take_maybe_submitted() {
            match next {
                NextChild::New(request) => fresh.push((name, *request)),
                NextChild::Again(of) => {
                    if let Ok(task) = driver.again(&name, of).await? {
                        placed.push((name, task));
                    }
                }
            }
        }
        placed.extend(driver.placed(fresh).await?);
        Ok(placed)
    }

    async fn end(&mut self, _: &Driver) -> Result<Option<CompositeOutcome>, DriveError> {
        if !self.tombstones.is_empty() || !self.job.is_over() {
            return Ok(None);
        }
        let data = serde_json::to_string(&self.counts()).expect("counts can be written");
        Ok(Some(match &self.failure {
            None => CompositeOutcome::Success(data),
            Some(error) => CompositeOutcome::Failed(error.clone(), data),
        }))
    }

    fn progress(&self) -> Progress {
        let counts = self.counts();
        let percent = u8::try_from(counts.percent()).ok();
        let JobCounts { total, open, unanalyzed, .. } = counts;
        let ended = total - open;
        Progress { percent, message: format!("{ended} of {total} tasks, {unanalyzed} unanalyzed") }
    }
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::LaneId;
    use tasklane_core::policy::{QueueBinding, QueuePolicy};
    use tasklane_core::time::Timestamp;
    use tasklane_testkit::golden::check;

    use super::*;
    use crate::request::Placement;

    #[test]
    fn payloads_and_results_of_jobs_keep_their_form() {
        let mut request = TaskRequest::new("crawl", name("PAGE"), Payload::Json(r#"{"n":1}"#.to_owned()));
        request.request_id = Some("r1".to_owned());
        request.parent = Some(TaskId::from_random(7));
        let place = Placement {
            namespace: &name("default"),
            binding: &QueueBinding::Lane(LaneId(3)),
            policy: &QueuePolicy::default(),
            now: Timestamp::from_millis(1_800_000_000_000),
            random: 7,
            limits: &RequestLimits::default(),
            archived: true,
        };
        let analyzer = RawValue::from_string(r#"{ "taskType": "LINKS" }"#.to_owned()).expect("JSON");
        let spec = JobSpec {
            root: request.into_task(place).expect("a valid request"),
            analyzers: BTreeMap::from([(name("PAGE"), analyzer)]),
        };
        let by_status = Status::ALL.map(|status| (status.as_str().to_owned(), 1)).into();
        check("job", |golden| {
            golden.json("job", &spec);
            golden.json("counts", &JobCounts { total: 8, by_status, open: 3, unanalyzed: 2 });
        });
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a valid name")
    }
}

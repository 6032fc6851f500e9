//! A whole node in a test: memory store, in-process bus and coordinator, one worker.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]
#![allow(dead_code, reason = "each test file uses its part")]

mod faulty;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tasklane_core::id::{Name, TaskId};
use tasklane_core::message::{Dispatch, Ending, Finish, RetryAdvice};
use tasklane_core::task::{Payload, TaskError, TaskResult};
use tasklane_core::worker;
use tasklane_local::{LocalBus, LocalCoordinator, MemoryOptions, MemoryStore, SessionsOptions};
use tasklane_ports::{Archive, Attempt, Execution, Executor, ExecutorError, TaskView};
use tasklane_runtime::executors::Registry;
use tasklane_runtime::held_sessions::HeldSessions;
use tasklane_runtime::node::{
    BULK_TYPE, BulkExecutor, Node, NodeOptions, NodeParts, RetentionOptions, SystemWorker,
};
use tasklane_runtime::notifier::Notifier;
use tasklane_runtime::request::{RequestLimits, TaskRequest};
use tasklane_runtime::scheduler::{Scheduler, SchedulerOptions, SchedulerParts};
use tasklane_runtime::worker::{OutputOptions, Worker, WorkerOptions, WorkerParts};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use faulty::{Fault, Faulty};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn default_namespace() -> Name {
    name("default")
}

/// All parts, in this process.
pub(crate) struct System {
    pub(crate) node: Node,
    pub(crate) store: Arc<Faulty>,
    /// The action of the first attempt of a bulk action, before it fails.
    pub(crate) before_bulk: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    stop_worker: CancellationToken,
    stop_rest: CancellationToken,
    worker: JoinHandle<()>,
    built_in_workers: Vec<JoinHandle<()>>,
    rest: Vec<JoinHandle<()>>,
}

impl System {
    pub(crate) async fn start(executors: Vec<(&str, Arc<dyn Executor>)>) -> Self {
        Self::start_with(executors, RetentionOptions::default()).await
    }

    pub(crate) async fn start_with(
        executors: Vec<(&str, Arc<dyn Executor>)>,
        retention: RetentionOptions,
    ) -> Self {
        Self::start_archived(executors, retention, None).await
    }

    pub(crate) async fn start_archived(
        executors: Vec<(&str, Arc<dyn Executor>)>,
        retention: RetentionOptions,
        archive: Option<Arc<dyn Archive>>,
    ) -> Self {
        let logs = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let store = Arc::new(Faulty::new(logs.clone()));
        let bus = Arc::new(LocalBus::default());
        let coordinator = Arc::new(LocalCoordinator::new(SessionsOptions::default()));
        let notifier = Arc::new(Notifier::default());
        let scheduler = Scheduler::new(
            SchedulerOptions { lanes: 2, ..SchedulerOptions::default() },
            SchedulerParts {
                store: store.clone(),
                bus: bus.clone(),
                coordinator: coordinator.clone(),
                notifier: Arc::clone(&notifier),
                held_sessions: HeldSessions::default(),
            },
        );
        let node = Node::new(
            NodeOptions {
                lanes: 2,
                is_cluster: false,
                limits: RequestLimits::default(),
                retention,
                warnings: Vec::new(),
            },
            NodeParts {
                store: store.clone(),
                logs: logs.clone(),
                documents: logs.clone(),
                bus: bus.clone(),
                scheduler: scheduler.handle(),
                notifier: Arc::clone(&notifier),
                archive,
            },
        );
        let mut registry = Registry::new();
        let before_bulk: Arc<Mutex<Option<BoxFuture<'static, ()>>>> = Arc::default();
        let bulk = FirstFails { first: Arc::clone(&before_bulk), then: BulkExecutor::new(node.clone()) };
        registry.register(name(BULK_TYPE), Arc::new(bulk));
        for (task_type, executor) in executors {
            registry.register(name(task_type), executor);
        }
        let worker = |name: Name, executors: Registry, capacity: u32| {
            let options = WorkerOptions {
                name,
                weight: 1,
                labels: BTreeMap::new(),
                address: "127.0.0.1:7070".to_owned(),
                stop_grace: Duration::from_secs(1),
                drain_grace: Duration::from_secs(5),
                machine: worker::WorkerOptions { lanes: 2, capacity, ..worker::WorkerOptions::default() },
                output: OutputOptions::default(),
            };
            let parts = WorkerParts {
                bus: bus.clone(),
                coordinator: coordinator.clone(),
                logs: logs.clone(),
                executors,
                notifier: Arc::clone(&notifier),
                held_sessions: HeldSessions::default(),
                on_lease: Arc::new(|_| {}),
            };
            Worker::new(options, parts)
        };
        let capacity = worker::WorkerOptions::default().capacity;
        // The other worker runs the bulk actions, and a test can make it fail.
        let built_in_workers =
            SystemWorker::all(&node).into_iter().filter(|worker| worker.name.as_str() != "tasklane.system");
        let built_in_workers: Vec<Worker> =
            built_in_workers.map(|w| worker(w.name, w.executors, w.capacity)).collect();
        let worker = worker(name("w1"), registry, capacity);
        let (stop_worker, stop_rest) = (CancellationToken::new(), CancellationToken::new());
        let background = node.clone();
        let stop_node = stop_rest.clone();
        let system = Self {
            node,
            store,
            before_bulk,
            worker: tokio::spawn(worker.run(stop_worker.clone())),
            built_in_workers: built_in_workers
                .into_iter()
                .map(|worker| tokio::spawn(worker.run(stop_worker.clone())))
                .collect(),
            rest: vec![
                tokio::spawn(scheduler.run(stop_rest.clone())),
                tokio::spawn(async move { background.run(stop_node).await }),
            ],
            stop_worker,
            stop_rest,
        };
        system.node.loaded().await;
        system
    }

    pub(crate) async fn submit(&self, requests: Vec<TaskRequest>) -> Vec<TaskId> {
        let answers = self.node.submit(&default_namespace(), requests).await;
        answers.into_iter().map(|answer| answer.unwrap().id).collect()
    }

    pub(crate) async fn wait(&self, id: TaskId) -> TaskView {
        self.node.wait(&default_namespace(), id, Duration::from_mins(1)).await.unwrap().unwrap()
    }

    /// Stops in an orderly way.
    pub(crate) async fn close(self) {
        self.stop_worker.cancel();
        self.worker.await.unwrap();
        for worker in self.built_in_workers {
            worker.await.unwrap();
        }
        self.stop_rest.cancel();
        for part in self.rest {
            part.await.unwrap();
        }
    }
}

pub(crate) fn request(task_type: &str) -> TaskRequest {
    TaskRequest::new("test", name(task_type), Payload::Text("hello".to_owned()))
}

/// An executor in front of another one, whose first attempt does something else and fails.
struct FirstFails {
    first: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    then: BulkExecutor,
}

impl fmt::Debug for FirstFails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstFails")
    }
}

#[async_trait]
impl Executor for FirstFails {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        self.then.check(dispatch)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let first = self.first.lock().unwrap().take();
        let Some(first) = first else { return self.then.prepare(dispatch).await };
        first.await;
        let run = |_: Dispatch, _: Arc<dyn Attempt>| async {
            let error = TaskError::new("crash", "as if the server had been killed");
            Finish {
                ending: Ending::Failed { error, retry: RetryAdvice::After(Duration::ZERO) },
                ..success()
            }
        };
        Ok(Box::new(Ready { run, dispatch: dispatch.clone() }))
    }
}

/// Runs a closure for each attempt.
pub(crate) struct Run<F>(pub(crate) F);

impl<F> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}

#[async_trait]
impl<F, R> Executor for Run<F>
where
    F: Fn(Dispatch, Arc<dyn Attempt>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Finish> + Send,
{
    fn check(&self, _: &Dispatch) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        Ok(Box::new(Ready { run: self.0.clone(), dispatch: dispatch.clone() }))
    }
}

struct Ready<F> {
    run: F,
    dispatch: Dispatch,
}

impl<F> fmt::Debug for Ready<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ready")
    }
}

#[async_trait]
impl<F, R> Execution for Ready<F>
where
    F: Fn(Dispatch, Arc<dyn Attempt>) -> R + Send + Sync,
    R: Future<Output = Finish> + Send,
{
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        (self.run)(self.dispatch, attempt).await
    }
}

pub(crate) fn success() -> Finish {
    Finish { ran: Duration::ZERO, ending: Ending::Success, result: TaskResult::default() }
}

//! A whole server in a test: memory store, in-process bus and coordinator, one worker, the API on a real socket.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "parts of tests fail by panicking")]

mod client;
mod executors;
#[path = "../../../../runtime/tests/node/support/faulty.rs"]
mod faulty;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tasklane_api::{ApiOptions, ServeOptions};
use tasklane_core::id::Name;
use tasklane_core::ownership::OwnershipOptions;
use tasklane_core::worker;
use tasklane_local::{LocalBus, LocalCoordinator, MemoryOptions, MemoryStore, SessionsOptions};
use tasklane_ports::Store;
use tasklane_runtime::executors::Registry;
use tasklane_runtime::held_sessions::HeldSessions;
use tasklane_runtime::node::{Node, NodeOptions, NodeParts, RetentionOptions, SystemWorker};
use tasklane_runtime::notifier::Notifier;
use tasklane_runtime::request::RequestLimits;
use tasklane_runtime::scheduler::{Scheduler, SchedulerOptions, SchedulerParts};
use tasklane_runtime::worker::{OutputOptions, Worker, WorkerOptions, WorkerParts};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use client::{Answer, Request, send_raw};
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use faulty::{Fault, Faulty};

const LANES: u16 = 2;

/// A server with a worker called `w1` that offers `echo`, `noop`, `fail`, `busy`, `flaky`, `endless` and `progress`.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<MemoryStore>,
    /// The same store, as the server uses it.
    pub(crate) faults: Arc<Faulty>,
    pub(crate) coordinator: Arc<LocalCoordinator>,
    stop_api: CancellationToken,
    stop_worker: CancellationToken,
    stop_rest: CancellationToken,
    pub(crate) api: JoinHandle<()>,
    worker: JoinHandle<()>,
    system_workers: Vec<JoinHandle<()>>,
    rest: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(ApiOptions::default()).await
    }

    pub(crate) async fn with(options: ApiOptions) -> Self {
        Self::with_all(options, ServeOptions::default()).await
    }

    pub(crate) async fn with_all(options: ApiOptions, serve: ServeOptions) -> Self {
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let faults = Arc::new(Faulty::new(store.clone()));
        let bus = Arc::new(LocalBus::default());
        let coordinator = Arc::new(LocalCoordinator::new(SessionsOptions::default()));
        let notifier = Arc::new(Notifier::default());
        let scheduler = Scheduler::new(
            SchedulerOptions {
                lanes: LANES,
                // A store that refuses is given up soon.
                ownership: OwnershipOptions { commit_tries_max: 2, ..OwnershipOptions::default() },
                ..SchedulerOptions::default()
            },
            SchedulerParts {
                store: faults.clone(),
                bus: bus.clone(),
                coordinator: coordinator.clone(),
                notifier: Arc::clone(&notifier),
                held_sessions: HeldSessions::default(),
            },
        );
        let node = Node::new(
            NodeOptions {
                lanes: LANES,
                is_cluster: false,
                limits: RequestLimits::default(),
                retention: RetentionOptions::default(),
                warnings: Vec::new(),
            },
            NodeParts {
                store: faults.clone(),
                logs: store.clone(),
                documents: store.clone(),
                bus: bus.clone(),
                scheduler: scheduler.handle(),
                notifier: Arc::clone(&notifier),
                archive: None,
            },
        );
        let worker = |name: Name, executors: Registry, capacity: u32| {
            let options = WorkerOptions {
                name,
                weight: 1,
                labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
                address: "127.0.0.1:7070".to_owned(),
                stop_grace: Duration::from_secs(1),
                drain_grace: Duration::from_secs(5),
                machine: worker::WorkerOptions { lanes: LANES, capacity, ..worker::WorkerOptions::default() },
                output: OutputOptions::default(),
            };
            let parts = WorkerParts {
                bus: bus.clone(),
                coordinator: coordinator.clone(),
                logs: store.clone(),
                executors,
                notifier: Arc::clone(&notifier),
                held_sessions: HeldSessions::default(),
                on_lease: Arc::new(|_| {}),
            };
            Worker::new(options, parts)
        };
        let system_workers = SystemWorker::all(&node).into_iter();
        let system_workers: Vec<Worker> =
            system_workers.map(|w| worker(w.name, w.executors, w.capacity)).collect();
        let worker = worker(name("w1"), executors::all(), worker::WorkerOptions::default().capacity);
        let (stop_api, stop_worker, stop_rest) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = tasklane_api::router(node.clone(), options);
        let background = node.clone();
        let stop_node = stop_rest.clone();
        let server = Self {
            address,
            store,
            faults,
            coordinator: coordinator.clone(),
            api: tokio::spawn(tasklane_api::serve(
                listener,
                router,
                serve,
                stop_api.clone().cancelled_owned(),
            )),
            worker: tokio::spawn(worker.run(stop_worker.clone())),
            system_workers: system_workers
                .into_iter()
                .map(|worker| tokio::spawn(worker.run(stop_worker.clone())))
                .collect(),
            rest: vec![
                tokio::spawn(scheduler.run(stop_rest.clone())),
                tokio::spawn(async move { background.run(stop_node).await }),
            ],
            stop_api,
            stop_worker,
            stop_rest,
        };
        node.loaded().await;
        // Some of its types look like slips of built-in ones, and are taken while it lives.
        while node.workers().is_empty() {
            tokio::task::yield_now().await;
        }
        server
    }

    /// Tells the API to stop, and nothing else.
    pub(crate) fn stop_api(&self) {
        self.stop_api.cancel();
    }

    /// Stops in an orderly way.
    pub(crate) async fn close(self) {
        self.stop_api.cancel();
        self.api.await.unwrap();
        self.stop_worker.cancel();
        self.worker.await.unwrap();
        for worker in self.system_workers {
            worker.await.unwrap();
        }
        self.stop_rest.cancel();
        for part in self.rest {
            part.await.unwrap();
        }
    }

    /// The store answers nothing from now on.
    pub(crate) async fn close_store(&self) {
        self.store.close().await.unwrap();
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        Request::new(self.address, method, path)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path).send().await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path).json(body).send().await
    }

    /// Submits a task and gives its id.
    pub(crate) async fn submit(&self, body: Value) -> String {
        let answer = self.post("/api/v1/tasks", &body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["taskId"].as_str().unwrap().to_owned()
    }

    /// Submits a task and waits for its end.
    pub(crate) async fn run(&self, body: Value) -> Value {
        let answer = self.post("/api/v1/tasks?wait=60s", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// Waits until an attempt of a task has printed something.
    pub(crate) async fn begun(&self, id: &str) {
        let mut output = self.request("GET", &format!("/api/v1/tasks/{id}/logs?follow=true")).stream().await;
        assert_eq!(output.next().await.expect("output").kind, "log");
    }

    /// Waits until a task has ended in a state, by the stream of events.
    pub(crate) async fn until(&self, id: &str, status: &str) {
        let mut events = self.request("GET", "/api/v1/events").stream().await;
        if self.get(&format!("/api/v1/tasks/{id}")).await.json()["status"] == status {
            return;
        }
        loop {
            let event = events.next().await.expect("the stream goes on");
            if event.data["taskId"] == id && event.data["status"] == status {
                return;
            }
        }
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A request for a task.
pub(crate) fn task(task_type: &str) -> Value {
    json!({ "taskName": "test", "taskType": task_type, "payload": "hello" })
}

/// A request for a task, with more fields.
#[expect(clippy::needless_pass_by_value, reason = "reads better where it is called")]
pub(crate) fn task_with(task_type: &str, more: Value) -> Value {
    let mut task = task(task_type);
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

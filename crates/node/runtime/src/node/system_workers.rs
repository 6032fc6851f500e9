//! System workers: the workers that run in every server for its system tasks.

use std::sync::Arc;

use tasklane_core::id::Name;

use crate::executors::Registry;

use super::Node;
use super::bulk::{BULK_TYPE, BulkExecutor};
use super::composite::driver::{REFUSED_TYPE, RefusedExecutor};
use super::composite::job::{JOB_TYPE, JobExecutor};
use super::composite::map::{MAP_TYPE, MapExecutor};
use super::composite::workflow_run::{WORKFLOW_TYPE, WorkflowExecutor};
use super::webhooks::{WEBHOOK_TYPE, WebhookExecutor};

/// A worker of the server for system tasks.
#[derive(Debug)]
pub struct SystemWorker {
    /// Its name.
    pub name: Name,
    /// Attempts that it runs together.
    pub capacity: u32,
    /// Its executors.
    pub executors: Registry,
}

/// Actions on many tasks.
const BULK_CAPACITY: u32 = 2;
/// Deliveries of webhooks: they mostly wait for an answer.
const WEBHOOKS_CAPACITY: u32 = 2_000;
/// Composites of one kind. They mostly wait, so there may be many.
const COMPOSITES_CAPACITY: u32 = 10_000;

impl SystemWorker {
    /// All system workers of a server. Each kind of composite has a worker of its own, so that no composite
    /// takes the room of the tasks that it waits for.
    pub fn all(node: &Node) -> Vec<Self> {
        let name = |text: &str| Name::new(text).expect("a valid name");
        let worker =
            |worker: &str, capacity| Self { name: name(worker), capacity, executors: Registry::new() };
        let mut bulk = worker("tasklane.system", BULK_CAPACITY);
        bulk.executors.register(name(BULK_TYPE), Arc::new(BulkExecutor::new(node.clone())));
        let mut runs = worker("tasklane.workflows", COMPOSITES_CAPACITY);
        runs.executors.register(name(WORKFLOW_TYPE), Arc::new(WorkflowExecutor::new(node.clone())));
        let mut maps = worker("tasklane.maps", COMPOSITES_CAPACITY);
        maps.executors.register(name(MAP_TYPE), Arc::new(MapExecutor::new(node.clone())));
        let mut jobs = worker("tasklane.jobs", COMPOSITES_CAPACITY);
        jobs.executors.register(name(JOB_TYPE), Arc::new(JobExecutor::new(node.clone())));
        let mut refused = worker("tasklane.refused", BULK_CAPACITY);
        refused.executors.register(name(REFUSED_TYPE), Arc::new(RefusedExecutor));
        let mut webhooks = worker("tasklane.webhooks", WEBHOOKS_CAPACITY);
        webhooks.executors.register(name(WEBHOOK_TYPE), Arc::new(WebhookExecutor::new(node.clone())));
        vec![bulk, runs, maps, jobs, refused, webhooks]
    }
}

//! The memory store and the in-process bus and coordinator under the suites of their ports.

#![expect(clippy::unused_async, reason = "factories of other adapters have to wait")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_local::{LocalBus, LocalCoordinator, MemoryOptions, MemoryStore, SessionsOptions};
use tasklane_ports::conformance::{BusEnv, CoordinatorEnv, LogsEnv, StoreEnv};
use tasklane_ports::{Bus, Coordinator, Logs, Store};

struct Memory(MemoryStore);

#[async_trait]
impl StoreEnv for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn second(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::open(self.0.state()))
    }

    async fn reopen(&self) -> Arc<dyn Store> {
        self.second().await
    }
}

#[async_trait]
impl LogsEnv for Memory {
    fn logs(&self) -> Arc<dyn Logs> {
        Arc::new(self.0.clone())
    }

    async fn reopen_logs(&self) -> Arc<dyn Logs> {
        Arc::new(MemoryStore::open(self.0.state()))
    }
}

async fn memory() -> Option<Memory> {
    Some(Memory(MemoryStore::new(MemoryOptions::default())))
}

async fn strict_memory() -> Option<Memory> {
    Some(Memory(MemoryStore::new(MemoryOptions { strict: true, history: true, ..MemoryOptions::default() })))
}

struct InProcess(LocalBus);

#[async_trait]
impl BusEnv for InProcess {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.0.clone())
    }
}

async fn bus() -> Option<InProcess> {
    Some(InProcess(LocalBus::default()))
}

/// With paused time, so that TTLs pass at once.
struct Paused(LocalCoordinator);

#[async_trait]
impl CoordinatorEnv for Paused {
    fn coordinator(&self) -> Arc<dyn Coordinator> {
        Arc::new(self.0.clone())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(2)
    }
}

async fn coordinator() -> Option<Paused> {
    tokio::time::pause();
    Some(Paused(LocalCoordinator::new(SessionsOptions::default())))
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

tasklane_ports::store_conformance!(memory);
tasklane_ports::store_model!(strict_memory, reference);
tasklane_ports::logs_conformance!(memory);
tasklane_ports::bus_conformance!(bus);
tasklane_ports::coordinator_conformance!(coordinator);

mod strict {
    use super::strict_memory;

    tasklane_ports::store_conformance!(strict_memory);
}

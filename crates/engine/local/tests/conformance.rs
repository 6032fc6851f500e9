//! The memory store and the in-process bus and coordinator under the suites of their ports.

#![expect(clippy::unused_async, reason = "factories of other adapters have to wait")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::time::Timestamp;
use tasklane_local::{Clock, LocalBus, LocalCoordinator, MemoryOptions, MemoryStore, SessionsOptions, Sleep};
use tasklane_ports::conformance::{BusEnv, CoordinatorEnv, DocumentsEnv, LogsEnv, StoreEnv};
use tasklane_ports::{Bus, Coordinator, Documents, Logs, Store};
use tokio::time::Instant;

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

#[async_trait]
impl DocumentsEnv for Memory {
    fn documents(&self) -> Arc<dyn Documents> {
        Arc::new(self.0.clone())
    }

    async fn reopen_documents(&self) -> Arc<dyn Documents> {
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

/// The runtime's time is paused, so that TTLs pass at once; the wall clock jumps on command.
#[derive(Debug)]
struct PausedClock {
    started: Instant,
    jumped_millis: AtomicI64,
}

impl Clock for PausedClock {
    fn steady(&self) -> Timestamp {
        Timestamp::ZERO + self.started.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let millis = i64::try_from(self.started.elapsed().as_millis()).expect("a short test");
        Timestamp::from_millis(1_700_000_000_000 + millis + self.jumped_millis.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, steady: Timestamp) -> Sleep {
        Box::pin(tokio::time::sleep(steady.since(self.steady())))
    }
}

struct Paused {
    coordinator: LocalCoordinator,
    clock: Arc<PausedClock>,
}

#[async_trait]
impl CoordinatorEnv for Paused {
    fn coordinator(&self) -> Arc<dyn Coordinator> {
        Arc::new(self.coordinator.clone())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(2)
    }

    async fn jump_wall_clock(&self, by_millis: i64) -> bool {
        self.clock.jumped_millis.fetch_add(by_millis, Ordering::Relaxed);
        true
    }
}

async fn coordinator() -> Option<Paused> {
    tokio::time::pause();
    let clock = Arc::new(PausedClock { started: Instant::now(), jumped_millis: AtomicI64::new(0) });
    let as_clock: Arc<dyn Clock> = clock.clone();
    Some(Paused { coordinator: LocalCoordinator::with_clock(SessionsOptions::default(), as_clock), clock })
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

tasklane_ports::store_conformance!(memory);
tasklane_ports::store_model!(strict_memory, reference);
tasklane_ports::logs_conformance!(memory);
tasklane_ports::documents_conformance!(memory);
tasklane_ports::bus_conformance!(bus);
tasklane_ports::coordinator_conformance!(coordinator);

mod strict {
    use super::strict_memory;

    tasklane_ports::store_conformance!(strict_memory);
}

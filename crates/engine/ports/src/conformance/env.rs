//! The environment that a suite needs from the system under test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tasklane_core::commit::{Commit, GroupOutcome};
use tasklane_core::id::SessionId;

use crate::{Bus, Coordinator, Documents, Intake, Logs, Store, StoreError};

/// A store in a fresh, empty place.
#[async_trait]
pub trait StoreEnv: Send + Sync {
    /// The handle that most of a case uses.
    fn store(&self) -> Arc<dyn Store>;

    /// Another handle on the same data: over another connection, where the system has such a thing.
    async fn second(&self) -> Arc<dyn Store> {
        self.store()
    }

    /// Opens the data as after a crash of the process: earlier handles are not closed in order, and are not
    /// used any more.
    async fn reopen(&self) -> Arc<dyn Store>;

    /// Starts a commit over a handle of its own and stops it on its way to the store, as late as this adapter
    /// can: on the wire, where there is one. It must not delay other calls.
    async fn stalled_commit(&self, commit: Commit) -> StalledCommit {
        let store = self.second().await;
        StalledCommit::new(async move { store.commit(&commit).await })
    }

    /// Starts a commit and stops it inside the store, when all of it is written and nothing of it is visible
    /// yet. An adapter whose commit is a transaction must be able to, or promise 5 is hardly tested.
    ///
    /// `None` where a commit is one step and has no such moment: a script that a server runs alone, or a
    /// critical section. Stopping such a step in the middle stops every reader too, so that no reader can
    /// distinguish it from a commit that has not begun: [`stalled_commit`](Self::stalled_commit) gives that.
    async fn held_commit(&self, _commit: Commit) -> Option<StalledCommit> {
        None
    }
}

type CommitAnswer = Result<Vec<GroupOutcome>, StoreError>;

/// A commit that was stopped on its way.
pub struct StalledCommit(BoxFuture<'static, CommitAnswer>);

impl StalledCommit {
    /// `rest` is the remaining part of the commit.
    pub fn new(rest: impl Future<Output = CommitAnswer> + Send + 'static) -> Self {
        Self(Box::pin(rest))
    }

    /// Resumes the commit and waits for its answer.
    pub async fn release(self) -> CommitAnswer {
        self.0.await
    }
}

impl fmt::Debug for StalledCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StalledCommit").finish_non_exhaustive()
    }
}

/// Logs in a fresh, empty place.
#[async_trait]
pub trait LogsEnv: Send + Sync {
    /// The handle that a case uses.
    fn logs(&self) -> Arc<dyn Logs>;

    /// Opens the data as after a crash of the process.
    async fn reopen_logs(&self) -> Arc<dyn Logs>;
}

/// Documents in a fresh, empty place.
#[async_trait]
pub trait DocumentsEnv: Send + Sync {
    /// The handle that a case uses.
    fn documents(&self) -> Arc<dyn Documents>;

    /// Opens the data as after a crash of the process.
    async fn reopen_documents(&self) -> Arc<dyn Documents>;
}

/// A bus of the case's own.
#[async_trait]
pub trait BusEnv: Send + Sync {
    /// The handle that most of a case uses.
    fn bus(&self) -> Arc<dyn Bus>;

    /// Another handle on the same bus: as of another process, where the system has such a thing.
    async fn second(&self) -> Arc<dyn Bus> {
        self.bus()
    }
}

/// An intake of the case's own.
#[async_trait]
pub trait IntakeEnv: Send + Sync {
    /// A taker of its own, as in a process of its own.
    async fn taker(&self, session: SessionId) -> Arc<dyn Intake>;

    /// Sends messages in this order, as an outside program does.
    async fn produce(&self, bodies: Vec<Vec<u8>>);

    /// Loses a taker. The system has noticed as much as it can when this returns.
    async fn lose(&self, _session: SessionId) {}

    /// Body and reason of each message at the dead-letter place.
    async fn dead(&self) -> Vec<(Vec<u8>, String)>;
}

/// A coordinator of the case's own. Its cases run on a runtime of one thread, so that a factory may pause
/// time.
#[async_trait]
pub trait CoordinatorEnv: Send + Sync {
    /// The handle that most of a case uses.
    fn coordinator(&self) -> Arc<dyn Coordinator>;

    /// Another handle on the same coordinator: as of another process, where the system has such a thing.
    async fn second(&self) -> Arc<dyn Coordinator> {
        self.coordinator()
    }

    /// The TTL that cases use: short, yet long enough that a slow machine does not lose a session by chance.
    fn ttl(&self) -> Duration;

    /// How much later than its TTL a session may be seen to end.
    fn slack(&self) -> Duration {
        self.ttl()
    }

    /// Lets time pass.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Moves the wall clock that the system sees, ahead or back. Answers whether it could.
    async fn jump_wall_clock(&self, _by_millis: i64) -> bool {
        false
    }
}

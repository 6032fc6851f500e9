//! The coordinator within a process: sessions behind a lock, one timer for the failure detector, and a channel that
//! notifies watchers.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::Role;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Coordinator, CoordinatorCapabilities, CoordinatorError, OpenSession, SessionToken, View, Watch,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::clock::{Clock, SystemClock};
use crate::sessions::{Sessions, SessionsOptions};

/// Keeps sessions within a process. Clones are the same coordinator; it ends with the last of them.
#[derive(Clone)]
pub struct LocalCoordinator {
    options: SessionsOptions,
    shared: Arc<CoordinatorState>,
    _detector: Arc<DetectorTask>,
}

struct CoordinatorState {
    sessions: Mutex<Sessions>,
    /// The change that watchers should look at; `None` once the coordinator has ended.
    changed: watch::Sender<Option<u64>>,
    /// Wakes the failure detector when a session ends before the one it waits for.
    sooner: Notify,
    clock: Arc<dyn Clock>,
}

impl LocalCoordinator {
    /// Starts one. Must be called within a tokio runtime, for its timer.
    pub fn new(options: SessionsOptions) -> Self {
        Self::with_clock(options, Arc::new(SystemClock))
    }

    /// Like [`new`](Self::new), with a clock of its own.
    pub fn with_clock(options: SessionsOptions, clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(CoordinatorState {
            sessions: Mutex::new(Sessions::new(options)),
            changed: watch::Sender::new(Some(0)),
            sooner: Notify::new(),
            clock,
        });
        let timer = tokio::spawn(detect_failures(Arc::clone(&shared)));
        let detector = DetectorTask { timer, shared: Arc::clone(&shared) };
        Self { options, shared, _detector: Arc::new(detector) }
    }
}

impl fmt::Debug for LocalCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCoordinator").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Ends with the last handle.
struct DetectorTask {
    timer: JoinHandle<()>,
    shared: Arc<CoordinatorState>,
}

impl Drop for DetectorTask {
    fn drop(&mut self) {
        self.timer.abort();
        self.shared.changed.send_replace(None);
    }
}

/// Sleeps until the first deadline. A renewal only moves a deadline away, so the timer is rearmed only for sessions that
/// end sooner than the awaited one.
async fn detect_failures(shared: Arc<CoordinatorState>) {
    loop {
        let deadline = shared.change(|sessions, now| {
            sessions.tick(now);
            sessions.next_deadline()
        });
        let woken = shared.sooner.notified();
        match deadline {
            Some(deadline) => {
                tokio::select! {
                    () = shared.clock.sleep_until(deadline) => {}
                    () = woken => {}
                }
            }
            None => woken.await,
        }
    }
}

impl CoordinatorState {
    /// Changes the sessions and notifies watchers of a visible change.
    fn change<T>(&self, change: impl FnOnce(&mut Sessions, Timestamp) -> T) -> T {
        let mut sessions = self.lock();
        // Read under the lock, so that it never goes backwards.
        let now = self.clock.steady();
        let deadline = sessions.next_deadline();
        let done = change(&mut sessions, now);
        let changes = sessions.changes();
        let sooner = sessions.next_deadline().is_some_and(|new| deadline.is_none_or(|old| new < old));
        self.changed.send_if_modified(|seen| {
            let modified = seen.is_some_and(|seen| seen != changes);
            if modified {
                *seen = Some(changes);
            }
            modified
        });
        drop(sessions);
        if sooner {
            self.sooner.notify_one();
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Coordinator for LocalCoordinator {
    fn capabilities(&self) -> CoordinatorCapabilities {
        CoordinatorCapabilities { ttl_min: self.options.ttl_min.max(Duration::from_millis(1)) }
    }

    async fn open(&self, open: OpenSession) -> Result<SessionToken, CoordinatorError> {
        // The keys of the standard hasher are the only random numbers that the standard library gives away.
        let random = || u128::from(RandomState::new().hash_one(open.session));
        let secret = (random() << 64) | random();
        self.shared.change(|sessions, now| sessions.open(open, secret, now))
    }

    async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.shared.change(|sessions, now| sessions.renew(token, now))
    }

    async fn update(&self, token: &SessionToken, role: Role) -> Result<(), CoordinatorError> {
        self.shared.change(|sessions, now| sessions.update(token, role, now))
    }

    async fn close(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.shared.change(|sessions, _| sessions.close(token));
        Ok(())
    }

    async fn revoke(&self, session: SessionId) -> Result<(), CoordinatorError> {
        self.shared.change(|sessions, _| sessions.revoke(session));
        Ok(())
    }

    async fn acquire(&self, token: &SessionToken, lane: LaneId) -> Result<bool, CoordinatorError> {
        self.shared.change(|sessions, now| sessions.acquire(token, lane, now))
    }

    async fn release(&self, token: &SessionToken, lane: LaneId) -> Result<(), CoordinatorError> {
        self.shared.change(|sessions, now| sessions.release(token, lane, now))
    }

    async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError> {
        let mut changed = self.shared.changed.subscribe();
        changed.mark_changed();
        Ok(Box::new(LocalWatch { shared: Arc::clone(&self.shared), changed, given: None }))
    }
}

struct LocalWatch {
    shared: Arc<CoordinatorState>,
    changed: watch::Receiver<Option<u64>>,
    /// The view that was given last: a change that was reverted meanwhile causes no notification.
    given: Option<View>,
}

impl fmt::Debug for LocalWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWatch").finish_non_exhaustive()
    }
}

#[async_trait]
impl Watch for LocalWatch {
    async fn next(&mut self) -> Option<View> {
        loop {
            self.changed.changed().await.ok()?;
            (*self.changed.borrow_and_update())?;
            let view = self.shared.lock().view();
            if self.given.as_ref() != Some(&view) {
                self.given = Some(view.clone());
                return Some(view);
            }
        }
    }
}

//! Watches members and grants on systems that keep them as plain data. One task serves all watches of a
//! process: it polls, detects failures and notifies the watches. It runs only while watches are open.
//!
//! A change notice of the system is a hint that starts the next poll at once; it may get lost. Each poll asks
//! for the renewal numbers and the revision, and reads everything again when the revision has changed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rustix::time::{ClockId, clock_gettime};
use tasklane_core::clock_watch::Reference;
use tasklane_core::id::SessionId;
use tasklane_core::time::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::failure_detector::{FailureDetector, Renewal};
use crate::renewals::Renewals;
use crate::{CoordinatorError, Outcome, SessionToken, View, Watch};

/// After so many polls the task reads everything, whatever the revision says: a system that lost its last
/// writes may have reached the same number with other changes.
const POLLS_MAX: u32 = 20;

/// Sessions and grants as a system keeps them.
#[async_trait]
pub trait MembershipTable: Send + Sync + fmt::Debug + 'static {
    /// Everything, as it is at one moment.
    async fn read(&self) -> Result<MembershipSnapshot, CoordinatorError>;

    /// The renewal numbers alone. Must fail whenever renewals would be refused, so that no session ends whose
    /// holder could not renew.
    async fn renewal_numbers(&self) -> Result<RenewalNumbers, CoordinatorError>;

    /// Renews sessions. A session is renewed if it is alive, not revoked, and the token is its own; the
    /// outcome says which were.
    async fn renew(&self, tokens: &[SessionToken]) -> Result<RenewalOutcome, CoordinatorError>;

    /// Ends the sessions that still have the number named, each with its grants in one step.
    async fn end(&self, overdue: &[Renewal]) -> Result<(), CoordinatorError>;

    /// Makes the revision higher than this one. The watcher asks for it when the system has lost its last
    /// changes and its revision has gone back.
    async fn raise(&self, above: u64) -> Result<(), CoordinatorError>;

    /// Subscribes to the system's change notices. Called within a tokio runtime.
    fn listen(&self) -> Box<dyn ChangeNotices>;
}

/// The change notices of a system. Closed by dropping it.
#[async_trait]
pub trait ChangeNotices: Send {
    /// Waits until members or grants may have changed. Also returns when the subscription starts or restarts.
    /// Safe to cancel.
    async fn next(&mut self);
}

/// The outcome of renewals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalOutcome {
    /// For each session, whether it was renewed.
    pub alive: Vec<bool>,
    /// The time of the system's own clock.
    pub wall: Option<Timestamp>,
}

/// Everything that a table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipSnapshot {
    /// Members and grants.
    pub view: View,
    /// The renewal number of each member.
    pub renewals: Vec<Renewal>,
}

/// The numbers that a poll reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalNumbers {
    /// The revision of the view.
    pub revision: u64,
    /// The renewal number of each member.
    pub numbers: Vec<(SessionId, u64)>,
}

/// Opens watches on a table. They outlive it: an open watch shows changes until it is closed.
pub struct MembershipWatcher {
    table: Arc<dyn MembershipTable>,
    steady: Steady,
    /// The task, while watches are open.
    running: Mutex<Weak<WatchTask>>,
    closed: AtomicBool,
    renewals: Arc<Renewals>,
}

type Steady = Arc<dyn Fn() -> Timestamp + Send + Sync>;

struct WatchTask {
    views: watch::Receiver<Arc<View>>,
    task: JoinHandle<()>,
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MembershipWatcher {
    /// Counts by the machine's steady clock.
    pub fn new(table: Arc<dyn MembershipTable>) -> Self {
        Self::with_clock(table, steady)
    }

    /// Like [`new`](Self::new), with the given steady clock.
    pub fn with_clock(
        table: Arc<dyn MembershipTable>,
        steady: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        let steady = Arc::new(steady);
        let (running, closed) = (Mutex::default(), AtomicBool::new(false));
        Self { table, steady, running, closed, renewals: Arc::default() }
    }

    /// Renews a session, in one call with others of this process that are due now.
    pub async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.renewals.renew(&self.table, &self.steady, token).await
    }

    /// The time of the system's clock at the last renewal of a session.
    pub fn clock(&self) -> Option<Reference> {
        self.renewals.clock()
    }

    /// A watch. Its first view is read now.
    pub async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError> {
        let known = self.running().map(|running| running.views.borrow().revision);
        let mut snapshot = self.table.read().await?;
        if let Some(known) = known
            && snapshot.view.revision < known
        {
            self.table.raise(known).await?;
            snapshot = self.table.read().await?;
        }
        let view = snapshot.view.clone();
        let running = self.running_or_start(snapshot)?;
        let (views, given) = (running.views.clone(), view.revision);
        Ok(Box::new(MembershipWatch { first: Some(view), given, views, _running: running }))
    }

    /// Ends all watches, and opens no more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(running) = self.running() {
            running.task.abort();
        }
    }

    fn running(&self) -> Option<Arc<WatchTask>> {
        self.lock().upgrade()
    }

    fn running_or_start(&self, snapshot: MembershipSnapshot) -> Result<Arc<WatchTask>, CoordinatorError> {
        let mut place = self.lock();
        if self.closed.load(Ordering::Acquire) {
            let source = "the coordinator was closed".into();
            return Err(CoordinatorError::Unavailable { outcome: Outcome::NotApplied, source });
        }
        if let Some(running) = place.upgrade() {
            return Ok(running);
        }
        let (sender, views) = watch::channel(Arc::default());
        let mut poll_loop = PollLoop {
            table: Arc::clone(&self.table),
            steady: Arc::clone(&self.steady),
            detector: FailureDetector::default(),
            ttls: BTreeMap::new(),
            views: sender,
            whole: false,
            polls: 0,
        };
        poll_loop.accept(snapshot);
        let running = Arc::new(WatchTask { views, task: tokio::spawn(poll_loop.run()) });
        *place = Arc::downgrade(&running);
        Ok(running)
    }

    fn lock(&self) -> MutexGuard<'_, Weak<WatchTask>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MembershipWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipWatcher").field("table", &self.table).finish_non_exhaustive()
    }
}

/// Time since the machine was started, also while it slept.
pub fn steady() -> Timestamp {
    #[cfg(target_os = "linux")]
    const STEADY: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const STEADY: ClockId = ClockId::Monotonic;
    let now = Duration::try_from(clock_gettime(STEADY)).expect("time since the start is not negative");
    Timestamp::ZERO + now
}

/// The one task of all watches.
struct PollLoop {
    table: Arc<dyn MembershipTable>,
    steady: Steady,
    detector: FailureDetector,
    /// The TTL of each session in the last view.
    ttls: BTreeMap<SessionId, Duration>,
    views: watch::Sender<Arc<View>>,
    /// Whether the next poll reads everything.
    whole: bool,
    polls: u32,
}

impl PollLoop {
    async fn run(mut self) {
        let mut notices = self.table.listen();
        loop {
            let now = (self.steady)();
            let pause = self.detector.next_poll(now).since(now);
            tokio::select! {
                () = notices.next() => self.whole = true,
                () = tokio::time::sleep(pause) => {}
            }
            if self.poll().await.is_err() {
                self.detector.lost_view();
                self.whole = true;
            }
        }
    }

    /// Polls once, and ends overdue sessions.
    async fn poll(&mut self) -> Result<(), CoordinatorError> {
        if !self.whole && self.polls < POLLS_MAX {
            let latest = self.table.renewal_numbers().await?;
            if latest.revision == self.views.borrow().revision {
                self.polls += 1;
                let ttls = &self.ttls;
                let shown = latest.numbers.iter().filter_map(|(session, number)| {
                    Some(Renewal { session: *session, number: *number, ttl: *ttls.get(session)? })
                });
                let overdue = self.detector.observe(shown, (self.steady)());
                return self.end(overdue).await;
            }
        }
        let snapshot = self.table.read().await?;
        let known = Arc::clone(&self.views.borrow());
        let view = &snapshot.view;
        let went_back =
            view.revision < known.revision || (view.revision == known.revision && *view != *known);
        if went_back {
            self.table.raise(known.revision).await?;
            // The next turn sees the new revision.
            self.detector.lost_view();
            self.whole = true;
            return Ok(());
        }
        self.whole = false;
        let overdue = self.accept(snapshot);
        self.end(overdue).await
    }

    /// Shows a view. Answers the overdue sessions.
    fn accept(&mut self, snapshot: MembershipSnapshot) -> Vec<Renewal> {
        self.polls = 0;
        self.ttls = snapshot.renewals.iter().map(|renewal| (renewal.session, renewal.ttl)).collect();
        let overdue = self.detector.observe(snapshot.renewals, (self.steady)());
        self.views.send_if_modified(|known| {
            let differs = **known != snapshot.view;
            if differs {
                *known = Arc::new(snapshot.view);
            }
            differs
        });
        overdue
    }

    async fn end(&mut self, overdue: Vec<Renewal>) -> Result<(), CoordinatorError> {
        if overdue.is_empty() {
            return Ok(());
        }
        self.whole = true;
        self.table.end(&overdue).await
    }
}

struct MembershipWatch {
    /// The view that `watch` read.
    first: Option<View>,
    /// The revision returned last.
    given: u64,
    views: watch::Receiver<Arc<View>>,
    _running: Arc<WatchTask>,
}

impl fmt::Debug for MembershipWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembershipWatch").field("given", &self.given).finish_non_exhaustive()
    }
}

#[async_trait]
impl Watch for MembershipWatch {
    async fn next(&mut self) -> Option<View> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            self.views.changed().await.ok()?;
            let view = Arc::clone(&self.views.borrow_and_update());
            // The task may be a little behind the first view.
            if view.revision > self.given {
                self.given = view.revision;
                return Some(View::clone(&view));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tasklane_core::member::{Member, Role};
    use tokio::sync::Notify;
    use tokio::time::{Instant, timeout};

    use super::*;

    const TTL: Duration = Duration::from_secs(3);
    const WALL: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    /// A table in memory that fails, loses its notices and goes back in time on command.
    #[derive(Debug, Default)]
    struct MemoryTable {
        state: Mutex<TableState>,
        told: Arc<Notify>,
    }

    #[derive(Debug, Default)]
    struct TableState {
        revision: u64,
        numbers: BTreeMap<SessionId, u64>,
        failing: bool,
        notices_lost: bool,
        calls: u32,
    }

    struct Notices(Arc<Notify>);

    #[async_trait]
    impl ChangeNotices for Notices {
        async fn next(&mut self) {
            self.0.notified().await;
        }
    }

    impl MemoryTable {
        fn change(&self, change: impl FnOnce(&mut TableState)) {
            let mut state = self.state.lock().unwrap();
            change(&mut state);
            state.revision += 1;
            if !state.notices_lost {
                self.told.notify_one();
            }
        }

        fn open(&self, id: u128) -> SessionId {
            let session = SessionId::from_random(id);
            self.change(|state| _ = state.numbers.insert(session, 0));
            session
        }

        fn renew(&self, session: SessionId) {
            *self.state.lock().unwrap().numbers.get_mut(&session).unwrap() += 1;
        }

        fn set(&self, set: impl FnOnce(&mut TableState)) {
            set(&mut self.state.lock().unwrap());
        }

        fn calls(&self) -> u32 {
            self.state.lock().unwrap().calls
        }

        fn state(&self) -> Result<MutexGuard<'_, TableState>, CoordinatorError> {
            let mut state = self.state.lock().unwrap();
            state.calls += 1;
            if state.failing {
                return Err(CoordinatorError::Unavailable {
                    outcome: Outcome::Unknown,
                    source: "failing".into(),
                });
            }
            Ok(state)
        }
    }

    #[async_trait]
    impl MembershipTable for MemoryTable {
        async fn read(&self) -> Result<MembershipSnapshot, CoordinatorError> {
            let state = self.state()?;
            let role = Role::Server { address: String::new(), bus: String::new() };
            let sessions = state.numbers.keys();
            let members = sessions.map(|id| (*id, Member { session: *id, role: role.clone() })).collect();
            let view = View { revision: state.revision, members, grants: BTreeMap::new() };
            let renewals = state.numbers.iter();
            let renewals = renewals.map(|(id, number)| Renewal { session: *id, number: *number, ttl: TTL });
            Ok(MembershipSnapshot { view, renewals: renewals.collect() })
        }

        async fn renewal_numbers(&self) -> Result<RenewalNumbers, CoordinatorError> {
            let state = self.state()?;
            let numbers = state.numbers.iter().map(|(id, number)| (*id, *number)).collect();
            Ok(RenewalNumbers { revision: state.revision, numbers })
        }

        async fn renew(&self, tokens: &[SessionToken]) -> Result<RenewalOutcome, CoordinatorError> {
            let mut state = self.state()?;
            let mut renewed = |token: &SessionToken| {
                let number = state.numbers.get_mut(&token.session);
                number.map(|number| *number += 1).is_some()
            };
            Ok(RenewalOutcome { alive: tokens.iter().map(&mut renewed).collect(), wall: Some(WALL) })
        }

        async fn end(&self, overdue: &[Renewal]) -> Result<(), CoordinatorError> {
            drop(self.state()?);
            self.change(|state| {
                for renewal in overdue {
                    assert_eq!(state.numbers.remove(&renewal.session), Some(renewal.number));
                }
            });
            Ok(())
        }

        async fn raise(&self, above: u64) -> Result<(), CoordinatorError> {
            let mut state = self.state()?;
            state.revision = state.revision.max(above) + 1;
            Ok(())
        }

        fn listen(&self) -> Box<dyn ChangeNotices> {
            Box::new(Notices(Arc::clone(&self.told)))
        }
    }

    fn watcher() -> (Arc<MemoryTable>, MembershipWatcher) {
        let memory = Arc::new(MemoryTable::default());
        let started = Instant::now();
        let clock = move || Timestamp::ZERO + started.elapsed();
        (Arc::clone(&memory), MembershipWatcher::with_clock(memory, clock))
    }

    async fn next(watch: &mut Box<dyn Watch>) -> View {
        timeout(Duration::from_mins(1), watch.next()).await.expect("no view was shown").expect("it is open")
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_begins_with_what_is_there_now() {
        let (memory, watcher) = watcher();
        let mut first = watcher.watch().await.unwrap();
        assert_eq!(next(&mut first).await, View::default());
        // The task of this table has had no notice yet.
        memory.set(|state| state.notices_lost = true);
        let session = memory.open(1);
        let mut second = watcher.watch().await.unwrap();
        assert!(next(&mut second).await.members.contains_key(&session));
        assert!(next(&mut first).await.members.contains_key(&session));
        assert!(timeout(Duration::from_secs(1), second.next()).await.is_err(), "it has not changed");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_together_is_renewed_in_one_call() {
        let (memory, watcher) = watcher();
        let token = |session| SessionToken { session, secret: String::new() };
        let (one, other, gone) = (memory.open(1), memory.open(2), SessionId::from_random(3));
        let (one, other, gone) = (token(one), token(other), token(gone));
        let before = memory.calls();
        let renewed = tokio::join!(watcher.renew(&one), watcher.renew(&gone), watcher.renew(&other));
        assert!(renewed.0.is_ok() && renewed.2.is_ok(), "{renewed:?}");
        let ended = CoordinatorError::SessionEnded { session: gone.session };
        assert_eq!(renewed.1.unwrap_err().to_string(), ended.to_string());
        assert_eq!(memory.calls() - before, 1);
        let clock = watcher.clock().unwrap();
        assert!(clock.wall == WALL && clock.asked <= clock.answered, "{clock:?}");
        watcher.renew(&one).await.unwrap();
        assert_eq!(memory.calls() - before, 2);

        // A failure reaches every watch.
        memory.set(|state| state.failing = true);
        let failed = tokio::join!(watcher.renew(&one), watcher.renew(&other));
        assert!(failed.0.unwrap_err().is_retryable() && failed.1.unwrap_err().is_retryable());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_not_renewed_is_ended_and_told() {
        let (memory, watcher) = watcher();
        let (lost, kept) = (memory.open(1), memory.open(2));
        let mut watch = watcher.watch().await.unwrap();
        next(&mut watch).await;
        let started = Instant::now();
        let renewing = async {
            loop {
                memory.renew(kept);
                tokio::time::sleep(TTL / 3).await;
            }
        };
        let view = tokio::select! {
            view = next(&mut watch) => view,
            () = renewing => unreachable!(),
        };
        assert!(!view.members.contains_key(&lost) && view.members.contains_key(&kept));
        assert!(started.elapsed() >= TTL && started.elapsed() < TTL * 5 / 4, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_nobody() {
        let (memory, watcher) = watcher();
        let session = memory.open(1);
        let mut watch = watcher.watch().await.unwrap();
        next(&mut watch).await;
        tokio::time::sleep(TTL * 2 / 3).await;
        memory.set(|state| state.failing = true);
        tokio::time::sleep(TTL * 3).await;
        memory.set(|state| state.failing = false);
        // It has a whole TTL to renew.
        tokio::time::sleep(TTL * 9 / 10).await;
        memory.renew(session);
        tokio::time::sleep(TTL * 9 / 10).await;
        assert!(timeout(Duration::ZERO, watch.next()).await.is_err());
        assert!(next(&mut watch).await.members.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_were_not_told_are_found() {
        let (memory, watcher) = watcher();
        let mut watch = watcher.watch().await.unwrap();
        next(&mut watch).await;
        memory.set(|state| state.notices_lost = true);
        let session = memory.open(1);
        assert!(next(&mut watch).await.members.contains_key(&session));
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_that_went_back_in_time_is_watched_all_the_same() {
        let (memory, watcher) = watcher();
        memory.open(1);
        memory.open(2);
        let mut watch = watcher.watch().await.unwrap();
        assert_eq!(next(&mut watch).await.revision, 2);
        // To an older revision, …
        memory.set(|state| *state = TableState { notices_lost: true, ..TableState::default() });
        let view = next(&mut watch).await;
        assert!(view.members.is_empty() && view.revision > 2, "{view:?}");
        // … and to the same one with something else in it.
        let revision = view.revision;
        memory.set(|state| _ = state.numbers.insert(SessionId::from_random(3), 0));
        let view = next(&mut watch).await;
        assert!(view.members.len() == 1 && view.revision > revision, "{view:?}");
        // A new watch does not show an older revision either.
        memory.set(|state| state.revision = 0);
        let mut again = watcher.watch().await.unwrap();
        assert!(next(&mut again).await.revision > view.revision);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_looks_while_nobody_watches() {
        let (memory, watcher) = watcher();
        let session = memory.open(1);
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(memory.calls(), 0);
        let (first, second) = (watcher.watch().await.unwrap(), watcher.watch().await.unwrap());
        drop(first);
        tokio::time::sleep(TTL / 2).await;
        let looking = memory.calls();
        assert!(looking > 3, "{looking}");
        memory.renew(session);
        drop(second);
        tokio::time::sleep(TTL * 10).await;
        assert!(memory.calls() <= looking + 1);
        // And a new watch is notified again.
        let mut watch = watcher.watch().await.unwrap();
        assert!(next(&mut watch).await.members.contains_key(&session));
        assert!(next(&mut watch).await.members.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_watches_and_dropping_does_not() {
        let (memory, watcher) = watcher();
        let mut watch = watcher.watch().await.unwrap();
        next(&mut watch).await;
        watcher.close();
        assert_eq!(watch.next().await, None);
        assert!(watcher.watch().await.is_err());
        let (_, another) = self::watcher();
        let mut watch = another.watch().await.unwrap();
        drop(another);
        next(&mut watch).await;
        assert!(timeout(TTL, watch.next()).await.is_err(), "it goes on");
        drop(memory);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_poll_is_cheap_and_rare() {
        let (memory, watcher) = watcher();
        let session = memory.open(1);
        let _watch = watcher.watch().await.unwrap();
        let before = memory.calls();
        for _ in 0..30 {
            memory.renew(session);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let calls = memory.calls() - before;
        assert!((45..=55).contains(&calls), "{calls} calls in 30 seconds");
    }
}

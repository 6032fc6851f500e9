//! Firing schedules: each time once, even if servers or the store fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::time::Timestamp;
use tasklane_local::{LocalBus, LocalCoordinator, MemoryOptions, MemoryStore, SessionsOptions};
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
    StoreError, TaskFilter, TaskList, codec,
};
use tasklane_runtime::clock;
use tasklane_runtime::held_sessions::HeldSessions;
use tasklane_runtime::node::{Node, NodeOptions, NodeParts, RetentionOptions};
use tasklane_runtime::notifier::Notifier;
use tasklane_runtime::request::{RequestLimits, ScheduleRequest};
use tasklane_runtime::scheduler::{Scheduler, SchedulerOptions, SchedulerParts};
use tasklane_schedule::{Fate, MissedPolicy, Overlap, Rule, Schedule, Times, When};

use crate::support::{Fault, Faulty, default_namespace, name};

/// A server dies after a number of calls.
#[derive(Clone, Debug, Default)]
struct Life(Arc<AtomicUsize>);

impl Life {
    fn of(calls: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(calls)))
    }

    fn go_on(&self) -> Result<(), StoreError> {
        let less = |left: usize| left.checked_sub(1);
        let lives = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        lives.map(drop).map_err(|_| StoreError::unavailable("the server is dead"))
    }
}

/// The documents of a server that may die.
#[derive(Debug)]
struct Mortal {
    documents: MemoryStore,
    life: Life,
}

#[async_trait]
impl Documents for Mortal {
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError> {
        self.life.go_on()?;
        self.documents.put(puts).await
    }

    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError> {
        self.life.go_on()?;
        self.documents.get(keys).await
    }

    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError> {
        self.life.go_on()?;
        self.documents.by_name(list).await
    }

    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError> {
        self.life.go_on()?;
        self.documents.by_time(list).await
    }
}

/// A server that owns no lane: its tasks go to the store.
fn server(memory: &MemoryStore, life: &Life) -> Node {
    let store = Arc::new(Faulty::new(Arc::new(memory.clone())));
    let (bus, notifier) = (Arc::new(LocalBus::default()), Arc::new(Notifier::default()));
    let of_store = life.clone();
    store.plan(move |_| of_store.go_on().err().map(Fault::Error));
    let scheduler = Scheduler::new(
        SchedulerOptions { lanes: 2, ..SchedulerOptions::default() },
        SchedulerParts {
            store: store.clone(),
            bus: bus.clone(),
            coordinator: Arc::new(LocalCoordinator::new(SessionsOptions::default())),
            notifier: Arc::clone(&notifier),
            held_sessions: HeldSessions::default(),
        },
    );
    let documents = Arc::new(Mortal { documents: memory.clone(), life: life.clone() });
    Node::new(
        NodeOptions {
            lanes: 2,
            is_cluster: false,
            limits: RequestLimits::default(),
            retention: RetentionOptions::default(),
            warnings: Vec::new(),
        },
        NodeParts {
            store,
            logs: Arc::new(memory.clone()),
            documents,
            bus,
            scheduler: scheduler.handle(),
            notifier,
            archive: None,
        },
    )
}

/// A rule with five past times; an hour ago no server had fired the first.
fn hourly() -> Rule {
    Rule {
        when: When::Cron("0 * * * *".to_owned()),
        timezone: "UTC".to_owned(),
        from: None,
        until: None,
        jitter: Duration::ZERO,
        overlap: Overlap::AllowAll,
        missed: MissedPolicy::RunAll,
        missed_after: None,
        catch_up: Duration::from_hours(24),
        pause_after: None,
        late_after: None,
        webhooks: Vec::new(),
        task: r#"{"taskName":"n","taskType":"NOOP"}"#.to_owned(),
    }
}

fn key(id: &str) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Schedule, namespace: default_namespace(), id: name(id) }
}

/// Puts a schedule as it was at a time.
async fn store(memory: &MemoryStore, id: &str, rule: Rule, at: Timestamp) {
    let times = Times::new(&rule.when, &rule.timezone).unwrap();
    let schedule = Schedule::new(rule, &times, at);
    let content = Some(Content { due: schedule.due(id, at), value: codec::encode(&schedule) });
    memory.put(&[PutDocument { key: key(id), expected: 0, content }]).await.unwrap();
}

async fn stored(memory: &MemoryStore, id: &str) -> Schedule {
    codec::decode(&memory.get(&[key(id)]).await.unwrap()[0].as_ref().unwrap().value).unwrap()
}

/// How many tasks there are for each time of each schedule.
async fn fired(memory: &MemoryStore) -> BTreeMap<(String, Timestamp), usize> {
    use tasklane_ports::Store as _;
    let mut fired = BTreeMap::new();
    let mut after = None;
    loop {
        let page = memory.list(TaskList { filter: TaskFilter::default(), after, limit: 1000 }).await.unwrap();
        for task in page.tasks {
            let body = task.body.unwrap();
            *fired.entry((body.schedule.clone().unwrap(), body.nominal_time.unwrap())).or_insert(0) += 1;
        }
        after = page.next;
        if after.is_none() {
            return fired;
        }
    }
}

/// A server dies before each of the calls of a fire, in turn; the next one goes on.
#[tokio::test]
async fn a_crash_between_any_two_steps_loses_and_doubles_nothing() {
    let mut calls = 0;
    loop {
        let memory = MemoryStore::new(MemoryOptions::default());
        let five_ago = clock::wall() - Duration::from_hours(5);
        store(&memory, "a", hourly(), five_ago).await;
        store(&memory, "b", hourly(), five_ago).await;
        let died = server(&memory, &Life::of(calls)).fire_due().await.is_err();
        server(&memory, &Life::of(usize::MAX)).fire_due().await.unwrap();
        let fired = fired(&memory).await;
        assert_eq!(fired.len(), 10, "after {calls} calls: {fired:?}");
        assert!(fired.values().all(|count| *count == 1), "after {calls} calls: {fired:?}");
        for id in ["a", "b"] {
            let state = stored(&memory, id).await.state;
            assert!(state.planned.is_empty());
            let told = state.history.iter().filter(|past| matches!(past.what, Fate::Fired { .. }));
            assert_eq!(told.count(), 5, "after {calls} calls");
        }
        if !died {
            break;
        }
        calls += 1;
    }
    assert!(calls >= 8, "only {calls} calls: nothing was fired");
}

/// Several servers read the same schedules together.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_schedules_due_at_once_each_fire_once() {
    let memory = MemoryStore::new(MemoryOptions::default());
    let at = clock::wall() - Duration::from_secs(10);
    for n in 0..10_000 {
        store(
            &memory,
            &format!("s{n}"),
            Rule { when: When::At(at), ..hourly() },
            at - Duration::from_secs(1),
        )
        .await;
    }
    let servers = (0..3).map(|_| {
        let node = server(&memory, &Life::of(usize::MAX));
        tokio::spawn(async move {
            // A server that was not first at some of them reads again.
            for _ in 0..3 {
                node.fire_due().await.unwrap();
            }
        })
    });
    for server in servers.collect::<Vec<_>>() {
        server.await.unwrap();
    }
    let fired = fired(&memory).await;
    assert_eq!(fired.len(), 10_000);
    assert!(fired.values().all(|count| *count == 1));
    let nothing = DueList { kind: DocumentKind::Schedule, until: Timestamp::MAX, after: None, limit: 1 };
    assert_eq!(memory.by_time(nothing).await.unwrap(), []);
}

/// A change of a schedule during its fire does not undo the fire, and no fire undoes the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_and_a_fire_at_once_both_hold() {
    let memory = MemoryStore::new(MemoryOptions::default());
    store(&memory, "s", hourly(), clock::wall() - Duration::from_hours(5)).await;
    let (firing, changing) = (server(&memory, &Life::of(usize::MAX)), server(&memory, &Life::of(usize::MAX)));
    let done = tokio::spawn(async move {
        for _ in 0..20 {
            firing.fire_due().await.unwrap();
        }
    });
    for n in 0..20 {
        let body = format!(r#"{{"cron":"{n} 1 1 1 *","task":{{"taskName":"n","taskType":"NOOP"}}}}"#);
        let request = ScheduleRequest::from_json(body.as_bytes()).unwrap();
        changing.put_schedule(&default_namespace(), &name("s"), &request).await.unwrap();
    }
    done.await.unwrap();
    server(&memory, &Life::of(usize::MAX)).fire_due().await.unwrap();
    let schedule = stored(&memory, "s").await;
    assert_eq!(schedule.rule.when, When::Cron("19 1 1 1 *".to_owned()));
    let told = schedule.state.history.iter().filter(|past| matches!(past.what, Fate::Fired { .. })).count();
    let fired = fired(&memory).await;
    assert_eq!((fired.len(), fired.values().all(|count| *count == 1)), (told, true), "{fired:?}");
}

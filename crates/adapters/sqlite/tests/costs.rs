//! The number of statements for a task: a change that costs more fails here, independent of the clock.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tasklane_core::status::Status;
use tasklane_core::task::NewTask;
use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{
    LANE, Owner, advance, changing, inserting, inserting_assigned, task,
};
use tasklane_sqlite::{Options, Signals, Sqlite};

const TASKS: usize = 1000;

/// A store that counts the statements and transactions of its writer.
struct CountingStore {
    store: Arc<dyn Store>,
    owner: Owner,
    statements: Arc<AtomicUsize>,
    transactions: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

impl CountingStore {
    async fn new() -> Self {
        let folder = support::folder();
        let (statements, transactions) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let counters = (Arc::clone(&statements), Arc::clone(&transactions), Arc::clone(&seen));
        let signals = Signals {
            statement: Some(Arc::new(move |sql: &str| {
                counters.0.fetch_add(1, Ordering::Relaxed);
                let mut seen = counters.2.lock().unwrap();
                if !seen.iter().any(|before| before == sql) {
                    seen.push(sql.to_owned());
                }
            })),
            before_commit: Some(Arc::new(move || _ = counters.1.fetch_add(1, Ordering::Relaxed))),
            ..Signals::default()
        };
        let options = Options { signals, ..Options::new(folder.path().join("tasklane.db")) };
        let store: Arc<dyn Store> = Arc::new(Sqlite::connect(options).await.unwrap());
        let mut owner = Owner::claim(&store, LANE).await;
        // The queue is known from here on.
        store.commit(&owner.next([inserting(task(0).build())])).await.unwrap();
        Self { store, owner, statements, transactions, seen, _folder: folder }
    }

    /// Statements for each task of one commit, besides those of the transaction itself.
    async fn cost(&mut self, groups: Vec<tasklane_core::commit::Group>) -> usize {
        let count = groups.len();
        self.seen.lock().unwrap().clear();
        self.statements.store(0, Ordering::Relaxed);
        self.transactions.store(0, Ordering::Relaxed);
        let commit = self.owner.next(groups);
        self.store.commit(&commit).await.unwrap();
        assert_eq!(self.transactions.load(Ordering::Relaxed), 1, "one commit is one transaction");
        let statements = self.statements.load(Ordering::Relaxed);
        let of_the_transaction = statements % count;
        assert!(of_the_transaction < 10, "{statements} statements: {:?}", self.seen.lock().unwrap());
        statements / count
    }
}

fn tasks(from: u64) -> Vec<NewTask> {
    (from..from + TASKS as u64).map(|number| task(number).payload_bytes(200).build()).collect()
}

/// A short task whose owner is local: inserted and assigned together, then finished.
#[tokio::test]
async fn statements_of_a_task_that_is_assigned_at_once() {
    let mut counted = CountingStore::new().await;
    let tasks = tasks(1);
    let inserted = tasks.iter().cloned().map(inserting_assigned).collect();
    assert_eq!(counted.cost(inserted).await, 2, "a row for the task and one for its spec");
    let ended = tasks.iter().map(|task| {
        let (_, assigned) = advance(&task.state(), &[Status::Scheduled], task.created_at);
        changing(task.id, &assigned, &[Status::Dispatched, Status::Running, Status::Success])
    });
    assert_eq!(counted.cost(ended.collect()).await, 1, "what is in flight is known, and changed");
}

/// A task that had to wait: inserted, assigned, finished.
#[tokio::test]
async fn statements_of_a_task_that_waited() {
    let mut counted = CountingStore::new().await;
    let tasks = tasks(1);
    assert_eq!(counted.cost(tasks.iter().cloned().map(inserting).collect()).await, 2);
    let assigned = tasks.iter().map(|task| changing(task.id, &task.state(), &[Status::Scheduled]));
    assert_eq!(counted.cost(assigned.collect()).await, 2, "it is looked for, and changed");
}

/// A task with a unique key.
#[tokio::test]
async fn statements_of_a_task_with_a_unique_key() {
    let mut counted = CountingStore::new().await;
    let unique =
        (1..=TASKS as u64).map(|number| task(number).unique(&number.to_string()).build()).map(inserting);
    assert_eq!(counted.cost(unique.collect()).await, 4, "its holder is looked for, and it is written down");
}

//! The SQLite store under the suites of its ports.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use async_trait::async_trait;
use tasklane_core::commit::Commit;
use tasklane_local::{MemoryOptions, MemoryStore};
use tasklane_ports::conformance::model::{self, Plan};
use tasklane_ports::conformance::{self, DocumentsEnv, LogsEnv, StalledCommit, StoreEnv};
use tasklane_ports::{Documents, Logs, Store};
use tasklane_sqlite::{Durability, Options, Signals, Sqlite};
use tempfile::TempDir;
use tokio::sync::{Notify, oneshot};

/// A file in a folder of its own.
struct File {
    // Held for as long as the folder is needed.
    folder: TempDir,
    durability: Durability,
    /// The last store is in use; the earlier ones have crashed.
    opened: Mutex<Vec<Sqlite>>,
    hold: Arc<Hold>,
}

/// Stops the writer before a `COMMIT`, once it is armed. The writer notifies the test and waits for its
/// permission.
#[derive(Default)]
struct Hold(Mutex<Option<(oneshot::Sender<()>, mpsc::Receiver<()>)>>);

impl Hold {
    fn arm(&self) -> (oneshot::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, hear), (go_on, wait)) = (oneshot::channel(), mpsc::channel());
        *self.0.lock().unwrap() = Some((reached, wait));
        (hear, go_on)
    }

    fn stop_here(&self) {
        if let Some((reached, wait)) = self.0.lock().unwrap().take() {
            reached.send(()).unwrap();
            wait.recv().unwrap();
        }
    }
}

impl File {
    async fn new(durability: Durability) -> Self {
        let (opened, hold) = (Mutex::default(), Arc::default());
        let file = Self { folder: support::folder(), durability, opened, hold };
        file.open(&file.folder.path().join("0.db")).await;
        file
    }

    async fn open(&self, path: &Path) {
        let hold = Arc::clone(&self.hold);
        let signals =
            Signals { before_commit: Some(Arc::new(move || hold.stop_here())), ..Signals::default() };
        let options = Options { durability: self.durability, signals, ..Options::new(path) };
        let store = Sqlite::connect(options).await.unwrap();
        self.opened.lock().unwrap().push(store);
    }

    fn current(&self) -> Sqlite {
        self.opened.lock().unwrap().last().unwrap().clone()
    }

    /// Opens a copy of file and log as they lie on the disk at this moment, as a crash would leave them.
    async fn crash(&self) {
        let number = self.opened.lock().unwrap().len();
        let path = |number: usize, end: &str| self.folder.path().join(format!("{number}.db{end}"));
        std::fs::copy(path(number - 1, ""), path(number, "")).unwrap();
        // A store that was closed leaves no log.
        if let Err(error) = std::fs::copy(path(number - 1, "-wal"), path(number, "-wal")) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
        self.open(&path(number, "")).await;
    }
}

#[async_trait]
impl StoreEnv for File {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.current())
    }

    /// A second process is refused, so the second handle is one of the same store.
    async fn second(&self) -> Arc<dyn Store> {
        Arc::new(self.current())
    }

    async fn reopen(&self) -> Arc<dyn Store> {
        self.crash().await;
        self.store()
    }

    /// Later claims wait for a commit that the writer has taken. So the commit is held just before it is
    /// sent, where it blocks no other request.
    async fn stalled_commit(&self, commit: Commit) -> StalledCommit {
        let (ready, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let signal = {
            let (ready, go_on) = (Arc::clone(&ready), Arc::clone(&go_on));
            move || -> tasklane_sqlite::SignalFuture {
                let (ready, go_on) = (Arc::clone(&ready), Arc::clone(&go_on));
                Box::pin(async move {
                    ready.notify_one();
                    go_on.notified().await;
                })
            }
        };
        let signals = Signals { before_send: Some(Arc::new(signal)), ..Signals::default() };
        let store = self.current().with_signals(signals);
        let answer = tokio::spawn(async move { store.commit(&commit).await });
        ready.notified().await;
        StalledCommit::new(async move {
            go_on.notify_one();
            answer.await.unwrap()
        })
    }

    /// All of it is written, and its transaction is open.
    async fn held_commit(&self, commit: Commit) -> Option<StalledCommit> {
        let (reached, go_on) = self.hold.arm();
        let store = self.current();
        let answer = tokio::spawn(async move { store.commit(&commit).await });
        reached.await.unwrap();
        Some(StalledCommit::new(async move {
            go_on.send(()).unwrap();
            answer.await.unwrap()
        }))
    }
}

#[async_trait]
impl LogsEnv for File {
    fn logs(&self) -> Arc<dyn Logs> {
        Arc::new(self.current())
    }

    async fn reopen_logs(&self) -> Arc<dyn Logs> {
        self.crash().await;
        self.logs()
    }
}

#[async_trait]
impl DocumentsEnv for File {
    fn documents(&self) -> Arc<dyn Documents> {
        Arc::new(self.current())
    }

    async fn reopen_documents(&self) -> Arc<dyn Documents> {
        self.crash().await;
        self.documents()
    }
}

async fn file() -> Option<File> {
    Some(File::new(Durability::Full).await)
}

async fn relaxed_file() -> Option<File> {
    Some(File::new(Durability::Relaxed).await)
}

fn reference() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

/// The default store gets ten times the usual number of sequences.
#[test]
fn behaves_like_the_reference() {
    conformance::run_long("behaves_like_the_reference", async {
        let mut plan = Plan::from_environment();
        if std::env::var_os("TASKLANE_MODEL_SEQUENCES").is_none() {
            plan.sequences = 1000;
        }
        model::run(&file().await?, reference, plan).await;
        Some(())
    });
}

tasklane_ports::store_conformance!(file);
tasklane_ports::logs_conformance!(file);
tasklane_ports::documents_conformance!(file);

mod relaxed {
    use super::relaxed_file;

    tasklane_ports::store_conformance!(relaxed_file);
    tasklane_ports::logs_conformance!(relaxed_file);
    tasklane_ports::documents_conformance!(relaxed_file);
}

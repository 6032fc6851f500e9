//! The handle, its threads, and the port `Store`.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use async_trait::async_trait;
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;
use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{Epoch, LaneId, QueueKey, TaskId};
use tasklane_core::policy::{QueueBinding, VersionedPolicy};
use tasklane_core::read::LanePage;
use tasklane_core::task::{AttemptRecord, NewTask};
use tasklane_ports::codec::encode;
use tasklane_ports::{
    AttemptList, ClaimLane, CountList, ExpiredQuery, ExpiredTasks, LaneHead, LoadQuery, PutPolicy,
    QueueCounts, Store, StoreCapabilities, StoreError, Submit, TaskList, TaskPage, TaskView,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::checkpoint::checkpoints;
use crate::connect::{self, Options};
use crate::error::{Failure, closed};
use crate::lock_file::{self, LockedFile};
use crate::log_mark::{LogMark, PriorNote};
use crate::presence::Presence;
use crate::readers::{self, ReaderMessage};
use crate::requests::{BindQueue, PostRows, Request, Size, SubmitRows};
use crate::retire::{self, RETIRED_MAX, ReleasePages, RetireRows};
use crate::rows::{CommitRows, Heads, NewRow, StateRow};
use crate::signals::Signals;
use crate::writer::{self, WriterMessage};
use crate::{load, query};

/// Bounds of one submit or commit. A transaction of this size takes tens of milliseconds.
const CAPABILITIES: StoreCapabilities =
    StoreCapabilities { ops_max: 16 << 10, bytes_max: 8 << 20, insert_and_assign: true };

/// A store and its logs in one SQLite file. Cheap to clone; the file is released when the last clone is
/// dropped, or by `close`.
#[derive(Clone, Debug)]
pub struct Sqlite {
    inner: Arc<Inner>,
    signals: Signals,
}

#[derive(Debug)]
struct Inner {
    // `None` only while the store is dropped: the threads end when all senders are dropped.
    writes: Option<mpsc::Sender<WriterMessage>>,
    questions: Option<mpsc::Sender<ReaderMessage>>,
    readers: Threads,
    writer: Threads,
    presence: Arc<Presence>,
    warnings: Vec<String>,
}

/// Threads, and a way to learn that all of them have ended.
#[derive(Debug)]
struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
    ended: watch::Receiver<()>,
}

impl Sqlite {
    /// Opens a file, or creates one; brings it to the newest schema.
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let (reply, opened) = oneshot::channel();
        // Opening may take a while: a recovery after a crash, a migration.
        spawn("sqlite-open", move || {
            let _ = reply.send(Self::open(options));
        })?;
        opened.await.map_err(|_| StoreError::unavailable("the thread that opens the file has failed"))?
    }

    fn open(options: Options) -> Result<Self, StoreError> {
        let lock = Arc::new(lock_file::lock(&options.path)?);
        let presence = Arc::new(Presence::new(&lock));
        let options = Arc::new(options);
        let before = PriorNote::read(&lock.path);
        let first = connect::open_first(&options)?;
        let readers = (0..options.readers.max(1))
            .map(|_| connect::open_reader(&options))
            .collect::<Result<Vec<_>, _>>()?;
        let copier_conn = connect::open_checkpointer(&options)?;
        presence.log_is_open()?;
        let frames = first.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE);
        let frames = frames.map(|(frames, _)| u32::try_from(frames).unwrap_or(0));
        let mut warnings = Vec::new();
        if let (Some(before), Ok(frames)) = (before, &frames) {
            warnings.extend(before.missing(*frames));
        }
        warnings.extend(connect::does_not_shrink(&first, &lock.path)?);
        let mark = LogMark::open(&lock.path, frames.unwrap_or(0)).ok();
        presence.look_for_disk_space();

        let (writes, messages) = mpsc::channel(writer::WAITING_MAX);
        let (questions, asked) = mpsc::channel(readers::WAITING_MAX);
        let (checkpoints, copier) = checkpoints(mark);
        let (writer_alive, writer_ended) = watch::channel(());
        let (readers_alive, readers_ended) = watch::channel(());

        // Each thread drops its connection first, then the sign of life, then the lock.
        let mut writer_threads = Vec::new();
        let alive = (writer_alive.clone(), Arc::clone(&lock));
        let watched = Arc::clone(&presence);
        writer_threads.push(spawn("sqlite-copier", move || {
            let _alive = alive;
            copier.run(&copier_conn, &watched);
            drop(copier_conn);
        })?);
        let alive = (writer_alive, Arc::clone(&lock));
        let watched = Arc::clone(&presence);
        writer_threads.push(spawn("sqlite-writer", move || {
            let _alive = alive;
            writer::run(first, &options, messages, &checkpoints, &watched);
        })?);
        let asked = Arc::new(Mutex::new(asked));
        let mut reader_threads = Vec::new();
        for conn in readers {
            let alive = (readers_alive.clone(), Arc::clone(&lock));
            let asked = Arc::clone(&asked);
            reader_threads.push(spawn("sqlite-reader", move || {
                let _alive = alive;
                readers::run(&conn, &asked);
                drop(conn);
            })?);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                writes: Some(writes),
                questions: Some(questions),
                readers: Threads { handles: Mutex::new(reader_threads), ended: readers_ended },
                writer: Threads { handles: Mutex::new(writer_threads), ended: writer_ended },
                presence,
                warnings,
            }),
            signals: Signals::default(),
        })
    }

    /// Warnings about the files, in plain sentences; empty where there are none.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// The locked database file, until the store is closed. The guard shares it to keep other processes from
    /// the file after this one has ended. The descriptor must not be copied: closing a copy in this process
    /// would end SQLite's own locks.
    #[must_use]
    pub fn locked_file(&self) -> Option<Arc<LockedFile>> {
        self.inner.presence.file()
    }

    /// A handle with which a test can hold its own writes.
    #[doc(hidden)]
    #[must_use]
    pub fn with_signals(&self, signals: Signals) -> Self {
        Self { inner: Arc::clone(&self.inner), signals }
    }

    pub(crate) async fn write<R: Request>(&self, request: R) -> Result<R::Response, StoreError> {
        self.signals.before_send().await;
        let (reply, answer) = oneshot::channel();
        self.inner.writes().send(WriterMessage::of(request, reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| StoreError::unknown("the store's writer has failed"))?
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.inner.questions().send(ReaderMessage::of(read, reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(StoreError::unavailable)
}

impl Inner {
    fn writes(&self) -> &mpsc::Sender<WriterMessage> {
        self.writes.as_ref().expect("taken only when dropped")
    }

    fn questions(&self) -> &mpsc::Sender<ReaderMessage> {
        self.questions.as_ref().expect("taken only when dropped")
    }
}

impl Threads {
    fn join(&self) {
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            // A panic in it was logged when it happened.
            let _ = handle.join();
        }
    }

    async fn ended(&self) {
        // No value is ever sent: the channel ends with its senders.
        let _ = self.ended.clone().changed().await;
    }
}

impl Drop for Inner {
    /// Waits for the pending requests, so that the file can be opened again immediately afterwards. The
    /// writer ends last: the last connection that can write leaves the file without a log beside it.
    fn drop(&mut self) {
        self.questions = None;
        self.readers.join();
        self.writes = None;
        self.writer.join();
    }
}

fn check_size(what: &'static str, size: Size) -> Result<(), StoreError> {
    let StoreCapabilities { ops_max, bytes_max, .. } = CAPABILITIES;
    if size.ops > ops_max {
        return Err(StoreError::TooLarge { what, size: size.ops, max: ops_max });
    }
    if size.bytes > bytes_max {
        return Err(StoreError::TooLarge { what, size: size.bytes, max: bytes_max });
    }
    Ok(())
}

#[async_trait]
impl Store for Sqlite {
    fn capabilities(&self) -> StoreCapabilities {
        CAPABILITIES
    }

    fn write_trouble(&self) -> Option<StoreError> {
        self.inner.presence.trouble()
    }

    async fn submit(&self, submit: Submit) -> Result<Vec<SubmitOutcome>, StoreError> {
        let size = Size {
            ops: submit.tasks.iter().map(NewTask::ops).sum(),
            bytes: submit.tasks.iter().map(NewTask::bytes).sum(),
        };
        check_size("submit", size)?;
        for task in submit.tasks.iter() {
            assert_eq!(task.id.lane(), submit.lane, "task {} is submitted to another lane", task.id);
        }
        let mut heads = Heads::default();
        let rows = |task: &NewTask| (NewRow::of(task, &mut heads), StateRow::of(&task.state()));
        let tasks = submit.tasks.iter().map(rows).collect();
        self.write(SubmitRows { lane: submit.lane, tasks, size }).await
    }

    async fn lane_head(&self, lane: LaneId) -> Result<LaneHead, StoreError> {
        self.read(move |conn| query::lane_head(conn, lane)).await
    }

    async fn claim_lane(&self, claim: ClaimLane) -> Result<Epoch, StoreError> {
        self.write(claim).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        let rows = CommitRows::of(commit);
        check_size("commit", rows.size())?;
        for new in commit.groups.iter().filter_map(|group| group.insert.as_ref()) {
            assert_eq!(new.id.lane(), commit.lane, "task {} is inserted into another lane", new.id);
        }
        self.write(rows).await
    }

    async fn post(&self, lane: LaneId, commands: &[Command]) -> Result<(), StoreError> {
        self.write(PostRows { lane, commands: commands.iter().map(encode).collect() }).await
    }

    async fn load(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        self.read(move |conn| load::load(conn, &load)).await
    }

    async fn bind_queue(&self, queue: &QueueKey, binding: &QueueBinding) -> Result<QueueBinding, StoreError> {
        self.write(BindQueue { queue: queue.clone(), binding: binding.clone() }).await
    }

    async fn put_policy(&self, put: PutPolicy) -> Result<u64, StoreError> {
        self.write(put).await
    }

    async fn policy(&self, queue: &QueueKey) -> Result<VersionedPolicy, StoreError> {
        let queue = queue.clone();
        self.read(move |conn| query::policy(conn, &queue)).await
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        let ids = ids.to_vec();
        self.read(move |conn| query::tasks(conn, &ids)).await
    }

    async fn attempts(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        self.read(move |conn| query::attempts(conn, list)).await
    }

    async fn list(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        self.read(move |conn| query::list(conn, &list)).await
    }

    async fn counts(&self, list: CountList) -> Result<Vec<QueueCounts>, StoreError> {
        self.read(move |conn| query::counts(conn, &list)).await
    }

    async fn expired(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        self.read(move |conn| retire::expired(conn, &retire)).await
    }

    async fn retire(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        for (tasks, forget) in [(strip, false), (forget, true)] {
            for tasks in tasks.chunks(RETIRED_MAX) {
                self.write(RetireRows { tasks: tasks.to_vec(), forget }).await?;
            }
        }
        while self.write(ReleasePages).await? {}
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        // A second `close` finds the channel closed, and waits for the same threads.
        let _ = self.inner.questions().send(ReaderMessage::Close).await;
        self.inner.readers.ended().await;
        let _ = self.inner.writes().send(WriterMessage::Close).await;
        self.inner.writer.ended().await;
        Ok(())
    }
}

//! Checkpoints: copying the write-ahead log into the database file, off the writer's path.
//!
//! SQLite would copy the log within a commit from time to time, which costs tens of milliseconds. Here a
//! thread of its own, the copier, copies with its own connection while the writer goes on writing.
//!
//! The log restarts only when all of it has been copied and the next transaction finds it so. Under steady
//! load the copier is always a little behind, and the log would grow without bound. So when the copier has
//! nearly caught up, it sets a flag, and the writer copies the small rest itself between two transactions. If
//! readers keep an old part of the log in use until it has become very large, the writer waits a moment for
//! them, and truncates the log.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;

use crate::log_mark::LogMark;
use crate::presence::{LOOK_EVERY, Presence};

/// The copier starts when the log has grown by this many frames of 4 KiB since the last copy.
const STEP_FRAMES: u32 = 4 << 10;
/// With a log longer than this the writer waits for readers and truncates it,
const CUT_FRAMES: u32 = 64 << 10;
/// but waits no longer than this.
const CUT_WAIT: Duration = Duration::from_millis(200);
/// How often the copier starts over while the writer is ahead of it.
const ROUNDS_MAX: usize = 4;
/// A rest that the writer copies in about a millisecond.
const REST_FRAMES: u32 = 512;

/// The writer's side.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    wake: SyncSender<()>,
    shared: Arc<Shared>,
    /// Length of the log at which to wake the copier.
    wake_at: Cell<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The file that notes the length.
    mark: Option<LogMark>,
    /// A transaction has removed a value that can still be read in the log.
    erase: AtomicBool,
    /// Length of the log after the last transaction.
    frames: AtomicU32,
    /// The copier is so close behind that the writer can copy the rest.
    nearly_done: AtomicBool,
}

/// The copier's side.
#[derive(Debug)]
pub(crate) struct Copier {
    wake: Receiver<()>,
    shared: Arc<Shared>,
}

pub(crate) fn checkpoints(mark: Option<LogMark>) -> (Checkpoints, Copier) {
    let (send, wake) = sync_channel(1);
    let shared = Arc::new(Shared { mark, ..Shared::default() });
    let copier = Copier { wake, shared: Arc::clone(&shared) };
    (Checkpoints { wake: send, shared, wake_at: Cell::new(STEP_FRAMES) }, copier)
}

impl Checkpoints {
    /// Makes SQLite report the length of the log after each transaction.
    pub(crate) fn watch(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let shared = Arc::clone(&self.shared);
        conn.wal_hook(Some(move |_: &mut Wal, frames: i32| {
            shared.frames.store(u32::try_from(frames).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Runs after a transaction, which may have erased a value. A checkpoint that fails is retried at the
    /// next step.
    pub(crate) fn on_commit(&self, conn: &Connection, erased: bool) {
        let frames = self.shared.frames.load(Ordering::Relaxed);
        if let Some(mark) = &self.shared.mark {
            mark.note(frames);
        }
        if erased {
            self.shared.erase.store(true, Ordering::Relaxed);
        }
        let wake_at = self.wake_at.get();
        let grown = frames >= wake_at;
        if grown {
            // One wake-up is enough for several calls.
            let _ = self.wake.try_send(());
            self.wake_at.set(frames + STEP_FRAMES);
        } else if frames + STEP_FRAMES < wake_at {
            // The log has restarted.
            self.wake_at.set(STEP_FRAMES);
        }
        if grown && frames > CUT_FRAMES {
            self.shared.cut(conn);
        } else if self.shared.nearly_done.swap(false, Ordering::Relaxed) {
            let _ = conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE);
        }
    }
}

impl Shared {
    /// Waits for readers, copies everything and truncates the log. Answers whether it was truncated.
    fn cut(&self, conn: &Connection) -> bool {
        if let Some(mark) = &self.mark {
            mark.forget();
        }
        let is_cut = cut(conn);
        if let Some(mark) = &self.mark {
            mark.was_cut();
        }
        is_cut
    }
}

/// Waits for readers, copies everything and truncates the log. Answers whether it was truncated.
fn cut(conn: &Connection) -> bool {
    let patience = conn.query_row("PRAGMA busy_timeout", [], |row| row.get::<_, i64>(0));
    let _ = conn.busy_timeout(CUT_WAIT);
    let is_cut =
        conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).is_ok_and(|(left, _)| left == 0);
    if let Ok(patience) = patience {
        let _ = conn.busy_timeout(Duration::from_millis(patience.cast_unsigned()));
    }
    is_cut
}

impl Copier {
    /// Runs until the writer has ended. It also checks the files while the store is idle.
    pub(crate) fn run(&self, conn: &Connection, presence: &Presence) {
        loop {
            match self.wake.recv_timeout(LOOK_EVERY) {
                Ok(()) => self.copy(conn),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.erase(conn);
            // The check logs its findings; writers get the error from their own check.
            let _ = presence.check();
            presence.look_for_disk_space();
        }
        if let Some(mark) = &self.shared.mark {
            mark.close();
        }
    }

    /// Erases removed values from the log. The transaction has overwritten them in the database, but older
    /// pages lie in the log. The copier copies most of it beside the writer, so the writer waits only for
    /// moments.
    fn erase(&self, conn: &Connection) {
        if self.shared.erase.swap(false, Ordering::Relaxed) {
            self.copy(conn);
            if !self.shared.cut(conn) {
                // A reader uses the log: retry at the next look.
                self.shared.erase.store(true, Ordering::Relaxed);
            }
        }
    }

    fn copy(&self, conn: &Connection) {
        for _ in 0..ROUNDS_MAX {
            let Ok((_, copied)) = conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) else {
                break;
            };
            let frames = self.shared.frames.load(Ordering::Relaxed);
            if frames.saturating_sub(u32::try_from(copied).unwrap_or(0)) <= REST_FRAMES {
                self.shared.nearly_done.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::metadata;

    use super::*;
    use crate::connect::{Options, open_checkpointer, open_first, open_reader, open_writer};

    /// Writes as many pages as it takes for the log to grow by this many frames.
    fn grow(conn: &Connection, frames: u32) {
        let sql = "INSERT INTO log VALUES (randomblob(16), 1, 1, 1, 1, zeroblob(4000 * ?1))";
        conn.execute(sql, [frames]).unwrap();
    }

    #[test]
    fn log_starts_anew_under_steady_load() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(folder.path().join("tasklane.db"));
        let mut writer = open_first(&options).unwrap();
        let copier_conn = open_checkpointer(&options).unwrap();
        let (checkpoints, copier) = checkpoints(None);
        checkpoints.watch(&mut writer).unwrap();
        let copying = std::thread::spawn(move || {
            while copier.wake.recv().is_ok() {
                copier.copy(&copier_conn);
            }
        });
        let (mut largest, mut written) = (0, 0);
        while written < 20 * STEP_FRAMES {
            grow(&writer, 100);
            written += 100;
            checkpoints.on_commit(&writer, false);
            largest = largest.max(checkpoints.shared.frames.load(Ordering::Relaxed));
        }
        assert!(largest < 10 * STEP_FRAMES, "{largest} frames");
        drop(checkpoints);
        copying.join().unwrap();
    }

    #[test]
    fn very_long_log_is_cut_off_when_readers_let_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::new(folder.path().join("tasklane.db"));
        let writer = open_first(&options).unwrap();
        let log = || metadata(folder.path().join("tasklane.db-wal")).unwrap().len();
        let reader = open_reader(&options).unwrap();
        let count = |conn: &Connection| {
            conn.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)).unwrap()
        };
        let snapshot = reader.unchecked_transaction().unwrap();
        assert_eq!(count(&snapshot), 0);
        grow(&writer, 1000);
        cut(&writer);
        assert!(log() > 4_000_000);
        assert_eq!(count(&snapshot), 0);
        drop(snapshot);
        cut(&writer);
        assert_eq!(log(), 0);
        assert_eq!(count(&reader), 1);
        let patience =
            |conn: &Connection| conn.query_row("PRAGMA busy_timeout", [], |row| row.get::<_, i64>(0));
        assert_eq!(patience(&writer), patience(&open_writer(&options).unwrap()));
    }
}

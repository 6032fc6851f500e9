//! Checks whether the store's files are still there, and have room.
//!
//! SQLite goes on writing to files that were deleted or moved away, and everything it acknowledges then is
//! gone with the process. So the names are compared with the open files twice a second, and after each
//! transaction before its requests are answered. Two system calls cost little beside a write to the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tasklane_ports::StoreError;

use crate::error::Failure;
use crate::lock_file::{FileId, FileLock, LockedFile, with_suffix};

/// How often to check while the store is idle.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// With less than this left on the disk, the store counts as full: a write will soon fail.
const DISK_SPACE_MIN: u64 = 1 << 20;
const FULL: &str = "the disk of the database is full: free some of it";

/// Watches over the files of a store.
#[derive(Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    /// Released by `close`, which ends the checks.
    file: Weak<LockedFile>,
    log: PathBuf,
    /// The log that all connections have open.
    log_id: OnceLock<FileId>,
    /// `state` has a reason against writing: checked before `state` is locked.
    is_troubled: AtomicBool,
    state: Mutex<PresenceState>,
}

#[derive(Debug, Default)]
struct PresenceState {
    /// Why the files no longer belong to the store.
    lost: Option<String>,
    /// Why they never will again in this process.
    taken: Option<String>,
    /// The last write found no room, and none has succeeded since.
    refused: bool,
    /// There is next to no room.
    is_low: bool,
}

impl PresenceState {
    fn lost(&self) -> Option<&String> {
        self.taken.as_ref().or(self.lost.as_ref())
    }
}

impl Presence {
    pub(crate) fn new(lock: &FileLock) -> Self {
        Self {
            path: lock.path.clone(),
            file: Arc::downgrade(&lock.file),
            log: with_suffix(&lock.path, "-wal"),
            log_id: OnceLock::new(),
            is_troubled: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// The locked file, until the store is closed.
    pub(crate) fn file(&self) -> Option<Arc<LockedFile>> {
        self.file.upgrade()
    }

    /// Notes the log that all connections have opened; it must stay at its path from now on.
    pub(crate) fn log_is_open(&self) -> Result<(), StoreError> {
        match FileId::at(&self.log) {
            Ok(Some(id)) => {
                let _ = self.log_id.set(id);
                Ok(())
            }
            Ok(None) => Err(StoreError::unavailable(format!("{} was deleted", self.log.display()))),
            Err(error) => Err(StoreError::unavailable(error)),
        }
    }

    /// Checks whether the files are still there. It runs after a transaction and before its requests are
    /// answered.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let found = self.find();
        if found.is_none() && !self.is_troubled.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = self.path.display();
        self.change(|state| {
            match (&state.lost, &found) {
                (None, Some(reason)) => tracing::error!(%path, "{reason}; the store refuses writes"),
                (Some(_), None) => {
                    tracing::info!(%path, "the files of the store are back: it takes writes again");
                }
                _ => {}
            }
            state.lost = found;
            state.lost().cloned().map_or(Ok(()), |reason| Err(Failure::Lost(reason)))
        })
    }

    /// The reason why the files are lost, if they are.
    fn find(&self) -> Option<String> {
        // Without their folder: the readiness check answers every client.
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (path, log) = (name(&self.path), name(&self.log));
        let remedy = "stop this server, put the files back and start it again";
        let file = self.file()?;
        match FileId::at(&self.path) {
            Ok(Some(id)) if id == file.id() => {}
            Ok(Some(_)) => return Some(format!("{path} was replaced while the server runs: {remedy}")),
            Ok(None) => return Some(format!("{path} was deleted or moved while the server runs: {remedy}")),
            Err(error) => return Some(format!("{path} cannot be looked at: {error}")),
        }
        let expected = self.log_id.get()?;
        match FileId::at(&self.log) {
            Ok(Some(id)) if id == *expected => None,
            Ok(_) => Some(format!("{log} was deleted, moved or replaced while the server runs: {remedy}")),
            Err(error) => Some(format!("{log} cannot be looked at: {error}")),
        }
    }

    /// Another process has written to a lane of this one.
    pub(crate) fn taken(&self, reason: String) {
        self.change(|state| {
            if state.taken.is_none() {
                tracing::error!("{reason}; the store refuses writes");
                state.taken = Some(reason);
            }
        });
    }

    /// Notes whether the last write found space.
    pub(crate) fn on_write(&self, found_space: bool) {
        if !found_space || self.is_troubled.load(Ordering::Relaxed) {
            self.change(|state| state.refused = !found_space);
        }
    }

    /// Checks how much space there is.
    pub(crate) fn look_for_disk_space(&self) {
        let Some(Ok(disk)) = self.file().map(rustix::fs::fstatvfs) else { return };
        // The last blocks are root's.
        let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
        let is_low = blocks.saturating_mul(disk.f_frsize) < DISK_SPACE_MIN;
        if is_low || self.is_troubled.load(Ordering::Relaxed) {
            self.change(|state| {
                match (state.is_low, is_low) {
                    (false, true) => tracing::warn!(path = %self.path.display(), "{FULL}"),
                    (true, false) => {
                        tracing::info!(path = %self.path.display(), "there is room on the disk again");
                    }
                    _ => {}
                }
                state.is_low = is_low;
                // No write may have been tried since.
                state.refused &= is_low;
            });
        }
    }

    /// Why writes are refused at the moment.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return None;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = state.lost() {
            return Some(StoreError::Lost { reason: reason.clone() });
        }
        (state.refused || state.is_low)
            .then(|| StoreError::Full { source: "the disk of the database is full: free some of it".into() })
    }

    fn change<T>(&self, change: impl FnOnce(&mut PresenceState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state);
        let is_troubled = state.lost().is_some() || state.refused || state.is_low;
        self.is_troubled.store(is_troubled, Ordering::Relaxed);
        changed
    }
}

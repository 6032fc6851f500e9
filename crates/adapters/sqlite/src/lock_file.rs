//! The lock by which one process owns a database file: an `flock` on the file itself.
//!
//! A lock file beside it is easily mistaken for litter and removed, and a second process then starts on the
//! same tasks. The removal of the database file itself is noticed (see `presence`).
//!
//! SQLite locks the same file in another way, with POSIX locks, and those have a trap: a process that closes
//! *any* descriptor of a file loses all of its POSIX locks on it. So this module opens its descriptor before
//! SQLite opens the file, and nothing else in this process opens the file and closes it again. The guard,
//! which holds the lock as long as an attempt lives, shares this one descriptor. The descriptor is closed
//! when neither a connection nor the guard's side uses it, under the same mutex under which the file would be
//! opened again.
//!
//! Earlier versions lock `<file>.lock` alone. This version locks it too, so that an earlier version does not
//! run beside it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tasklane_ports::StoreError;

/// How long the attempts of an earlier process may hold the file. They end within a few seconds of it.
const ATTEMPTS_WITHIN: Duration = Duration::from_secs(10);
/// How often to check whether they have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Only the owner of the file may read it.
const MODE: u32 = 0o600;

/// Identity of a file under any of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(about: &std::fs::Metadata) -> Self {
        Self { device: about.dev(), inode: about.ino() }
    }

    /// The file at a path; `None` if there is none.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(about) => Ok(Some(Self::of(&about))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The database file, open and locked. The guard shares it to keep the lock after the store has ended.
#[derive(Debug)]
pub struct LockedFile {
    id: FileId,
    /// `None` only while it is dropped.
    file: Option<File>,
    /// A store of this process uses it.
    in_use: AtomicBool,
}

/// Locked files of this process.
static LOCKED: Mutex<BTreeMap<FileId, Weak<LockedFile>>> = Mutex::new(BTreeMap::new());

fn locked() -> MutexGuard<'static, BTreeMap<FileId, Weak<LockedFile>>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LockedFile {
    pub(crate) fn id(&self) -> FileId {
        self.id
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("taken only when dropped").as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // The file is opened again only after this descriptor is closed.
        let mut locked = locked();
        locked.remove(&self.id);
        self.file = None;
    }
}

/// Kept while any connection is open. The error of a second process names the process that holds it.
#[derive(Debug)]
pub(crate) struct FileLock {
    /// The file's own path, without symlinks.
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<LockedFile>,
    // The lock of earlier versions. It ends with its last descriptor, in whatever way the process ends.
    _beside: File,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.file.in_use.store(false, Ordering::Release);
    }
}

/// Creates folder and file where they do not exist, and takes the locks.
pub(crate) fn lock(path: &Path) -> Result<FileLock, StoreError> {
    let failed = |what: &str, error: io::Error| failure(what, path, &error);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).map_err(|error| failed("make the folder of", error))?;
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| failed("make the folder of", error))?;
    }
    // Created here if it does not exist, so that two names of one file lead to the same lock. A new file is
    // open nowhere else in this process.
    match File::options().write(true).create_new(true).mode(MODE).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed("create", error)),
        Ok(_) | Err(_) => {}
    }
    let real = path.canonicalize().map_err(|error| failed("find", error))?;
    let beside = lock_beside(path, &real)?;
    let file = lock_itself(path, &real)?;
    make_private(&real);
    Ok(FileLock { path: real, file, _beside: beside })
}

/// The lock of earlier versions. The file also holds the id of the process that holds the lock.
fn lock_beside(path: &Path, real: &Path) -> Result<File, StoreError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(with_suffix(real, ".lock"))
        .map_err(|error| failure("open the lock file of", path, &error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(in_use(path, holder.trim().parse().ok()));
        }
        Err(TryLockError::Error(error)) => return Err(failure("lock", path, &error)),
    }
    // Only for the message above: the lock works without it.
    let _ = file.set_len(0);
    let _ = file.rewind();
    let _ = write!(file, "{}", std::process::id());
    Ok(file)
}

fn lock_itself(path: &Path, real: &Path) -> Result<Arc<LockedFile>, StoreError> {
    let failed = |what: &str, error: io::Error| failure(what, path, &error);
    let deadline = Instant::now() + ATTEMPTS_WITHIN;
    loop {
        let mut files = locked();
        let id = FileId::at(real).map_err(|error| failed("look at", error))?;
        if let Some(known) = id.and_then(|id| files.get(&id)) {
            let Some(file) = known.upgrade() else {
                // Another thread is about to close it, and waits for the mutex.
                drop(files);
                std::thread::yield_now();
                continue;
            };
            let is_taken = file.in_use.swap(true, Ordering::Acquire);
            // `file` may be the last reference, whose drop takes the mutex.
            drop(files);
            return if is_taken { Err(in_use(path, Some(std::process::id()))) } else { Ok(file) };
        }
        let opened = File::options().read(true).write(true).open(real);
        let opened = opened.map_err(|error| failed("open", error))?;
        let id = FileId::of(&opened.metadata().map_err(|error| failed("look at", error))?);
        if files.contains_key(&id) {
            // The path was exchanged for another file in use after the look at it: closing this descriptor
            // would end the locks on that file.
            std::mem::forget(opened);
            continue;
        }
        match opened.try_lock() {
            Ok(()) => {
                let file = Arc::new(LockedFile { id, file: Some(opened), in_use: AtomicBool::new(true) });
                files.insert(id, Arc::downgrade(&file));
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        drop(files);
        // The guard of a killed server holds the lock until the last attempt has ended. A living server does
        // not give the file up.
        if let Some(holder) = living_holder(id) {
            return Err(in_use(path, Some(holder)));
        }
        if Instant::now() >= deadline {
            return Err(StoreError::Refused {
                reason: format!(
                    "{} is still held by attempts of an earlier process after {ATTEMPTS_WITHIN:?}, or by a process that \
                     cannot be seen from here: end them (`fuser -v {}` shows them) and start again",
                    path.display(),
                    path.display()
                ),
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The process that has locked a file, if it lives and is visible.
fn living_holder(id: FileId) -> Option<u32> {
    let device = (rustix::fs::major(id.device), rustix::fs::minor(id.device));
    let place = format!("{:02x}:{:02x}:{}", device.0, device.1, id.inode);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str());
        is_it.then(|| fields[4].parse().ok())?
    })?;
    let status = std::fs::read_to_string(format!("/proc/{holder}/stat")).ok()?;
    // A zombie holds nothing but its process id.
    let state = status.rsplit(')').next()?.split_whitespace().next()?;
    (state != "Z").then_some(holder)
}

/// Removes the rights to read that earlier versions gave to others.
fn make_private(real: &Path) {
    let mut were_open = Vec::new();
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let path = with_suffix(real, suffix);
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.is_file() && about.mode() & 0o077 != 0 {
            match std::fs::set_permissions(&path, PermissionsExt::from_mode(MODE)) {
                Ok(()) => were_open.push(path.display().to_string()),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "other users can read this file, and its mode could not be changed");
                }
            }
        }
    }
    if !were_open.is_empty() {
        tracing::info!(
            files = were_open.join(", "),
            "other users could read these files; now only their owner can"
        );
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failure(what: &str, path: &Path, error: &io::Error) -> StoreError {
    if error.kind() == ErrorKind::StorageFull {
        let why = io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()));
        return StoreError::Full { source: Box::new(why) };
    }
    StoreError::Refused { reason: format!("cannot {what} {}: {error}", path.display()) }
}

fn in_use(path: &Path, holder: Option<u32>) -> StoreError {
    let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    StoreError::Refused {
        reason: format!(
            "{} is in use by {holder}, and one process at a time may use it. Stop that one, or give this one a file of \
             its own; several servers can share a store of another kind",
            path.display()
        ),
    }
}

//! Opening the file: its lock, its connections and their settings.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tasklane_ports::StoreError;

use crate::error::{Failure, read_failed};
use crate::migrate::migrate;
use crate::signals::Signals;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database file. Its folder is made if it is not there; beside it lie `<file>-wal`, `<file>-shm` and
    /// `<file>.lock`.
    pub path: PathBuf,
    /// What an acknowledged write survives. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Connections that answer reads, each with its thread. Default: 3.
    pub readers: usize,
    /// The file grows no larger than this; beyond it writes are answered with `StoreError::Full`. Default: as large
    /// as the disk.
    pub bytes_max: Option<u64>,
    #[doc(hidden)]
    pub signals: Signals,
}

impl Options {
    /// The defaults, for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::default(),
            readers: 3,
            bytes_max: None,
            signals: Signals::default(),
        }
    }
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Also a power cut: every transaction is on the disk before it is acknowledged (`synchronous=FULL`).
    #[default]
    Full,
    /// A crash or `kill -9` of the process, but not of the machine: a power cut may take the last moments back, in
    /// order and never in part (`synchronous=NORMAL`). Several times faster where few requests come together.
    Relaxed,
}

/// Kept while any connection is open. A second process is told who has it.
#[derive(Debug)]
pub(crate) struct FileLock {
    // The lock ends with the file's last descriptor, however the process ends.
    _file: File,
}

/// How long to wait for a foreign program (a backup, the `sqlite3` shell) that holds SQLite's own lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// A log that grew larger than this is cut back to it when it starts anew.
const WAL_BYTES_KEPT: u64 = 128 << 20;
const PAGE_BYTES: u64 = 4096;
const WRITER_CACHE_KIB: i64 = 16 << 10;
const READER_CACHE_KIB: i64 = 8 << 10;

/// Makes the folder, takes the lock.
pub(crate) fn lock(path: &Path) -> Result<FileLock, StoreError> {
    let refused = |what: &str, error: &std::io::Error| StoreError::Refused {
        reason: format!("cannot {what} {}: {error}", path.display()),
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| refused("make the folder of", &error))?;
    }
    // Made here if it is not there, so that two names of one file come to the same lock. One that is there is not even
    // opened: closing it again would end the locks that SQLite has on it, were it in use in this process.
    match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refused("create", &error)),
        Ok(_) | Err(_) => {}
    }
    let real = path.canonicalize().map_err(|error| refused("find", &error))?;
    let mut name = real.into_os_string();
    name.push(".lock");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(|error| refused("open the lock file of", &error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            return Err(StoreError::Refused {
                reason: format!(
                    "{} is in use by {holder}, and one process at a time may use it. Stop that one, or give this \
                     one a file of its own; several servers can share a store of another kind",
                    path.display()
                ),
            });
        }
        Err(TryLockError::Error(error)) => return Err(refused("lock", &error)),
    }
    // Only for the message above: a lock without it is as good.
    let _ = file.set_len(0);
    let _ = file.rewind();
    let _ = write!(file, "{}", std::process::id());
    Ok(FileLock { _file: file })
}

/// What all connections that ask questions have in common.
fn set_up(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // Otherwise a statement is planned anew whenever it is given other values.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Opens, checks and migrates.
pub(crate) fn open_first(options: &Options) -> Result<Connection, StoreError> {
    let in_file = |error| match error {
        StoreError::Refused { reason } => {
            StoreError::Refused { reason: format!("{}: {reason}", options.path.display()) }
        }
        other => other,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let conn = Connection::open_with_flags(&options.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(
        |error| StoreError::Refused { reason: format!("cannot open {}: {error}", options.path.display()) },
    )?;
    set_up(&conn).map_err(failed)?;
    migrate(&conn).map_err(in_file)?;
    set_writer(&conn, options)?;
    Ok(conn)
}

/// Opens the writer's connection again after something went badly wrong with it.
pub(crate) fn open_writer(options: &Options) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&options.path, flags).map_err(failed)?;
    set_up(&conn).map_err(failed)?;
    set_writer(&conn, options)?;
    Ok(conn)
}

pub(crate) fn open_reader(options: &Options) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&options.path, flags).map_err(failed)?;
    set_up(&conn).map_err(failed)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// The connection that copies the log into the file.
pub(crate) fn open_checkpointer(options: &Options) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&options.path, flags).map_err(failed)?;
    set_synchronous(&conn, options.durability)?;
    Ok(conn)
}

fn set_writer(conn: &Connection, options: &Options) -> Result<(), StoreError> {
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(StoreError::Refused {
            reason: format!(
                "{} cannot have a write-ahead log (journal mode stays {mode}): put it on a local disk",
                options.path.display()
            ),
        });
    }
    set_synchronous(conn, options.durability)?;
    // Checkpoints run elsewhere: see `checkpoint`.
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    let kept = i64::try_from(WAL_BYTES_KEPT).expect("a small constant");
    conn.pragma_update(None, "journal_size_limit", kept).map_err(failed)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB).map_err(failed)?;
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(failed)?;
    if let Some(bytes) = options.bytes_max {
        let pages = i64::try_from(bytes / PAGE_BYTES).unwrap_or(i64::MAX).max(1);
        conn.pragma_update(None, "max_page_count", pages).map_err(failed)?;
    }
    Ok(())
}

fn set_synchronous(conn: &Connection, durability: Durability) -> Result<(), StoreError> {
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous).map_err(failed)
}

fn failed(error: rusqlite::Error) -> StoreError {
    read_failed(&Failure::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        for (durability, expected) in [(Durability::Full, 2), (Durability::Relaxed, 1)] {
            let options = Options { durability, ..Options::new(folder.path().join("tasklane.db")) };
            for open in [open_first, open_writer, open_checkpointer] {
                let conn = open(&options).unwrap();
                let set =
                    |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
                assert_eq!(set("synchronous"), expected, "{durability:?}");
            }
            let conn = open_writer(&options).unwrap();
            let automatic = conn.pragma_query_value(None, "wal_autocheckpoint", |row| row.get::<_, i64>(0));
            assert_eq!(automatic, Ok(0));
        }
    }
}

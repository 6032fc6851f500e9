//! Opening the file: its connections and their settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OpenFlags};
use tasklane_ports::StoreError;

use crate::error::{Failure, read_failed};
use crate::migrate::migrate;
use crate::signals::Signals;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database file. Its folder is created if it does not exist; beside the file lie `<file>-wal`,
    /// `<file>-shm` and `<file>.lock`. All of them are readable by their owner alone.
    pub path: PathBuf,
    /// What an acknowledged write survives. Default: [`Durability::Full`].
    pub durability: Durability,
    /// Connections that answer reads, each with its thread. Default: 3.
    pub readers: usize,
    /// Largest size of the file; beyond it writes are answered with `StoreError::Full`. Default: as large as
    /// the disk.
    pub bytes_max: Option<u64>,
    #[doc(hidden)]
    pub signals: Signals,
}

impl Options {
    /// The default options for a file.
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
    /// A crash or `kill -9` of the process, but not of the machine: a power cut may take the last moments
    /// back, in order and never in part (`synchronous=NORMAL`). Several times faster where few requests
    /// arrive together.
    Relaxed,
}

/// How long to wait for another program (a backup, the `sqlite3` shell) that holds SQLite's own lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// A log that grew larger than this is truncated to it when it restarts.
const WAL_BYTES_KEPT: u64 = 128 << 20;
const PAGE_BYTES: u64 = 4096;
/// A file of an earlier version is rewritten at the start, in about a second, if it is no larger than this.
const REWRITTEN_MAX: u64 = 64 << 20;
const WRITER_CACHE_KIB: i64 = 16 << 10;
const READER_CACHE_KIB: i64 = 8 << 10;

/// The settings of every connection that reads.
fn set_up(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // Otherwise SQLite plans a statement again for other parameters.
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
    open_log(&conn)?;
    Ok(conn)
}

/// Rewrites a file of an earlier version, so that it can shrink and holds no removed values. Answers the
/// instructions to do so where it takes too long for a start.
pub(crate) fn does_not_shrink(conn: &Connection, path: &Path) -> Result<Option<String>, StoreError> {
    if number(conn, "PRAGMA auto_vacuum")? != 0 {
        return Ok(None);
    }
    let bytes = number(conn, "PRAGMA page_count")?.unsigned_abs() * PAGE_BYTES;
    let path = path.display();
    if bytes <= REWRITTEN_MAX {
        match conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM") {
            Ok(()) => {
                // The log holds the file's old pages and its new ones.
                let _ = conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
                tracing::info!(%path, bytes, "the file of an earlier version was rewritten: from now on it can shrink");
                return Ok(None);
            }
            Err(error) => {
                tracing::warn!(%path, %error, "the file of an earlier version could not be rewritten");
            }
        }
    }
    Ok(Some(format!(
        "{path} was made by an earlier version: it does not shrink, and values removed earlier can be read in it. To \
         rewrite it once, stop the server and run: sqlite3 {path} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'"
    )))
}

fn number(conn: &Connection, sql: &str) -> Result<i64, StoreError> {
    conn.query_row(sql, [], |row| row.get(0)).map_err(failed)
}

/// Opens the writer's connection again after a transaction that could not be ended.
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
    open_log(&conn)?;
    Ok(conn)
}

/// The connection that copies the log into the file.
pub(crate) fn open_checkpointer(options: &Options) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&options.path, flags).map_err(failed)?;
    set_synchronous(&conn, options.durability)?;
    open_log(&conn)?;
    Ok(conn)
}

/// A connection opens the log with its first query. It runs now, so that all connections have the same log.
fn open_log(conn: &Connection) -> Result<(), StoreError> {
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(failed)
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
    // Removed values are overwritten with zeros in the transaction that removes them.
    conn.pragma_update_and_check(None, "secure_delete", "ON", |_| Ok(())).map_err(failed)?;
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

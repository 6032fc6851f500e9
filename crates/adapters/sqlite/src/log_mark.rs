//! The mark: how far the write-ahead log was good, noted beside it in `<file>-mark`.
//!
//! SQLite reads the log after a crash up to the first frame whose checksum is wrong, and takes that frame for
//! its end. A log that was deleted, cut short or damaged meanwhile looks like a shorter one, and acknowledged
//! writes after that point are lost without an error. So after each commit the log's salts and its length in
//! frames are noted in a file of 12 bytes, without waiting for the disk: that covers crashes of the process.
//! After a power cut the note may be older than the log, which only makes the check weaker.
//!
//! The file exists while the store is in use. Without a note no log is expected.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::lock_file::with_suffix;

/// Position of the salts in the header of a log.
const SALTS_AT: u64 = 16;
/// The file's two salts. The first one rises by one whenever the log restarts, after all of it was copied.
type Salts = [u8; 8];

/// A note: the log's salts, and its number of good frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    salts: Salts,
    frames: u32,
}

impl Note {
    const NONE: Self = Self { salts: [0; 8], frames: 0 };

    fn bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.salts);
        bytes[8..].copy_from_slice(&self.frames.to_le_bytes());
        bytes
    }

    fn of(bytes: [u8; 12]) -> Self {
        let (salts, frames) = bytes.split_first_chunk().expect("of twelve bytes the first eight");
        Self { salts: *salts, frames: u32::from_le_bytes(frames.try_into().expect("and the other four")) }
    }

    fn generation(self) -> u32 {
        u32::from_be_bytes(*self.salts.first_chunk().expect("half of eight"))
    }
}

/// The note from before the store was opened, and the salts of the log.
#[derive(Debug)]
pub(crate) struct PriorNote {
    note: Note,
    /// `None` if there is no log.
    found: Option<Salts>,
    log: PathBuf,
}

impl PriorNote {
    /// Reads the note. It runs before SQLite opens the database. `None` if the store was closed in order, or
    /// is new.
    pub(crate) fn read(database: &Path) -> Option<Self> {
        let mut bytes = [0; 12];
        File::open(with_suffix(database, "-mark")).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        let note = Note::of(bytes);
        let log = with_suffix(database, "-wal");
        let found = File::open(&log).ok().and_then(|log| salts(&log).ok());
        (note.frames > 0).then_some(Self { note, found, log })
    }

    /// A warning if the log lacks acknowledged frames, now that SQLite has found this many in it.
    pub(crate) fn missing(&self, frames: u32) -> Option<String> {
        let log = self.log.display();
        let what = match self.found {
            None => format!("{log} is missing or empty"),
            Some(salts) if salts == self.note.salts && frames >= self.note.frames => return None,
            Some(salts) if salts == self.note.salts => {
                format!(
                    "{log} is damaged or cut short: {frames} of {} pages in it can be read",
                    self.note.frames
                )
            }
            // The log had restarted, and the process was killed before the next note.
            Some(salts)
                if Note { salts, ..self.note }.generation() == self.note.generation().wrapping_add(1) =>
            {
                return None;
            }
            Some(_) => format!("{log} is damaged, or that of another database"),
        };
        Some(format!(
            "{what}, and the last server was not stopped in order: some of its last acknowledged writes are lost. \
             If the files were copied or restored, take all of them together"
        ))
    }
}

/// Writes the notes.
#[derive(Debug)]
pub(crate) struct LogMark {
    path: PathBuf,
    open: Mutex<Option<OpenFiles>>,
}

#[derive(Debug)]
struct OpenFiles {
    mark: File,
    log: File,
}

impl LogMark {
    /// Opens the mark of a log with this many frames.
    pub(crate) fn open(database: &Path, frames: u32) -> io::Result<Self> {
        let path = with_suffix(database, "-mark");
        let mark = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let log = File::open(with_suffix(database, "-wal"))?;
        let opened = Self { path, open: Mutex::new(Some(OpenFiles { mark, log })) };
        opened.forget();
        opened.note(frames);
        Ok(opened)
    }

    /// Notes the length of the log after a commit. A failure is ignored.
    pub(crate) fn note(&self, frames: u32) {
        self.with(|open| {
            if let Ok(salts) = salts(&open.log) {
                let _ = open.mark.write_all_at(&Note { salts, frames }.bytes(), 0);
            }
        });
    }

    /// Clears the note, before the log is truncated.
    pub(crate) fn forget(&self) {
        self.with(|open| {
            let _ = open.mark.write_all_at(&Note::NONE.bytes(), 0);
        });
    }

    /// Clears the note after a truncation, unless a write has followed.
    pub(crate) fn was_cut(&self) {
        self.with(|open| {
            if open.log.metadata().is_ok_and(|about| about.len() == 0) {
                let _ = open.mark.write_all_at(&Note::NONE.bytes(), 0);
            }
        });
    }

    /// Removes the mark, before the last connection closes and removes the log.
    pub(crate) fn close(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = std::fs::remove_file(&self.path);
    }

    fn with(&self, write: impl FnOnce(&OpenFiles)) {
        if let Some(open) = &*self.open.lock().unwrap_or_else(PoisonError::into_inner) {
            write(open);
        }
    }
}

fn salts(log: &File) -> io::Result<Salts> {
    let mut salts = [0; 8];
    log.read_exact_at(&mut salts, SALTS_AT)?;
    Ok(salts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_not_what_it_was_is_told() {
        let salts = |generation: u32, random: u8| {
            let mut salts = [random; 8];
            salts[..4].copy_from_slice(&generation.to_be_bytes());
            salts
        };
        let note = Note { salts: salts(7, 1), frames: 10 };
        assert_eq!(Note::of(note.bytes()), note);
        let missing = |found, frames| PriorNote { note, found, log: PathBuf::from("db-wal") }.missing(frames);
        assert_eq!(missing(Some(salts(7, 1)), 10), None);
        assert_eq!(missing(Some(salts(7, 1)), 12), None, "it was killed before it noted the last ones");
        assert_eq!(missing(Some(salts(8, 2)), 3), None, "or that the log has restarted");
        assert!(missing(Some(salts(7, 1)), 9).unwrap().contains("9 of 10 pages"));
        assert!(missing(Some(salts(9, 2)), 30).unwrap().contains("another database"));
        assert!(missing(None, 0).unwrap().contains("missing"));
    }
}

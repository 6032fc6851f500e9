//! How far the write-ahead log was good, kept beside it: `<file>-mark`.
//!
//! SQLite reads the log after a crash up to the first frame whose checksum is wrong, and takes that for its end: a log
//! that was deleted, cut short or damaged meanwhile looks like a shorter one, and what was acknowledged after that
//! point is gone without a word. So after each commit the log's salts and its length in frames are noted in a file of
//! 12 bytes, without waiting for the disk: that is for crashes of the process. After a loss of power the note may be
//! older than the log, which only means that less is known.
//!
//! The file is there while the store is in use. No log is expected where there is no note.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::lock_file::with_suffix;

/// Where the salts are in the header of a log.
const SALTS_AT: u64 = 16;
/// The file's two salts. The first one rises by one whenever the log begins anew, after all of it was copied.
type Salts = [u8; 8];

/// A note: which log, and how many frames of it were good.
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

/// What was noted before the store was opened, beside what its log says of itself.
#[derive(Debug)]
pub(crate) struct PriorNote {
    note: Note,
    /// `None` if there is no log.
    found: Option<Salts>,
    log: PathBuf,
}

impl PriorNote {
    /// To be read before SQLite opens the database. `None` if the store was closed in order, or is new.
    pub(crate) fn read(database: &Path) -> Option<Self> {
        let mut bytes = [0; 12];
        File::open(with_suffix(database, "-mark")).ok()?.read_exact_at(&mut bytes, 0).ok()?;
        let note = Note::of(bytes);
        let log = with_suffix(database, "-wal");
        let found = File::open(&log).ok().and_then(|log| salts(&log).ok());
        (note.frames > 0).then_some(Self { note, found, log })
    }

    /// What is missing of the log, now that SQLite has found this many frames in it.
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
            // It had begun anew, and the process was killed before that was noted.
            Some(salts)
                if Note { salts, ..self.note }.generation() == self.note.generation().wrapping_add(1) =>
            {
                return None;
            }
            Some(_) => format!("{log} is damaged, or that of another database"),
        };
        Some(format!(
            "{what}, and the server before this one was not stopped in order: some of what it acknowledged last is gone. \
             If the files were copied or restored, take all of them together"
        ))
    }
}

/// Notes how far the log is good.
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
    /// When the log is there, with this many frames.
    pub(crate) fn open(database: &Path, frames: u32) -> io::Result<Self> {
        let path = with_suffix(database, "-mark");
        let mark = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let log = File::open(with_suffix(database, "-wal"))?;
        let opened = Self { path, open: Mutex::new(Some(OpenFiles { mark, log })) };
        opened.forget();
        opened.note(frames);
        Ok(opened)
    }

    /// After a commit: the log has this many frames. That it cannot be noted is no reason to fail.
    pub(crate) fn note(&self, frames: u32) {
        self.with(|open| {
            if let Ok(salts) = salts(&open.log) {
                let _ = open.mark.write_all_at(&Note { salts, frames }.bytes(), 0);
            }
        });
    }

    /// Before the log is cut off, and after it.
    pub(crate) fn forget(&self) {
        self.with(|open| {
            let _ = open.mark.write_all_at(&Note::NONE.bytes(), 0);
        });
    }

    /// The log was cut off, unless something was written to it since.
    pub(crate) fn was_cut(&self) {
        self.with(|open| {
            if open.log.metadata().is_ok_and(|about| about.len() == 0) {
                let _ = open.mark.write_all_at(&Note::NONE.bytes(), 0);
            }
        });
    }

    /// Before the last connection closes, and takes the log away.
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
        assert_eq!(missing(Some(salts(8, 2)), 3), None, "or that the log has begun anew");
        assert!(missing(Some(salts(7, 1)), 9).unwrap().contains("9 of 10 pages"));
        assert!(missing(Some(salts(9, 2)), 30).unwrap().contains("another database"));
        assert!(missing(None, 0).unwrap().contains("missing"));
    }
}

//! Following the progress file of a command.
//!
//! The worker polls the file: a watch for each attempt would use up the few watches that a user may have, and
//! people need no faster updates.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tasklane_core::task::Progress;

/// How much of the end of the file is read.
const TAIL_BYTES: u64 = 4 << 10;

/// A progress file, and what it was like when it was last read.
#[derive(Debug)]
pub(super) struct ProgressFile {
    path: PathBuf,
    seen: Option<(i64, i64, u64)>,
}

impl ProgressFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// The progress in the file, if the file was written since the last read: the same progress again is a
    /// sign of life too.
    pub(super) fn look(&mut self) -> Option<Progress> {
        let mut file = open_plain(&self.path)?;
        let about = file.metadata().ok()?;
        let seen = (about.mtime(), about.mtime_nsec(), about.len());
        if self.seen == Some(seen) {
            return None;
        }
        file.seek(SeekFrom::Start(about.len().saturating_sub(TAIL_BYTES))).ok()?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
        // A line that does not parse may be half written: read it again later.
        let progress = parse(&String::from_utf8_lossy(&tail))?;
        self.seen = Some(seen);
        Some(progress)
    }
}

/// Opens a file that a command may have written, if it is a plain file: no pipe that would make the worker
/// wait, no symlink.
pub(super) fn open_plain(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// The last line that is not empty: a percentage, or an object with `percent`, `message` or both.
fn parse(text: &str) -> Option<Progress> {
    #[derive(Deserialize)]
    struct Line {
        percent: Option<f64>,
        message: Option<String>,
    }
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    if let Ok(percent) = line.trim_end_matches('%').trim_end().parse::<f64>() {
        return Some(Progress { percent: Some(whole(percent)?), message: String::new() });
    }
    let Line { percent, message } = serde_json::from_str(line).ok()?;
    let percent = match percent {
        Some(percent) => Some(whole(percent)?),
        None => None,
    };
    Some(Progress { percent, message: shortened(message.unwrap_or_default()) })
}

/// Whole percent, never more than all of it.
fn whole(percent: f64) -> Option<u8> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100")]
    percent.is_finite().then(|| percent.clamp(0.0, 100.0) as u8)
}

/// Shortened to the stored length of a message.
pub(super) fn shortened(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(Progress::MESSAGE_BYTES_MAX));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(percent: impl Into<Option<u8>>, message: &str) -> Progress {
        Progress { percent: percent.into(), message: message.to_owned() }
    }

    #[test]
    fn the_last_line_counts() {
        assert_eq!(parse("10\n20\n\n"), Some(progress(20, "")));
        assert_eq!(parse("33.9 %"), Some(progress(33, "")));
        assert_eq!(parse("250"), Some(progress(100, "")));
        assert_eq!(parse(r#"{"percent": 5, "message": "loading"}"#), Some(progress(5, "loading")));
        assert_eq!(parse(r#"{"message": "loading"}"#), Some(progress(None, "loading")));
        for bad in [
            "",
            "\n",
            "half",
            "NaN",
            r#"{"percent": "5"}"#,
            r#"10
{"perc"#,
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_was_written_since_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        let mut file = ProgressFile::new(path.clone());
        assert_eq!(file.look(), None);
        std::fs::write(&path, "1").unwrap();
        assert_eq!(file.look(), Some(progress(1, "")));
        assert_eq!(file.look(), None);
        std::fs::write(&path, "1\n1\n").unwrap();
        assert_eq!(file.look(), Some(progress(1, "")), "a sign of life");
        std::fs::write(&path, "x".repeat(10_000) + "\n42\n").unwrap();
        assert_eq!(file.look(), Some(progress(42, "")));
    }

    #[test]
    fn a_pipe_or_a_link_in_its_place_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        std::fs::write(dir.path().join("real"), "1").unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), &path).unwrap();
        assert_eq!(ProgressFile::new(path.clone()).look(), None);
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(ProgressFile::new(path).look(), None);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let message = shortened("é".repeat(Progress::MESSAGE_BYTES_MAX));
        assert_eq!(message.len(), Progress::MESSAGE_BYTES_MAX);
        assert!(shortened(format!("x{message}")).ends_with('é'));
    }
}

//! Output of tasks on standard output and standard error.
//!
//! A file or a pipe gets it byte by byte. On a terminal it must not move the cursor, change colours or hide text, unless
//! that is asked for: a task may print what others have sent to it.

use std::io::{IsTerminal, Write};

use tasklane_client::{LogChunk, LogStream};
use tasklane_core::printable::printable_lines;

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Raw {
    /// On a terminal: show output with its escape sequences, as the task printed it
    #[arg(long)]
    raw: bool,
}

/// Where the output of a task goes.
#[derive(Debug)]
pub(crate) struct TaskOutput {
    stdout: Cleaner,
    stderr: Cleaner,
}

impl TaskOutput {
    pub(crate) fn new(raw: Raw) -> Self {
        let cleaner = |is_terminal| Cleaner { on: is_terminal && !raw.raw, held: Vec::new() };
        Self {
            stdout: cleaner(std::io::stdout().is_terminal()),
            stderr: cleaner(std::io::stderr().is_terminal()),
        }
    }

    /// Prints a piece: the task's stdout to stdout, the rest to stderr.
    pub(crate) fn print(&mut self, chunk: &LogChunk) -> anyhow::Result<()> {
        if chunk.stream == LogStream::Stdout {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&self.stdout.clean(&chunk.bytes()))?;
            stdout.flush()?;
        } else {
            std::io::stderr().lock().write_all(&self.stderr.clean(&chunk.bytes()))?;
        }
        Ok(())
    }

    /// Text that goes to stdout, such as the end of a task's output.
    pub(crate) fn text(&mut self, text: &str) -> String {
        String::from_utf8_lossy(&self.stdout.clean(text.as_bytes())).into_owned()
    }
}

#[derive(Debug)]
struct Cleaner {
    on: bool,
    /// The beginning of a character whose other bytes come with the next piece.
    held: Vec<u8>,
}

impl Cleaner {
    fn clean(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.on {
            return bytes.to_vec();
        }
        self.held.extend_from_slice(bytes);
        let last = self.held.utf8_chunks().last().map_or(&[][..], |last| last.invalid());
        let has_begun = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
        let complete = self.held.len() - if has_begun { last.len() } else { 0 };
        let rest = self.held.split_off(complete);
        let whole = std::mem::replace(&mut self.held, rest);
        let text = String::from_utf8_lossy(&whole).replace("\r\n", "\n");
        printable_lines(&text).into_owned().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(pieces: &[&[u8]]) -> String {
        let mut cleaner = Cleaner { on: true, held: Vec::new() };
        String::from_utf8(pieces.iter().flat_map(|piece| cleaner.clean(piece)).collect()).unwrap()
    }

    #[test]
    fn escapes_are_shown_and_characters_in_two_pieces_are_whole() {
        assert_eq!(cleaned(&[b"a\x1b]0;title\x07b\r\n", b"c\td\n"]), "a\\u{1b}]0;title\\u{7}b\nc\td\n");
        let text = "日本é".as_bytes();
        for at in 0..text.len() {
            assert_eq!(cleaned(&[&text[..at], &text[at..]]), "日本é");
        }
        assert_eq!(cleaned(&[b"\xff\xfea", b"\xc3", b"b"]), "\u{fffd}\u{fffd}a\u{fffd}b");
        let mut off = Cleaner { on: false, held: Vec::new() };
        assert_eq!(off.clean(b"\x1b[1m\xff"), b"\x1b[1m\xff");
    }
}

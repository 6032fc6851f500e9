//! Reading the output of a command, as fast as it arrives and without storing it.

use std::cell::RefCell;
use std::io;

use tasklane_ports::{Attempt, LogStream};
use tokio::net::unix::pipe;

/// As much as a pipe holds by default.
const READ_BYTES: usize = 64 << 10;
/// Reads in a row from one pipe before others get their turn.
const READS_MAX: usize = 16;
/// The largest pipe that a process can make without being root.
const PIPE_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// Nothing waits between reading and forwarding, so a thread needs one buffer for all the attempts that
    /// it serves.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// One of the streams of a command.
#[derive(Debug)]
pub(super) struct CommandStream {
    pipe: pipe::Receiver,
    stream: LogStream,
    tail: Tail,
    open: bool,
}

impl CommandStream {
    /// Keeps this much of its end.
    pub(super) fn new(pipe: pipe::Receiver, stream: LogStream, tail_bytes: usize) -> Self {
        Self { pipe, stream, tail: Tail::new(tail_bytes), open: true }
    }

    /// Waits for more output and forwards it. Never returns once the stream is closed.
    pub(super) async fn pass_on(&mut self, attempt: &dyn Attempt) {
        if !self.open || self.pipe.readable().await.is_err() {
            self.open = false;
            return std::future::pending().await;
        }
        for _ in 0..READS_MAX {
            if self.read(attempt) == 0 {
                return;
            }
        }
    }

    /// Forwards the output that is still in the pipe of a command that has ended.
    pub(super) fn pass_on_rest(&mut self, attempt: &dyn Attempt) {
        let mut total = 0;
        // A process outside the tree may hold the pipe and write without end; that output is not the
        // command's.
        while self.open && total < PIPE_BYTES_MAX {
            // The runtime may not have noticed yet that the pipe is readable, since the end of a short
            // command is known by another way. So this reads the pipe itself.
            match self.read_by(attempt, |pipe, buffer| Ok(rustix::io::read(pipe, buffer)?)) {
                0 => return,
                n => total += n,
            }
        }
    }

    /// One read; 0 when the pipe is empty or closed.
    fn read(&mut self, attempt: &dyn Attempt) -> usize {
        self.read_by(attempt, pipe::Receiver::try_read)
    }

    fn read_by(
        &mut self,
        attempt: &dyn Attempt,
        read: impl FnOnce(&pipe::Receiver, &mut [u8]) -> io::Result<usize>,
    ) -> usize {
        BUFFER.with_borrow_mut(|buffer| match read(&self.pipe, buffer) {
            Ok(0) => {
                self.open = false;
                0
            }
            Ok(n) => {
                attempt.output(self.stream, &buffer[..n]);
                self.tail.push(&buffer[..n]);
                n
            }
            Err(e) => {
                self.open = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                0
            }
        })
    }

    /// The end of the output.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }
}

/// The last bytes of a stream.
#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    max: usize,
    /// Earlier bytes were dropped.
    cut: bool,
}

impl Tail {
    fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), max, cut: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        let fresh = &bytes[bytes.len().saturating_sub(self.max)..];
        let spare = (self.bytes.len() + bytes.len()).saturating_sub(self.max);
        if spare > 0 {
            self.cut = true;
            self.bytes.drain(..spare.min(self.bytes.len()));
        }
        self.bytes.extend_from_slice(fresh);
    }

    /// As text. Bytes that are no text are replaced, and a character that was cut in two is left out.
    fn text(&self) -> String {
        let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
        let skip = if self.cut { self.bytes.iter().take(3).take_while(continues).count() } else { 0 };
        String::from_utf8_lossy(&self.bytes[skip..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end_of_what_was_printed() {
        let mut tail = Tail::new(4);
        for (bytes, expected) in
            [("ab", "ab"), ("cd", "abcd"), ("e", "bcde"), ("123456", "3456"), ("", "3456")]
        {
            tail.push(bytes.as_bytes());
            assert_eq!(tail.text(), expected);
        }
        let mut none = Tail::new(0);
        none.push(b"abc");
        assert_eq!(none.text(), "");
    }

    #[test]
    fn a_character_cut_in_two_is_left_out() {
        let mut tail = Tail::new(4);
        tail.push("aéöü".as_bytes());
        assert_eq!(tail.text(), "öü");
        tail.push(b"x");
        assert_eq!(tail.text(), "üx");
        // Bytes that were never text are shown as replacement characters.
        let mut tail = Tail::new(4);
        tail.push(&[0x80, b'a']);
        assert_eq!(tail.text(), "\u{fffd}a");
    }
}

//! Output of attempts.

use serde::Serialize;
use tasklane_ports::{LogChunk, LogPosition, LogStream};
use utoipa::ToSchema;

use super::Time;

/// A piece of output.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogEntry {
    /// Its position, for `after`.
    #[schema(example = "1-0", pattern = "^[0-9]+-[0-9]+$")]
    pub(crate) position: String,
    #[schema(minimum = 0)]
    attempt: u32,
    stream: StreamName,
    at: Time,
    /// The output. Bytes that are not UTF-8 are shown as U+FFFD.
    text: String,
    /// The exact bytes of the output if they are not UTF-8 (the end of a piece may split a character).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    base64: Option<String>,
}

/// The stream of the output.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LogStream)]
enum StreamName {
    Stdout,
    Stderr,
    /// A remark of the worker's own.
    System,
}

impl From<&LogChunk> for LogEntry {
    fn from(chunk: &LogChunk) -> Self {
        let (text, base64) = match std::str::from_utf8(&chunk.bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (String::from_utf8_lossy(&chunk.bytes).into_owned(), Some(base64(&chunk.bytes))),
        };
        Self {
            position: position_text(chunk.position),
            attempt: chunk.position.attempt.0,
            stream: match chunk.stream {
                LogStream::Stdout => StreamName::Stdout,
                LogStream::Stderr => StreamName::Stderr,
                LogStream::System => StreamName::System,
            },
            at: Time(chunk.at),
            text,
            base64,
        }
    }
}

/// A page of output.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct LogPage {
    pub(crate) logs: Vec<LogEntry>,
    /// The position of the last piece, for the `after` of the next page; absent if the page is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) next: Option<String>,
}

impl LogPage {
    pub(crate) fn new(chunks: &[LogChunk]) -> Self {
        Self {
            logs: chunks.iter().map(LogEntry::from).collect(),
            next: chunks.last().map(|chunk| position_text(chunk.position)),
        }
    }
}

/// The last pieces that fit into `bytes_max`; at least one.
pub(crate) fn tail(chunks: &[LogChunk], bytes_max: usize) -> Vec<LogEntry> {
    let mut bytes = 0;
    let fitting = chunks.iter().rev().take_while(|chunk| {
        let first = bytes == 0;
        bytes += chunk.bytes.len().max(1);
        first || bytes <= bytes_max
    });
    let mut entries: Vec<LogEntry> = fitting.map(LogEntry::from).collect();
    entries.reverse();
    entries
}

fn position_text(position: LogPosition) -> String {
    format!("{}-{}", position.attempt, position.number)
}

/// Standard base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| usize::from(group.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for at in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * at)) & 63];
            text.push(if at <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::{AttemptNo, TaskId};
    use tasklane_core::time::Timestamp;

    use super::*;

    fn chunk(number: u32, bytes: &[u8]) -> LogChunk {
        LogChunk {
            task: TaskId::from_random(1),
            position: LogPosition { attempt: AttemptNo(1), number },
            stream: LogStream::Stdout,
            at: Timestamp::ZERO,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn bytes_are_encoded_with_padding() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn output_that_is_not_utf8_is_given_in_bytes_too() {
        let entry = LogEntry::from(&chunk(0, b"a\xff"));
        assert_eq!((entry.text.as_str(), entry.base64.as_deref()), ("a\u{fffd}", Some("Yf8=")));
        assert_eq!(LogEntry::from(&chunk(0, "é".as_bytes())).base64, None);
    }

    #[test]
    fn the_tail_keeps_the_last_pieces_that_fit() {
        let chunks = [chunk(0, b"aaaa"), chunk(1, b"bbbb"), chunk(2, b"cc")];
        let texts = |max| tail(&chunks, max).into_iter().map(|entry| entry.text).collect::<Vec<_>>();
        assert_eq!(texts(6), ["bbbb", "cc"]);
        assert_eq!(texts(5), ["cc"]);
        assert_eq!(texts(1), ["cc"]);
        assert_eq!(texts(100).len(), 3);
    }
}

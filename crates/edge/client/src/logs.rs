//! Output of tasks: read in pages, or followed while it is printed.

use std::borrow::Cow;

use futures::stream::{self, Stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::error::Error;
use crate::sse::EventSource;
use crate::task::Status;

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogChunk {
    /// Its place in the output: where to go on reading after it.
    #[serde(default)]
    pub position: String,
    /// The attempt that printed it.
    #[serde(default)]
    pub attempt: u32,
    /// Where it was printed.
    pub stream: LogStream,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The output, as far as it is text.
    #[serde(default)]
    pub text: String,
    /// The output, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl LogChunk {
    /// Exactly the printed bytes.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self.base64.as_deref().and_then(decode_base64) {
            Some(bytes) => Cow::Owned(bytes),
            None => Cow::Borrowed(self.text.as_bytes()),
        }
    }
}

/// Where something was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A remark of the worker's own.
    #[serde(other)]
    System,
}

/// A page of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPage {
    /// The chunks, in order.
    pub logs: Vec<LogChunk>,
    /// Where to go on reading; none if the page is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An item of a followed output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    /// More output.
    Chunk(LogChunk),
    /// The task is final and all of its output has been given.
    End(Status),
}

/// Follows the output of a task. Goes on by itself after a break, without loss or repetition.
#[derive(Debug)]
pub struct LogFollow {
    source: EventSource,
    url: String,
    ended: bool,
}

#[derive(Deserialize)]
struct LogEnd {
    status: Status,
}

impl LogFollow {
    /// The next piece; `None` after the end.
    pub async fn next(&mut self) -> Option<Result<LogItem, Error>> {
        loop {
            if self.ended {
                return None;
            }
            let item = match self.source.next().await {
                Ok(Some(event)) => match event.name.as_str() {
                    "log" | "message" => serde_json::from_str(&event.data).map(LogItem::Chunk),
                    "end" => serde_json::from_str(&event.data).map(|end: LogEnd| LogItem::End(end.status)),
                    // For later versions.
                    _ => continue,
                },
                Ok(None) => return None,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            };
            self.ended = !matches!(item, Ok(LogItem::Chunk(_)));
            return Some(
                item.map_err(|error| Error::Answer { url: self.url.clone(), why: error.to_string() }),
            );
        }
    }

    /// Where to go on with [`Client::follow_logs`].
    pub fn position(&self) -> Option<&str> {
        self.source.last_id()
    }

    /// As a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<LogItem, Error>> + Send {
        stream::unfold(self, |mut follow| async move { follow.next().await.map(|item| (item, follow)) })
    }
}

impl Client {
    /// A page of a task's output, after a position.
    pub async fn logs(&self, id: &str, after: Option<&str>, limit: Option<u32>) -> Result<LogPage, Error> {
        let mut call = self.get(&["tasks", id, "logs"]);
        if let Some(after) = after {
            call = call.query(&[("after", after)]);
        }
        if let Some(limit) = limit {
            call = call.query(&[("limit", limit)]);
        }
        self.answer(call).await
    }

    /// Follows a task's output from a position, or from the start, until the task is final.
    pub fn follow_logs(&self, id: &str, after: Option<&str>) -> LogFollow {
        let task = id.to_owned();
        let source = EventSource::new(self, after.map(str::to_owned), move |client| {
            client.get(&["tasks", &task, "logs"]).query(&[("follow", "true")])
        });
        LogFollow { source, url: self.url().to_owned(), ended: false }
    }
}

/// Standard base64; `None` if it is not.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(decode_base64(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decode_base64("//79").unwrap(), [0xff, 0xfe, 0xfd]);
        assert_eq!(decode_base64("a b"), None);
    }
}

//! Requests as bytes, and answers as far as they arrive. Nothing here is polite: a client library would refuse to send
//! most of it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// A request's bytes, and how they are sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Shot {
    /// Bytes, each followed by a pause.
    pub(super) pieces: Vec<(Vec<u8>, Duration)>,
    /// The answers to wait for.
    pub(super) answers: usize,
    /// The client's move after the last byte.
    pub(super) then: Then,
}

/// A client's move after the last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Then {
    /// It reads.
    #[default]
    Reads,
    /// It closes its half of the connection, and reads.
    HalfCloses,
    /// It goes away.
    Leaves,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// With names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) answers: Vec<Answer>,
    pub(super) end: End,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All answers came.
    Complete,
    /// The server closed the connection.
    Closed,
    /// The connection was reset, or never made.
    Broken,
    /// Nothing more came in time.
    Silent,
}

impl Shot {
    /// Sent in one piece, with one answer.
    pub(super) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { pieces: vec![(bytes.into(), Duration::ZERO)], answers: 1, then: Then::Reads }
    }

    /// A whole request with a JSON body, or without a body.
    pub(super) fn request(method: &str, target: &str, headers: &str, body: Option<&[u8]>) -> Self {
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}").into_bytes();
        if let Some(body) = body {
            let head = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend_from_slice(body);
        } else {
            bytes.extend_from_slice(b"\r\n");
        }
        Self::new(bytes)
    }

    /// The beginning of the bytes, for people.
    pub(super) fn shown(&self) -> String {
        let all: Vec<u8> =
            self.pieces.iter().flat_map(|(bytes, _)| bytes.iter().copied()).take(600).collect();
        all.escape_ascii().to_string()
    }
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The stable code, if this is a problem.
    pub(super) fn code(&self) -> Option<String> {
        if !self.header("content-type")?.starts_with("application/problem+json") {
            return None;
        }
        let problem: Value = serde_json::from_slice(&self.body).ok()?;
        Some(problem.get("code")?.as_str()?.to_owned())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Sends a shot and reads its answers.
pub(super) async fn fire(to: SocketAddr, shot: &Shot, within: Duration) -> Outcome {
    let deadline = Instant::now() + within;
    let mut answers = Vec::new();
    let end = match timeout_at(deadline, TcpStream::connect(to)).await {
        Ok(Ok(stream)) => {
            let (mut reading, mut writing) = stream.into_split();
            let send = async {
                for (bytes, pause) in &shot.pieces {
                    writing.write_all(bytes).await?;
                    tokio::time::sleep(*pause).await;
                }
                if shot.then == Then::HalfCloses {
                    writing.shutdown().await?;
                }
                io::Result::Ok(())
            };
            if shot.then == Then::Leaves {
                let _ = timeout_at(deadline, send).await;
                return Outcome { answers, end: End::Complete };
            }
            let receive = async {
                let mut buffer = Vec::new();
                while answers.len() < shot.answers {
                    match read_answer(&mut reading, &mut buffer).await? {
                        Some(answer) => answers.push(answer),
                        None => return io::Result::Ok(End::Closed),
                    }
                }
                Ok(End::Complete)
            };
            // A server that refuses early does not read all that is sent: its answer counts, not the failed write.
            let both = async { tokio::join!(send, receive).1 };
            match timeout_at(deadline, both).await {
                Ok(Ok(end)) => end,
                Ok(Err(_)) => End::Broken,
                Err(_) => End::Silent,
            }
        }
        Ok(Err(_)) => End::Broken,
        Err(_) => End::Silent,
    };
    Outcome { answers, end }
}

/// A whole answer from an honest client: one request on a connection of its own.
pub(super) async fn ask(to: SocketAddr, target: &str, within: Duration) -> Option<Answer> {
    let shot = Shot::request("GET", target, "connection: close\r\n", None);
    fire(to, &shot, within).await.answers.pop()
}

/// Bytes of one answer that are kept.
const BODY_MAX: usize = 8 << 20;
/// Room for the next bytes.
const READ_AT_ONCE: usize = 4 << 10;
/// A body without an end, a stream of events, is read for this long.
const STREAM_FOR: Duration = Duration::from_millis(300);

async fn read_answer(
    from: &mut (impl AsyncReadExt + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Answer>> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if !more(from, buffer).await? {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    buffer.drain(..head_end + 4);
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let mut answer = Answer { status, headers, body: Vec::new() };
    if matches!(status, 100..200) {
        // A note that goes before the answer.
        return Box::pin(read_answer(from, buffer)).await;
    }
    if matches!(status, 204 | 304) {
        return Ok(Some(answer));
    }
    if let Some(length) = answer.header("content-length").and_then(|length| length.parse::<usize>().ok()) {
        let length = length.min(BODY_MAX);
        while buffer.len() < length && more(from, buffer).await? {}
        answer.body = buffer.drain(..length.min(buffer.len())).collect();
        return Ok(Some(answer));
    }
    if answer.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        let until = Instant::now() + STREAM_FOR;
        let is_stream =
            answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        while answer.body.len() < BODY_MAX {
            let read = next_chunk(from, buffer, &mut answer.body);
            let more = if is_stream {
                match timeout(until.saturating_duration_since(Instant::now()), read).await {
                    Ok(more) => more?,
                    Err(_) => false,
                }
            } else {
                read.await?
            };
            if !more {
                break;
            }
        }
        return Ok(Some(answer));
    }
    while buffer.len() < BODY_MAX && more(from, buffer).await? {}
    answer.body = std::mem::take(buffer);
    Ok(Some(answer))
}

async fn next_chunk(
    from: &mut (impl AsyncReadExt + Unpin),
    buffer: &mut Vec<u8>,
    body: &mut Vec<u8>,
) -> io::Result<bool> {
    let line_end = loop {
        if let Some(at) = buffer.windows(2).position(|window| window == b"\r\n") {
            break at;
        }
        if !more(from, buffer).await? {
            return Ok(false);
        }
    };
    let line = String::from_utf8_lossy(&buffer[..line_end]).into_owned();
    let length = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16).unwrap_or(0);
    let whole = line_end + 2 + length + 2;
    while buffer.len() < whole {
        if !more(from, buffer).await? {
            return Ok(false);
        }
    }
    body.extend_from_slice(&buffer[line_end + 2..line_end + 2 + length]);
    buffer.drain(..whole);
    Ok(length > 0)
}

async fn more(from: &mut (impl AsyncReadExt + Unpin), buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.reserve(READ_AT_ONCE);
    Ok(from.read_buf(buffer).await? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_read_one_after_the_other() {
        let mut bytes: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Type: \
            application/problem+json\r\nContent-Length: 12\r\n\r\n{\"code\":\"x\"}HTTP/1.1 200 OK\r\n\
            Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let mut buffer = Vec::new();
        let mut next = async || read_answer(&mut bytes, &mut buffer).await.unwrap();
        let first = next().await.unwrap();
        assert_eq!((first.status, first.code().as_deref()), (404, Some("x")));
        assert_eq!(next().await.unwrap().body, b"abc");
        assert_eq!(next().await.unwrap().status, 204);
        assert!(next().await.is_none());
    }
}

//! Server-sent events: reads them, and resumes after a break.
//!
//! A stream ends when its caller drops it, or by an error. After a connection that ends, breaks or falls
//! silent, the client reconnects and names the last event seen, so that no event is missed and none comes
//! twice. Only failures in a row count against [`FAILURES_MAX`].

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::RequestBuilder;
use reqwest::header::ACCEPT;

use crate::client::Client;
use crate::error::Error;

/// Tries without a single event before giving up.
const FAILURES_MAX: u32 = 8;

/// The first wait between two tries; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(200);

/// No wait is longer.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// A server says something at least this often, if only that it has nothing to say.
const SILENCE_MAX: Duration = Duration::from_mins(1);

/// The largest event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// What kind it is; `message` if the server does not say.
    pub(crate) name: String,
    pub(crate) data: String,
}

/// A stream of events that outlives its connections.
pub(crate) struct EventSource {
    client: Client,
    /// Makes the request of each connection.
    connect: Box<dyn Fn(&Client) -> RequestBuilder + Send + Sync>,
    body: Option<BoxStream<'static, reqwest::Result<Bytes>>>,
    parser: Parser,
    failures: u32,
    backoff: Duration,
    silence_max: Duration,
}

impl std::fmt::Debug for EventSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSource").field("last_id", &self.parser.last_id).finish_non_exhaustive()
    }
}

impl EventSource {
    pub(crate) fn new(
        client: &Client,
        last_id: Option<String>,
        connect: impl Fn(&Client) -> RequestBuilder + Send + Sync + 'static,
    ) -> Self {
        Self {
            client: client.clone(),
            connect: Box::new(connect),
            body: None,
            parser: Parser { last_id, ..Parser::default() },
            failures: 0,
            backoff: BACKOFF,
            silence_max: SILENCE_MAX,
        }
    }

    /// The id of the last event that was given out.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.parser.last_id.as_deref()
    }

    /// Connects, unless connected: the stream gives every event from now on.
    pub(crate) async fn connect(&mut self) -> Result<(), Error> {
        if self.body.is_none() {
            self.open().await?;
        }
        Ok(())
    }

    /// The next event. `None` when the server says that there will be none (204).
    pub(crate) async fn next(&mut self) -> Result<Option<SseEvent>, Error> {
        loop {
            if let Some(event) = self.parser.next() {
                if event.name == "error" {
                    // The server cannot go on; it may be able to a little later.
                    let problem = serde_json::from_str(&event.data).unwrap_or_default();
                    self.after_failure(Error::Problem(Box::new(problem))).await?;
                    continue;
                }
                self.failures = 0;
                return Ok(Some(event));
            }
            let Some(body) = &mut self.body else {
                match self.open().await {
                    Ok(true) => continue,
                    Ok(false) => return Ok(None),
                    Err(error) => {
                        self.after_failure(error).await?;
                        continue;
                    }
                }
            };
            match tokio::time::timeout(self.silence_max, body.next()).await {
                Ok(Some(Ok(bytes))) => {
                    if !self.parser.push(&bytes) {
                        let why = format!("an event of more than {EVENT_BYTES_MAX} bytes");
                        return Err(Error::Answer { url: self.client.url().to_owned(), why });
                    }
                }
                Ok(Some(Err(error))) => {
                    let error = self.client.transport(error);
                    self.after_failure(error).await?;
                }
                // Ended or silent: half an event is forgotten, since the server sends it again.
                Ok(None) | Err(_) => {
                    let why = "the stream ended before its last event".to_owned();
                    let error = Error::Answer { url: self.client.url().to_owned(), why };
                    self.after_failure(error).await?;
                }
            }
        }
    }

    /// Connects; `false` if there is nothing more to come.
    async fn open(&mut self) -> Result<bool, Error> {
        // A stream takes as long as it takes.
        let mut request =
            (self.connect)(&self.client).timeout(Duration::MAX).header(ACCEPT, "text/event-stream");
        if let Some(id) = &self.parser.last_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.map_err(|error| self.client.transport(error))?;
        let response = self.client.accept(response).await?;
        if response.status() == reqwest::StatusCode::NO_CONTENT {
            return Ok(false);
        }
        self.body = Some(response.bytes_stream().boxed());
        Ok(true)
    }

    /// Waits before the next try, or gives up with the error that led here.
    async fn after_failure(&mut self, error: Error) -> Result<(), Error> {
        self.body = None;
        self.parser.forget_half();
        self.failures += 1;
        let refused = error.problem().is_some() && !error.is_retryable();
        // Without a single answer so far the caller gets the error at once.
        let never_connected = error.is_unreachable() && self.parser.last_id.is_none() && self.failures == 1;
        if refused || never_connected || self.failures > FAILURES_MAX {
            return Err(error);
        }
        let wait = self.parser.retry.unwrap_or(self.backoff);
        tokio::time::sleep(wait.saturating_mul(1 << (self.failures - 1).min(10)).min(BACKOFF_MAX)).await;
        Ok(())
    }
}

/// Turns bytes, cut anywhere, into events.
#[derive(Debug, Default)]
struct Parser {
    buffer: Vec<u8>,
    /// Where to look for the next line.
    at: usize,
    event: SseEvent,
    has_data: bool,
    /// The id of the event that is being read.
    id: Option<String>,
    last_id: Option<String>,
    /// How long the server asks to wait before connecting again.
    retry: Option<Duration>,
}

impl Parser {
    /// Takes more bytes; `false` if an event has grown too large.
    fn push(&mut self, bytes: &[u8]) -> bool {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
        self.buffer.len() + self.event.data.len() <= EVENT_BYTES_MAX + bytes.len()
    }

    /// The next event whose end has been read.
    fn next(&mut self) -> Option<SseEvent> {
        loop {
            let rest = &self.buffer[self.at..];
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            let line = String::from_utf8_lossy(line).into_owned();
            self.at += end + 1;
            if let Some(event) = self.line(&line) {
                return Some(event);
            }
        }
    }

    fn line(&mut self, line: &str) -> Option<SseEvent> {
        if line.is_empty() {
            return self.end_of_event();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" => self.retry = value.parse().ok().map(Duration::from_millis),
            // Comments keep the connection alive; other fields are for later versions.
            _ => {}
        }
        None
    }

    fn end_of_event(&mut self) -> Option<SseEvent> {
        let mut event = std::mem::take(&mut self.event);
        if let Some(id) = self.id.take() {
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        if !std::mem::take(&mut self.has_data) {
            return None;
        }
        if event.name.is_empty() {
            "message".clone_into(&mut event.name);
        }
        Some(event)
    }

    /// A connection ended in the middle of an event.
    fn forget_half(&mut self) {
        self.buffer.clear();
        self.at = 0;
        self.event = SseEvent::default();
        self.has_data = false;
        self.id = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        ": hello\nretry: 50\n\nid: 7\nevent: log\ndata: a\ndata: ä\n\ndata:x\r\n\r\nid: 8\ndata: half";

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_are_read_wherever_the_bytes_are_cut() {
        for size in 1..TEXT.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in TEXT.as_bytes().chunks(size) {
                assert!(parser.push(part));
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            assert_eq!(events, [event("log", "a\nä"), event("message", "x")], "cut at {size}");
            assert_eq!(parser.last_id.as_deref(), Some("7"), "an id counts when its event is complete");
            assert_eq!(parser.retry, Some(Duration::from_millis(50)));
        }
    }

    #[test]
    fn half_an_event_is_forgotten() {
        let mut parser = Parser::default();
        parser.push(TEXT.as_bytes());
        while parser.next().is_some() {}
        parser.forget_half();
        parser.push(b"id: 8\ndata: whole\n\n");
        assert_eq!(parser.next(), Some(event("message", "whole")));
        assert_eq!(parser.last_id.as_deref(), Some("8"));
    }
}

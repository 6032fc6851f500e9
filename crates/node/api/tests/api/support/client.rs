//! A client that shows the exact bytes of an answer.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// No answer takes this long.
const PATIENCE: Duration = Duration::from_secs(90);

/// A request that is being put together.
pub(crate) struct Request {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        Self {
            address,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Adds a header; an earlier one of the same name is replaced.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body(body.to_string()).header("content-type", "application/json")
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// A body of chunks, as they are on the wire.
    pub(crate) fn chunked(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("transfer-encoding", "chunked").body(body)
    }

    async fn open(mut self) -> BufReader<TcpStream> {
        if !self.headers.iter().any(|(name, _)| name == "host") {
            self = self.header("host", "localhost");
        }
        let sized = ["content-length", "transfer-encoding"];
        if !self.headers.iter().any(|(name, _)| sized.contains(&name.as_str())) && !self.body.is_empty() {
            let len = self.body.len().to_string();
            self = self.header("content-length", &len);
        }
        self = self.header("connection", "close");
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            text.extend(format!("{name}: {value}\r\n").bytes());
        }
        text.extend(b"\r\n");
        text.extend(&self.body);
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A server that refuses a body early may close before it has read all of it.
        let _ = stream.write_all(&text).await;
        BufReader::new(stream)
    }

    pub(crate) async fn send(self) -> Answer {
        let answer = async {
            let mut reader = self.open().await;
            let (status, headers) = read_head(&mut reader).await;
            let mut body = Vec::new();
            let _ = reader.read_to_end(&mut body).await;
            Answer { status, headers, text: String::from_utf8(body).unwrap() }
        };
        tokio::time::timeout(PATIENCE, answer).await.expect("an answer")
    }

    /// Sends it and expects a stream of events.
    pub(crate) async fn stream(self) -> Sse {
        let mut reader = self.open().await;
        let (status, headers) = read_head(&mut reader).await;
        assert_eq!(status, 200);
        let kind = headers.iter().find(|(name, _)| name == "content-type").unwrap();
        assert_eq!(kind.1, "text/event-stream");
        Sse { reader }
    }
}

/// Sends bytes as they are, and reads one answer.
pub(crate) async fn send_raw(address: SocketAddr, request: &str) -> Answer {
    let answer = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reader = BufReader::new(stream);
        let (status, headers) = read_head(&mut reader).await;
        let length = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await.unwrap();
        Answer { status, headers, text: String::from_utf8(body).unwrap() }
    };
    tokio::time::timeout(PATIENCE, answer).await.expect("an answer")
}

async fn read_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).await.unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { return (status, headers) };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
}

/// The server's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {:?}", self.text))
    }

    /// Checks that it is a problem of a kind, about a field, and gives it.
    pub(crate) fn problem(&self, status: u16, code: &str, field: Option<&str>) -> Value {
        let problem = self.json();
        let found = (self.status, problem["code"].as_str(), problem["field"].as_str());
        assert_eq!(found, (status, Some(code), field), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(problem["status"], status);
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()));
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
        problem
    }
}

/// A stream of server-sent events.
pub(crate) struct Sse {
    reader: BufReader<TcpStream>,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct SseEvent {
    pub(crate) kind: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Sse {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("an event")
    }

    async fn read(&mut self) -> Option<SseEvent> {
        let mut event = SseEvent::default();
        let mut line = String::new();
        loop {
            line.clear();
            if self.reader.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            // Lines with the sizes of chunks look like none of these and are passed over.
            let text = line.trim_end();
            if let Some(kind) = text.strip_prefix("event: ") {
                kind.clone_into(&mut event.kind);
            } else if let Some(id) = text.strip_prefix("id: ") {
                event.id = Some(id.to_owned());
            } else if let Some(data) = text.strip_prefix("data: ") {
                event.data = serde_json::from_str(data).unwrap();
            } else if text.is_empty() && !event.kind.is_empty() {
                return Some(event);
            }
        }
    }
}

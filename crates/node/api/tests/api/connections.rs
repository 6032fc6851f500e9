//! Connections that send half of something, nothing, or too many requests; and the answers that others get
//! meanwhile.

use std::time::Duration;

use serde_json::json;
use tasklane_api::{ApiOptions, ServeOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Server, task};

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_mins(1);

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn serving(change: impl FnOnce(&mut ServeOptions)) -> Server {
    let mut serve = ServeOptions::default();
    change(&mut serve);
    Server::with_all(ApiOptions::default(), serve).await
}

async fn open(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// All that still comes until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    // A connection may be reset, which is an end too.
    let _ = read.expect("the server closes the connection");
    String::from_utf8(text).unwrap()
}

/// Reads until something has come.
async fn until(stream: &mut TcpStream, what: &str) -> String {
    let mut text = Vec::new();
    loop {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut text)).await;
        let count = read.expect("an answer").unwrap();
        let so_far = String::from_utf8_lossy(&text);
        if so_far.contains(what) {
            return so_far.into_owned();
        }
        assert!(count > 0, "closed after {so_far:?}");
    }
}

fn post(more: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {length}\r\n\r\n{body}")
}

/// A client could send its head for a minute, and as long as it sent, the connection was closed to all
/// others.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_has_a_deadline_and_a_quiet_connection_has_not() {
    let server = serving(|serve| serve.head_timeout = Duration::from_millis(200)).await;
    let mut quiet = open(&server, "").await;
    let mut half = open(&server, "GET /healthz HTTP/1.1\r\nho").await;
    let mut second = open(&server, HEALTH).await;
    until(&mut second, "ok\n").await;
    second.write_all(b"GET /heal").await.unwrap();
    assert_eq!(rest(&mut half).await, "");
    assert_eq!(rest(&mut second).await, "");
    quiet.write_all(HEALTH.as_bytes()).await.unwrap();
    until(&mut quiet, "ok\n").await;
    server.close().await;
}

/// Some two thousand of them took the API off the air.
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_heads_keep_nobody_out_and_cut_no_stream() {
    let server = serving(|serve| serve.connections_max = 8).await;
    let mut events = server.request("GET", "/api/v1/events").stream().await;
    let mut half = Vec::new();
    for _ in 0..40 {
        half.push(open(&server, "GET /api/v1/tasks HTTP/1.1\r\nhost: lo").await);
    }
    let done = server.run(task("noop")).await;
    loop {
        let event = events.next().await.expect("the stream is not cut");
        if event.data["status"] == "SUCCESS" {
            assert_eq!(event.data["taskId"], done["taskId"]);
            break;
        }
    }
    server.close().await;
}

/// A client without a token that sends request after request, and reads this much of the answers every fifty milliseconds.
/// Answers when the client cannot send any more.
async fn sends_and_does_not_read(server: &Server, request: &str, reads: usize) -> JoinHandle<()> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(server.address).await.unwrap();
    let requests = request.repeat(1000);
    let (blocked, is_blocked) = tokio::sync::oneshot::channel();
    let client = tokio::spawn(async move {
        let (mut reading, mut writing) = stream.into_split();
        let mut blocked = Some(blocked);
        let write = async {
            loop {
                let write = writing.write_all(requests.as_bytes());
                tokio::pin!(write);
                if tokio::time::timeout(Duration::from_millis(500), write.as_mut()).await.is_err() {
                    blocked.take().into_iter().for_each(|blocked| blocked.send(()).unwrap());
                    let _ = write.await;
                }
            }
        };
        let read = async {
            let mut answers = vec![0; reads.max(1)];
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if reads > 0 && !matches!(reading.read(&mut answers).await, Ok(1..)) {
                    break;
                }
            }
        };
        tokio::select! {
            () = write => {}
            () = read => {}
        }
    });
    is_blocked.await.unwrap();
    client
}

/// They kept all other clients out as long as they read a little at intervals.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_keep_nobody_out_and_cut_no_stream() {
    let server = serving(|serve| {
        serve.connections_max = 4;
        serve.write_timeout = Duration::from_mins(10);
    })
    .await;
    let mut events = server.request("GET", "/api/v1/events").stream().await;
    let mut clients = Vec::new();
    for reads in [0, 100, 0] {
        clients.push(sends_and_does_not_read(&server, HEALTH, reads).await);
    }
    for _ in 0..3 {
        let answer = tokio::time::timeout(Duration::from_secs(20), server.get("/healthz")).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
    server.submit(task("noop")).await;
    assert!(events.next().await.is_some(), "the stream is not cut");
    clients.iter().for_each(JoinHandle::abort);
    server.close().await;
}

/// It could send such requests without end, without reading the answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_token_loses_its_connection() {
    let options = ApiOptions { token: Some("s3cret".into()), ..ApiOptions::default() };
    let server = Server::with(options).await;
    let refused = "GET /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = rest(&mut open(&server, refused).await).await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let mut healthy = open(&server, HEALTH).await;
    let answer = until(&mut healthy, "ok\n").await;
    assert!(!answer.contains("connection: close"), "{answer}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_connections_are_busy_a_new_one_waits() {
    let server = serving(|serve| serve.connections_max = 1).await;
    let events = server.request("GET", "/api/v1/events").stream().await;
    let mut second = tokio::spawn(server.request("GET", "/healthz").send());
    let early = tokio::time::timeout(Duration::from_millis(200), &mut second).await;
    assert!(early.is_err(), "the stream has the only room");
    server.stop_api();
    drop(events);
    second.abort();
    server.close().await;
}

/// Three thousand half-sent heads of 60 KB took 344 MB.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_bounded() {
    let server = Server::start().await;
    let with_head = |bytes: usize| HEALTH.replace("host:", &format!("x: {}\r\nhost:", "y".repeat(bytes)));
    until(&mut open(&server, &with_head(15_000)).await, "ok\n").await;
    let mut stream = open(&server, &with_head(17_000)).await;
    let answer = until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_may_have_a_bound() {
    let server = serving(|serve| serve.connections_per_address_max = Some(2)).await;
    let mut first = open(&server, HEALTH).await;
    let mut second = open(&server, HEALTH).await;
    until(&mut first, "ok\n").await;
    until(&mut second, "ok\n").await;
    let mut third = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(rest(&mut third).await, "");
    first.write_all(HEALTH.as_bytes()).await.unwrap();
    until(&mut first, "ok\n").await;
    server.close().await;
}

/// A client that had sent everything and said so was taken for gone, and got nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_connection_is_answered() {
    let server = Server::start().await;
    let json = "content-type: application/json\r\n";
    let body = task("echo").to_string();
    let wait = post(json, &body).replace("/tasks ", "/tasks?wait=60s ");
    for (request, expected) in [
        (HEALTH.to_owned(), "ok\n"),
        (post(json, &body), "\"taskId\""),
        (wait, "\"SUCCESS\""),
        ("GET /api/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), "\"openapi\""),
    ] {
        let mut stream = open(&server, &request).await;
        stream.shutdown().await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 20") && answer.contains(expected), "{request}: {answer}");
    }
    // A stream goes on until its own end.
    let id = server.submit(task("echo")).await;
    let follow = format!("GET /api/v1/tasks/{id}/logs?follow=true HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut stream = open(&server, &follow).await;
    stream.shutdown().await.unwrap();
    let output = rest(&mut stream).await;
    assert!(output.contains("hello") && output.contains("event: end"), "{output}");
    // A request that breaks off is none.
    let broken = post(json, &body).replace("length: ", "length: 9");
    let mut stream = open(&server, &broken).await;
    stream.shutdown().await.unwrap();
    assert!(!rest(&mut stream).await.contains("taskId"));
    server.close().await;
}

/// The next request on the connection was read as the rest of a discarded body.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_refused_body_the_next_request_is_answered_or_the_connection_closed() {
    let server = Server::start().await;
    let body = task("noop").to_string();
    let form = post("content-type: text/plain\r\n", &body);
    let (head, _) = form.split_at(form.len() - body.len());
    let mut stream = open(&server, head).await;
    // The body comes when the request has been refused, in all likelihood.
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.write_all(format!("{body}{HEALTH}").as_bytes()).await.unwrap();
    let answers = until(&mut stream, "ok\n").await;
    assert!(answers.starts_with("HTTP/1.1 415 ") && !answers.contains("connection: close"), "{answers}");

    let large = post("content-type: text/plain\r\n", "").replace("length: 0", "length: 1000000");
    let answer = until(&mut open(&server, &large).await, "unsupported_media_type").await;
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");

    // A client that announces its body sends it only when the server asks for it.
    let asking =
        post("content-type: text/plain\r\nexpect: 100-continue\r\n", "").replace("length: 0", "length: 10");
    let answer = until(&mut open(&server, &asking).await, "unsupported_media_type").await;
    assert!(answer.starts_with("HTTP/1.1 415 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_coming_is_given_up() {
    let options = ApiOptions { body_idle_timeout: Duration::from_millis(100), ..ApiOptions::default() };
    let server = Server::with(options).await;
    let request = server.request("POST", "/api/v1/tasks").header("content-type", "application/json");
    let answer = request.header("content-length", "4000000").body("{").send().await;
    let problem = answer.problem(408, "body_timeout", None);
    assert_eq!(problem["detail"], json!("nothing more of the body arrived within 0 seconds"));
    server.close().await;
}

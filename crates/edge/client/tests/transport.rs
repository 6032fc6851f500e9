//! Faults of the wire: breaks in the middle of a stream, refusals, and servers that are not there. The server
//! here plays a script of raw answers; the tests of the real server cover its answers.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use tasklane_client::{Client, Error, EventItem, LogItem, Status, TaskRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Answers one connection after the other with these texts, and gives back the heads of the requests.
async fn script(answers: Vec<String>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client =
        Client::builder(&listener.local_addr().unwrap().to_string()).token("t0").namespace("ns").build();
    let played = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut part = [0; 1024];
                let read = socket.read(&mut part).await.unwrap();
                head.extend_from_slice(&part[..read]);
            }
            heads.push(String::from_utf8_lossy(&head).to_lowercase());
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
        heads
    });
    (client.unwrap(), played)
}

fn json(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

fn chunk(number: u32, text: &str) -> String {
    format!(
        "id: 1-{number}\nevent: log\ndata: {{\"stream\":\"stdout\",\"attempt\":1,\"position\":\"1-{number}\",\"text\":\"{text}\"}}\n\n"
    )
}

#[tokio::test]
async fn output_goes_on_after_a_break_without_loss_or_repetition() {
    let first =
        format!("{STREAM}retry: 1\n\n{}{}id: 1-2\nevent: log\ndata: {{\"str", chunk(0, "a"), chunk(1, "b"));
    let last = format!("{STREAM}{}event: end\ndata: {{\"status\":\"SUCCESS\"}}\n\n", chunk(2, "c"));
    let busy = json("503 Service Unavailable", "{\"code\":\"overloaded\"}");
    let (client, played) = script(vec![first, busy, last]).await;
    let mut follow = client.follow_logs("x", None);
    let mut text = String::new();
    let mut end = None;
    while let Some(item) = follow.next().await {
        match item.unwrap() {
            LogItem::Chunk(chunk) => text.push_str(&chunk.text),
            LogItem::End(status) => end = Some(status),
        }
    }
    assert_eq!((text.as_str(), end), ("abc", Some(Status::Success)));
    let heads = played.await.unwrap();
    assert!(heads[0].starts_with("get /api/v1/tasks/x/logs?follow=true "), "{}", heads[0]);
    assert!(!heads[0].contains("last-event-id"));
    assert!(heads[1].contains("last-event-id: 1-1\r\n") && heads[2].contains("last-event-id: 1-1\r\n"));
    assert!(
        heads[2].contains("authorization: bearer t0\r\n") && heads[2].contains("tasklane-namespace: ns\r\n")
    );
}

#[tokio::test]
async fn a_gap_in_the_events_is_told() {
    let text = "id: s-1\nevent: task\ndata: {\"taskId\":\"t\",\"status\":\"RUNNING\"}\n\n\
                id: s-9\nevent: gap\ndata: {}\n\nevent: later\ndata: {}\n\n";
    let (client, played) = script(vec![format!("{STREAM}{text}"), json("204 No Content", "")]).await;
    let mut events = client.events(None);
    assert!(
        matches!(events.next().await, Some(Ok(EventItem::Event(event))) if event.status == Status::Running)
    );
    assert!(matches!(events.next().await, Some(Ok(EventItem::Gap))));
    assert_eq!(events.position(), Some("s-9"));
    assert!(events.next().await.is_none());
    assert!(played.await.unwrap()[1].contains("last-event-id: s-9\r\n"));
}

#[tokio::test]
async fn waiting_is_for_the_end_alone_and_survives_a_failure_of_the_server() {
    let failed = "event: error\ndata: {\"status\":503,\"code\":\"store_unavailable\"}\n\n";
    let ended = "event: end\ndata: {\"taskId\":\"x\",\"status\":\"FAILED\"}\n\n";
    let answers = vec![
        format!("{STREAM}{failed}"),
        format!("{STREAM}{ended}"),
        json("200 OK", "{\"taskId\":\"x\",\"status\":\"FAILED\"}"),
    ];
    let (client, played) = script(answers).await;
    assert_eq!(client.wait("x", Duration::from_mins(1)).await.unwrap().status, Status::Failed);
    let heads = played.await.unwrap();
    assert!(
        heads[1].starts_with("get /api/v1/tasks/x/logs?follow=true&after=999999999-999999999 "),
        "{}",
        heads[1]
    );
}

#[tokio::test]
async fn a_stream_that_is_refused_is_not_asked_for_again() {
    let (client, played) = script(vec![json("404 Not Found", "{\"code\":\"task_not_found\"}")]).await;
    let mut follow = client.follow_logs("x", None);
    let error = follow.next().await.unwrap().unwrap_err();
    assert_eq!(error.problem().unwrap().code, "task_not_found");
    assert!(follow.next().await.is_none());
    assert_eq!(played.await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_refusal_is_told_with_its_code_and_field() {
    let body = r#"{"type":"/docs/errors/invalid_value","title":"A value is not allowed","status":422,
                   "code":"invalid_value","field":"priority","detail":"must be between 0 and 9, not 12","new":1}"#;
    let (client, _) = script(vec![json("422 Unprocessable Entity", body)]).await;
    let error = client.submit(&TaskRequest::shell("n", "true")).await.unwrap_err();
    assert_eq!(error.to_string(), "priority: must be between 0 and 9, not 12 (invalid_value)");
    let problem = error.problem().unwrap();
    assert_eq!((problem.status, problem.field.as_deref()), (422, Some("priority")));
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n".to_owned();
    let (client, _) = script(vec![answer]).await;
    let error = client.submit(&TaskRequest::shell("n", "true")).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.problem().unwrap().retry_after, Some(Duration::from_secs(3)));
    assert_eq!(error.to_string(), "too many requests (HTTP 429)");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&listener.local_addr().unwrap().to_string()).unwrap();
    drop(listener);
    assert!(client.stats().await.unwrap_err().is_unreachable());
    assert!(client.follow_logs("x", None).next().await.unwrap().unwrap_err().is_unreachable());
}

#[tokio::test]
async fn an_answer_that_is_no_answer_is_told() {
    let (client, _) = script(vec![json("200 OK", "<html>")]).await;
    assert!(matches!(client.stats().await.unwrap_err(), Error::Answer { .. }));
}

//! Server-sent events, and the end of long requests when the server stops.

use std::time::Duration;

use crate::support::{Server, task};
use serde_json::json;
use tasklane_api::ApiOptions;
use tasklane_ports::{Store, TaskFilter, TaskList};

#[tokio::test(flavor = "multi_thread")]
async fn output_is_streamed_as_it_is_printed_until_the_end() {
    let server = Server::start().await;
    let id = server.submit(task("endless")).await;
    let path = format!("/api/v1/tasks/{id}/logs?follow=true");
    let mut output = server.request("GET", &path).stream().await;
    let first = output.next().await.unwrap();
    assert_eq!((first.kind.as_str(), &first.data["text"]), ("log", &json!("begun\n")));
    assert_eq!(first.id.as_deref(), first.data["position"].as_str());
    // The task still runs; its end comes over the same stream.
    server.request("DELETE", &format!("/api/v1/tasks/{id}")).send().await;
    let end = output.next().await.unwrap();
    assert_eq!((end.kind.as_str(), &end.data), ("end", &json!({ "taskId": id, "status": "CANCELLED" })));
    assert!(output.next().await.is_none());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_goes_on_where_it_stood() {
    let server = Server::start().await;
    let done = server.run(task("echo")).await;
    let path = format!("/api/v1/tasks/{}/logs?follow=true", done["taskId"].as_str().unwrap());
    let mut output = server.request("GET", &path).stream().await;
    let first = output.next().await.unwrap();
    assert_eq!(first.data["text"], "hello\n");
    drop(output);
    let again = server.request("GET", &path).header("last-event-id", first.id.as_deref().unwrap());
    let mut output = again.stream().await;
    assert_eq!(output.next().await.unwrap().data["stream"], "stderr");
    assert_eq!(output.next().await.unwrap().kind, "end");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_and_resumed() {
    let server = Server::start().await;
    let mut events = server.request("GET", "/api/v1/events").stream().await;
    let other = server.request("POST", "/api/v1/tasks?wait=60").header("tasklane-namespace", "other");
    assert_eq!(other.json(&task("noop")).send().await.status, 200);
    let first = server.run(task("noop")).await;
    let seen = loop {
        let event = events.next().await.unwrap();
        assert_eq!(event.kind, "task");
        assert_eq!(event.data["taskId"], first["taskId"], "only of its own namespace");
        if event.data["status"] == "SUCCESS" {
            break event;
        }
    };
    assert_eq!((&seen.data["queue"], &seen.data["attempt"]), (&json!("default"), &json!(1)));
    assert!(seen.data["at"].is_string());
    drop(events);

    let second = server.run(task("noop")).await;
    let id = seen.id.unwrap();
    let mut events = server.request("GET", "/api/v1/events").header("last-event-id", &id).stream().await;
    assert_eq!(events.next().await.unwrap().data["taskId"], second["taskId"]);
    let mut events = server.request("GET", &format!("/api/v1/events?after={id}")).stream().await;
    assert_eq!(events.next().await.unwrap().data["taskId"], second["taskId"]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_nobody_remembers_is_a_gap() {
    let server = Server::start().await;
    let unknown = "00000000000000000000000000000001.7";
    let mut events = server.request("GET", &format!("/api/v1/events?after={unknown}")).stream().await;
    let gap = events.next().await.unwrap();
    assert_eq!(gap.kind, "gap");
    assert!(gap.id.is_some());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_ends_streams_and_waiting_requests() {
    let mut server = Server::start().await;
    let id = server.submit(task("endless")).await;
    let mut output = server.request("GET", &format!("/api/v1/tasks/{id}/logs?follow=true")).stream().await;
    assert_eq!(output.next().await.unwrap().kind, "log");
    let mut events = server.request("GET", "/api/v1/events").stream().await;
    let waiting = server.request("POST", "/api/v1/tasks?wait=5m").json(&task("endless"));
    let waiting = tokio::spawn(waiting.send());
    // It waits as soon as its task is there.
    loop {
        let listed = server.get("/api/v1/tasks?type=endless").await.json();
        if listed["tasks"].as_array().unwrap().len() == 2 {
            break;
        }
        tokio::task::yield_now().await;
    }
    // A connection that is kept open between requests must not hold the server up either.
    let idle = tokio::net::TcpStream::connect(server.address).await.unwrap();

    server.stop_api();
    let stopped = tokio::time::timeout(Duration::from_secs(5), &mut server.api).await;
    stopped.expect("it stops within its grace time").unwrap();
    assert!(output.next().await.is_none());
    while events.next().await.is_some() {}
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text);
    assert!(answer.json()["taskId"].is_string());
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_serves_one_request_after_the_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::start().await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the connection stays open");
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    server.close().await;
}

/// Requests that waited for a task kept the room of ordinary ones. Enough of them made the server refuse everybody for
/// as long as they waited.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_do_not_keep_others_out() {
    let server = Server::with(ApiOptions { requests_max: 1, ..ApiOptions::default() }).await;
    let waiting =
        tokio::spawn(server.request("POST", "/api/v1/tasks?wait=30s").json(&task("endless")).send());
    // Read from the store: a request would compete with the waiting one for the only room.
    let id = loop {
        assert!(!waiting.is_finished(), "it waits");
        let list = TaskList { filter: TaskFilter::default(), after: None, limit: 1 };
        if let Some(row) = server.store.list(list).await.unwrap().tasks.first() {
            break row.id;
        }
        tokio::task::yield_now().await;
    };
    let path = format!("/api/v1/tasks/{id}");
    // It gives its room back a moment after its task is there.
    while server.get(&path).await.status != 200 {
        assert!(!waiting.is_finished(), "it waits, and others are let in");
    }
    assert_eq!(server.request("DELETE", &path).send().await.status, 202);
    let answer = waiting.await.unwrap();
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("CANCELLED")));
    server.close().await;
}

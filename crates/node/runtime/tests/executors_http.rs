//! `HTTP`, against a small real server.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod executors_support;

use std::sync::Arc;
use std::time::Duration;

use executors_support::*;
use serde_json::{Value, json as value};
use tasklane_core::message::{Ending, Finish, RetryAdvice};
use tasklane_runtime::executors::{Http, HttpOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Answers every request with the same bytes, or not at all, and reports the request.
struct Server {
    url: String,
    requests: mpsc::UnboundedReceiver<String>,
    closed: mpsc::UnboundedReceiver<()>,
}

impl Server {
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/path", listener.local_addr().unwrap());
        let (tell, requests) = mpsc::unbounded_channel();
        let (tell_closed, closed) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                let complete = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request);
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    (body.len() >= len.map_or(0, |len| len.parse().unwrap())).then(|| text.to_string())
                };
                let request = loop {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "a whole request");
                    if let Some(request) = complete(&request) {
                        break request;
                    }
                };
                tell.send(request).unwrap();
                if answer.is_empty() {
                    // Until the other side closes.
                    let _ = stream.read(&mut [0]).await;
                    tell_closed.send(()).unwrap();
                } else {
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        Self { url, requests, closed }
    }
}

fn http() -> Http {
    Http::new(HttpOptions { body_bytes_max: 64, ..HttpOptions::default() })
}

async fn get(answer: &'static str, more: Value) -> Finish {
    let server = Server::start(answer).await;
    let mut payload = value!({"url": server.url});
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    run(&http(), json(payload)).await.0
}

#[tokio::test]
async fn a_request_is_sent_as_asked() {
    let mut server = Server::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let payload = value!({
        "method": "put",
        "url": format!("{}?q=1", server.url),
        "headers": {"X-Mine": "yes"},
        "body": {"a": [1, 2]},
    });
    let (finish, _) = run(&http(), json(payload)).await;
    assert_eq!(finish.ending, Ending::Success);
    assert_eq!((finish.result.code, finish.result.data.as_str()), (200, r#""hi""#));
    assert_eq!(finish.result.message, "200 OK");
    let request = server.requests.recv().await.unwrap();
    assert!(request.starts_with("PUT /path?q=1 HTTP/1.1\r\n"), "{request}");
    for expected in
        ["x-mine: yes", "content-type: application/json", "tasklane-attempt: 3", "tasklane-task-id: "]
    {
        assert!(request.contains(expected), "{expected} in {request}");
    }
    assert!(request.ends_with("\r\n\r\n{\"a\":[1,2]}"), "{request}");
}

#[tokio::test]
async fn text_is_sent_as_it_is() {
    let mut server = Server::start("HTTP/1.1 204 No Content\r\n\r\n").await;
    let (finish, _) = run(&http(), json(value!({"method": "POST", "url": server.url, "body": "a=b"}))).await;
    assert_eq!((finish.ending, finish.result.data.as_str()), (Ending::Success, ""));
    let request = server.requests.recv().await.unwrap();
    assert!(request.ends_with("\r\n\r\na=b") && !request.contains("content-type"), "{request}");
}

#[tokio::test]
async fn numbers_are_sent_as_they_were_written() {
    let mut server = Server::start("HTTP/1.1 204 No Content\r\n\r\n").await;
    let payload = format!(
        r#"{{"method":"POST","url":"{}","body":{{"id":123456789012345678901234567890}}}}"#,
        server.url
    );
    run(&http(), tasklane_core::task::Payload::Json(payload)).await;
    let request = server.requests.recv().await.unwrap();
    assert!(request.ends_with("\r\n\r\n{\"id\":123456789012345678901234567890}"), "{request}");
}

#[tokio::test]
async fn answers_become_results() {
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: 9\r\n\r\n{\"a\": 1}\n";
    assert_eq!(get(json, value!({})).await.result.data, r#"{"a":1}"#);
    let finish = get(json, value!({"captureBody": false})).await;
    assert_eq!((finish.ending, finish.result.data.as_str()), (Ending::Success, ""));

    let exact = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 37\r\n\r\n[123456789012345678901234567890, 2.5]";
    assert_eq!(get(exact, value!({})).await.result.data, "[123456789012345678901234567890,2.5]");
    // An answer that some programs could not parse as JSON is text.
    let infinite = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n[1e999]";
    assert_eq!(get(infinite, value!({})).await.result.data, "\"[1e999]\"");

    let long = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 80\r\n\r\n\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"";
    let finish = get(long, value!({})).await;
    assert_eq!(finish.result.message, "200 OK; the body was cut");
    let data: String = serde_json::from_str(&finish.result.data).unwrap();
    assert_eq!(data.len(), 64);
}

#[tokio::test]
async fn statuses_are_judged() {
    let busy = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
    let finish = get(busy, value!({})).await;
    let expected = ("http_status", "the server answered 429 Too Many Requests");
    assert_eq!((failure(&finish).0, failure(&finish).1), expected);
    assert_eq!(failure(&finish).2, RetryAdvice::After(Duration::from_secs(7)));
    assert_eq!(finish.result.code, 429);

    let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone";
    let finish = get(missing, value!({})).await;
    assert_eq!(failure(&finish).2, RetryAdvice::Never);
    assert_eq!(finish.result.data, r#""gone""#);
    assert_eq!(get(missing, value!({"expectStatus": [200, 404]})).await.ending, Ending::Success);

    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let finish = get(fine, value!({"expectStatus": 201})).await;
    assert_eq!(failure(&finish).2, RetryAdvice::Policy);
}

#[tokio::test]
async fn no_answer_is_a_failure_to_retry() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (finish, _) = run(&http(), json(value!({"url": format!("http://{free}")}))).await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("http_connect", RetryAdvice::Policy));
    assert!(failure(&finish).1.contains("Connection refused"), "{finish:?}");

    // Readers other than the task's owner see errors.
    let secret = format!("http://me:pa55word@{free}/a?token=s3cret");
    let (finish, _) = run(&http(), json(value!({ "url": secret }))).await;
    let told = format!("{} {}", failure(&finish).1, finish.result.message);
    assert!(told.contains(&format!("{free}/a?***")), "{told}");
    assert!(!told.contains("s3cret") && !told.contains("pa55word"), "{told}");

    let finish = get("nonsense\r\n\r\n", value!({})).await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("http_request", RetryAdvice::Policy));

    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    let finish = get(cut, value!({})).await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("http_request", RetryAdvice::Policy));
}

#[tokio::test]
async fn redirects_end_somewhere() {
    let finish = get("HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n", value!({})).await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("http_request", RetryAdvice::Never));
}

/// Only the usual names, such as `Authorization`, were held back, so that an API key in a header of another
/// name went to any host that the first one named.
#[tokio::test]
async fn headers_of_a_task_are_not_sent_on_to_another_origin() {
    let payload = |url: &str| {
        let secrets = ["X-Api-Key", "Authorization", "Cookie", "Private-Token"].map(|name| (name, "s3cret"));
        let mut headers: serde_json::Map<String, Value> =
            secrets.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        headers.insert("Content-Type".to_owned(), "text/plain".into());
        json(value!({ "method": "POST", "url": url, "headers": headers, "body": "hello" }))
    };
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let mut other = Server::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        let answer = format!("HTTP/1.1 {status}\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", other.url);
        let mut first = Server::start(String::leak(answer)).await;
        let with_user = first.url.replace("http://", "http://me:s3cret@");
        let (finish, _) = run(&http(), payload(&with_user)).await;
        assert_eq!(finish.ending, Ending::Success, "{finish:?}");
        let sent = first.requests.recv().await.unwrap();
        assert!(sent.contains("x-api-key: s3cret") && sent.contains("authorization: "), "{sent}");
        let sent = other.requests.recv().await.unwrap();
        assert!(
            !sent.contains("s3cret") && !sent.contains("authorization") && !sent.contains("referer"),
            "{sent}"
        );
        assert!(sent.contains("tasklane-task-id: "), "{sent}");
        let keeps = status.starts_with("30") && !status.starts_with("302");
        assert_eq!(sent.starts_with("POST "), keeps, "{sent}");
        assert_eq!(sent.contains("content-type: text/plain") && sent.ends_with("hello"), keeps, "{sent}");
    }
    // The same server again is no other origin.
    let mut again =
        Server::start("HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n").await;
    run(&http(), payload(&again.url)).await;
    again.requests.recv().await.unwrap();
    let sent = again.requests.recv().await.unwrap();
    assert!(sent.starts_with("GET /again ") && sent.contains("x-api-key: s3cret"), "{sent}");
}

#[tokio::test]
async fn a_redirect_to_another_kind_of_address_is_not_followed() {
    let finish =
        get("HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n", value!({}))
            .await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("http_request", RetryAdvice::Never));
    assert!(failure(&finish).1.contains("does not begin with http"), "{finish:?}");
}

#[tokio::test]
async fn a_stopped_request_is_given_up() {
    let mut server = Server::start("").await;
    let recorder = Recorder::new();
    let payload = json(value!({"url": server.url}));
    let running = {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move { run_with(&http(), payload, recorder).await })
    };
    server.requests.recv().await.unwrap();
    recorder.stop(PATIENCE);
    assert_eq!(failure(&running.await.unwrap()).0, "stopped");
    tokio::time::timeout(PATIENCE, server.closed.recv()).await.expect("the connection is closed").unwrap();
}

#[tokio::test]
async fn wrong_payloads_are_named() {
    let http = http();
    let refused = |payload| refusal(&http, json(payload));
    assert_eq!(refusal(&http, text("http://x")), "must be an object with a url");
    assert_eq!(refused(value!({})), "field url: must be given");
    // The missing field may be the misspelt one.
    assert_eq!(
        refused(value!({"uri": "http://x"})),
        "field uri: is not known; there are method, url, headers, body, expectStatus, captureBody"
    );
    assert_eq!(refused(value!({"url": "ftp://x"})), "field url: must begin with http:// or https://");
    assert_eq!(
        refused(value!({"url": "nowhere"})),
        "field url: must be an address such as https://example.com/path (relative URL without a base)"
    );
    assert_eq!(
        refused(value!({"url": "http://x", "method": "G T"})),
        "field method: is not a method of HTTP"
    );
    assert_eq!(
        refused(value!({"url": "http://x", "headers": {"a b": ""}})),
        "field headers.a b: is not a name of a header"
    );
    assert_eq!(
        refused(value!({"url": "http://x", "expectStatus": "ok"})),
        "field expectStatus: must be a status such as 200, or a list of them"
    );
    assert_eq!(
        refused(value!({"url": "http://x", "timeout": 1})),
        "field timeout: is not known; there are method, url, headers, body, expectStatus, captureBody"
    );
}

//! Which clients are let in, and through which page.

use crate::support::{Server, send_raw, task};
use serde_json::json;
use tasklane_api::ApiOptions;

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_only_health_is_open() {
    let server = Server::with(ApiOptions { token: Some("s3cret".into()), ..ApiOptions::default() }).await;
    assert_eq!(server.get("/healthz").await.status, 200);
    for path in ["/api/v1/tasks", "/metrics", "/readyz", "/api", "/api/openapi.json", "/api/v1/nothing"] {
        let refused = server.get(path).await;
        refused.problem(401, "unauthorized", None);
        assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    for wrong in ["Bearer s3cre", "Bearer s3cretx", "Basic s3cret", "s3cret", "Bearer"] {
        let request = server.request("GET", "/api/v1/tasks").header("authorization", wrong);
        request.send().await.problem(401, "unauthorized", None);
    }
    let request = server.request("GET", "/api/v1/tasks").header("authorization", "bearer s3cret");
    assert_eq!(request.send().await.status, 200);
    // Whoever has the token may use any name of the server.
    let request = server.request("GET", "/api/v1/tasks").header("authorization", "Bearer s3cret");
    assert_eq!(request.header("host", "tasks.example:7070").send().await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_only_names_of_this_machine_are_answered_to() {
    let server =
        Server::with(ApiOptions { hosts: vec!["Build.example".into()], ..ApiOptions::default() }).await;
    for host in
        ["localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070", "10.1.2.3", "build.EXAMPLE:80"]
    {
        let answer = server.request("GET", "/api/v1/tasks").header("host", host).send().await;
        assert_eq!(answer.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:7070", "127.0.0.1.evil.example", ""] {
        let answer =
            server.request("POST", "/api/v1/tasks").header("host", host).json(&task("noop")).send().await;
        answer.problem(403, "host_not_allowed", Some("host"));
    }
    server.close().await;
}

/// `[127.0.0.1].evil.test` was taken for an address, an `Origin` that is no text for none, and only the first of two headers
/// was looked at.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_origins_of_odd_forms_are_refused() {
    let server = Server::start().await;
    let pause = "POST /api/v1/queues/q/pause?create=true HTTP/1.1\r\n";
    let submit =
        |host: &str| server.request("POST", "/api/v1/tasks").header("host", host).json(&task("noop"));
    for host in [
        "[127.0.0.1].evil.test",
        "[::1].evil.test",
        "[::1]@evil.test",
        "a@localhost",
        "evil.test@127.0.0.1",
        "localhost.",
        "127.0.0.1.",
        "localhost:x",
        "localhost:",
        "localhost:99999",
        "localhost:7070:7070",
        "localhost, evil.test",
        "::1",
    ] {
        submit(host).send().await.problem(403, "host_not_allowed", Some("host"));
    }
    let (same_twice, two, none) = (
        format!("{pause}host: localhost\r\nhost: localhost\r\n\r\n"),
        format!("{pause}host: localhost\r\nHost: evil.test\r\n\r\n"),
        format!("{pause}\r\n"),
    );
    for heads in [
        same_twice.as_str(),
        &two,
        &none,
        "GET http://evil.test/api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET http://localhost/api/v1/tasks HTTP/1.1\r\nhost: evil.test\r\n\r\n",
        "GET http://localhost:1/api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET http://a@localhost/api/v1/tasks HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET http://evil.test/api/v1/tasks HTTP/1.0\r\n\r\n",
    ] {
        send_raw(server.address, heads).await.problem(403, "host_not_allowed", Some("host"));
    }
    for heads in [
        "GET http://localhost/api/v1/tasks HTTP/1.1\r\nhost: LOCALHOST:80\r\n\r\n",
        "GET /api/v1/tasks HTTP/1.0\r\n\r\n",
    ] {
        assert_eq!(send_raw(server.address, heads).await.status, 200, "{heads}");
    }
    for origin in [
        "http://a@localhost",
        "http://localhost.",
        "http://localhost:",
        "http://localhost/",
        "http://localhost:080x",
        "https://localhost",
        "localhost",
        "ftp://localhost",
        "HTTP://localhost",
        "http://localhost\r\norigin: http://localhost",
        "http://localhost\r\norigin: https://evil.test",
        "http://évil.test",
        "",
    ] {
        let heads = format!("{pause}host: localhost:80\r\norigin: {origin}\r\n\r\n");
        let answer = send_raw(server.address, &heads).await;
        answer.problem(403, "cross_site", None);
    }
    let twice = format!(
        "{pause}host: localhost\r\nsec-fetch-site: same-origin\r\nsec-fetch-site: cross-site\r\n\r\n"
    );
    send_raw(server.address, &twice).await.problem(403, "cross_site", None);
    assert_eq!(server.get("/api/v1/queues/q").await.json()["policy"]["paused"], json!(false));
    let own = format!("{pause}host: localhost:80\r\norigin: http://localhost\r\n\r\n");
    assert_eq!(send_raw(server.address, &own).await.status, 200);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_cannot_change_anything() {
    let server = Server::start().await;
    let elsewhere = [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:9999"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ];
    for (name, value) in elsewhere {
        let request = server.request("POST", "/api/v1/tasks").header(name, value).json(&task("noop"));
        request.send().await.problem(403, "cross_site", None);
        let request = server.request("POST", "/api/v1/queues/q/pause").header(name, value);
        request.send().await.problem(403, "cross_site", None);
    }
    let own = server.request("POST", "/api/v1/tasks").header("host", "localhost:7070");
    let own = own.header("origin", "http://localhost:7070").header("sec-fetch-site", "same-origin");
    assert_eq!(own.json(&task("noop")).send().await.status, 201);
    // Looking is harmless: without permission a browser does not show the answer to such a page.
    let look = server.request("GET", "/api/v1/tasks").header("origin", "https://evil.example").send().await;
    assert_eq!((look.status, look.header("access-control-allow-origin")), (200, None));
    assert_eq!(server.get("/api/v1/queues/q").await.json()["policy"]["paused"], json!(false));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_may_call() {
    let page = "https://app.example";
    let options = ApiOptions {
        token: Some("s3cret".into()),
        cors_origins: vec![page.into(), "http://localhost:3000".into()],
        ..ApiOptions::default()
    };
    let server = Server::with(options).await;
    let preflight = |origin: &str| {
        let request = server.request("OPTIONS", "/api/v1/tasks").header("origin", origin);
        request.header("access-control-request-method", "POST").send()
    };
    let answer = preflight(page).await;
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (204, Some(page)),
        "{answer:?}"
    );
    let allowed = answer.header("access-control-allow-headers").unwrap();
    for header in ["authorization", "content-type", "idempotency-key", "tasklane-namespace"] {
        assert!(allowed.contains(header), "{allowed}");
    }
    assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));

    let submit = |origin: &str| {
        let request = server.request("POST", "/api/v1/tasks").header("origin", origin);
        request.header("sec-fetch-site", "cross-site").header("authorization", "Bearer s3cret")
    };
    let answer = submit(page).json(&task("noop")).send().await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (201, Some(page)));
    assert_eq!(answer.header("access-control-expose-headers"), Some("location, retry-after"));
    assert_eq!(answer.header("vary"), Some("origin"));
    // A page can read why it is refused.
    let answer = server.request("GET", "/api/v1/tasks").header("origin", page).send().await;
    answer.problem(401, "unauthorized", None);
    assert_eq!(answer.header("access-control-allow-origin"), Some(page));

    for other in ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null"] {
        let answer = preflight(other).await;
        assert_eq!(answer.header("access-control-allow-origin"), None, "{other}");
        assert_eq!(answer.header("access-control-allow-methods"), None, "{other}");
        let answer = submit(other).json(&task("noop")).send().await;
        answer.problem(403, "cross_site", None);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{other}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_origin_may_call_if_all_are_allowed() {
    let options =
        ApiOptions { token: Some("s3cret".into()), cors_origins: vec!["*".into()], ..ApiOptions::default() };
    let server = Server::with(options).await;
    let request = server.request("POST", "/api/v1/tasks").header("origin", "https://any.example");
    let answer = request.header("authorization", "Bearer s3cret").json(&task("noop")).send().await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (201, Some("*")));
    server.close().await;
}

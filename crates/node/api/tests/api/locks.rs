//! Locks over REST.

use crate::support::{Answer, Server};
use serde_json::{Value, json};

async fn take(server: &Server, name: &str, owner: &str, ttl: Value) -> Answer {
    let body = json!({ "owner": owner, "ttl": ttl });
    server.request("PUT", &format!("/api/v1/locks/{name}")).json(&body).send().await
}

async fn release(server: &Server, name: &str, owner: &str) -> Answer {
    server.request("DELETE", &format!("/api/v1/locks/{name}?owner={owner}")).send().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_has_one_owner_and_a_rising_token() {
    let server = Server::start().await;
    let first = take(&server, "import", "a", json!("1m")).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let first = first.json();
    let problem = take(&server, "import", "b", json!(30)).await.problem(409, "lock_held", Some("owner"));
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("\"a\"")), "{problem}");
    release(&server, "import", "b").await.problem(409, "lock_held", Some("owner"));
    let renewed = take(&server, "import", "a", json!("2m")).await.json();
    assert_eq!((&renewed["token"], &renewed["since"]), (&first["token"], &first["since"]));
    assert!(renewed["until"].as_str() > first["until"].as_str());
    assert_eq!(server.get("/api/v1/locks/import").await.json(), renewed);

    for _ in 0..2 {
        assert_eq!(release(&server, "import", "a").await.status, 204);
    }
    server.get("/api/v1/locks/import").await.problem(404, "lock_not_held", None);
    let next = take(&server, "import", "b", json!(30)).await.json();
    assert!(next["token"].as_u64() > first["token"].as_u64(), "{next} after {first}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_renewed_is_free() {
    let server = Server::start().await;
    let first = take(&server, "import", "a", json!(0.001)).await.json();
    let second = loop {
        let answer = take(&server, "import", "b", json!(30)).await;
        if answer.status == 200 {
            break answer.json();
        }
        answer.problem(409, "lock_held", Some("owner"));
    };
    assert!(second["token"].as_u64() > first["token"].as_u64());
    assert_eq!(
        release(&server, "import", "a").await.problem(409, "lock_held", Some("owner"))["field"],
        "owner"
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_one_gets_it() {
    let server = Server::start().await;
    for round in 0..5 {
        let all = (0..8).map(|n| {
            let (server, name) = (&server, format!("l{round}"));
            async move { take(server, &name, &format!("o{n}"), json!(60)).await.status }
        });
        let mut statuses = futures::future::join_all(all).await;
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409, 409, 409, 409, 409, 409, 409]);
    }
    let page = server.get("/api/v1/locks?limit=3").await.json();
    assert_eq!((page["locks"].as_array().map(Vec::len), &page["cursor"]), (Some(3), &json!("l2")));
    let rest = server.get("/api/v1/locks?limit=3&cursor=l2").await.json();
    assert_eq!((rest["locks"].as_array().map(Vec::len), rest.get("cursor")), (Some(2), None));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_right_is_refused() {
    let server = Server::start().await;
    take(&server, "l", "", json!(1)).await.problem(422, "invalid_value", Some("owner"));
    take(&server, "l", "a", json!("25h")).await.problem(422, "invalid_value", Some("ttl"));
    take(&server, "l", "a", json!(0)).await.problem(422, "invalid_value", Some("ttl"));
    let answer = server.request("PUT", "/api/v1/locks/l").json(&json!({ "owner": "a" })).send().await;
    answer.problem(422, "missing_field", Some("ttl"));
    let answer = server.request("DELETE", "/api/v1/locks/l").send().await;
    answer.problem(400, "invalid_parameter", Some("owner"));
    assert_eq!(server.get("/api/v1/locks").await.json(), json!({ "locks": [] }));
    server.close().await;
}

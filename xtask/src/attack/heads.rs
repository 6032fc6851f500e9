//! Hostile heads, framing and connections: bytes that a proxy or a parser might read in two ways, and clients
//! that stop in the middle.

use std::time::Duration;

use tasklane_core::rng::Rng;

use super::requests::Rule;
use super::wire::{Shot, Then};

const SUBMIT: &str = r#"{"taskName":"a","taskType":"NOOP"}"#;
const JSON: &str = "content-type: application/json\r\ntasklane-namespace: hostile\r\n";

/// A hostile head or connection, and the outcome that it must have.
pub(super) fn shot(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    match rng.below(100) {
        ..25 => framing(rng),
        25..45 => line(rng),
        45..70 => host(rng),
        70..80 => pipelined(rng),
        80..90 => left(rng),
        90..95 => slow(rng),
        _ => early(rng),
    }
}

fn post(headers: &str, body: &str) -> Shot {
    Shot::new(format!("POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\n{JSON}{headers}\r\n{body}"))
}

/// Two lengths, or none that can be read: a request must not hide in the body of another one.
fn framing(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let hidden = "GET /api/v1/stats HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let length = SUBMIT.len();
    let (shot, rule) = match rng.below(14) {
        0 => (post("content-length: 4\r\ncontent-length: 34\r\n", SUBMIT), Rule::Rejected),
        1 => (post("content-length: 4, 34\r\n", SUBMIT), Rule::Rejected),
        2 => (post("content-length: -1\r\n", SUBMIT), Rule::Rejected),
        3 => (post("content-length: +34\r\n", SUBMIT), Rule::Rejected),
        4 => (post("content-length: 0x22\r\n", SUBMIT), Rule::Rejected),
        5 => (post("content-length: 99999999999999999999999\r\n", SUBMIT), Rule::Rejected),
        6 => (
            post("transfer-encoding: chunked\r\ncontent-length: 4\r\n", &format!("0\r\n\r\n{hidden}")),
            Rule::NoSuccess,
        ),
        7 => (post("transfer-encoding: xchunked\r\n", SUBMIT), Rule::Rejected),
        8 => (post("transfer-encoding: chunked, identity\r\n", "0\r\n\r\n"), Rule::Rejected),
        9 => (post("transfer-encoding : chunked\r\n", "0\r\n\r\n"), Rule::Rejected),
        10 => (post("transfer-encoding: chunked\r\n", "FFFFFFFFFFFFFFFFF\r\n{}"), Rule::Rejected),
        11 => (post("transfer-encoding: chunked\r\n", "-1\r\n{}\r\n0\r\n\r\n"), Rule::Rejected),
        12 => (post("transfer-encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n"), Rule::Rejected),
        _ => (
            post(&format!("x: y\r\n content-length: 1\r\ncontent-length: {length}\r\n"), SUBMIT),
            Rule::Rejected,
        ),
    };
    ("smuggling", shot, rule)
}

/// First lines and headers that are none.
fn line(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let long = "l".repeat(100_000);
    let many = "x-many: y\r\n".repeat(300);
    let rest = "host: 127.0.0.1\r\n\r\n";
    let (bytes, rule): (Vec<u8>, Rule) = match rng.below(17) {
        0 => (b"G\0T /api/v1/stats HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(), Rule::Rejected),
        1 => (format!("get /api/v1/stats HTTP/1.1\r\n{rest}").into(), Rule::NoSuccess),
        2 => (format!("{long} /api/v1/stats HTTP/1.1\r\n{rest}").into(), Rule::Rejected),
        3 => (format!("GET /{long} HTTP/1.1\r\n{rest}").into(), Rule::Rejected),
        4 => (format!("GET /api/v1/stats HTTP/9.9\r\n{rest}").into(), Rule::Rejected),
        5 => (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Rule::Rejected),
        6 => (format!("GET /api/v1/stats\r\n{rest}").into(), Rule::Rejected),
        7 => (format!("GET  /api/v1/stats  HTTP/1.1\r\n{rest}").into(), Rule::Rejected),
        8 => (format!("GET /api/v1/stats HTTP/1.1\r\nx: {long}\r\n{rest}").into(), Rule::Tolerated),
        9 => (format!("GET /api/v1/stats HTTP/1.1\r\n{many}{rest}").into(), Rule::Rejected),
        10 => (b"GET /api/v1/stats HTTP/1.1\r\nhost: 127.0.0.1\r\nx: a\0b\r\n\r\n".to_vec(), Rule::Rejected),
        11 => {
            (b"GET /api/v1/stats HTTP/1.1\r\nhost: 127.0.0.1\r\n: no name\r\n\r\n".to_vec(), Rule::Rejected)
        }
        12 => (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(20), Rule::Rejected),
        13 => (format!("TRACE /api/v1/stats HTTP/1.1\r\n{rest}").into(), Rule::NoSuccess),
        14 => (format!("CONNECT evil.test:443 HTTP/1.1\r\n{rest}").into(), Rule::NoSuccess),
        15 => (format!("OPTIONS * HTTP/1.1\r\n{rest}").into(), Rule::NoSuccess),
        _ => (b"GET /api/v1/st\xff\xfets HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_vec(), Rule::NoSuccess),
    };
    ("a bad first line or header", Shot::new(bytes), rule)
}

/// Names of other hosts, and pages of other sites.
fn host(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    const HOSTS: [&str; 12] = [
        "host: evil.test\r\n",
        "host: [127.0.0.1].evil.test\r\n",
        "host: 127.0.0.1.evil.test\r\n",
        "host: user@127.0.0.1\r\n",
        "host: 127.0.0.1@evil.test\r\n",
        "host: 127.0.0.1\r\nhost: evil.test\r\n",
        "host: evil.test\r\nhost: 127.0.0.1\r\n",
        "host: localhost.evil.test:80\r\n",
        "host: 127.0.0.1/evil.test\r\n",
        "host: [::1]evil.test\r\n",
        "host: evil.test:127.0.0.1\r\n",
        "host: \u{7f}\r\n",
    ];
    const ORIGINS: [&str; 7] = [
        "origin: http://evil.test\r\n",
        "origin: null\r\n",
        "origin: http://127.0.0.1.evil.test\r\n",
        "origin: http://127.0.0.1@evil.test\r\n",
        "origin: http://127.0.0.1\r\norigin: http://evil.test\r\n",
        "origin: http://evil.test\r\norigin: http://127.0.0.1\r\n",
        "sec-fetch-site: cross-site\r\n",
    ];
    if rng.chance(60) {
        let host = HOSTS[rng.index(HOSTS.len())];
        let target = if rng.chance(50) { "/api/v1/stats" } else { "/api/v1/tasks" };
        let shot = Shot::new(format!("GET {target} HTTP/1.1\r\n{host}\r\n"));
        return ("another host", shot, Rule::Rejected);
    }
    let origin = ORIGINS[rng.index(ORIGINS.len())];
    let length = SUBMIT.len();
    ("another origin", post(&format!("{origin}content-length: {length}\r\n"), SUBMIT), Rule::Refused)
}

/// Many requests on one connection, sent before any of them is answered.
fn pipelined(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let count = 2 + rng.index(30);
    let mut bytes = Vec::new();
    for n in 0..count {
        let head = if n % 2 == 0 { "GET /api/v1/stats" } else { "GET /api/v1/tasks/none" };
        bytes.extend(format!("{head} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").into_bytes());
    }
    ("pipelined", Shot { answers: count, ..Shot::new(bytes) }, Rule::Answered)
}

/// Clients that go away in the middle, or close their half when they have sent all.
fn left(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let length = SUBMIT.len();
    let whole = post(&format!("content-length: {length}\r\n"), SUBMIT);
    match rng.below(3) {
        0 => {
            let mut part = whole;
            if let Some((bytes, _)) = part.pieces.first_mut() {
                bytes.truncate(1 + rng.index(bytes.len() - 1));
            }
            ("left in the middle", Shot { then: Then::Leaves, ..part }, Rule::Nothing)
        }
        1 => ("left before the answer", Shot { then: Then::Leaves, ..whole }, Rule::Nothing),
        _ => ("half closed", Shot { then: Then::HalfCloses, ..whole }, Rule::Answered),
    }
}

/// Bytes that come one by one: a body that arrives in the end, and a head that does not.
fn slow(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let pause = Duration::from_millis(40 + rng.below(60));
    if rng.chance(75) {
        let length = SUBMIT.len();
        let head = post(&format!("content-length: {length}\r\n"), "").pieces;
        let body = SUBMIT.as_bytes().iter().map(|byte| (vec![*byte], pause));
        let pieces = head.into_iter().chain(body).collect();
        return ("a slow body", Shot { pieces, answers: 1, then: Then::Reads }, Rule::Answered);
    }
    let shot = Shot::new("POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half:");
    ("half a head", shot, Rule::Rejected)
}

/// Refused before the body has arrived; and then the next request on the same connection.
fn early(rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let body = "x".repeat(1 + rng.index(20_000));
    let refused = format!(
        "POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let next = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let pieces = vec![
        (refused.into_bytes(), Duration::from_millis(rng.below(30))),
        (body.into_bytes(), Duration::ZERO),
        (next.as_bytes().to_vec(), Duration::ZERO),
    ];
    ("refused early", Shot { pieces, answers: 2, then: Then::Reads }, Rule::FirstRefused)
}

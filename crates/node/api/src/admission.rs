//! Admission: the checks that every request passes first. Who sends it, through which page, whether there is
//! room, and its deadline.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HeaderName, HeaderValue, ORIGIN};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::authority::Authority;
use crate::client_user::TrustedUser;
use crate::cors;
use crate::problem::{self, Problem};
use crate::state::Api;

/// Refuses and times out requests, and counts answers.
pub(crate) async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let origins = &api.options.cors_origins;
    let origin = cors::allowed_origin(origins, request.headers());
    let is_preflight = origin.is_some() && cors::is_preflight(request.method(), request.headers());
    let passed = check(&api, &request, origin.is_some()).and_then(|()| api.request_permit());
    let mut response = match passed {
        // A browser sends it without a token, and asks for nothing but these headers.
        _ if is_preflight => cors::preflight(),
        Err(problem) => problem.into_response(),
        Ok(permit) => {
            request.extensions_mut().insert(permit.clone());
            let timeout = api.options.request_timeout;
            let response = tokio::select! {
                response = next.run(request) => response,
                () = permit.out_of_time(timeout) => out_of_time(route.as_ref(), timeout),
            };
            // Held until the answer begins: what goes on after that, a stream, has a bound of its own.
            permit.give_back();
            response
        }
    };
    if !origins.is_empty() {
        cors::mark(response.headers_mut(), origin);
    }
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    api.metrics.answered(method, route, response.status().as_u16(), started.elapsed());
    response
}

fn out_of_time(route: Option<&MatchedPath>, timeout: Duration) -> Response {
    let route = route.map_or("other", MatchedPath::as_str);
    tracing::warn!(route, ?timeout, "a request was aborted because it took too long");
    let detail = format!("the request did not end within {timeout:?}; its write may have happened");
    Problem::new(&problem::ANSWER_TIMEOUT, detail).later().into_response()
}

fn check(api: &Api, request: &Request, is_allowed_origin: bool) -> Result<(), Problem> {
    let headers = request.headers();
    if request.uri().path() == "/healthz" {
        return Ok(());
    }
    if let Some(token) = &api.options.token {
        check_token(token, headers)?;
    } else {
        check_user(request)?;
        check_host(&api.options.hosts, request)?;
    }
    if request.method().is_safe() || is_allowed_origin { Ok(()) } else { check_site(request) }
}

fn check_token(token: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let right = given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer") && same(given.trim().as_bytes(), token.as_bytes())
    });
    if right {
        return Ok(());
    }
    Err(Problem::new(&problem::UNAUTHORIZED, "the header authorization must carry the token"))
}

/// Without a token, only those are answered who may run commands as the server's user anyway.
fn check_user(request: &Request) -> Result<(), Problem> {
    if request.extensions().get::<TrustedUser>().is_some() {
        return Ok(());
    }
    let detail = "a server without a token answers only its own user and root, on the same machine; set `token` (or \
                  TASKLANE_TOKEN) for the server, and send it as `authorization: Bearer <token>`";
    Err(Problem::new(&problem::USER_NOT_ALLOWED, detail))
}

/// Compares in a time that does not depend on the length of the matching part.
fn same(given: &[u8], right: &[u8]) -> bool {
    let mut different = given.len() ^ right.len();
    for (at, byte) in right.iter().enumerate() {
        different |= usize::from(byte ^ given.get(at).copied().unwrap_or(0));
    }
    std::hint::black_box(different) == 0
}

/// Without a token, only names that a page of another site cannot point here are answered to.
fn check_host(allowed: &[String], request: &Request) -> Result<(), Problem> {
    let refused = |detail: String| Problem::new(&problem::HOST_NOT_ALLOWED, detail).field("host");
    let host = Authority::of(request).map_err(|why| refused(why.to_owned()))?;
    match host {
        Some(host) if !host.is_local() && !allowed.iter().any(|allowed| host.is_named(allowed)) => {
            Err(refused(format!("a server without a token does not answer as {host}")))
        }
        _ => Ok(()),
    }
}

/// A browser names the page for which it sends a request. A name that cannot be read counts as another site.
fn check_site(request: &Request) -> Result<(), Problem> {
    let own_sites = [&b"same-origin"[..], b"none"];
    let sites = request.headers().get_all(HeaderName::from_static("sec-fetch-site"));
    let from_elsewhere = sites.iter().any(|site| !own_sites.contains(&site.as_bytes()));
    let mut origins = request.headers().get_all(ORIGIN).iter();
    let is_same_origin = match (origins.next(), origins.next()) {
        (None, _) => true,
        (Some(origin), None) => is_own_origin(origin, request),
        (Some(_), Some(_)) => false,
    };
    if from_elsewhere || !is_same_origin {
        return Err(Problem::new(&problem::CROSS_SITE, "the request comes from a page of another site"));
    }
    Ok(())
}

/// Whether an origin is the place that the request is sent to.
fn is_own_origin(origin: &HeaderValue, request: &Request) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    let (page, usual_port) = match origin.split_once("://") {
        Some(("http", page)) => (page, 80),
        Some(("https", page)) => (page, 443),
        _ => return false,
    };
    let host = Authority::of(request).ok().flatten();
    Authority::parse(page).zip(host).is_some_and(|(page, host)| page.is_same(&host, usual_port))
}

/// All invented methods are counted under one name.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"secret", b"secret"));
        for given in [&b"secre"[..], b"secret2", b"", b"Secret", b"secret\0"] {
            assert!(!same(given, b"secret"));
        }
    }
}

//! Pages of other origins that may call the API from a browser (CORS).
//!
//! A browser asks before it sends a request with JSON or a token for such a page (the preflight), and hides every answer
//! that does not name the page's origin. Without allowed origins nothing here applies.

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

/// Stands for every origin.
const ANY: &str = "*";

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
const REQUEST_HEADERS: &str =
    "authorization, content-type, idempotency-key, last-event-id, tasklane-namespace";
const ANSWER_HEADERS: &str = "location, retry-after";

/// How long a browser may remember the answer to a preflight, in seconds.
const MAX_AGE: &str = "3600";

/// The origin to name in the answer, if the request comes from a page that may call the API.
pub(crate) fn allowed_origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let mut origins = headers.get_all(ORIGIN).iter();
    // Of two, one may be what the other hides.
    let (origin, None) = (origins.next()?, origins.next()) else { return None };
    if allowed.iter().any(|allowed| allowed == ANY) {
        return Some(HeaderValue::from_static(ANY));
    }
    let known =
        |allowed: &String| without_usual_port(allowed).as_bytes().eq_ignore_ascii_case(origin.as_bytes());
    allowed.iter().any(known).then(|| origin.clone())
}

/// An origin as browsers send it: the usual port of its scheme is left out.
fn without_usual_port(origin: &str) -> &str {
    let port = if origin.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:")) {
        ":443"
    } else {
        ":80"
    };
    origin.strip_suffix(port).unwrap_or(origin)
}

/// Whether a browser asks which requests it may send.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight of an allowed origin.
pub(crate) fn preflight() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
        (ACCESS_CONTROL_MAX_AGE, MAX_AGE),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Names the allowed origin in an answer. Answers differ by origin, also where the origin is not allowed.
pub(crate) fn mark(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANSWER_HEADERS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(allowed: &str, origin: &'static str) -> bool {
        let headers = HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        allowed_origin(&[allowed.to_owned()], &headers).is_some()
    }

    /// Browsers leave the usual port out of the header. An origin that was configured with this port never matched.
    #[test]
    fn the_usual_port_of_an_allowed_origin_makes_no_difference() {
        assert!(allows("https://app.example.com:443", "https://app.example.com"));
        assert!(allows("http://app.example.com:80", "http://app.example.com"));
        assert!(allows("http://[::1]:80", "http://[::1]"));
        assert!(allows("https://app.example.com:8443", "https://app.example.com:8443"));
        assert!(!allows("https://app.example.com:80", "https://app.example.com"));
        assert!(!allows("https://app.example.com", "https://app.example.com:8443"));
    }
}

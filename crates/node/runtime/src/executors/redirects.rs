//! Redirects of an `HTTP` task: the next address, and the headers for it.
//!
//! A redirect to another origin (scheme, host or port) gets none of the headers that the task brings: they
//! may be credentials, under any name, and were meant for the first server. This file follows redirects
//! instead of the client library, which knows only the usual names.

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, LOCATION};
use reqwest::{Method, Response, StatusCode, Url};

/// Headers that Tasklane adds itself.
pub(super) const OWN_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("tasklane-task-id"), HeaderName::from_static("tasklane-attempt")];

/// One request of a task: the first, or the request after a redirect.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
}

impl Hop {
    /// Makes this the request that the answer redirects to. False if the answer is no redirect.
    pub(super) fn follow(&mut self, response: &Response) -> Result<bool, String> {
        let status = response.status();
        let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect(status)) else {
            return Ok(false);
        };
        let unusable = |why: &str| format!("the server sent the request on to an address that {why}");
        let location = location.to_str().map_err(|_| unusable("is not text"))?;
        let mut url = self.url.join(location).map_err(|error| unusable(&format!("is none: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(unusable("does not begin with http:// or https://"));
        }
        if url.origin() != self.url.origin() {
            let keeps = |name: &HeaderName| *name == CONTENT_TYPE || OWN_HEADERS.contains(name);
            let gone: Vec<_> = self.headers.keys().filter(|name| !keeps(name)).cloned().collect();
            for name in gone {
                self.headers.remove(name);
            }
        } else if url.username().is_empty() && url.password().is_none() {
            // The user of the address is a credential, too: it stays with its server.
            let _ = url.set_username(self.url.username());
            let _ = url.set_password(self.url.password());
        }
        self.url = url;
        let becomes_get = match status {
            StatusCode::SEE_OTHER => self.method != Method::HEAD,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => self.method == Method::POST,
            _ => false,
        };
        if becomes_get {
            self.method = Method::GET;
            self.body = None;
            self.headers.remove(CONTENT_TYPE);
        }
        Ok(true)
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

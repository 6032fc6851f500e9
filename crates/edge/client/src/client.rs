//! The client itself: the server's URL, the token, and one request with its retries.

use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;

use crate::error::{Error, Problem};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take, waiting on request aside.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Names the namespace of a request.
const NAMESPACE: HeaderName = HeaderName::from_static("tasklane-namespace");

/// A client of one server. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// The settings of a client.
#[derive(Clone)]
pub struct ClientBuilder {
    url: String,
    token: Option<String>,
    namespace: Option<String>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("url", &self.url)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("namespace", &self.namespace)
            .finish()
    }
}

impl ClientBuilder {
    /// The token that the server asks for.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The namespace of all requests; by default the server's own.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The client. Nothing is sent yet.
    pub fn build(self) -> Result<Client, Error> {
        let wrong = |why: &dyn fmt::Display| Error::Url { url: self.url.clone(), why: why.to_string() };
        // `localhost:7070` is what people type.
        let text = if self.url.contains("://") { self.url.clone() } else { format!("http://{}", self.url) };
        let mut base = Url::parse(&text).map_err(|error| wrong(&error))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(wrong(&"it must begin with http:// or https://"));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| wrong(&"the token has characters that a header cannot carry"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(namespace) = &self.namespace {
            let value = HeaderValue::from_str(namespace)
                .map_err(|_| wrong(&"the namespace has characters that a header cannot carry"))?;
            headers.insert(NAMESPACE, value);
        }
        // Fails when the program has chosen a provider of its own, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("tasklane-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT);
        if base.scheme() == "http" {
            // Reading the certificates of the system takes longer than most calls. A proxy or a redirect to https
            // would need them; neither makes sense for a server that is addressed without it.
            http = http.tls_certs_only([]).no_proxy().redirect(reqwest::redirect::Policy::none());
        }
        let http = http.build().map_err(|error| wrong(&error))?;
        Ok(Client { http, base })
    }
}

impl Client {
    /// A client without a token, such as `Client::new("http://127.0.0.1:7070")`.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client to be described further.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder { url: url.to_owned(), token: None, namespace: None }
    }

    /// Where the server is.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// A request to a path below `/api/v1`; its segments are escaped.
    pub(crate) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        self.http.request(method, url).timeout(ANSWER_TIMEOUT)
    }

    pub(crate) fn get(&self, path: &[&str]) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    pub(crate) fn post(&self, path: &[&str]) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    /// Sends, and reads the answer or the refusal.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        let response = self.send(request).await?;
        let body = response.bytes().await.map_err(|error| self.transport(error))?;
        serde_json::from_slice(&body)
            .map_err(|error| Error::Answer { url: self.url().to_owned(), why: error.to_string() })
    }

    /// Sends, and gives the response if it is a good one.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response =
            request.header(ACCEPT, "application/json").send().await.map_err(|error| self.transport(error))?;
        self.accept(response).await
    }

    /// Turns a refusal into its error.
    pub(crate) async fn accept(&self, response: Response) -> Result<Response, Error> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.bytes().await.unwrap_or_default();
        let mut problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        problem.status = status.as_u16();
        problem.retry_after = retry_after.map(Duration::from_secs);
        if problem.title.is_empty() && problem.detail.is_none() {
            problem.title = status.canonical_reason().unwrap_or("refused").to_lowercase();
        }
        Err(Error::Problem(Box::new(problem)))
    }

    pub(crate) fn transport(&self, source: reqwest::Error) -> Error {
        Error::Transport { url: self.url().to_owned(), unreachable: source.is_connect(), source }
    }
}

/// Longer than the server waits, so that the server answers before the client gives up.
pub(crate) fn while_waiting(wait: Duration) -> Duration {
    ANSWER_TIMEOUT.saturating_add(wait)
}

/// A duration as a query writes it.
pub(crate) fn query_duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_and_kept_below_a_prefix() {
        let client = Client::new("http://example.test/lane").unwrap();
        let request = client.get(&["queues", "a/b c"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://example.test/lane/api/v1/queues/a%2Fb%20c");
    }

    #[test]
    fn an_address_without_a_scheme_is_plain_http() {
        assert_eq!(Client::new("localhost:7070").unwrap().url(), "http://localhost:7070");
        assert!(Client::new("ftp://x").unwrap_err().to_string().contains("http://"));
        assert!(Client::new("http://").is_err());
    }

    #[test]
    fn a_token_is_not_shown() {
        let builder = Client::builder("http://x").token("geheim");
        assert!(!format!("{builder:?} {:?}", builder.clone().build().unwrap()).contains("geheim"));
    }
}

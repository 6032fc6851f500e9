//! `HTTP`: one request; its status decides the result.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde_json::Value;
use tasklane_core::mask::masked;
use tasklane_core::message::{Dispatch, Finish, RetryAdvice};
use tasklane_core::task::{Payload, TaskError, TaskResult};
use tasklane_core::time::Timestamp;
use tasklane_ports::{Attempt, Execution, Executor, ExecutorError};

use super::HttpOptions;
use super::payload::{self, Fault, PayloadForm};
use super::redirects::{Hop, OWN_HEADERS};
pub(crate) use super::result::{failed, succeeded};
use crate::clock;
use crate::descriptors::Lack;
use crate::request::{check_readable, parse_exact, write_exact};
use crate::worker::not_started;

/// Makes requests.
#[derive(Clone, Debug)]
pub struct Http {
    options: Arc<HttpOptions>,
    client: LazyClient,
}

/// A client that is made at its first use: reading the machine's certificates takes memory that idle workers
/// can spare.
#[derive(Clone, Debug)]
pub(crate) struct LazyClient {
    connect_timeout: Duration,
    made: Arc<OnceLock<Client>>,
}

#[derive(Debug)]
pub(super) struct HttpPayload {
    first: Hop,
    /// Statuses that are a success; any of 200 to 299 if empty.
    expect_status: Vec<StatusCode>,
    capture_body: bool,
}

impl Http {
    /// With a client of its own.
    pub fn new(options: HttpOptions) -> Self {
        let client = LazyClient::new(options.connect_timeout);
        Self { options: Arc::new(options), client }
    }
}

impl LazyClient {
    pub(crate) fn new(connect_timeout: Duration) -> Self {
        Self { connect_timeout, made: Arc::default() }
    }

    pub(crate) fn get(&self) -> Result<Client, ExecutorError> {
        if let Some(client) = self.made.get() {
            return Ok(client.clone());
        }
        // Fails if a provider is installed already, which then serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("tasklane/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(self.connect_timeout)
                .redirect(Policy::none())
        };
        // A machine without certificates can still use plain http.
        let client = builder().build().or_else(|error| {
            tracing::warn!(%error, "https will not work on this machine");
            builder().tls_certs_only([]).build()
        });
        let client = client.map_err(|e| ExecutorError::Unavailable { source: e.into() })?;
        Ok(self.made.get_or_init(|| client).clone())
    }
}

pub(super) fn read(payload: &Payload) -> Result<HttpPayload, Fault> {
    let PayloadForm::Fields(mut fields) = payload::read(payload)? else {
        return Err(payload::bad("must be an object with a url"));
    };
    let url = fields.text("url")?;
    let method = fields.text("method")?.unwrap_or_else(|| "GET".to_owned()).to_ascii_uppercase();
    let given_headers = fields.pairs("headers")?;
    let (given_body, given_status) = (fields.any("body"), fields.any("expectStatus"));
    let capture_body = fields.boolean("captureBody")?.unwrap_or(true);
    // An error names a misspelt field rather than a missing one, which may be the same.
    fields.end("method, url, headers, body, expectStatus, captureBody")?;
    let Some(url) = url else { return payload::rule("url", "must be given") };
    let url = match Url::parse(&url) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
        Ok(_) => return payload::rule("url", "must begin with http:// or https://"),
        Err(e) => {
            return payload::rule(
                "url",
                &format!("must be an address such as https://example.com/path ({e})"),
            );
        }
    };
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return payload::rule("method", "is not a method of HTTP");
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given_headers {
        let field = format!("headers.{name}");
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            return payload::rule(&field, "is not a name of a header");
        };
        let Ok(value) = HeaderValue::from_str(&value) else {
            return payload::rule(&field, "contains characters that headers cannot");
        };
        headers.insert(name, value);
    }
    let body = match given_body {
        None => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(json_body(payload))
        }
    };
    let expect_status = match given_status {
        None => Vec::new(),
        Some(Value::Array(statuses)) => statuses.iter().map(status).collect::<Result<_, _>>()?,
        Some(one) => vec![status(&one)?],
    };
    Ok(HttpPayload { first: Hop { method, url, headers, body }, expect_status, capture_body })
}

/// The body of a payload that has one, with its numbers as they were written.
fn json_body(payload: &Payload) -> String {
    let whole = parse_exact(payload.as_str()).unwrap_or_default();
    write_exact(&whole["body"])
}

fn status(value: &Value) -> Result<StatusCode, Fault> {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    match number.map(StatusCode::from_u16) {
        Some(Ok(status)) => Ok(status),
        _ => payload::rule("expectStatus", "must be a status such as 200, or a list of them"),
    }
}

#[async_trait]
impl Executor for Http {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        Ok(read(payload::given(dispatch)?).map(drop)?)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let mut payload = read(payload::given(dispatch)?)?;
        // The same values as in the environment of commands, so that a server can distinguish attempts.
        let attempt = dispatch.attempt;
        for (name, value) in
            OWN_HEADERS.into_iter().zip([attempt.task.to_string(), attempt.number.to_string()])
        {
            let value = HeaderValue::from_str(&value).expect("digits, letters and dashes");
            payload.first.headers.insert(name, value);
        }
        Ok(Box::new(Request { client: self.client.get()?, options: Arc::clone(&self.options), payload }))
    }
}

#[derive(Debug)]
struct Request {
    client: Client,
    options: Arc<HttpOptions>,
    payload: HttpPayload,
}

#[async_trait]
impl Execution for Request {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        tokio::select! {
            biased;
            finish = self.send() => finish,
            // Dropping the request closes its connection.
            _ = attempt.stopped() => {
                let result = TaskResult { code: -1, message: "the request was given up".to_owned(), data: String::new() };
                failed(TaskError::new("stopped", "the request was given up"), RetryAdvice::Policy, result)
            }
        }
    }
}

impl Request {
    async fn send(&self) -> Finish {
        let mut response = match self.answer().await {
            Ok(response) => response,
            Err(finish) => return finish,
        };
        let status = response.status();
        let retry_after = retry_after(response.headers(), self.options.retry_after_max);
        let (data, cut) = match self.captured(&mut response).await {
            Ok(captured) => captured,
            Err(e) => return unanswered(&e),
        };
        let mut message = status.to_string();
        if cut {
            message.push_str("; the body was cut");
        }
        let result = TaskResult { code: i32::from(status.as_u16()), message, data };
        let expected = &self.payload.expect_status;
        if expected.contains(&status) || (expected.is_empty() && status.is_success()) {
            return succeeded(result);
        }
        let error = TaskError::new("http_status", format!("the server answered {status}"));
        failed(error, advice(status, retry_after), result)
    }

    /// The answer at the end of all redirects.
    async fn answer(&self) -> Result<Response, Finish> {
        let mut hop = self.payload.first.clone();
        let mut redirects_left = self.options.redirects_max;
        loop {
            let mut request =
                self.client.request(hop.method.clone(), hop.url.clone()).headers(hop.headers.clone());
            if let Some(body) = &hop.body {
                request = request.body(body.clone());
            }
            let response = request.send().await.map_err(|e| unanswered(&e))?;
            if self.options.redirects_max == 0 || !hop.follow(&response).map_err(unusable)? {
                return Ok(response);
            }
            let Some(left) = redirects_left.checked_sub(1) else {
                return Err(unusable(format!(
                    "there were more than {} redirects",
                    self.options.redirects_max
                )));
            };
            redirects_left = left;
        }
    }

    /// The answer as JSON: itself if it is JSON that every reader can parse, else a string. True if it was
    /// too long.
    async fn captured(&self, response: &mut Response) -> reqwest::Result<(String, bool)> {
        if !self.payload.capture_body {
            return Ok((String::new(), false));
        }
        let max = self.options.body_bytes_max;
        let mut body = Vec::new();
        while body.len() <= max
            && let Some(chunk) = response.chunk().await?
        {
            body.extend_from_slice(&chunk[..chunk.len().min(max + 1 - body.len())]);
        }
        let cut = body.len() > max;
        body.truncate(max);
        let json =
            response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(|kind| {
                let kind = kind.split(';').next().unwrap_or_default().trim();
                kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json")
            });
        if json
            && !cut
            && let Ok(text) = str::from_utf8(&body)
            && check_readable(text).is_ok()
            && let Ok(value) = parse_exact(text)
        {
            return Ok((write_exact(&value), false));
        }
        let text = String::from_utf8_lossy(&body);
        let data = if text.is_empty() { String::new() } else { Value::from(text).to_string() };
        Ok((data, cut))
    }
}

fn advice(status: StatusCode, retry_after: Option<Duration>) -> RetryAdvice {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            retry_after.map_or(RetryAdvice::Policy, RetryAdvice::After)
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => RetryAdvice::Policy,
        status if status.is_client_error() => RetryAdvice::Never,
        _ => RetryAdvice::Policy,
    }
}

/// The wait that the server asks for: in seconds, or as a date.
pub(crate) fn retry_after(headers: &HeaderMap, max: Duration) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = value.parse() {
        Duration::from_secs(seconds)
    } else {
        let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
        // A date in the past asks for no wait.
        Timestamp::from_micros(at.as_microsecond()).since(clock::wall())
    };
    Some(wait.min(max))
}

pub(crate) fn unanswered(e: &reqwest::Error) -> Finish {
    // Without a connection the server has received nothing. (A lack of ports has the same error text as a
    // lack of processes.)
    if let Some(lack @ (Lack::Descriptors | Lack::Memory)) = Lack::behind(e).filter(|_| e.is_connect()) {
        return not_started(lack, e);
    }
    let mut message = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    // The error names the address, and readers other than the task's owner see errors.
    let message = masked(&message).into_owned();
    let (code, retry) = if e.is_connect() {
        ("http_connect", RetryAdvice::Policy)
    } else if e.is_builder() {
        ("http_request", RetryAdvice::Never)
    } else {
        ("http_request", RetryAdvice::Policy)
    };
    let result = TaskResult { code: -1, message: message.clone(), data: String::new() };
    failed(TaskError::new(code, message), retry, result)
}

/// A redirect that cannot be followed, today or later.
fn unusable(message: String) -> Finish {
    let result = TaskResult { code: -1, message: message.clone(), data: String::new() };
    failed(TaskError::new("http_request", message), RetryAdvice::Never, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: &str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(value).unwrap())]);
        retry_after(&headers, Duration::from_hours(1))
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        assert_eq!(asked("7"), Some(Duration::from_secs(7)));
        assert_eq!(asked("999999"), Some(Duration::from_hours(1)));
        assert_eq!(asked("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("Wed, 21 Oct 2099 07:28:00 GMT"), Some(Duration::from_hours(1)));
        assert_eq!(asked("soon"), None);
        assert_eq!(retry_after(&HeaderMap::new(), Duration::MAX), None);
    }

    #[test]
    fn statuses_advise_on_retrying() {
        let wait = Some(Duration::from_secs(9));
        let advice = |status, wait| advice(StatusCode::from_u16(status).unwrap(), wait);
        for status in [429, 503] {
            assert_eq!(advice(status, wait), RetryAdvice::After(Duration::from_secs(9)));
            assert_eq!(advice(status, None), RetryAdvice::Policy);
        }
        for status in [408, 425, 500, 502, 504, 302, 204] {
            assert_eq!(advice(status, wait), RetryAdvice::Policy, "{status}");
        }
        for status in [400, 401, 403, 404, 409, 410, 422] {
            assert_eq!(advice(status, wait), RetryAdvice::Never, "{status}");
        }
    }
}

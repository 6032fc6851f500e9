//! The parts of a request that handlers take. Every refusal here is a [`Problem`].

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tasklane_core::id::{Name, TaskId};
use tasklane_runtime::request::{FieldError, check_key, read_json};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::params::Params;
use crate::problem::{self, Problem};
use crate::state::Api;

/// The header that names the namespace.
pub(crate) const NAMESPACE_HEADER: &str = "tasklane-namespace";

/// The namespace that the request is about.
#[derive(Debug)]
pub(crate) struct Namespace(pub(crate) Name);

impl FromRequestParts<Api> for Namespace {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(NAMESPACE_HEADER).iter();
        let value = values.next().map_or("default", |value| value.to_str().unwrap_or("\u{fffd}"));
        let refused =
            |rule: String| Problem::new(&problem::INVALID_NAMESPACE, rule).field("Tasklane-Namespace");
        if values.next().is_some() {
            return Err(refused("must be given once".into()));
        }
        Name::new(value).map(Self).map_err(|error| refused(error.to_string()))
    }
}

/// The header that names a request, as `requestId` in a body does.
const KEY_HEADER: &str = "idempotency-key";
const KEY_FIELD: &str = "Idempotency-Key";

/// The client's name for the request, if the header gives it.
#[derive(Debug)]
pub(crate) struct IdempotencyKey(Option<String>);

impl IdempotencyKey {
    /// The request id: of the body or of the header. Two different ones are refused.
    pub(crate) fn request_id(self, in_body: Option<String>) -> Result<Option<String>, Problem> {
        match (self.0, in_body) {
            (Some(key), Some(id)) if key != id => {
                let rule = format!("must be the same as the header {KEY_FIELD}, or left out");
                Err(Problem::new(&problem::CONFLICTING_FIELDS, rule).field("requestId"))
            }
            (key, id) => Ok(key.or(id)),
        }
    }
}

impl FromRequestParts<Api> for IdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(KEY_HEADER).iter();
        let Some(value) = values.next() else { return Ok(Self(None)) };
        let refused = |rule: &str| Err(FieldError::invalid(KEY_FIELD, rule).into());
        if values.next().is_some() {
            return refused("must be given once");
        }
        let Ok(text) = value.to_str() else { return refused("must be ASCII text") };
        // Some clients send it as a string of structured fields, in quotes.
        let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let key = quoted.unwrap_or(text);
        if key.contains(['"', '\\']) {
            return refused("must not contain quotes or backslashes");
        }
        check_key(KEY_FIELD, key)?;
        Ok(Self(Some(key.to_owned())))
    }
}

/// No `Idempotency-Key`: the request holds several, each with its own `requestId`.
#[derive(Debug)]
pub(crate) struct NoIdempotencyKey;

impl FromRequestParts<Api> for NoIdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        if parts.headers.contains_key(KEY_HEADER) {
            let rule = "names one task: give each task of a batch a requestId instead";
            return Err(FieldError::invalid(KEY_FIELD, rule).into());
        }
        Ok(Self)
    }
}

/// The task, or the operation, that the path names.
#[derive(Debug)]
pub(crate) struct IdInPath(pub(crate) TaskId);

impl FromRequestParts<Api> for IdInPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, api).await;
        let id = text.ok().and_then(|Path(text)| parse_id(&text));
        id.map(Self)
            .ok_or_else(|| Problem::new(&problem::INVALID_ID, "must be a UUID with hyphens").field("id"))
    }
}

/// An id, in the one form in which ids are given out.
pub(crate) fn parse_id(text: &str) -> Option<TaskId> {
    // 36 characters: UUIDs without hyphens, in braces or as URNs are other texts for the same id.
    (text.len() == 36).then(|| text.parse().ok()).flatten()
}

/// The queue or the worker that the path names.
#[derive(Debug)]
pub(crate) struct NameInPath(pub(crate) Name);

impl FromRequestParts<Api> for NameInPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let refused = |rule: String| Problem::new(&problem::INVALID_NAME, rule).field("name");
        let Path(text) = Path::<String>::from_request_parts(parts, api)
            .await
            .map_err(|_| refused("must be valid UTF-8".into()))?;
        Name::new(&text).map(Self).map_err(|error| refused(error.to_string()))
    }
}

impl FromRequestParts<Api> for Params {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let Query(pairs) = query.map_err(|_| Problem::parameter("", "the query cannot be read"))?;
        Ok(Self::new(pairs))
    }
}

/// There is no query.
#[derive(Debug)]
pub(crate) struct NoParams;

impl FromRequestParts<Api> for NoParams {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Params::from_request_parts(parts, api).await?.finish().map(|()| Self)
    }
}

/// Tells long requests that the server is about to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing(pub(crate) CancellationToken);

impl FromRequestParts<Api> for Closing {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        // Without it another program's server drives the router, and ends connections in its own way.
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// A JSON body, as it came.
#[derive(Debug)]
pub(crate) struct JsonBody(pub(crate) Bytes);

impl JsonBody {
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(self, api: &Api) -> Result<T, Problem> {
        self.read_by(api, read_json).await
    }

    pub(crate) async fn read_by<T: Send + 'static>(
        self,
        api: &Api,
        read: impl FnOnce(&[u8]) -> Result<T, FieldError> + Send + 'static,
    ) -> Result<T, Problem> {
        Ok(api.read_body(self.0.len(), move || read(&self.0)).await?)
    }
}

impl FromRequest<Api> for JsonBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        require_json(&request)?;
        read_body(request, api, api.options.body_bytes_max).await.map(Self)
    }
}

/// A JSON body, or none.
#[derive(Debug)]
pub(crate) struct OptionalJsonBody(pub(crate) Option<JsonBody>);

impl FromRequest<Api> for OptionalJsonBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let typed = require_json(&request);
        let body = read_body(request, api, api.options.body_bytes_max).await?;
        if body.is_empty() {
            return Ok(Self(None));
        }
        typed.map(|()| Self(Some(JsonBody(body))))
    }
}

impl OptionalJsonBody {
    pub(crate) async fn read<T: DeserializeOwned + Default + Send + 'static>(
        self,
        api: &Api,
    ) -> Result<T, Problem> {
        match self.0 {
            Some(body) => body.read(api).await,
            None => Ok(T::default()),
        }
    }
}

/// No body: the server would not read one, and its sender would not notice.
#[derive(Debug)]
pub(crate) struct NoBody;

impl FromRequest<Api> for NoBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        match OptionalJsonBody::from_request(request, api).await? {
            OptionalJsonBody(None) => Ok(Self),
            OptionalJsonBody(Some(body)) => body.read::<Empty>(api).await.map(|_| Self),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// The JSON body of a batch, with the room that it takes.
#[derive(Debug)]
pub(crate) struct BatchBody(pub(crate) JsonBody, pub(crate) OwnedSemaphorePermit);

impl FromRequest<Api> for BatchBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        require_json(&request)?;
        let max = api.options.batch_bytes_max;
        let said =
            request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let permit = api.batch_permit(said.map_or(max, |said: usize| said.min(max))).await?;
        let body = read_body(request, api, max).await?;
        Ok(Self(JsonBody(body), permit))
    }
}

/// A page of another site can send a body only as a form or as plain text.
fn require_json(request: &Request) -> Result<(), Problem> {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let detail = match value {
        "" => "content-type must be application/json".to_owned(),
        other => format!("content-type must be application/json, not {other:?}"),
    };
    Err(Problem::new(&problem::UNSUPPORTED_MEDIA_TYPE, detail).field("content-type"))
}

/// Grows with the received bytes, up to the declared length: a client that declares much and sends little
/// takes no memory.
fn make_room(body: &mut Vec<u8>, more: usize, declared: usize) {
    let needed = body.len() + more;
    if needed > body.capacity() {
        let doubled = (2 * body.capacity()).min(declared);
        body.reserve_exact(doubled.max(needed) - body.len());
    }
}

async fn read_body(request: Request, api: &Api, max: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(&problem::BODY_TOO_LARGE, format!("must be at most {max} bytes"));
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|len| len > max as u64) {
        return Err(too_large());
    }
    let declared = declared.and_then(|len| usize::try_from(len).ok()).unwrap_or(max);
    let (within, idle_max) = (api.options.body_timeout, api.options.body_idle_timeout);
    let slow = |what: &str, within: Duration| {
        Problem::new(&problem::BODY_TIMEOUT, format!("{what} within {} seconds", within.as_secs()))
    };
    let read = async {
        let mut body = Vec::new();
        let mut chunks = request.into_body().into_data_stream();
        loop {
            let next = tokio::time::timeout(idle_max, chunks.next()).await;
            let next = next.map_err(|_| slow("nothing more of the body arrived", idle_max))?;
            let Some(chunk) = next else { break };
            let chunk = chunk.map_err(|error| {
                Problem::new(&problem::INVALID_JSON, format!("the body could not be read: {error}"))
            })?;
            if body.len() + chunk.len() > max {
                return Err(too_large());
            }
            make_room(&mut body, chunk.len(), declared);
            body.extend_from_slice(&chunk);
        }
        Ok(Bytes::from(body))
    };
    let read = tokio::time::timeout(within, read).await;
    read.map_err(|_| slow("the body did not arrive", within))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_takes_memory_as_it_arrives() {
        let declared = 4 << 20;
        let mut body = Vec::new();
        make_room(&mut body, 1, declared);
        assert!(body.capacity() <= 64, "{}", body.capacity());
        let piece = [7; 1000];
        while body.len() + piece.len() <= declared {
            make_room(&mut body, piece.len(), declared);
            body.extend_from_slice(&piece);
            assert!(body.capacity() <= (2 * body.len()).min(declared).max(64));
        }
    }
}

//! Forwards questions that only the owner of a lane can answer to that server.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::response::Response;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tasklane_core::id::{LaneId, Name, QueueKey, TaskId};
use tasklane_core::policy::QueueBinding;
use tokio::net::TcpStream;

use crate::extract::NAMESPACE_HEADER;
use crate::state::Api;

/// Marks a forwarded question: its receiver answers as well as it can.
const FORWARDED: HeaderName = HeaderName::from_static("tasklane-forwarded");
/// How long another server may take. Then this server answers as far as it can.
const WITHIN: Duration = Duration::from_secs(5);

/// Handles the question here if this server owns the lane of the task or queue, or if the owner is
/// unreachable. Otherwise the owner's answer is returned, and the handler does not run.
pub(crate) struct AtOwner;

impl FromRequestParts<Api> for AtOwner {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Response> {
        if !parts.headers.contains_key(&FORWARDED)
            && let Some(lane) = lane_of(api, parts).await
            && let Some(address) = api.node.owner_elsewhere(lane)
        {
            match tokio::time::timeout(WITHIN, ask(&address, parts)).await {
                // This server has answered the caller: another server that refuses this one has another user or token.
                Ok(Ok(response)) if response.status() == StatusCode::UNAUTHORIZED => {
                    tracing::debug!(%address, "the owner of a lane does not answer this server");
                }
                Ok(Ok(response)) => return Err(response),
                Ok(Err(error)) => tracing::debug!(%address, %error, "the owner of a lane cannot be asked"),
                Err(_) => tracing::debug!(%address, "the owner of a lane did not answer"),
            }
        }
        Ok(Self)
    }
}

/// `/api/v1/tasks/{id}/…` and `/api/v1/queues/{name}/…`.
async fn lane_of(api: &Api, request: &Parts) -> Option<LaneId> {
    let mut path = request.uri.path().split('/').skip(3);
    let (kind, name) = (path.next()?, path.next()?);
    match kind {
        "tasks" => name.parse::<TaskId>().ok().map(TaskId::lane),
        "queues" => {
            let namespace = match request.headers.get(NAMESPACE_HEADER) {
                Some(namespace) => Name::new(namespace.to_str().ok()?).ok()?,
                None => Name::new("default").ok()?,
            };
            let queue = QueueKey::new(namespace, Name::new(name).ok()?);
            match api.node.binding(&queue).await.ok()? {
                QueueBinding::Lane(lane) => Some(lane),
                QueueBinding::Spread { .. } => None,
            }
        }
        _ => None,
    }
}

async fn ask(address: &str, request: &Parts) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut passed_on = Request::new(Body::empty());
    *passed_on.uri_mut() = request.uri.clone();
    for name in [AUTHORIZATION, HeaderName::from_static(NAMESPACE_HEADER)] {
        if let Some(value) = request.headers.get(&name) {
            passed_on.headers_mut().insert(name, value.clone());
        }
    }
    passed_on.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
    // Without a token a server asks for an IP address or `localhost` as host; a server is no page of a
    // browser.
    passed_on.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    Ok(sender.send_request(passed_on).await?.map(Body::new))
}

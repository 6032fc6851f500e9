//! Server-sent events: streams that end when their source does or when the server is about to stop.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::extract::Closing;
use crate::problem::Problem;

/// Something is sent at least this often, so that a dead connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Gives events one after the other.
pub(crate) trait EventSource: Send + 'static {
    /// The next one; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
}

/// The answer that carries a stream. The permit is held as long as the stream lives.
pub(crate) fn answer(source: impl EventSource, closing: Closing, permit: OwnedSemaphorePermit) -> Response {
    let stream = futures::stream::unfold((source, closing, permit), async |mut state| {
        let (source, closing, _) = &mut state;
        let event = tokio::select! {
            event = source.next() => event?,
            () = closing.0.cancelled() => return None,
        };
        Some((Ok::<_, Infallible>(event), state))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let mut response = Sse::new(stream).keep_alive(keep_alive).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some proxies hold answers back until they are complete.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An event of a kind, with JSON data.
pub(crate) fn event(kind: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(kind).data(data)
}

/// The last event of a stream that failed.
pub(crate) fn error(problem: &Problem) -> Event {
    event("error", problem)
}

/// Where a client that comes back stood.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id")?.to_str().ok().filter(|id| !id.is_empty())
}

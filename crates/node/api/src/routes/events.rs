//! The stream of events.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use serde::Serialize;
use tasklane_core::id::Name;
use tasklane_core::message::TaskEvent;
use tasklane_runtime::node::{EventId, EventStream, StreamItem};

use crate::extract::{Closing, Namespace};
use crate::model::{StatusName, Time};
use crate::params::Params;
use crate::problem::Problem;
use crate::sse::{self, EventSource};
use crate::state::Api;

/// Follow the changes of tasks
///
/// A stream of server-sent events: `task` for each change of a task of the namespace, and `gap` where events are
/// missing: then read the relevant tasks again. A client that reconnects sends its last id as `Last-Event-ID` or
/// `after`.
#[utoipa::path(
    get, path = "/api/v1/events", operation_id = "followEvents", tag = "system",
    params(("after" = Option<String>, Query, description = "Only events after this one, by its id.")),
    responses((status = 200, description = "Events, live.", body = String, content_type = "text/event-stream"))
)]
pub(crate) async fn events(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    closing: Closing,
    headers: HeaderMap,
    mut params: Params,
) -> Result<Response, Problem> {
    let after = params.take("after")?;
    params.finish()?;
    let (name, after) = match &after {
        Some(text) => ("after", Some(text.as_str())),
        None => ("Last-Event-ID", sse::last_event_id(&headers)),
    };
    let after = after.map(str::parse::<EventId>).transpose();
    let after = after.map_err(|_| Problem::parameter(name, "must be the id of an event of this API"))?;
    let permit = api.stream_permit()?;
    Ok(sse::answer(Events { stream: api.node.events(after), namespace }, closing, permit))
}

struct Events {
    stream: EventStream,
    namespace: Name,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventJson<'a> {
    task_id: String,
    queue: &'a str,
    status: StatusName,
    attempt: u32,
    at: Time,
}

impl<'a> From<&'a TaskEvent> for EventJson<'a> {
    fn from(event: &'a TaskEvent) -> Self {
        Self {
            task_id: event.task.to_string(),
            queue: event.queue.queue.as_str(),
            status: StatusName(event.status),
            attempt: event.attempt.0,
            at: Time(event.at),
        }
    }
}

#[derive(Debug, Serialize)]
struct Gap {
    message: &'static str,
}

impl EventSource for Events {
    async fn next(&mut self) -> Option<Event> {
        loop {
            match self.stream.next().await? {
                StreamItem::Event(id, event) if event.queue.namespace == self.namespace => {
                    return Some(sse::event("task", &EventJson::from(&event)).id(id.to_string()));
                }
                StreamItem::Event(..) => {}
                StreamItem::Gap(id) => {
                    let gap = Gap { message: "some events are missing here" };
                    return Some(sse::event("gap", &gap).id(id.to_string()));
                }
            }
        }
    }
}

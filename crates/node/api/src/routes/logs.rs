//! Output of tasks, at once or as it is printed.

use std::collections::VecDeque;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tasklane_core::id::{AttemptNo, Name, TaskId};
use tasklane_core::status::Status;
use tasklane_ports::LogPosition;
use tasklane_runtime::node::{Node, TaskFollower};
use utoipa::ToSchema;

use crate::extract::{Closing, IdInPath, Namespace};
use crate::model::{LogEntry, LogPage, StatusName};
use crate::params::Params;
use crate::problem::Problem;
use crate::sse::{self, EventSource};
use crate::state::Api;

/// Pieces read at once for a stream.
const FOLLOW_BATCH: usize = 200;

/// Read the output of a task
///
/// With `follow=true` the answer is a stream of server-sent events: `log` for each piece of output, then `end` with the
/// final status. A client that reconnects sends its last id as `Last-Event-ID` or `after`.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/logs", operation_id = "getLogs", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task.", format = "uuid"),
        ("after" = Option<String>, Query, description = "Only output after this position.", pattern = "^[0-9]{1,9}-[0-9]{1,9}$", example = "1-0"),
        ("limit" = Option<u32>, Query, description = "The maximum of pieces; defaults to 500. Not with `follow`.", minimum = 1, maximum = 1000),
        ("follow" = Option<bool>, Query, description = "Stream the output until the task has finished."),
    ),
    responses((status = 200, description = "Output, in order.", content(
        (LogPage = "application/json"),
        (String = "text/event-stream"),
    )))
)]
pub(crate) async fn logs(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    IdInPath(id): IdInPath,
    closing: Closing,
    headers: HeaderMap,
    mut params: Params,
) -> Result<Response, Problem> {
    let follow = params.flag("follow")?;
    let limit = params.limit(500)?;
    let after = params.take("after")?;
    params.finish()?;
    let after = match (after, sse::last_event_id(&headers)) {
        (Some(text), _) => Some(parse_position("after", &text)?),
        (None, Some(text)) if follow => Some(parse_position("Last-Event-ID", text)?),
        (None, _) => None,
    };
    // Followed before it is read, so that nothing falls between the two.
    let changes = follow.then(|| api.node.follow(id));
    api.node.task(&namespace, id).await?.ok_or_else(Problem::task_not_found)?;
    let Some(changes) = changes else {
        let chunks = api.node.logs(id, after, limit).await?;
        return Ok(Json(LogPage::new(&chunks)).into_response());
    };
    let permit = api.stream_permit()?;
    let source = TaskOutputEvents {
        node: api.node.clone(),
        namespace,
        id,
        after,
        changes,
        ready: VecDeque::new(),
        ended: false,
    };
    Ok(sse::answer(source, closing, permit))
}

/// A position is an attempt and a number within it.
fn parse_position(name: &str, text: &str) -> Result<LogPosition, Problem> {
    let wrong = || Problem::parameter(name, "must be the position of a piece of output, as 1-0");
    let (attempt, number) = text.split_once('-').ok_or_else(wrong)?;
    let read = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let position = read(attempt).zip(read(number)).ok_or_else(wrong)?;
    Ok(LogPosition { attempt: AttemptNo(position.0), number: position.1 })
}

/// The output of one task until its end.
struct TaskOutputEvents {
    node: Node,
    namespace: Name,
    id: TaskId,
    after: Option<LogPosition>,
    changes: TaskFollower,
    ready: VecDeque<Event>,
    ended: bool,
}

/// The last event of a stream of output.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct LogEnd {
    task_id: String,
    status: StatusName,
}

impl EventSource for TaskOutputEvents {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if let Err(problem) = self.read_on().await {
                self.ended = true;
                return Some(sse::error(&problem));
            }
        }
    }
}

impl TaskOutputEvents {
    async fn read_on(&mut self) -> Result<(), Problem> {
        // The state is read before the output: once the task was final, all of its output is there.
        let view = self.node.task(&self.namespace, self.id).await?;
        let status = view.ok_or_else(Problem::task_not_found)?.row.state.status;
        let chunks = self.node.logs(self.id, self.after, FOLLOW_BATCH).await?;
        if let Some(last) = chunks.last() {
            self.after = Some(last.position);
            let events = chunks.iter().map(LogEntry::from).map(|entry| {
                let id = entry.position.clone();
                sse::event("log", &entry).id(id)
            });
            self.ready.extend(events);
        } else if status.is_final() {
            self.end(status);
        } else {
            self.changes.changed().await;
        }
        Ok(())
    }

    fn end(&mut self, status: Status) {
        let end = LogEnd { task_id: self.id.to_string(), status: StatusName(status) };
        self.ready.push_back(sse::event("end", &end));
        self.ended = true;
    }
}

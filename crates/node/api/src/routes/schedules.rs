//! Schedules: rules that create tasks.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use tasklane_core::id::{Name, TaskId};
use tasklane_runtime::clock;
use tasklane_runtime::node::NamedSchedule;
use tasklane_runtime::request::{
    FieldError, PreviewRequest, ScheduleRequest, TIMES_COUNT, TIMES_MAX, check_not_system, times_of,
};
use tasklane_schedule::Fate;

use crate::extract::{IdempotencyKey, JsonBody, NameInPath, Namespace, NoBody, NoParams};
use crate::model::{
    Backfill, BackfillRequest, FireHistory, NextTimes, Schedule, SchedulePage, Triggered, last_task,
};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::routes::created::{CreatedResponse, named_path, task_path};
use crate::state::Api;

/// List schedules
///
/// By name, each with its last run and its status.
#[utoipa::path(
    get, path = "/api/v1/schedules", operation_id = "listSchedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of schedules.", body = SchedulePage))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<SchedulePage>, Problem> {
    let limit = params.limit(100)?;
    let after = params.name("cursor")?;
    params.finish()?;
    let found = api.node.schedules(&namespace, after, limit).await?;
    let cursor = found.last().filter(|_| found.len() >= limit).map(|last| last.id.to_string());
    Ok(Json(SchedulePage { schedules: shown(&api, found).await?, cursor }))
}

/// Read a schedule
#[utoipa::path(
    get, path = "/api/v1/schedules/{id}", operation_id = "getSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The schedule.", body = Schedule))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
) -> Result<Json<Schedule>, Problem> {
    let schedule = found(&api, &namespace, &id).await?;
    shown_one(&api, schedule).await
}

/// Put a schedule
///
/// An equal schedule changes nothing. A changed schedule counts its times from now on; its past fires stay unchanged.
#[utoipa::path(
    put, path = "/api/v1/schedules/{id}", operation_id = "putSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule; the caller chooses its name.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 200, description = "The schedule, which existed.", body = Schedule),
        (status = 201, description = "The new schedule.", body = Schedule),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<CreatedResponse<Schedule>, Problem> {
    check_not_system("id", &id)?;
    let request = body.read_by(&api, ScheduleRequest::from_json).await?;
    let (schedule, is_new) = api.node.put_schedule(&namespace, &id, &request).await?;
    let shown = shown_one(&api, schedule).await?.0;
    Ok(CreatedResponse::new(is_new, named_path("schedules", &id), shown))
}

/// Remove a schedule
///
/// Its tasks stay unchanged. Removing a missing schedule is no error.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{id}", operation_id = "deleteSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 204, description = "The schedule is removed."))
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    api.node.delete_schedule(&namespace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a schedule fire
///
/// From now on: times that passed while it was disabled are not made up for. The count of failures restarts.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/enable", operation_id = "enableSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The schedule.", body = Schedule))
)]
pub(crate) async fn enable(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<Json<Schedule>, Problem> {
    let schedule = api.node.enable_schedule(&namespace, &id, true).await?;
    shown_one(&api, schedule).await
}

/// Stop a schedule from firing
///
/// Its tasks go on.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/disable", operation_id = "disableSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The schedule.", body = Schedule))
)]
pub(crate) async fn disable(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<Json<Schedule>, Problem> {
    let schedule = api.node.enable_schedule(&namespace, &id, false).await?;
    shown_one(&api, schedule).await
}

/// Fire a schedule now
///
/// Also a disabled schedule, and regardless of its `overlap`.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/trigger", operation_id = "triggerSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 201, description = "The task.", body = Triggered),
        (status = 200, description = "The same request was accepted before.", body = Triggered),
    )
)]
pub(crate) async fn trigger(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    key: IdempotencyKey,
    _: NoBody,
) -> Result<CreatedResponse<Triggered>, Problem> {
    let request_id = key.request_id(None)?;
    let taken = api.node.trigger_schedule(&namespace, &id, request_id.as_deref()).await?;
    let triggered = Triggered { task_id: taken.id.to_string(), duplicate: taken.duplicate };
    Ok(CreatedResponse::new(!taken.duplicate, task_path(taken.id), triggered))
}

/// Fire times again
///
/// All past or future times from `from` to `until`, regardless of earlier fires; at most 10,000. Their tasks run beside
/// all others. With `dryRun` the answer names these times.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/backfill", operation_id = "backfillSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 200, description = "With `dryRun`: the plan.", body = Backfill),
        (status = 202, description = "The backfill has begun.", body = Backfill),
    )
)]
pub(crate) async fn backfill(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<(StatusCode, Json<Backfill>), Problem> {
    let request: BackfillRequest = body.read(&api).await?;
    let (from, until) = (request.from.0, request.until.0);
    if from > until {
        return Err(FieldError::invalid("until", "must not be earlier than from").into());
    }
    let dry_run = request.dry_run.unwrap_or(false);
    let plan = api.node.backfill_schedule(&namespace, &id, (from, until), dry_run).await?;
    let status = if dry_run { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(plan.into())))
}

/// Preview the times of a schedule
#[utoipa::path(
    get, path = "/api/v1/schedules/{id}/next", operation_id = "nextTimes", tag = "schedules",
    params(
        ("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("count" = Option<u32>, Query, description = "The number of times; defaults to 10.", minimum = 1, maximum = 1000),
        ("after" = Option<String>, Query, description = "After this time; defaults to now.", format = "date-time"),
    ),
    responses((status = 200, description = "The next times, as if it were enabled.", body = NextTimes))
)]
pub(crate) async fn next(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    mut params: Params,
) -> Result<Json<NextTimes>, Problem> {
    let rule = format!("must be a whole number between 1 and {TIMES_MAX}");
    let count = params.parse("count", &rule)?.unwrap_or(TIMES_COUNT);
    let after = params.time("after")?.unwrap_or_else(clock::wall);
    params.finish()?;
    if !(1..=TIMES_MAX).contains(&count) {
        return Err(Problem::parameter("count", rule));
    }
    let rule = found(&api, &namespace, &id).await?.schedule.rule;
    let times = times_of(&rule)?;
    Ok(Json(NextTimes::of(&rule, &times, after, count as usize)))
}

/// Preview times without a schedule
///
/// The times of a cron expression, an interval or a single time, as of a schedule with these fields. The request stores
/// nothing.
#[utoipa::path(
    post, path = "/api/v1/schedule-preview", operation_id = "previewTimes", tag = "schedules",
    responses((status = 200, description = "The times after `after`.", body = NextTimes))
)]
pub(crate) async fn preview(
    State(api): State<Api>,
    _: NoParams,
    body: JsonBody,
) -> Result<Json<NextTimes>, Problem> {
    let request = body.read_by(&api, PreviewRequest::from_json).await?;
    Ok(Json(request.preview(clock::wall())?.into()))
}

/// Read the history of a schedule
///
/// Fired, skipped or missed, with the reason and the status of its task. The last 100 times, the latest first.
#[utoipa::path(
    get, path = "/api/v1/schedules/{id}/history", operation_id = "scheduleHistory", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The outcomes of its times.", body = FireHistory))
)]
pub(crate) async fn history(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
) -> Result<Json<FireHistory>, Problem> {
    let schedule = found(&api, &namespace, &id).await?.schedule;
    let history = schedule.state.history;
    let tasks = history.iter().filter_map(|past| match past.what {
        Fate::Fired { task } => Some(task),
        Fate::Skipped { .. } | Fate::Missed { .. } => None,
    });
    let ends = api.node.fire_ends(&tasks.collect::<Vec<_>>()).await?;
    Ok(Json(FireHistory::of(id.as_str(), &history, &ends)))
}

/// Schedules with how their last runs stand.
async fn shown(api: &Api, schedules: Vec<NamedSchedule>) -> Result<Vec<Schedule>, Problem> {
    let last = schedules.iter().filter_map(|named| last_task(&named.schedule.state));
    let last: Vec<TaskId> = last.map(|(_, task)| task).collect();
    let ends = api.node.fire_ends(&last).await?;
    Ok(schedules.into_iter().map(|named| Schedule::of(named, &ends)).collect())
}

async fn shown_one(api: &Api, schedule: NamedSchedule) -> Result<Json<Schedule>, Problem> {
    let ends = match last_task(&schedule.schedule.state) {
        Some((_, task)) => api.node.fire_ends(&[task]).await?,
        None => BTreeMap::new(),
    };
    Ok(Json(Schedule::of(schedule, &ends)))
}

async fn found(api: &Api, namespace: &Name, id: &Name) -> Result<NamedSchedule, Problem> {
    let found = api.node.schedule(namespace, id).await?;
    found.ok_or_else(|| {
        Problem::new(&problem::SCHEDULE_NOT_FOUND, "no schedule of this namespace has this name")
    })
}

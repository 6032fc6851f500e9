//! Schedules: rules that create tasks.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use tasklane_core::id::Name;
use tasklane_runtime::clock;
use tasklane_runtime::node::NamedSchedule;
use tasklane_runtime::request::{FieldError, ScheduleRequest, check_internal, times_of};

use crate::extract::{JsonBody, NameInPath, Namespace, NoBody, NoParams};
use crate::model::{
    Backfill, BackfillRequest, FireHistory, FireOut, NextTimes, Schedule, SchedulePage, Triggered,
};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::state::Api;

/// How many times to come are told at most.
const NEXT_MAX: u32 = 1000;

/// List schedules
///
/// By name.
#[utoipa::path(
    get, path = "/api/v1/schedules", operation_id = "listSchedules", tag = "schedules",
    params(
        ("limit" = Option<u32>, Query, description = "How many, at most. 100 if not given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "Where the page before ended, as it said.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
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
    Ok(Json(SchedulePage { schedules: found.into_iter().map(Schedule::from).collect(), cursor }))
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
    Ok(Json(found(&api, &namespace, &id).await?.into()))
}

/// Put a schedule
///
/// The same again changes nothing. A changed one counts its times from now on; what it has fired stays as it is.
#[utoipa::path(
    put, path = "/api/v1/schedules/{id}", operation_id = "putSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule; the caller chooses its name.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 200, description = "The schedule, which was there.", body = Schedule),
        (status = 201, description = "The new schedule.", body = Schedule),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<(StatusCode, Json<Schedule>), Problem> {
    check_internal("id", &id)?;
    let request = ScheduleRequest::from_json(&body.0)?;
    let (schedule, is_new) = api.node.put_schedule(&namespace, &id, &request).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(schedule.into())))
}

/// Remove a schedule
///
/// Its tasks stay as they are. Removing one that is not there is no error.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{id}", operation_id = "deleteSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 204, description = "There is no such schedule any more."))
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
/// From now on: times that passed while it was disabled are not made up for. Failures are counted anew.
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
    Ok(Json(api.node.enable_schedule(&namespace, &id, true).await?.into()))
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
    Ok(Json(api.node.enable_schedule(&namespace, &id, false).await?.into()))
}

/// Fire a schedule now
///
/// Also one that is disabled, and whatever its `overlap` says.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/trigger", operation_id = "triggerSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 201, description = "The task.", body = Triggered))
)]
pub(crate) async fn trigger(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<(StatusCode, Json<Triggered>), Problem> {
    let task = api.node.trigger_schedule(&namespace, &id).await?;
    Ok((StatusCode::CREATED, Json(Triggered { task_id: task.to_string() })))
}

/// Fire times again
///
/// All times from `from` to `until`, past or to come, whatever was fired for them before; at most 10,000. Their tasks run
/// beside all others. With `dryRun` the answer says which times these are.
#[utoipa::path(
    post, path = "/api/v1/schedules/{id}/backfill", operation_id = "backfillSchedule", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses(
        (status = 200, description = "With `dryRun`: what it would do.", body = Backfill),
        (status = 202, description = "It has begun.", body = Backfill),
    )
)]
pub(crate) async fn backfill(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<(StatusCode, Json<Backfill>), Problem> {
    let request: BackfillRequest = body.read()?;
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
        ("count" = Option<u32>, Query, description = "How many. 10 if not given.", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "The times to come, as if it were enabled.", body = NextTimes))
)]
pub(crate) async fn next(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    mut params: Params,
) -> Result<Json<NextTimes>, Problem> {
    let rule = format!("must be a whole number between 1 and {NEXT_MAX}");
    let count = params.parse("count", &rule)?.unwrap_or(10);
    params.finish()?;
    if !(1..=NEXT_MAX).contains(&count) {
        return Err(Problem::parameter("count", rule));
    }
    let rule = found(&api, &namespace, &id).await?.schedule.rule;
    let times = times_of(&rule)?;
    Ok(Json(NextTimes::of(&rule, &times, clock::wall(), count as usize)))
}

/// Read what became of the last times of a schedule
///
/// Fired, skipped or missed, and why; the last 100, the newest first.
#[utoipa::path(
    get, path = "/api/v1/schedules/{id}/history", operation_id = "scheduleHistory", tag = "schedules",
    params(("id" = String, Path, description = "The schedule.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "What became of its times.", body = FireHistory))
)]
pub(crate) async fn history(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(id): NameInPath,
    _: NoParams,
) -> Result<Json<FireHistory>, Problem> {
    let schedule = found(&api, &namespace, &id).await?.schedule;
    let fires = schedule.state.history.iter().rev().map(|past| FireOut::of(id.as_str(), past));
    Ok(Json(FireHistory { fires: fires.collect() }))
}

async fn found(api: &Api, namespace: &Name, id: &Name) -> Result<NamedSchedule, Problem> {
    let found = api.node.schedule(namespace, id).await?;
    found.ok_or_else(|| {
        Problem::new(&problem::SCHEDULE_NOT_FOUND, "no schedule of this namespace has this name")
    })
}

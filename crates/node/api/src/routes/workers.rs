//! Workers.

use axum::Json;
use axum::extract::State;
use tasklane_runtime::node::{WorkerError, WorkerInfo};

use crate::extract::{JsonBody, NameInPath, NoBody, NoParams};
use crate::model::{PatchWorker, Worker, WorkerList};
use crate::problem::{self, Problem};
use crate::state::Api;

/// List the live workers
#[utoipa::path(
    get, path = "/api/v1/workers", operation_id = "listWorkers", tag = "workers",
    responses((status = 200, description = "The live workers, by name.", body = WorkerList))
)]
pub(crate) async fn list(State(api): State<Api>, _: NoParams) -> Json<WorkerList> {
    let mut workers = api.node.workers();
    workers.sort_by(|a, b| (&a.descriptor.name, a.session).cmp(&(&b.descriptor.name, b.session)));
    Json(WorkerList { workers: workers.iter().map(Worker::from).collect() })
}

/// Read a worker
#[utoipa::path(
    get, path = "/api/v1/workers/{name}", operation_id = "getWorker", tag = "workers",
    params(("name" = String, Path, description = "Name or session of a live worker.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The worker.", body = Worker))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    NameInPath(name): NameInPath,
    _: NoParams,
) -> Result<Json<Worker>, Problem> {
    let wanted =
        |info: &&WorkerInfo| info.descriptor.name == name || info.session.to_string() == name.as_str();
    let workers = api.node.workers();
    let found = workers.iter().find(wanted).ok_or(WorkerError::NotFound)?;
    Ok(Json(Worker::from(found)))
}

/// Change capacity, weight or labels of a worker
///
/// Until its next start. It keeps its attempts: a lower capacity or other labels stop none.
#[utoipa::path(
    patch, path = "/api/v1/workers/{name}", operation_id = "patchWorker", tag = "workers",
    params(("name" = String, Path, description = "Name or session of a live worker.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The changed worker.", body = Worker))
)]
pub(crate) async fn patch(
    State(api): State<Api>,
    NameInPath(name): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<Json<Worker>, Problem> {
    let request: PatchWorker = body.read(&api).await?;
    let info = api.node.change_worker(name.as_str(), request.try_into()?).await?;
    Ok(Json(Worker::from(&info)))
}

/// Drain a worker
///
/// The worker takes no new work, finishes or hands back its attempts, and leaves.
#[utoipa::path(
    post, path = "/api/v1/workers/{name}/drain", operation_id = "drainWorker", tag = "workers",
    params(("name" = String, Path, description = "Name or session of a live worker.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The worker.", body = Worker))
)]
pub(crate) async fn drain(
    State(api): State<Api>,
    NameInPath(name): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<Json<Worker>, Problem> {
    let info = api.node.drain(name.as_str()).await?;
    Ok(Json(Worker::from(&info)))
}

impl From<WorkerError> for Problem {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::NotFound => {
                Self::new(&problem::WORKER_NOT_FOUND, "no live worker has this name or session")
            }
            WorkerError::NoAnswer => {
                Self::new(&problem::WORKER_UNAVAILABLE, "the worker did not answer in time").later()
            }
        }
    }
}

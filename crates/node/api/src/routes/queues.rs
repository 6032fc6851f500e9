//! Queues and their policies.

use std::fmt::Write;

use axum::Json;
use axum::extract::State;
use tasklane_core::id::{LimitId, Name, QueueKey};
use tasklane_core::lane::KeyPosition;
use tasklane_ports::{PutPolicy, StoreError};
use tasklane_runtime::node::{PolicyError, QueueInfo};
use tasklane_runtime::request::check_not_system;

use crate::extract::{JsonBody, NameInPath, Namespace, NoBody, NoParams};
use crate::forward::AtOwner;
use crate::model::{KeyOut, KeyPage, PutQueue, Queue, QueuePage};
use crate::params::Params;
use crate::problem::{self, Problem};
use crate::state::Api;

/// How often a pause is tried against others who change the same policy.
const PAUSE_ROUNDS: usize = 5;

/// List queues
///
/// Queues that have tasks or a policy of their own, by name.
#[utoipa::path(
    get, path = "/api/v1/queues", operation_id = "listQueues", tag = "queues",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of queues.", body = QueuePage))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<QueuePage>, Problem> {
    let limit = params.limit(100)?;
    let after = params.name("cursor")?;
    params.finish()?;
    let infos = api.node.queues(&namespace, after, limit).await?;
    let full = infos.len() >= limit;
    let cursor = infos.last().filter(|_| full).map(|info| info.queue.queue.to_string());
    Ok(Json(QueuePage { queues: infos.iter().map(Queue::from).collect(), cursor }))
}

/// Read a queue
///
/// A queue that was never used has the default policy, version 0, and no tasks.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}", operation_id = "getQueue", tag = "queues",
    params(("name" = String, Path, description = "The queue.", pattern = "^[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The queue.", body = Queue))
)]
pub(crate) async fn get(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    _: NoParams,
) -> Result<Json<Queue>, Problem> {
    let info = api.node.queue(&QueueKey::new(namespace, name)).await?;
    Ok(Json(Queue::from(&info)))
}

/// Replace the policy of a queue
///
/// Only if `version` is the stored version (0 for a queue without a policy). Omitted fields get the defaults of a new
/// queue. Changed numbers apply to waiting tasks at once; a lower limit stops no running attempt.
#[utoipa::path(
    put, path = "/api/v1/queues/{name}", operation_id = "putQueue", tag = "queues",
    params(("name" = String, Path, description = "The queue.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The queue with its new policy.", body = Queue))
)]
pub(crate) async fn put(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    _: NoParams,
    body: JsonBody,
) -> Result<Json<Queue>, Problem> {
    check_changeable(&name)?;
    let request: PutQueue = body.read(&api).await?;
    let policy = request.policy.0.into_policy()?;
    let queue = QueueKey::new(namespace, name);
    let put = PutPolicy { queue: queue.clone(), expected: u64::from(request.version.0), policy };
    api.node.put_policy(put).await?;
    Ok(Json(Queue::from(&api.node.queue(&queue).await?)))
}

/// List the keys of a queue
///
/// The keys that its limits count now, or that tasks in memory wait for; a key without tasks is not kept. The order is
/// arbitrary, and the same from page to page.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}/keys", operation_id = "listKeys", tag = "queues",
    params(
        ("name" = String, Path, description = "The queue.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[0-9a-f]{16}-([0-9a-f]{2}){0,1024}$"),
    ),
    responses((status = 200, description = "A page of keys.", body = KeyPage))
)]
pub(crate) async fn keys(
    State(api): State<Api>,
    _: AtOwner,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    mut params: Params,
) -> Result<Json<KeyPage>, Problem> {
    let limit = params.limit(100)?;
    let after = match params.take("cursor")? {
        Some(text) => Some(
            parse_key_cursor(&text)
                .ok_or_else(|| Problem::parameter("cursor", "must be the cursor of a page of keys"))?,
        ),
        None => None,
    };
    params.finish()?;
    let infos = api.node.keys(&QueueKey::new(namespace, name), after.as_ref(), limit).await;
    let last = infos.last().filter(|_| infos.len() >= limit);
    let cursor = last.map(|info| key_cursor(&info.position));
    Ok(Json(KeyPage { keys: infos.iter().map(KeyOut::from).collect(), cursor }))
}

/// The limit, and the bytes of the key.
fn key_cursor(position: &KeyPosition) -> String {
    let mut cursor = format!("{}-", position.limit);
    for byte in position.key.bytes() {
        let _ = write!(cursor, "{byte:02x}");
    }
    cursor
}

fn parse_key_cursor(text: &str) -> Option<KeyPosition> {
    let (limit, key) = text.split_once('-')?;
    let limit = LimitId(u64::from_str_radix(limit, 16).ok().filter(|_| limit.len() == 16)?);
    let bytes = key.as_bytes().chunks(2).map(|pair| {
        let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let key = String::from_utf8_lossy(&bytes.collect::<Option<Vec<u8>>>()?).into_owned();
    Some(KeyPosition { limit, key: key.into() })
}

/// Pause a queue
///
/// No task of it is assigned until it is resumed. Running tasks go on. A queue without tasks and without a policy is
/// refused (`queue_not_found`), because its name may be mistyped; `create` pauses it before its first task.
#[utoipa::path(
    post, path = "/api/v1/queues/{name}/pause", operation_id = "pauseQueue", tag = "queues",
    params(
        ("name" = String, Path, description = "The queue.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$"),
        ("create" = Option<bool>, Query, description = "Whether to pause a queue without tasks and without a policy too."),
    ),
    responses((status = 200, description = "The paused queue.", body = Queue))
)]
pub(crate) async fn pause(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    mut params: Params,
    _: NoBody,
) -> Result<Json<Queue>, Problem> {
    let create = params.flag("create")?;
    params.finish()?;
    set_paused(&api, namespace, name, Pause::On { create }).await
}

/// A change of a queue's pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Pauses it; `create` also a queue without tasks and without a policy.
    On { create: bool },
    /// Resumes it.
    Off,
}

/// Resume a queue
#[utoipa::path(
    post, path = "/api/v1/queues/{name}/resume", operation_id = "resumeQueue", tag = "queues",
    params(("name" = String, Path, description = "The queue.", pattern = r"^(?!tasklane\.)[A-Za-z0-9._:@-]{1,128}$")),
    responses((status = 200, description = "The resumed queue.", body = Queue))
)]
pub(crate) async fn resume(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    NameInPath(name): NameInPath,
    _: NoParams,
    _: NoBody,
) -> Result<Json<Queue>, Problem> {
    set_paused(&api, namespace, name, Pause::Off).await
}

async fn set_paused(api: &Api, namespace: Name, name: Name, pause: Pause) -> Result<Json<Queue>, Problem> {
    check_changeable(&name)?;
    let queue = QueueKey::new(namespace, name);
    let mut info = api.node.queue(&queue).await?;
    let is_known = info.policy.version > 0 || info.counts.iter().any(|count| *count > 0);
    if pause == (Pause::On { create: false }) && !is_known {
        let detail = format!(
            "queue {} has no tasks and no policy, so its name may be mistyped; create=true pauses it before its first task",
            queue.queue
        );
        return Err(Problem::new(&problem::QUEUE_NOT_FOUND, detail).field("name"));
    }
    let paused = pause != Pause::Off;
    for round in 1.. {
        if info.policy.policy.paused == paused {
            break;
        }
        match try_set_paused(api, &info, paused).await {
            Ok(version) => {
                info.policy.version = version;
                info.policy.policy.paused = paused;
            }
            // Somebody changed something else meanwhile, and that is to stay.
            Err(PolicyError::Store(StoreError::PolicyConflict { .. })) if round < PAUSE_ROUNDS => {
                info = api.node.queue(&queue).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Json(Queue::from(&info)))
}

/// The queues that servers keep for themselves can be looked at, and no more.
fn check_changeable(name: &Name) -> Result<(), Problem> {
    check_not_system("name", name)
        .map_err(|error| Problem::new(&problem::NAME_RESERVED, error.message).field("name"))
}

async fn try_set_paused(api: &Api, info: &QueueInfo, paused: bool) -> Result<u64, PolicyError> {
    let mut policy = info.policy.policy.clone();
    policy.paused = paused;
    let put = PutPolicy { queue: info.queue.clone(), expected: info.policy.version, policy };
    api.node.put_policy(put).await
}

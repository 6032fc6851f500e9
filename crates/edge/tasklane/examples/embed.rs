//! Tasklane inside a program: `cargo run -p tasklane --example embed`. Ends by itself.

use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;
use tasklane::{FunctionError, Name, Payload, Status, TaskContext, TaskRequest, Tasklane};

/// The task's input.
#[derive(Deserialize)]
struct Picture {
    width: u32,
    height: u32,
    scale: u32,
}

/// The task's work. It may run more than once, so it should be idempotent.
async fn resize(context: TaskContext) -> Result<serde_json::Value, FunctionError> {
    let picture: Picture = context.payload_as()?;
    context.log("resizing");
    context.progress(50, "half of it");
    Ok(json!({ "width": picture.width / picture.scale, "height": picture.height / picture.scale }))
}

fn main() -> anyhow::Result<()> {
    // Before there is any other thread: tasks that are processes are started by this same program.
    tasklane::init();
    tokio::runtime::Runtime::new()?.block_on(Box::pin(run()))
}

async fn run() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let tasklane =
        Tasklane::builder().data_dir(folder.path()).capacity(4).register("resize", resize).start().await?;

    let payload = json!({ "width": 4000, "height": 3000, "scale": 10 }).to_string();
    let request = TaskRequest::new("thumbnail", Name::new("resize")?, Payload::Json(payload));
    let submitted = tasklane.submit(request).await?;
    let task = tasklane.wait(submitted.id, Duration::from_secs(30)).await?.context("the task is gone")?;

    assert_eq!(task.row.state.status, Status::Success, "{:?}", task.row.state.error);
    let result = task.result.context("a task that succeeded has a result")?;
    assert_eq!(result.data, r#"{"height":300,"width":400}"#);
    tasklane.close().await?;
    Ok(())
}

//! Finished tasks go to the archive, even if it fails at first; and they are not removed before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::id::TaskId;
use tasklane_core::message::{Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, AttemptRecord, TaskError};
use tasklane_ports::{Archive, ArchiveError, ArchivedTask};
use tasklane_runtime::node::RetentionOptions;
use tasklane_runtime::request::TaskRequest;

use crate::support::{Run, System, default_namespace, request, success};

/// An archive that can be unreachable.
#[derive(Debug, Default)]
struct Shelf {
    is_away: AtomicBool,
    kept: Mutex<BTreeSet<TaskId>>,
    attempts: Mutex<Vec<AttemptRecord>>,
}

#[async_trait]
impl Archive for Shelf {
    async fn put(&self, tasks: &[ArchivedTask]) -> Result<(), ArchiveError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(ArchiveError::Unavailable { source: "away".into() });
        }
        self.attempts.lock().unwrap().extend(tasks.iter().flat_map(|archived| archived.attempts.clone()));
        self.kept.lock().unwrap().extend(tasks.iter().map(|archived| archived.task.row.id));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_before_it_is_archived() {
    let shelf = Arc::new(Shelf::default());
    shelf.is_away.store(true, Ordering::Relaxed);
    let retention = RetentionOptions {
        tasks: Duration::ZERO,
        request_ids: Duration::ZERO,
        ..RetentionOptions::default()
    };
    let done = Run(|_, _| async { success() });
    let system = System::start_archived(vec![("done", Arc::new(done))], retention, Some(shelf.clone())).await;
    let ids = system.submit((0..20).map(|_| request("done")).collect()).await;
    for &id in &ids {
        system.wait(id).await;
    }
    while system.node.archive_stats().unwrap().waiting < ids.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(system.node.archive_stats().unwrap().lag > Duration::ZERO);
    assert!(system.node.retire_once().await.unwrap_err().is_retryable());
    for &id in &ids {
        assert!(system.node.task(&default_namespace(), id).await.unwrap().is_some());
    }

    shelf.is_away.store(false, Ordering::Relaxed);
    let (_, removed) = system.node.retire_once().await.unwrap();
    assert_eq!(removed, 20);
    assert_eq!(*shelf.kept.lock().unwrap(), ids.into_iter().collect());
    while system.node.archive_stats().unwrap().waiting > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(system.node.archive_stats().unwrap().lag, Duration::ZERO);
    system.close().await;
}

/// Only the children of a map were archived: users could not look up the task that they had submitted.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_becomes_many_is_archived_with_its_children() {
    let shelf = Arc::new(Shelf::default());
    let done = Run(|_, _| async { success() });
    let system = System::start_archived(
        vec![("done", Arc::new(done))],
        RetentionOptions::default(),
        Some(shelf.clone()),
    )
    .await;
    let map = br#"{ "taskName": "many", "taskType": "done", "payload": "", "map": { "items": [1, 2, 3] } }"#;
    let composite = system.submit(vec![TaskRequest::from_json(map).unwrap()]).await[0];
    system.wait(composite).await;
    while shelf.kept.lock().unwrap().len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(shelf.kept.lock().unwrap().contains(&composite));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_torn_down_is_archived_before() {
    let shelf = Arc::new(Shelf::default());
    shelf.is_away.store(true, Ordering::Relaxed);
    let done = Run(|_, _| async { success() });
    let system = System::start_archived(
        vec![("done", Arc::new(done))],
        RetentionOptions::default(),
        Some(shelf.clone()),
    )
    .await;
    let id = system.submit(vec![request("done")]).await[0];
    system.wait(id).await;
    let namespace = default_namespace();
    let tear_down = || system.node.tear_down(&namespace, id, Duration::ZERO);
    assert!(tear_down().await.unwrap_err().is_retryable());
    assert!(system.node.task(&namespace, id).await.unwrap().is_some());

    shelf.is_away.store(false, Ordering::Relaxed);
    let removed = tear_down().await.unwrap().unwrap().removed;
    assert_eq!((removed, shelf.kept.lock().unwrap().contains(&id)), (1, true));
    system.close().await;
}

/// The only attempt of a task was left out when the task was cancelled while it waited for its retry.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_ended_before_the_cancel_is_archived() {
    let shelf = Arc::new(Shelf::default());
    let busy = Run(|_, _| async {
        let retry = RetryAdvice::After(Duration::from_hours(1));
        Finish { ending: Ending::Failed { error: TaskError::new("busy", "not now"), retry }, ..success() }
    });
    let system = System::start_archived(
        vec![("busy", Arc::new(busy))],
        RetentionOptions::default(),
        Some(shelf.clone()),
    )
    .await;
    let id = system.submit(vec![request("busy")]).await[0];
    let namespace = default_namespace();
    let mut follow = system.node.follow(id);
    while system.node.task(&namespace, id).await.unwrap().unwrap().row.state.status != Status::Retrying {
        follow.changed().await;
    }
    system.node.cancel(&namespace, id).await.unwrap();
    assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    while !shelf.kept.lock().unwrap().contains(&id) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let attempts = shelf.attempts.lock().unwrap().clone();
    assert_eq!(attempts.len(), 1, "{attempts:?}");
    assert_eq!(attempts[0].outcome, Some(AttemptOutcome::Failed));
    assert_eq!(attempts[0].error.as_ref().unwrap().code, "busy");
    system.close().await;
}

//! A store whose files are gone, or that another process has taken, while this one runs.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::member::Role;
use tasklane_ports::{Coordinator, Store, StoreError};

/// How often to ask the store.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Watches the store, and ends the attempts of this process each time the store is lost. Another process may
/// run the same tasks from a copy of the files, and the reports of these attempts could not be stored anyway.
pub(crate) async fn end_attempts(store: Arc<dyn Store>, coordinator: Arc<dyn Coordinator>) {
    let mut was_lost = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let is_lost = matches!(store.write_trouble(), Some(StoreError::Lost { .. }));
        if is_lost && !was_lost {
            tracing::error!("the store is lost: stopping the attempts of this process");
            revoke_workers(&*coordinator).await;
        }
        was_lost = is_lost;
    }
}

/// A worker without a session stops what it runs, and is given nothing by lanes that cannot be claimed.
async fn revoke_workers(coordinator: &dyn Coordinator) {
    let view = match coordinator.watch().await {
        Ok(mut watch) => watch.next().await.unwrap_or_default(),
        Err(error) => return tracing::warn!(%error, "cannot revoke the sessions of workers"),
    };
    for member in view.members.values().filter(|member| matches!(member.role, Role::Worker(_))) {
        if let Err(error) = coordinator.revoke(member.session).await {
            tracing::warn!(session = %member.session, %error, "cannot revoke the session of a worker");
        }
    }
}

//! Takes tasks from an intake under the name of this server's session, so that the other servers notice its
//! loss and requeue its messages.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::SessionId;
use tasklane_ports::Intake;
use tasklane_runtime::node::Node;
use tasklane_runtime::scheduler::SchedulerHandle;

use crate::adapters;
use crate::config::Config;

/// Wait before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Takes tasks in while this server has a session; returns at once without an intake.
pub(crate) async fn keep(config: Config, node: Node, scheduler: SchedulerHandle) {
    let mut sessions = scheduler.session();
    loop {
        let Ok(session) = sessions.wait_for(Option::is_some).await.map(|session| *session) else { return };
        let Some(session) = session else { continue };
        let intake = match adapters::open_intake(&config, session).await {
            Ok(Some(intake)) => intake,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot open the inbox of tasks by message, retrying"
                );
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        };
        let lost = async {
            // The sender lives as long as the scheduler, and this does not outlive it.
            let _ = sessions.wait_for(|now| *now != Some(session)).await;
        };
        tokio::select! {
            () = node.take_in(Arc::clone(&intake), config.namespace.clone()) => {}
            () = recover(&*intake, &scheduler, session) => {}
            () = lost => {}
        }
    }
}

/// Requeues the messages of lost servers, on every change of members.
async fn recover(intake: &dyn Intake, scheduler: &SchedulerHandle, own: SessionId) {
    let mut views = scheduler.views();
    let mut living = Vec::new();
    loop {
        let now: Vec<SessionId> = views.borrow_and_update().members.keys().copied().collect();
        // A view without this server is not one to judge others by.
        if now.contains(&own) && now != living {
            match intake.recover(&now).await {
                Ok(()) => living = now,
                Err(error) => {
                    tracing::warn!(%error, "inbox messages held by lost servers are not requeued yet, retrying");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            }
        }
        if views.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

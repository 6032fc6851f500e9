//! Discovery for the direct bus, where no server stands between processes: every member connects to every
//! server.
//!
//! Servers see each other in the view of the coordinator. Servers send workers the list of servers, so that a thousand
//! workers need not watch the coordinator. A worker reads the view when it has lost its last server, and when no server
//! has sent it the list for a while.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::member::Role;
use tasklane_core::message::Message;
use tasklane_direct::{ConnectionCounts, DirectBus};
use tasklane_ports::{Address, Bus, Coordinator, View};
use tasklane_runtime::scheduler::SchedulerHandle;
use tokio::sync::watch;

/// How often servers announce each other to workers.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A worker without an announcement for this long reads the view by itself.
const LOOK_AFTER: Duration = Duration::from_secs(12);
/// A worker without a server looks again after this long, then after twice as long, …, up to [`LOOK_AFTER`].
const LOOK_FIRST: Duration = Duration::from_millis(250);
/// Wait before the coordinator is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

fn servers(view: &View) -> Vec<String> {
    let bus = |role: &Role| match role {
        Role::Server { bus, .. } if !bus.is_empty() => Some(bus.clone()),
        Role::Server { .. } | Role::Worker(_) => None,
    };
    view.members.values().filter_map(|member| bus(&member.role)).collect()
}

/// Keeps a server connected to the others, and announces them to workers. Ends with the views.
pub(crate) async fn keep_server(bus: DirectBus, scheduler: SchedulerHandle) {
    let mut views = scheduler.views();
    let mut again = tokio::time::interval(TELL_EVERY);
    loop {
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            _ = again.tick() => {}
        }
        let servers = servers(&views.borrow_and_update());
        bus.set_peers(servers.clone());
        // A worker that misses this announcement receives the next one.
        let _ = bus.publish(Address::Servers, vec![Message::Servers(servers)]).await;
    }
}

/// Keeps a worker connected to all servers. Ends with the bus.
pub(crate) async fn keep_worker(bus: DirectBus, coordinator: Arc<dyn Coordinator>) {
    let mut connected = bus.connected();
    let mut pause = LOOK_FIRST;
    loop {
        match look(&*coordinator).await {
            Ok(servers) => bus.set_peers(servers),
            Err(error) => {
                tracing::warn!(%error, "cannot discover servers, retrying");
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        }
        // Jitter: all workers lose a server at the same moment.
        let wait = pause.mul_f64(rand::random_range(0.5..=1.0));
        if tokio::time::timeout(wait, until(&mut connected, |peers| peers > 0)).await.is_err() {
            pause = (pause * 2).min(LOOK_AFTER);
            continue;
        }
        pause = LOOK_FIRST;
        let Ok(mut subscription) = bus.subscribe(Address::Servers).await else { return };
        loop {
            let heard = tokio::select! {
                heard = tokio::time::timeout(LOOK_AFTER, subscription.receive()) => heard,
                () = until(&mut connected, |peers| peers == 0) => break,
            };
            let Ok(heard) = heard else { break };
            let Some(heard) = heard else { return };
            let told = heard.into_iter().rev().find_map(|message| match message {
                Message::Servers(servers) => Some(servers),
                _ => None,
            });
            if let Some(servers) = told {
                bus.set_peers(servers);
            }
        }
    }
}

/// Waits until the number of connected servers is as it should be.
async fn until(connected: &mut watch::Receiver<ConnectionCounts>, is_reached: fn(usize) -> bool) {
    // The bus outlives this.
    let _ = connected.wait_for(|now| is_reached(now.peers)).await;
}

async fn look(coordinator: &dyn Coordinator) -> Result<Vec<String>, tasklane_ports::CoordinatorError> {
    let view = coordinator.watch().await?.next().await;
    Ok(view.as_ref().map(servers).unwrap_or_default())
}

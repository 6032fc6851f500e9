//! Killed processes. Each victim is back, or replaced by its own parent, before the next one is killed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::process::{Pid, Signal};

use super::plan::{Class, Victim};
use super::system::{System, shims_of, until_ready};
use super::tally::Reason;
use crate::chaos::process::{Member, Role, signal};

/// How long a guard or a shim that can be killed is waited for; then the guard is killed in place of the shim.
const FIND_WITHIN: Duration = Duration::from_secs(2);

/// Kills a victim.
pub(super) async fn kill(
    system: &Arc<System>,
    victim: Victim,
    back_after: Duration,
    nth: usize,
) -> Result<()> {
    let _turn = system.turn.lock().await;
    let servers = system.servers();
    let workers = system.workers();
    let (server, worker) = (servers[nth % servers.len()], workers[nth % workers.len()]);
    match victim {
        Victim::Server => restart(system, server, None, back_after).await?,
        Victim::ServerAndGuard => restart(system, server, server.guard(), back_after).await?,
        // The worker of the embedded system dies with its server.
        Victim::Worker if worker.role == Role::Dev => restart(system, worker, None, back_after).await?,
        Victim::Worker => {
            worker.kill(None).await?;
            tokio::time::sleep(back_after).await;
            worker.start()?;
        }
        Victim::Guard => kill_found(|| worker.guard()).await,
        Victim::Shim => {
            kill_found(|| worker.guard().and_then(|guard| shims_of(guard).first().copied().or(Some(guard))))
                .await;
        }
    }
    system.tally.count(Class::Kills, victim.as_str());
    Ok(())
}

async fn restart(
    system: &Arc<System>,
    server: &Member,
    with: Option<Pid>,
    back_after: Duration,
) -> Result<()> {
    let _down = system.tally.outage(Reason::Down);
    server.kill(with).await?;
    tokio::time::sleep(back_after).await;
    server.start()?;
    if let Err(error) = until_ready(server).await {
        system.tally.violation("not ready after a kill", &format!("{error:#}"));
    }
    Ok(())
}

async fn kill_found(find: impl Fn() -> Option<Pid>) {
    let deadline = tokio::time::Instant::now() + FIND_WITHIN;
    loop {
        if let Some(pid) = find() {
            signal(pid, Signal::KILL);
            return;
        }
        if tokio::time::Instant::now() > deadline {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

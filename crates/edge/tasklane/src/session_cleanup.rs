//! Closes the sessions of a killed process. Its guard does so when the process is dead and all its attempts
//! have ended; so other members need not wait until the sessions expire.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::id::{Name, SessionId};
use tasklane_ports::SessionToken;
use tasklane_runtime::guard::Guard;
use tasklane_runtime::held_sessions::HeldSessions;

use crate::adapters;
use crate::assemble::system_ttl;
use crate::config::{AdapterUrl, Config};

#[derive(Serialize, Deserialize)]
struct SessionCleanup {
    coordinator: String,
    prefix: Name,
    /// How long it is worth trying: until the sessions have run out.
    within: Duration,
    sessions: BTreeMap<SessionId, String>,
}

/// Wait before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Keeps the guard alive and informed of the sessions that this process holds.
pub(crate) async fn keep(config: Config, held_sessions: HeldSessions, guard: Guard) {
    let mut held = held_sessions.watch();
    loop {
        let sessions: BTreeMap<SessionId, String> =
            held.borrow_and_update().values().map(|token| (token.session, token.secret.clone())).collect();
        let session_cleanup = if sessions.is_empty() {
            Vec::new()
        } else {
            let session_cleanup = SessionCleanup {
                coordinator: config.coordinator_url().reveal().to_owned(),
                prefix: config.prefix.clone(),
                within: system_ttl(&config).max(config.session.server_ttl),
                sessions,
            };
            serde_json::to_vec(&session_cleanup).expect("it can be written")
        };
        guard.set_session_cleanup(session_cleanup).await;
        loop {
            tokio::select! {
                changed = held.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                // A process that has nothing to start would not notice.
                () = guard.lost() => {
                    match guard.revive().await {
                        Ok(()) => tracing::info!("another guard knows the sessions of this process"),
                        Err(error) => {
                            tracing::warn!(%error, "no guard knows the sessions of this process, retrying");
                        }
                    }
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

/// Closes the sessions.
pub(crate) fn run(session_cleanup: &[u8]) -> anyhow::Result<()> {
    let SessionCleanup { coordinator, prefix, within, sessions } = serde_json::from_slice(session_cleanup)?;
    let config = Config { coordinator: Some(AdapterUrl::new(coordinator)), prefix, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let saying = async {
        loop {
            match close_all(&config, &sessions).await {
                Ok(()) => return,
                Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    };
    runtime.block_on(async { tokio::time::timeout(within, saying).await })?;
    Ok(())
}

async fn close_all(config: &Config, sessions: &BTreeMap<SessionId, String>) -> anyhow::Result<()> {
    let (coordinator, _) = adapters::open_coordinator(config).await?;
    for (session, secret) in sessions {
        coordinator.close(&SessionToken { session: *session, secret: secret.clone() }).await?;
    }
    Ok(())
}

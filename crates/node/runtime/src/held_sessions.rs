//! The sessions that this process holds. If the process is killed, its guard closes them: then other
//! processes need not wait for their TTL.

use std::collections::BTreeMap;
use std::sync::Arc;

use tasklane_core::id::SessionId;
use tasklane_ports::SessionToken;
use tokio::sync::watch;

/// See the [module](self). Clones share the same sessions.
#[derive(Clone, Debug)]
pub struct HeldSessions(Arc<watch::Sender<BTreeMap<SessionId, SessionToken>>>);

impl Default for HeldSessions {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl HeldSessions {
    /// Adds a session that was opened.
    pub(crate) fn add(&self, token: SessionToken) {
        self.0.send_modify(|tokens| _ = tokens.insert(token.session, token));
    }

    /// Removes a session that was closed or lost.
    pub(crate) fn remove(&self, session: SessionId) {
        self.0.send_modify(|tokens| _ = tokens.remove(&session));
    }

    /// Follows all held sessions.
    pub fn watch(&self) -> watch::Receiver<BTreeMap<SessionId, SessionToken>> {
        self.0.subscribe()
    }
}

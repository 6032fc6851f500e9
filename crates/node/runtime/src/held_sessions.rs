//! The sessions that this process holds. Should it be killed, its guard closes them: then others need not wait until they
//! have run out.

use std::collections::BTreeMap;
use std::sync::Arc;

use tasklane_core::id::SessionId;
use tasklane_ports::SessionToken;
use tokio::sync::watch;

/// See the [module](self). Clones are the same.
#[derive(Clone, Debug)]
pub struct HeldSessions(Arc<watch::Sender<BTreeMap<SessionId, SessionToken>>>);

impl Default for HeldSessions {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl HeldSessions {
    /// A session was opened.
    pub(crate) fn add(&self, token: SessionToken) {
        self.0.send_modify(|tokens| _ = tokens.insert(token.session, token));
    }

    /// A session was closed, or is lost.
    pub(crate) fn remove(&self, session: SessionId) {
        self.0.send_modify(|tokens| _ = tokens.remove(&session));
    }

    /// Follows all that are held.
    pub fn watch(&self) -> watch::Receiver<BTreeMap<SessionId, SessionToken>> {
        self.0.subscribe()
    }
}

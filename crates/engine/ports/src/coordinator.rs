//! The coordinator: keeps the live sessions and the grants of lanes.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::clock_watch::Reference;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::{Member, Role};

use crate::CoordinatorError;

/// Keeps sessions. Membership and lane grants live inside a session and end with it; no other lease exists.
///
/// Promises:
/// 1. A session lives while it is renewed within its TTL, and for at least one TTL after its last renewal unless it is
///    closed.
/// 2. A session that is not renewed ends, and every watch shows its end.
/// 3. An ended session cannot be renewed, and its identity is never used again.
/// 4. Closing ends a session at once. Revoking only refuses further renewals.
/// 5. A grant of a lane has one holder at a time; it is released by its holder or ends with its session.
/// 6. A watch first shows everything, as it is at a moment not before the call; then every change that lasts,
///    in an order that all watchers can rely on: it never shows a lane's new holder before the end of the old
///    one. A new owner of a lane rests on this: a session that the first view does not show has ended.
/// 7. Steps of the wall clock end no session and lengthen none.
/// 8. `clock` answers the time that the system's own clock showed at the last renewal of a session of this
///    process, without a further request. No TTL rests on it.
#[async_trait]
pub trait Coordinator: Send + Sync + std::fmt::Debug {
    /// The limits of this coordinator.
    fn capabilities(&self) -> CoordinatorCapabilities;

    /// Opens a session. The holder counts its time from before it called.
    async fn open(&self, open: OpenSession) -> Result<SessionToken, CoordinatorError>;

    /// Renews a session. The holder counts its time from before it called.
    async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError>;

    /// Changes the offer of a member.
    async fn update(&self, token: &SessionToken, role: Role) -> Result<(), CoordinatorError>;

    /// Ends a session. Every holder of the token may close it: the worker, or its guard after the worker
    /// died. Closing an ended session is no error.
    async fn close(&self, token: &SessionToken) -> Result<(), CoordinatorError>;

    /// Refuses further renewals of a session, also from the holder of its token. It ends one TTL after its
    /// last renewal.
    async fn revoke(&self, session: SessionId) -> Result<(), CoordinatorError>;

    /// Takes the grant of a lane if it is free. Answers whether this session holds it now.
    async fn acquire(&self, token: &SessionToken, lane: LaneId) -> Result<bool, CoordinatorError>;

    /// Releases the grant of a lane. Releasing a grant that the session does not hold is no error.
    async fn release(&self, token: &SessionToken, lane: LaneId) -> Result<(), CoordinatorError>;

    /// The wall clock of the system, which all servers share; `None` where the system uses this machine's
    /// clock, or has not answered yet.
    fn clock(&self) -> Option<Reference> {
        None
    }

    /// Follows members and grants.
    async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError>;
}

/// The limits of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorCapabilities {
    /// The shortest TTL.
    pub ttl_min: Duration,
}

/// A session to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Its identity, random for each start of a process.
    pub session: SessionId,
    /// How long it lives without a renewal.
    pub ttl: Duration,
    /// Its role, and what it offers in that role.
    pub role: Role,
}

/// Proof of holding a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToken {
    /// The session.
    pub session: SessionId,
    /// The value by which the coordinator recognizes the holder.
    pub secret: String,
}

/// All members and grants at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Rises with every change, for every watcher: of two views the one with the higher revision is newer.
    pub revision: u64,
    /// The live sessions.
    pub members: BTreeMap<SessionId, Member>,
    /// The session that should own each lane.
    pub grants: BTreeMap<LaneId, SessionId>,
}

/// Follows a coordinator. Closed by dropping it.
#[async_trait]
pub trait Watch: Send + std::fmt::Debug {
    /// The whole view: the first call returns at once, later calls when the view differs from the last one
    /// returned. Changes in between are returned as one. `None` when the coordinator was closed. Safe to
    /// cancel.
    async fn next(&mut self) -> Option<View>;
}

//! Sessions and their failure detector, without a clock of their own.
//!
//! A holder counts its time from before it asked for a renewal, the failure detector from when it saw the renewal,
//! which is later. So when the failure detector has seen one renewal number for a whole TTL, its holder has stopped,
//! whatever the two clocks show, as long as both count seconds of the same length. The failure detector sees every
//! renewal as it happens, so its view has no breaks to allow for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::invariant::{Invariant, Invariants};
use tasklane_core::member::{Member, Role};
use tasklane_core::time::Timestamp;
use tasklane_ports::{CoordinatorError, OpenSession, SessionToken, View};

/// How lost sessions are detected.
#[derive(Clone, Copy, Debug)]
pub struct SessionsOptions {
    /// The shortest TTL that is accepted.
    pub ttl_min: Duration,
    /// Invariants of the coordinator that a test may switch off.
    pub invariants: Invariants,
}

impl Default for SessionsOptions {
    fn default() -> Self {
        Self { ttl_min: Duration::from_millis(10), invariants: Invariants::ALL_ON }
    }
}

/// All sessions, with what lives inside them. `now` is a steady time and never goes backwards.
#[derive(Debug, Default)]
pub struct Sessions {
    options: SessionsOptions,
    living: BTreeMap<SessionId, Session>,
    grants: BTreeMap<LaneId, SessionId>,
    /// When the failure detector ends each session, if it sees no other renewal before.
    deadlines: BTreeSet<(Timestamp, SessionId)>,
    /// Identities that were used, the oldest first.
    ended: VecDeque<SessionId>,
    changes: u64,
}

/// Identities are random, so remembering some of the used ones is a courtesy.
const ENDED_MAX: usize = 4096;

#[derive(Debug)]
struct Session {
    ttl: Duration,
    role: Role,
    secret: String,
    /// Rises with every renewal; the failure detector watches it.
    renewal: u64,
    revoked: bool,
    deadline: Timestamp,
}

impl Sessions {
    /// Nobody is alive yet.
    pub fn new(options: SessionsOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Opens a session. `secret` is random.
    pub fn open(
        &mut self,
        open: OpenSession,
        secret: u128,
        now: Timestamp,
    ) -> Result<SessionToken, CoordinatorError> {
        let OpenSession { session, ttl, role } = open;
        if ttl < self.options.ttl_min {
            return Err(CoordinatorError::TtlTooShort { ttl, min: self.options.ttl_min });
        }
        if self.living.contains_key(&session) || self.ended.contains(&session) {
            return Err(CoordinatorError::SessionEnded { session });
        }
        let secret = format!("{secret:032x}");
        let deadline = now + self.patience(ttl);
        self.deadlines.insert((deadline, session));
        let opened = Session { ttl, role, secret: secret.clone(), renewal: 0, revoked: false, deadline };
        self.living.insert(session, opened);
        self.changes += 1;
        Ok(SessionToken { session, secret })
    }

    /// Renews a session unless it was revoked or has ended.
    pub fn renew(&mut self, token: &SessionToken, now: Timestamp) -> Result<(), CoordinatorError> {
        let ttl = self.alive(token, now)?.ttl;
        let deadline = now + self.patience(ttl);
        let session = self.alive(token, now)?;
        if session.revoked {
            return Err(CoordinatorError::SessionEnded { session: token.session });
        }
        session.renewal += 1;
        let before = std::mem::replace(&mut session.deadline, deadline);
        self.deadlines.remove(&(before, token.session));
        self.deadlines.insert((deadline, token.session));
        Ok(())
    }

    /// Changes what a member offers.
    pub fn update(
        &mut self,
        token: &SessionToken,
        role: Role,
        now: Timestamp,
    ) -> Result<(), CoordinatorError> {
        let session = self.alive(token, now)?;
        if session.role != role {
            session.role = role;
            self.changes += 1;
        }
        Ok(())
    }

    /// Ends a session at once. Answers whether it was there to be ended.
    pub fn close(&mut self, token: &SessionToken) -> bool {
        let known = self.living.get(&token.session).is_some_and(|session| session.secret == token.secret);
        known && self.end(token.session)
    }

    /// Refuses further renewals. Answers whether the session has ended by it, which is only so while an invariant is
    /// off.
    pub fn revoke(&mut self, session: SessionId) -> bool {
        if !self.options.invariants.on(Invariant::RevokeWaitsTtl) {
            return self.end(session);
        }
        if let Some(session) = self.living.get_mut(&session) {
            session.revoked = true;
        }
        false
    }

    /// Takes the grant of a lane if it is free. Answers whether this session holds it now.
    pub fn acquire(
        &mut self,
        token: &SessionToken,
        lane: LaneId,
        now: Timestamp,
    ) -> Result<bool, CoordinatorError> {
        self.alive(token, now)?;
        let before = self.grants.len();
        let holder = *self.grants.entry(lane).or_insert(token.session);
        self.changes += u64::from(self.grants.len() > before);
        Ok(holder == token.session)
    }

    /// Gives the grant of a lane back.
    pub fn release(
        &mut self,
        token: &SessionToken,
        lane: LaneId,
        now: Timestamp,
    ) -> Result<(), CoordinatorError> {
        self.alive(token, now)?;
        if self.grants.get(&lane) == Some(&token.session) {
            self.grants.remove(&lane);
            self.changes += 1;
        }
        Ok(())
    }

    /// Ends every session whose TTL has passed, for the failure detector. Answers the ended sessions.
    pub fn tick(&mut self, now: Timestamp) -> Vec<SessionId> {
        let mut ended = Vec::new();
        while let Some((deadline, session)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.end(session);
            ended.push(session);
        }
        ended
    }

    /// When the failure detector has to look again.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Rises with everything that a watcher sees.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Who is alive, and who should own what.
    pub fn view(&self) -> View {
        let members = self.living.iter();
        let members = members.map(|(id, s)| (*id, Member { session: *id, role: s.role.clone() })).collect();
        View { revision: self.changes, members, grants: self.grants.clone() }
    }

    /// Whether a session has not ended.
    pub fn is_alive(&self, session: SessionId) -> bool {
        self.living.contains_key(&session)
    }

    fn alive(&mut self, token: &SessionToken, now: Timestamp) -> Result<&mut Session, CoordinatorError> {
        let session = self.living.get_mut(&token.session);
        session
            .filter(|session| session.secret == token.secret && now < session.deadline)
            .ok_or(CoordinatorError::SessionEnded { session: token.session })
    }

    fn patience(&self, ttl: Duration) -> Duration {
        if self.options.invariants.on(Invariant::DetectorWaitsTtl) { ttl } else { ttl / 3 }
    }

    fn end(&mut self, id: SessionId) -> bool {
        let Some(session) = self.living.remove(&id) else { return false };
        self.deadlines.remove(&(session.deadline, id));
        self.grants.retain(|_, holder| *holder != id);
        self.ended.push_back(id);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
        self.changes += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn open(sessions: &mut Sessions, id: u128, now: Timestamp) -> SessionToken {
        let role = Role::Server { address: String::new(), bus: String::new() };
        let open = OpenSession { session: SessionId::from_random(id), ttl: TTL, role };
        sessions.open(open, id, now).unwrap()
    }

    #[test]
    fn a_session_lives_one_ttl_after_its_last_renewal() {
        let mut sessions = Sessions::default();
        let token = open(&mut sessions, 1, at(0));
        sessions.renew(&token, at(2_000)).unwrap();
        assert_eq!(sessions.tick(at(4_999)), []);
        assert_eq!(sessions.next_deadline(), Some(at(5_000)));
        assert_eq!(sessions.tick(at(5_000)), [token.session]);
        assert!(sessions.renew(&token, at(5_000)).is_err());
        assert_eq!(sessions.next_deadline(), None);
    }

    #[test]
    fn a_session_past_its_time_cannot_be_renewed_even_before_the_failure_detector_looks() {
        let mut sessions = Sessions::default();
        let token = open(&mut sessions, 1, at(0));
        assert!(sessions.renew(&token, at(3_000)).is_err());
        assert!(sessions.is_alive(token.session));
    }

    #[test]
    fn a_revoked_session_ends_one_ttl_after_its_last_renewal() {
        let mut sessions = Sessions::default();
        let token = open(&mut sessions, 1, at(0));
        assert!(!sessions.revoke(token.session));
        assert!(sessions.renew(&token, at(1_000)).is_err());
        assert!(sessions.acquire(&token, LaneId(1), at(2_999)).unwrap());
        assert_eq!(sessions.tick(at(3_000)), [token.session]);
        assert!(sessions.view().grants.is_empty());
    }

    #[test]
    fn renewals_are_no_change_of_the_view() {
        let mut sessions = Sessions::default();
        let token = open(&mut sessions, 1, at(0));
        let before = sessions.changes();
        sessions.renew(&token, at(1)).unwrap();
        assert_eq!(sessions.changes(), before);
        sessions.acquire(&token, LaneId(1), at(1)).unwrap();
        sessions.acquire(&token, LaneId(1), at(1)).unwrap();
        assert_eq!(sessions.changes(), before + 1);
    }

    #[cfg(feature = "switchable-invariants")]
    #[test]
    fn without_their_invariants_revoke_and_failure_detector_are_hasty() {
        let invariants =
            |invariant| SessionsOptions { invariants: Invariants::without(invariant), ..Default::default() };
        let mut sessions = Sessions::new(invariants(Invariant::RevokeWaitsTtl));
        let token = open(&mut sessions, 1, at(0));
        assert!(sessions.revoke(token.session));
        let mut sessions = Sessions::new(invariants(Invariant::DetectorWaitsTtl));
        let token = open(&mut sessions, 1, at(0));
        assert_eq!(sessions.tick(at(1_000)), [token.session]);
    }
}

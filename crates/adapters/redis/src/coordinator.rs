//! The coordinator: sessions and grants as plain data in one slot, one script for each verb.
//!
//! Redis's own expiry is not used: it follows the wall clock, and a session's grants must end with it in one step.
//! Instead each session has a number that rises with every renewal, and every process that watches detects failures by
//! its own steady clock (`tasklane_ports::failure_detector`). Changes are published; a process that only holds a
//! session neither listens nor detects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, Value};
use tasklane_core::clock_watch::Reference;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::{Member, Role};
use tasklane_core::time::Timestamp;
use tasklane_ports::failure_detector::Renewal;
use tasklane_ports::membership::{
    ChangeNotices, MembershipSnapshot, MembershipTable, MembershipWatcher, RenewalNumbers, RenewalOutcome,
};
use tasklane_ports::{
    Coordinator, CoordinatorCapabilities, CoordinatorError, OpenSession, SessionToken, StoreError, View,
    Watch, codec,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::connect::{Purpose, RedisOptions, Server, Traffic};
use crate::error::{coordinator_error, unexpected};
use crate::keys::MemberKeys;
use crate::layout::{self, ReplyValues};
use crate::script::{SCRIPTS, Script};
use crate::subscriber::{ChannelSubscription, Listener, Subscriber};

/// Failure detectors look at least every 200 milliseconds, and allow for a gap of a third of a TTL.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A renewal that takes longer is made again over another connection, while there is time for it.
const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Hexadecimal digits of a secret.
const SECRET_LEN: usize = 32;

/// The coordinator on a Redis server or cluster. Watches outlive it, unless it is told to disconnect.
#[derive(Debug)]
pub struct RedisCoordinator {
    members: Arc<Members>,
    watcher: MembershipWatcher,
}

impl RedisCoordinator {
    /// Opens the coordinator that a URL names, as [`RedisStore::connect`](crate::RedisStore::connect) does.
    pub async fn connect(url: &str, options: &RedisOptions) -> Result<Self, StoreError> {
        let response_timeout = options.response_timeout.min(RESPONSE_TIMEOUT_MAX);
        let options = RedisOptions { response_timeout, ..options.clone() };
        let (server, prefix) = Server::connect(url, &options, Purpose::Data).await?;
        let server = Arc::new(server);
        let subscriber = Subscriber::new(Arc::clone(&server));
        let members = Arc::new(Members { server, keys: MemberKeys::new(&prefix), subscriber });
        let table: Arc<dyn MembershipTable> = Arc::clone(&members) as _;
        Ok(Self { members, watcher: MembershipWatcher::new(table) })
    }

    /// How acknowledged writes may be lost on this server, in a plain sentence each. Empty where they are safe.
    pub fn warnings(&self) -> &[String] {
        self.members.server.warnings()
    }

    /// Ends all watches and closes the connection. Sessions stay what they are.
    pub async fn disconnect(&self) {
        self.watcher.close();
        self.members.server.close().await;
    }

    /// Does something as a session. Answers `None` if there is no such session.
    async fn act(&self, script: &Script, token: &SessionToken, with: Option<&[u8]>) -> ActionResult {
        let mut call = self.members.call(script);
        call.arg(name_of(token.session)).arg(&token.secret);
        if let Some(with) = with {
            call.arg(with);
        }
        self.members.run(script, &call).await
    }
}

type ActionResult = Result<Value, CoordinatorError>;

#[async_trait]
impl Coordinator for RedisCoordinator {
    fn capabilities(&self) -> CoordinatorCapabilities {
        CoordinatorCapabilities { ttl_min: TTL_MIN }
    }

    async fn open(&self, open: OpenSession) -> Result<SessionToken, CoordinatorError> {
        let OpenSession { session, ttl, role } = open;
        if ttl < TTL_MIN {
            return Err(CoordinatorError::TtlTooShort { ttl, min: TTL_MIN });
        }
        let secret = format!("{:032x}", rand::random::<u128>());
        let mut call = self.members.call(&SCRIPTS.open);
        call.arg(name_of(session)).arg(stored_session(&secret, ttl, &role));
        let token = SessionToken { session, secret };
        if_alive(&self.members.run(&SCRIPTS.open, &call).await?, token.session)?;
        Ok(token)
    }

    async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.watcher.renew(token).await
    }

    fn clock(&self) -> Option<Reference> {
        self.watcher.clock()
    }

    async fn update(&self, token: &SessionToken, role: Role) -> Result<(), CoordinatorError> {
        if_alive(&self.act(&SCRIPTS.update, token, Some(&codec::encode(&role))).await?, token.session)
    }

    async fn close(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.act(&SCRIPTS.close, token, None).await?;
        Ok(())
    }

    async fn revoke(&self, session: SessionId) -> Result<(), CoordinatorError> {
        let mut call = self.members.call(&SCRIPTS.revoke);
        call.arg(name_of(session));
        self.members.run(&SCRIPTS.revoke, &call).await?;
        Ok(())
    }

    async fn acquire(&self, token: &SessionToken, lane: LaneId) -> Result<bool, CoordinatorError> {
        match self.act(&SCRIPTS.acquire, token, Some(lane.to_string().as_bytes())).await? {
            Value::Nil => Err(CoordinatorError::SessionEnded { session: token.session }),
            held => Ok(held == Value::Int(1)),
        }
    }

    async fn release(&self, token: &SessionToken, lane: LaneId) -> Result<(), CoordinatorError> {
        let lane = lane.to_string();
        if_alive(&self.act(&SCRIPTS.release, token, Some(lane.as_bytes())).await?, token.session)
    }

    async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.watcher.watch().await
    }
}

fn if_alive(answer: &Value, session: SessionId) -> Result<(), CoordinatorError> {
    if *answer == Value::Int(1) { Ok(()) } else { Err(CoordinatorError::SessionEnded { session }) }
}

/// Rounded up: a session never lives shorter than it was told.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Sessions by name, as people read them too.
fn name_of(session: SessionId) -> String {
    session.0.simple().to_string()
}

fn session_of(name: &[u8]) -> Result<SessionId, StoreError> {
    Uuid::try_parse_ascii(name).map(SessionId).map_err(StoreError::corrupt)
}

/// Sessions and grants where they are kept.
#[derive(Debug)]
struct Members {
    server: Arc<Server>,
    keys: MemberKeys,
    subscriber: Subscriber,
}

impl Members {
    /// A call of a script that may publish a change; what follows are its arguments.
    fn call(&self, script: &Script) -> Cmd {
        let publish = if self.server.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        let mut call = script.call(self.keys.all());
        call.arg(publish).arg(&self.keys.channel);
        call
    }

    async fn run(&self, script: &Script, call: &Cmd) -> Result<Value, CoordinatorError> {
        Ok(self.server.run(script, self.keys.slot, Traffic::Lane, call).await?)
    }
}

#[async_trait]
impl MembershipTable for Members {
    async fn read(&self) -> Result<MembershipSnapshot, CoordinatorError> {
        let call = SCRIPTS.members.call(self.keys.all());
        snapshot(self.run(&SCRIPTS.members, &call).await?).map_err(coordinator_error)
    }

    async fn renewal_numbers(&self) -> Result<RenewalNumbers, CoordinatorError> {
        let call = SCRIPTS.renewal_numbers.call(self.keys.looked_at());
        renewal_numbers(self.run(&SCRIPTS.renewal_numbers, &call).await?).map_err(coordinator_error)
    }

    async fn renew(&self, tokens: &[SessionToken]) -> Result<RenewalOutcome, CoordinatorError> {
        let mut call = self.call(&SCRIPTS.renew);
        for token in tokens {
            call.arg(name_of(token.session)).arg(&token.secret);
        }
        match self.run(&SCRIPTS.renew, &call).await? {
            Value::Array(answer) if answer.len() == tokens.len() + 2 => {
                let (renewed, clock) = answer.split_at(tokens.len());
                let alive = renewed.iter().map(|renewed| *renewed == Value::Int(1)).collect();
                Ok(RenewalOutcome { alive, wall: wall_of(clock) })
            }
            _ => Err(coordinator_error(unexpected("renew"))),
        }
    }

    async fn end(&self, overdue: &[Renewal]) -> Result<(), CoordinatorError> {
        let mut call = self.call(&SCRIPTS.end);
        for renewal in overdue {
            call.arg(name_of(renewal.session)).arg(renewal.number);
        }
        self.run(&SCRIPTS.end, &call).await?;
        Ok(())
    }

    async fn raise(&self, above: u64) -> Result<(), CoordinatorError> {
        let mut call = self.call(&SCRIPTS.raise);
        call.arg(above);
        self.run(&SCRIPTS.raise, &call).await?;
        Ok(())
    }

    fn listen(&self) -> Box<dyn ChangeNotices> {
        let told = Arc::new(ChangeSignal::default());
        let listener: Arc<dyn Listener> = Arc::clone(&told) as _;
        let (listening, _) = self.subscriber.listen(&self.keys.channel, self.keys.slot, listener);
        Box::new(Changes { told, _subscription: listening })
    }
}

/// What `TIME` says: seconds, and microseconds.
fn wall_of(clock: &[Value]) -> Option<Timestamp> {
    let number = |value: &Value| match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<i64>().ok(),
        _ => None,
    };
    let [seconds, micros] = clock else { return None };
    Some(Timestamp::from_micros(number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)?))
}

/// Told of a change.
#[derive(Debug, Default)]
struct ChangeSignal(Notify);

impl Listener for ChangeSignal {
    fn hear(&self, _revision: &Arc<Vec<u8>>) {
        self.0.notify_one();
    }

    fn resumed(&self) {
        self.0.notify_one();
    }
}

struct Changes {
    told: Arc<ChangeSignal>,
    _subscription: ChannelSubscription,
}

#[async_trait]
impl ChangeNotices for Changes {
    async fn next(&mut self) {
        self.told.0.notified().await;
    }
}

fn renewal_numbers(answer: Value) -> Result<RenewalNumbers, StoreError> {
    let mut answer = ReplyValues::new(answer)?;
    let mut numbers = Vec::with_capacity(answer.len() / 2);
    while answer.len() > 1 {
        numbers.push((session_of(&answer.bytes()?)?, answer.number()?));
    }
    Ok(RenewalNumbers { revision: answer.number()?, numbers })
}

fn snapshot(answer: Value) -> Result<MembershipSnapshot, StoreError> {
    let mut answer = ReplyValues::new(answer)?;
    let revision = answer.number()?;
    let (mut sessions, mut numbers, mut held) = (answer.list()?, answer.list()?, answer.list()?);
    let mut by_session = BTreeMap::new();
    while !numbers.is_empty() {
        by_session.insert(session_of(&numbers.bytes()?)?, numbers.number()?);
    }
    let mut members = BTreeMap::new();
    let mut renewals = Vec::with_capacity(sessions.len() / 2);
    while !sessions.is_empty() {
        let session = session_of(&sessions.bytes()?)?;
        let stored = sessions.bytes()?;
        let (ttl, role) = ttl_and_role(&stored)?;
        members.insert(session, Member { session, role });
        let number = *by_session.get(&session).ok_or_else(|| unexpected("a session without a number"))?;
        renewals.push(Renewal { session, number, ttl });
    }
    let mut grants = BTreeMap::new();
    while !held.is_empty() {
        let lane = u16::try_from(held.number()?).map_err(StoreError::corrupt)?;
        grants.insert(LaneId(lane), session_of(&held.bytes()?)?);
    }
    Ok(MembershipSnapshot { view: View { revision, members, grants }, renewals })
}

/// A session as it is stored, and as `update.lua` cuts it.
pub(crate) fn stored_session(secret: &str, ttl: Duration, role: &Role) -> Vec<u8> {
    [secret.as_bytes(), &millis(ttl).to_be_bytes(), &codec::encode(role)].concat()
}

/// What others read of a stored session.
pub(crate) fn ttl_and_role(stored: &[u8]) -> Result<(Duration, Role), StoreError> {
    let cut_off = || unexpected("a session cut off");
    let (ttl, role) =
        stored.get(SECRET_LEN..).ok_or_else(cut_off)?.split_at_checked(8).ok_or_else(cut_off)?;
    Ok((Duration::from_millis(layout::be_number(ttl)?), codec::decode(role)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_session_rests_on_a_clock_of_the_server() {
        let crate::script::Scripts {
            open,
            renew,
            update,
            close,
            revoke,
            acquire,
            release,
            end,
            raise,
            renewal_numbers,
            members,
            ..
        } = &*SCRIPTS;
        // The clock is read after all is done, and only answered.
        let (renews, answers) = renew.code().split_once("local time = ").unwrap();
        assert!(!renews.contains("TIME") && !answers.contains("HINCRBY"));
        for script in [open, update, close, revoke, acquire, release, end, raise, renewal_numbers, members] {
            for clock in ["TIME", "EXPIRE", "'EX'", "'PX'"] {
                assert!(!script.code().contains(clock), "{clock}: {}", script.code());
            }
        }
    }

    #[test]
    fn a_ttl_is_never_cut() {
        assert_eq!(millis(Duration::from_secs(5)), 5_000);
        assert_eq!(millis(Duration::from_nanos(1_000_001)), 2);
    }
}

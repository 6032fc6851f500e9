//! The intake: clients run `LPUSH prefix:inbox '<json>'`, takers take from the other end.
//!
//! A script moves messages to the hash of their taker, each with an id, before `take` answers them. They stay
//! there until the taker acknowledges them. A taker with an empty inbox waits in a `BLMOVE` on a connection
//! of its own, which the server answers when a message arrives: an empty inbox costs nothing. The moved
//! message is not answered directly; the next script takes it. Ids begin with the session of their taker,
//! which is random for each start, so no id is used twice, even where a server has lost its last writes.
//! Messages of a lost taker go to another list with their ids, and are given again before new ones.
//!
//! All keys share the slot of the inbox, whose name is the hash tag of the others.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use tasklane_core::id::SessionId;
use tasklane_ports::{Intake, IntakeError, IntakeMessage, StoreError};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::cluster::slot_of;
use crate::connect::{Purpose, RedisOptions, Server, Traffic};
use crate::connection::LiveConnection;
use crate::error::CallError;
use crate::script::SCRIPTS;

/// How long the server lets a taker wait before it answers without a message. A dead connection is noticed a
/// little later than that.
const WAIT: Duration = Duration::from_secs(30);
/// A take ends after so many bytes, so that a script is quick.
const TAKE_BYTES: usize = 4 << 20;

/// One taker of the inbox on a Redis server or cluster.
#[derive(Debug)]
pub struct RedisIntake(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: Server,
    keys: IntakeKeys,
    taker: Taker,
    state: Mutex<IntakeState>,
    /// Held while a script takes messages.
    fetching: tokio::sync::Mutex<()>,
    /// The idle connection for `BLMOVE`. A wait that is dropped takes its connection along: the command still
    /// under way there would hold up the next one.
    waiting: Mutex<Option<LiveConnection>>,
    /// Messages of a lost taker were requeued: skip the wait for the inbox.
    recovered: Notify,
}

#[derive(Debug, Default)]
struct IntakeState {
    /// Numbers that were used for ids.
    numbers: u64,
    /// Taken from the server, and not answered yet.
    fetched: VecDeque<IntakeMessage>,
    /// Answered, and neither acknowledged nor rejected.
    held: HashSet<String>,
    /// An answer was lost: the taker's hash may hold messages that this process does not know.
    uncertain: bool,
}

/// A taker and the keys of its messages.
#[derive(Debug)]
struct Taker {
    name: String,
    /// Hash: messages of this taker, by id.
    taken: String,
}

#[derive(Debug)]
struct IntakeKeys {
    slot: u16,
    /// List: new messages, the newest first.
    inbox: String,
    /// List: id and body of messages to give again, the oldest first.
    again: String,
    /// List: messages that `BLMOVE` moved, for the next take of any taker: the woken taker may have ended
    /// since.
    moved: String,
    /// Set: takers that may have messages.
    takers: String,
    /// List: rejected messages, the newest first.
    dead: String,
}

impl IntakeKeys {
    fn new(prefix: &str, cluster: bool) -> Self {
        let inbox = format!("{prefix}:inbox");
        // Users look for it beside the inbox; in a cluster the hash tag in its name puts it into the same
        // slot.
        let dead = if cluster { format!("{{{inbox}}}:dead") } else { format!("{inbox}:dead") };
        Self {
            slot: slot_of(&inbox),
            again: format!("{{{inbox}}}:again"),
            moved: format!("{{{inbox}}}:moved"),
            takers: format!("{{{inbox}}}:takers"),
            dead,
            inbox,
        }
    }

    fn taker(&self, session: SessionId) -> Taker {
        let name = session.0.simple().to_string();
        let taken = format!("{{{}}}:taken:{name}", self.inbox);
        Taker { name, taken }
    }

    fn with<'a>(&'a self, taker: &'a Taker) -> impl ExactSizeIterator<Item = &'a str> {
        [&self.inbox, &self.again, &self.takers, &taker.taken, &self.moved].map(String::as_str).into_iter()
    }
}

impl RedisIntake {
    /// Opens the inbox under the prefix that a URL names, as
    /// [`RedisStore::connect`](crate::RedisStore::connect) does, for the taker of a session. A session must
    /// not be used for two takers.
    pub async fn connect(url: &str, options: &RedisOptions, session: SessionId) -> Result<Self, StoreError> {
        let (server, prefix) = Server::connect(url, options, Purpose::Data).await?;
        let keys = IntakeKeys::new(&prefix, server.is_cluster());
        let taker = keys.taker(session);
        Ok(Self(Arc::new(Inner {
            server,
            keys,
            taker,
            state: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            recovered: Notify::new(),
        })))
    }

    /// How this server may lose acknowledged writes, in a plain sentence each. Empty where they are safe.
    pub fn warnings(&self) -> &[String] {
        self.0.server.warnings()
    }
}

impl Inner {
    /// Answers fetched messages and holds them.
    fn give(&self, limit: usize) -> Vec<IntakeMessage> {
        let mut state = lock(&self.state);
        let count = state.fetched.len().min(limit);
        let given: Vec<_> = state.fetched.drain(..count).collect();
        state.held.extend(given.iter().map(|message| message.id.clone()));
        given
    }

    /// Takes messages from the server, unless fetched ones are left.
    async fn fetch(&self, limit: usize) -> Result<(), IntakeError> {
        let _one_at_a_time = self.fetching.lock().await;
        if lock(&self.state).uncertain {
            let mut command = redis::cmd("HGETALL");
            command.arg(&self.taker.taken);
            let taken =
                self.server.call(self.keys.slot, Traffic::Lane, &command).await.map_err(unavailable)?;
            let mut taken = messages(taken)?;
            taken.sort_by_key(|message| number_of(&message.id));
            let mut state = lock(&self.state);
            state.uncertain = false;
            let known = |state: &IntakeState, id: &String| {
                state.held.contains(id) || state.fetched.iter().any(|message| message.id == *id)
            };
            taken.retain(|message| !known(&state, &message.id));
            state.fetched.extend(taken);
        }
        let first = {
            let mut state = lock(&self.state);
            if !state.fetched.is_empty() {
                return Ok(());
            }
            let first = state.numbers;
            state.numbers += limit as u64;
            first
        };
        let mut call = SCRIPTS.take.call(self.keys.with(&self.taker));
        call.arg(&self.taker.name).arg(limit).arg(first).arg(TAKE_BYTES);
        let answer = self.server.run(&SCRIPTS.take, self.keys.slot, Traffic::Lane, &call).await;
        let fetched = answer.map_err(unavailable).and_then(messages);
        let mut state = lock(&self.state);
        match fetched {
            Ok(fetched) => state.fetched.extend(fetched),
            Err(error) => {
                state.uncertain = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until a message arrives in the inbox, or for [`WAIT`].
    async fn wait(&self) -> Result<(), IntakeError> {
        let kept = lock(&self.waiting).take().filter(|live| !live.is_lost());
        let live = if let Some(live) = kept {
            live
        } else {
            let place = self.server.place_of(self.keys.slot).await.map_err(unavailable)?;
            let dialled = self.server.dial(&place, WAIT, None).await;
            dialled.map_err(|error| {
                self.server.distrust_places();
                unavailable(CallError::NotSent(error))
            })?
        };
        let mut command = redis::cmd("BLMOVE");
        command.arg(&self.keys.inbox).arg(&self.keys.moved).arg("RIGHT").arg("LEFT").arg(WAIT.as_secs());
        let woken = live.send(&command).await.map_err(|error| {
            self.server.distrust_places();
            unavailable(CallError::Sent(error))
        })?;
        *lock(&self.waiting) = Some(live);
        // A `BLMOVE` whose answer was lost may have run at the server much later.
        lock(&self.state).uncertain |= woken == Value::Nil;
        Ok(())
    }

    async fn takers(&self) -> Result<Vec<SessionId>, IntakeError> {
        let mut command = redis::cmd("SMEMBERS");
        command.arg(&self.keys.takers);
        let names = self.server.call(self.keys.slot, Traffic::Lane, &command).await.map_err(unavailable)?;
        let names: Vec<String> = redis::from_redis_value(names)
            .map_err(|error| IntakeError::Unavailable { source: error.into() })?;
        // Other names were written by another program.
        Ok(names.iter().filter_map(|name| Uuid::try_parse(name).ok().map(SessionId)).collect())
    }

    fn settled<'a>(&self, ids: impl Iterator<Item = &'a String>) {
        let mut state = lock(&self.state);
        ids.for_each(|id| _ = state.held.remove(id));
    }
}

#[async_trait]
impl Intake for RedisIntake {
    async fn take(&self, limit: usize) -> Result<Vec<IntakeMessage>, IntakeError> {
        let limit = limit.max(1);
        loop {
            let given = self.0.give(limit);
            if !given.is_empty() {
                return Ok(given);
            }
            // In its own task: this process must note the moved messages even if the caller drops the call.
            let inner = Arc::clone(&self.0);
            let fetched = tokio::spawn(async move { inner.fetch(limit).await }).await;
            fetched.map_err(|error| IntakeError::Unavailable { source: error.into() })??;
            if !lock(&self.0.state).fetched.is_empty() {
                continue;
            }
            tokio::select! {
                waited = self.0.wait() => waited?,
                () = self.0.recovered.notified() => {}
            }
        }
    }

    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError> {
        if ids.is_empty() {
            return Ok(());
        }
        let Inner { server, keys, taker, .. } = &*self.0;
        let mut command = redis::cmd("HDEL");
        command.arg(&taker.taken).arg(ids);
        server.call(keys.slot, Traffic::Lane, &command).await.map_err(unavailable)?;
        self.0.settled(ids.iter());
        Ok(())
    }

    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError> {
        if rejected.is_empty() {
            return Ok(());
        }
        let Inner { server, keys, taker, .. } = &*self.0;
        let mut call = SCRIPTS.reject.call([&taker.taken, &keys.dead].map(String::as_str).into_iter());
        for (message, reason) in rejected {
            call.arg(&message.id).arg(dead_letter(message, reason));
        }
        server.run(&SCRIPTS.reject, keys.slot, Traffic::Lane, &call).await.map_err(unavailable)?;
        self.0.settled(rejected.iter().map(|(message, _)| &message.id));
        Ok(())
    }

    async fn recover(&self, living: &[SessionId]) -> Result<(), IntakeError> {
        let Inner { server, keys, taker, recovered, .. } = &*self.0;
        let mut waiting = false;
        for session in self.0.takers().await? {
            let gone = keys.taker(session);
            if living.contains(&session) || gone.name == taker.name {
                continue;
            }
            let mut call = SCRIPTS.recover.call(keys.with(&gone));
            call.arg(&gone.name);
            let answer = server.run(&SCRIPTS.recover, keys.slot, Traffic::Lane, &call).await;
            waiting |= answer.map_err(unavailable)? != Value::Int(0);
        }
        if waiting {
            recovered.notify_one();
        }
        Ok(())
    }
}

/// The number at the end of an id: it rises with every message of a taker.
fn number_of(id: &str) -> u64 {
    id.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(error: CallError) -> IntakeError {
    IntakeError::Unavailable { source: error.into() }
}

/// Messages from ids and bodies in turn.
fn messages(answer: Value) -> Result<Vec<IntakeMessage>, IntakeError> {
    let pairs: Vec<(String, Vec<u8>)> =
        redis::from_redis_value(answer).map_err(|error| IntakeError::Unavailable { source: error.into() })?;
    Ok(pairs.into_iter().map(|(id, body)| IntakeMessage { id, body }).collect())
}

/// The stored form of a rejected message. A body that is no text is stored as hexadecimal digits.
fn dead_letter(message: &IntakeMessage, reason: &str) -> String {
    const DIGITS: &[u8] = b"0123456789abcdef";
    let digit = |number: u8| char::from(DIGITS[usize::from(number)]);
    let body = match std::str::from_utf8(&message.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => {
            ("bodyHex", message.body.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
        }
    };
    serde_json::json!({ "id": message.id, "reason": reason, body.0: body.1 }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_share_the_slot_of_the_inbox() {
        let keys = IntakeKeys::new("tl", true);
        assert_eq!((keys.inbox.as_str(), keys.dead.as_str()), ("tl:inbox", "{tl:inbox}:dead"));
        assert_eq!(IntakeKeys::new("tl", false).dead, "tl:inbox:dead");
        let taker = keys.taker(SessionId::from_random(1));
        for key in keys.with(&taker).chain([keys.dead.as_str()]) {
            let tag = key.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or(key, |(tag, _)| tag);
            assert_eq!(slot_of(tag), keys.slot, "{key}");
        }
    }

    #[test]
    fn a_dead_letter_says_what_and_why() {
        let letter = |body: &[u8]| {
            let message = IntakeMessage { id: "s-1".to_owned(), body: body.to_vec() };
            dead_letter(&message, "line \"1\"")
        };
        assert_eq!(letter(b"{}"), r#"{"body":"{}","id":"s-1","reason":"line \"1\""}"#);
        assert_eq!(letter(b"\xff\x00"), r#"{"bodyHex":"ff00","id":"s-1","reason":"line \"1\""}"#);
    }
}

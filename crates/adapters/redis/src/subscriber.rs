//! Subscriptions: one connection for all subscriptions of a process. It reconnects after a loss.
//!
//! A task keeps the subscriptions at the server equal to the requested ones. In a cluster channels belong to
//! slots as keys do (`SSUBSCRIBE`), so there is one connection for each node in use, and a channel follows
//! its slot. Messages published while a connection is lost are lost; the listeners are notified of the gap. A
//! connection that was silent for a while receives a ping. Without listeners there is no connection.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connect::{Place, Server};
use crate::connection::{LiveConnection, Pushes};
use crate::error::{CallError, is_passing_refusal};

/// Pause before a failed subscription is retried.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Pause before a refused subscription is retried: an administrator has to grant the right first.
const REFUSED_FOR: Duration = LOOK_EVERY;
/// Connections are checked this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A connection that was silent between so many checks receives a ping.
const SILENT_LOOKS: u32 = 3;

/// Receives the messages of a channel. The connection calls it, so it must be quick.
pub(crate) trait Listener: Send + Sync {
    /// A message was published.
    fn hear(&self, payload: &Arc<Vec<u8>>);

    /// The subscription is active from now on. Earlier messages may be lost.
    fn resumed(&self);
}

/// Makes the subscriptions of a process.
#[derive(Debug)]
pub(crate) struct Subscriber {
    shared: Arc<SubscriberShared>,
    /// The task, while there are listeners.
    running: Mutex<Weak<SubscriberTask>>,
}

struct SubscriberShared {
    server: Arc<Server>,
    channels: Mutex<HashMap<String, Channel>>,
    woken: Notify,
}

struct Channel {
    slot: u16,
    listeners: Vec<Arc<dyn Listener>>,
    /// The node where it is subscribed.
    at: Option<Place>,
    /// Callers that wait for the subscription.
    waiting: Vec<oneshot::Sender<Result<(), RedisError>>>,
}

#[derive(Debug)]
struct SubscriberTask(JoinHandle<()>);

impl Drop for SubscriberTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for SubscriberShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriberShared").field("server", &self.server).finish_non_exhaustive()
    }
}

/// A subscription of a channel, until it is dropped.
pub(crate) struct ChannelSubscription {
    shared: Arc<SubscriberShared>,
    name: String,
    listener: Arc<dyn Listener>,
    _running: Arc<SubscriberTask>,
}

impl fmt::Debug for ChannelSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelSubscription").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Subscriber {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        let shared = SubscriberShared { server, channels: Mutex::default(), woken: Notify::new() };
        Self { shared: Arc::new(shared), running: Mutex::default() }
    }

    /// Subscribes to a channel. The receiver gets the server's confirmation, or the error of the first
    /// attempt; the subscription is retried after an error too.
    pub(crate) fn listen(
        &self,
        name: &str,
        slot: u16,
        listener: Arc<dyn Listener>,
    ) -> (ChannelSubscription, oneshot::Receiver<Result<(), RedisError>>) {
        let running = {
            let mut place = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            place.upgrade().unwrap_or_else(|| {
                // The subscriptions of the last task ended with its connections.
                self.shared.lock().values_mut().for_each(|channel| channel.at = None);
                let running = Arc::new(SubscriberTask(tokio::spawn(run(Arc::clone(&self.shared)))));
                *place = Arc::downgrade(&running);
                running
            })
        };
        let (confirm, confirmed) = oneshot::channel();
        {
            let mut channels = self.shared.lock();
            let new = || Channel { slot, listeners: Vec::new(), at: None, waiting: Vec::new() };
            let channel = channels.entry(name.to_owned()).or_insert_with(new);
            channel.listeners.push(Arc::clone(&listener));
            if channel.at.is_some() {
                let _ = confirm.send(Ok(()));
            } else {
                channel.waiting.push(confirm);
            }
        }
        self.shared.woken.notify_one();
        let shared = Arc::clone(&self.shared);
        (ChannelSubscription { shared, name: name.to_owned(), listener, _running: running }, confirmed)
    }
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        let mut channels = self.shared.lock();
        if let Some(channel) = channels.get_mut(&self.name) {
            channel.listeners.retain(|listener| !Arc::ptr_eq(listener, &self.listener));
            if channel.listeners.is_empty() {
                channels.remove(&self.name);
                self.shared.woken.notify_one();
            }
        }
    }
}

impl SubscriberShared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, name: &[u8], payload: Vec<u8>) {
        let Ok(name) = std::str::from_utf8(name) else { return };
        if let Some(channel) = self.lock().get(name) {
            let payload = Arc::new(payload);
            channel.listeners.iter().for_each(|listener| listener.hear(&payload));
        }
    }

    fn subscribed(&self, name: &str, place: &Place) {
        if let Some(channel) = self.lock().get_mut(name) {
            channel.at = Some(place.clone());
            channel.waiting.drain(..).for_each(|waiting| _ = waiting.send(Ok(())));
            channel.listeners.iter().for_each(|listener| listener.resumed());
        }
    }

    fn failed(&self, name: &str, error: &RedisError) {
        if let Some(channel) = self.lock().get_mut(name) {
            channel.waiting.drain(..).for_each(|waiting| _ = waiting.send(Err(error.clone())));
        }
    }

    /// Channels that are not subscribed yet.
    fn missing(&self) -> Vec<(String, u16)> {
        let channels = self.lock();
        let missing = channels.iter().filter(|(_, channel)| channel.at.is_none());
        missing.map(|(name, channel)| (name.clone(), channel.slot)).collect()
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// All channels of that node have to be subscribed again.
    fn lost(&self, place: &Place) {
        for channel in self.lock().values_mut().filter(|channel| channel.at.as_ref() == Some(place)) {
            channel.at = None;
        }
    }
}

/// A connection to one node.
struct NodeConnection {
    live: LiveConnection,
    health: Arc<ConnectionHealth>,
    /// Channels subscribed on it.
    names: HashSet<String>,
}

/// Health of a connection.
#[derive(Debug, Default)]
struct ConnectionHealth {
    /// It is lost, or has sent an unexpected message.
    broken: AtomicBool,
    /// Checks since the last message.
    silent: AtomicU32,
}

impl NodeConnection {
    async fn connect(shared: &Arc<SubscriberShared>, place: &Place) -> Result<Self, RedisError> {
        let health = Arc::new(ConnectionHealth::default());
        let pushes = pushes(Arc::downgrade(shared), Arc::clone(&health));
        let live = shared.server.dial(place, Duration::ZERO, Some(pushes)).await?;
        Ok(Self { live, health, names: HashSet::new() })
    }

    fn is_broken(&self) -> bool {
        self.live.is_lost() || self.health.broken.load(Ordering::Acquire)
    }
}

fn pushes(shared: Weak<SubscriberShared>, health: Arc<ConnectionHealth>) -> Pushes {
    let hear = move |push: PushInfo| {
        let Some(shared) = shared.upgrade() else { return Err(()) };
        health.silent.store(0, Ordering::Relaxed);
        let mut data = push.data.into_iter();
        match (push.kind, data.next(), data.next()) {
            (
                PushKind::Message | PushKind::SMessage,
                Some(Value::BulkString(name)),
                Some(Value::BulkString(payload)),
            ) => shared.hear(&name, payload),
            // The slot has moved away with its channels. The server pushed this message, but the client has
            // counted it as the answer to a command: its later answers cannot be trusted.
            (PushKind::SUnsubscribe, Some(Value::BulkString(name)), _)
                if std::str::from_utf8(&name).is_ok_and(|name| shared.is_wanted(name)) =>
            {
                health.broken.store(true, Ordering::Release);
                shared.server.distrust_places();
                shared.woken.notify_one();
            }
            (PushKind::Disconnection, ..) => {
                health.broken.store(true, Ordering::Release);
                shared.woken.notify_one();
            }
            _ => {}
        }
        Ok(())
    };
    Arc::new(hear)
}

async fn run(shared: Arc<SubscriberShared>) {
    let mut connections: HashMap<Place, NodeConnection> = HashMap::new();
    let mut look_at = Instant::now() + LOOK_EVERY;
    loop {
        connections.retain(|place, connection| {
            let broken = connection.is_broken();
            if broken {
                shared.lost(place);
            }
            !broken
        });
        let again_after = subscribe_missing(&shared, &mut connections).await;
        unsubscribe_unwanted(&shared, &mut connections).await;
        let until = again_after.map_or(look_at, |pause| look_at.min(Instant::now() + pause));
        tokio::select! {
            () = shared.woken.notified() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        if Instant::now() >= look_at {
            ask_the_silent(&connections).await;
            look_at = Instant::now() + LOOK_EVERY;
        }
    }
}

/// Subscribes the missing channels. Answers when to retry, if some are still missing.
async fn subscribe_missing(
    shared: &Arc<SubscriberShared>,
    connections: &mut HashMap<Place, NodeConnection>,
) -> Option<Duration> {
    let mut by_place: HashMap<Place, Vec<String>> = HashMap::new();
    let mut again_after = None;
    for (name, slot) in shared.missing() {
        match shared.server.place_of(slot).await {
            Ok(place) => by_place.entry(place).or_default().push(name),
            Err(CallError::NotSent(error) | CallError::Sent(error)) => {
                again_after = sooner(again_after, Some(AGAIN_AFTER));
                shared.failed(&name, &error);
            }
        }
    }
    let subscribed = by_place.into_iter().map(|(place, names)| {
        let connection = connections.remove(&place);
        async move {
            let connection = match connection {
                Some(connection) => Ok(connection),
                None => NodeConnection::connect(shared, &place).await,
            };
            match connection {
                Ok(mut connection) => {
                    let again_after = subscribe(shared, &place, &mut connection, names).await;
                    (place, Some(connection), again_after)
                }
                Err(error) => {
                    shared.server.distrust_places();
                    for name in &names {
                        shared.failed(name, &error);
                    }
                    (place, None, Some(AGAIN_AFTER))
                }
            }
        }
    });
    for (place, connection, pause) in join_all(subscribed).await {
        again_after = sooner(again_after, pause);
        if let Some(connection) = connection {
            connections.insert(place, connection);
        }
    }
    again_after
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

async fn subscribe(
    shared: &SubscriberShared,
    place: &Place,
    connection: &mut NodeConnection,
    names: Vec<String>,
) -> Option<Duration> {
    let command = if shared.server.is_cluster() { "SSUBSCRIBE" } else { "SUBSCRIBE" };
    // One command for each channel, so that each has one answer. They travel together.
    let live = &connection.live;
    let asked = names.iter().map(|name| async move { live.send(redis::cmd(command).arg(name)).await });
    let answers = join_all(asked).await;
    let mut again_after = None;
    for (name, answer) in names.into_iter().zip(answers) {
        match answer {
            Ok(_) => {
                shared.subscribed(&name, place);
                connection.names.insert(name);
            }
            Err(error) => {
                let refused = error.code().is_some_and(|code| !is_passing_refusal(code));
                let pause = if refused { REFUSED_FOR } else { AGAIN_AFTER };
                again_after = sooner(again_after, Some(pause));
                shared.failed(&name, &error);
                shared.server.distrust_places();
                if error.is_io_error() || error.is_unrecoverable_error() {
                    connection.health.broken.store(true, Ordering::Release);
                }
            }
        }
    }
    again_after
}

async fn unsubscribe_unwanted(shared: &SubscriberShared, connections: &mut HashMap<Place, NodeConnection>) {
    let command = if shared.server.is_cluster() { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
    for connection in connections.values_mut() {
        let unwanted: Vec<String> =
            connection.names.iter().filter(|name| !shared.is_wanted(name)).cloned().collect();
        let live = &connection.live;
        let asked = unwanted.iter().map(|name| async move { live.send(redis::cmd(command).arg(name)).await });
        if join_all(asked).await.iter().any(Result::is_err) {
            connection.health.broken.store(true, Ordering::Release);
            shared.woken.notify_one();
        }
        for name in &unwanted {
            connection.names.remove(name);
        }
    }
    connections.retain(|_, connection| !connection.names.is_empty());
}

async fn ask_the_silent(connections: &HashMap<Place, NodeConnection>) {
    let silent = connections.values().filter(|connection| {
        let looks = connection.health.silent.fetch_add(1, Ordering::Relaxed) + 1;
        looks.is_multiple_of(SILENT_LOOKS)
    });
    let asked = silent.map(|connection| async move {
        if connection.live.send(&redis::cmd("PING")).await.is_err() {
            connection.health.broken.store(true, Ordering::Release);
        }
    });
    join_all(asked).await;
}

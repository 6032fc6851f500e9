//! Receives notifications of changes by `LISTEN`, on a connection of its own.
//!
//! A pooler in transaction mode gives the server connection to other clients after each transaction. It
//! acknowledges `LISTEN`, but no notification ever arrives. So each new connection is probed: a notification
//! sent over another connection must arrive. Where it does not, the listener logs one warning, watches find
//! changes by reading alone, and the probe is repeated after [`TRY_AGAIN_AFTER`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_ports::membership::ChangeNotices;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::Notification;
use tokio_postgres::types::Type;

use crate::connect::Connection;
use crate::coordinator::Calls;
use crate::error::CallError;

/// Pause before a lost connection is made again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Pause before the next probe where the last one failed.
const TRY_AGAIN_AFTER: Duration = Duration::from_mins(1);
/// A probe whose notification has not arrived after this long has failed.
const HEARD_WITHIN: Duration = Duration::from_secs(5);
/// An idle connection is checked this often.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Prefix of the notifications that probe a connection.
const TRIAL: &str = "trial ";

/// Received notices of changes, and the state of the probe.
#[derive(Debug, Default)]
pub(crate) struct ListenState {
    changed: Notify,
    /// The payload that a probe waits for, and its waiter.
    trial: Mutex<Option<(String, oneshot::Sender<()>)>>,
    /// The last probe failed.
    not_listening: AtomicBool,
}

impl ListenState {
    pub(crate) fn warning(&self) -> Option<String> {
        let sentence = "notifications of PostgreSQL do not arrive, as behind a pooler in transaction mode: changes of \
                        members and grants are noticed up to a second later; give the coordinator a URL that leads to \
                        the server itself";
        self.not_listening.load(Ordering::Acquire).then(|| sentence.to_owned())
    }

    fn hear(&self, payload: &str) {
        if !payload.starts_with(TRIAL) {
            self.changed.notify_one();
        } else if let Some((_, heard)) = self.lock().take_if(|(trial, _)| trial == payload) {
            let _ = heard.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(String, oneshot::Sender<()>)>> {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listening task. It stops when this is dropped.
pub(crate) struct NotificationListener {
    state: Arc<ListenState>,
    task: JoinHandle<()>,
}

impl NotificationListener {
    pub(crate) fn start(calls: Arc<Calls>, channel: String, state: Arc<ListenState>) -> Self {
        let task = tokio::spawn(run(calls, channel, Arc::clone(&state)));
        Self { state, task }
    }
}

impl Drop for NotificationListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[async_trait]
impl ChangeNotices for NotificationListener {
    async fn next(&mut self) {
        self.state.changed.notified().await;
    }
}

async fn run(calls: Arc<Calls>, channel: String, state: Arc<ListenState>) {
    loop {
        let pause = match listen(&calls, &channel, &state).await {
            Ok(Some(connection)) => {
                state.not_listening.store(false, Ordering::Release);
                // Earlier changes may have been missed.
                state.changed.notify_one();
                until_lost(&calls, connection).await;
                AGAIN_AFTER
            }
            Ok(None) => {
                if !state.not_listening.swap(true, Ordering::AcqRel) {
                    tracing::warn!("{}", state.warning().unwrap_or_default());
                }
                TRY_AGAIN_AFTER
            }
            Err(_) => AGAIN_AFTER,
        };
        tokio::time::sleep(pause).await;
    }
}

/// A connection that receives notifications, or `None` if the probe failed.
async fn listen(
    calls: &Calls,
    channel: &str,
    state: &Arc<ListenState>,
) -> Result<Option<Connection>, CallError> {
    let hearing = Arc::clone(state);
    let heard = move |notification: Notification| hearing.hear(notification.payload());
    let (client, driver) = calls.database.open_listening(heard).await?;
    let connection = Connection { client, driver };
    let sql = format!("LISTEN \"{channel}\"");
    calls.database.in_time(connection.client.batch_execute(&sql)).await?;
    let trial = format!("{TRIAL}{:032x}", rand::random::<u128>());
    let (heard, hears) = oneshot::channel();
    *state.lock() = Some((trial.clone(), heard));
    calls.query("SELECT pg_notify($1, $2)", &[(&channel, Type::TEXT), (&trial, Type::TEXT)]).await?;
    let heard = tokio::time::timeout(HEARD_WITHIN, hears).await;
    Ok(matches!(heard, Ok(Ok(()))).then_some(connection))
}

async fn until_lost(calls: &Calls, mut connection: Connection) {
    loop {
        tokio::select! {
            _ = &mut connection.driver => return,
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
        if calls.database.in_time(connection.client.batch_execute("")).await.is_err() {
            return;
        }
    }
}

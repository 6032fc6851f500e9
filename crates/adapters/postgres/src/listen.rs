//! Hears of changes by `LISTEN`, on a connection of its own.
//!
//! Behind a pooler that gives a connection to somebody else after each transaction, `LISTEN` is answered as if all were
//! well, and nothing is ever heard. So each time the connection is made it is tried out: a notification sent over
//! another connection must come back. Where it does not, that is told once, and changes are found by looking alone;
//! now and then it is tried again.

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

/// Pause before a connection that was lost is made anew.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Pause before it is tried again to hear something, where nothing could be heard.
const TRY_AGAIN_AFTER: Duration = Duration::from_mins(1);
/// What has not come back after this long will not.
const HEARD_WITHIN: Duration = Duration::from_secs(5);
/// A connection is asked this often whether it still is one.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Begins what is sent to try a connection out.
const TRIAL: &str = "trial ";

/// What was heard, and whether anything can be.
#[derive(Debug, Default)]
pub(crate) struct ListenState {
    changed: Notify,
    /// What a trial waits for, and who is told that it came.
    trial: Mutex<Option<(String, oneshot::Sender<()>)>>,
    /// The last trial was in vain.
    not_listening: AtomicBool,
}

impl ListenState {
    pub(crate) fn warning(&self) -> Option<String> {
        let sentence = "notifications of PostgreSQL are not heard, as behind a pooler in transaction mode: changes of \
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

/// Listens until it is dropped.
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
                // Before, something may have been missed.
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

/// A connection that hears, or `None` if it hears nothing.
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

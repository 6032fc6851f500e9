//! The connections that owners commit over.
//!
//! All lanes share two of them: more only make commits wait for each other inside the server. All commits of
//! a lane use the same one, so that they arrive in their order even when the next one is sent before the last
//! is answered. For the same reason nothing is awaited between the call and the sending, once the connection
//! is there.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Row, Statement};

use crate::connect::Database;
use crate::error::CallError;
use crate::write_lane::LaneWrite;

/// A connection that is made at first use, and again after it has broken.
#[derive(Debug, Default)]
pub(crate) struct CommitConnection {
    session: Mutex<Option<Arc<Session>>>,
    /// Held while a caller connects.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection, and the one statement that goes over it.
#[derive(Debug)]
struct Session {
    client: Client,
    write: Statement,
    driver: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // No caller waits for an answer any more.
        self.driver.abort();
    }
}

impl CommitConnection {
    pub(crate) async fn write(&self, database: &Database, write: &LaneWrite) -> Result<Row, CallError> {
        let session = match self.current() {
            Some(session) => session,
            None => self.connect(database).await?,
        };
        let answer = database.in_time(session.client.query_one(&session.write, &write.params())).await;
        if answer.as_ref().is_err_and(CallError::is_fatal) {
            self.forget(&session);
        }
        answer
    }

    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.lock().as_ref().filter(|session| !session.client.is_closed()).cloned()
    }

    async fn connect(&self, database: &Database) -> Result<Arc<Session>, CallError> {
        let _connecting = self.connecting.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let (client, driver) = database.open().await?;
        let prepared = client.prepare(&database.statements.write).await;
        let write = prepared.map_err(CallError::NoConnection)?;
        let session = Arc::new(Session { client, write, driver });
        *self.lock() = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Drops a connection that has failed, unless another has replaced it already.
    fn forget(&self, failed: &Arc<Session>) {
        let mut session = self.lock();
        if session.as_ref().is_some_and(|session| Arc::ptr_eq(session, failed)) {
            *session = None;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Intake: tasks from outside, as messages.

use async_trait::async_trait;
use tasklane_core::id::SessionId;

use crate::IntakeError;

/// Takes task requests from a list, topic or subject that other programs publish to. A handle is one taker;
/// it takes under the name of the session that it was opened for.
///
/// Promises:
/// 1. An unacknowledged message is delivered again, to this taker or another, when its taker is lost.
/// 2. A rejected message is kept at the dead-letter place with the reason, and not delivered again.
/// 3. A message keeps its id over all deliveries, and no other message ever has that id: where a request
///    names no id of its own, the message id makes it safe to repeat.
/// 4. An acknowledged message is not delivered again.
/// 5. A message is with one taker at a time, as long as that taker is not declared lost.
#[async_trait]
pub trait Intake: Send + Sync + std::fmt::Debug {
    /// Waits for messages and takes up to `limit`, the oldest first. Safe to cancel.
    async fn take(&self, limit: usize) -> Result<Vec<IntakeMessage>, IntakeError>;

    /// Acknowledges messages whose tasks are durable.
    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError>;

    /// Moves messages that cannot be understood to the dead-letter place, with the reasons given.
    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError>;

    /// Requeues unacknowledged messages of takers that are not among the living. The server calls it with all
    /// live sessions whenever members have left. Systems that notice lost takers by themselves need no call.
    async fn recover(&self, living: &[SessionId]) -> Result<(), IntakeError> {
        let _ = living;
        Ok(())
    }
}

/// A message from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeMessage {
    /// The system's own name for it.
    pub id: String,
    /// JSON, as the API takes it.
    pub body: Vec<u8>,
}

//! Intake: tasks from outside by message.

use async_trait::async_trait;
use tasklane_core::id::SessionId;

use crate::IntakeError;

/// Takes submissions from a list, topic or subject that others publish to. A handle is one taker; it takes under the
/// name of the session that it was opened for.
///
/// Promises:
/// 1. A message that was not acknowledged is given again, to this taker or another, when its taker is gone.
/// 2. A message that was rejected is kept at the dead-letter place with the reason, and not given again.
/// 3. A message keeps its id when it is given again, and no other message ever has it: where a request names no id of its
///    own, this one makes it safe to repeat.
/// 4. One that was acknowledged is not given again.
/// 5. A message is given to one taker at a time, as long as that taker is not declared gone.
#[async_trait]
pub trait Intake: Send + Sync + std::fmt::Debug {
    /// Waits for messages and takes up to `limit`, the oldest first. Safe to cancel.
    async fn take(&self, limit: usize) -> Result<Vec<IntakeMessage>, IntakeError>;

    /// What these ask for is durable.
    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError>;

    /// These cannot be understood, for the reasons given.
    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError>;

    /// Gives what other takers have not acknowledged again, if they are not among the living. To be called whenever
    /// members have gone, with all sessions that are alive. Systems that notice by themselves need not be told.
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

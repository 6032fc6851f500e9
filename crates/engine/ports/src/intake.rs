//! Intake: tasks from outside by message.

use async_trait::async_trait;

use crate::IntakeError;

/// Takes submissions from a list, topic or subject that others publish to.
///
/// Promises:
/// 1. A message that was not acknowledged is given again, to this taker or another.
/// 2. A message that was rejected is kept at the dead-letter place with the reason, and not given again.
#[async_trait]
pub trait Intake: Send + Sync + std::fmt::Debug {
    /// Waits for messages and takes up to `limit`.
    async fn take(&self, limit: usize) -> Result<Vec<IntakeMessage>, IntakeError>;

    /// What these ask for is durable.
    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError>;

    /// These cannot be understood.
    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError>;
}

/// A message from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeMessage {
    /// The system's own name for it.
    pub id: String,
    /// JSON, as the API takes it.
    pub body: Vec<u8>,
}

//! Taking in tasks that others publish by message.
//!
//! A message is acknowledged when what it asks for is durable, so it may come again. Then it must not become a second task:
//! one without a request id gets one made of the message's own name, which stays the same however often it comes.

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_ports::{Intake, IntakeError, IntakeMessage};

use crate::request::TaskRequest;

use super::Node;
use super::submit::SubmitError;

/// Messages taken in one go.
const BATCH: usize = 500;
/// Wait after the intake or the store has failed, or while a queue is full.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Node {
    /// Takes tasks of a namespace in, for ever.
    pub async fn take_in(&self, intake: Arc<dyn Intake>, namespace: Name) {
        loop {
            if let Err(error) = self.take_some(&*intake, &namespace).await {
                tracing::warn!(%error, "messages cannot be taken in, trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }

    async fn take_some(&self, intake: &dyn Intake, namespace: &Name) -> Result<(), IntakeError> {
        let mut open = intake.take(BATCH).await?;
        loop {
            let (mut taken, mut rejected, mut later) = (Vec::new(), Vec::new(), Vec::new());
            let mut requests = Vec::new();
            for message in open {
                match read(&message) {
                    Ok(request) => requests.push((message, request)),
                    Err(reason) => rejected.push((message, reason)),
                }
            }
            let (messages, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
            for (message, answer) in messages.into_iter().zip(self.submit(namespace, requests).await) {
                match answer {
                    Ok(_) => taken.push(message.id),
                    Err(SubmitError::QueueFull { .. }) => later.push(message),
                    Err(SubmitError::Store(error)) if error.is_retryable() => later.push(message),
                    Err(
                        error @ (SubmitError::Invalid(_)
                        | SubmitError::RequestIdReused { .. }
                        | SubmitError::Store(_)),
                    ) => {
                        rejected.push((message, error.to_string()));
                    }
                }
            }
            // Until it is done, which can be done twice: nobody else knows of these, nor of those for later.
            while let Err(error) = settle(intake, &taken, &rejected).await {
                tracing::warn!(%error, "messages cannot be acknowledged, trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            if later.is_empty() {
                return Ok(());
            }
            // Those behind wait too: the order in which messages came is kept as far as it can be.
            tokio::time::sleep(AGAIN_AFTER).await;
            open = later;
        }
    }
}

async fn settle(
    intake: &dyn Intake,
    taken: &[String],
    rejected: &[(IntakeMessage, String)],
) -> Result<(), IntakeError> {
    intake.acknowledge(taken).await?;
    intake.reject(rejected).await
}

fn read(message: &IntakeMessage) -> Result<TaskRequest, String> {
    let mut request = TaskRequest::from_json(&message.body).map_err(|error| error.to_string())?;
    request.request_id.get_or_insert_with(|| format!("intake:{}", message.id));
    Ok(request)
}

//! Accepting tasks that clients publish as messages.
//!
//! The intake acknowledges a message when its task is durable, so the message may come again. Then it must
//! not become a second task: a message without a request id gets one made of its own name, which stays the
//! same at every delivery.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_ports::{Intake, IntakeError, IntakeMessage, StoreError};
use tokio::time::Instant;

use crate::request::TaskRequest;

use super::Node;
use super::submit::SubmitError;

/// Messages taken together.
const BATCH: usize = 500;
/// Wait after the intake or the store has failed, or while a queue is full.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Most waiting messages, and their bytes, while messages for other queues go on; beyond that, all wait.
const WAITING_MAX: usize = 5_000;
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A message that was taken.
#[derive(Debug)]
struct PendingMessage {
    message: IntakeMessage,
    /// Its queue, if the message was parsed before.
    queue: Option<Name>,
}

/// Messages that could not be stored yet, as they came.
#[derive(Debug, Default)]
struct UnstoredMessages {
    open: Vec<PendingMessage>,
    bytes: usize,
    /// Queues that are full or whose submit failed: later messages for them wait behind.
    held: HashSet<Name>,
    /// The last error of the store.
    store_error: Option<Arc<StoreError>>,
}

impl UnstoredMessages {
    fn push(&mut self, open: PendingMessage) {
        if let Some(queue) = &open.queue
            && !self.held.contains(queue)
        {
            self.held.insert(queue.clone());
        }
        self.bytes += open.message.body.len();
        self.open.push(open);
    }

    fn has_room(&self) -> bool {
        self.open.len() < WAITING_MAX && self.bytes < WAITING_BYTES_MAX
    }
}

impl Node {
    /// Accepts tasks of a namespace. Never returns.
    pub async fn take_in(&self, intake: Arc<dyn Intake>, namespace: Name) {
        let mut waiting = UnstoredMessages::default();
        let (mut again_at, mut reported) = (Instant::now(), (false, true));
        // Kept while waiting messages are retried: dropping it may cost a connection.
        let mut take = intake.take(BATCH);
        loop {
            let taken = tokio::select! {
                () = tokio::time::sleep_until(again_at), if !waiting.open.is_empty() => {
                    Ok(std::mem::take(&mut waiting).open)
                }
                taken = &mut take, if waiting.has_room() => {
                    take = intake.take(BATCH);
                    taken.map(|taken| taken.into_iter().map(|message| PendingMessage { message, queue: None }).collect())
                }
            };
            let open: Vec<PendingMessage> = match taken {
                Ok(open) => open,
                Err(error) => {
                    tracing::warn!(%error, "the intake failed to give messages, retrying");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            let is_first = waiting.open.is_empty();
            self.take_all(&*intake, &namespace, open, &mut waiting).await;
            if is_first {
                again_at = Instant::now() + AGAIN_AFTER;
            }
            let state = (!waiting.open.is_empty(), waiting.has_room());
            if state.0 && reported != state {
                let UnstoredMessages { open, held, store_error, .. } = &waiting;
                let store = store_error.as_ref().map(tracing::field::display);
                tracing::warn!(messages = open.len(), ?held, store, "messages wait until they can be stored");
            }
            reported = state;
        }
    }

    async fn take_all(
        &self,
        intake: &dyn Intake,
        namespace: &Name,
        mut open: Vec<PendingMessage>,
        waiting: &mut UnstoredMessages,
    ) {
        while !open.is_empty() {
            let rest = open.split_off(open.len().min(BATCH));
            for alone in self.take_some(intake, namespace, open, waiting).await {
                self.take_some(intake, namespace, vec![alone], waiting).await;
            }
            open = rest;
        }
    }

    /// Stores the tasks of messages, as far as possible now. Returns the messages to try alone: the store may
    /// refuse one of them.
    async fn take_some(
        &self,
        intake: &dyn Intake,
        namespace: &Name,
        open: Vec<PendingMessage>,
        waiting: &mut UnstoredMessages,
    ) -> Vec<PendingMessage> {
        let (mut taken, mut rejected, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ready, mut requests) = (Vec::new(), Vec::new());
        for PendingMessage { message, queue } in open {
            if queue.as_ref().is_some_and(|queue| waiting.held.contains(queue)) {
                waiting.push(PendingMessage { message, queue });
                continue;
            }
            match read(&message) {
                Ok(request) => {
                    let open = PendingMessage { message, queue: Some(request.queue.clone()) };
                    if waiting.held.contains(&request.queue) {
                        waiting.push(open);
                    } else {
                        ready.push(open);
                        requests.push(request);
                    }
                }
                Err(reason) => rejected.push((message, reason)),
            }
        }
        let is_alone = requests.len() == 1;
        let answers = self.submit(namespace, requests).await;
        for (open, answer) in ready.into_iter().zip(answers) {
            match answer {
                Ok(_) => taken.push(open.message.id),
                Err(SubmitError::QueueFull { .. }) => waiting.push(open),
                Err(error @ (SubmitError::Invalid(_) | SubmitError::RequestIdReused { .. })) => {
                    rejected.push((open.message, error.to_string()));
                }
                Err(SubmitError::Store(error)) => match &*error {
                    StoreError::TooLarge { .. } if is_alone => {
                        rejected.push((open.message, error.to_string()));
                    }
                    StoreError::TooLarge { .. } => alone.push(open),
                    // Not a fault of the message: the store is unavailable, its password is wrong, or its
                    // data of this queue is.
                    _ => {
                        waiting.store_error = Some(error);
                        waiting.push(open);
                    }
                },
            }
        }
        // Until it is done, which is safe to repeat: no other server has these messages.
        while let Err(error) = settle(intake, &taken, &rejected).await {
            tracing::warn!(%error, "the intake did not acknowledge messages, retrying");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        alone
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
    let mut request = TaskRequest::from_json(&message.body).map_err(|error| match error.field.as_str() {
        "" => format!("the message must be one JSON object: {}", error.message),
        _ => error.to_string(),
    })?;
    request.request_id.get_or_insert_with(|| format!("intake:{}", message.id));
    Ok(request)
}

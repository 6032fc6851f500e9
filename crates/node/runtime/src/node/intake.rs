//! Taking in tasks that others publish by message.
//!
//! A message is acknowledged when what it asks for is durable, so it may come again. Then it must not become a second task:
//! one without a request id gets one made of the message's own name, which stays the same however often it comes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_ports::{Intake, IntakeError, IntakeMessage, StoreError};
use tokio::time::Instant;

use crate::request::TaskRequest;

use super::Node;
use super::submit::SubmitError;

/// Messages taken in one go.
const BATCH: usize = 500;
/// Wait after the intake or the store has failed, or while a queue is full.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Messages that wait here while those for other queues go on, and their bytes; when there are more, all wait.
const WAITING_MAX: usize = 5_000;
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A message that was taken.
#[derive(Debug)]
struct PendingMessage {
    message: IntakeMessage,
    /// Where it is to go, if it was read before.
    queue: Option<Name>,
}

/// Messages that could not be stored yet, as they came.
#[derive(Debug, Default)]
struct UnstoredMessages {
    open: Vec<PendingMessage>,
    bytes: usize,
    /// Queues that they are for, which are full or which the store failed for: what comes for one of these waits behind.
    held: HashSet<Name>,
    /// What the store said last.
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
    /// Takes tasks of a namespace in, for ever.
    pub async fn take_in(&self, intake: Arc<dyn Intake>, namespace: Name) {
        let mut waiting = UnstoredMessages::default();
        let (mut again_at, mut reported) = (Instant::now(), (false, true));
        // Kept while waiting messages are tried again: one that is given up may cost a connection.
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
                    tracing::warn!(%error, "messages cannot be taken in, trying again");
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

    /// Stores what messages ask for, as far as that can be done now. Answers those that should be tried alone: one of them
    /// may be what the store cannot take.
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
                    // No fault of the message: the store is away, or its password or what it has of this queue is wrong.
                    _ => {
                        waiting.store_error = Some(error);
                        waiting.push(open);
                    }
                },
            }
        }
        // Until it is done, which can be done twice: nobody else knows of these.
        while let Err(error) = settle(intake, &taken, &rejected).await {
            tracing::warn!(%error, "messages cannot be acknowledged, trying again");
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

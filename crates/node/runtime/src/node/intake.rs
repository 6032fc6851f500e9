//! Taking in tasks that others publish by message.
//!
//! A message is acknowledged when what it asks for is durable, so it may come again. Then it must not become a second task:
//! one without a request id gets one made of the message's own name, which stays the same however often it comes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_ports::{Intake, IntakeError, IntakeMessage};
use tokio::time::Instant;

use crate::request::TaskRequest;

use super::Node;
use super::submit::SubmitError;

/// Messages taken in one go.
const BATCH: usize = 500;
/// Wait after the intake or the store has failed, or while a queue is full.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Messages for full queues that wait here while those behind them go on; when there are more, all wait.
const WAITING_MAX: usize = 5_000;

/// Messages that were taken and could not be stored yet, as they came.
#[derive(Debug)]
struct Waiting {
    messages: Vec<IntakeMessage>,
    /// The queues that they are for: what comes for one of these waits behind them.
    full: HashSet<Name>,
    /// The store could not be written to: nothing more is taken.
    is_store_away: bool,
    again_at: Instant,
}

impl Waiting {
    /// Nothing waits.
    fn new() -> Self {
        Self {
            messages: Vec::new(),
            full: HashSet::new(),
            is_store_away: false,
            again_at: Instant::now() + AGAIN_AFTER,
        }
    }

    fn has_room(&self) -> bool {
        !self.is_store_away && self.messages.len() < WAITING_MAX
    }
}

impl Node {
    /// Takes tasks of a namespace in, for ever.
    pub async fn take_in(&self, intake: Arc<dyn Intake>, namespace: Name) {
        let mut waiting = Waiting::new();
        loop {
            let taken = tokio::select! {
                () = tokio::time::sleep_until(waiting.again_at), if !waiting.messages.is_empty() => {
                    Ok(std::mem::replace(&mut waiting, Waiting::new()).messages)
                }
                taken = intake.take(BATCH), if waiting.has_room() => taken,
            };
            match taken {
                Ok(mut messages) => {
                    while !messages.is_empty() {
                        let rest = messages.split_off(messages.len().min(BATCH));
                        self.take_some(&*intake, &namespace, messages, &mut waiting).await;
                        messages = rest;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "messages cannot be taken in, trying again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Stores what messages ask for, as far as that can be done now.
    async fn take_some(
        &self,
        intake: &dyn Intake,
        namespace: &Name,
        messages: Vec<IntakeMessage>,
        waiting: &mut Waiting,
    ) {
        if waiting.messages.is_empty() {
            *waiting = Waiting::new();
        }
        let (mut taken, mut rejected) = (Vec::new(), Vec::new());
        let (mut ready, mut requests) = (Vec::new(), Vec::new());
        for message in messages {
            match read(&message) {
                Ok(request) if waiting.full.contains(&request.queue) => waiting.messages.push(message),
                Ok(request) => {
                    ready.push((message, request.queue.clone()));
                    requests.push(request);
                }
                Err(reason) => rejected.push((message, reason)),
            }
        }
        let answers = self.submit(namespace, requests).await;
        for ((message, queue), answer) in ready.into_iter().zip(answers) {
            match answer {
                Ok(_) => taken.push(message.id),
                Err(SubmitError::QueueFull { .. }) => {
                    waiting.full.insert(queue);
                    waiting.messages.push(message);
                }
                Err(SubmitError::Store(error)) if error.is_retryable() => {
                    waiting.is_store_away = true;
                    waiting.messages.push(message);
                }
                Err(
                    error @ (SubmitError::Invalid(_)
                    | SubmitError::RequestIdReused { .. }
                    | SubmitError::Store(_)),
                ) => {
                    rejected.push((message, error.to_string()));
                }
            }
        }
        // Until it is done, which can be done twice: nobody else knows of these.
        while let Err(error) = settle(intake, &taken, &rejected).await {
            tracing::warn!(%error, "messages cannot be acknowledged, trying again");
            tokio::time::sleep(AGAIN_AFTER).await;
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

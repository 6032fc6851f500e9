//! Tasks by message: each is acknowledged or rejected, also when that fails at first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::id::QueueKey;
use tasklane_ports::{Intake, IntakeError, IntakeMessage, PutPolicy, StoreError};

use crate::support::{Fault, System, default_namespace, name};

/// Gives its messages once, one batch after the other. The first calls to settle them fail.
#[derive(Debug)]
struct Inbox {
    batches: Mutex<VecDeque<Vec<IntakeMessage>>>,
    failures: AtomicUsize,
    acknowledged: Mutex<Vec<String>>,
    rejected: Mutex<Vec<String>>,
    reasons: Mutex<Vec<String>>,
}

impl Inbox {
    fn new(batches: impl IntoIterator<Item = Vec<IntakeMessage>>, failures: usize) -> Arc<Self> {
        Arc::new(Self {
            batches: Mutex::new(batches.into_iter().collect()),
            failures: AtomicUsize::new(failures),
            acknowledged: Mutex::default(),
            rejected: Mutex::default(),
            reasons: Mutex::default(),
        })
    }

    /// Waits until this many messages are acknowledged, and returns them.
    async fn acknowledged(&self, count: usize) -> Vec<String> {
        while self.acknowledged.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.acknowledged.lock().unwrap().clone()
    }

    fn fails(&self) -> Result<(), IntakeError> {
        let left = self.failures.load(Ordering::Relaxed);
        self.failures.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 { Ok(()) } else { Err(IntakeError::Unavailable { source: "away".into() }) }
    }
}

#[async_trait]
impl Intake for Inbox {
    async fn take(&self, _: usize) -> Result<Vec<IntakeMessage>, IntakeError> {
        let next = self.batches.lock().unwrap().pop_front();
        match next {
            Some(messages) => Ok(messages),
            None => std::future::pending().await,
        }
    }

    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError> {
        self.fails()?;
        self.acknowledged.lock().unwrap().extend_from_slice(ids);
        Ok(())
    }

    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError> {
        self.fails()?;
        self.reasons.lock().unwrap().extend(rejected.iter().map(|(_, reason)| reason.clone()));
        self.rejected.lock().unwrap().extend(rejected.iter().map(|(message, _)| message.id.clone()));
        Ok(())
    }
}

fn message(id: &str, body: &str) -> IntakeMessage {
    IntakeMessage { id: id.to_owned(), body: body.as_bytes().to_vec() }
}

/// A message that asks for a task in a queue.
fn of(id: &str, queue: &str) -> IntakeMessage {
    let body = format!(r#"{{"taskName":"t","taskType":"nobody-offers-it","queue":"{queue}"}}"#);
    message(id, &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_acknowledged_at_first_is_acknowledged_later() {
    let system = System::start(Vec::new()).await;
    let good = message("good", r#"{"taskName":"t","taskType":"nobody-offers-it"}"#);
    let inbox = Inbox::new([vec![good, message("bad", "{")]], 1);
    let (node, taken) = (system.node.clone(), inbox.clone());
    let taking = tokio::spawn(async move { node.take_in(taken, default_namespace()).await });
    while inbox.rejected.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(*inbox.acknowledged.lock().unwrap(), ["good"]);
    assert_eq!(*inbox.rejected.lock().unwrap(), ["bad"]);
    taking.abort();
    system.close().await;
}

/// The reason was ": expected ident at line 1 column 2".
#[tokio::test(flavor = "multi_thread")]
async fn the_reason_of_a_rejected_message_is_a_sentence() {
    let system = System::start(Vec::new()).await;
    let wrong = ["hello", "[]", r#"{"taskName":"t"}"#];
    let inbox = Inbox::new([wrong.iter().map(|body| message(body, body)).collect()], 0);
    let (node, taken) = (system.node.clone(), inbox.clone());
    let taking = tokio::spawn(async move { node.take_in(taken, default_namespace()).await });
    while inbox.rejected.lock().unwrap().len() < wrong.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reasons = inbox.reasons.lock().unwrap().clone();
    assert_eq!(
        reasons,
        [
            "the message must be one JSON object: expected value at line 1 column 1",
            "the message must be one JSON object: invalid type: sequence, expected an object",
            "taskType: is required",
        ]
    );
    taking.abort();
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_does_not_hold_up_messages_for_others() {
    let system = System::start(Vec::new()).await;
    let queue = QueueKey::new(default_namespace(), name("small"));
    let mut policy = system.node.queue(&queue).await.unwrap().policy.policy;
    policy.len_max = Some(1);
    let put = PutPolicy { queue: queue.clone(), expected: 0, policy: policy.clone() };
    assert_eq!(system.node.put_policy(put).await.unwrap(), 1);

    let inbox = Inbox::new(
        [
            vec![of("small-1", "small"), of("small-2", "small"), of("other-1", "other")],
            vec![of("small-3", "small"), of("other-2", "other")],
        ],
        0,
    );
    let (node, taken) = (system.node.clone(), inbox.clone());
    let taking = tokio::spawn(async move { node.take_in(taken, default_namespace()).await });
    assert_eq!(inbox.acknowledged(3).await, ["small-1", "other-1", "other-2"]);

    policy.len_max = None;
    system.node.put_policy(PutPolicy { queue, expected: 1, policy }).await.unwrap();
    assert_eq!(inbox.acknowledged(5).await[3..], ["small-2", "small-3"]);
    taking.abort();
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_store_cannot_take_by_itself_is_rejected() {
    let system = System::start(Vec::new()).await;
    let refused = StoreError::Refused { reason: "another password".to_owned() };
    let too_large = || StoreError::TooLarge { what: "submit", size: 2, max: 1 };
    // The first two of the batch are valid, the third is not, and the fourth only seems to be at fault.
    let mut errors = VecDeque::from([
        Some(refused),
        Some(StoreError::corrupt("a policy that cannot be read")),
        Some(too_large()),
        Some(too_large()),
        Some(too_large()),
        None,
    ]);
    system.store.plan(move |verb| {
        if verb == "bind_queue" { errors.pop_front().flatten().map(Fault::Error) } else { None }
    });
    let inbox = Inbox::new([["a", "b", "c", "d"].map(|name| of(name, name)).to_vec()], 0);
    let (node, taken) = (system.node.clone(), inbox.clone());
    let taking = tokio::spawn(async move { node.take_in(taken, default_namespace()).await });
    assert_eq!(inbox.acknowledged(3).await, ["d", "a", "b"]);
    assert_eq!(*inbox.rejected.lock().unwrap(), ["c"]);
    taking.abort();
    system.close().await;
}

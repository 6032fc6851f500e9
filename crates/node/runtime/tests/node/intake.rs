//! Tasks by message: each is acknowledged or rejected, also when that fails at first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_ports::{Intake, IntakeError, IntakeMessage};

use crate::support::{System, default_namespace};

/// Gives its messages once. The first calls to settle them fail.
#[derive(Debug)]
struct Inbox {
    messages: Mutex<Vec<IntakeMessage>>,
    failures: AtomicUsize,
    acknowledged: Mutex<Vec<String>>,
    rejected: Mutex<Vec<String>>,
}

impl Inbox {
    fn fails(&self) -> Result<(), IntakeError> {
        let left = self.failures.load(Ordering::Relaxed);
        self.failures.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 { Ok(()) } else { Err(IntakeError::Unavailable { source: "away".into() }) }
    }
}

#[async_trait]
impl Intake for Inbox {
    async fn take(&self, _: usize) -> Result<Vec<IntakeMessage>, IntakeError> {
        let messages = std::mem::take(&mut *self.messages.lock().unwrap());
        if messages.is_empty() {
            return std::future::pending().await;
        }
        Ok(messages)
    }

    async fn acknowledge(&self, ids: &[String]) -> Result<(), IntakeError> {
        self.fails()?;
        self.acknowledged.lock().unwrap().extend_from_slice(ids);
        Ok(())
    }

    async fn reject(&self, rejected: &[(IntakeMessage, String)]) -> Result<(), IntakeError> {
        self.fails()?;
        self.rejected.lock().unwrap().extend(rejected.iter().map(|(message, _)| message.id.clone()));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_acknowledged_at_first_is_acknowledged_later() {
    let system = System::start(Vec::new()).await;
    let message = |id: &str, body: &str| IntakeMessage { id: id.to_owned(), body: body.as_bytes().to_vec() };
    let inbox = Arc::new(Inbox {
        messages: Mutex::new(vec![
            message("good", r#"{"taskName":"t","taskType":"nobody-offers-it"}"#),
            message("bad", "{"),
        ]),
        failures: AtomicUsize::new(1),
        acknowledged: Mutex::default(),
        rejected: Mutex::default(),
    });
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

//! Renews the sessions of one process together. A server keeps several, opened at the same moment and so
//! always due at the same moment: one call is enough for all of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use tasklane_core::clock_watch::Reference;
use tasklane_core::time::Timestamp;

use crate::membership::{MembershipTable, RenewalOutcome};
use crate::{CoordinatorError, Outcome, SessionToken};

/// Renewals due within this time are sent together. A holder counts from before it asked, so the wait costs
/// it nothing.
const TOGETHER: Duration = Duration::from_millis(50);

/// The renewals of the next call.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    waiting: Mutex<Vec<PendingRenewal>>,
    /// The time of the system's clock at the last renewal.
    clock: Mutex<Option<Reference>>,
}

/// A caller that waits for the outcome of its renewal.
#[derive(Debug)]
struct PendingRenewal {
    token: SessionToken,
    answer: oneshot::Sender<Result<bool, String>>,
}

impl Renewals {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        table: &Arc<dyn MembershipTable>,
        steady: &Arc<dyn Fn() -> Timestamp + Send + Sync>,
        token: &SessionToken,
    ) -> Result<(), CoordinatorError> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(PendingRenewal { token: token.clone(), answer });
            waiting.len() == 1
        };
        if is_first {
            let (renewals, table, steady) = (Arc::clone(self), Arc::clone(table), Arc::clone(steady));
            // In a task of its own, since the first caller may give up.
            tokio::spawn(async move {
                tokio::time::sleep(TOGETHER).await;
                renewals.renew_all(&*table, &*steady).await;
            });
        }
        let unavailable = |source: String| CoordinatorError::Unavailable {
            outcome: Outcome::Unknown,
            source: source.into(),
        };
        match answered.await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(CoordinatorError::SessionEnded { session: token.session }),
            Ok(Err(error)) => Err(unavailable(error)),
            Err(_) => Err(unavailable("the process is ending".to_owned())),
        }
    }

    async fn renew_all(&self, table: &dyn MembershipTable, steady: &(dyn Fn() -> Timestamp + Send + Sync)) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let tokens: Vec<SessionToken> = waiting.iter().map(|waiting| waiting.token.clone()).collect();
        let asked = steady();
        let renewed = table.renew(&tokens).await.map_err(|error| error.to_string());
        if let Ok(RenewalOutcome { wall: Some(wall), .. }) = renewed {
            let clock = Reference { asked, answered: steady(), wall };
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock);
        }
        for (at, PendingRenewal { answer, .. }) in waiting.into_iter().enumerate() {
            // A caller that gave up needs no answer.
            let _ = answer.send(renewed.as_ref().map(|renewed| renewed.alive[at]).map_err(Clone::clone));
        }
    }

    /// The time of the system's clock at the last renewal that the system answered.
    pub(crate) fn clock(&self) -> Option<Reference> {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

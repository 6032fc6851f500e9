//! Renews sessions of one process together. A server keeps several, opened at the same moment and due at the same
//! moment ever after: one call is enough for all of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::follow::Registry;
use crate::{CoordinatorError, Outcome, SessionToken};

/// What is due within this is renewed together. A holder counts from before it asked, so this costs nobody anything.
const TOGETHER: Duration = Duration::from_millis(50);

/// Those that are to be asked for next.
#[derive(Debug, Default)]
pub(crate) struct Renewals(Mutex<Vec<Waiting>>);

/// Somebody who waits to hear whether a session was renewed.
#[derive(Debug)]
struct Waiting {
    token: SessionToken,
    answer: oneshot::Sender<Result<bool, String>>,
}

impl Renewals {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        registry: &Arc<dyn Registry>,
        token: &SessionToken,
    ) -> Result<(), CoordinatorError> {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(Waiting { token: token.clone(), answer });
            waiting.len() == 1
        };
        if is_first {
            let (renewals, registry) = (Arc::clone(self), Arc::clone(registry));
            // On its own, since whoever came first may give up.
            tokio::spawn(async move {
                tokio::time::sleep(TOGETHER).await;
                renewals.renew_all(&*registry).await;
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

    async fn renew_all(&self, registry: &dyn Registry) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let tokens: Vec<SessionToken> = waiting.iter().map(|waiting| waiting.token.clone()).collect();
        let renewed = registry.renew(&tokens).await.map_err(|error| error.to_string());
        for (at, Waiting { answer, .. }) in waiting.into_iter().enumerate() {
            // Who does not wait any more need not be told.
            let _ = answer.send(renewed.as_ref().map(|renewed| renewed[at]).map_err(Clone::clone));
        }
    }
}

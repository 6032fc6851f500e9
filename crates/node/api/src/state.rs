//! The state that all handlers share.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tasklane_runtime::node::Node;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ApiOptions;
use crate::metrics::HttpMetrics;
use crate::problem::Problem;

/// The room that a request takes while it is handled. A request that begins to wait returns it, because it
/// has room among the streams instead: otherwise waiting requests would keep out all others.
#[derive(Clone, Debug)]
pub(crate) struct RequestPermit(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl RequestPermit {
    pub(crate) fn give_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns when the time of a request is up. Never, if it has given its room back: it has its own time then.
    pub(crate) async fn out_of_time(&self, timeout: Duration) {
        tokio::time::sleep(timeout).await;
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// How long a batch waits for room.
const BATCH_WAIT: Duration = Duration::from_secs(2);

fn kibibytes(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

/// The state that all handlers share. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Api(Arc<ApiState>);

#[derive(Debug)]
pub(crate) struct ApiState {
    pub(crate) node: Node,
    pub(crate) options: ApiOptions,
    pub(crate) metrics: HttpMetrics,
    requests: Arc<Semaphore>,
    /// A permit for each KiB.
    batches: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    large_bodies: LargeBodies,
}

/// A longer body is read on a thread that serves no connection.
const LARGE_BODY_BYTES: usize = 256 << 10;
/// Large bodies that are read at a time; others wait for their turn.
const LARGE_BODIES_MAX: usize = 2;

/// The turns of large bodies.
#[derive(Clone, Debug)]
struct LargeBodies(Arc<Semaphore>);

impl Default for LargeBodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_BODIES_MAX)))
    }
}

impl LargeBodies {
    async fn read<T: Send + 'static>(&self, bytes: usize, read: impl FnOnce() -> T + Send + 'static) -> T {
        if bytes <= LARGE_BODY_BYTES {
            return read();
        }
        let turn = Arc::clone(&self.0).acquire_owned().await.expect("it is never closed");
        // The turn ends with the work, also when the client is gone.
        let read = tokio::task::spawn_blocking(move || (read(), drop(turn)).0);
        read.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

impl Api {
    pub(crate) fn new(node: Node, options: ApiOptions) -> Self {
        Self(Arc::new(ApiState {
            node,
            metrics: HttpMetrics::default(),
            requests: Arc::new(Semaphore::new(options.requests_max)),
            batches: Arc::new(Semaphore::new(kibibytes(options.batches_bytes_max))),
            streams: Arc::new(Semaphore::new(options.streams_max)),
            large_bodies: LargeBodies::default(),
            options,
        }))
    }

    /// Room for a request, until it is answered or gives it back.
    pub(crate) fn request_permit(&self) -> Result<RequestPermit, Problem> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        let permit = permit.map_err(|_| Problem::overloaded("requests"))?;
        Ok(RequestPermit(Arc::new(Mutex::new(Some(permit)))))
    }

    /// Room for a request that stays long: held as long as it does.
    pub(crate) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| Problem::overloaded("waiting requests and streams"))
    }

    /// Reads a body of so many bytes where that delays no other request.
    pub(crate) async fn read_body<T: Send + 'static>(
        &self,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.large_bodies.read(bytes, read).await
    }

    /// Room for the body of a batch of this size, for which a moment is waited: batches before it are soon taken in.
    pub(crate) async fn batch_permit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let all = kibibytes(self.options.batches_bytes_max);
        let permits = u32::try_from(kibibytes(bytes).clamp(1, all.max(1))).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.batches).acquire_many_owned(permits);
        match tokio::time::timeout(BATCH_WAIT, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(Problem::overloaded("batches")),
        }
    }
}

impl Deref for Api {
    type Target = ApiState;
    fn deref(&self) -> &ApiState {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A body of 32 MiB held the runtime for more than two seconds.
    #[tokio::test]
    async fn a_large_body_is_read_on_another_thread_and_few_at_a_time() {
        let bodies = LargeBodies::default();
        let here = thread::current().id();
        assert_eq!(bodies.read(LARGE_BODY_BYTES, || thread::current().id()).await, here);
        assert_ne!(bodies.read(LARGE_BODY_BYTES + 1, || thread::current().id()).await, here);

        let (begun, begins) = mpsc::channel();
        let (ends, end): (Vec<_>, Vec<_>) = (0..=LARGE_BODIES_MAX).map(|_| mpsc::channel::<()>()).unzip();
        let reads: Vec<_> = end
            .into_iter()
            .map(|end| {
                let (bodies, begun) = (bodies.clone(), begun.clone());
                tokio::spawn(async move {
                    let read = move || {
                        begun.send(()).unwrap();
                        end.recv().unwrap();
                    };
                    bodies.read(LARGE_BODY_BYTES + 1, read).await;
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(begins.try_iter().count(), LARGE_BODIES_MAX);
        for end in ends {
            end.send(()).unwrap();
        }
        for read in reads {
            read.await.unwrap();
        }
        assert_eq!(begins.try_iter().count(), 1);
    }
}

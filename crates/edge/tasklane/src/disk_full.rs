//! A start on a full disk: the server listens, answers why it cannot work, and begins when there is room.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Result;
use tasklane_api::ServeOptions;
use tasklane_ports::{Store, StoreError};
use tasklane_runtime::node::Node;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How often to try again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often to look whether the lanes will be loaded at all.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Opens a store, again and again while its disk is full. Meanwhile the listener answers each client with the
/// reason.
pub(crate) async fn await_disk_space<T, F: Future<Output = Result<T>>>(
    open: impl Fn() -> F,
    listener: Option<&TcpListener>,
) -> Result<T> {
    let mut answering = None;
    loop {
        let error = match Box::pin(open()).await {
            // Without an API the error goes to the program that started this process.
            Err(error) if listener.is_some() && is_disk_full(&error) => error,
            opened => {
                if let Some(Answering { stop, task }) = answering {
                    stop.cancel();
                    let _ = task.await;
                }
                return opened;
            }
        };
        if answering.is_none() {
            let address = listener.and_then(|listener| listener.local_addr().ok());
            tracing::error!(
                listen = address.map(tracing::field::display),
                "{error:#}; free space on the disk: until then every request gets this answer"
            );
            answering = listener.map(Answering::start).transpose()?;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Answers every request with the full disk.
struct Answering {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Answering {
    /// Serves a second descriptor of the listener, so that no client is turned away when the listener is
    /// handed on.
    fn start(listener: &TcpListener) -> Result<Self> {
        use std::os::fd::AsFd;
        let listener = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?);
        let listener = TcpListener::from_std(listener)?;
        let stop = CancellationToken::new();
        // The log has the rest: anyone may ask.
        let full = StoreError::Full { source: "the disk of the data folder is full: free some of it".into() };
        let router = tasklane_api::refusing_router(full);
        let serving =
            tasklane_api::serve(listener, router, ServeOptions::default(), stop.clone().cancelled_owned());
        Ok(Self { stop, task: tokio::spawn(serving) })
    }
}

/// Whether a full disk caused an error.
fn is_disk_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
            || matches!(cause.downcast_ref(), Some(StoreError::Full { .. }))
    })
}

/// Waits until the lanes are loaded, but not for a store that takes no writes: then the server says so.
pub(crate) async fn loaded_or_refused(node: &Node, store: &dyn Store) {
    let loaded = node.loaded();
    tokio::pin!(loaded);
    loop {
        tokio::select! {
            () = &mut loaded => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if let Some(error) = store.write_trouble() {
            tracing::error!("{error}; no task starts until this is repaired");
            return;
        }
    }
}

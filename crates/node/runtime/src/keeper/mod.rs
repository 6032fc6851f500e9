//! The keeper: one thread in each process, with a small runtime of its own.
//!
//! It runs the work that must go on while the program's own threads are held up: the renewals of the server's
//! session with every call to the coordinator, the watch over the drivers of lanes, and the signals that end
//! the process. It does no work for clients.

mod coordinator;

use std::sync::LazyLock;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

pub use self::coordinator::KeptCoordinator;

/// Started at its first use; ends with the process.
static KEEPER: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("tasklane-keeper".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).expect("a thread can be started");
    handle
});

/// The runtime of the keeper: its timers and signals fire even if the program's threads are held up.
pub fn handle() -> &'static Handle {
    &KEEPER
}

/// Runs a future on the keeper; dropping the handle stops it.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(KEEPER.spawn(task))
}

/// Runs a future on the keeper and waits for it.
pub async fn run<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    spawn(task).await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

//! The keeper: one thread in each process, with a small runtime of its own.
//!
//! What must go on while the program's own threads are held up lives here: the renewals of the server's session with
//! every call to the coordinator, the watch over the drivers of lanes, and the signals that end the process. Nothing
//! that a client sends is worked on here.

mod coordinator;

use std::sync::LazyLock;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

pub use self::coordinator::KeptCoordinator;

/// Started when it is first needed; ends with the process.
static KEEPER: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("tasklane-keeper".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>())).expect("a thread can be started");
    handle
});

/// The runtime of the keeper: timers and signals that are made within it ring whatever the program does.
pub fn handle() -> &'static Handle {
    &KEEPER
}

/// Runs something on the keeper; it is stopped when its handle is dropped.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(KEEPER.spawn(task))
}

/// Runs something on the keeper and waits for it.
pub async fn run<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    spawn(task).await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

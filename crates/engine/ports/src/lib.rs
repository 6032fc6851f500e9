#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod archive;
mod bus;
pub mod codec;
mod coordinator;
mod documents;
mod error;
mod executor;
pub mod failure_detector;
mod intake;
mod logs;
#[cfg(feature = "follow")]
pub mod membership;
#[cfg(feature = "follow")]
mod renewals;
mod retire;
mod store;
#[cfg(feature = "tls")]
pub mod tls;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use archive::{Archive, ArchivedTask};
pub use bus::{Address, Bus, BusCapabilities, Subscription};
pub use coordinator::{Coordinator, CoordinatorCapabilities, OpenSession, SessionToken, View, Watch};
pub use documents::{
    Content, Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument, PutOutcome,
};
pub use error::{
    ArchiveError, BusError, CoordinatorError, ExecutorError, IntakeError, Outcome, Source, StoreError,
};
pub use executor::{Attempt, Execution, Executor, Stop};
pub use intake::{Intake, IntakeMessage};
pub use logs::{LogChunk, LogPosition, LogStream, Logs};
pub use retire::{ExpiredQuery, ExpiredTasks};
pub use store::{
    AttemptList, CountList, LoadQuery, PutPolicy, QueueCounts, Store, StoreCapabilities, Submit, TaskCursor,
    TaskFilter, TaskList, TaskPage, TaskView,
};
pub use tasklane_core::commit::{ClaimLane, LaneHead};

//! Output of attempts.

use async_trait::async_trait;
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::time::Timestamp;

use crate::StoreError;

/// Keeps what attempts print.
///
/// Promises:
/// 1. Chunks may come in any order and more than once; each is kept once, the first one of its number.
/// 2. They are read in the order of attempt and number.
/// 3. A read goes on after a position, is bounded, and never shows a chunk before one that it has passed unless that
///    one came late.
/// 4. The tail is what a reader of everything reads last, in the same order.
/// 5. What was removed is not read any more; doing it again changes nothing. A chunk that comes later is kept.
#[async_trait]
pub trait Logs: Send + Sync + std::fmt::Debug {
    /// Keeps chunks, of any tasks.
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError>;

    /// Chunks of a task after a position (or from the start), at most `limit`.
    async fn read(
        &self,
        task: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError>;

    /// The last chunks of a task, at most `limit`.
    async fn tail(&self, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError>;

    /// Removes all output of some tasks. Any number of them; an error may leave some of it done: repeat it.
    async fn remove(&self, tasks: &[TaskId]) -> Result<(), StoreError>;
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// The task.
    pub task: TaskId,
    /// Which chunk of it.
    pub position: LogPosition,
    /// Where it was printed.
    pub stream: LogStream,
    /// When the worker read it.
    pub at: Timestamp,
    /// What was printed, not always UTF-8.
    pub bytes: Vec<u8>,
}

/// Names a chunk of a task. Both streams of an attempt are numbered together, so that what was printed on one stays
/// in its place among what was printed on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The attempt that printed it.
    pub attempt: AttemptNo,
    /// Counts from 0 within the attempt.
    pub number: u32,
}

/// Where something was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogStream {
    /// Standard output.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
    /// A remark of the worker's own ("output limit reached").
    System = 3,
}

impl LogStream {
    /// The number under which it is stored.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Back from [`code`](Self::code).
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            3 => Some(Self::System),
            _ => None,
        }
    }
}

//! Output of attempts.

use async_trait::async_trait;
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::time::Timestamp;

use crate::StoreError;

/// Keeps the output of attempts.
///
/// Promises:
/// 1. Chunks may arrive in any order and more than once; each is kept once, the first one of its number.
/// 2. A read gives them in the order of attempt and number.
/// 3. A read continues after a position and is bounded. It never shows a chunk that belongs before its
///    position unless that chunk arrived late.
/// 4. The tail is the last part of a full read, in the same order.
/// 5. A read never shows removed output; removing it again changes nothing. A chunk that arrives later is
///    kept.
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
    /// Its attempt and number.
    pub position: LogPosition,
    /// Where it was printed.
    pub stream: LogStream,
    /// When the worker read it.
    pub at: Timestamp,
    /// The output itself, not always UTF-8.
    pub bytes: Vec<u8>,
}

/// Names a chunk of a task. Both streams of an attempt are numbered together, so that a reader sees their
/// chunks in the order of printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The attempt that printed it.
    pub attempt: AttemptNo,
    /// Counts from 0 within the attempt.
    pub number: u32,
}

/// The stream that a chunk was printed on.
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

    /// The stream of a [`code`](Self::code).
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            3 => Some(Self::System),
            _ => None,
        }
    }
}

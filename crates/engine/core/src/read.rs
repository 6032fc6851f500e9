//! The reads of a lane's owner, and the answers of the store.
//!
//! Every read is bounded by `limit` and its answer states whether there is more. A page is a snapshot of some
//! moment between the read and the answer; the lane machine drops rows of tasks that it changed meanwhile.

use serde::{Deserialize, Serialize};

use crate::command::InboxRow;
use crate::commit::RecordKey;
use crate::id::{LineKey, QueueKey, Seq, TaskId};
use crate::policy::VersionedPolicy;
use crate::task::{OrderKey, TaskRow};
use crate::time::Timestamp;

/// A read of one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneRead {
    /// The highest arrival number that can be read. Answered by [`LanePage::Cursor`].
    Cursor,
    /// Records after a key, in the order of their keys. Answered by [`LanePage::Records`].
    Records {
        /// Last key of the page before.
        after: Option<RecordKey>,
    },
    /// Tasks that workers hold, by id. Answered by [`LanePage::Tasks`].
    InFlight {
        /// Last task of the page before.
        after: Option<TaskId>,
    },
    /// Commands in the inbox, in the order of arrival. Answered by [`LanePage::Inbox`].
    Inbox {
        /// Last row of the page before.
        after: Seq,
    },
    /// The first ready task of each line, by line. Answered by [`LanePage::Tasks`].
    Lines {
        /// Last line of the page before.
        after: Option<LineKey>,
    },
    /// Ready tasks of one line, in order. Answered by [`LanePage::Tasks`].
    Line {
        /// Which line.
        line: LineKey,
        /// Last position that memory has.
        after: Option<OrderKey>,
    },
    /// Delayed tasks by (due time, arrival). Answered by [`LanePage::Tasks`].
    Delayed {
        /// Last one of the page before.
        after: Option<(Timestamp, Seq)>,
    },
    /// Waiting tasks whose start deadline is at or before a time, by (deadline, arrival). Answered by
    /// [`LanePage::Tasks`].
    Expiring {
        /// The time.
        until: Timestamp,
        /// Last one of the page before.
        after: Option<(Timestamp, Seq)>,
    },
    /// New tasks and inbox rows in the order in which they became visible: no earlier number appears after a
    /// later one was read. Tasks come in their present state. Answered by [`LanePage::Arrivals`].
    Arrivals {
        /// Last number seen.
        after: Seq,
    },
    /// These tasks, as far as they exist. Answered by [`LanePage::Tasks`].
    Tasks {
        /// Which ones.
        ids: Vec<TaskId>,
    },
    /// Policies changed after a revision, over all queues. Answered by [`LanePage::Policies`].
    Policies {
        /// Last revision seen.
        after: u64,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanePage {
    /// To `Cursor`.
    Cursor(Seq),
    /// To `Records`.
    Records {
        /// The records.
        rows: Vec<(RecordKey, Vec<u8>)>,
        /// There may be more after the last.
        more: bool,
    },
    /// To `InFlight`, `Lines`, `Line`, `Delayed`, `Expiring` and `Tasks`.
    Tasks {
        /// The tasks.
        rows: Vec<TaskRow>,
        /// There may be more after the last.
        more: bool,
    },
    /// To `Inbox`.
    Inbox {
        /// The rows.
        rows: Vec<InboxRow>,
        /// There may be more after the last.
        more: bool,
    },
    /// To `Arrivals`.
    Arrivals {
        /// The arrivals, in order.
        rows: Vec<Arrival>,
        /// The page covers all arrivals up to this number.
        next: Seq,
        /// There may be more after it.
        more: bool,
    },
    /// To `Arrivals`, when the index does not reach back to the reader's cursor: the owner reloads the lane.
    Gap,
    /// To `Policies`.
    Policies {
        /// Changed policies.
        rows: Vec<(QueueKey, VersionedPolicy)>,
        /// The page covers all changes up to this revision.
        revision: u64,
        /// There may be more after it.
        more: bool,
    },
}

/// Something new in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all arrivals are tasks")]
pub enum Arrival {
    /// A task.
    Task(TaskRow),
    /// A command.
    Command(InboxRow),
}

impl Arrival {
    /// Its place in the order.
    pub fn seq(&self) -> Seq {
        match self {
            Self::Task(row) => row.seq,
            Self::Command(row) => row.seq,
        }
    }
}

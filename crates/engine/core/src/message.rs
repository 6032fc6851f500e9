//! The messages between owners of lanes and workers. The bus may lose, repeat, reorder or delay any of them;
//! both machines are built for that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{AttemptNo, DispatchNo, Epoch, LaneId, QueueKey, SessionId, TaskId};
use crate::policy::VersionedPolicy;
use crate::status::Status;
use crate::task::{Progress, TaskBody, TaskError, TaskHead, TaskResult};
use crate::time::Timestamp;

/// Everything that travels over the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// From the owner of a lane to a worker session.
    ToWorker(OwnerBatch),
    /// From a worker session to the owner of a lane.
    ToLane(WorkerBatch),
    /// To the owner of a lane: something new is in the store.
    Hint {
        /// The lane to look at.
        lane: LaneId,
    },
    /// To followers of events: tasks changed.
    Changed(EventBatch),
    /// To followers of statistics: the load of a worker.
    Stats(WorkerStats),
    /// To a worker session: a request of an operator.
    Control(Control),
    /// To workers: the bus addresses of all servers.
    Servers(Vec<String>),
    /// To followers of statistics: this worker session sends and does not receive.
    #[serde(rename = "Deaf")]
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// To the owner of a lane: a policy was changed.
    Policy {
        /// The lane.
        lane: LaneId,
        /// The queue of the policy.
        queue: QueueKey,
        /// The new policy.
        policy: Box<VersionedPolicy>,
    },
}

impl Message {
    /// The number of items in the message.
    pub fn parts(&self) -> usize {
        match self {
            Self::ToWorker(batch) => batch.messages.len(),
            Self::ToLane(batch) => batch.messages.len(),
            Self::Changed(batch) => batch.events.len(),
            Self::Hint { .. }
            | Self::Policy { .. }
            | Self::Stats(_)
            | Self::NotReceiving { .. }
            | Self::Control(_)
            | Self::Servers(_) => 1,
        }
    }

    /// Merges a message of the same sender to the same receiver; returns it where the two cannot merge.
    pub fn join(&mut self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::ToLane(last), Self::ToLane(next))
                if (last.lane, last.session) == (next.lane, next.session) =>
            {
                last.messages.extend(next.messages);
                None
            }
            (Self::ToWorker(last), Self::ToWorker(next))
                if (last.lane, last.epoch, last.session) == (next.lane, next.epoch, next.session) =>
            {
                last.messages.extend(next.messages);
                None
            }
            (Self::Changed(last), Self::Changed(next))
                if last.origin == next.origin
                    && last.place.zip(next.place).is_some_and(|(last, next)| last.has_same_owner(next)) =>
            {
                last.place = next.place;
                last.events.extend(next.events);
                None
            }
            (Self::Hint { lane }, Self::Hint { lane: again }) if *lane == again => None,
            (_, next) => Some(next),
        }
    }

    /// The approximate size: counts the parts that can be large.
    pub fn bytes(&self) -> usize {
        match self {
            Self::ToWorker(batch) => batch.messages.iter().map(ToWorker::bytes).sum(),
            Self::ToLane(batch) => batch.messages.iter().map(ToLane::bytes).sum(),
            Self::Changed(batch) => batch.events.len() * TaskEvent::BYTES,
            Self::Servers(servers) => servers.iter().map(String::len).sum(),
            Self::Hint { .. }
            | Self::Policy { .. }
            | Self::Stats(_)
            | Self::NotReceiving { .. }
            | Self::Control(_) => 0,
        }
    }
}

impl ToWorker {
    /// The approximate size.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dispatch(dispatch) => dispatch.body.as_ref().map_or(0, |body| body.bytes()),
            Self::Skip { .. }
            | Self::Recall { .. }
            | Self::Stop { .. }
            | Self::Ack { .. }
            | Self::Demand { .. } => 0,
        }
    }
}

impl ToLane {
    /// The approximate size.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Report { report: Report::Finished(finish), .. } => finish.result.bytes(),
            Self::Report { report: Report::HandedBack { reason }, .. } => reason.len(),
            Self::Report { report: Report::Progress(progress), .. } => progress.message.len(),
            Self::Report { report: Report::Accepted | Report::Started { .. }, .. }
            | Self::Heartbeat(_)
            | Self::Credit { .. } => 0,
        }
    }
}

/// Events of tasks, forwarded by one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatch {
    /// The session of the sending server, so that it does not take its own events for those of another
    /// server.
    pub origin: SessionId,
    /// The lane, epoch and number of the batch: a batch of an earlier owner may arrive later.
    pub place: Option<EventPlace>,
    /// The events.
    pub events: Vec<TaskEvent>,
}

/// The position of an event batch in the history of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventPlace {
    /// The lane.
    pub lane: LaneId,
    /// Its owner.
    pub epoch: Epoch,
    /// Counts the batches of this owner.
    pub number: u64,
}

impl EventPlace {
    fn has_same_owner(self, other: Self) -> bool {
        (self.lane, self.epoch) == (other.lane, other.epoch)
    }
}

/// A task changed, durably.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Which one.
    pub task: TaskId,
    /// Its queue.
    pub queue: QueueKey,
    /// Its new status.
    pub status: Status,
    /// Its current or last attempt.
    pub attempt: AttemptNo,
    /// When the owner decided the change.
    pub at: Timestamp,
    /// Its composite, if the task is a child.
    #[serde(rename = "part_of")]
    pub composite: Option<TaskId>,
}

impl TaskEvent {
    /// The approximate bytes of one event.
    const BYTES: usize = 128;
}

/// The load of a worker: for people and statistics, not for scheduling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// The worker's session.
    pub session: SessionId,
    /// CPU in use on its machine; 100 is one core.
    pub cpu_percent: u32,
    /// Memory in use on its machine.
    pub memory_bytes: u64,
    /// Attempts that execute.
    pub running: u32,
    /// Attempts that wait in its local queue.
    pub queued: u32,
    /// When it was measured.
    pub at: Timestamp,
}

/// A request of an operator to a worker. The worker answers by changing its entry at the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Run this many attempts at once.
    Capacity(u32),
    /// Have this weight.
    Weight(u32),
    /// Have these labels instead of those so far.
    Labels(BTreeMap<String, String>),
    /// Take nothing more.
    Drain,
}

/// One attempt of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// Which attempt of it.
    pub number: AttemptNo,
}

/// Messages of one owner to one worker session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnerBatch {
    /// The lane of the owner.
    pub lane: LaneId,
    /// Its owner's epoch: a worker ignores batches of lower epochs than the highest it has received.
    pub epoch: Epoch,
    /// The receiver. A worker ignores batches for an earlier session of its name.
    pub session: SessionId,
    /// The messages.
    pub messages: Vec<ToWorker>,
}

/// A message of an owner to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Execute this.
    Dispatch(Dispatch),
    /// These numbers, first to last, will not be used: the credit is given back.
    Skip {
        /// The first.
        first: DispatchNo,
        /// The last.
        last: DispatchNo,
    },
    /// Give the attempt back unless it has started. Uses up its number, should the dispatch not have arrived.
    Recall {
        /// Number of the dispatch.
        k: DispatchNo,
        /// Which attempt.
        attempt: AttemptId,
    },
    /// End the attempt: the task was cancelled.
    Stop {
        /// Which attempt.
        attempt: AttemptId,
    },
    /// The report need not be resent.
    Ack {
        /// Of which attempt.
        attempt: AttemptId,
        /// The verdict.
        verdict: AckReason,
    },
    /// The owner asks for credit for this many tasks of the lane. The worker answers with [`ToLane::Credit`],
    /// at once or when other lanes have returned credit, and keeps the demand until it is met; 0 withdraws
    /// it.
    Demand {
        /// How many.
        wanted: u32,
        /// The highest dispatch number that the owner could use, so that a late or repeated demand adds
        /// nothing. 0 from an owner of an earlier version.
        #[serde(default)]
        up_to: DispatchNo,
    },
}

/// The verdict on a report; the worker need not resend the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AckReason {
    /// The effect of the report is durable.
    Committed,
    /// The attempt no longer counts.
    Stale,
}

/// An attempt handed to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Rises by one with each dispatch of this owner to this session. A repeated dispatch keeps its number.
    pub k: DispatchNo,
    /// Which attempt.
    pub attempt: AttemptId,
    /// The head of the task.
    pub head: Arc<TaskHead>,
    /// The rest of the spec. `None` where it was too large to keep in memory: the driver reads it before
    /// sending.
    pub body: Option<Arc<TaskBody>>,
}

/// Messages of one worker session to the owner of one lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerBatch {
    /// The receiving lane.
    pub lane: LaneId,
    /// The sending session.
    pub session: SessionId,
    /// The messages.
    pub messages: Vec<ToLane>,
}

/// A message of a worker to the owner of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLane {
    /// About one attempt.
    Report {
        /// Which one.
        attempt: AttemptId,
        /// The report.
        report: Report,
    },
    /// The state of the worker.
    Heartbeat(Heartbeat),
    /// More room, between heartbeats.
    Credit {
        /// The epoch that it is meant for.
        epoch: Epoch,
        /// The highest number that this owner may use for a dispatch. Only rises.
        credit: DispatchNo,
        /// Attempts held for other lanes.
        load: u32,
        /// The worker has given what it can of the demand up to this number. While it waits for credit that
        /// other lanes return, this is the number of the previous demand. 0 from a worker of an earlier
        /// version.
        #[serde(default)]
        answered: DispatchNo,
    },
}

/// A worker's message about an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The attempt waits in the worker's local queue. Not resent: heartbeats carry the same.
    Accepted,
    /// The attempt is executing. Not resent: heartbeats carry the same.
    Started {
        /// How long ago, by the worker's steady clock.
        ago: Duration,
    },
    /// The progress of the attempt. Not resent: a later report replaces it.
    Progress(Box<Progress>),
    /// The attempt did not start and never will, or the leaving worker stopped it. Resent until acknowledged.
    HandedBack {
        /// Why, for people.
        reason: String,
    },
    /// The attempt ended. Resent until acknowledged.
    Finished(Box<Finish>),
}

impl Report {
    /// The worker resends the report until the owner acknowledges it.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::HandedBack { .. } | Self::Finished(_))
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// How long it ran.
    pub ran: Duration,
    /// The ending.
    pub ending: Ending,
    /// The answer of the executor.
    pub result: TaskResult,
}

/// The ending of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The executor reported success.
    Success,
    /// The executor reported a failure.
    Failed {
        /// Why.
        error: TaskError,
        /// Whether another attempt may follow.
        retry: RetryAdvice,
    },
    /// It ran longer than it may, or made no progress for longer than it may.
    TimedOut {
        /// Which of the two.
        error: TaskError,
    },
    /// It was stopped on request.
    Cancelled,
    /// It never began, because the machine of its worker lacks something. The worker hands it back and
    /// pauses.
    NotStarted {
        /// The resource that the machine lacks, for people.
        reason: String,
    },
}

/// The executor's advice about a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetryAdvice {
    /// As the retry policy says.
    Policy,
    /// After this time, also where the policy waits longer or shorter: the executor asked for it.
    After(Duration),
    /// It would fail again.
    Never,
}

/// The state of a worker, as one lane needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Rises with each heartbeat of the session, so that the owner recognizes a late one.
    pub beat: u64,
    /// The epoch that `credit` and the numbers in `held` belong to: the highest that this worker has
    /// received.
    pub epoch: Epoch,
    /// The highest number that this owner may use for a dispatch. Only rises.
    pub credit: DispatchNo,
    /// All numbers up to here are used up: dispatched, recalled or skipped. The owner resends its skips above
    /// this number.
    pub used: DispatchNo,
    /// Every attempt of this lane that the worker holds or whose last report is unacknowledged.
    pub held: Vec<HeldAttempt>,
    /// Attempts held for other lanes, for the least-load strategy.
    pub load: u32,
    /// Other lanes ask for credit: the owner should skip numbers that it does not need.
    pub wanted_back: bool,
}

/// An attempt that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAttempt {
    /// Which one.
    pub attempt: AttemptId,
    /// Its state.
    pub state: HeldState,
}

/// The state of an attempt at its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldState {
    /// In the local queue.
    Queued,
    /// Executing for this long.
    Running(Duration),
    /// Ended; the worker resends its last report.
    Ended,
}

//! What owners of lanes and workers say to each other over the bus. Any of it may be lost, repeated, reordered or
//! late; both machines are built for that.

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
    /// To whoever follows events: tasks changed.
    Changed(EventBatch),
    /// To whoever follows statistics: how a worker is doing.
    Stats(WorkerStats),
    /// To a worker session, from people.
    Control(Control),
    /// To workers: where the buses of all servers are.
    Servers(Vec<String>),
    /// To whoever follows statistics: this worker session sends and does not receive.
    #[serde(rename = "Deaf")]
    NotReceiving {
        /// Which one.
        session: SessionId,
    },
    /// To the owner of a lane: a policy was changed.
    Policy {
        /// The lane.
        lane: LaneId,
        /// Whose.
        queue: QueueKey,
        /// What it says now.
        policy: Box<VersionedPolicy>,
    },
}

impl Message {
    /// How many things are said.
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

    /// Adds what the same sender says to the same receiver; gives it back where that cannot be.
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

    /// About how large it is: the parts that can be large.
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
    /// About how large it is.
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
    /// About how large it is.
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

/// What became of tasks, told by one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatch {
    /// Names whoever tells, so that it does not take its own words for those of another.
    pub origin: SessionId,
    /// Where the owner of a lane tells it: what an owner before it has said may come later.
    pub place: Option<EventPlace>,
    /// What it tells.
    pub events: Vec<TaskEvent>,
}

/// Where in the story of a lane something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventPlace {
    /// The lane.
    pub lane: LaneId,
    /// Its owner.
    pub epoch: Epoch,
    /// Counts what this owner has told.
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
    /// What it is now.
    pub status: Status,
    /// Its current or last attempt.
    pub attempt: AttemptNo,
    /// When the owner decided so.
    pub at: Timestamp,
    /// The composite that it is a child of.
    #[serde(rename = "part_of")]
    pub composite: Option<TaskId>,
}

impl TaskEvent {
    /// About how many bytes one takes.
    const BYTES: usize = 128;
}

/// How a worker is doing: for people and statistics, not for scheduling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Whose.
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

/// What people ask of a worker. It answers by changing what it says of itself to the coordinator.
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
    /// The lane that speaks.
    pub lane: LaneId,
    /// Its owner's epoch: a worker ignores lower ones than it has heard.
    pub epoch: Epoch,
    /// For whom this is. A worker ignores what was meant for an earlier session.
    pub session: SessionId,
    /// What is said.
    pub messages: Vec<ToWorker>,
}

/// What an owner says to a worker.
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
    /// The report needs no repetition.
    Ack {
        /// Of which attempt.
        attempt: AttemptId,
        /// Why not.
        verdict: AckReason,
    },
    /// The owner asks for room: so many tasks of the lane could be sent to this worker now. The worker answers with
    /// [`ToLane::Credit`], at once or when other lanes have given credit back, and keeps the demand until it is met; 0
    /// withdraws it.
    Demand {
        /// How many.
        wanted: u32,
        /// The highest dispatch number that the owner could use, so that a late or repeated demand adds nothing. 0 from
        /// an owner of an earlier version.
        #[serde(default)]
        up_to: DispatchNo,
    },
}

/// Why a report needs no repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AckReason {
    /// What it led to is durable.
    Committed,
    /// It is of an attempt that no longer counts.
    Stale,
}

/// An attempt handed to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Rises by one with each dispatch of this owner to this session. A repeated dispatch keeps its number.
    pub k: DispatchNo,
    /// Which attempt.
    pub attempt: AttemptId,
    /// What scheduling knew.
    pub head: Arc<TaskHead>,
    /// The rest of the spec. `None` where it was too large to keep in memory: the driver reads it before sending.
    pub body: Option<Arc<TaskBody>>,
}

/// Messages of one worker session to the owner of one lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerBatch {
    /// The lane spoken to.
    pub lane: LaneId,
    /// Who speaks.
    pub session: SessionId,
    /// What is said.
    pub messages: Vec<ToLane>,
}

/// What a worker says to the owner of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLane {
    /// About one attempt.
    Report {
        /// Which one.
        attempt: AttemptId,
        /// What.
        report: Report,
    },
    /// Where the worker stands.
    Heartbeat(Heartbeat),
    /// More room, between heartbeats.
    Credit {
        /// The epoch that it is meant for.
        epoch: Epoch,
        /// The highest number that this owner may use for a dispatch. Only rises.
        credit: DispatchNo,
        /// Attempts held for other lanes.
        load: u32,
        /// The worker has given what it can of the demand up to this number. While it waits for credit that other lanes
        /// give back, this is the number of the demand before. 0 from a worker of an earlier version.
        #[serde(default)]
        answered: DispatchNo,
    },
}

/// What a worker says about an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// It is in the worker's local queue. Not repeated: heartbeats say it too.
    Accepted,
    /// It is executing. Not repeated: heartbeats say it too.
    Started {
        /// How long ago, by the worker's steady clock.
        ago: Duration,
    },
    /// How far it is. Not repeated: more will come.
    Progress(Box<Progress>),
    /// It did not start and never will, or was stopped because its worker leaves. Repeated until acknowledged.
    HandedBack {
        /// Why, for people.
        reason: String,
    },
    /// It ended. Repeated until acknowledged.
    Finished(Box<Finish>),
}

impl Report {
    /// Repeated until the owner says that it needs no more.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::HandedBack { .. } | Self::Finished(_))
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// How long it ran.
    pub ran: Duration,
    /// What came of it.
    pub ending: Ending,
    /// What the executor answered.
    pub result: TaskResult,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It went well.
    Success,
    /// It did not.
    Failed {
        /// Why.
        error: TaskError,
        /// Whether it may be tried again.
        retry: RetryAdvice,
    },
    /// It ran longer than it may, or made no progress for longer than it may.
    TimedOut {
        /// Which of the two.
        error: TaskError,
    },
    /// It was stopped on request.
    Cancelled,
    /// It never began, because the machine of its worker lacks something. The worker hands it back and pauses.
    NotStarted {
        /// What the machine lacks, for people.
        reason: String,
    },
}

/// What an executor thinks of trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetryAdvice {
    /// As the retry policy says.
    Policy,
    /// After this time, whatever the policy says of waiting: who asked for it knows best.
    After(Duration),
    /// It would fail again.
    Never,
}

/// Where a worker stands, as one lane needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Rises with each heartbeat of the session, so that a late one is known.
    pub beat: u64,
    /// The epoch that `credit` and the numbers in `held` belong to: the highest that this worker has heard of.
    pub epoch: Epoch,
    /// The highest number that this owner may use for a dispatch. Only rises.
    pub credit: DispatchNo,
    /// All numbers up to here are used up: dispatched, recalled or skipped. What the owner has skipped above it is
    /// said again.
    pub used: DispatchNo,
    /// Every attempt of this lane that the worker holds or whose last report is unacknowledged.
    pub held: Vec<HeldAttempt>,
    /// Attempts held for other lanes, for the least-load strategy.
    pub load: u32,
    /// Credit that other lanes ask for: please skip what you do not need.
    pub wanted_back: bool,
}

/// An attempt that a worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAttempt {
    /// Which one.
    pub attempt: AttemptId,
    /// Where it stands.
    pub state: HeldState,
}

/// Where an attempt stands at its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldState {
    /// In the local queue.
    Queued,
    /// Executing for this long.
    Running(Duration),
    /// Over; its last report is being repeated.
    Ended,
}

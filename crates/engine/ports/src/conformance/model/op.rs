//! Operations in the abstract: what they mean depends on the state in which they meet the stores.

use tasklane_core::rng::Rng;
use tasklane_core::status::Status;

/// Number of owners that fight for a lane.
pub(super) const ACTORS: usize = 3;
/// Request ids in each queue.
pub(super) const REQUESTS: u64 = 8;
/// Queues of a sequence.
pub(super) const QUEUES: usize = 2;

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Submit { lane: usize, tasks: Vec<NewOp> },
    Claim { lane: usize, actor: usize, how: ClaimHow },
    Commit { lane: usize, actor: Option<usize>, number: NumberHow, fence: FenceHow, groups: Vec<GroupOp> },
    Post { lane: usize, tasks: Vec<TaskRef> },
    Read { lane: usize, read: ReadOp, limit: usize },
    Tasks { lane: usize, tasks: Vec<TaskRef> },
    List { filter: FilterOp, limit: usize },
    Counts,
    PutPolicy { queue: usize, expected: VersionHow, weight: u32 },
    Policy { queue: usize },
    Bind { queue: usize, lane: u16 },
}

/// A task of the small world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskRef {
    pub(super) request: u64,
    pub(super) queue: usize,
}

/// A task to create.
#[derive(Clone, Debug)]
pub(super) struct NewOp {
    pub(super) task: TaskRef,
    pub(super) fingerprint: u64,
    pub(super) kind: usize,
    pub(super) priority: u8,
    pub(super) delay: u64,
    pub(super) start_timeout: Option<u64>,
    pub(super) len_max: Option<u32>,
    pub(super) payload_bytes: usize,
}

/// How a lane is claimed.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimHow {
    /// As it should be: from the stored epoch.
    Fresh,
    /// The actor's last claim again.
    Again,
    /// Somebody else's claim, under an own identity.
    Steal,
    /// From an epoch before or after the stored one.
    Wrong { ahead: bool },
}

/// How a commit is numbered.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberHow {
    Next,
    /// The actor's last commit again, with the same groups.
    Again,
    /// One gone by, with other groups.
    Stale,
    Skipping,
}

/// Whether a commit names the actor's own claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum FenceHow {
    Own,
    OtherEpoch,
    OtherOwner,
}

/// A group of a commit.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupOp {
    pub(super) insert: Option<NewOp>,
    pub(super) change: Option<ChangeOp>,
    /// Commands to remove, by their place among all that were posted to the lane.
    pub(super) done: Vec<usize>,
    /// Records to write or remove.
    pub(super) records: Vec<(usize, Option<u8>)>,
}

/// A change of a task.
#[derive(Clone, Debug)]
pub(super) struct ChangeOp {
    pub(super) task: TaskRef,
    pub(super) expected: ExpectedHow,
    pub(super) way: Way,
    pub(super) result_bytes: Option<usize>,
    pub(super) ended: bool,
}

/// What a change expects.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpectedHow {
    Stored,
    OtherAttempt,
    Status(Status),
}

/// Where a change leads.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Allowed steps, each picked from what may follow.
    Walk(Vec<Pick>),
    /// To a status that may not follow.
    Leap(Status),
    /// Nowhere: from the delayed tasks to the line.
    Ready,
    /// Nowhere, but due at another time.
    Due(u64),
    /// Nowhere, but with another deadline.
    StartBy(Option<u64>),
    /// Nowhere, but asked to stop.
    CancelRequested,
    /// A state that is not at the end of its path.
    Astray,
}

/// Which of the allowed steps is taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    /// One that does not end the task, if there is one.
    On(usize),
    Any(usize),
}

/// What is read of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadOp {
    Head,
    Lines,
    Line {
        queue: usize,
        kind: usize,
    },
    Delayed,
    InFlight,
    Expiring {
        until: u64,
    },
    Inbox,
    Records,
    Arrivals,
    /// Arrivals after the number of a task, if it is known.
    ArrivalsAfter {
        task: TaskRef,
    },
}

/// Which tasks are listed.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterOp {
    All,
    Queue(usize),
    Status(Status),
    QueueStatus(usize, Status),
    Kind(usize),
    Name(u64),
    Worker,
}

/// Which version a policy change names.
#[derive(Clone, Copy, Debug)]
pub(super) enum VersionHow {
    Stored,
    Off { ahead: bool },
}

impl Op {
    /// The same with one part less, each way.
    pub(super) fn smaller(&self) -> Vec<Self> {
        fn without<T: Clone>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
            (0..all.len()).map(|index| {
                let mut fewer = all.to_vec();
                fewer.remove(index);
                fewer
            })
        }
        match self {
            Self::Submit { lane, tasks } => {
                without(tasks).map(|tasks| Self::Submit { lane: *lane, tasks }).collect()
            }
            Self::Post { lane, tasks } => {
                without(tasks).map(|tasks| Self::Post { lane: *lane, tasks }).collect()
            }
            Self::Commit { lane, actor, number, fence, groups } => {
                let commit = |groups| Self::Commit {
                    lane: *lane,
                    actor: *actor,
                    number: *number,
                    fence: *fence,
                    groups,
                };
                let mut smaller: Vec<_> = without(groups).map(commit).collect();
                for (index, group) in groups.iter().enumerate() {
                    for part in group.smaller() {
                        let mut groups = groups.clone();
                        groups[index] = part;
                        smaller.push(commit(groups));
                    }
                }
                smaller
            }
            Self::Claim { .. }
            | Self::Read { .. }
            | Self::Tasks { .. }
            | Self::List { .. }
            | Self::Counts
            | Self::PutPolicy { .. }
            | Self::Policy { .. }
            | Self::Bind { .. } => Vec::new(),
        }
    }
}

impl GroupOp {
    fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        if self.insert.is_some() {
            smaller.push(Self { insert: None, ..self.clone() });
        }
        if self.change.is_some() {
            smaller.push(Self { change: None, ..self.clone() });
        }
        if !self.done.is_empty() {
            smaller.push(Self { done: Vec::new(), ..self.clone() });
        }
        if !self.records.is_empty() {
            smaller.push(Self { records: Vec::new(), ..self.clone() });
        }
        smaller
    }
}

/// A random sequence. Its first operations give the lanes owners, so that few sequences are dull.
pub(super) fn sequence(rng: &mut Rng, len: usize) -> Vec<Op> {
    let begin = (0..2).map(|lane| Op::Claim { lane, actor: 0, how: ClaimHow::Fresh });
    begin.chain(std::iter::from_fn(|| Some(op(rng)))).take(len).collect()
}

fn op(rng: &mut Rng) -> Op {
    // Most of the life is in one lane; the other one shows what leaks.
    let lane = usize::from(rng.chance(15));
    match rng.below(100) {
        0..18 => Op::Submit { lane, tasks: several(rng, 4, new_task) },
        18..24 => {
            let how = match rng.below(10) {
                0..5 => ClaimHow::Fresh,
                5..7 => ClaimHow::Again,
                7..9 => ClaimHow::Steal,
                _ => ClaimHow::Wrong { ahead: rng.chance(50) },
            };
            Op::Claim { lane, actor: rng.index(ACTORS), how }
        }
        24..64 => {
            let number = match rng.below(20) {
                0..16 => NumberHow::Next,
                16..18 => NumberHow::Again,
                18 => NumberHow::Stale,
                _ => NumberHow::Skipping,
            };
            let fence = match rng.below(30) {
                0 => FenceHow::OtherEpoch,
                1 => FenceHow::OtherOwner,
                _ => FenceHow::Own,
            };
            Op::Commit { lane, actor: committer(rng), number, fence, groups: several(rng, 5, group) }
        }
        64..70 => Op::Post { lane, tasks: several(rng, 3, task) },
        70..88 => Op::Read { lane, read: read(rng), limit: limit(rng) },
        88..91 => Op::Tasks { lane, tasks: several(rng, 5, task) },
        91..95 => Op::List { filter: filter(rng), limit: limit(rng) },
        95 => Op::Counts,
        96..98 => {
            let expected =
                if rng.chance(70) { VersionHow::Stored } else { VersionHow::Off { ahead: rng.chance(50) } };
            Op::PutPolicy { queue: rng.index(QUEUES), expected, weight: number(rng, 10) }
        }
        98 => Op::Policy { queue: rng.index(QUEUES) },
        _ => Op::Bind { queue: rng.index(QUEUES), lane: u16::from(rng.chance(50)) },
    }
}

fn several<T>(rng: &mut Rng, max: usize, one: impl Fn(&mut Rng) -> T) -> Vec<T> {
    (0..=rng.index(max)).map(|_| one(rng)).collect()
}

fn number(rng: &mut Rng, bound: u32) -> u32 {
    u32::try_from(rng.below(u64::from(bound))).unwrap()
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.index(from.len())]
}

/// The one who claimed the lane last, most of the time.
fn committer(rng: &mut Rng) -> Option<usize> {
    rng.chance(15).then(|| rng.index(ACTORS))
}

fn limit(rng: &mut Rng) -> usize {
    pick(rng, &[1, 1, 2, 3, 5, 100])
}

fn task(rng: &mut Rng) -> TaskRef {
    TaskRef { request: rng.below(REQUESTS), queue: rng.index(QUEUES) }
}

fn new_task(rng: &mut Rng) -> NewOp {
    NewOp {
        task: task(rng),
        fingerprint: u64::from(rng.chance(10)),
        kind: rng.index(2),
        priority: pick(rng, &[0, 5, 5, 9]),
        delay: pick(rng, &[0, 0, 0, 50, 50, 100_000]),
        start_timeout: pick(rng, &[None, None, Some(100), Some(10_000)]),
        len_max: rng.chance(25).then(|| number(rng, 6)),
        payload_bytes: if rng.chance(5) { 10_000 } else { 10 },
    }
}

fn group(rng: &mut Rng) -> GroupOp {
    let insert = rng.chance(25).then(|| new_task(rng));
    let change = match &insert {
        // Its first assignment, usually.
        Some(new) => rng.chance(60).then(|| ChangeOp { task: new.task, ..change(rng) }),
        None => rng.chance(95).then(|| change(rng)),
    };
    GroupOp {
        insert,
        change,
        done: if rng.chance(20) { several(rng, 2, |rng| rng.index(12)) } else { Vec::new() },
        records: if rng.chance(20) {
            several(rng, 2, |rng| {
                (rng.index(4), rng.chance(70).then(|| u8::try_from(rng.below(256)).unwrap()))
            })
        } else {
            Vec::new()
        },
    }
}

fn change(rng: &mut Rng) -> ChangeOp {
    let expected = match rng.below(20) {
        0 => ExpectedHow::OtherAttempt,
        1 => ExpectedHow::Status(pick(rng, &Status::ALL)),
        _ => ExpectedHow::Stored,
    };
    let way = match rng.below(20) {
        0..13 => Way::Walk(several(rng, 4, |rng| {
            let which = pick(rng, &[0, 0, 0, 1, 2, 3]);
            if rng.chance(85) { Pick::On(which) } else { Pick::Any(which) }
        })),
        13 => Way::Leap(pick(rng, &Status::ALL)),
        14..16 => Way::Ready,
        16 => Way::Due(rng.below(200)),
        17 => Way::StartBy(rng.chance(70).then(|| rng.below(2_000))),
        18 => Way::CancelRequested,
        _ => Way::Astray,
    };
    let result_bytes = rng.chance(30).then(|| rng.index(50));
    ChangeOp { task: task(rng), expected, way, result_bytes, ended: rng.chance(20) }
}

fn read(rng: &mut Rng) -> ReadOp {
    match rng.below(13) {
        0 => ReadOp::Head,
        1 => ReadOp::Lines,
        2..4 => ReadOp::Line { queue: rng.index(QUEUES), kind: rng.index(2) },
        4..6 => ReadOp::Delayed,
        6 => ReadOp::InFlight,
        7 => ReadOp::Expiring { until: rng.below(12_000) },
        8 => ReadOp::Inbox,
        9 => ReadOp::Records,
        10..12 => ReadOp::Arrivals,
        _ => ReadOp::ArrivalsAfter { task: task(rng) },
    }
}

fn filter(rng: &mut Rng) -> FilterOp {
    match rng.below(7) {
        0 => FilterOp::All,
        1 => FilterOp::Queue(rng.index(QUEUES)),
        2 => FilterOp::Status(pick(rng, &Status::ALL)),
        3 => FilterOp::QueueStatus(rng.index(QUEUES), pick(rng, &Status::ALL)),
        4 => FilterOp::Kind(rng.index(2)),
        5 => FilterOp::Name(rng.below(REQUESTS)),
        _ => FilterOp::Worker,
    }
}

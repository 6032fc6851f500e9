//! Abstract operations: their meaning depends on the state in which they meet the stores.

use proptest::bool::weighted as chance;
use proptest::collection::vec;
use proptest::option::weighted as maybe;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use proptest_state_machine::ReferenceStateMachine;
use tasklane_core::status::Status;

/// Lanes of a sequence.
pub(super) const LANES: usize = 2;
/// Number of owners that fight for a lane.
pub(super) const ACTORS: usize = 3;
/// Request ids in each queue.
pub(super) const REQUESTS: u64 = 8;
/// Unique keys in each queue.
pub(super) const UNIQUES: usize = 3;
/// Queues of a sequence.
pub(super) const QUEUES: usize = 2;

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Submit { lane: usize, tasks: Vec<NewOp> },
    Claim { lane: usize, actor: usize, how: ClaimHow },
    Commit(CommitOp),
    Post { lane: usize, tasks: Vec<TaskRef> },
    Read { lane: usize, read: ReadOp, limit: usize },
    Tasks { lane: usize, tasks: Vec<TaskRef> },
    List { filter: FilterOp, limit: usize },
    Counts { limit: usize },
    Expired { finished: u64, forget: u64, limit: usize },
    Retire { lane: usize, strip: Vec<TaskRef>, forget: Vec<TaskRef> },
    PutPolicy { queue: usize, expected: VersionHow, weight: u32 },
    Policy { queue: usize },
    Bind { queue: usize, lane: u16 },
}

/// A commit.
#[derive(Clone, Debug)]
pub(super) struct CommitOp {
    pub(super) lane: usize,
    /// The committing owner; the last claimant of the lane unless set.
    pub(super) actor: Option<usize>,
    pub(super) number: NumberHow,
    pub(super) fence: FenceHow,
    pub(super) cursor: CursorHow,
    pub(super) groups: Vec<GroupOp>,
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
    pub(super) unique: Option<UniqueOp>,
    pub(super) payload_bytes: usize,
}

/// A unique key to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct UniqueOp {
    pub(super) key: usize,
    /// Held for so many milliseconds; until the task has finished unless said otherwise.
    pub(super) millis: Option<u64>,
}

/// How a lane is claimed.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimHow {
    /// As it should be: from the stored epoch.
    Fresh,
    /// The actor's last claim again.
    Again,
    /// Another actor's claim, under an own identity.
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
    /// A past number, with other groups.
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

/// The cursor that a commit names. The store may trim arrivals up to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum CursorHow {
    /// The cursor of an owner that has read nothing.
    Start,
    /// So many arrivals behind the last one.
    Behind(usize),
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

/// The state that a change expects.
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
    /// A step that does not end the task, if there is one.
    On(usize),
    Any(usize),
}

/// The part of a lane to read.
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
    /// Arrivals from the very first on, which may be trimmed.
    Arrivals,
    /// Arrivals after the furthest cursor of a commit, which an owner follows.
    ArrivalsAfterCommitted,
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

/// The facts about a sequence so far that choose a sensible next operation.
#[derive(Clone, Debug, Default)]
pub(super) struct SequenceState {
    /// Lanes that were claimed. Each is claimed once before all else, so that few sequences do nothing.
    claimed: [bool; LANES],
    /// How many commands were posted to each lane.
    posted: [usize; LANES],
}

/// Draws sequences and cuts them down.
#[derive(Debug)]
pub(super) struct Sequences;

impl ReferenceStateMachine for Sequences {
    type State = SequenceState;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<SequenceState> {
        Just(SequenceState::default()).boxed()
    }

    fn transitions(state: &SequenceState) -> BoxedStrategy<Op> {
        match state.claimed.iter().position(|claimed| !claimed) {
            Some(lane) => Just(Op::Claim { lane, actor: 0, how: ClaimHow::Fresh }).boxed(),
            None => op(state.posted.into_iter().max().unwrap_or_default()),
        }
    }

    fn apply(mut state: SequenceState, op: &Op) -> SequenceState {
        match op {
            Op::Claim { lane, .. } => state.claimed[*lane] = true,
            Op::Post { lane, tasks } => state.posted[*lane] += tasks.len(),
            Op::Submit { .. }
            | Op::Commit(_)
            | Op::Read { .. }
            | Op::Tasks { .. }
            | Op::List { .. }
            | Op::Counts { .. }
            | Op::Expired { .. }
            | Op::Retire { .. }
            | Op::PutPolicy { .. }
            | Op::Policy { .. }
            | Op::Bind { .. } => {}
        }
        state
    }
}

/// Where there is a choice, the simplest comes first: that is where cutting down leads.
fn op(posted: usize) -> BoxedStrategy<Op> {
    prop_oneof![
        18 => (lane(), read(), limit()).prop_map(|(lane, read, limit)| Op::Read { lane, read, limit }),
        3 => (lane(), vec(task(), 1..=5)).prop_map(|(lane, tasks)| Op::Tasks { lane, tasks }),
        4 => (filter(), limit()).prop_map(|(filter, limit)| Op::List { filter, limit }),
        1 => limit().prop_map(|limit| Op::Counts { limit }),
        2 => (0..300_u64, 0..300_u64, limit())
            .prop_map(|(finished, forget, limit)| Op::Expired { finished, forget, limit }),
        1 => queue().prop_map(|queue| Op::Policy { queue }),
        1 => (queue(), 0..2_u16).prop_map(|(queue, lane)| Op::Bind { queue, lane }),
        2 => (queue(), version(), 0..10_u32)
            .prop_map(|(queue, expected, weight)| Op::PutPolicy { queue, expected, weight }),
        6 => (lane(), vec(task(), 1..=3)).prop_map(|(lane, tasks)| Op::Post { lane, tasks }),
        6 => (lane(), 0..ACTORS, claim()).prop_map(|(lane, actor, how)| Op::Claim { lane, actor, how }),
        18 => (lane(), vec(new_task(), 1..=4)).prop_map(|(lane, tasks)| Op::Submit { lane, tasks }),
        // Any tasks: unfinished ones must be left alone.
        5 => (lane(), vec(task(), 0..=4), vec(task(), 0..=4))
            .prop_map(|(lane, strip, forget)| Op::Retire { lane, strip, forget }),
        40 => commit(posted).prop_map(Op::Commit),
    ]
    .boxed()
}

/// Most operations are in one lane; the other one shows leaks.
fn lane() -> impl Strategy<Value = usize> {
    chance(0.15).prop_map(usize::from)
}

fn queue() -> impl Strategy<Value = usize> {
    0..QUEUES
}

fn limit() -> impl Strategy<Value = usize> {
    select(&[100, 5, 3, 2, 1, 1][..])
}

fn status() -> impl Strategy<Value = Status> {
    select(&Status::ALL[..])
}

fn task() -> impl Strategy<Value = TaskRef> {
    (0..REQUESTS, queue()).prop_map(|(request, queue)| TaskRef { request, queue })
}

fn new_task() -> impl Strategy<Value = NewOp> {
    let waits = (select(&[0, 0, 0, 50, 50, 100_000][..]), select(&[None, None, Some(100), Some(10_000)][..]));
    let large = chance(0.05).prop_map(|large| if large { 10_000 } else { 10 });
    let rest = (chance(0.1), 0..2_usize, select(&[5, 5, 0, 9][..]), maybe(0.25, 0..6_u32), large);
    (task(), waits, maybe(0.3, unique()), rest).prop_map(|(task, (delay, start_timeout), unique, rest)| {
        let (other, kind, priority, len_max, payload_bytes) = rest;
        let fingerprint = u64::from(other);
        NewOp { task, fingerprint, kind, priority, delay, start_timeout, len_max, unique, payload_bytes }
    })
}

fn unique() -> impl Strategy<Value = UniqueOp> {
    let millis = select(&[None, None, None, Some(0), Some(10), Some(60), Some(100_000)][..]);
    (0..UNIQUES, millis).prop_map(|(key, millis)| UniqueOp { key, millis })
}

fn claim() -> impl Strategy<Value = ClaimHow> {
    prop_oneof![
        5 => Just(ClaimHow::Fresh),
        2 => Just(ClaimHow::Again),
        2 => Just(ClaimHow::Steal),
        1 => any::<bool>().prop_map(|ahead| ClaimHow::Wrong { ahead }),
    ]
}

fn commit(posted: usize) -> impl Strategy<Value = CommitOp> {
    let number = prop_oneof![
        16 => Just(NumberHow::Next),
        2 => Just(NumberHow::Again),
        1 => Just(NumberHow::Stale),
        1 => Just(NumberHow::Skipping),
    ];
    let fence = prop_oneof![
        28 => Just(FenceHow::Own),
        1 => Just(FenceHow::OtherEpoch),
        1 => Just(FenceHow::OtherOwner),
    ];
    // Few enough that several sequences keep their first arrivals for long.
    let cursor = prop_oneof![
        5 => Just(CursorHow::Start),
        1 => (0..8_usize).prop_map(CursorHow::Behind),
    ];
    let groups = vec(group(posted), 1..=5);
    (lane(), maybe(0.15, 0..ACTORS), number, fence, cursor, groups).prop_map(
        |(lane, actor, number, fence, cursor, groups)| CommitOp {
            lane,
            actor,
            number,
            fence,
            cursor,
            groups,
        },
    )
}

fn group(posted: usize) -> impl Strategy<Value = GroupOp> {
    let insert = maybe(0.25, new_task());
    // Of a task that is inserted it is its first assignment, usually.
    let change = (maybe(0.95, change()), chance(0.63));
    let done = prop_oneof![4 => Just(Vec::new()), 1 => vec(0..=posted, 1..=2)];
    let record = (0..4_usize, maybe(0.7, any::<u8>()));
    let records = prop_oneof![4 => Just(Vec::new()), 1 => vec(record, 1..=2)];
    (insert, change, done, records).prop_map(|(insert, (change, assigned), done, records)| {
        let change = match &insert {
            Some(new) => change.filter(|_| assigned).map(|change| ChangeOp { task: new.task, ..change }),
            None => change,
        };
        GroupOp { insert, change, done, records }
    })
}

fn change() -> impl Strategy<Value = ChangeOp> {
    let expected = prop_oneof![
        18 => Just(ExpectedHow::Stored),
        1 => Just(ExpectedHow::OtherAttempt),
        1 => status().prop_map(ExpectedHow::Status),
    ];
    let pick = (select(&[0, 0, 0, 1, 2, 3][..]), chance(0.15))
        .prop_map(|(which, any)| if any { Pick::Any(which) } else { Pick::On(which) });
    let way = prop_oneof![
        13 => vec(pick, 1..=4).prop_map(Way::Walk),
        2 => Just(Way::Ready),
        1 => (0..200_u64).prop_map(Way::Due),
        1 => maybe(0.7, 0..2_000_u64).prop_map(Way::StartBy),
        1 => Just(Way::CancelRequested),
        1 => status().prop_map(Way::Leap),
        1 => Just(Way::Astray),
    ];
    (task(), expected, way, maybe(0.3, 0..50_usize), chance(0.2)).prop_map(
        |(task, expected, way, result_bytes, ended)| ChangeOp { task, expected, way, result_bytes, ended },
    )
}

fn read() -> impl Strategy<Value = ReadOp> {
    prop_oneof![
        1 => Just(ReadOp::Head),
        1 => Just(ReadOp::Lines),
        2 => (queue(), 0..2_usize).prop_map(|(queue, kind)| ReadOp::Line { queue, kind }),
        2 => Just(ReadOp::Delayed),
        1 => Just(ReadOp::InFlight),
        1 => (0..12_000_u64).prop_map(|until| ReadOp::Expiring { until }),
        1 => Just(ReadOp::Inbox),
        1 => Just(ReadOp::Records),
        2 => Just(ReadOp::Arrivals),
        2 => Just(ReadOp::ArrivalsAfterCommitted),
        2 => task().prop_map(|task| ReadOp::ArrivalsAfter { task }),
    ]
}

fn filter() -> impl Strategy<Value = FilterOp> {
    prop_oneof![
        Just(FilterOp::All),
        queue().prop_map(FilterOp::Queue),
        status().prop_map(FilterOp::Status),
        (queue(), status()).prop_map(|(queue, status)| FilterOp::QueueStatus(queue, status)),
        (0..2_usize).prop_map(FilterOp::Kind),
        (0..REQUESTS).prop_map(FilterOp::Name),
        Just(FilterOp::Worker),
    ]
}

fn version() -> impl Strategy<Value = VersionHow> {
    prop_oneof![
        7 => Just(VersionHow::Stored),
        3 => any::<bool>().prop_map(|ahead| VersionHow::Off { ahead }),
    ]
}

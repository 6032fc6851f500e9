//! The ownership machine: its state, inputs and effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::commit::{ClaimLane, Commit, Group, GroupOutcome, LaneHead};
use crate::id::{CommitNo, Epoch, LaneId, OwnerId, Seq};
use crate::invariant::Invariant;
use crate::lane::{self, Anchor, Lane, LaneOptions};
use crate::member::Member;
use crate::read::LaneRead;
use crate::rng::Rng;
use crate::time::{Shift, Timestamp};

use super::input::{CallError, Effect, Input, Reply, Request};
use super::pack::{PackLimits, pack};

/// Options of the ownership of a lane: its bounds and times.
#[derive(Clone, Debug)]
pub struct OwnershipOptions {
    /// Of the lane machine.
    pub lane: LaneOptions,
    /// The bounds of one commit.
    pub pack: PackLimits,
    /// The wait before a failed call is repeated.
    pub retry_after: Duration,
    /// Owners in a row that may fail before the lane is parked.
    pub failures_max: u32,
    /// How long a parked lane rests.
    pub park_for: Duration,
    /// An owner that worked for this long before it failed starts a new count of failures.
    pub steady_after: Duration,
    /// Separates this boot of the machine from all others; 0 if unknown. The owner finds by it steps of the
    /// wall clock between two owners on one machine.
    pub boot: u64,
    /// Repetitions of one commit before its outcome counts as unsettled and the server claims the lane again.
    pub commit_tries_max: u32,
    /// The same where the store takes no writes: clients wait for their answer, so the server soon gives the
    /// lane up.
    pub refused_tries_max: u32,
}

impl Default for OwnershipOptions {
    fn default() -> Self {
        Self {
            lane: LaneOptions::default(),
            pack: PackLimits { ops_max: 1 << 16, bytes_max: 8 << 20 },
            retry_after: Duration::from_millis(200),
            failures_max: 3,
            park_for: Duration::from_mins(1),
            steady_after: Duration::from_mins(5),
            boot: 0,
            commit_tries_max: 50,
            refused_tries_max: 2,
        }
    }
}

impl OwnershipOptions {
    /// Repetitions of a commit that was answered by this error.
    fn tries_max(&self, error: CallError) -> u32 {
        match error {
            CallError::NotApplied | CallError::Unknown => self.commit_tries_max,
            CallError::Refused => self.refused_tries_max,
            CallError::Fenced | CallError::Fatal => 0,
        }
    }
}

/// The ownership of one lane by one server. See the [module](super).
#[derive(Debug)]
pub struct Ownership {
    options: OwnershipOptions,
    lane: LaneId,
    rng: Rng,
    now: Timestamp,
    wanted: bool,
    granted: bool,
    /// The grant may be lost: the server asks for it before it claims the lane again.
    doubtful: bool,
    state: OwnershipState,
    next_call: u64,
    /// Calls to repeat, by their time.
    retries: BTreeMap<(Timestamp, u64), Request>,
    /// This server's own failure, until a claim counts it.
    failure: Option<Failure>,
    /// The epoch of a claim of this server after which the lane has rested for long enough. If no other
    /// server has claimed the lane since, this server's next claim is a try.
    rested: Option<Epoch>,
    lane_effects: Vec<lane::Effect>,
    /// Local submissions without an answer.
    tokens: BTreeSet<lane::SubmitToken>,
    /// Submissions whose lane was lost: the store gets the same tasks.
    orphans: BTreeSet<lane::SubmitToken>,
    /// Counts of earlier lane machines.
    counters: lane::Counters,
    /// The newest view that came while the requested view was on its way.
    heard: Option<(u64, Vec<Member>)>,
}

#[derive(Debug)]
enum OwnershipState {
    Idle,
    /// Has asked the coordinator for the grant.
    Acquiring {
        again_at: Timestamp,
    },
    /// Has asked the store for the owner of the lane.
    Heading {
        call: u64,
    },
    Claiming {
        call: u64,
        claim: ClaimLane,
    },
    /// Claimed; has asked for the members.
    Viewing {
        owner: OwnerId,
        epoch: Epoch,
    },
    Owning(Box<OwnedLane>),
    /// Claimed, so that the next claimer sees the count, and resting.
    Parked {
        until: Timestamp,
        epoch: Epoch,
    },
}

/// A failure of the lane machine.
#[derive(Clone, Copy, Debug)]
struct Failure {
    /// The epoch of the failed owner. If another server has claimed the lane since, the count is no longer
    /// ours.
    epoch: Epoch,
    /// The owner had worked for long: earlier failures are not counted with it.
    steady: bool,
}

/// A claimed lane.
#[derive(Debug)]
struct OwnedLane {
    machine: Lane,
    clock: LaneClock,
    /// Steps of the wall clock that the machine has not received yet, because it is not loaded.
    untold: Shift,
    epoch: Epoch,
    owner: OwnerId,
    /// When the server claimed it.
    since: Timestamp,
    /// Number of the last settled commit.
    number: CommitNo,
    /// Commits that are packed and not yet settled.
    commits: VecDeque<PendingCommit>,
    /// Repetitions of the first commit.
    tries: u32,
    /// Outcomes for the machine's next [`lane::Input::Committed`].
    outcomes: Vec<GroupOutcome>,
    reads: BTreeMap<u64, (u64, LaneRead, usize)>,
    releasing: bool,
}

/// A commit that is not settled.
#[derive(Debug)]
struct PendingCommit {
    groups: Arc<[Group]>,
    cursor: Seq,
    /// Whether this is the last part of the machine's own commit.
    last: bool,
    sent: SendState,
}

/// Whether a commit was sent to the store. Commits under way are settled in their order, whatever the order
/// of their answers.
#[derive(Debug, PartialEq, Eq)]
enum SendState {
    No,
    UnderWay(u64),
    /// The store has applied it, and so has applied the commit before it.
    Done(Vec<GroupOutcome>),
    /// It failed while it was not the first, which proves nothing: it may have reached the store before its
    /// predecessor. The owner resends it when it is the first.
    Refused,
}

/// Commits under way at once.
const UNDER_WAY_MAX: usize = 2;

/// Turns the steady clock into the lane's own: the wall time of the claim, plus the time since, and the steps
/// of the wall clock.
#[derive(Clone, Copy, Debug)]
struct LaneClock {
    ahead: Shift,
}

impl OwnedLane {
    /// One of the commits that are not settled.
    fn commit(&self, lane: LaneId, place: usize) -> Commit {
        let packed = &self.commits[place];
        Commit {
            lane,
            epoch: self.epoch,
            owner: self.owner,
            number: CommitNo(self.number.0 + 1 + place as u64),
            groups: packed.groups.clone(),
            cursor: packed.cursor,
        }
    }
}

impl LaneClock {
    fn wall(self, steady: Timestamp) -> Timestamp {
        steady + self.ahead
    }

    fn steady(self, wall: Timestamp) -> Timestamp {
        wall - self.ahead
    }
}

impl Ownership {
    /// The ownership of `lane` by a server that does not own it yet.
    pub fn new(options: OwnershipOptions, lane: LaneId, seed: u64, now: Timestamp) -> Self {
        Self {
            options,
            lane,
            rng: Rng::new(seed),
            now,
            wanted: false,
            granted: false,
            doubtful: false,
            state: OwnershipState::Idle,
            next_call: 0,
            retries: BTreeMap::new(),
            failure: None,
            rested: None,
            lane_effects: Vec::new(),
            tokens: BTreeSet::new(),
            orphans: BTreeSet::new(),
            counters: lane::Counters::default(),
            heard: None,
        }
    }

    /// Takes one input and collects the effects.
    pub fn step(&mut self, input: Input, now: Timestamp, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        match input {
            Input::Wanted(wanted) => self.wanted = wanted,
            Input::Granted(granted) => self.on_granted(granted),
            Input::NotReleased => self.on_not_released(),
            Input::Reply { call, reply } => self.on_reply(call, reply, effects),
            Input::Members { revision, members, requested, wall } => {
                let requested = requested.then_some(wall);
                self.on_members(revision, members, requested, effects);
            }
            Input::Submit { token, tasks } => match &mut self.state {
                OwnershipState::Owning(owning) if owning.machine.is_loaded() && !owning.releasing => {
                    self.tokens.insert(token);
                    self.drive(lane::Input::Submit { token, tasks }, effects);
                }
                _ => effects.push(Effect::Submitted { token, outcomes: None }),
            },
            Input::Worker(batch) => self.drive(lane::Input::Worker(batch), effects),
            Input::Policy { queue, policy } => self.drive(lane::Input::Policy { queue, policy }, effects),
            Input::CompletionHandled(tasks) => self.drive(lane::Input::CompletionHandled(tasks), effects),
            Input::Hint => self.drive(lane::Input::Hint, effects),
            Input::ClockStepped { by } => {
                if let OwnershipState::Owning(owning) = &mut self.state {
                    owning.untold = owning.untold + by;
                }
            }
            Input::Failed => self.on_failed(),
            Input::Tick => self.drive(lane::Input::Tick, effects),
        }
        self.tell_step(effects);
        self.advance(effects);
    }

    /// Passes a step of the wall clock to the lane machine when it is loaded. Until then the machine decides
    /// nothing by the time.
    fn tell_step(&mut self, effects: &mut Vec<Effect>) {
        if let OwnershipState::Owning(owning) = &mut self.state
            && owning.untold != Shift::ZERO
            && owning.machine.is_loaded()
        {
            let by = std::mem::take(&mut owning.untold);
            owning.clock.ahead = owning.clock.ahead + by;
            self.drive(lane::Input::ClockStepped { by }, effects);
        }
    }

    /// When [`Input::Tick`] is due, unless another input comes first.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let retry = self.retries.first_key_value().map(|(&(at, _), _)| at);
        let state = match &self.state {
            OwnershipState::Owning(owning) => {
                owning.machine.next_deadline().map(|at| owning.clock.steady(at))
            }
            OwnershipState::Parked { until, .. } => Some(*until),
            OwnershipState::Acquiring { again_at } => Some(*again_at),
            OwnershipState::Idle
            | OwnershipState::Heading { .. }
            | OwnershipState::Claiming { .. }
            | OwnershipState::Viewing { .. } => None,
        };
        [retry, state].into_iter().flatten().min()
    }

    /// The lane machine, while this server owns the lane.
    pub fn machine(&self) -> Option<&Lane> {
        match &self.state {
            OwnershipState::Owning(owning) => Some(&owning.machine),
            _ => None,
        }
    }

    /// The phase of the ownership at this server, for people.
    pub fn phase(&self) -> &'static str {
        match &self.state {
            OwnershipState::Idle => "idle",
            OwnershipState::Acquiring { .. } => "acquiring",
            OwnershipState::Heading { .. } => "asking who owns it",
            OwnershipState::Claiming { .. } => "claiming",
            OwnershipState::Viewing { .. } => "asking who is alive",
            OwnershipState::Owning(owning) if owning.releasing => "releasing",
            OwnershipState::Owning(owning) if !owning.machine.is_loaded() => "loading",
            OwnershipState::Owning(_) => "owning",
            OwnershipState::Parked { .. } => "parked",
        }
    }

    /// How often rare things happened on this lane while this server owned it.
    pub fn counters(&self) -> lane::Counters {
        let mut counters = self.counters;
        if let Some(machine) = self.machine() {
            counters.add(machine.counters());
        }
        counters
    }

    /// The epoch under which this server owns the lane.
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.state {
            OwnershipState::Owning(owning) => Some(owning.epoch),
            _ => None,
        }
    }

    fn on_granted(&mut self, granted: bool) {
        self.granted = granted;
        if granted {
            return;
        }
        match self.state {
            // Another server should own the lane now. Unwritten decisions of this owner are discarded.
            OwnershipState::Heading { .. }
            | OwnershipState::Claiming { .. }
            | OwnershipState::Viewing { .. }
            | OwnershipState::Owning(_) => {
                self.drop_lane();
            }
            OwnershipState::Acquiring { .. } | OwnershipState::Idle | OwnershipState::Parked { .. } => {}
        }
    }

    /// No other input would report that this server still holds the grant, and no other server could get the
    /// lane.
    fn on_not_released(&mut self) {
        // A server that wants the lane asks for the grant anyway.
        if matches!(self.state, OwnershipState::Idle) && !self.wanted {
            self.granted = true;
            self.doubtful = true;
        }
    }

    fn drop_lane(&mut self) {
        if let OwnershipState::Owning(owning) = &self.state {
            self.counters.add(owning.machine.counters());
        }
        self.state = OwnershipState::Idle;
        self.retries.clear();
        self.orphans.append(&mut self.tokens);
    }

    /// The lane's code panicked: its memory cannot be trusted, so the server claims and loads the lane again.
    fn on_failed(&mut self) {
        self.note_failure();
        self.drop_lane();
    }

    fn note_failure(&mut self) {
        if let OwnershipState::Owning(owning) = &self.state {
            let steady = self.now.since(owning.since) >= self.options.steady_after;
            self.failure = Some(Failure { epoch: owning.epoch, steady });
        }
    }

    /// Moves on as far as wishes and grants allow.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        let orphans = std::mem::take(&mut self.orphans);
        effects.extend(orphans.into_iter().map(|token| Effect::Submitted { token, outcomes: None }));
        while let Some((&(at, call), _)) = self.retries.first_key_value() {
            if at > self.now {
                break;
            }
            let request = self.retries.remove(&(at, call)).expect("it was there just now");
            effects.push(Effect::Call { call, request });
        }
        match &mut self.state {
            OwnershipState::Idle if self.wanted && self.granted && !self.doubtful => self.head(effects),
            OwnershipState::Idle if self.wanted => {
                self.granted = false;
                self.doubtful = false;
                self.state = OwnershipState::Acquiring { again_at: self.now + self.options.retry_after };
                effects.push(Effect::Acquire);
            }
            OwnershipState::Idle if self.granted => {
                self.granted = false;
                self.doubtful = false;
                effects.push(Effect::Release);
            }
            OwnershipState::Acquiring { .. } if !self.wanted => self.state = OwnershipState::Idle,
            OwnershipState::Acquiring { .. } if self.granted => self.head(effects),
            OwnershipState::Acquiring { again_at } if *again_at <= self.now => {
                *again_at = self.now + self.options.retry_after;
                effects.push(Effect::Acquire);
            }
            OwnershipState::Parked { until, epoch } if *until <= self.now => {
                self.rested = Some(*epoch);
                self.state = OwnershipState::Idle;
                self.advance(effects);
            }
            // A release under way is completed, even if the server wants the lane again meanwhile.
            OwnershipState::Owning(owning) if !self.wanted || owning.releasing => {
                if !owning.releasing {
                    owning.releasing = true;
                    self.drive(lane::Input::Release, effects);
                }
                if let OwnershipState::Owning(owning) = &self.state
                    && owning.machine.is_settled()
                    && owning.commits.is_empty()
                {
                    self.drop_lane();
                    self.granted = false;
                    effects.push(Effect::Release);
                }
            }
            OwnershipState::Idle
            | OwnershipState::Acquiring { .. }
            | OwnershipState::Heading { .. }
            | OwnershipState::Claiming { .. }
            | OwnershipState::Viewing { .. }
            | OwnershipState::Owning(_)
            | OwnershipState::Parked { .. } => {}
        }
    }

    fn call(&mut self, request: Request, effects: &mut Vec<Effect>) -> u64 {
        self.next_call += 1;
        effects.push(Effect::Call { call: self.next_call, request });
        self.next_call
    }

    fn call_again(&mut self, call: u64, request: Request) {
        self.retries.insert((self.now + self.options.retry_after, call), request);
    }

    fn head(&mut self, effects: &mut Vec<Effect>) {
        let call = self.call(Request::Head, effects);
        self.state = OwnershipState::Heading { call };
    }

    fn on_reply(&mut self, call: u64, reply: Result<Reply, CallError>, effects: &mut Vec<Effect>) {
        match &mut self.state {
            OwnershipState::Heading { call: expected } if *expected == call => match reply {
                Ok(Reply::Head(head)) => self.claim(head, effects),
                _ => self.call_again(call, Request::Head),
            },
            OwnershipState::Claiming { call: expected, claim } if *expected == call => {
                let claim = *claim;
                match reply {
                    Ok(Reply::Claimed(epoch)) => self.on_claimed(claim, epoch, effects),
                    // The same claim again: it succeeds also if the first one was applied.
                    Err(CallError::NotApplied | CallError::Unknown | CallError::Refused) => {
                        self.call_again(call, Request::Claim(claim));
                    }
                    // Another server was faster. The grant decides whether this server tries again.
                    _ => self.head(effects),
                }
            }
            OwnershipState::Owning(owning) => {
                let is_it = |commit: &PendingCommit| commit.sent == SendState::UnderWay(call);
                if let Some(place) = owning.commits.iter().take(UNDER_WAY_MAX).position(is_it) {
                    return self.on_commit_reply(place, call, reply, effects);
                }
                let Some((read, what, limit)) = owning.reads.remove(&call) else { return };
                if let Ok(Reply::Page(page)) = reply {
                    self.drive(lane::Input::Page { read, page }, effects);
                } else {
                    let request = Request::Load { read: what.clone(), limit };
                    owning.reads.insert(call, (read, what, limit));
                    self.call_again(call, request);
                }
            }
            OwnershipState::Idle
            | OwnershipState::Acquiring { .. }
            | OwnershipState::Heading { .. }
            | OwnershipState::Claiming { .. }
            | OwnershipState::Viewing { .. }
            | OwnershipState::Parked { .. } => {}
        }
    }

    fn claim(&mut self, head: LaneHead, effects: &mut Vec<Effect>) {
        // The count follows the lane. It restarts after an owner that has committed and did not fail, or that
        // failed after it had worked for long.
        let own = self.failure.filter(|failure| failure.epoch == head.epoch);
        let failures = match (own, head.commit.0) {
            (Some(Failure { steady: true, .. }), _) => 1,
            (Some(_), _) => head.failures + 1,
            (None, 0) => head.failures,
            (None, _) => 0,
        };
        let owner = OwnerId::from_random(self.rng.next_u128());
        let claim = ClaimLane { lane: self.lane, owner, seen: head.epoch, failures };
        let call = self.call(Request::Claim(claim), effects);
        self.state = OwnershipState::Claiming { call, claim };
    }

    fn on_claimed(&mut self, claim: ClaimLane, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.failure = None;
        let rested = self.rested.take() == Some(claim.seen);
        let failing = claim.failures > self.options.failures_max;
        if failing && !rested && self.options.lane.invariants.on(Invariant::ParkedLaneRests) {
            self.state = OwnershipState::Parked { until: self.now + self.options.park_for, epoch };
            effects.push(Effect::Parked { failures: claim.failures });
            return;
        }
        self.state = OwnershipState::Viewing { owner: claim.owner, epoch };
        self.heard = None;
        effects.push(Effect::ReadMembers);
    }

    fn on_members(
        &mut self,
        revision: u64,
        members: Vec<Member>,
        requested: Option<Timestamp>,
        effects: &mut Vec<Effect>,
    ) {
        match (&self.state, requested) {
            (OwnershipState::Viewing { owner, epoch }, Some(wall)) => {
                let (owner, epoch) = (*owner, *epoch);
                let seed = self.rng.next_u64();
                let ahead = wall.shift_from(self.now);
                let anchor = Anchor { boot: self.options.boot, ahead };
                let machine =
                    Lane::new(self.options.lane.clone(), self.lane, epoch, seed, wall).anchored(anchor);
                self.state = OwnershipState::Owning(Box::new(OwnedLane {
                    machine,
                    clock: LaneClock { ahead },
                    untold: Shift::ZERO,
                    epoch,
                    owner,
                    since: self.now,
                    number: CommitNo(0),
                    commits: VecDeque::new(),
                    tries: 0,
                    outcomes: Vec::new(),
                    reads: BTreeMap::new(),
                    releasing: false,
                }));
                self.drive(lane::Input::Members { revision, members }, effects);
                // A change may have arrived while the answer was on its way.
                if let Some((revision, members)) = self.heard.take() {
                    self.drive(lane::Input::Members { revision, members }, effects);
                }
                self.drive(lane::Input::Start, effects);
            }
            (OwnershipState::Owning(_), _) => self.drive(lane::Input::Members { revision, members }, effects),
            (OwnershipState::Viewing { .. }, None) => {
                if self.heard.as_ref().is_none_or(|(heard, _)| *heard < revision) {
                    self.heard = Some((revision, members));
                }
            }
            (
                OwnershipState::Idle
                | OwnershipState::Acquiring { .. }
                | OwnershipState::Heading { .. }
                | OwnershipState::Claiming { .. }
                | OwnershipState::Parked { .. },
                _,
            ) => {}
        }
    }

    /// Gives the lane machine an input and carries out its effects.
    fn drive(&mut self, input: lane::Input, effects: &mut Vec<Effect>) {
        let OwnershipState::Owning(owning) = &mut self.state else { return };
        let mut lane_effects = std::mem::take(&mut self.lane_effects);
        owning.machine.step(input, owning.clock.wall(self.now), &mut lane_effects);
        for effect in lane_effects.drain(..) {
            self.carry_out(effect, effects);
        }
        self.lane_effects = lane_effects;
    }

    fn carry_out(&mut self, effect: lane::Effect, effects: &mut Vec<Effect>) {
        let OwnershipState::Owning(owning) = &mut self.state else { return };
        match effect {
            lane::Effect::Read { read, what, limit } => {
                self.next_call += 1;
                owning.reads.insert(self.next_call, (read, what.clone(), limit));
                effects.push(Effect::Call {
                    call: self.next_call,
                    request: Request::Load { read: what, limit },
                });
            }
            lane::Effect::Commit { groups, cursor } => {
                let packed = pack(groups, self.options.pack);
                owning.commits.extend(packed.into_iter().map(|groups| PendingCommit {
                    groups,
                    cursor,
                    last: false,
                    sent: SendState::No,
                }));
                owning.commits.back_mut().expect("a commit holds something").last = true;
                self.send_commits(effects);
            }
            lane::Effect::Send(batch) => effects.push(Effect::Send(batch)),
            lane::Effect::Submitted { token, outcomes } => {
                self.tokens.remove(&token);
                effects.push(Effect::Submitted { token, outcomes: Some(outcomes) });
            }
            lane::Effect::NotReceiving { session } => effects.push(Effect::NotReceiving { session }),
            lane::Effect::Revoke { session } => effects.push(Effect::Revoke { session }),
            lane::Effect::Changed(events) => effects.push(Effect::Changed(events)),
            lane::Effect::Completed(tasks) => effects.push(Effect::Completed(tasks)),
            lane::Effect::Reload => self.drop_lane(),
        }
    }

    /// Sends the first commit and, while nothing has gone wrong with it, the one behind it.
    fn send_commits(&mut self, effects: &mut Vec<Effect>) {
        let OwnershipState::Owning(owning) = &mut self.state else { return };
        let under_way_max = if owning.tries == 0 { UNDER_WAY_MAX } else { 1 };
        for place in 0..owning.commits.len().min(under_way_max) {
            let commit = &mut owning.commits[place];
            if commit.sent == SendState::No || (place == 0 && commit.sent == SendState::Refused) {
                self.next_call += 1;
                commit.sent = SendState::UnderWay(self.next_call);
                let request = Request::Commit(owning.commit(self.lane, place));
                effects.push(Effect::Call { call: self.next_call, request });
            }
        }
    }

    /// The first commit is settled: sends the next ones, and gives the machine its outcomes.
    fn on_settled(&mut self, outcomes: Vec<GroupOutcome>, effects: &mut Vec<Effect>) {
        let OwnershipState::Owning(owning) = &mut self.state else { return };
        let settled = owning.commits.pop_front().expect("a settled commit was under way");
        owning.number = owning.number.next();
        owning.tries = 0;
        owning.outcomes.extend(outcomes);
        let told = settled.last.then(|| std::mem::take(&mut owning.outcomes));
        self.send_commits(effects);
        if let Some(outcomes) = told {
            self.drive(lane::Input::Committed { outcomes }, effects);
        }
        if let OwnershipState::Owning(owning) = &mut self.state
            && let Some(SendState::Done(outcomes)) = owning.commits.front_mut().map(|first| &mut first.sent)
        {
            let outcomes = std::mem::take(outcomes);
            self.on_settled(outcomes, effects);
        }
    }

    fn on_commit_reply(
        &mut self,
        place: usize,
        call: u64,
        reply: Result<Reply, CallError>,
        effects: &mut Vec<Effect>,
    ) {
        let OwnershipState::Owning(owning) = &mut self.state else { return };
        if place > 0 {
            owning.commits[place].sent = match reply {
                Ok(Reply::Committed(outcomes)) => SendState::Done(outcomes),
                _ => SendState::Refused,
            };
            return;
        }
        match reply {
            Ok(Reply::Committed(outcomes)) => self.on_settled(outcomes, effects),
            Err(CallError::Unknown) if !self.options.lane.invariants.on(Invariant::ReclaimAfterUnknown) => {
                // Deliberately wrong: takes an unknown outcome for a success and goes on with the next
                // number.
                let groups = owning.commits[0].groups.len();
                let applied = GroupOutcome::Applied { seq: None };
                self.on_settled(vec![applied; groups], effects);
            }
            Err(error @ (CallError::NotApplied | CallError::Unknown | CallError::Refused))
                if owning.tries < self.options.tries_max(error) =>
            {
                owning.tries += 1;
                let request = Request::Commit(owning.commit(self.lane, 0));
                self.call_again(call, request);
            }
            // Fenced, or the commit cannot be settled: the server drops the memory and loads the lane again.
            // A fenced server may have lost the grant without notice. It asks for the grant again, so that
            // two servers do not take the lane from each other in turns.
            other => {
                // A commit that can never succeed would fail under the next owner too: it counts as a
                // failure.
                if other == Err(CallError::Fatal) {
                    self.note_failure();
                }
                self.doubtful = true;
                self.drop_lane();
            }
        }
    }
}
